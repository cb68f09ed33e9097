"""Cut off the end of a log that has diverged from its master's, and keep the part that is cut off.

A slave refuses to copy a log that does not continue its own (`replication/divergence.py`). To mend
that, the records that its master does not have go into a directory `rejoin-OFFSET` beside the
commit log, where OFFSET is the end of the part that both logs have. It has the form of a store, so
that `cometmq store dump` shows the messages. The store then ends at OFFSET, and its next start goes
on from there.

Each step can be repeated: when the process is killed, run it again. Files leave the log newest
first, so at any time the log has no gap, and the abort file makes a start in between recover.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from cometmq.errors import StoreError, StoreUnusableError
from cometmq.protocol.messages.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from cometmq.protocol.messages.record_columns import Ints
from cometmq.protocol.messages.record_layout import HEAD, HEAD_SIZE, record_struct
from cometmq.store.append import Clock
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.layout import check_usable
from cometmq.store.log.scan import ScannedRecord, check_record
from cometmq.store.offline.repair import rebuild
from cometmq.store.offline.slice import LEAST_FILLER, fillers
from cometmq.store.offline.store import OfflineStore, Progress
from cometmq.store.queues.queue_ledger import QueueLedger
from cometmq.store.reading.layout import is_file_name

_GLANCE: Final = record_struct("size", "magic", "physical_offset")
_CHUNK: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK)
_NOTE: Final = "rejoin.json"
# State files of the broker that say how far in the log they are true, and their former versions.
_STATES: Final = ("delayOffset.json", "redrives.json")
_POSITION: Final = "commitLogOffset"
# Records are counted in so many files at most: a file of 1 GiB takes a second.
_COUNTED_FILES: Final = 4
_MOST_PLACES: Final = 100

ProgressOf = Callable[[str], Progress | None]


class OwnLog:
    """Knows where the records of a stopped store begin, by their heads.

    `end` is the offset behind the last record, or behind the blank that ends its file. Only the
    starts of one file at a time are kept: up to 8 bytes for each record.
    """

    def __init__(self, store: OfflineStore) -> None:
        faults = [bad for bad in store.bad_files if bad.path.parent == store.config.commit_log_path]
        # A kill while a file is made, or cut, leaves the last one short: a start makes it whole.
        size = store.config.mapped_file_size_commit_log
        last = store.log_files[-1].end if store.log_files else None
        for bad in faults:
            is_next = bad.path.name.isdecimal() and int(bad.path.name) == last
            if not is_next or (store.disk.size(bad.path) or 0) > size:
                raise StoreUnusableError(
                    f"{bad.path}: {bad.reason}; mend this first, with cometmq store repair"
                )
        self.files = store.log_files
        self._of: MappedFile | None = None
        self._starts: Ints = np.empty(0, np.int64)
        self.end = 0
        # Offset of the last record, and of the blank behind it; -1 if there is none.
        self.last = self.blank = -1
        while self.files and self.first(self.files[-1]) < 0:
            self.files.pop()
        if self.files:
            starts = self.starts(self.files[-1])
            view, base = self.files[-1].view, self.files[-1].base
            self.last = int(starts[-1])
            at = self.last - base
            at += int(HEAD.unpack_from(view, at)[0])
            self.end = base + at
            if at + HEAD_SIZE <= len(view) and HEAD.unpack_from(view, at)[1] == MAGIC_BLANK:
                self.blank, self.end = self.end, base + len(view)

    @property
    def begin(self) -> int:
        """Offset of the first byte."""
        return self.files[0].base if self.files else 0

    def starts(self, file: MappedFile) -> Ints:
        """Return the commit-log offsets of a file's records, up to the first that is none."""
        if self._of is not file:
            self._of = file
            self._starts = np.fromiter(_walk(file), np.int64)
        return self._starts

    def first(self, file: MappedFile) -> int:
        """Return the offset of a file's first record; -1 if none begins with the file."""
        return next(_walk(file), -1)

    def record(self, file: MappedFile, offset: int) -> memoryview:
        """Return the bytes of a record of a file."""
        at = offset - file.base
        (size, _) = HEAD.unpack_from(file.view, at)
        return file.view[at : at + size]


