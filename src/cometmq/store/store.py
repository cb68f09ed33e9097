"""Open, write, read and close one store directory (Java: DefaultMessageStore).

A store belongs to one thread (a broker's loop). From other threads only `flush_*`, `prepare_next`,
the index and the positions may be used.

Longer than 500 lines: it opens and closes all parts of a store in one order, which is best read in
one go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from cometmq.errors import (
    ProtocolError,
    StoreBusyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFileLostError,
    StoreFullError,
    StoreLockedError,
    StoreStarvedError,
)
from cometmq.logs.loggers import get_logger
from cometmq.model.measures.histogram import latencies
from cometmq.model.names import is_system_topic
from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from cometmq.protocol.messages.record import StoredRecord, decode_record
from cometmq.store.append import Appender, Arrival, Clock
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.config import PAGE_SIZE, StoreConfig
from cometmq.store.copying import RecordCopier
from cometmq.store.files.disk import Disk
from cometmq.store.files.locks import DirectoryLock
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.files.permissions import restrict_to_owner
from cometmq.store.flush import Flusher
from cometmq.store.get import MAX_PULL_BYTES, GetResult, MessageGetter
from cometmq.store.index.index_service import IndexService
from cometmq.store.layout import (
    check_content,
    check_places,
    check_sizes,
    check_usable,
    missing_in_front,
)
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.following import BatchTarget, QueueFiller
from cometmq.store.log.replica import ReplicaLog
from cometmq.store.log.scan import ScannedRecord, read_record
from cometmq.store.log.tail import LogTail, find_tail
from cometmq.store.log.transient_pool import PendingQueue, PooledCommitLog
from cometmq.store.queues.consume_queue import NO_MESSAGE, ConsumeQueue
from cometmq.store.queues.consume_queue_ext import BitMapOf, ExtendedConsumeQueue, ExtUnit
from cometmq.store.queues.dispatch import Dispatcher
from cometmq.store.queues.queue_ledger import QueueLedger
from cometmq.store.queues.queue_mender import QueueMender
from cometmq.store.queues.queue_table import Extensions, QueueTable
from cometmq.store.recovery import Progress, Recoverer, Recovery
from cometmq.store.refusals import PageCacheWatch, RefusalCause
from cometmq.store.retention.cleaner import Cleaner, Work, in_parts

log = get_logger(__name__)

__all__ = ["Boundary", "MessageStore"]

# How long a stop waits for the index; the next start adds what is missing then.
_INDEX_AT_CLOSE_S: Final = 5.0
# Records that a slave puts into their queues before the loop does other work. No network read
# brings as many, so a slave does not fall behind.
RECORDS_AT_ONCE: Final = 10_000
# How many lost messages a search by time looks past for one that has a time.
_LOST_IN_A_ROW: Final = 1024


class Boundary(Enum):
    """Says which offset a time between two messages means (Java: BoundaryType)."""

    LOWER = "lower"
    UPPER = "upper"


def _log_files(disk: Disk, config: StoreConfig) -> MappedFileQueue:
    return MappedFileQueue(
        disk,
        config.commit_log_path,
        config.mapped_file_size_commit_log,
        size_key="mappedFileSizeCommitLog",
        watched=True,
    )


def _queue_table(disk: Disk, config: StoreConfig, bit_map_of: BitMapOf | None) -> QueueTable:
    return QueueTable(
        disk,
        config.consume_queue_path,
        config.mapped_file_size_consume_queue,
        extensions=Extensions(
            config.consume_queue_ext_path,
            config.mapped_file_size_consume_queue_ext,
            config.enable_consume_queue_ext,
            bit_map_of,
        ),
    )


class MessageStore:
    """Keeps one store directory. `append`, `append_batch`, `append_copy`, `batch_records`,
    `append_records` and `announce` are those of `Appender`, `append_copies` is that of `RecordCopier`, without a call in between.

    `store_host` is packed (`cometmq.protocol.messages.ids.pack_host`): records and message ids name it as
    their broker. `clock` gives store timestamps. `wall` (without it `clock`) gives the time that
    the file system uses, from which the age of a file is computed.

    `on_arrival(topic, queue_id, next_offset, tags_code, store_timestamp, properties)` is called
    for each message that has become readable, before `append` returns. When a slave gets many at
    once, it is called for the queues for which `is_awaited(topic, queue_id)` says so.
    `bit_map_of(topic, properties)` returns what the extension of consume queues keeps as bit map.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        clock: Clock,
        store_host: bytes,
        wall: Clock | None = None,
        disk: Disk | None = None,
        on_arrival: Arrival | None = None,
        is_awaited: Callable[[str, int], bool] = lambda _topic, _queue_id: True,
        bit_map_of: BitMapOf | None = None,
    ) -> None:
        self.config = config
        self._on_arrival = on_arrival
        self._is_awaited = is_awaited
        self._disk = disk or Disk()
        log_files = _log_files(self._disk, config)
        self._pool = PooledCommitLog(log_files, config) if config.uses_transient_pool else None
        self.commit_log = self._pool or CommitLog(
            log_files, zeros_ahead=config.flush_disk_type == "ASYNC_FLUSH"
        )
        self.queues = _queue_table(self._disk, config, bit_map_of)
        self.checkpoint = Checkpoint(self._disk, config.checkpoint_path)
        self._ledger = QueueLedger(self._disk, config.ledger_path)
        self.index = IndexService(self._disk, self.commit_log, self.checkpoint, config, clock)
        self._flusher = Flusher(self.commit_log, self.queues, self.checkpoint)
        self._physical_bytes = self._disk.physical_memory_bytes()
        # Called with topic and id of a queue that began again in the log of a master; not for messages
        # that a recovery finds, which may be old.
        self.on_begin_anew: list[Callable[[str, int], None]] = []
        # Called when LIVE_KEYS of `config` have changed.
        self.on_settings_changed: list[Callable[[], None]] = []
        self.mender = QueueMender(
            self.commit_log,
            self.queues.find,
            lambda: self._ledger.deleted,
            self._appended_end,
            config.delay_levels_ms,
            clock.monotonic,
        )
        self._getter = MessageGetter(self.commit_log, config, self._memory_bytes(), self.mender)
        self._dispatcher = Dispatcher(
            self.queues.get, config.delay_levels_ms, fill_gaps=True, on_arrival=on_arrival
        )
        # None as long as appended messages get their units at once.
        self._filler: QueueFiller | None = None
        self._replica: ReplicaLog | None = None
        # The offset of a record near the end of the log, from which its tail is searched.
        self._late_record = -1
        self._pending_queues: dict[tuple[str, int], PendingQueue] = {}
        self._deleting: set[str] = set()
        # Microseconds that syncs of the commit log took; those that found nothing do not count.
        self.flush_times = latencies()
        self._take_appends(clock, store_host)
        self.refusals = self._appender.refusals
        self._refuse_as_closed("is not open")
        self.cleaner = self._new_cleaner(wall or clock)
        self._lock: DirectoryLock | None = None
        self._looking = threading.Lock()
        self._is_marked = False
        self._monotonic = clock.monotonic
        # Bytes of the log that the last recovery read, and how long it took; both are 0 before `open`.
        self.recovered_bytes = 0
        # Whether the stop before the last `open` was not a clean one.
        self.is_after_crash = False
        self.recovery_s = 0.0

    def _take_appends(self, clock: Clock, store_host: bytes) -> None:
        """Make what appends, and put its methods here, so that callers reach them without a call."""
        # With a pool a message arrives when the pool is written to the log.
        on_arrival = None if self._pool else self._on_arrival
        appender = self._appender = Appender(
            self.commit_log,
            self.config,
            clock=clock,
            store_host=store_host,
            on_arrival=on_arrival,
            is_awaited=self._is_awaited,
        )
        self.append = appender.append
        self.append_batch = appender.append_batch
        self.append_copy = appender.append_copy
        self.batch_records = appender.batch_records
        self.append_records = appender.append_records
        self.announce = appender.announce
        self.append_copies = RecordCopier(
            appender,
            self.commit_log,
            self.queue,
            self.config,
            clock=clock,
            store_host=store_host,
            on_arrival=on_arrival,
        ).append_copies

    def _new_cleaner(self, clock: Clock) -> Cleaner:
        cleaner = Cleaner(
            self.commit_log,
            self.queues,
            self.config,
            disk=self._disk,
            clock=clock,
            refusals=self.refusals,
        )
        cleaner.before_delete = self.checkpoint.note_begin
        cleaner.on_trimmed += [self._trim_index, self._trim_extensions]
        return cleaner

    # -- lifecycle --

    def open(self, progress: Progress | None = None) -> Recovery:
        """Lock the directory, recover, and take messages from now on.

        `progress(scanned, total)` is called now and then with bytes of the log. Raises
        StoreUnusableError, StoreLockedError, StoreCorruptError, StoreFullError or StoreError; the
        lock is then free.
        """
        if self._lock is not None:
            raise StoreError(f"{self.config.store_path_root_dir} is open already")
        root = self.config.store_path_root_dir
        check_usable(self.config, self._disk)
        check_sizes(self.config, self._disk)
        check_content(self.config, self._disk)
        check_places(self.config, self._disk)
        self._disk.make_directory(root)
        self._lock = self._disk.lock(self.config.lock_path)
        try:
            restrict_to_owner(self.config, self._disk)
            recovery = self._recover(progress)
        except BaseException:
            self.abandon()
            raise
        self._is_marked = True
        self.refusals.lift(RefusalCause.CLOSED)
        return recovery

    def _recover(self, progress: Progress | None) -> Recovery:
        began_s = self._monotonic()
        clean = self._disk.size(self.config.abort_path) is None
        self.commit_log.files.load(repair=not clean)
        # Before the first change: a crash on the way must not look like a clean stop.
        self._mark_start()
        intact = self.queues.load(repair=True)
        self._ledger.load()
        for topic, queue_id in self._ledger.left_over(self.queues, self.commit_log.files.end):
            self.queues.remove_queue(topic, queue_id)
            intact = False
        self.checkpoint.load()
        recoverer = Recoverer(
            self.commit_log,
            self.queues,
            self.checkpoint,
            self.config,
            clean=clean,
            ledger=self._ledger,
            rebuild_queues=not intact,
            begun_anew=self._begin_anew,
            progress=progress,
        )
        try:
            recovery = recoverer.run()
        except StoreCorruptError:
            if recoverer.untouched:
                # Still a clean stop: the next start must see the same damage.
                self._disk.remove(self.config.abort_path)
            raise
        self._look_at_ends(recovery)
        self.is_after_crash = not recovery.clean
        self._getter.own_from = recovery.end
        self.recovered_bytes = recovery.end - recovery.start
        self.recovery_s = self._monotonic() - began_s
        self.index.open(clean=recovery.clean, known=self._ledger.index)
        changed = self._ledger.follow_log(self.commit_log.min_offset, recovery.end)
        known = self.index.known_files()
        # Saved before the first append: what the ledger says of dropped files and of a longer log
        # must not be applied to records that are appended now.
        if changed or not recovery.clean or known != self._ledger.index:
            self._ledger.take(self.queues, known)
            self._ledger.save()
        self._filler = QueueFiller(self._pool, self._dispatcher) if self._pool else None
        self._replica = None
        self._late_record = recoverer.last_queued
        log.info(
            "store recovered",
            path=str(self.config.store_path_root_dir),
            clean=recovery.clean,
            commit_log_end=recovery.end,
            scanned=recovery.scanned_count,
            dispatched=recovery.dispatched_count,
        )
        return recovery

    def _look_at_ends(self, recovery: Recovery) -> None:
        """Log that files are missing at the beginning of the log, or messages at its end."""
        checkpoint, files = self.checkpoint, self.commit_log.files
        begins = checkpoint.log_begins
        if begins is not None and (text := missing_in_front(begins, files.files)) is not None:
            log.error("files of the commit log are missing", what=text)
        elif begins is not None:
            # A crash happened between the note and the removal of a file.
            checkpoint.log_begins = files.min_offset
        flushed_until = checkpoint.physic_msg_timestamp
        if recovery.last_store_timestamp < flushed_until and recovery.end > files.min_offset:
            log.error(
                "messages that were on disk are missing at the end of the commit log",
                last_message_ms=recovery.last_store_timestamp,
                flushed_until_ms=flushed_until,
                end=recovery.end,
            )

    def close(self) -> None:
        """Flush everything, mark the stop as clean, release the lock. Idempotent.

        Views handed out stay readable. When flushing fails, or has failed before, the abort file
        stays, so the next start recovers; the error is raised after the lock is released.
        """
        if self._lock is None:
            return
        self.look_at_files()
        failed = self.failure
        self._refuse_as_closed("is closed")
        try:
            if failed is not None:
                self._save_pool()
                raise failed.with_traceback(None)
            self._commit_and_publish()
            self._flusher.flush_all()
            self.index.finish(_INDEX_AT_CLOSE_S)
            self._note_queues()
            with self._looking:
                self._disk.remove(self.config.abort_path)
                self._is_marked = False
        finally:
            self.abandon()

    def _save_pool(self) -> None:
        """Copy the pool to the log after a failure: the disk may work again, and no other copy of
        these messages exists. The next start recovers them.
        """
        if self._pool is None:
            return
        try:
            self._pool.commit()
        except StoreError as error:
            log.critical(
                "messages are lost: the disk did not take what the transient store pool held",
                reason=str(error),
                bytes=self.commit_log.end - self.commit_log.readable_end,
            )

    def _note_queues(self) -> None:
        try:
            self._ledger.take(self.queues, self.index.known_files())
            self._ledger.save()
        except StoreError as error:
            # The former note still holds, of fewer messages.
            log.warning("the state of the queues is not noted", reason=str(error))

    def abandon(self) -> None:
        """Give up all files and the lock and write nothing, as the end of the process does."""
        self._is_marked = False
        self._pending_queues.clear()
        self.index.release()
        self.queues.release()
        self.commit_log.release()
        with self._looking:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _refuse_as_closed(self, state: str) -> None:
        self.refusals.set(
            RefusalCause.CLOSED,
            StoreClosedError(f"the store {self.config.store_path_root_dir} {state}"),
        )

    def settings_changed(self) -> None:
        """Read again the values of LIVE_KEYS that are kept elsewhere than in `config`."""
        self._getter.configure(self.config, self._memory_bytes())
        self._appender.configure(self.config)
        for callback in self.on_settings_changed:
            callback()
        self.cleaner.say_surprises()

    def _memory_bytes(self) -> int:
        """Return how far behind the end of the log a message is taken to be in memory."""
        ratio = self.config.access_message_in_memory_max_ratio
        return self._physical_bytes * ratio // 100

    # -- queues --

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue to append to, made if missing; valid until its topic is deleted.

        Raises MessageIllegalError for a topic that cannot be a directory's name, and StoreBusyError
        while the topic is being deleted.
        """
        if topic in self._deleting:
            raise StoreBusyError(f"topic {topic} is being deleted; try again in a moment")
        queue = self.queues.get(topic, queue_id)
        if self._pool is None:
            return queue
        pending = self._pending_queues.get((topic, queue_id))
        if pending is None:
            # The broker's own services (transactions, delayed messages) look at once at messages
            # that they have stored.
            at_once = self._make_readable if is_system_topic(topic) else None
            pending = self._pending_queues[topic, queue_id] = PendingQueue(queue, at_once)
        return pending

    def check_queue_room(self, topic: str, queue_id: int) -> None:
        """Raise StoreBusyError while messages of the transient pool wait for room in a queue: a record
        appended now could not be read either.
        """
        queue = self.queues.find(topic, queue_id)
        end = self._appended_end(topic, queue_id)
        if end > (0 if queue is None else queue.next_offset):
            raise StoreBusyError(
                f"the consume queue {topic}/{queue_id} waits for room on the disk; try again when there "
                "is some"
            )

    def _appended_end(self, topic: str, queue_id: int) -> int:
        pending = self._pending_queues.get((topic, queue_id))
        return pending.next_offset if pending is not None else 0

    def topics(self) -> dict[str, list[int]]:
        """Return the queue ids by topic, of all queues that exist."""
        found: dict[str, list[int]] = {}
        for queue in self.queues:
            found.setdefault(queue.topic, []).append(queue.queue_id)
        return {topic: sorted(ids) for topic, ids in found.items()}

    def delete_topic(self, topic: str) -> list[int]:
        """Delete one topic as `delete_topics` does; return the ids of its queues."""
        return self.delete_topics([topic])[topic]

    def delete_topics(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Remove the queues of topics and return their ids by topic; see `deletion`. Blocks."""
        wanted = list(dict.fromkeys(topics))
        existing = self.topics()
        for work in self.deletion(wanted):
            work.do()
        return {topic: existing.get(topic, []) for topic in wanted}

    def deletion(
        self, topics: Iterable[str], forgotten: Callable[[], None] = lambda: None
    ) -> Generator[Work, None, None]:
        """Remove the queues of topics. Take the steps in the store's thread; each yields what blocks,
        to be done in any thread before the next step.

        Their records leave with the log, but no rebuild of the queues brings them back. Until the
        end nothing can be appended to these topics: `queue` raises StoreBusyError, and every holder of
        one of their queues must have let go of it. When the deletion cannot be noted, its work raises
        StoreError, and nothing is removed. Afterwards `forgotten` is called in the store's thread, when
        the topics have no queues any more and files may still have to be removed.
        """
        wanted = dict.fromkeys(topics)
        if busy := self._deleting.intersection(wanted):
            raise StoreBusyError(f"topic {min(busy)} is being deleted already")
        self._deleting.update(wanted)
        try:
            # A record that is not in its queue yet would bring the queue back.
            self._commit_and_publish()
            end = self.commit_log.end
            yield Work(lambda: self._ledger.delete(wanted, end))
            for key in [key for key in self._pending_queues if key[0] in wanted]:
                del self._pending_queues[key]
            self.queues.forget_topics(wanted)
            forgotten()
            # Of all, because a former deletion may have failed here.
            yield Work(lambda: self.queues.remove_directories(wanted))
        finally:
            self._deleting.difference_update(wanted)

    def is_deleting(self, topic: str) -> bool:
        """Say whether the queues of a topic are being deleted."""
        return topic in self._deleting

    def deleted_at(self, topic: str) -> int:
        """Return where the log ended when a topic was last deleted; 0 if that is unknown."""
        return self._ledger.deleted.get(topic, 0)

    def deleted_topics(self) -> dict[str, int]:
        """Return where the log ended when topics were deleted, for topics with records still in it."""
        return dict(self._ledger.deleted)

    def note_deletions(self, deleted: Mapping[str, int]) -> None:
        """Note which topics the master of a slave has deleted, and where in the log. Blocks; for
        any thread.

        The queues stay until the next start, or until they begin again in the log: while there is a
        master, it decides which messages are read from them. Raises StoreError; then nothing is noted.
        """
        self._ledger.note_deletions(deleted)

    def removal_of_lost_queues(
        self, is_kept: Callable[[str], bool], forgotten: Callable[[str], None] = lambda _: None
    ) -> Generator[Work, None, None]:
        """Remove the queues whose messages all left the log. The steps are taken as in `deletion`.

        Queues of topics for which `is_kept` stay. If they were removed, they would begin at offset
        0 again, and a group that has consumed up to 500 would not see the next 500 messages. For
        each queue `forgotten` is called with its topic, whose queues every holder must then let
        go.
        """

        def removal(queue: ConsumeQueue) -> Iterator[Work]:
            if not is_kept(queue.topic) and self._can_go(queue):
                yield from self._removal(queue.topic, queue.queue_id, forgotten)

        yield from in_parts(self.queues, removal, self._monotonic)

    def _can_go(self, queue: ConsumeQueue) -> bool:
        key = (queue.topic, queue.queue_id)
        # Another removal may have taken it, and its files, since the last pause.
        if not self._is_there(queue) or queue.topic in self._deleting:
            return False
        if not self.cleaner.has_lost_all(queue):
            return False
        if key in self._pending_queues:
            # A record that is not in the queue yet would bring it back.
            self._commit_and_publish()
        return self._is_there(queue) and self.cleaner.has_lost_all(queue)

    def _removal(
        self, topic: str, queue_id: int, forgotten: Callable[[str], None]
    ) -> Generator[Work, None, None]:
        self._deleting.add(topic)  # so that nobody makes the queue again before its files are gone
        try:
            self._pending_queues.pop((topic, queue_id), None)
            self.queues.forget_queue(topic, queue_id)
            forgotten(topic)
            whole = not self.queues.has_queues(topic)
            yield Work(lambda: self.queues.remove_files(topic, queue_id, whole_topic=whole))
        finally:
            self._deleting.discard(topic)

    # -- reading --

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        max_bytes: int = MAX_PULL_BYTES,
        matches: Callable[[int], bool | None] | None = None,
        matches_ext: Callable[[ExtUnit], bool | None] | None = None,
        matches_record: Callable[[memoryview], bool | None] | None = None,
        may_block: bool = True,
        begun: GetResult | None = None,
    ) -> GetResult:
        """Return what a pull at `offset` gets; see MessageGetter.get."""
        return self._getter.get(
            self.queues.find(topic, queue_id),
            offset,
            max_messages,
            max_bytes=max_bytes,
            matches=matches,
            matches_ext=matches_ext,
            matches_record=matches_record,
            may_block=may_block,
            begun=begun,
        )

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset of the first message still there; 0 for an unknown queue."""
        queue = self.queues.find(topic, queue_id)
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message will get; 0 for an unknown queue."""
        queue = self.queues.find(topic, queue_id)
        return queue.next_offset if queue else 0

    def queue_end(self, topic: str, queue_id: int) -> int | None:
        """Return `max_offset` of a queue that exists, else None."""
        queue = self.queues.find(topic, queue_id)
        return queue.next_offset if queue else None

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store timestamp, ms, of one message; -1 when it is not there."""
        queue = self.queues.find(topic, queue_id)
        return self._timestamp_at(queue, offset) if queue else -1

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Say whether a message is there and young enough for the page cache to hold it."""
        queue = self.queues.find(topic, queue_id)
        unit = queue.unit(offset) if queue else None
        return (
            unit is not None and self.commit_log.end - unit.physical_offset <= self._memory_bytes()
        )

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        """Return the store timestamp, ms, of the queue's first message; -1 when it has none."""
        return self.store_timestamp(topic, queue_id, self.min_offset(topic, queue_id))

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the queue offset that belongs to a store time.

        LOWER: the first message stored at `timestamp_ms` or later, else the next offset. UPPER: the
        last message stored at `timestamp_ms` or earlier, 0 when all are later.
        """
        queue = self.queues.find(topic, queue_id)
        if queue is None or queue.next_offset == queue.min_offset:
            return queue.next_offset if queue else 0
        timestamp_at = partial(self._timestamp_at, queue)
        if boundary is Boundary.LOWER:
            return queue.find_offset(timestamp_at, timestamp_ms)
        behind = queue.find_offset(timestamp_at, timestamp_ms + 1)
        return behind - 1 if behind > queue.min_offset else 0

    def _timestamp_at(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Return the store timestamp of a message.

        For a lost message this is the timestamp of the message in front of it.
        """
        unit = self.mender.unit(queue, queue_offset)
        for _ in range(_LOST_IN_A_ROW):
            if unit != NO_MESSAGE or queue_offset <= queue.min_offset:
                break
            queue_offset -= 1
            unit = self.mender.unit(queue, queue_offset)
        if unit is None or unit == NO_MESSAGE:
            return -1
        return self.commit_log.store_timestamp_at(unit.physical_offset)

    @property
    def own_from(self) -> int:
        """The commit-log offset from which on a read may find records as this process wrote them,
        because memory is taken to have them. All others come from the disk: a get compares them with
        their units.
        """
        return self._getter.own_from

    def record_at(self, physical_offset: int) -> memoryview | None:
        """Return the record that begins at a commit-log offset; None when none can begin there."""
        return self.commit_log.record_at(physical_offset)

    def stored_record(self, physical_offset: int) -> StoredRecord | None:
        """Return the record that begins at a commit-log offset, decoded.

        Returns None when none does: the record has left the log, is damaged, or another one stands
        in its place. Bytes inside of a body may look like a record; `message_at` is for offsets
        made up by others.
        """
        data = self.commit_log.record_at(physical_offset)
        if data is None:
            return None
        try:
            record = decode_record(data)
        except ProtocolError:
            return None
        return record if record.physical_offset == physical_offset else None

    def message_at(self, physical_offset: int) -> memoryview | None:
        """Return the record of the message at a commit-log offset that anyone may have made up.

        Returns None unless an intact record begins there and its consume queue, if there is one,
        knows it.
        """
        log = self.commit_log
        record = read_record(log.files, physical_offset, end=log.readable_end, check_crc=True)
        if record is None or not self._is_queued(record):
            return None
        return log.read(physical_offset, record.size)

    def _is_queued(self, record: ScannedRecord) -> bool:
        if record.offset < self._ledger.deleted.get(record.topic, 0):
            # The queue has other messages at the same offsets, since its topic was made again.
            return True
        # A body may hold bytes that look like a record at that very place.
        if record.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NOT, TRANSACTION_COMMIT):
            return True
        queue = self.queues.find(record.topic, record.queue_id)
        if queue is None or record.queue_offset >= queue.next_offset:
            return True
        unit = self.mender.unit(queue, record.queue_offset)
        if unit is None or unit.physical_offset == record.offset:
            return True
        # The queue may have begun again behind the record.
        first = queue.unit(queue.min_offset) if self._ledger.is_replica else None
        return first is not None and record.offset < first.physical_offset

    def _trim_extensions(self, _log_min_offset: int) -> Iterator[Work]:
        yield from in_parts(self.queues, self._trim_extension, self._monotonic)

    def _trim_extension(self, queue: ConsumeQueue) -> Iterator[Work]:
        # It may have been removed between two pieces of work.
        if self._is_there(queue) and isinstance(queue, ExtendedConsumeQueue):
            for path in queue.detach_expired_ext():
                yield Work(partial(self._remove_ext, queue, path))

    def _remove_ext(self, queue: ConsumeQueue, path: Path) -> None:
        # A queue that was made since may have a file of this name. For any thread.
        if self._is_there(queue):
            self._disk.remove(path)

    def _is_there(self, queue: ConsumeQueue) -> bool:
        return self.queues.find(queue.topic, queue.queue_id) is queue

    def _trim_index(self, log_min_offset: int) -> Iterator[Work]:
        yield Work(lambda: self.index.remove_expired(log_min_offset))

    # -- the transient store pool (see transient_pool.py) --

    def commit(self, least_pages: int = 0) -> None:
        """Copy records from the pool's buffers to the log, if at least `least_pages` pages wait.

        Blocks; for any thread. Without a pool there is nothing to do. Fails as `flush_commit_log`
        does.
        """
        if self._pool is None:
            return
        self._raise_failure()
        try:
            self._pool.commit(least_pages)
        except StoreStarvedError:
            raise
        except StoreError as error:
            self._fail(error)
            raise

    def publish(self, limit: int = 1 << 30) -> bool:
        """Make up to `limit` committed records readable; return whether more wait.

        For the store's thread. Raises StoreFullError when a queue has no room; a later call goes
        on.
        """
        return self._filler is not None and self._filler.fill(limit)

    def append_replicated(
        self, offset: int, data: bytes | memoryview, limit: int = RECORDS_AT_ONCE
    ) -> bool:
        """Append the records of a master's log that these bytes complete (see `ReplicaLog`), and
        put `limit` records or some more into their queues. For a slave, which appends nothing else.

        Returns whether records wait for their queues: then call `publish` until none does, and let
        others have the loop in between. (`FlushTimers` does so, too, twice a second.) A caller with
        several parts appends them with `limit` 0 and publishes then: many records at once cost a
        third.

        Raises StoreError if the bytes are not those that this log lacks, StoreFullError or
        StoreStarvedError if they have no room; `replicated_end` then says from where to go on. That
        a queue has no room is not raised here, but by `publish`. A disk that is merely rather full,
        or slow, is no reason to refuse: a slave cannot choose what it stores.
        """
        for cause in (RefusalCause.CLOSED, RefusalCause.DISK_FAILED):
            if (refusal := self.refusals.error(cause)) is not None:
                self.refusals.count(cause)
                raise refusal.with_traceback(None)
        if self._replica is None:
            self._replica = self._begin_replica()
        began_s = self._monotonic()
        self._replica.append(offset, data)
        self._appender.grew()
        self._appender.page_cache_watch.append_took(began_s)
        try:
            return self.publish(limit)
        except StoreFullError as error:
            log.debug("queues wait for room", reason=str(error))
            return True

    @property
    def may_differ_from_master(self) -> bool:
        """Whether the log has, or may have, an end that no master's log has: this store was a master
        itself.
        """
        ledger = self._ledger
        return bool(self.commit_log.end) and (not ledger.is_replica or ledger.has_own_end)

    def note_own_end(self, *, there: bool) -> None:
        """Note that the log has, or from now on may have, an end that no master's log has, or that it
        was found to be a copy of its master's. Writes only when that is news. Raises StoreError.
        """
        if not self._ledger.is_replica:
            if not there:
                self._ledger.begin_replica()
        elif self._ledger.has_own_end != there:
            self._ledger.note_own_end(there=there)

    def _begin_replica(self) -> ReplicaLog:
        if self._pool:
            raise StoreError(
                "a slave writes to its commit log without the transient store pool: set "
                "transientStorePoolEnable to false"
            )
        # Before the first record: a recovery treats a copied log in another way.
        self.note_own_end(there=False)
        self.commit_log.fill_queues_later()
        dispatcher = Dispatcher(
            self.queues.get,
            self.config.delay_levels_ms,
            fill_gaps=True,
            log_min_offset=self._log_begins,
            on_arrival=self._on_arrival,
            begun_anew=self._begin_anew,
        )
        self._filler = QueueFiller(self.commit_log, dispatcher, self._make_batches)
        return ReplicaLog(self.commit_log, self.config.max_message_size)

    def _log_begins(self) -> int:
        return self.commit_log.min_offset

    def _make_batches(self) -> BatchTarget:
        from cometmq.store.queues.batch_dispatch import BatchDispatcher

        return BatchDispatcher(
            self.queues.get,
            self.config.delay_levels_ms,
            fill_gaps=True,
            log_min_offset=self._log_begins,
            on_arrival=self._on_arrival,
            is_awaited=self._is_awaited,
            begun_anew=self._begin_anew,
        )

    def _begin_anew(self, topic: str, queue_id: int) -> None:
        """Remove a queue that the master removed, alone or with its topic.

        Waits for the disk, as little as the deletion itself.
        """
        log.warning(
            "a queue begins again, its messages were deleted on the master",
            topic=topic,
            queue_id=queue_id,
        )
        self._ledger.forget(topic, queue_id)
        self.queues.remove_queue(topic, queue_id)
        for listener in self.on_begin_anew:
            listener(topic, queue_id)

    @property
    def has_copied(self) -> bool:
        """Whether the store has copied a master's log since it was opened."""
        return self._replica is not None

    @property
    def queues_lack_records(self) -> bool:
        """Whether the log has records that `publish` has to put into their queues."""
        return self._filler is not None and self._filler.waits

    def log_tail(self) -> LogTail:
        """Return where the last record of the log is, for the store's thread.

        Asks no queue: each would have its file mapped, which takes seconds for thousands.
        """
        if self._filler is not None:
            self._late_record = max(self._late_record, self._filler.last)
        tail = find_tail(self.commit_log, self._late_record)
        self._late_record = max(self._late_record, tail.record)
        return tail

    def forget_partial_record(self) -> None:
        """Forget the bytes of a record that has come in part, so that it comes whole again.

        Call this before another connection to a master is used: its log may go on otherwise.
        """
        if self._replica is not None:
            self._replica.forget_part()

    @property
    def replicated_end(self) -> int:
        """The offset in the master's log from which on a slave lacks bytes. It lies behind the end
        of the slave's own log when only a part of the last record has come.
        """
        return self._replica.end if self._replica is not None else self.commit_log.end

    def _commit_and_publish(self) -> None:
        self.commit()
        self.publish()

    def _make_readable(self) -> None:
        """Commit and publish what a service of the broker has just appended."""
        try:
            self._commit_and_publish()
        except StoreFullError as error:
            # The log has the messages, so no sender may get the answer that one was refused. Their
            # queues get them when there is room: `FlushTimers` publishes twice a second.
            log.debug("queues wait for room", reason=str(error))

    # -- flushing; for any thread, one call at a time --

    @property
    def flushed_offset(self) -> int:
        """Everything in the commit log below this offset is on disk."""
        return self._flusher.flushed_offset

    @property
    def refusal(self) -> StoreError | None:
        """Why the store takes no messages, None when it does."""
        return self.refusals.current

    def flush_commit_log(self, least_pages: int = 0) -> int:
        """Sync the log if `least_pages` pages wait (0: any byte); return the flushed offset.

        Blocks. A failure is final: the store refuses messages from then on, each further call
        raises it, and the next start recovers. The kernel forgets the pages that it could not
        write, so a second fdatasync would succeed without them. Only StoreStarvedError passes: the
        sync was not begun.
        """
        self._raise_failure()
        watch = self._appender.page_cache_watch
        watch.flush_begins()
        began_s, before = self._monotonic(), self._flusher.flushed_offset
        try:
            flushed = self._flusher.flush_commit_log(least_pages)
            if flushed > before:
                self.flush_times.add(int((self._monotonic() - began_s) * 1e6))
        except StoreStarvedError:
            raise
        except StoreError as error:
            self._fail(error)
            raise
        else:
            return flushed
        finally:
            watch.flush_ends()

    @property
    def appended_count(self) -> int:
        """How many messages were stored since the store was made."""
        return self._appender.appended_count

    @property
    def longest_append_ms(self) -> int:
        """The longest time that an append had to wait since the store was made, in ms."""
        return self._appender.page_cache_watch.longest_append_ms

    def take_slow_appends(self) -> dict[int, int]:
        """Return how many appends had to wait since the last call, by ms of waiting."""
        watch = self._appender.page_cache_watch
        taken, watch.slow_appends = watch.slow_appends, {}
        return taken

    @property
    def page_cache_watch(self) -> PageCacheWatch:
        """The watch over appends and flushes that have to wait."""
        return self._appender.page_cache_watch

    def watch_page_cache(self) -> None:
        """Refuse messages while a flush is blocked, and admit them again afterwards.

        For the store's thread, a few times per osPageCacheBusyTimeOutMills.
        """
        self._appender.page_cache_watch.look()

    @property
    def page_cache_is_idle(self) -> bool:
        """Whether `watch_page_cache` has nothing to do until a flush or an append begins."""
        return self._appender.page_cache_watch.is_idle

    def at_growth(self, call: Callable[[], None]) -> None:
        """Call `call` once, as soon as the log grows again, before that is counted. For the store's
        thread.
        """
        if call not in self._appender.at_growth:
            self._appender.at_growth.append(call)

    def flush_consume_queues(self, least_pages: int = 0) -> None:
        """Sync consume queues; with 0 all of them and the checkpoint.

        Blocks; fails as `flush_commit_log`.
        """
        self._raise_failure()
        try:
            self._flusher.flush_consume_queues(least_pages)
        except StoreStarvedError:
            raise
        except StoreError as error:
            self._fail(error)
            raise

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether the checkpoint has values that its file does not have."""
        return self._flusher.checkpoint_is_due

    def flush_checkpoint(self) -> None:
        """Write down how far flushing has come; once a second keeps the next recovery short."""
        self._raise_failure()
        self._flusher.flush_checkpoint()

    def flush_all(self) -> None:
        """Sync log, queues and checkpoint. Blocks; fails as `flush_commit_log`."""
        self.flush_commit_log()
        self.flush_consume_queues()

    def prepare_next(self) -> None:
        """Make the commit log's next file ahead of need, and with warmMapedFileEnable bring its
        pages into memory. Blocks; StoreFullError changes nothing.
        """
        config = self.config
        pages = config.flush_least_pages_when_warm_maped_file
        warm = config.warm_maped_file_enable
        self.commit_log.files.prepare_next(warm_step_bytes=pages * PAGE_SIZE if warm else 0)

    @property
    def failure(self) -> StoreError | None:
        """Why nothing can be made durable any more, None as long as the disk works."""
        return self.refusals.error(RefusalCause.DISK_FAILED)

    def look_at_files(self) -> None:
        """Check whether somebody removed, replaced or cut files of the log, or removed the lock or
        the start mark; once a second. Blocks for microseconds; for any thread.

        Messages written through a mapping of a removed file are lost with the process, so the store
        then takes no more messages, as after a failed write. It takes the lock and writes the mark
        again.
        """
        with self._looking:
            if self._lock is None or self.failure is not None:
                return
            try:
                self._look_at_lock(self._lock)
                if self._is_marked and self._disk.size(self.config.abort_path) is None:
                    log.warning("the mark of a start was removed and is written again")
                    self._mark_start()
                loss = self.commit_log.files.loss()
            except StoreStarvedError as error:
                log.warning(
                    "work on the disk put off", what="a look at the files", reason=str(error)
                )
                return
            except StoreError as error:
                loss = self.commit_log.files.loss()
                if loss is None:
                    log.warning("a file of the store cannot be written", reason=str(error))
            if loss is not None:
                self._fail(loss)

    def _look_at_lock(self, lock: DirectoryLock) -> None:
        try:
            if lock.renew():
                log.warning(
                    "the lock of the store was removed and is taken again",
                    path=str(self.config.lock_path),
                )
        except StoreLockedError:
            self._fail(
                StoreFileLostError(
                    f"{self.config.lock_path} was removed while the broker ran, and another process "
                    "has taken the store since; stop one of the two, and check the store with "
                    "cometmq store check"
                )
            )

    def _mark_start(self) -> None:
        self._disk.write(self.config.abort_path, str(self._disk.process_id()).encode())
        self._disk.sync_directory(self.config.abort_path.parent)

    def _raise_failure(self) -> None:
        if (failure := self.failure) is not None:
            raise failure.with_traceback(None)

    def _fail(self, error: StoreError) -> None:
        if not self.refusals.is_set(RefusalCause.DISK_FAILED):
            is_lost = isinstance(error, StoreFileLostError)
            text = (
                f"the store takes no messages: {error}"
                if is_lost
                else f"the store takes no messages since a write to disk failed: {error}; "
                "repair the disk and restart the broker"
            )
            self.refusals.set(RefusalCause.DISK_FAILED, StoreClosedError(text))
            # The kernel may drop pages that it could not write, and read old bytes in their place.
            self._getter.distrust(self.commit_log.end)
            if not is_lost:
                log.error("the disk failed, the store takes no more messages", error=str(error))
                return
            log.error("a file was lost; the store takes no more messages", error=str(error))
            # It says where the log began: the next start can then say what is missing.
            with suppress(StoreError):
                self._flusher.flush_checkpoint()
