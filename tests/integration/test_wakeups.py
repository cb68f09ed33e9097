"""Test that no message waits for the end of a long poll, whatever selects the message.

A broker holds a pull for which it has no message, here for longer than the test waits. So a lost wake-up shows
as a message that does not come in time. COMETMQ_WAKEUP_SEED gives another seed (`tests.seeds`).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest
from tests.seeds import seed_of
from tests.waits import WAIT_S

from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from cometmq.client.pulling import puller
from cometmq.testing import Cluster

SELECTIONS = {
    "everything": {},
    "tag": {"tags": "red || blue"},
    "sql": {"sql": "a > 5"},
    "other-sql": {"sql": "a BETWEEN 2 AND 7 OR b IS NOT NULL"},
}


class Seen:
    """Collects the numbers of the messages that one consumer got."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self._changed = threading.Condition()

    def listen(self, messages: list[MessageExt]) -> ConsumeResult:
        with self._changed:
            self.numbers.update(int(message.body) for message in messages)
            self._changed.notify_all()
        return ConsumeResult.SUCCESS

    def wait_for(self, number: int, who: str) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: number in self.numbers, WAIT_S)
        assert came, f"{who} did not get message {number} within {WAIT_S} s"


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "bit-maps"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    bit_maps = str(request.param).lower()
    properties = {
        "enablePropertyFilter": "true",
        "enableCalcFilterBitMap": bit_maps,
        "enableConsumeQueueExt": bit_maps,
    }
    with Cluster(properties=properties) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def long_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have brokers hold pulls for longer than the test waits for a message on any machine."""
    monkeypatch.setattr(puller, "SUSPEND_MS", int(2 * WAIT_S * 1000))
    monkeypatch.setattr(puller, "PULL_TIMEOUT_S", 3 * WAIT_S)


def wanted(a: int, tag: str, with_b: bool) -> set[str]:
    """Return the groups that select such a message."""
    groups = {"everything"}
    if tag in ("red", "blue"):
        groups.add("tag")
    if a > 5:
        groups.add("sql")
    if 2 <= a <= 7 or with_b:
        groups.add("other-sql")
    return groups


def test_messages_find_whoever_waits_for_them(cluster: Cluster) -> None:
    seed = seed_of("COMETMQ_WAKEUP_SEED")
    chance = random.Random(seed)
    seen = {group: Seen() for group in SELECTIONS}
    consumers = []
    with Producer("p", namesrv=cluster.namesrv) as producer:
        try:
            for group, selection in SELECTIONS.items():
                consumer = PushConsumer(
                    group,
                    seen[group].listen,
                    namesrv=cluster.namesrv,
                    consume_from=ConsumeFromWhere.FIRST_OFFSET,
                )
                consumer.subscribe("t", **selection)
                consumer.start()
                consumers.append(consumer)
            for number in range(300):
                a, tag, with_b = (
                    chance.randrange(10),
                    chance.choice(("red", "dun")),
                    chance.random() < 0.1,
                )
                properties = {"a": str(a)} | ({"b": "x"} if with_b else {})
                message = Message("t", b"%d" % number, tags=tag, properties=properties)
                send = chance.choice((producer.send, producer.send_oneway, producer.send_batch))
                send([message] if send == producer.send_batch else message)  # type: ignore[arg-type]  # the two senders take different types
                # Now and then several messages come at once, while pulls are answered, under way or
                # held.
                if chance.random() < 0.7:
                    for group in wanted(a, tag, with_b):
                        seen[group].wait_for(number, f"{group} (seed {seed})")
                if chance.random() < 0.2:
                    time.sleep(chance.random() * 0.003)
        finally:
            for consumer in consumers:
                consumer.close()
