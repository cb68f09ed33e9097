"""Let records wait in locked memory before they go to their file: the transient store pool,
transientStorePoolEnable (Java: TransientStorePool, CommitRealTimeService).

An append writes into a buffer as large as a file instead of the file's mapping, so it never meets a
page that the kernel is busy writing. Every commitIntervalCommitLog another thread copies the new
bytes of the buffers to the files (`commit`). Then the records are put into their consume queues
(`publish`). Only committed records can be read, flushed, or found in a queue. When the process
dies, the records that were not committed are lost. docs/internals/flush.md gives the reasons.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from cometmq.errors import StoreBusyError
from cometmq.logs.loggers import get_logger
from cometmq.protocol.messages.record_layout import HEAD_SIZE, STORE_TIME_LIMIT_MS
from cometmq.store.config import PAGE_SIZE, StoreConfig
from cometmq.store.files import memory
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue

log = get_logger(__name__)

# One buffer is written while the other is copied.
_MIN_BUFFERS: Final = 2


class BufferPool:
    """Lends at most `count` buffers of `size` bytes, two at least. Makes them when needed."""

    def __init__(self, count: int, size: int) -> None:
        self._left = max(count, _MIN_BUFFERS)
        self._size = size
        self._free: deque[mmap.mmap] = deque()
        self._warned = False

    @property
    def has_free(self) -> bool:
        return bool(self._free) or self._left > 0

    @property
    def free_count(self) -> int:
        return len(self._free) + self._left

    def take(self) -> mmap.mmap:
        """Take a free buffer, which must exist; its contents are arbitrary."""
        if self._free:
            return self._free.popleft()
        assert self._left > 0, "a buffer was taken that is not there"
        self._left -= 1
        buffer = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        refused = memory.lock(buffer)
        if refused is not None and not self._warned:
            self._warned = True
            log.warning("a buffer of the transient store pool may be swapped", reason=refused)
        return buffer

    def give_back(self, buffer: mmap.mmap) -> None:
        """Make a buffer free again. For any thread."""
        self._free.append(buffer)


class _Filling:
    """Holds a buffer that stands in for a file.

    Once the blank record is written, `end` is the log offset behind it.
    """

    __slots__ = ("buffer", "end", "file")

    def __init__(self, file: MappedFile, buffer: mmap.mmap) -> None:
        self.file = file
        self.buffer = buffer
        self.end: int | None = None


class PooledCommitLog(CommitLog):
    """Keeps a commit log whose cursor writes to buffers.

    Any thread may call `commit`, several at the same time, too; the rest is for the store's thread.
    """

    __slots__ = (
        "_committed",
        "_committed_timestamp",
        "_committing",
        "_config",
        "_dispatched_end",
        "_dispatched_timestamp",
        "_filling",
        "_pool",
        "_pool_size",
    )

    def __init__(self, files: MappedFileQueue, config: StoreConfig) -> None:
        super().__init__(files)
        self._pool = BufferPool(config.transient_store_pool_size, files.file_size)
        self._pool_size = max(config.transient_store_pool_size, _MIN_BUFFERS)
        self._config = config
        self._filling: deque[_Filling] = deque()
        self._committing = threading.Lock()
        self._committed = self._dispatched_end = 0
        self._committed_timestamp = self._dispatched_timestamp = 0

    @property
    def free_buffer_count(self) -> int:
        return self._pool.free_count

    @property
    def readable_end(self) -> int:
        return self._committed

    @property
    def readable_timestamp(self) -> int:
        return self._committed_timestamp

    @property
    def dispatched_end(self) -> int:
        return self._dispatched_end

    @property
    def dispatched_timestamp(self) -> int:
        return self._dispatched_timestamp

    def dispatched(self, end: int, timestamp: int) -> None:
        """Note that the consume queues have units for the records below `end`."""
        self._dispatched_end = end
        if timestamp < STORE_TIME_LIMIT_MS:
            self._dispatched_timestamp = timestamp
        if self._before_append is not None:
            self._wake_waiting()

    def call_before_append(self, callback: Callable[[], None]) -> None:
        # An appended record is not readable yet: a waiting caller learns when it is.
        self._true_limit = self.limit
        self._before_append = callback

    def start_writing_at(self, offset: int, last_store_timestamp: int) -> None:
        super().start_writing_at(offset, last_store_timestamp)
        self._committed = self._dispatched_end = offset
        self._committed_timestamp = self._dispatched_timestamp = last_store_timestamp

    def make_room(self, size: int) -> None:
        if self.end + size > self._file_limit and not self._pool.has_free:
            if self._config.fast_fail_if_no_buffer_in_store_pool:
                raise StoreBusyError(
                    f"[REJECTREQUEST]system busy, start flow control for a while: all of the "
                    f"transientStorePoolSize={self._pool_size} buffers wait for the disk; "
                    f"send again in {self._config.commit_interval_commit_log} ms"
                )
            self.commit()
        super().make_room(size)

    def _write_to(self, file: MappedFile, offset: int) -> None:
        if self._filling:
            # The blank record stands behind the last record.
            self._filling[-1].end = self.end + HEAD_SIZE
        filling = _Filling(file, self._pool.take())
        self._filling.append(filling)
        super()._write_to(file, offset)
        self.map = filling.buffer

    def commit(self, least_pages: int = 0) -> int:
        """Copy appended records to the files if at least `least_pages` pages wait.

        Returns the committed offset. Blocks without the GIL. Raises StoreError; bytes that were not
        copied stay in their buffers.
        """
        with self._committing:
            # Read the timestamp before the position, and the position before the buffers: a record
            # appended meanwhile is left to the next call.
            timestamp = self.last_store_timestamp
            end = self.end
            start = self._committed
            if end > start and end // PAGE_SIZE - start // PAGE_SIZE >= least_pages:
                for filling in tuple(self._filling):
                    self._copy(filling, start, end)
                self._committed_timestamp = timestamp
                self._committed = end
            return self._committed

    def _copy(self, filling: _Filling, start: int, end: int) -> None:
        base = filling.file.base
        complete = filling.end is not None and filling.end <= end
        first = max(start, base)
        last = min(end, base + self.file_size) if filling.end is None else min(end, filling.end)
        if first < last:
            data = memoryview(filling.buffer)[first - base : last - base]
            filling.file.write(first - base, data)
            data.release()
        if complete:
            self._filling.popleft()
            self._pool.give_back(filling.buffer)

    def release(self) -> None:
        self._filling.clear()
        super().release()


class PendingQueue(ConsumeQueue):
    """Stands in for a consume queue in appends: it gives out offsets, and `publish` later writes
    the units.

    `make_readable` is called after each message, for queues whose writer reads it at once.
    """

    __slots__ = ("_make_readable",)

    def __init__(
        self, queue: ConsumeQueue, make_readable: Callable[[], None] | None = None
    ) -> None:
        super().__init__(queue.topic, queue.queue_id, queue.files, queue.totals)
        self.next_offset = queue.next_offset
        self._make_readable = make_readable

    @property
    def needs_room(self) -> bool:
        return False

    def reserve(self, count: int) -> None:
        """Do nothing: the units are written when the files have their records."""

    def put(self, physical_offset: int, size: int, tags_code: int) -> None:  # noqa: ARG002 - as an append calls it
        self.next_offset += 1
        if self._make_readable is not None:
            self._make_readable()

    def put_units(self, units: memoryview) -> None:
        self.next_offset += len(units) // UNIT_SIZE
        if self._make_readable is not None:
            self._make_readable()