def _walk(file: MappedFile) -> Iterator[int]:
    view, base, at = file.view, file.base, 0
    last = len(view) - _GLANCE.size
    while at <= last:
        size, magic, place = _GLANCE.unpack_from(view, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or place != base + at or size < MIN_RECORD_SIZE:
            return
        if at + size > len(view):
            return
        yield place
        at += size


@dataclass
class RejoinPlan:
    """Describes the part that is cut off: all from `cut` to `own_end`. `kept` is the directory that
    gets it.

    `common` is the offset of the last record that both logs have, -1 if there is none.
    `record_count` is None where counting would take long.
    """

    config: StoreConfig
    common: int
    cut: int
    own_end: int
    kept: Path
    record_count: int | None = 0
    files: list[Path] = field(default_factory=list)
    states: list[Path] = field(default_factory=list)
    common_timestamp: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is cut off."""
        return self.cut >= self.own_end

    @property
    def cut_bytes(self) -> int:
        return self.own_end - self.cut


def plan_rejoin(store: OfflineStore, log: OwnLog, common: int, *, whole: bool) -> RejoinPlan:
    """Plan what to do when `common` is the offset of the last record that both logs have, -1 if the
    master has none of ours. With `whole` it has all of them, and a blank behind the last.

    Raises StoreUnusableError if the log is damaged there.
    """
    config = store.config
    cut, timestamp = log.begin, 0
    if common >= 0:
        file = next(file for file in log.files if file.base <= common < file.end)
        found = check_record(file.view, common - file.base, common, check_crc=True)
        if not isinstance(found, ScannedRecord):
            raise StoreUnusableError(f"{file.path} is damaged at {common - file.base}")
        cut, timestamp = common + found.size, found.store_timestamp
    if whole:
        return RejoinPlan(config, common, log.end, log.end, config.commit_log_path.parent)
    plan = RejoinPlan(config, common, cut, log.end, Path(), common_timestamp=timestamp)
    ours = [file for file in log.files if file.end > cut]
    plan.files = [file.path for file in ours]
    plan.record_count = None
    if len(ours) <= _COUNTED_FILES:
        plan.record_count = sum(int((log.starts(file) >= cut).sum()) for file in ours)
    plan.states = [
        path for path in _states(config, store.disk) if _is_beyond(store.disk, path, cut)
    ]
    plan.kept = _place_for(store.disk, plan, ours)
    return plan


def _place_for(disk: Disk, plan: RejoinPlan, files: list[MappedFile]) -> Path:
    """Return the directory for the part that is cut off: a new one, or that of a run that did not
    end.
    """
    parent = plan.config.commit_log_path.parent
    for number in range(1, _MOST_PLACES):
        place = parent / (f"rejoin-{plan.cut:020d}" + (f"-{number}" if number > 1 else ""))
        if all(_may_go_to(disk, file, place / "commitlog", plan.cut) for file in files):
            return place
    raise StoreUnusableError(
        f"{parent} has {_MOST_PLACES} directories rejoin-{plan.cut:020d}-…: move some of them away"
    )


def _may_go_to(disk: Disk, file: MappedFile, directory: Path, cut: int) -> bool:
    path = directory / file.path.name
    if disk.size(path) is None:
        return True
    if file.base >= cut:
        return False
    # A former run has copied the part of this file.
    copy = MappedFile(disk, path, file.base, file.size, writable=False)
    start = cut - file.base
    same = all(
        file.view[at : at + _CHUNK] == copy.view[at : at + _CHUNK]
        for at in range(start, file.size, _CHUNK)
    )
    copy.release()
    return same


def _states(config: StoreConfig, disk: Disk) -> Iterator[Path]:
    directory = config.store_path_root_dir / "config"
    for name in disk.names(directory):
        if name.removesuffix(".bak") in _STATES:
            yield directory / name


def _is_beyond(disk: Disk, path: Path, cut: int) -> bool:
    """Say whether a state file refers to the log behind `cut`, or cannot be read."""
    try:
        return _largest_position(json.loads(disk.read(path))) > cut
    except ValueError:
        return True


def _largest_position(value: Any) -> int:
    found = -1
    values = value if isinstance(value, list) else []
    if isinstance(value, dict):
        position = value.get(_POSITION)
        if isinstance(position, int):
            found = position
        values = list(value.values())
    return max([found, *map(_largest_position, values)])


def rejoin(
    plan: RejoinPlan,
    disk: Disk,
    *,
    clock: Clock,
    master: str,
    progress: ProgressOf = lambda _: None,
) -> None:
    """Carry out a plan that is not empty; `master` is noted beside the kept records.

    Raises StoreLockedError when a broker runs on the store, StoreError when the plan was made for
    another log, StoreFullError when there is no room for the part of a file that is kept. All of it
    can be repeated.
    """
    config = plan.config
    check_usable(config, disk)
    lock = disk.lock(config.lock_path)
    try:
        log = OwnLog(OfflineStore(config, disk))
        files = [file.path for file in log.files if file.end > plan.cut]
        if (log.end, files) != (plan.own_end, plan.files):
            raise StoreError(
                f"{config.commit_log_path} has changed since it was looked at: run the command again"
            )
        # From here on a crash must not look like a clean stop.
        disk.write(config.abort_path, b"rejoin")
        disk.sync_directory(config.abort_path.parent)
        _lower_checkpoint(config, disk, plan)
        _forget_deletions(config, disk, plan.cut)
        _note(plan, disk, master)
        _keep_states(plan, disk)
        _keep_log(plan, log, disk, progress("the part that is cut off"))
    finally:
        lock.release()
    rebuild(config, disk, clock, progress("consume queues and index"))


def _lower_checkpoint(config: StoreConfig, disk: Disk, plan: RejoinPlan) -> None:
    """Let the checkpoint vouch for nothing behind the cut: a recovery would read all of the log."""
    checkpoint = Checkpoint(disk, config.checkpoint_path)
    checkpoint.read()
    newest = plan.common_timestamp
    if _deletions_behind(config, disk, plan.cut)[1]:
        # The queues of these topics are built from all of the log.
        newest = 0
    checkpoint.physic_msg_timestamp = min(checkpoint.physic_msg_timestamp, newest)
    checkpoint.logics_msg_timestamp = min(checkpoint.logics_msg_timestamp, newest)
    checkpoint.index_msg_timestamp = min(checkpoint.index_msg_timestamp, newest)
    if plan.cut <= (checkpoint.log_begins or 0):
        checkpoint.log_begins = None  # nothing is left
    checkpoint.master_flushed_offset = min(checkpoint.master_flushed_offset, plan.cut)
    checkpoint.confirm_physical_offset = min(checkpoint.confirm_physical_offset, plan.cut)
    checkpoint.flush()


def _deletions_behind(
    config: StoreConfig, disk: Disk, cut: int
) -> tuple[QueueLedger, dict[str, int]]:
    """Return the ledger, and which topics were deleted behind the cut: the master has them still."""
    ledger = QueueLedger(disk, config.ledger_path)
    ledger.load()
    return ledger, {topic: end for topic, end in ledger.deleted.items() if end > cut}


def _forget_deletions(config: StoreConfig, disk: Disk, cut: int) -> None:
    ledger, behind = _deletions_behind(config, disk, cut)
    if behind:
        ledger.deleted = {
            topic: end for topic, end in ledger.deleted.items() if topic not in behind
        }
        ledger.save()


def _note(plan: RejoinPlan, disk: Disk, master: str) -> None:
    disk.make_directory(plan.kept / "commitlog")
    note = {"from": plan.cut, "to": plan.own_end, "records": plan.record_count, "master": master}
    path = plan.kept / _NOTE
    if disk.size(path) is None:
        disk.write(path, json.dumps(note).encode())
        disk.sync_directory(plan.kept)


def _keep_states(plan: RejoinPlan, disk: Disk) -> None:
    directory = plan.kept / "config"
    if plan.states:
        disk.make_directory(directory)
    for path in plan.states:
        _move(disk, path, directory / path.name)


def _keep_log(plan: RejoinPlan, log: OwnLog, disk: Disk, progress: Progress | None) -> None:
    directory = plan.kept / "commitlog"
    files = [file for file in log.files if file.end > plan.cut]
    first = files[0] if files and files[0].base < plan.cut else None
    if first is not None:
        _copy_part(disk, first, plan.cut - first.base, directory, plan, progress)
    names = [name for name in disk.names(plan.config.commit_log_path) if is_file_name(name)]
    for name in sorted(names, reverse=True):
        if int(name) < plan.cut:
            break
        path = plan.config.commit_log_path / name
        if _has_bytes(disk, path):
            _move(disk, path, directory / name)
        else:
            # It was made ahead of need.
            disk.remove(path)
            disk.sync_directory(path.parent)
    if first is not None:
        first.release()
        disk.cut(first.path, plan.cut - first.base, first.size, reserve=True)


def _has_bytes(disk: Disk, path: Path) -> bool:
    """Say whether anything was written to a file. Its beginning alone does not tell: a power loss may
    have kept just that from the disk.
    """
    part = bytearray(_CHUNK)
    for at in range(0, disk.size(path) or 0, _CHUNK):
        count = disk.read_into(path, at, memoryview(part))
        if part[:count] != _ZEROS[:count]:
            return True
    return False


def _copy_part(
    disk: Disk,
    file: MappedFile,
    start: int,
    directory: Path,
    plan: RejoinPlan,
    progress: Progress | None,
) -> None:
    """Copy a part of a file to a file of the same name and size, unless a former run has done so.

    Records that nobody sees stand in front of the part, as in a slice, where they have room.
    """
    path = directory / file.path.name
    if disk.size(path) is not None:
        return
    temporary = path.with_suffix(".tmp")
    disk.allocate(temporary, file.size, reserved=1)
    if start < LEAST_FILLER:
        start = 0
    for at, data in fillers(file.base, start, plan.common_timestamp):
        disk.write_at(temporary, at, memoryview(data))
    # To the end of the file: behind damage there may be records that nobody has found.
    for at in range(start, file.size, _CHUNK):
        end = min(at + _CHUNK, file.size)
        if file.view[at:end] != _ZEROS[: end - at]:
            disk.write_at(temporary, at, file.view[at:end])
        if progress is not None:
            progress(end - start, file.size - start)
    disk.sync(temporary)
    disk.rename(temporary, path)
    disk.sync_directory(directory)


def _move(disk: Disk, source: Path, target: Path) -> None:
    """Move a file, also to another file system; a crash leaves it at one of the two places."""
    try:
        disk.rename(source, target)
    except StoreError as error:
        if getattr(error.__cause__, "errno", None) != errno.EXDEV:
            raise
        temporary = target.with_suffix(".tmp")
        size = disk.size(source) or 0
        disk.allocate(temporary, size, reserved=1)
        part = bytearray(_CHUNK)
        for at in range(0, size, _CHUNK):
            chunk = memoryview(part)[: min(_CHUNK, size - at)]
            disk.read_into(source, at, chunk)
            if chunk != _ZEROS[: len(chunk)]:
                disk.write_at(temporary, at, chunk)
        disk.sync(temporary)
        disk.rename(temporary, target)
        disk.sync_directory(target.parent)
        disk.remove(source)
    disk.sync_directory(target.parent)
    disk.sync_directory(source.parent)
