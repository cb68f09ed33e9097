"""Recognise a topic that was deleted and created again behind the offsets of a stream.

Neither Java's brokers nor ours give a topic an identity or a creation time, and the queues of the
new one count from 0 again. So a checkpoint holds a mark for each queue: the offset of a message
that the query has left behind it, and when its broker stored that message. Another time at this
offset means another topic. A mark that retention has deleted says nothing.

In the JSON of an offset the marks are next to the topics, under a name that no topic can have:
{"orders": {"broker-a": {"0": 17}}, "@stored": {"orders": {"broker-a": {"0": [16, 1764345600000]}}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from cometmq.errors import DataLossError
from cometmq.model.queue import MessageQueue
from cometmq.runtime.clock import SYSTEM_CLOCK, BlockingClock
from cometmq.spark.gaps import MADE_AGAIN
from cometmq.spark.live.options import MARKS, LiveOptions, LiveTable, OffsetTable, table_of
from cometmq.spark.live.plan import Range, lost

Mark = tuple[int, int]
Marks = dict[MessageQueue, Mark]


def marks_of(table: LiveTable) -> Marks:
    """Return the marks of an offset; none for one that an earlier version wrote."""
    return {
        MessageQueue(topic, broker, int(queue_id)): (mark[0], mark[1])
        for topic, brokers in table.get(MARKS, {}).items()
        for broker, queues in brokers.items()
        for queue_id, mark in queues.items()
    }


def with_marks(table: OffsetTable, marks: Mapping[MessageQueue, Mark]) -> LiveTable:
    """Return the offset with these marks, sorted."""
    if not marks:
        return table
    lists = {queue: list(mark) for queue, mark in marks.items()}
    return {**table, MARKS: table_of(lists)}


@dataclass(frozen=True, slots=True)
class MadeAgain:
    """Names the message by which a queue was found to be another one: its offset, and when it and
    the marked message were stored, in ms.
    """

    queue: MessageQueue
    offset: int
    stored_ms: int
    mark: Mark

    def __str__(self) -> str:
        at, stored_ms = self.mark
        return (
            f"offset {at} of {self.queue} was stored at {_shown(stored_ms)}, and offset "
            f"{self.offset} is now a message of {_shown(self.stored_ms)}"
        )


class StoreTimes(Protocol):
    """Looks up messages: at brokers (BlockingRangeReader), or in a log that a pipeline reads."""

    def store_times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        """Return when the message at one offset of each queue was stored, None if that is not
        known.
        """
        ...


class LiveIdentity:
    """Sets and compares marks for the planner of a query: every few seconds at most, but at once
    for a queue that has become shorter or has no mark yet.
    """

    def __init__(self, every_s: float, clock: BlockingClock = SYSTEM_CLOCK) -> None:
        self._every_s = every_s
        self._clock = clock
        self._compare_after_s = self._set_after_s = 0.0
        # Ends of queues without a message right before them, since all marks were last set.
        self._without: dict[MessageQueue, int] = {}
        self.marks: Marks = {}
        self.made_again: dict[MessageQueue, MadeAgain] = {}

    def compare(
        self,
        reader: StoreTimes,
        bounds: Mapping[MessageQueue, Range],
        starts: Mapping[MessageQueue, int],
    ) -> None:
        """Look for queues with another message at the mark than before, and keep them in
        `made_again`. Brokers that do not answer are asked again the next time.
        """
        now_s = self._clock.monotonic()
        due = now_s >= self._compare_after_s
        if due:
            self._compare_after_s = now_s + self._every_s
        places = {}
        for queue, (offset, _) in self.marks.items():
            low, high = bounds.get(queue, (0, 0))
            if low < high and (due or starts.get(queue, 0) > high):
                # A shorter queue with a first message stored later than the mark is also a new one.
                place = offset if offset < high else low
                if low <= place:
                    places[queue] = place
        self.made_again = {}
        for queue, stored_ms in reader.store_times(places).items():
            mark = self.marks[queue]
            if stored_ms is not None and (
                stored_ms != mark[1] if places[queue] == mark[0] else stored_ms > mark[1]
            ):
                self.made_again[queue] = MadeAgain(queue, places[queue], stored_ms, mark)

    def set(self, reader: StoreTimes, ends: Mapping[MessageQueue, int]) -> Marks:
        """Return the marks for an offset with these `ends`: new ones right before the ends, or
        existing ones that are at most a few seconds old.

        A queue without a mark gets one at once: the query may end with the batch that is planned now.
        """
        kept = {
            queue: mark
            for queue, mark in self.marks.items()
            if queue not in self.made_again and mark[0] < ends.get(queue, 0)
        }
        now_s = self._clock.monotonic()
        if now_s >= self._set_after_s:
            self._set_after_s = now_s + self._every_s
            self._without.clear()
            old = {queue: mark[0] + 1 for queue, mark in kept.items()}
        else:
            old = self._without | {queue: ends[queue] for queue in kept}
        places = {
            queue: end - 1 for queue, end in ends.items() if end > 0 and old.get(queue) != end
        }
        if not places:
            return kept
        for queue, stored_ms in reader.store_times(places).items():
            if stored_ms is not None:
                kept[queue] = places[queue], stored_ms
            else:
                self._without[queue] = ends[queue]
        return kept


def begin_again(options: LiveOptions, queue: MessageQueue, start: int, found: MadeAgain) -> None:
    """Note that a query continues at the first message of a topic that was created again. Raise
    DataLossError if gaps are not allowed.
    """
    if options.gaps.allowed:
        # How many messages the topic had when it was deleted is not known.
        options.gaps.replace_planned(queue, lost(queue, start, start, MADE_AGAIN))
        return
    raise DataLossError(
        f"topic {queue.topic} was deleted and made again since the checkpoint was written: "
        f"{found}. Messages of it that the query had not read are gone, and continuing at offset "
        f"{start} would skip messages of the new one. Start the query with a new checkpoint, or "
        "set failOnDataLoss=false with gapLog=<directory> to read the new topic from its first "
        "message"
    )


def _shown(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
