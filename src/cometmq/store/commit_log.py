"""The commit log: every message of every topic, one record after the other (Java: CommitLog).

A record never crosses a file's end. One that would leave less than 8 bytes behind it goes to the
next file, and the rest of this one is declared by a blank record: int32 bytes left (these 8
included), int32 magic 0xCBD43194.
"""

from __future__ import annotations

import struct
from typing import Final

from cometmq.errors import StoreError
from cometmq.model.sysflag import BORN_HOST_V6
from cometmq.protocol.record import (
    MAGIC_BLANK,
    MIN_RECORD_SIZE,
    STORE_TIMESTAMP_OFFSET_V4,
    SYS_FLAG_OFFSET,
)
from cometmq.store.disk import NO_MAPPING
from cometmq.store.mapped_file import MappedFile
from cometmq.store.mapped_file_queue import MappedFileQueue

BLANK: Final = struct.Struct(">iI")
BLANK_SIZE: Final = BLANK.size
assert BLANK_SIZE == 8

_NOTHING: Final = memoryview(b"")
# How far ahead pages are made writable at once. One page fault at a time costs three times an
# append; more than this would be written twice under sync flush.
_POPULATE_BYTES: Final = 256 * 1024
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class CommitLog:
    """Reading by offset, and the write cursor.

    The cursor is open for `Appender`, as a method call for each field would cost more than the
    append: `end`, the offset of the next record, which another thread may read at any time; `map`
    and `base`, the mapping being written and the offset of its first byte; `limit`, the offset up to
    which records can be written without `make_room`.
    """

    __slots__ = (
        "_file_limit",
        "base",
        "end",
        "file_size",
        "files",
        "last_store_timestamp",
        "limit",
        "map",
    )

    def __init__(self, files: MappedFileQueue) -> None:
        self.files = files
        self.file_size = files.file_size
        self.last_store_timestamp = 0
        self.map = NO_MAPPING
        self.base = self.end = self.limit = self._file_limit = 0

    @property
    def free_buffer_count(self) -> int:
        """Of a transient store pool; as many as one likes without (Java: Integer.MAX_VALUE)."""
        return 2**31 - 1

    @property
    def readable_end(self) -> int:
        """Records below it can be read and flushed."""
        return self.end

    @property
    def readable_timestamp(self) -> int:
        """Store timestamp, ms, of a record below `readable_end` behind which none is older."""
        return self.last_store_timestamp

    @property
    def dispatched_end(self) -> int:
        """Consume queues know the records below it."""
        return self.end

    @property
    def dispatched_timestamp(self) -> int:
        """As `readable_timestamp`, of the records that consume queues know."""
        return self.last_store_timestamp

    @property
    def next_file_is_due(self) -> bool:
        """Whether the file being written is more than half full and no next one is made."""
        return self.end - self.base > self.file_size // 2 and not self.files.has_next

    @property
    def min_offset(self) -> int:
        """Offset of the first byte still there."""
        return self.files.min_offset

    def start_writing_at(self, offset: int, last_store_timestamp: int) -> None:
        """Set the cursor; `offset` is the recovered end, the timestamp that of the last record."""
        self.last_store_timestamp = last_store_timestamp
        file = self.files.find(offset)
        if file is None:
            # Right behind the last file, or no file at all: the next record makes one.
            self.base = self.limit = self._file_limit = offset
        else:
            self._write_to(file, offset)
        self.end = offset

    def _write_to(self, file: MappedFile, offset: int) -> None:
        self.map = file.map
        self.base = file.base
        self._file_limit = file.end - BLANK_SIZE
        self._populate(offset)

    def _populate(self, offset: int) -> None:
        """Move `limit` on, so that the next records meet pages that are ready."""
        start = offset - self.base
        end = min(start + _POPULATE_BYTES, self.file_size)
        self.files.populate(self.map, start, end)
        self.limit = min(self.base + end, self._file_limit)

    def make_room(self, size: int) -> None:
        """Move the cursor to a file in which `size` bytes and a blank record have room.

        Raises StoreError when no file can have it, StoreFullError when the disk is full,
        StoreStarvedError when no descriptor is free; the cursor is then as before.
        """
        if size + BLANK_SIZE > self.file_size:
            raise StoreError(
                f"{size} bytes must lie in one file: set mappedFileSizeCommitLog to at least "
                f"{size + BLANK_SIZE}, it is {self.file_size}"
            )
        if self.end + size <= self.limit:
            return
        if self.end + size <= self._file_limit:
            self._populate(self.end + size)
            return
        # Mapped before the blank record is written: a failure then changes nothing.
        file = self.files.append_file()
        left = file.base - self.end
        if left > 0:
            BLANK.pack_into(self.map, self.end - self.base, left, MAGIC_BLANK)
        self._write_to(file, file.base)
        self.end = file.base

    def release(self) -> None:
        """Let go of all mappings; views of them stay readable. Nothing can be appended after it."""
        self.limit = self._file_limit = self.end
        self.map = NO_MAPPING
        self.files.release()

    def read(self, offset: int, size: int) -> memoryview | None:
        """`size` bytes at `offset`, as they lie; None unless they lie in one file below the end."""
        if offset + size > self.readable_end:
            return None
        file = self.files.find(offset)
        if file is None or offset + size > file.end:
            return None
        position = offset - file.base
        return file.view[position : position + size]

    def window(self, offset: int) -> tuple[int, int, memoryview]:
        """Base, readable end and view of the file that `offset` falls into; an empty window at
        -1 when there is nothing to read.
        """
        file = self.files.find(offset)
        if file is None:
            return -1, -1, _NOTHING
        return file.base, min(file.end, self.readable_end), file.view

    def record_at(self, offset: int) -> memoryview | None:
        """The whole record that begins at `offset`, by the size it declares; None if none can."""
        size = self.read(offset, 4)
        if size is None:
            return None
        (declared,) = _INT32.unpack(size)
        return self.read(offset, declared) if declared >= MIN_RECORD_SIZE else None

    def store_timestamp_at(self, offset: int) -> int:
        """Store timestamp, ms, of the record at `offset`; -1 when it cannot be read."""
        record = self.read(offset, MIN_RECORD_SIZE)
        if record is None:
            return -1
        (sys_flag,) = _INT32.unpack_from(record, SYS_FLAG_OFFSET)
        wider = 12 if sys_flag & BORN_HOST_V6 else 0
        (timestamp,) = _INT64.unpack_from(record, STORE_TIMESTAMP_OFFSET_V4 + wider)
        return int(timestamp)

    def next_file_start(self, offset: int) -> int:
        """First offset of the file after the one that `offset` falls into."""
        return offset - offset % self.file_size + self.file_size
