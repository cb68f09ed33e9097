"""Find the first message that a file of the log must wait for: groups mark what may go.

The offset that a group has committed in a queue is its mark: the group needs no message below it
any more. `cleanFileWaitsForGroups` names groups whose marks the cleaner waits for. A group's marks
show the topics for which the cleaner waits. A queue of such a topic without a mark of the group counts
as marked up to 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.errors import StoreError
from cometmq.store.files.disk import Disk
from cometmq.store.queues.consume_queue import UNIT, UNIT_SIZE, ConsumeQueue
from cometmq.store.retention.retention import Hold

# The offsets that a group has committed, by topic and queue id.
MarksOf = Callable[[str], Mapping[str, Mapping[int, int]]]

# Queues that are looked at in one go, and units that are read in one piece of work.
_AT_ONCE: Final = 500


class Unmarked(NamedTuple):
    """The first message of a queue that a group has not marked, and where its unit lies."""

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    path: Path
    position: int

    def __str__(self) -> str:
        return (
            f"group {self.group} has marked queue {self.queue_id} of topic {self.topic} only up to "
            f"offset {self.queue_offset}"
        )


class Search:
    """Looks for the first record that waits for a mark of one of `groups`."""

    def __init__(self, groups: Iterable[str], marks_of: MarksOf, disk: Disk) -> None:
        self._marks = {group: marks_of(group) for group in groups}
        self._disk = disk
        self.hold: Hold | None = None
        for group, marks in self._marks.items():
            if not marks:
                self._note(0, f"group {group} has not marked anything yet")

    def unmarked(self, queues: Iterable[ConsumeQueue]) -> Iterator[list[Unmarked]]:
        """Yield what each of some queues waits for. For the thread that owns the queues."""
        if self.hold is not None:  # All of the log waits.
            return
        left = iter(queues)
        while some := list(islice(left, _AT_ONCE)):
            yield [found for queue in some for found in self._of_queue(queue)]

    def look(self, found: Iterable[Unmarked]) -> None:
        """Find the records in the log. Blocks; for any thread.

        A unit that cannot be read holds all, until the next search: its queue may just go.
        """
        unit = bytearray(UNIT_SIZE)
        for one in found:
            try:
                self._disk.read_into(one.path, one.position, memoryview(unit))
            except StoreError as error:
                self._note(0, f"{one}, and its message is not found: {error}")
            else:
                self._note(UNIT.unpack(unit)[0], str(one))

    def _of_queue(self, queue: ConsumeQueue) -> Iterator[Unmarked]:
        for group, offset in self.waits_in(
            queue.topic, queue.queue_id, queue.min_offset, queue.next_offset
        ):
            place = offset * UNIT_SIZE
            if file := queue.files.find(place):
                yield Unmarked(
                    group, queue.topic, queue.queue_id, offset, file.path, place - file.base
                )

    def waits_in(self, topic: str, queue_id: int, low: int, end: int) -> Iterator[tuple[str, int]]:
        """Yield each group that waits in a queue, and for which offset; the queue has messages from
        `low` to below `end`.
        """
        for group, topics in self._marks.items():
            if (marks := topics.get(topic)) is not None:
                mark = max(marks.get(queue_id, 0), low)
                if mark < end:
                    yield group, mark

    def _note(self, offset: int, reason: str) -> None:
        if self.hold is None or offset < self.hold.offset:
            self.hold = Hold(offset, reason)
