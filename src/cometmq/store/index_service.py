"""The index: which messages have a key (Java: IndexService). Files named by their time of creation.

It is built behind the log, in batches: `build` reads what the log has gained since the last call,
so an append does nothing for it. What the index covers is told by its own last entry, and everything
behind that is indexed again from the log; so a part that is dropped, or the whole directory, comes
back as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol

import structlog

from cometmq.errors import StoreError
from cometmq.protocol.record import MAGIC_BLANK
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.commit_log import CommitLog
from cometmq.store.config import StoreConfig
from cometmq.store.disk import Disk
from cometmq.store.index_file import IndexFile, file_size
from cometmq.store.index_keys import IndexKeys, find_keys, hash_of
from cometmq.store.mapped_file import MappedFile
from cometmq.store.scan import ScannedRecord, check_record, find_record

log = structlog.get_logger(__name__)

# How much of the log one batch reads: large enough to make numpy's fixed costs small, small enough
# for a query not to wait long behind a batch.
_WINDOW_BYTES: Final = 4 * 1024 * 1024
_NAME_LENGTH: Final = 17
_NAME_FORMAT: Final = "%Y%m%d%H%M%S%f"
_BLANK_HEAD_SIZE: Final = 8


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time, ms since the epoch."""

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps."""


class IndexAnswer(NamedTuple):
    """Places in the log, ascending, and how far the index has come (0 when nothing was found)."""

    offsets: list[int]
    last_timestamp: int = 0
    last_offset: int = 0


class IndexService:
    """Owned by a store. `open` and `close` are for the store's thread; all else suits any thread.

    A lock lets one of them in at a time. From the log only bytes below its published end are read,
    and those through the file system: nothing that another thread changes is touched.
    """

    def __init__(
        self, disk: Disk, log: CommitLog, checkpoint: Checkpoint, config: StoreConfig, clock: Clock
    ) -> None:
        self._disk = disk
        self._log = log
        self._checkpoint = checkpoint
        self._clock = clock
        self._directory = config.index_path
        self._slot_count = config.max_hash_slot_num
        self._entry_count = config.max_index_num
        self._max_answer = config.max_msgs_num_batch
        self._files: list[IndexFile] = []
        self._lock = threading.Lock()
        self._window = bytearray()
        # Keys of the record at `position` that are in the index already.
        self._indexed_keys = 0
        self.enabled = config.message_index_enable
        self.position = 0
        self.failure: StoreError | None = None

    # -- lifecycle --

    def open(self, *, clean: bool) -> None:
        """Take stock of the files, drop what cannot be trusted, find where building goes on.

        Call it after the log was recovered. What is dropped is built again by `build`.
        """
        if not self.enabled:
            return
        self._files = self._load(clean=clean)
        self._find_position()

    def _load(self, *, clean: bool) -> list[IndexFile]:
        names = [
            name
            for name in self._disk.names(self._directory)
            if len(name) == _NAME_LENGTH and name.isdecimal()
        ]
        files: list[IndexFile] = []
        for position, name in enumerate(names):
            path = self._directory / name
            reason = self._fault(name)
            if not reason:
                file = IndexFile.load(self._disk, path, self._slot_count, self._entry_count)
                reason = self._distrust(file, clean=clean)
            if reason:
                # Later files go too: keys enter the index in the order of the log.
                log.warning("index files will be rebuilt", first=str(path), reason=reason)
                for later in names[position:]:
                    self._disk.remove(self._directory / later)
                break
            files.append(file)
        return files

    def _fault(self, name: str) -> str:
        expected = file_size(self._slot_count, self._entry_count)
        size = self._disk.size(self._directory / name)
        if size == expected:
            return ""
        return f"{size} bytes, maxHashSlotNum and maxIndexNum ask for {expected}"

    def _distrust(self, file: IndexFile, *, clean: bool) -> str:
        if not clean and file.end_timestamp > self._checkpoint.index_msg_timestamp:
            return "the broker did not stop cleanly"
        if not file.is_empty and file.end_offset >= self._log.end:
            return f"it knows a message at {file.end_offset}, the log ends at {self._log.end}"
        return ""

    def _find_position(self) -> None:
        """Behind the last message with keys; its own keys may have come in only in part."""
        self.position = self._log.min_offset
        self._indexed_keys = 0
        filled = [file for file in self._files if not file.is_empty]
        if not filled:
            return
        last = filled[-1].end_offset
        if last < self._log.min_offset:
            return
        if not self._is_record(last):
            log.warning("the index does not belong to the log, rebuilding it", offset=last)
            for file in self._files:
                file.remove()
            self._files = []
            return
        self.position = last
        for file in reversed(filled):
            count = file.trailing(last)
            self._indexed_keys += count
            file.release()
            if file.count - 1 > count:
                break

    def _is_record(self, offset: int) -> bool:
        file = self._log.files.find(offset)
        if file is None:
            return False
        found = check_record(file.view, offset - file.base, offset, check_crc=False)
        return isinstance(found, ScannedRecord)

    def close(self, limit_s: float) -> None:
        """Index what is left, for `limit_s` at most, and sync. Raises StoreError."""
        if not self.enabled:
            return
        if not self.catch_up(self._log.end, limit_s):
            log.warning("the index is behind, the next start goes on", bytes=self.lag_bytes)
        with self._lock:
            if self._files:
                self._files[-1].sync()
        self.release()

    def release(self) -> None:
        """Let go of all mappings."""
        with self._lock:
            for file in self._files:
                file.release()
            self._files = []
            self._window = bytearray()

    # -- building --

    @property
    def lag_bytes(self) -> int:
        """How much of the log waits to be indexed."""
        return self._log.end - self.position if self.enabled else 0

    def build(self) -> bool:
        """Index the next part of the log, a few MiB at most; whether more of it waits. Blocks.

        A failure is kept in `failure` and logged once; the next call tries again.
        """
        if not self.enabled:
            return False
        with self._lock:
            try:
                self._build_batch()
            except StoreError as error:
                if self.failure is None:
                    log.error(  # noqa: TRY400 - the reason says it all
                        "the index cannot be built; queries miss new messages until it can",
                        reason=str(error),
                    )
                self.failure = error
                return False
            self.failure = None
            return self.position < self._log.end

    def catch_up(self, target: int, limit_s: float) -> bool:
        """Build until the log is indexed up to `target`; False if that failed or took too long."""
        deadline = self._clock.monotonic() + limit_s
        while self.position < target:
            self.build()
            if self.failure is not None or self._clock.monotonic() > deadline:
                return self.position >= target
        return True

    def _build_batch(self) -> None:
        # Retention may have removed what was still to be indexed.
        start = max(self.position, self._log.min_offset)
        end = self._log.end
        file = self._log.files.find(start)
        if file is None or start >= end:
            self.position = max(self.position, min(start, end))
            return
        window = self._read(file, start, min(file.end, end), _WINDOW_BYTES)
        batch = find_keys(window, start)
        if not batch.consumed and (size := int.from_bytes(window[:4], "big")) > len(window):
            # One record larger than the window.
            window = self._read(file, start, min(file.end, end), size)
            batch = find_keys(window, start)
        self._put(self._without_indexed(batch.keys))
        if batch.consumed:
            self.position = start + batch.consumed
        elif int.from_bytes(window[4:_BLANK_HEAD_SIZE], "big") == MAGIC_BLANK:
            self.position = file.end
        else:
            self._pass_damage(start, end)

    def _read(self, file: MappedFile, start: int, end: int, limit: int) -> bytearray:
        size = min(end - start, limit)
        if len(self._window) != size:
            self._window = bytearray(size)
        count = self._disk.read_into(file.path, start - file.base, memoryview(self._window))
        return self._window if count == size else self._window[:count]

    def _without_indexed(self, keys: IndexKeys) -> IndexKeys:
        known, self._indexed_keys = self._indexed_keys, 0
        return keys.part(known, len(keys.hashes)) if known else keys

    def _pass_damage(self, start: int, end: int) -> None:
        following = find_record(self._log.files, start)
        found = end if following is None else min(following.offset, end)
        log.error("a damaged part of the commit log is not indexed", start=start, end=found)
        self.position = found

    def _put(self, keys: IndexKeys) -> None:
        start, count = 0, len(keys.hashes)
        while start < count:
            if not self._files or not self._files[-1].room:
                self._add_file()
            file = self._files[-1]
            end = min(start + file.room, count)
            try:
                file.put(keys.part(start, end))
            except StoreError:
                self._indexed_keys = start
                raise
            start = end
            if not file.room:
                self._filled(file)

    def _add_file(self) -> None:
        previous = self._files[-1] if self._files else None
        if previous is None:
            self._disk.make_directory(self._directory)
        path = self._directory / self._next_name(previous)
        self._files.append(
            IndexFile.create(self._disk, path, self._slot_count, self._entry_count, previous)
        )

    def _next_name(self, previous: IndexFile | None) -> str:
        # Local time, as Java; names must rise even where the clock is put back.
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000)  # noqa: DTZ006
        if previous is not None:
            before = datetime.strptime(previous.path.name + "000", _NAME_FORMAT)  # noqa: DTZ007
            now = max(now, before + timedelta(milliseconds=1))
        return now.strftime(_NAME_FORMAT)[:_NAME_LENGTH]

    def _filled(self, file: IndexFile) -> None:
        """A full file never changes again; once it is on disk the checkpoint vouches for it."""
        file.sync()
        file.release()
        self._disk.sync_directory(self._directory)
        self._checkpoint.index_msg_timestamp = file.end_timestamp
        self._checkpoint.flush()

    # -- reading --

    def query(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> IndexAnswer:
        """Where the newest messages of a topic with a key and a store time in the range lie.

        At most `limit` and maxMsgsNumBatch of them; among them may be messages of other keys with
        the same hash. What `build` has not reached is not found.
        """
        limit = min(limit, self._max_answer)
        wanted = hash_of(topic, key)
        found: list[int] = []
        with self._lock:
            files = self._files
            for file in reversed(files):
                if len(found) >= limit:
                    break
                if not file.is_empty and file.overlaps(begin_ms, end_ms):
                    found += file.select(wanted, limit - len(found), begin_ms, end_ms)
                if file.begin_timestamp < begin_ms:
                    break
            if not found:
                return IndexAnswer([])
            return IndexAnswer(sorted(found), files[-1].end_timestamp, files[-1].end_offset)

    def remove_expired(self, min_offset: int, *, on_removed: Callable[[str], None]) -> int:
        """Delete files that know only messages below `min_offset`, but never the newest.

        Calls `on_removed` with the path of each; returns their number.
        """
        removed = 0
        with self._lock:
            while len(self._files) > 1 and self._files[0].end_offset < min_offset:
                file = self._files.pop(0)
                file.remove()
                on_removed(str(file.path))
                removed += 1
        return removed
