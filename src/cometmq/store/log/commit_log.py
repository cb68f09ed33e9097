"""The commit log: every message of every topic, one record after the other (Java: CommitLog).

A record never crosses a file's end. A record that would leave less than 8 bytes behind it goes to
the next file. A blank record then declares the rest of the current file: int32 bytes left (these 8
included), int32 magic 0xCBD43194.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from cometmq.errors import StoreError
from cometmq.model.sysflag import BORN_HOST_V6
from cometmq.protocol.messages.record import MAGIC_BLANK, MIN_RECORD_SIZE
from cometmq.protocol.messages.record_layout import (
    HEAD,
    HEAD_SIZE,
    STORE_TIME_LIMIT_MS,
    STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
    V6_WIDER,
    record_struct,
)
from cometmq.store.files.disk import NO_MAPPING
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.files.mapped_file_queue import MappedFileQueue

_NOTHING: Final = memoryview(b"")
# How many bytes ahead pages are made ready at once. A page fault of its own costs three times as
# much as an append. If more pages were made ready, sync flush would write some of them twice.
_AHEAD_BYTES: Final = 256 * 1024
# A record of so many bytes is large: making its pages ready takes more of the loop than all else that
# an append does. A thread then keeps so many bytes ready, in steps for which an append may have to wait.
_LARGE_BYTES: Final = 1024 * 1024
_FAR_AHEAD_BYTES: Final = 16 * 1024 * 1024
_STEP_BYTES: Final = 256 * 1024
_SIZE: Final = record_struct("size")
_SYS_FLAG: Final = record_struct("sys_flag")
_STORE_TIMESTAMP: Final = record_struct("store_timestamp")


class CommitLog:
    """Reads the log by offset, and holds the write cursor.

    `Appender` uses the cursor's fields directly, because a method call for each would cost more
    than the append: `end` is the offset of the next record, which another thread may read at any
    time; `map` and `base` are the mapping being written and the offset of its first byte; `limit`
    is the offset up to which records can be written without `make_room`, which is the end itself
    while somebody waits for the next append.

    `on_large` is called when a large record comes and few pages are ready for the next one; the code
    that sets it then has a thread call `write_ahead`.
    """

    __slots__ = (
        "_before_append",
        "_file_limit",
        "_filled",
        "_prepared",
        "_preparing",
        "_true_limit",
        "_zeros_ahead",
        "base",
        "end",
        "file_size",
        "files",
        "last_store_timestamp",
        "limit",
        "map",
        "on_large",
    )

    def __init__(self, files: MappedFileQueue, *, zeros_ahead: bool = False) -> None:
        """Write to `files`; make pages ready by zeros or page by page (docs/internals/flush.md)."""
        self.files = files
        self._zeros_ahead = zeros_ahead
        self.file_size = files.file_size
        self.last_store_timestamp = 0
        self.map = NO_MAPPING
        self.base = self.end = self.limit = self._file_limit = self._true_limit = 0
        # Nothing has been written behind this offset of the file, whose pages below it are ready. It
        # changes, and the cursor moves to another file, under the lock `_preparing` only.
        self._prepared = 0
        self._preparing = threading.Lock()
        self.on_large: Callable[[], None] | None = None
        self._before_append: Callable[[], None] | None = None
        # The last argument of `dispatched`, once the queues are filled behind the log.
        self._filled: tuple[int, int] | None = None

    @property
    def free_buffer_count(self) -> int:
        """Free buffers of the transient store pool; Java's Integer.MAX_VALUE without a pool."""
        return 2**31 - 1

    @property
    def readable_end(self) -> int:
        """Records below this offset can be read and flushed."""
        return self.end

    @property
    def readable_timestamp(self) -> int:
        """No record behind `readable_end` has an older store timestamp, ms, than this."""
        return self.last_store_timestamp

    @property
    def dispatched_end(self) -> int:
        """The consume queues have units for the records below this offset."""
        filled = self._filled
        return self.end if filled is None else filled[0]

    @property
    def dispatched_timestamp(self) -> int:
        """No record behind `dispatched_end` has an older store timestamp, ms, than this."""
        filled = self._filled
        return self.last_store_timestamp if filled is None else filled[1]

    @property
    def next_file_is_due(self) -> bool:
        """Whether the file being written is more than half full and the next is not made yet."""
        return self.end - self.base > self.file_size // 2 and not self.files.has_next

    @property
    def min_offset(self) -> int:
        """Offset of the first byte still there."""
        return self.files.min_offset

    def start_writing_at(self, offset: int, last_store_timestamp: int) -> None:
        """Set the cursor to the recovered end; the timestamp is that of the last record."""
        self.last_store_timestamp = last_store_timestamp
        self._filled = None
        file = self.files.find(offset)
        with self._preparing:
            self.end = offset
            if file is None:
                # `offset` is the end of the last file, or there is no file: the next record makes one.
                self.base = self.limit = self._file_limit = self._prepared = offset
                return
            self._write_to(file, offset)
        self._prepare(offset)

    def _write_to(self, file: MappedFile, offset: int) -> None:
        """Move the cursor. The caller holds `_preparing`."""
        self.map = file.map
        self.base = file.base
        self._file_limit = file.end - HEAD_SIZE
        self.end = self.limit = self._prepared = offset

    def _prepare(self, end: int) -> None:
        """Make the pages ready for records up to the offset `end`, and some more; move `limit` behind
        them. Every record must end below `limit`: bytes behind it may become zero.
        """
        stop = min(end - self.base + _AHEAD_BYTES, self.file_size)
        # The thread of `write_ahead` moves this forward only, so the part in front of it needs no
        # lock: with one, the loop would wait for the step under way.
        if self._prepared < self.base + stop:
            with self._preparing:
                start = max(self._prepared, self.end) - self.base
                if stop > start:
                    if self._zeros_ahead:
                        self.files.write_zeros(self.base, start, stop)
                    else:
                        self.files.populate(self.map, start, stop)
                    self._prepared = self.base + stop
        # Not behind what is ready, so that a large record comes by here, and more is made ready.
        self.limit = min(self._prepared, end + _AHEAD_BYTES, self._file_limit)

    def write_ahead(self) -> None:
        """Make the pages ready for large records to come. Blocks, so call it from an executor."""
        while self._zeros_ahead:
            with self._preparing:
                start = max(self._prepared, self.end)
                stop = min(self.end + _FAR_AHEAD_BYTES, start + _STEP_BYTES, self._file_limit)
                if stop <= start:
                    return
                self.files.write_zeros(self.base, start - self.base, stop - self.base)
                self._prepared = stop

    def make_room(self, size: int) -> None:
        """Move the cursor to a file in which `size` bytes and a blank record have room.

        Raises StoreError when `size` is too large for any file, StoreFullError when the disk is
        full, StoreStarvedError when no descriptor is free. An error leaves the cursor as it was.
        """
        if size + HEAD_SIZE > self.file_size:
            raise StoreError(
                f"{size} bytes must lie in one file: set mappedFileSizeCommitLog to at least "
                f"{size + HEAD_SIZE}, it is {self.file_size}"
            )
        if self._before_append is not None:
            self._wake_waiting()
        if self.end + size <= self.limit:
            return
        if (
            size >= _LARGE_BYTES
            and self._zeros_ahead
            and self.on_large is not None
            and self._prepared < self.end + size + _FAR_AHEAD_BYTES // 2
        ):
            self.on_large()
        if self.end + size <= self._file_limit:
            self._prepare(self.end + size)
            return
        # The next file is mapped before the blank record is written: a failure changes nothing.
        file = self.files.append_file()
        left = file.base - self.end
        with self._preparing:
            if left > 0:
                HEAD.pack_into(self.map, self.end - self.base, left, MAGIC_BLANK)
            self._write_to(file, file.base)
        self._prepare(self.end + size)

    def call_before_append(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, in the store's thread, when the next record becomes readable or is
        about to be written: so read `readable_end` once the present call has returned.

        Appends pay nothing for it: they find that the room is used up, and make room.
        """
        if self._before_append is None:
            self._true_limit = self.limit
            self.limit = self.end
        self._before_append = callback

    def _wake_waiting(self) -> None:
        callback, self._before_append = self._before_append, None
        self.limit = self._true_limit
        if callback is not None:
            callback()

    def append_bytes(self, offset: int, data: bytes | memoryview) -> None:
        """Append bytes of another broker's log, which lie at `offset` there.

        They must be whole records, and blank records, all of one file. An empty log begins at any
        file. Raises StoreError if the bytes do not continue this log, StoreFullError or
        StoreStarvedError as `make_room`; nothing is then appended.
        """
        self.check_continues(offset, len(data))
        if self.files.find(offset) is None:
            file = self.files.append_file(first_base=offset)
            with self._preparing:
                self._write_to(file, offset)
        end = offset + len(data)
        if end > self.limit:
            self._prepare(end)
        place, behind = offset - self.base, end - self.base
        # The first bytes come last: a process that is killed here leaves no record in part, which
        # a recovery could take for a whole one with other properties than the master's.
        self.map[place + HEAD_SIZE : behind] = data[HEAD_SIZE:]
        self.map[place : place + HEAD_SIZE] = data[:HEAD_SIZE]
        self.end = end

    def fill_queues_later(self) -> None:
        """Keep `dispatched_end` apart from `end` from now on: see `dispatched`."""
        if self._filled is None:
            self._filled = (self.end, self.last_store_timestamp)

    def check_continues(self, offset: int, size: int) -> None:
        """Raise StoreError unless `size` bytes of another broker's log at `offset` continue this
        log within one file.
        """
        begins = not self.files.files and offset % self.file_size == 0
        if offset != self.end and not begins:
            is_empty = not self.files.files
            raise StoreError(
                f"bytes of the commit-log offset {offset} do not continue this log, which "
                + (
                    f"is empty and begins with a file of {self.file_size} bytes: "
                    "mappedFileSizeCommitLog must be the same as their broker's"
                    if is_empty
                    else f"ends at {self.end}"
                )
            )
        left = self.file_size - offset % self.file_size
        if size > left:
            raise StoreError(
                f"{size} bytes from commit-log offset {offset} on leave their file, which has "
                f"{left} left: mappedFileSizeCommitLog must be the same as their broker's, it is "
                f"{self.file_size} here"
            )

    def dispatched(self, end: int, timestamp: int) -> None:
        """Note that the consume queues have units for the records below `end`.

        `timestamp` is their newest store time; the log's time does not follow a damaged one.
        """
        if timestamp < STORE_TIME_LIMIT_MS:
            self.last_store_timestamp = max(self.last_store_timestamp, timestamp)
        self._filled = (end, self.last_store_timestamp)

    def release(self) -> None:
        """Let go of all mappings. Views of them stay readable; nothing can be appended any more."""
        self.limit = self._file_limit = self._true_limit = self.end
        self.map = NO_MAPPING
        self.files.release()

    def read(self, offset: int, size: int) -> memoryview | None:
        """Return a view of `size` bytes at `offset`; None unless all of them are readable and lie
        in one file.
        """
        if offset + size > self.readable_end:
            return None
        file = self.files.find(offset)
        if file is None or offset + size > file.end:
            return None
        position = offset - file.base
        return file.view[position : position + size]

    def window(self, offset: int) -> tuple[int, int, memoryview]:
        """Return base, readable end and view of the file that `offset` falls into; (-1, -1, empty)
        when there is no such file.
        """
        file = self.files.find(offset)
        if file is None:
            return -1, -1, _NOTHING
        return file.base, min(file.end, self.readable_end), file.view

    def record_at(self, offset: int) -> memoryview | None:
        """Return the record that begins at `offset`, with the size it declares.

        None when that size is smaller than any record's, or the bytes cannot be read.
        """
        size = self.read(offset, _SIZE.size)
        if size is None:
            return None
        (declared,) = _SIZE.unpack(size)
        return self.read(offset, declared) if declared >= MIN_RECORD_SIZE else None

    def store_timestamp_at(self, offset: int) -> int:
        """Return the store timestamp, ms, of the record at `offset`; -1 when it cannot be read."""
        record = self.read(offset, MIN_RECORD_SIZE)
        if record is None:
            return -1
        (sys_flag,) = _SYS_FLAG.unpack_from(record, SYS_FLAG_AT)
        wider = V6_WIDER if sys_flag & BORN_HOST_V6 else 0
        (timestamp,) = _STORE_TIMESTAMP.unpack_from(record, STORE_TIMESTAMP_AT + wider)
        return int(timestamp)

    def next_file_start(self, offset: int) -> int:
        """Return the first offset of the file after the one that `offset` falls into."""
        return offset - offset % self.file_size + self.file_size
