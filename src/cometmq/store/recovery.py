"""Recover a store when it is opened: find the end of the log, make the consume queues agree with
it.

Java: DefaultMessageStore.recover, CommitLog.recoverNormally and recoverAbnormally.

After a clean stop everything up to the end of the last queued record is known to have been on disk.
Recovery checks the last three files up to that record, and puts records behind it into their
queues. After a crash the scan starts at the newest file whose first record the checkpoint vouches
for, and no queue unit of a record behind that place is trusted.
Records that the checkpoint does not vouch for are written again in their places. If a sync failed
before the crash, the kernel takes their pages for written, and no later sync would write them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from cometmq.errors import StoreCorruptError
from cometmq.logs.loggers import get_logger
from cometmq.protocol.messages.record_layout import STORE_TIME_LIMIT_MS
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.config import StoreConfig
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.scan import find_record, read_record
from cometmq.store.queues.dispatch import BegunAnew, QueueBehindError
from cometmq.store.queues.queue_ledger import QueueLedger
from cometmq.store.queues.queue_table import QueueTable

if TYPE_CHECKING:
    from cometmq.store.log.batch_scan import RecordBatch

log = get_logger(__name__)

# How many of the newest files are checked after a clean stop.
_CHECKED_FILES: Final = 3
_WRITTEN_AT_ONCE: Final = 64 * 1024
# Called with: bytes of the log scanned, bytes to scan.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Recovery:
    """Says what recovery did. `reason` says what is at `end` if not the log's plain end.

    `last_store_timestamp` is the newest of the messages it looked at, damaged store times left out:
    the broker's time goes on from it.
    """

    clean: bool
    start: int
    end: int
    reason: str
    scanned_count: int
    dispatched_count: int
    last_store_timestamp: int


class Recoverer:
    """Recovers one store whose files are loaded. Call `run` once, before anything is appended."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        checkpoint: Checkpoint,
        config: StoreConfig,
        *,
        clean: bool,
        ledger: QueueLedger,
        rebuild_queues: bool = False,
        begun_anew: BegunAnew | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._checkpoint = checkpoint
        self._config = config
        self._delay_levels_ms = config.delay_levels_ms
        self._clean = clean
        self._ledger = ledger
        self._rebuild_queues = rebuild_queues
        # Not for a log of our own: its deletions are noted, and a damaged queue offset that looks
        # like a new beginning must not remove a queue.
        self._begun_anew = begun_anew if ledger.is_replica else None
        self._progress = progress
        self._last_timestamp = 0
        # Offset of the first record that the checkpoint does not vouch for, None for none.
        self._unproved: int | None = None
        # Offset of the last record that a queue was found to have, -1 for none.
        self.last_queued = -1
        # Whether a StoreCorruptError leaves the store just as a clean stop left it.
        self.untouched = clean

    def run(self) -> Recovery:
        """Recover the store. Raises StoreCorruptError if messages that were flushed are damaged."""
        if not self._log.files.files:
            self._queues.remove_all()
            return Recovery(self._clean, 0, 0, "", 0, 0, 0)
        start = self._clean_start() if self._clean else None
        if start is not None:
            if start == self._log.min_offset:
                self._distrust_queues()
            self.untouched = False
            recovery = self._replay_or_rebuild(start)
        else:
            self._clean = self.untouched = False
            recovery = self._recover_from(self._dirty_start())
            if recovery.last_store_timestamp < self._checkpoint.min_timestamp:
                log.warning("the checkpoint is from the future, so it vouches for nothing")
                self._distrust_queues()
                recovery = self._recover_from(self._log.min_offset)
        recovery = self._complete_queues(recovery)
        self._finish(recovery)
        return recovery

    def _complete_queues(self, recovery: Recovery) -> Recovery:
        """Rebuild queues that are shorter than the ledger notes: somebody removed, cut or replaced
        their files. The scan of the newest files does not mend a queue with no message in them.
        """
        short = self._ledger.fallen_short(self._queues, self._log.min_offset, recovery.end)
        if not short:
            return recovery
        log.warning(
            "consume queues lack messages that the log holds, rebuilding them from the whole log",
            queues=[f"{topic}/{queue_id}" for topic, queue_id in short],
        )
        for key in short:
            if self._queues.find(*key) is not None:
                self._queues.remove_queue(*key)
        self._distrust_queues()
        return self._replay(self._log.min_offset, fill_gaps=True)

    def _recover_from(self, start: int) -> Recovery:
        """Replay the log from `start`, after dropping all queue units of records from there on."""
        self._queues.truncate(start)
        return self._replay_or_rebuild(start)

    def _replay_or_rebuild(self, start: int) -> Recovery:
        try:
            return self._replay(start, fill_gaps=start <= self._log.min_offset)
        except QueueBehindError:
            log.warning("consume queues are missing or stale, rebuilding them from the whole log")
            self._distrust_queues()
            return self._replay(self._log.min_offset, fill_gaps=True)

    def _distrust_queues(self) -> None:
        """Make the checkpoint vouch for no queue unit any more.

        Rebuilt units are not on disk before the next flush, but the checkpoint may still vouch for
        older units in the same places. After a crash before that flush none may be trusted.
        """
        if self._checkpoint.logics_msg_timestamp:
            self._checkpoint.logics_msg_timestamp = 0
            self._checkpoint.flush()

    def _clean_start(self) -> int | None:
        """Return the end of the last queued record; None if the log contradicts its queues.

        Returns the start of the log if the queues are to be rebuilt or have no unit of the log.
        """
        for queue in self._queues:
            queue.recover(self._log.files.end)
        last = max(
            (unit for queue in self._queues if (unit := queue.last_message()) is not None),
            default=None,
        )
        if last is None or self._rebuild_queues or last.physical_offset < self._log.min_offset:
            return self._log.min_offset
        record = read_record(self._log.files, last.physical_offset, check_crc=True)
        if record is None or record.size != last.size:
            log.warning("the last unit of the consume queues points at no record")
            return None
        if record.store_timestamp < STORE_TIME_LIMIT_MS:
            self._last_timestamp = record.store_timestamp
        else:
            _warn_of_store_time(record.offset, record.store_timestamp)
        self._check_newest_files(last.physical_offset)
        return last.physical_offset + last.size

    def _check_newest_files(self, last: int) -> None:
        """Check the records of the last three files before the one at `last`, which is sound.

        Raises StoreCorruptError for damage, which must have come after the stop. Java's
        CommitLog.recoverNormally cuts the log off at damage instead
        (docs/internals/log-and-recovery.md).
        """
        from cometmq.store.log.batch_scan import BatchScan

        start = self._log.files.files[-_CHECKED_FILES:][0].base
        scan = BatchScan(
            self._log.files,
            start,
            check_crc=self._config.check_crc_on_recover,
            flushed_until=self._checkpoint.physic_msg_timestamp,
        )
        for _ in scan:
            if self._progress is not None:
                self._progress(min(scan.end, last) - start, last - start)
            if scan.end >= last:
                return
        if scan.end < last:
            self._raise_damage(scan.end, scan.reason, last)

    def _dirty_start(self) -> int:
        if self._rebuild_queues:
            self._distrust_queues()
        trusted = self._checkpoint.min_timestamp
        for file in reversed(self._log.files.files):
            record = read_record(self._log.files, file.base, check_crc=True)
            if record is not None and 0 < record.store_timestamp <= trusted:
                return file.base
        return self._log.min_offset

    def _replay(self, start: int, *, fill_gaps: bool) -> Recovery:
        if start >= self._log.files.end:
            return Recovery(self._clean, start, start, "", 0, 0, self._last_timestamp)
        # These modules load numpy, which takes longer than all else at the start of an empty store.
        from cometmq.store.log.batch_scan import BatchScan
        from cometmq.store.queues.batch_dispatch import BatchDispatcher

        scan = BatchScan(
            self._log.files,
            start,
            check_crc=self._config.check_crc_on_recover,
            flushed_until=self._checkpoint.physic_msg_timestamp,
        )
        dispatcher = BatchDispatcher(
            self._queues.get,
            self._delay_levels_ms,
            fill_gaps=fill_gaps,
            log_min_offset=lambda: self._log.min_offset,
            deleted=self._ledger.deleted,
            begun_anew=self._begun_anew,
        )
        total = self._log.files.end - start
        last_timestamp = self._last_timestamp
        count = 0
        for batch in scan:
            dispatcher.dispatch(batch)
            if self._unproved is None:
                late = batch.columns.store_timestamps >= self._checkpoint.physic_msg_timestamp
                if late.any():
                    self._unproved = int(batch.offsets[late.argmax()])
            last_timestamp = max(last_timestamp, self._newest_time(batch))
            count += len(batch)
            if self._progress is not None:
                self._progress(scan.end - start, total)
        if self._progress is not None:
            self._progress(total, total)
        return Recovery(
            self._clean,
            start,
            scan.end,
            scan.reason,
            count,
            dispatcher.dispatched_count,
            last_timestamp,
        )

    def _finish(self, recovery: Recovery) -> None:
        end = recovery.end
        files = self._log.files
        as_left = recovery.clean and not recovery.reason and files.files[-1].base <= end
        if not as_left:
            self._refuse_damage(recovery)
            say = log.warning if recovery.reason else log.info
            say("the commit log is cut", offset=end, reason=recovery.reason or "nothing follows")
        # Bytes that a crash left behind the end must not look like records once the log grows
        # there.
        files.truncate(end, clear=not as_left)
        if not as_left and self._unproved is not None:
            self._write_again(self._unproved, end)
        for queue in self._queues:
            last = queue.last_message()
            if last is not None:
                if last.physical_offset >= end:
                    queue.truncate(end, clear=True)
                else:
                    self.last_queued = max(self.last_queued, last.physical_offset)
            queue.correct_min_offset(self._log.min_offset)
            # A queue without messages to come needs no mappings.
            queue.release()
        self._log.start_writing_at(end, recovery.last_store_timestamp)
        files.flushed = end if as_left else recovery.start

    def _newest_time(self, batch: RecordBatch) -> int:
        times = batch.columns.store_timestamps
        newest = int(times.max())
        if newest < STORE_TIME_LIMIT_MS:
            return newest
        _warn_of_store_time(int(batch.offsets[times.argmax()]), newest)
        return int(times[times < STORE_TIME_LIMIT_MS].max(initial=0))

    def _write_again(self, start: int, end: int) -> None:
        """Write the bytes of the log from `start` to `end` in their places, for the next sync."""
        for file in self._log.files.overlapping(start, end):
            low, high = max(start - file.base, 0), min(end - file.base, file.size)
            for position in range(low, high, _WRITTEN_AT_ONCE):
                part = bytes(file.view[position : min(position + _WRITTEN_AT_ONCE, high)])
                if part.strip(b"\0"):  # a hole stays one
                    file.write(position, memoryview(part))

    def _refuse_damage(self, recovery: Recovery) -> None:
        """Raise StoreCorruptError if flushed messages follow damage: they must not be thrown away.

        Records that a crash kept from the disk look the same as damage, but were stored after the
        last flush.
        """
        flushed_until = self._checkpoint.physic_msg_timestamp
        if recovery.last_store_timestamp >= flushed_until:
            return
        later = find_record(self._log.files, recovery.end)
        damaged = self._log.files.find(recovery.end)
        if later is None or damaged is None or later.store_timestamp > flushed_until:
            return
        # The checkpoint vouches for messages older than its time, and for one message of that time,
        # which comes before all that no flush reached. If nothing comes before a hole, that one may
        # have left the log, and messages that follow in the same millisecond may never have been flushed.
        has_left = recovery.end == self._log.min_offset and not recovery.reason
        if has_left and later.store_timestamp == flushed_until:
            return
        self._raise_damage(recovery.end, recovery.reason, later.offset)

    def _raise_damage(self, offset: int, reason: str, following: int) -> NoReturn:
        damaged = self._log.files.find(offset)
        assert damaged is not None
        raise StoreCorruptError(
            f"{damaged.path} is damaged at {offset - damaged.base} (commit-log offset "
            f"{offset}: {reason or 'zeros'}), and good messages follow at "
            f"{following}: restore the file from a copy, or give up the damaged part with "
            f"cometmq store repair --write {self._config.store_path_root_dir}"
        )


def _warn_of_store_time(offset: int, timestamp: int) -> None:
    log.warning(
        "a message has a store time that no calendar has; the broker's time does not follow it",
        offset=offset,
        store_timestamp=timestamp,
    )
