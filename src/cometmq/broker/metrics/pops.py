"""Collect figures of messages that groups have popped and not acknowledged, and of those that were
delivered again.
"""

from __future__ import annotations

from collections.abc import Iterator

from cometmq.broker.metrics.series import Pair, PairSlots, is_system
from cometmq.broker.parts import Parts
from cometmq.broker.pop.in_flight import NEVER_MS
from cometmq.broker.pop.state import PopState
from cometmq.broker.pop.table import QueueState
from cometmq.metrics import catalogue as m
from cometmq.metrics.exposition import Exposition
from cometmq.protocol.pop.handle import asked_topic


class _Sum:
    """Sums a group's messages in flight of a topic and of its retries: their count, the time at which the
    oldest was popped, the earliest time at which one is due to be delivered again, and the count of those
    delivered again.
    """

    __slots__ = ("count", "due_ms", "oldest_ms", "revived_count")

    def __init__(self) -> None:
        self.count = self.revived_count = 0
        self.oldest_ms = 0
        self.due_ms = NEVER_MS

    def add(self, state: QueueState) -> None:
        self.count += state.count
        self.revived_count += state.revived_count
        self.due_ms = min(self.due_ms, state.due_ms)
        popped_ms = state.first_popped_ms
        if popped_ms and (not self.oldest_ms or popped_ms < self.oldest_ms):
            self.oldest_ms = popped_ms


class PopMessages:
    """Collects figures of the table of messages in flight. For the loop's thread only."""

    def __init__(self, parts: Parts, state: PopState, pairs: PairSlots) -> None:
        self._now_ms = parts.clock.now_ms
        self._table = state.table
        self._pairs = pairs

    def collect(self, out: Exposition) -> Iterator[None]:
        sums: dict[Pair, _Sum] = {}
        # A list of the keys, because pops go on between two slices.
        for key in list(self._table.states):
            state = self._table.get(key)
            if state is not None:
                group, topic, _ = key
                place = self._pairs.place(group, asked_topic(topic, group))
                sums.setdefault(place, _Sum()).add(state)
            yield
        now_ms = self._now_ms()
        for metric in (m.POP_INFLIGHT, m.POP_OLDEST_AGE, m.POP_REVIVE_LATE, m.POP_RETRIES):
            out.begin(metric)
            for (group, topic), each in sums.items():
                if metric is m.POP_INFLIGHT:
                    out.sample(each.count, group, topic, is_system(topic, group))
                elif metric is m.POP_OLDEST_AGE:
                    age_ms = max(now_ms - each.oldest_ms, 0) if each.oldest_ms else 0
                    out.sample(age_ms / 1000, group, topic, is_system(topic, group))
                elif metric is m.POP_REVIVE_LATE:
                    late_ms = max(now_ms - each.due_ms, 0)
                    out.sample(late_ms / 1000, group, topic, is_system(topic, group))
                else:
                    out.sample(each.revived_count, group, topic, "PUT_OK")
                yield
