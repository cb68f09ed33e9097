"""Keep how much topics and groups moved in the last minute, hour and day: code 315.

Java: BrokerStatsManager. Nothing is counted here: the store counts what is put to a topic, and
`Traffic` what groups take. Both are sampled, as often as Java samples. As in Java there are no
figures of a counter that has counted nothing since the broker started. docs/internals/metrics.md
says which of Java's counters are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from cometmq.broker.refusal import Refused
from cometmq.broker.stats_item import (
    DAY,
    HOUR,
    MINUTE,
    WINDOWS,
    Sampler,
    StatsItem,
    Totals,
)
from cometmq.broker.traffic import Taken, Traffic
from cometmq.logs.loggers import get_logger
from cometmq.protocol import requests
from cometmq.protocol.bodies.inspection import BrokerStatsData, BrokerStatsItem
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.headers import ViewBrokerStatsDataRequestHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import Clock
from cometmq.runtime.slices import run_slices
from cometmq.store.queues.consume_queue import PutTotals
from cometmq.store.store import MessageStore

log = get_logger(__name__)

# A pair of a group and a topic is forgotten when it has counted nothing for a day, or, while there
# are too many pairs, for an hour.
_A_DAY: Final = WINDOWS[DAY].samples * WINDOWS[DAY].periods
_AN_HOUR: Final = WINDOWS[HOUR].samples * WINDOWS[HOUR].periods


class Of(Enum):
    """Says what a counter belongs to. The value says what its key looks like."""

    TOPIC = "TOPIC"
    PAIR = "TOPIC@GROUP"
    BROKER = "the name of the cluster"


class Kind(NamedTuple):
    """Says where a kind of counter finds its sum, and how many times something was counted.

    Both are places in the totals; `times` is -1 if the times are not counted. The sum is divided
    by `divisor`.
    """

    of: Of
    sum: int
    times: int
    divisor: int = 1


KINDS: Final = {
    "TOPIC_PUT_NUMS": Kind(Of.TOPIC, 0, 1),
    "TOPIC_PUT_SIZE": Kind(Of.TOPIC, 2, 1),
    "GROUP_GET_NUMS": Kind(Of.PAIR, 0, 1),
    "GROUP_GET_SIZE": Kind(Of.PAIR, 2, 1),
    # In ms; it is counted in µs, because most pulls take less than 1 ms.
    "GROUP_GET_LATENCY": Kind(Of.PAIR, 3, 1, 1000),
    "SNDBCK_PUT_NUMS": Kind(Of.PAIR, 4, 4),
    "BROKER_PUT_NUMS": Kind(Of.BROKER, 0, -1),
    "BROKER_GET_NUMS": Kind(Of.BROKER, 1, -1),
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": Kind(Of.BROKER, 2, -1),
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": Kind(Of.BROKER, 3, -1),
}
_WIDTHS: Final = {Of.TOPIC: 3, Of.PAIR: 5, Of.BROKER: 4}


class BrokerStats:
    """Samples what the store and `traffic` count, and answers requests. For the loop's thread only.

    `subscribes` says whether a group is online and subscribes to a topic.
    """

    def __init__(
        self,
        cluster: str,
        store: MessageStore,
        clock: Clock,
        traffic: Traffic,
        subscribes: Callable[[str, str], bool],
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._traffic = traffic
        self._subscribes = subscribes
        self._sampler = Sampler(clock.monotonic)
        self._broker = StatsItem(_WIDTHS[Of.BROKER])
        # By topic, each with the totals that it samples: those of a topic that was deleted and made
        # again are others.
        self._topics: dict[str, tuple[PutTotals, StatsItem]] = {}
        self._was_full = False

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.VIEW_BROKER_STATS_DATA, self.view)

    # -- sampling --

    async def sample(self) -> None:
        """Sample all counters, in slices. To be called every SAMPLE_PERIOD_S."""
        # AccessRequest before anything is forgotten, which makes room.
        is_full = self._traffic.is_full
        await run_slices(self._sampler.sample(self._counters(is_full)))
        known = self._store.queues.put_totals
        for topic in [topic for topic in self._topics if topic not in known]:
            del self._topics[topic]
        if is_full and not self._was_full:
            log.warning(
                "too many pairs of a group and a topic: messages of further groups are not counted",
                limit="MAX_COUNTED_PAIRS",
                value=self._traffic.max_counted_pairs,
            )
        self._was_full = is_full

    def _counters(self, is_full: bool) -> Iterator[tuple[StatsItem, Totals]]:
        yield self._broker, self._broker_totals()
        # Copies, because counters may come and go between two slices.
        for topic, put in list(self._store.queues.put_totals.items()):
            if put.message_count:
                yield self._topic_item(topic, put), _topic_totals(put)
        for group, of_group in list(self._traffic.taken.items()):
            for topic, taken in list(of_group.items()):
                item = taken.item
                if item is None:
                    item = taken.item = StatsItem(_WIDTHS[Of.PAIR])
                elif self._is_over(group, topic, taken, item, is_full):
                    self._traffic.forget(group, topic)
                    continue
                yield item, _pair_totals(taken)

    def _topic_item(self, topic: str, put: PutTotals) -> StatsItem:
        known = self._topics.get(topic)
        if known is None or known[0] is not put:
            known = self._topics[topic] = (put, StatsItem(_WIDTHS[Of.TOPIC]))
        return known[1]

    def _is_over(
        self, group: str, topic: str, taken: Taken, item: StatsItem, is_full: bool
    ) -> bool:
        """Say whether a pair has rested for so long that it can be forgotten."""
        rest = self._sampler.rest(item)
        if is_full:
            return rest >= _AN_HOUR
        # 208 says how many messages the members of a group hold.
        holds = bool(taken.next_offsets) and self._subscribes(group, topic)
        return rest >= _A_DAY and not holds

    def _broker_totals(self) -> Totals:
        traffic = self._traffic
        return (
            self._store.appended_count,
            traffic.transferred_count,
            traffic.user_put(),
            traffic.user_taken,
        )

    # -- answers --

    def topic_put_tps(self, topic: str) -> float:
        """Return how many messages a second were put to a topic in the last minute."""
        return self._tps("TOPIC_PUT_NUMS", topic)

    def group_get_tps(self, group: str, topic: str) -> float:
        """Return how many messages a second a group took of a topic in the last minute."""
        return self._tps("GROUP_GET_NUMS", f"{topic}@{group}")

    def _tps(self, name: str, key: str) -> float:
        kind = KINDS[name]
        found = self._find(kind, key)
        return 0.0 if found is None else self._figures(kind, found[0], MINUTE).tps

    def view(
        self, _connection: Connection, call: Request[ViewBrokerStatsDataRequestHeader]
    ) -> RemotingCommand:
        """Return how much a counter grew in the last minute, hour and day."""
        data = self.figures(call.header.stats_name, call.header.stats_key)
        return response(ResponseCode.SUCCESS, body=encode_body(data))

    def figures(self, name: str, key: str) -> BrokerStatsData:
        """Return the same as `view`. Raises Refused if nothing was counted."""
        unknown = f"The stats <{name}> <{key}> not exist"
        kind = KINDS.get(name)
        if kind is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"{unknown}; this broker keeps {', '.join(KINDS)}"
            )
        found = self._find(kind, key)
        if found is None or not found[1][kind.sum]:
            limit = ""
            if kind.of is Of.PAIR and self._traffic.is_full:
                limit = (
                    f", and no more than MAX_COUNTED_PAIRS={self._traffic.max_counted_pairs} pairs "
                    "of a group and a topic are"
                )
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{unknown}; nothing is counted there (figures begin with the broker's start and end "
                f"with the topic or group, or after a day of rest){limit}; the key is {kind.of.value}",
            )
        item = found[0]
        return BrokerStatsData(*(self._figures(kind, item, i) for i in range(len(WINDOWS))))

    def _find(self, kind: Kind, key: str) -> tuple[StatsItem | None, Totals] | None:
        """Return the samples of a counter, None before the first, and its totals now."""
        if kind.of is Of.BROKER:
            return (self._broker, self._broker_totals()) if key == self._cluster else None
        if kind.of is Of.TOPIC:
            put = self._store.queues.put_totals.get(key)
            known = self._topics.get(key)
            if put is None:
                return None
            item = known[1] if known is not None and known[0] is put else None
            return item, _topic_totals(put)
        # A topic has no @ in its name.
        topic, _, group = key.partition("@")
        taken = self._traffic.taken.get(group, {}).get(topic)
        return None if taken is None else (taken.item, _pair_totals(taken))

    def _figures(self, kind: Kind, item: StatsItem | None, window: int) -> BrokerStatsItem:
        if item is None:
            return BrokerStatsItem()
        totals, length_s = self._sampler.growth(item, window)
        grown = totals[kind.sum]
        times = totals[kind.times] if kind.times >= 0 else 0
        return BrokerStatsItem(
            sum=grown // kind.divisor,
            tps=grown / kind.divisor / length_s if length_s > 0 else 0.0,
            avgpt=grown / kind.divisor / times if times else 0.0,
        )


def _topic_totals(put: PutTotals) -> Totals:
    return put.message_count, put.message_count - put.batch_rest, put.byte_count


def _pair_totals(taken: Taken) -> Totals:
    return (
        taken.message_count,
        taken.pull_count,
        taken.byte_count,
        taken.latency_us,
        taken.sent_back_count,
    )
