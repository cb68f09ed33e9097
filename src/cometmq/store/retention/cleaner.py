"""Delete files that retention no longer keeps (Java: CleanCommitLogService,
CleanConsumeQueueService).

A file leaves the list of files in the store's thread, and the disk in another thread. A reader that
holds a view of the file reads on, because the view keeps the mapping and the mapping keeps the
bytes. So no file hangs because it is in use, and Java's forced release
(destroyMapedFileIntervalForcibly) has no counterpart. A file that the disk does not let go is tried
again every redeleteHangedFileInterval.

Messages that still wait in a file (delayed messages, transactions without a verdict) are copied to
the end of the log first, by the services that know of them. The file is deleted once the copies are
on disk.

Where `cleanFileWaitsForGroups` names groups, each run first looks for messages that they have not marked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.errors import StoreBusyError, StoreError, StoreFullError
from cometmq.logs.loggers import get_logger
from cometmq.store.append import Clock
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_table import QueueTable
from cometmq.store.refusals import RefusalCause, Refusals
from cometmq.store.retention.marks import MarksOf, Search
from cometmq.store.retention.retention import Disks, Hold, LogFile, Plan, Policy, plan, surprises

log = get_logger(__name__)

# Java: MAX_MANUAL_DELETE_FILE_TIMES.
_MANUAL_RUNS: Final = 20
# Records copied out of one file in one run. On a full disk that holds little but waiting messages,
# copying makes no room, and must not take all of the disk's time.
_COPIES_PER_FILE: Final = 200_000
# After this many queues, or so long, the thread that owns the store may do something else. A queue
# that is not mapped has to be mapped for a look at its units, which takes 100 µs.
_QUEUES_AT_ONCE: Final = 100
_QUEUES_S: Final = 0.0005
_CODE_UNAVAILABLE: Final = 14
_NO_LOOK: Final = Hold(0, "the marked messages have not been looked at yet")


class Work(NamedTuple):
    """Names work that blocks and may be done in any thread, `pause_ms` after the work before it."""

    do: Callable[[], object]
    pause_ms: int = 0


def in_parts(
    queues: Iterable[ConsumeQueue],
    see_to: Callable[[ConsumeQueue], Iterator[Work]],
    monotonic: Callable[[], float],
) -> Iterator[Work]:
    """Yield the work that each queue needs, and work that does nothing where the store's thread should
    do something else.

    Where time is virtual it does not pass meanwhile; there the number of queues alone bounds a part.
    """
    count = 0
    until_s = monotonic() + _QUEUES_S
    for queue in queues:
        yield from see_to(queue)
        count += 1
        if count == _QUEUES_AT_ONCE or monotonic() >= until_s:
            yield Work(lambda: None)
            count = 0
            until_s = monotonic() + _QUEUES_S


def plan_for(
    files: Sequence[MappedFile],
    config: StoreConfig,
    disk: Disk,
    now_ms: int,
    *,
    manual: bool = False,
    hold: Hold | None = None,
) -> Plan:
    """Call `plan` for a commit log's files and the state of their disk. Blocks; for any thread."""
    return plan(
        now_ms,
        [LogFile(file.base, file.size, disk.modified_ms(file.path)) for file in files],
        Disks(
            disk.usage(config.commit_log_path).used_ratio,
            disk.usage(config.store_path_root_dir).used_ratio,
        ),
        Policy.of(config),
        manual=manual,
        hold=hold,
    )


