"""Bound the series of one scrape: choose the topics and groups with series of their own, and sum up the
others.

A topic or group that had series of its own in the last scrape keeps them, so that no counter moves from
its own series into a sum and back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import islice

from cometmq.metrics.catalogue import REST
from cometmq.model.names import is_system_group, is_system_topic

Pair = tuple[str, str]
# One group may take this part of all pairs' series; its further topics are summed.
_SHARE_OF_A_GROUP = 10


class Slots:
    """Gives each of `limit` keys a slot, first come, first served; a key that is not asked for
    between `begin` and `end` loses its slot. `left_out` counts the keys without a slot.
    """

    def __init__(self) -> None:
        self._kept: set[Hashable] = set()
        self._seen: set[Hashable] = set()
        self._limit = 0
        self.left_out = 0

    def begin(self, limit: int) -> None:
        self._limit = limit
        self._seen = set()
        self.left_out = 0
        if len(self._kept) > limit:
            self._kept = set(islice(self._kept, limit))

    def keeps(self, key: Hashable) -> bool:
        """Say whether a key had a slot in the last scrape."""
        return key in self._kept

    def was_taken(self, key: Hashable) -> bool:
        """Say whether a key has its slot since `begin`."""
        return key in self._seen

    def take(self, key: Hashable) -> bool:
        """Return whether the key has a slot, now or since an earlier scrape."""
        if key not in self._kept:
            if len(self._kept) >= self._limit:
                self.left_out += 1
                return False
            self._kept.add(key)
        self._seen.add(key)
        return True

    def end(self) -> None:
        """Free the slots of keys that were not asked for."""
        self._kept = self._seen


class PairSlots:
    """Names the series of a pair of a group and a topic: its own, that of the group's other topics,
    or that of all other pairs. There are at most twice `limit` of them.
    """

    def __init__(self) -> None:
        self._pairs = Slots()
        self._groups = Slots()
        self._own: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._share = 0
        self.left_out = 0

    def begin(self, limit: int) -> None:
        self._pairs.begin(limit)
        self._groups.begin(limit)
        self._share = max(1, limit // _SHARE_OF_A_GROUP)
        self._seen = {}
        self.left_out = 0

    def group(self, group: str) -> str:
        """Return the group itself if it has series of its own, else REST."""
        return group if self._groups.take(group) else REST

    def place(self, group: str, topic: str) -> Pair:
        """Return the labels of the series that the pair belongs to."""
        if self.group(group) is REST:
            self.left_out += 1
            return REST, REST
        pair = (group, topic)
        known = self._pairs.keeps(pair)
        first = not self._pairs.was_taken(pair)
        if (known or self._own.get(group, 0) < self._share) and self._pairs.take(pair):
            if not known:
                self._own[group] = self._own.get(group, 0) + 1
            if first:  # a scrape asks for a pair several times
                self._seen[group] = self._seen.get(group, 0) + 1
            return pair
        self.left_out += 1
        return group, REST

    def end(self) -> None:
        self._pairs.end()
        self._groups.end()
        self._own = self._seen


class Sums:
    """Adds up counters by the labels of their series, in rows of numbers.

    A topic that is deleted takes its part out of a sum. A counter that falls counts as one that
    began again, so the sums of REST stay where they were until they have grown beyond that again.
    """

    def __init__(self) -> None:
        self.rows: dict[Pair, list[int]] = {}
        self._highest: dict[Pair, list[int]] = {}

    def begin(self) -> None:
        self.rows = {}

    def add(self, labels: Pair, counts: Iterable[int]) -> None:
        row = self.rows.get(labels)
        self.rows[labels] = (
            list(counts) if row is None else [a + b for a, b in zip(row, counts, strict=True)]
        )

    def end(self) -> Iterator[None]:
        """Hold the sums where they were, one row at each step."""
        highest: dict[Pair, list[int]] = {}
        for labels, row in self.rows.items():
            if REST in labels:
                before = self._highest.get(labels, row)
                highest[labels] = [max(a, b) for a, b in zip(row, before, strict=True)]
            yield
        self.rows.update(highest)
        self._highest = highest


def is_system(topic: str, group: str = "") -> str:
    """Return the value of the label `is_system`."""
    return _flag(is_system_topic(topic) or (bool(group) and is_system_group(group)))


def is_retry(topic: str) -> str:
    """Return the value of the label `is_retry`."""
    return _flag(topic.startswith(("%RETRY%", "%DLQ%")))


def _flag(value: bool) -> str:
    return "true" if value else "false"
