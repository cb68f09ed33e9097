"""Plan the messages of a replay, their chunks and their queues: decided once and kept in its
ledger.

Every queue that messages come from is cut at the same hours into chunks, by its offsets. So a
queue's order holds across chunks even if a clock was set back, and messages that are archived later
change nothing. A chunk is finished before the next one is begun.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.resending.ledger import ResendPlan


class Origin(NamedTuple):
    """A queue that messages come from. `broker` is empty for a store whose broker is not named."""

    topic: str
    broker: str
    queue_id: int


class Found(NamedTuple):
    """Holds the counts of a queue for an hour like 2026-11-20T16.

    messages, chosen: how many it has, and how many of them are chosen.
    first, last: the first and last offset of the chosen ones, -1 if there are none.
    key_target: the number of the target that the messages' sharding keys choose; None for messages
        without one.
    """

    origin: Origin
    hour: str
    key_target: int | None
    messages: int
    chosen: int
    first: int
    last: int


class Span(msgspec.Struct, frozen=True, array_like=True):
    """The offsets from behind `after` to `last` of the queue number `origin`."""

    origin: int
    after: int
    last: int


class Chunk(msgspec.Struct, frozen=True):
    """A chunk of a replay. `hours` are the first and the last hour in which its messages were
    stored; `counts` says about how many go to each target.
    """

    spans: list[Span]
    hours: tuple[str, str]
    counts: dict[int, int]

    @property
    def count(self) -> int:
        return sum(self.counts.values())


class HourCount(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    hour: str
    chosen: int
    passed_over: int


class ReplayPlan(ResendPlan):
    """The plan of a replay. `origins` are the queues that messages come from, each with the number
    of its target.
    """

    origins: list[tuple[Origin, int]]
    has_keys: bool
    chunks: list[Chunk]
    hours: list[HourCount]
    queues: list[tuple[Origin, int]]

    @property
    def chosen(self) -> int:
        return sum(hour.chosen for hour in self.hours)


def target_of(origin: Origin, place: int, targets: Sequence[MessageQueue], to: str) -> int:
    """Return the number of the queue of topic `to` that a queue's messages go to.

    It is the queue with the same broker and id if there is one; otherwise `place`, the queue's
    number among the origins, chooses.
    """
    numbers = [at for at, target in enumerate(targets) if target.topic == to]
    for number in numbers:
        if targets[number][1:] == origin[1:]:
            return number
    return numbers[place % len(numbers)]


def cut_chunks(found: Iterable[Found], targets: Mapping[Origin, int], most: int) -> list[Chunk]:
    """Cut chunks of about `most` messages, each with a share of an hour of every queue at least."""
    rows = sorted((row for row in found if row.chosen), key=lambda row: row.hour)
    by_hour: defaultdict[str, list[Found]] = defaultdict(list)
    for row in rows:
        by_hour[row.hour].append(row)
    numbers = {origin: number for number, origin in enumerate(targets)}
    cuts = _Cuts(numbers)
    for of_hour in by_hour.values():
        count = sum(row.chosen for row in of_hour)
        if cuts.open and cuts.open + count > most:
            cuts.close()
        parts = -(-count // most)
        for part in range(1, parts + 1):
            cuts.take(of_hour, targets, part, parts)
            if part < parts:
                cuts.close()
        if cuts.open >= most:
            cuts.close()
    cuts.close()
    return cuts.chunks(rows)


class _Cuts:
    """Collects the last offset of each queue in each chunk, one chunk after the other."""

    def __init__(self, numbers: Mapping[Origin, int]) -> None:
        self._numbers = numbers
        self._ends: list[list[int]] = [[] for _ in numbers]
        self._so_far = [-1] * len(numbers)
        self._counts: list[dict[int, int]] = []
        self._count: defaultdict[int, int] = defaultdict(int)

    @property
    def open(self) -> int:
        """Return how many messages the chunk has that is not closed yet."""
        return sum(self._count.values())

    def take(
        self, rows: Iterable[Found], targets: Mapping[Origin, int], part: int, parts: int
    ) -> None:
        """Take an hour's messages, or the part number `part` (from 1) of a large hour."""
        for row in rows:
            end = row.first + (row.last - row.first + 1) * part // parts - 1
            number = self._numbers[row.origin]
            self._so_far[number] = max(self._so_far[number], end)
            target = targets[row.origin] if row.key_target is None else row.key_target
            self._count[target] += row.chosen * part // parts - row.chosen * (part - 1) // parts

    def close(self) -> None:
        if not self._count:
            return
        for number, end in enumerate(self._so_far):
            self._ends[number].append(end)
        self._counts.append({target: max(1, count) for target, count in self._count.items()})
        self._count.clear()

    def chunks(self, rows: Iterable[Found]) -> list[Chunk]:
        hours: list[list[str]] = [[] for _ in self._counts]
        for row in rows:
            ends = self._ends[self._numbers[row.origin]]
            for chunk in range(bisect_left(ends, row.first), bisect_left(ends, row.last) + 1):
                hours[chunk] += (row.hour,)
        return [
            Chunk(self._spans(chunk), (min(hours[chunk]), max(hours[chunk])), counts)
            for chunk, counts in enumerate(self._counts)
            if hours[chunk]
        ]

    def _spans(self, chunk: int) -> list[Span]:
        spans = []
        for number, ends in enumerate(self._ends):
            after = ends[chunk - 1] if chunk else -1
            if ends[chunk] > after:
                spans.append(Span(number, after, ends[chunk]))
        return spans


def share_lanes(counts: Mapping[int, int], most: int) -> list[tuple[int, ...]]:
    """Divide the targets among at most `most` lanes, with about as many messages in each."""
    lanes: list[list[int]] = [[] for _ in range(max(1, min(most, len(counts))))]
    loads = [0] * len(lanes)
    for target in sorted(counts, key=lambda target: (-counts[target], target)):
        lane = loads.index(min(loads))
        lanes[lane].append(target)
        loads[lane] += counts[target]
    return [tuple(sorted(lane)) for lane in lanes]
