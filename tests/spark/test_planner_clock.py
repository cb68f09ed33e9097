"""The planner waits for brokers by the clock that it is given: an hour of it takes no time here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import pytest
from tests.unit.spark.test_patience import WaitingClock

from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import CometMQError, ConnectError
from cometmq.model.queue import MessageQueue
from cometmq.spark.live.options import LiveOptions
from cometmq.spark.live.queues import LOOK_EVERY_S, LiveQueues

QUEUE = MessageQueue("orders", "broker-a", 0)
OPTIONS = {"namesrv": "127.0.0.1:1", "subscribe": "orders", "timeoutMs": "3600000"}


class Broker:
    """Stands in for a reader whose one broker answers from `back_at_s` on."""

    def __init__(self, clock: WaitingClock, back_at_s: float) -> None:
        self._clock = clock
        self._back_at_s = back_at_s
        self.looked_up_at: list[float] = []

    def queues(self, _topic: str) -> list[MessageQueue]:
        self.looked_up_at.append(self._clock.now_s)
        return [QUEUE]

    def check_selection(self, *_: object, **__: object) -> None:
        """Select whatever it is asked to."""

    def store_times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        return dict.fromkeys(places)

    def offsets_or_failures(
        self, queues: Iterable[MessageQueue], _known: object
    ) -> dict[MessageQueue, tuple[int, int] | CometMQError]:
        if self._clock.now_s < self._back_at_s:
            return {queue: ConnectError("away", address="127.0.0.1:1") for queue in queues}
        return dict.fromkeys(queues, (0, 7))


def bounds(clock: WaitingClock, broker: Broker) -> Any:
    queues = LiveQueues(LiveOptions(OPTIONS, streaming=True), clock)
    return queues.bounds(cast("BlockingRangeReader", broker), {}, all_of_them=True)


def test_a_broker_that_comes_back_within_the_timeout_is_waited_for() -> None:
    clock = WaitingClock()
    broker = Broker(clock, back_at_s=1800.0)
    assert bounds(clock, broker) == {QUEUE: (0, 7)}
    assert 1800 <= clock.now_s < 1801
    pauses = {b - a for a, b in zip(broker.looked_up_at, broker.looked_up_at[1:], strict=False)}
    assert all(LOOK_EVERY_S <= pause < LOOK_EVERY_S + 1 for pause in pauses)


def test_a_broker_that_stays_away_ends_the_planning_when_the_timeout_is_over() -> None:
    clock = WaitingClock()
    with pytest.raises(ConnectError, match="away"):
        bounds(clock, Broker(clock, back_at_s=1e9))
    assert 3600 <= clock.now_s < 3601