class Cleaner:
    """Cleans one store. For the store's thread.

    The functions in `on_trimmed` are called with the log's new first offset when it has moved. They
    are for services that keep something about the log's records.

    The functions in `on_expiring` are called before a file is deleted, with the offset of its end. Each
    copies some of the records below that offset that it still needs, and returns how many, 0 when it
    needs none. If one raises StoreError, the file stays for this run.

    `marks_of` returns the offsets of a group. `unmarked_counts` counts the files that were deleted
    with messages that waited for a mark: on a full disk, and after cleanFileWaitMaxHours.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        config: StoreConfig,
        *,
        disk: Disk,
        clock: Clock,
        refusals: Refusals,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._config = config
        self._disk = disk
        self._clock = clock
        self._refusals = refusals
        self._manual_runs = 0
        # Nothing has left a log that begins at 0.
        self._trimmed_to = 0
        self._hanging: deque[tuple[Path, ConsumeQueue | None]] = deque()
        self._retry_at_s = 0.0
        self.on_trimmed: list[Callable[[int], Iterator[Work]]] = []
        self.on_expiring: list[Callable[[int], int]] = []
        # Called in any thread with the offset at which the log will begin, before its first file is
        # deleted.
        self.before_delete: Callable[[int], None] = lambda _: None
        self.marks_of: MarksOf = lambda _group: {}
        self.unmarked_counts = {"disk": 0, "age": 0}
        # How long the oldest file had waited for a mark in the last run.
        self.waited_ms = 0
        self._hold: Hold | None = _NO_LOOK
        # Pairs of offsets. Once the log is on disk up to the second one, the records in front of
        # the first one are not needed any more: the log then has copies of those that wait, and the
        # records by which the others are done.
        self._settled: deque[tuple[int, int]] = deque()

    @property
    def _policy(self) -> Policy:
        # Settings may change under a running broker.
        return Policy.of(self._config)

    def say_surprises(self) -> None:
        """Log which settings do not do what their values say."""
        for text in surprises(self._config):
            log.warning("a setting of retention", reason=text)

    def delete_manually(self) -> None:
        """Delete what has expired in the next 20 runs, whatever the hour."""
        self._manual_runs = _MANUAL_RUNS

    def explain(self) -> Plan:
        """Return what a run would do now, and each file's fate. Blocks; for any thread."""
        return self._plan(everything=True)

    def run(self) -> Generator[Work, None, None]:
        """One run. Do each piece of work before asking for the next one."""
        found: list[Plan] = []
        yield from self._look_for_marks()
        yield Work(lambda: found.append(self._plan(everything=False)))
        self._begin(found[0])
        yield from self._retry_hanging()
        yield from self._settle(found[0].removals)
        for file in found[0].removals:
            if not self._hanging:
                yield from self._delete_first(file, found[0])
        if self._hanging:
            # A restart would find the hanging file again, so units and index entries of its
            # messages must stay, too.
            return
        if self._trimmed_to != self._log.min_offset:
            yield from self._trim(self._log.min_offset)

    def _plan(self, *, everything: bool) -> Plan:
        # A copy: this may be another thread than the one that adds and drops files.
        files = tuple(self._log.files.files)
        if not everything:
            files = files[: self._policy.batch_max + 1]
        now = self._clock.now_ms()
        hold = self._hold if self._config.waited_groups else None
        return plan_for(
            files, self._config, self._disk, now, manual=self._manual_runs > 0, hold=hold
        )

    def _look_for_marks(self) -> Iterator[Work]:
        """Find what waits for a mark. Units are read beside the store's thread: those of messages
        that wait for long lie on the disk only.
        """
        if not (groups := self._config.waited_groups):
            self._hold = _NO_LOOK
            return
        search = Search(groups, self.marks_of, self._disk)
        for found in search.unmarked(self._queues):
            yield Work(partial(search.look, found))
        self._hold = search.hold

    def _begin(self, found: Plan) -> None:
        self.waited_ms = found.waited_ms
        if self._manual_runs:
            self._manual_runs -= 1
        if found.full is True:
            self._refuse(found)
        elif found.full is False and self._refusals.is_set(RefusalCause.DISK_FULL):
            log.info("the disk has room again", used=f"{found.disks.worst:.1%}")
            self._refusals.lift(RefusalCause.DISK_FULL)
        if not found.removals and found.disks.worst > self._policy.max_used_ratio:
            log.warning(
                "the disk gets full and nothing may be deleted",
                used=f"{found.disks.worst:.1%}",
                why=found.verdicts[0].reason if found.verdicts else "there is no file",
            )

    def _refuse(self, found: Plan) -> None:
        text = (
            f"the disk of {self._config.store_path_root_dir} is {found.disks.worst:.1%} full, "
            f"the limit is {self._policy.warning_ratio:.0%} (diskSpaceWarningLevelRatio): no "
            f"messages are taken until it is below {self._policy.forcibly_ratio:.0%}; free space "
            f"there or shorten fileReservedTime, which is {self._policy.reserved_hours} hours"
        )
        if not self._refusals.is_set(RefusalCause.DISK_FULL):
            log.error("the disk is full", reason=text)
        self._refusals.set(RefusalCause.DISK_FULL, StoreFullError(text, code=_CODE_UNAVAILABLE))

    def _delete_first(self, file: LogFile, found: Plan) -> Iterator[Work]:
        files = self._log.files
        end = file.base + file.size
        # With the transient store pool the file or the queues may not have its records yet. And if
        # the disk does not let the file go, a crash must not leave it half written.
        if files.min_offset != file.base or end > min(self._log.dispatched_end, files.flushed):
            return
        # Somebody may have deleted the file by hand meanwhile; and the newest file stays.
        if len(files.files) < 2 or not self._is_settled(end):
            return
        path = files.detach_first()
        if found.goes_early(file):
            log.error(
                "messages are deleted before their time, whether or not they are consumed",
                path=str(path),
                age=str(timedelta(seconds=(found.now_ms - file.modified_ms) // 1000)),
                file_reserved_time=f"{found.policy.reserved_hours} h",
                why=found.trigger,
                rule=found.policy.forced_rule,
                remedy="free space on this disk, or set cleanFileForciblyEnable=false to refuse "
                "messages instead of deleting them",
            )
        else:
            log.info("a file of the commit log is deleted", path=str(path), why=found.trigger)
        if found.is_unmarked(file):
            self._log_unmarked(path, file, found)
        pause = self._config.delete_commit_log_files_interval
        yield Work(partial(self._delete, path), pause)

    def _log_unmarked(self, path: Path, file: LogFile, found: Plan) -> None:
        assert found.hold is not None, "something waits for a mark"
        lapsed = found.policy.lapses_ms(file) <= found.now_ms
        self.unmarked_counts["age" if lapsed else "disk"] += 1
        rule = f"cleanFileWaitMaxHours={found.policy.wait_hours}"
        log.error(
            "messages are deleted before a group has marked them",
            path=str(path),
            waits=found.hold.reason,
            why=f"they waited for {found.policy.wait_hours} h ({rule})"
            if lapsed
            else found.trigger,
            remedy="see why the group does not go on, and free space or raise cleanFileWaitMaxHours; "
            "or take the group out of cleanFileWaitsForGroups",
        )

    def _settle(self, removals: Sequence[LogFile]) -> Iterator[Work]:
        """Have those records of the files copied that somebody still needs."""
        while self._settled and self._settled[0][0] <= self._log.min_offset:
            self._settled.popleft()
        for file in removals if self.on_expiring else ():
            end = file.base + file.size
            if self._settled and end <= self._settled[-1][0]:
                continue
            try:
                yield from self._copy_what_waits(end)
            except StoreError as error:
                log.warning(
                    "a file stays, since the messages that wait in it are not copied",
                    reason=str(error),
                )
                return
            self._settled.append((end, self._log.end))

    def _is_settled(self, end: int) -> bool:
        if not self.on_expiring:
            return True
        flushed = self._log.files.flushed
        return any(below >= end and needed <= flushed for below, needed in self._settled)

    def _copy_what_waits(self, end: int) -> Iterator[Work]:
        """Copy all that waits below `end`. Raises StoreError when the store takes no copies."""
        total = 0
        for copy_some in self.on_expiring:
            while count := self._admitted(lambda copy_some=copy_some: copy_some(end)):  # type: ignore[misc]  # mypy infers no lambda with a default
                total += count
                if total >= _COPIES_PER_FILE:
                    raise StoreBusyError(f"{total} records were looked at, the next run goes on")
                yield Work(lambda: None)
        if total:
            log.info("the messages that wait in a file to be deleted are copied", below=end)

    def _admitted(self, copy_some: Callable[[], int]) -> int:
        """Call `copy_some` even if the disk counts as full: these copies make room."""
        full = self._refusals.error(RefusalCause.DISK_FULL)
        if full is None:
            return copy_some()
        self._refusals.lift(RefusalCause.DISK_FULL)
        try:
            return copy_some()
        finally:
            self._refusals.set(RefusalCause.DISK_FULL, full)

    def _delete(self, path: Path, queue: ConsumeQueue | None = None) -> None:
        """Delete a file that was detached, from `queue` or else from the log."""
        if queue is not None and not self._is_there(queue):
            # The code that removed the queue removes its files. A file of this name may be the first one
            # of a queue that was made since.
            return
        try:
            if queue is None:
                self.before_delete(int(path.name) + self._log.file_size)
            self._disk.remove(path)
            # Files leave the disk in this order too: a missing file in the middle would stop the
            # next start.
            self._disk.sync_directory(path.parent)
        except StoreError as error:
            log.warning("a file cannot be deleted, it is tried again later", reason=str(error))
            if (path, queue) not in self._hanging:
                self._hanging.append((path, queue))
                pause_s = self._config.redelete_hanged_file_interval / 1000
                self._retry_at_s = self._clock.monotonic() + pause_s
        else:
            log.debug("deleted", path=str(path))

    def _retry_hanging(self) -> Iterator[Work]:
        """Try again to delete files that hang. Until they are gone no newer file is deleted."""
        if not self._hanging or self._clock.monotonic() < self._retry_at_s:
            return
        tried, self._hanging = self._hanging, deque()
        for path, queue in tried:
            yield Work(partial(self._delete, path, queue))

    def _trim(self, log_min_offset: int) -> Iterator[Work]:
        """Drop entries of messages that the log no longer holds from consume queues, and have
        `on_trimmed` drop its own.
        """
        self._trimmed_to = log_min_offset
        yield from in_parts(
            self._queues,
            lambda queue: self._trim_queue(queue, log_min_offset),
            self._clock.monotonic,
        )
        for trimmed in self.on_trimmed:
            yield from trimmed(log_min_offset)

    def _trim_queue(self, queue: ConsumeQueue, log_min_offset: int) -> Iterator[Work]:
        pause = self._config.delete_consume_queue_files_interval
        while (
            not self._hanging
            and self._is_there(queue)
            and queue.first_file_has_left(log_min_offset)
        ):
            path = queue.files.detach_first()
            # At once, so that nobody looks for the units of the file.
            queue.min_offset = max(queue.min_offset, queue.first_offset)
            yield Work(partial(self._delete, path, queue), pause)
        if self._is_there(queue):
            queue.correct_min_offset(log_min_offset)
            if queue.is_idle:
                queue.release()

    def _is_there(self, queue: ConsumeQueue) -> bool:
        """Say whether the queue is there: it may be removed between two pieces of work. For any
        thread.
        """
        return self._queues.find(queue.topic, queue.queue_id) is queue

    def has_lost_all(self, queue: ConsumeQueue) -> bool:
        """Say whether a queue had messages, which all left the log.

        While a file hangs, none has: a restart finds the file again. If the queue had begun again by
        then, a rebuild would take the old messages for its new ones.
        """
        if self._hanging or queue.last_message() is None:
            return False
        return queue.all_have_left(self._log.min_offset)
