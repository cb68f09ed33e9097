"""Keep an index file: a hash table from keys to commit-log offsets (Java: IndexFile, IndexHeader).

offset                  size        field
0                       8           store time, ms, of the first entry
8                       8           … of the last entry
16                      8           commit-log offset of the first entry
24                      8           … of the last entry
32                      4           how many slots are in use
36                      4           number of the next entry; entry 0 is never used
40                      4 a slot    number of the newest entry of the slot, 0 for none
40 + 4 * slots          20 an entry the entries, by number

offset of an entry      size        field
0                       4           hash of the key; its slot is hash mod slots
4                       8           commit-log offset
12                      4           seconds since the store time of the first entry
16                      4           number of the slot's entry before this one, 0 for none

The header of a new file starts with times and offsets of its predecessor's last entry, so the
seconds of the new file's first entry count from there. A reader takes the first entry's time from
the header instead: Java adds its seconds to it, and misses a message that came after a pause.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.model.java.hashing import hash_once
from cometmq.model.measures.work import WorkBudget
from cometmq.store.files.descriptors import make_sure_of_numpy
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file import MappedFile

if TYPE_CHECKING:
    from cometmq.store.append import Clock
    from cometmq.store.index.index_keys import IndexKeys
    from cometmq.store.index.index_table import IndexTable

_HEADER: Final = struct.Struct(">qqqqii")
HEADER_SIZE: Final = 40
_SLOT_SIZE: Final = 4
_ENTRY: Final = struct.Struct(">iqii")
ENTRY_SIZE: Final = 20
assert (_HEADER.size, _ENTRY.size) == (HEADER_SIZE, ENTRY_SIZE)

_FIRST_NUMBER: Final = 1
# Room for entries is reserved in steps of this size. Room for header and slots is reserved at once,
# because slots fill in any order.
_RESERVE_BYTES: Final = 1024 * 1024
# Entries that a search looks at before it lets other threads run.
_ENTRIES_ON_END: Final = 1_000
_SECOND_MS: Final = 1_000


def file_size(slot_count: int, entry_count: int) -> int:
    """Return the size of an index file in bytes."""
    return HEADER_SIZE + _SLOT_SIZE * slot_count + ENTRY_SIZE * entry_count


def hash_of(topic: str, key: str) -> int:
    """Return the hash under which the index keeps a key of a topic."""
    value = hash_once(f"{topic}#{key}")
    return 0 if value == -(1 << 31) else abs(value)


class IndexFile:
    """Reads and writes one index file. For one thread at a time. Made by `create` and `load`.

    `count` is the number that the next entry gets. The file has its full size from the start but is
    sparse: room is reserved before it is written, so that a full disk raises StoreFullError instead
    of killing the process with a signal.
    """

    __slots__ = (
        "_disk",
        "_entries_at",
        "_entry_count",
        "_file",
        "_reserved",
        "_slot_count",
        "_table",
        "begin_offset",
        "begin_timestamp",
        "count",
        "end_offset",
        "end_timestamp",
        "path",
        "used_slot_count",
    )

    def __init__(self, disk: Disk, path: Path, slot_count: int, entry_count: int) -> None:
        self._disk = disk
        self.path = path
        self._slot_count = slot_count
        self._entry_count = entry_count
        self._entries_at = HEADER_SIZE + _SLOT_SIZE * slot_count
        size = file_size(slot_count, entry_count)
        self._file = MappedFile(disk, path, 0, size, read_ahead=False)
        # Where the reserved room ends in the file; -1 until header and slots have theirs.
        self._reserved = -1
        self._table: IndexTable | None = None
        self.begin_timestamp = self.end_timestamp = 0
        self.begin_offset = self.end_offset = 0
        self.used_slot_count = 0
        self.count = _FIRST_NUMBER

    @classmethod
    def create(
        cls,
        disk: Disk,
        path: Path,
        slot_count: int,
        entry_count: int,
        previous: IndexFile | None,
    ) -> IndexFile:
        """Make a new file on disk, the one after `previous`. Raises StoreFullError, making none."""
        file = cls(disk, path, slot_count, entry_count)
        file._reserved = file._entries_at
        disk.allocate(path, file._file.size, reserved=file._reserved)
        if previous is not None:
            file.begin_timestamp = file.end_timestamp = previous.end_timestamp
            file.begin_offset = file.end_offset = previous.end_offset
        return file

    @classmethod
    def load(cls, disk: Disk, path: Path, slot_count: int, entry_count: int) -> IndexFile:
        """Load a file from disk, where it must have the right size."""
        file = cls(disk, path, slot_count, entry_count)
        header = bytearray(HEADER_SIZE)
        disk.read_into(path, 0, memoryview(header))
        (
            file.begin_timestamp,
            file.end_timestamp,
            file.begin_offset,
            file.end_offset,
            file.used_slot_count,
            count,
        ) = _HEADER.unpack(header)
        file.count = min(max(count, _FIRST_NUMBER), entry_count)
        return file

    @property
    def room(self) -> int:
        """How many more keys the file takes; 0 when it is full."""
        return self._entry_count - self.count

    @property
    def is_empty(self) -> bool:
        return self.count == _FIRST_NUMBER

    @property
    def is_plausible(self) -> bool:
        """Whether the numbers of the header can belong together."""
        return (
            0 <= self.begin_offset <= self.end_offset
            and self.begin_timestamp >= 0
            and self.end_timestamp >= 0
            and 0 <= self.used_slot_count <= min(self._slot_count, self.count - 1)
        )

    # -- writing --

    def put(self, keys: IndexKeys) -> None:
        """Add keys: at least one, at most `room`. Raises StoreFullError."""
        size = len(keys.hashes)
        assert 0 < size <= self.room
        self._reserve(self._entries_at + ENTRY_SIZE * (self.count + size))
        if self._table is None:
            self._table = self._open_table()
        self.used_slot_count += self._table.put(
            self.count, keys, self.begin_timestamp, is_first=self.is_empty
        )
        if self.is_empty:
            self.begin_offset = int(keys.offsets[0])
            self.begin_timestamp = int(keys.timestamps[0])
        self.count += size
        self.end_offset = int(keys.offsets[-1])
        self.end_timestamp = int(keys.timestamps[-1])
        self._write_header()

    def _reserve(self, end: int) -> None:
        if self._reserved < 0:
            self._file.reserve(0, self._entries_at)
            self._reserved = self._entries_at
        if end > self._reserved:
            start = max(self._reserved, self._entries_at + ENTRY_SIZE * self.count)
            limit = min(max(end, start + _RESERVE_BYTES), self._file.size)
            self._file.reserve(start, limit)
            self._reserved = limit

    def _open_table(self) -> IndexTable:
        # IndexTable needs numpy, which a broker does not load before it is ready.
        make_sure_of_numpy()
        from cometmq.store.index.index_table import IndexTable

        return IndexTable(
            self._file.map, HEADER_SIZE, self._slot_count, self._entries_at, self._entry_count
        )

    def _write_header(self) -> None:
        _HEADER.pack_into(
            self._file.map,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.used_slot_count,
            self.count,
        )

    def sync(self) -> None:
        """Sync the file. Blocks."""
        self._file.sync()

    # -- reading --

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Say whether the file may have entries of a time range."""
        first, last = self.begin_timestamp, self.end_timestamp
        return (
            (begin_ms < first and end_ms > last)
            or first <= begin_ms <= last
            or first <= end_ms <= last
        )

    def select(
        self, key_hash: int, begin_ms: int, end_ms: int, work: WorkBudget, clock: Clock
    ) -> Iterator[int]:
        """Yield the commit-log offsets of the entries that have the hash and may fall into a time
        range, newest first.

        Each entry looked at in the slot's chain costs a unit of `work`; the search ends when none
        is left. Entries keep their time in whole seconds, so a message may have been stored up to a
        second outside the range, but no message in the range is missed.
        """
        mapping = self._file.map
        (number,) = struct.unpack_from(
            ">i", mapping, HEADER_SIZE + _SLOT_SIZE * (key_hash % self._slot_count)
        )
        if not 0 < number < self.count:
            return
        while work.left > 0:
            work.left -= 1
            if work.left % _ENTRIES_ON_END == 0:
                clock.sleep(0)  # lets the other threads run: the broker's loop is one of them
            entry_hash, offset, seconds, previous = _ENTRY.unpack_from(
                mapping, self._entries_at + ENTRY_SIZE * number
            )
            if seconds < 0:
                break
            # The message was stored within the second that begins at this time.
            store_time = self.begin_timestamp
            if number != _FIRST_NUMBER:
                store_time += seconds * 1000
            is_over = store_time + _SECOND_MS <= begin_ms
            if entry_hash == key_hash and not is_over and store_time <= end_ms:
                yield offset
            # Unlike in Java, the search ends where a chain leads forward: a damaged chain may be a
            # circle.
            if is_over or not 0 < previous < number:
                break
            number = previous

    def trailing(self, offset: int) -> int:
        """Count the entries at the file's end that belong to the record at `offset`."""
        mapping = self._file.map
        number = self.count
        while number > _FIRST_NUMBER:
            entry = _ENTRY.unpack_from(mapping, self._entries_at + ENTRY_SIZE * (number - 1))
            if entry[1] != offset:
                break
            number -= 1
        return self.count - number

    # -- leaving --

    def release(self) -> None:
        """Let go of the mapping; the file is mapped again when needed."""
        self._table = None
        self._file.release()

    def remove(self) -> None:
        """Delete the file."""
        self.release()
        self._file.remove()
