"""Keep a consume queue: where in the commit log the messages of one queue lie (Java: ConsumeQueue).

A file is an array of units; unit k of the queue is the message with queue offset k.

offset  size    field
0       8       commit-log offset
8       4       size of the record
12      8       tags code: hash of the tags, or the deliver timestamp in the schedule topic

A unit (0, 0x7FFFFFFF, 0) stands where no message is: before the first one of a queue that does not
begin at 0. Where a message between others was lost, and the log repaired, the unit of the message
behind it stands twice. A unit with size 0 was never written.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from cometmq.model.measures.histogram import Histogram, latencies, sizes
from cometmq.model.names import LMQ_PREFIX
from cometmq.protocol.messages.record import MAGIC_V1, MAGIC_V2, MAX_TOPIC_LENGTH_V1
from cometmq.protocol.messages.record_layout import BODY_AT, HOSTS_V6, record_struct, wider_by
from cometmq.store.config import CONSUME_QUEUE_UNIT_SIZE, PAGE_SIZE
from cometmq.store.files.disk import NO_MAPPING
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.reading.layout import (
    PLACEHOLDER_SIZE as PLACEHOLDER_SIZE,  # noqa: PLC0414 - a reader of a ConsumeQueue needs it
)

UNIT: Final = struct.Struct(">qiq")
UNIT_SIZE: Final = CONSUME_QUEUE_UNIT_SIZE
assert UNIT.size == UNIT_SIZE


@lru_cache(256)
def units_struct(count: int) -> struct.Struct:
    """Return the layout of so many units, one behind the other, which are packed in one call."""
    return struct.Struct(">" + "qiq" * count)


# Files are sparse, and room is reserved in steps of this size, which are whole units and whole
# pages. So a queue of few messages takes little of the disk.
_RESERVE_BYTES: Final = PAGE_SIZE * UNIT_SIZE
assert _RESERVE_BYTES % UNIT_SIZE == 0
# The first step is the page that a new file has already. Where there are many topics, most queues
# need no more.
_FIRST_BYTES: Final = PAGE_SIZE // UNIT_SIZE * UNIT_SIZE
# Size of a record with two IPv4 hosts but without its texts: the fixed fields up to the body, and
# the length of the properties.
_FIXED_RECORD_BYTES: Final = BODY_AT + 2
_HEAD: Final = record_struct(
    "size", "magic", "queue_id", "queue_offset", "physical_offset", "sys_flag", "body_length"
)
_BODY_LENGTH: Final = record_struct("body_length")
# Units that are looked for in memory, and read from the disk, together: a reader that is far behind
# needs the next ones soon.
_AHEAD_BYTES: Final = 16 * PAGE_SIZE
# So many of the last units stay in memory once they were there.
_RECENT_UNITS: Final = 100_000
# Placeholders put into a queue in one go.
_FILLED_AT_ONCE: Final = 4096
# This many neighbours show whether a unit among those of messages that have left the log is a damaged
# one, or the other way round.
_WITNESSES: Final = 8


class Unit(NamedTuple):
    physical_offset: int
    size: int
    tags_code: int


NO_MESSAGE: Final = Unit(0, PLACEHOLDER_SIZE, 0)


class PutTotals:
    """Counts what was appended to the queues of one topic since the store was made.

    `byte_count` is the size of the records. `batch_rest` counts the messages of batches, but for
    the first of each batch; so `message_count - batch_rest` is how often something was appended.
    `sizes` and `latencies` are those of the sends that `sample` was called for.
    """

    __slots__ = ("batch_rest", "byte_count", "latencies", "message_count", "sizes")

    def __init__(self) -> None:
        self.message_count = 0
        self.byte_count = 0
        self.batch_rest = 0
        # Made with the first sample: most topics of a large broker rest.
        self.latencies: Histogram | None = None
        self.sizes: Histogram | None = None

    def sample(self, size: int, took_s: float) -> None:
        """Count a send of `size` bytes of bodies that was answered after `took_s`."""
        if self.latencies is None or self.sizes is None:
            self.latencies, self.sizes = latencies(), sizes()
        self.latencies.add(int(took_s * 1e6))
        self.sizes.add(size)


class ConsumeQueue:
    """Keeps one queue of one topic. `next_offset` is the queue offset of the next message.

    `totals` are those of its topic; the code that appends a message counts it there. The appender needs
    `magic`, `sized_topic` and `record_overhead` for every record of this queue. Mappings are made when
    first needed: an idle queue costs a few hundred bytes.
    """

    __slots__ = (
        "_limit",
        "_map",
        "_position",
        "_room_end",
        "_sure_from",
        "_sure_tail",
        "_sure_to",
        "files",
        "is_light",
        "magic",
        "min_offset",
        "next_offset",
        "queue_id",
        "record_overhead",
        "sized_topic",
        "topic",
        "totals",
    )

    def __init__(
        self, topic: str, queue_id: int, files: MappedFileQueue, totals: PutTotals
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.files = files
        self.totals = totals
        encoded = topic.encode()
        v2 = len(encoded) > MAX_TOPIC_LENGTH_V1
        self.magic = MAGIC_V2 if v2 else MAGIC_V1
        self.sized_topic = len(encoded).to_bytes(2 if v2 else 1, "big") + encoded
        self.record_overhead = _FIXED_RECORD_BYTES + len(self.sized_topic)
        # A light queue holds messages of other topics, whose records name their own queue and
        # offset.
        self.is_light = topic.startswith(LMQ_PREFIX)
        self.next_offset = 0
        self.min_offset = 0
        # Units that were found in memory: these, and all from `_sure_tail` on.
        self._sure_from = self._sure_to = 0
        self._sure_tail = 1 << 62
        self._close_cursor()

    def _close_cursor(self) -> None:
        self._map = NO_MAPPING
        self._position = self._limit = 0
        # Up to this place of the queue the disk has room, whichever file it lies in.
        self._room_end = 0

    # -- writing --

    def reserve(self, count: int) -> None:
        """Make sure that the next `count` units have room on disk. Raises StoreFullError."""
        if self._position + count * UNIT_SIZE > self._limit:
            self._open_cursor(count)

    def _open_cursor(self, count: int) -> None:
        self._sure_tail = min(self._sure_tail, self.next_offset)  # what is written is in memory
        place = self.next_offset * UNIT_SIZE
        end = place + count * UNIT_SIZE
        while self.files.end < end or not self.files.files:
            self.files.append_file(first_base=self._file_base(self.next_offset))
        for file in self.files.overlapping(place, end):
            start = max(place - file.base, 0)
            step = _RESERVE_BYTES if start else _FIRST_BYTES
            limit = min(max(end - file.base, start + step), file.size)
            if file.base + limit > self._room_end:
                file.reserve(start, limit)
                self._room_end = file.base + limit
            if file.base <= place:
                self._map, self._position, self._limit = file.map, start, limit

    def put(self, physical_offset: int, size: int, tags_code: int) -> None:
        """Append one unit. Raises StoreFullError unless `reserve` made sure of the place."""
        if self._position == self._limit:
            self._open_cursor(1)
        UNIT.pack_into(self._map, self._position, physical_offset, size, tags_code)
        self._position += UNIT_SIZE
        self.next_offset += 1

    def put_units(self, units: memoryview) -> None:
        """Append units as they lie on disk. Raises StoreFullError at the first without room."""
        while units:
            if self._position == self._limit:
                self._open_cursor(len(units) // UNIT_SIZE)
            end = min(self._position + len(units), self._limit)
            size = end - self._position
            self._map[self._position : end] = units[:size]
            self._position = end
            self.next_offset += size // UNIT_SIZE
            units = units[size:]

    @property
    def extends(self) -> bool:
        """Whether `put_message` keeps more of a message than its unit."""
        return False

    def put_message(
        self,
        physical_offset: int,
        size: int,
        tags_code: int,
        store_timestamp: int,  # noqa: ARG002 - for queues with an extension
        properties: bytes,  # noqa: ARG002 - for queues with an extension
    ) -> None:
        """Append a unit as `put` does, and the unit of the extension, if any; for callers in no
        hurry.
        """
        self.put(physical_offset, size, tags_code)

    def fill_to(self, queue_offset: int, unit: Unit) -> None:
        """Put `unit` for each queue offset below `queue_offset` that has none; in an empty queue
        only from the start of that offset's file on. Raises StoreFullError.
        """
        base = self._file_base(queue_offset)
        if self.next_offset == 0 and (not self.files.files or base >= self.files.end):
            # A kill may have left a file without units. Going on from there could fill the disk.
            self._close_cursor()
            self.files.remove_all()
            # Without room for the file the queue stays empty: an offset needs a file to lie in.
            self.files.append_file(first_base=base)
            self.next_offset = base // UNIT_SIZE
        packed = UNIT.pack(*unit)
        while (missing := queue_offset - self.next_offset) > 0:
            self.put_units(memoryview(packed * min(missing, _FILLED_AT_ONCE)))
        if unit == NO_MESSAGE:
            self.min_offset = queue_offset

    def _file_base(self, queue_offset: int) -> int:
        return queue_offset * UNIT_SIZE // self.files.file_size * self.files.file_size

    # -- reading --

    @property
    def needs_room(self) -> bool:
        """Whether `reserve(1)` has work to do."""
        return self._position == self._limit

    def unit(self, queue_offset: int) -> Unit | None:
        """Return the unit at `queue_offset`, None outside of the queue."""
        if not self.first_offset <= queue_offset < self.next_offset:
            return None
        place = queue_offset * UNIT_SIZE
        file = self.files.find(place)
        return Unit(*UNIT.unpack_from(file.map, place - file.base)) if file else None

    def units(self, queue_offset: int, count: int) -> Iterator[tuple[int, int, int]] | None:
        """Return up to `count` units from `queue_offset` on, in one file; None if there is none."""
        return self.stored_units(queue_offset, count)

    def stored_units(self, queue_offset: int, count: int) -> Iterator[tuple[int, int, int]] | None:
        """Return the units of `units` as they are on disk: if the queue has an extension, their tags
        codes are addresses.
        """
        place = queue_offset * UNIT_SIZE
        file = self.files.find(place)
        if file is None:
            return None
        end = min(place + count * UNIT_SIZE, self.next_offset * UNIT_SIZE, file.end)
        return UNIT.iter_unpack(file.view[place - file.base : end - file.base])

    def absent_units(self, queue_offset: int, count: int) -> Callable[[], None] | None:
        """Return None if these units can be read without waiting for the disk, else what brings them
        and some that follow into memory (see MappedFile.absent).

        A look costs as much as a third of a pull, so it covers what some hundred pulls read, and its
        result is kept. Pages that the kernel drops meanwhile are not noticed: that is one page for 200
        units.
        """
        end = min(queue_offset + count, self.next_offset)
        if self._sure_from <= queue_offset and end <= self._sure_to:
            return None
        if queue_offset >= self._sure_tail and self.next_offset - queue_offset <= _RECENT_UNITS:
            return None
        place = queue_offset * UNIT_SIZE
        file = self.files.find(place)
        if file is None or end <= queue_offset:
            return None
        looked_to = min(place + _AHEAD_BYTES, self.next_offset * UNIT_SIZE, file.end)
        absent = file.absent(place - file.base, looked_to - file.base, 0)
        if absent is None:
            self._sure_from, self._sure_to = queue_offset, looked_to // UNIT_SIZE
            if self._sure_to == self.next_offset:
                self._sure_tail = queue_offset
        return absent

    def owns(
        self, queue_offset: int, view: memoryview, position: int, physical_offset: int, size: int
    ) -> bool:
        """Say whether the record at `position` of a file's view, which is `physical_offset` in the
        log, is the message that a unit of this size at `queue_offset` stands for.

        The record's head and topic decide; `view` must hold `size` bytes from `position` on.
        """
        if size < self.record_overhead or position < 0:
            return False
        own_size, magic, queue_id, own_offset, place, sys_flag, body_length = _HEAD.unpack_from(
            view, position
        )
        if own_size != size or place != physical_offset:
            return False
        if self.is_light:
            return magic in (MAGIC_V1, MAGIC_V2)
        if own_offset != queue_offset or queue_id != self.queue_id:
            return False
        topic_at = position + BODY_AT
        if sys_flag & HOSTS_V6:
            topic_at += wider_by(sys_flag)
            (body_length,) = _BODY_LENGTH.unpack_from(view, topic_at - _BODY_LENGTH.size)
        if body_length < 0:
            return False
        topic_at += body_length
        sized_topic = self.sized_topic
        if magic != self.magic:
            # Java's brokers give a short topic the long form only when configured so.
            if magic != MAGIC_V2:
                return False
            sized_topic = (len(sized_topic) - 1).to_bytes(2, "big") + sized_topic[1:]
        return view[topic_at : topic_at + len(sized_topic)] == sized_topic

    @property
    def first_offset(self) -> int:
        """Queue offset of the first unit on disk, message or placeholder."""
        return self.files.min_offset // UNIT_SIZE

    @property
    def units_per_file(self) -> int:
        """Units that a file holds."""
        return self.files.file_size // UNIT_SIZE

    def last_message(self) -> Unit | None:
        """Return the last unit, None when there is none or it stands for no message."""
        unit = self.unit(self.next_offset - 1)
        return unit if unit is not None and unit.size != PLACEHOLDER_SIZE else None

    def flush(self, least_pages: int) -> bool:
        """Sync if at least `least_pages` pages wait; see MappedFileQueue.flush."""
        return self.files.flush(self.next_offset * UNIT_SIZE, least_pages)

    def rewrite(self, queue_offset: int, unit: Unit) -> None:
        """Replace a damaged unit, which the queue must hold; the next `flush` syncs it."""
        place = queue_offset * UNIT_SIZE
        file = self.files.find(place)
        assert file is not None, "the unit was read from there"
        UNIT.pack_into(file.map, place - file.base, *unit)
        self.files.rewritten.append(file)

    # -- recovering --

    def load(self, *, repair: bool) -> None:
        """Find the files; see MappedFileQueue.load."""
        self.files.load(repair=repair)

    def recover(self, log_end: int) -> None:
        """Find the end of the queue in its files: behind the last good unit below `log_end`.

        If the store was closed cleanly, or the consume queues are known to be on disk up to
        `log_end`, all units below that end are good; so a binary search suffices.
        """
        self._close_cursor()
        self.next_offset = self.first_offset
        for file in reversed(self.files.files):
            count = _good_units(file, log_end)
            if count or file is self.files.files[0]:
                self.next_offset = file.base // UNIT_SIZE + count
                break
        self.files.flushed = self.next_offset * UNIT_SIZE

    def truncate(self, log_end: int, *, clear: bool) -> None:
        """Drop the units of records at `log_end` and behind; `clear` what lies after them."""
        self.recover(log_end)
        self.files.truncate(self.next_offset * UNIT_SIZE, clear=clear)

    @property
    def is_remnant(self) -> bool:
        """Whether there are files, but no unit in them, and the first file is not that of offset 0.

        The messages before that file have left the log, or a power loss took the files of the queue's
        first units and left a later one.
        """
        return 0 < self.next_offset == self.first_offset

    def begin_anew(self) -> None:
        """Delete all files, and go on at offset 0."""
        self._close_cursor()
        self.remove_files()
        self.next_offset = self.min_offset = 0

    def correct_min_offset(self, log_min_offset: int) -> None:
        """Move `min_offset` behind the units whose records have left the log, and placeholders."""
        first = self.first_offset

        def is_in_log(queue_offset: int) -> bool:
            return not self._has_left(queue_offset, log_min_offset)

        found = first + bisect_left(range(first, self.next_offset), True, key=is_in_log)
        # A damaged unit may have misled the search. If one of the units just in front points into
        # the log, search again up to there.
        while found > first:
            witnesses = range(max(first, found - _WITNESSES), found)
            earlier = next((offset for offset in witnesses if is_in_log(offset)), None)
            if earlier is None:
                break
            found = first + bisect_left(range(first, earlier), True, key=is_in_log)
        self.min_offset = found

    def _has_left(self, queue_offset: int, log_min_offset: int) -> bool:
        """Say whether a unit says that its record has left the log, or stands for no message."""
        unit = self.unit(queue_offset)
        assert unit is not None
        # No sound unit has a negative offset.
        return 0 <= unit.physical_offset < log_min_offset or unit == NO_MESSAGE

    def all_have_left(self, log_min_offset: int) -> bool:
        """Say whether the records of all units have left the log; there must be a unit."""
        last = self.next_offset - 1
        # Two units are looked at: one alone may be damaged.
        return all(
            self._has_left(offset, log_min_offset)
            for offset in range(max(self.first_offset, last - 1), last + 1)
        )

    def first_file_has_left(self, log_min_offset: int) -> bool:
        """Say whether all records of the oldest file's units have left the log, so that it can go.

        The newest file stays: it says where the queue's offsets go on.
        """
        if len(self.files.files) < 2:
            return False
        file = self.files.files[0]
        # A batch reserves the next file before this one is full.
        if self.next_offset * UNIT_SIZE < file.end:
            return False
        # Two units are looked at: one alone may be damaged.
        behind = file.end // UNIT_SIZE
        first = max(behind - 2, file.base // UNIT_SIZE)
        return all(self._has_left(offset, log_min_offset) for offset in range(first, behind))

    def find_offset(self, key: Callable[[int], int], value: int) -> int:
        """Return the first offset with `key` >= `value`; `key` must not fall along the queue."""
        offsets = range(self.min_offset, self.next_offset)
        return self.min_offset + bisect_left(offsets, value, key=key)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was written since the start or `release`."""
        return self._map is NO_MAPPING

    def remove_files(self) -> None:
        """Delete all files."""
        self.files.remove_all()

    def release(self) -> None:
        """Let go of all mappings; they come back when needed."""
        self._close_cursor()
        self.files.release()


def _good_units(file: MappedFile, log_end: int) -> int:
    """Return how many units from the file's start on are written and point below `log_end`."""

    def is_bad(index: int) -> bool:
        physical_offset, size, _ = UNIT.unpack_from(file.map, index * UNIT_SIZE)
        return not (size > 0 and 0 <= physical_offset < log_end)

    return bisect_left(range(file.size // UNIT_SIZE), True, key=is_bad)
