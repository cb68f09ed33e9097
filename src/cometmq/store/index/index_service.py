"""Keep the index: which messages have a key (Java: IndexService).

Its files are named after their time of creation. The index is built behind the log, in batches:
`build` reads what the log has gained since the last call, so an append does nothing for the index.
The last entry of the index says how far it covers the log, and everything behind that is indexed
again from the log. So a part that is dropped, or the whole directory, comes back as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.errors import StoreError
from cometmq.logs.loggers import get_logger
from cometmq.model.measures.work import WorkBudget
from cometmq.protocol.messages.record import MAGIC_BLANK
from cometmq.protocol.messages.record_layout import HEAD_SIZE, MAGIC_AT
from cometmq.store.append import Clock
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.config import StoreConfig
from cometmq.store.files.descriptors import make_sure_of_numpy
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.index.index_file import IndexFile, file_size, hash_of
from cometmq.store.index.key_match import Wanted, fits
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.scan import ScannedRecord, find_record, read_record

if TYPE_CHECKING:
    from cometmq.store.index.index_keys import IndexKeys

log = get_logger(__name__)

# How much of the log one batch reads: large enough to make numpy's fixed costs small, small enough
# that no call of numpy holds up the loop's thread for long. In 4 MiB of small messages calls that keep
# the interpreter's lock took 2 to 5 ms, and all of it no less time, because it left the caches.
_WINDOW_BYTES: Final = 512 * 1024
_NAME_LENGTH: Final = 17
_NAME_FORMAT: Final = "%Y%m%d%H%M%S%f"
# Limit of the entries that one query looks at, a second or so. Chains grow with the messages of a
# key, or with keys that somebody chose for their hashes.
MAX_ENTRIES_LOOKED_AT: Final = 1_000_000
# How many messages one query may read to compare their keys with the wanted one: about a second if
# they are only on disk. A hash has 31 bits, so honest keys seldom share one.
MAX_RECORDS_LOOKED_AT: Final = 1_000


class IndexAnswer(NamedTuple):
    """Holds offsets in the log, ascending, and how far the index has come (0 if none is found).

    `ended_by` is empty, or names the limit that ended the search early.
    """

    offsets: list[int]
    last_timestamp: int = 0
    last_offset: int = 0
    ended_by: str = ""


class IndexService:
    """Builds and queries an index. `open`, `finish` and `release` are for the store's thread.

    The other methods suit any thread; a lock lets one of them in at a time. Only bytes below the
    log's published end are read, and these through the file system: nothing that another thread
    changes is touched.
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
        self._config = config
        self._files: list[IndexFile] = []
        self._lock = threading.Lock()
        self._window = bytearray()
        # How many keys from `position` on are in the index already.
        self._indexed_keys = 0
        # How many entries the index has, after `open`, for the record at `position`.
        self._entries_of_last = 0
        self.position = 0
        self.failure: StoreError | None = None
        self.max_entries_looked_at = MAX_ENTRIES_LOOKED_AT
        self.max_records_looked_at = MAX_RECORDS_LOOKED_AT

    @property
    def enabled(self) -> bool:
        """Whether the index is built. If it is enabled again, messages that the log gained
        meanwhile are indexed.
        """
        return self._config.message_index_enable

    # -- lifecycle --

    def open(self, *, clean: bool, known: Mapping[str, int] | None = None) -> None:
        """Find the files, drop those that cannot be trusted, and find where building goes on.

        Call this after the log was recovered. `build` builds dropped entries again. `known` are the
        files of a former stop, with the offset of the last message that each knows.
        """
        self._files = [] if self._drop_incomplete(known or {}) else self._load(clean=clean)
        self._find_position()

    def _drop_incomplete(self, known: Mapping[str, int]) -> bool:
        """Remove all files if one in the middle is gone; return whether it was so.

        Only the end of the index says how far the log is indexed.
        """
        names = self._names()
        missing = [
            name for name in known.keys() - set(names) if known[name] >= self._log.min_offset
        ]
        # The newest file may have been dropped by a start that did not finish.
        later = max(names, default="")
        if not any(name < later for name in missing):
            return False
        log.warning("index files are missing, the index will be rebuilt", missing=sorted(missing))
        for name in names:
            self._disk.remove(self._directory / name)
        return True

    def _names(self) -> list[str]:
        return [
            name
            for name in self._disk.names(self._directory)
            if len(name) == _NAME_LENGTH and name.isdecimal()
        ]

    def _load(self, *, clean: bool) -> list[IndexFile]:
        names = self._names()
        files: list[IndexFile] = []
        for position, name in enumerate(names):
            path = self._directory / name
            reason = self._fault(name)
            if not reason:
                file = IndexFile.load(self._disk, path, self._slot_count, self._entry_count)
                reason = self._distrust(file, files, clean=clean, newest=name == names[-1])
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

    def _distrust(
        self, file: IndexFile, before: list[IndexFile], *, clean: bool, newest: bool
    ) -> str:
        """Return why the file cannot be kept, "" if it can."""
        if not file.is_plausible or (file.room and not newest):
            return "its header is damaged"
        if not file.is_empty and file.end_offset >= self._log.readable_end:
            return (
                f"it knows a message at {file.end_offset}, the log ends at {self._log.readable_end}"
            )
        if clean:
            return ""
        # Only files that were full are on disk with certainty, and of several files that ended in
        # the same millisecond perhaps only the first. Java keeps any file with an older time.
        vouched = self._checkpoint.index_msg_timestamp
        certain = file.end_timestamp < vouched or (
            file.end_timestamp == vouched and not (before and before[-1].end_timestamp == vouched)
        )
        return "" if certain and not file.room else "the broker did not stop cleanly"

    def _find_position(self) -> None:
        """Continue at the last message that has keys: the index may lack some of its keys."""
        self.position = self._log.min_offset
        self._indexed_keys = self._entries_of_last = 0
        filled = [file for file in self._files if not file.is_empty]
        if not filled:
            return
        last = filled[-1].end_offset
        if last < self._log.min_offset:
            return
        if self._record_at(last) is None:
            log.warning("the index does not belong to the log, rebuilding it", offset=last)
            self._remove_all()
            return
        self.position = last
        for file in reversed(filled):
            count = file.trailing(last)
            self._entries_of_last += count
            file.release()
            if file.count - 1 > count:
                break

    def _remove_all(self) -> None:
        """Delete all files, the newest first: if that fails, the remaining files have no gap."""
        while self._files:
            self._files[-1].remove()
            self._files.pop()

    def _record_at(self, offset: int) -> ScannedRecord | None:
        return read_record(self._log.files, offset, check_crc=False)

    def finish(self, limit_s: float) -> None:
        """Index the remaining messages, for `limit_s` at most, and sync. Raises StoreError."""
        if self.enabled and not self.catch_up(self._log.readable_end, limit_s):
            log.warning("the index is behind, the next start goes on", bytes=self.lag_bytes)
        with self._lock:
            if self._files:  # also of an index that was disabled meanwhile
                self._files[-1].sync()
                self._sync_names()

    def known_files(self) -> dict[str, int]:
        """Return for each file, by name, the offset of the last message that it knows."""
        with self._lock:
            return {file.path.name: file.end_offset for file in self._files if not file.is_empty}

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
        return self._log.readable_end - self.position if self.enabled else 0

    def build(self) -> bool:
        """Index the next few MiB of the log at most; return whether more of it waits. Blocks.

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
            if self.position < self._log.readable_end:
                return True
            # An idle broker keeps no buffer.
            self._window = bytearray()
            return False

    def catch_up(self, target: int, limit_s: float) -> bool:
        """Build until the log is indexed up to `target`; return False on failure or time-out."""
        deadline = self._clock.monotonic() + limit_s
        while (before := self.position) < target:
            self.build()
            if self.position == before or self._clock.monotonic() > deadline:
                return self.position >= target
        return True

    def _build_batch(self) -> None:
        start, end = self.position, self._log.readable_end
        if start < self._log.min_offset:
            # Retention removed messages that were not indexed yet, and so all that are indexed. If
            # the disk failed to delete a log file, the next start finds it again, and an index with a
            # gap would hide keys of that file.
            self._remove_all()
            start = self.position = self._log.min_offset
            self._indexed_keys = self._entries_of_last = 0
        file = self._log.files.find(start)
        if file is None or start >= end:
            return
        # Loads numpy: in the builder's thread, and not before the broker is ready.
        make_sure_of_numpy()
        from cometmq.store.index.index_keys import find_keys

        limit = min(file.end, end)
        window = self._read(file, start, min(limit, start + _WINDOW_BYTES))
        batch = find_keys(window, start)
        if not batch.consumed and (record := self._record_at(start)) is not None:
            # The record is larger than a window.
            window = self._read(file, start, start + record.size)
            batch = find_keys(window, start)
        if self._entries_of_last:
            # Java 5.5 also has an entry for the tag, behind those for the keys. When it recovers, any Java
            # broker enters the keys of its last message once more.
            of_record = int((batch.keys.offsets == start).sum())
            self._indexed_keys = min(self._entries_of_last, of_record)
            self._entries_of_last = 0
        self._put(batch.keys)
        if batch.consumed:
            self.position = start + batch.consumed
        elif int.from_bytes(window[MAGIC_AT:HEAD_SIZE], "big") == MAGIC_BLANK:
            self.position = limit
        else:
            self._pass_damage(start, end)
        self._indexed_keys = 0

    def _read(self, file: MappedFile, start: int, end: int) -> bytearray:
        # The index reads through the file system: a page fault of a mapping would hold up all
        # threads, and even for pages in memory one system call is cheaper than finding their parts
        # one by one.
        size = end - start
        if len(self._window) != size:
            self._window = bytearray(size)
        count = self._disk.read_into(file.path, start - file.base, memoryview(self._window))
        return self._window if count == size else self._window[:count]

    def _pass_damage(self, start: int, end: int) -> None:
        following = find_record(self._log.files, start)
        found = end if following is None else min(following.offset, end)
        log.error("a damaged part of the commit log is not indexed", start=start, end=found)
        self.position = found

    def _put(self, keys: IndexKeys) -> None:
        """Put the keys of the records from `position` on, without those put before a failure."""
        count = len(keys.hashes)
        while self._indexed_keys < count:
            if not self._files or not self._files[-1].room:
                self._add_file()
            file = self._files[-1]
            start = self._indexed_keys
            end = min(start + file.room, count)
            file.put(keys.part(start, end))
            self._indexed_keys = end

    def _add_file(self) -> None:
        previous = self._files[-1] if self._files else None
        if previous is None:
            self._disk.make_directory(self._directory)
        else:
            self._seal(previous)
        path = self._directory / self._next_name(previous)
        self._files.append(
            IndexFile.create(self._disk, path, self._slot_count, self._entry_count, previous)
        )

    def _next_name(self, previous: IndexFile | None) -> str:
        # Local time, as in Java; but names must rise even if the clock is set back.
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000)  # noqa: DTZ006 - Java names index files by local time
        name = now.strftime(_NAME_FORMAT)[:_NAME_LENGTH]
        if previous is not None:
            name = max(name, f"{int(previous.path.name) + 1:0{_NAME_LENGTH}d}")
        return name

    def _seal(self, file: IndexFile) -> None:
        """Sync a full file, which never changes again; then have the checkpoint vouch for it."""
        file.sync()
        self._sync_names()
        file.release()
        self._checkpoint.index_msg_timestamp = file.end_timestamp
        self._checkpoint.flush()

    def _sync_names(self) -> None:
        self._disk.sync_directory(self._directory)
        self._disk.sync_directory(self._directory.parent)

    # -- reading --

    def query(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> IndexAnswer:
        """Find the newest messages of a topic that have a key and a store time in the range.

        Returns at most `limit` messages, each once. It does not find messages that `build` has not
        reached. It ends after MAX_ENTRIES_LOOKED_AT entries, or MAX_RECORDS_LOOKED_AT messages of
        other keys with the same hash: then `ended_by` says so, and if nothing was found, StoreError
        is raised.
        """
        wanted = Wanted(topic, key, begin_ms, end_ms)
        found: set[int] = set()
        looked_at: set[int] = set()
        work = WorkBudget(self.max_entries_looked_at)
        ended_by = ""
        with self._lock:
            for offset in self._candidates(wanted, work):
                if len(found) >= limit:
                    break
                if offset in looked_at:
                    continue  # the message has the key twice
                if len(looked_at) >= self.max_records_looked_at:
                    ended_by = "MAX_RECORDS_LOOKED_AT"
                    break
                looked_at.add(offset)
                if fits(self._disk, self._log, offset, wanted):
                    found.add(offset)
            if work.left <= 0 and len(found) < limit:
                ended_by = "MAX_ENTRIES_LOOKED_AT"
            if ended_by and not found:
                raise StoreError(self._ending(key, ended_by, 0), limit=ended_by)
            if not found:
                return IndexAnswer([])
            last = self._files[-1]
            return IndexAnswer(
                sorted(found),
                last.end_timestamp,
                last.end_offset,
                self._ending(key, ended_by, len(found)) if ended_by else "",
            )

    def _candidates(self, wanted: Wanted, work: WorkBudget) -> Iterator[int]:
        """Yield the offsets of candidates, newest first."""
        key_hash = hash_of(wanted.topic, wanted.key)
        for file in reversed(self._files):
            if work.left <= 0:
                return
            if not file.is_empty and file.overlaps(wanted.begin_ms, wanted.end_ms):
                yield from file.select(key_hash, wanted.begin_ms, wanted.end_ms, work, self._clock)
            if file.begin_timestamp < wanted.begin_ms:
                return

    def _ending(self, key: str, limit: str, found: int) -> str:
        """Say which limit has ended a search for a key."""
        if limit == "MAX_ENTRIES_LOOKED_AT":
            most, looked_at = self.max_entries_looked_at, "entries of the index"
        else:
            most, looked_at = self.max_records_looked_at, "messages whose keys have the same hash"
        return (
            f"the query for key {key[:64]!r} looked at {most} {looked_at} and found "
            f"{found or 'none'} in its time range, the limit {limit} is {most}; narrow the range "
            "to the time of the message, or ask by its id"
        )

    def remove_expired(self, min_offset: int) -> list[Path]:
        """Delete files that know only messages below `min_offset`; return their paths.

        The newest file always stays.
        """
        removed = []
        with self._lock:
            while len(self._files) > 1 and self._files[0].end_offset < min_offset:
                file = self._files.pop(0)
                file.remove()
                removed.append(file.path)
        return removed
