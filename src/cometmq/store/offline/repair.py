"""Repair a damaged store so that a broker can start on it.

Messages that the log has lost stay lost, and the repair declares them as lost. Damaged bytes
between good records become a record that no queue and no reader sees (a rolled-back transaction); a
damaged end of a file becomes a blank record. Rebuilt queues get placeholders for the lost messages,
so every other message keeps its offset. The overwritten bytes are kept in a directory `repair-…` of
the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cometmq.errors import StoreUnusableError
from cometmq.model.sysflag import TRANSACTION_ROLLBACK
from cometmq.protocol.messages.record import MAGIC_BLANK, MIN_RECORD_SIZE, encode_record
from cometmq.protocol.messages.record_layout import HEAD
from cometmq.store.append import Clock
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.layout import check_usable
from cometmq.store.offline.check import Area, Checker, Report
from cometmq.store.offline.check_index import check_index
from cometmq.store.offline.store import LOST_TOPIC, Damage, OfflineStore, Progress, open_offline
from cometmq.store.store import MessageStore

_LOST: Final = LOST_TOPIC.encode()
_HOST: Final = bytes(8)
_WITHOUT_END_S: Final = 1e9


@dataclass
class RepairPlan:
    """The steps of a repair, in order; `texts` describes them for a person."""

    texts: list[str] = field(default_factory=list)
    short_files: list[Path] = field(default_factory=list)
    missing_files: list[Path] = field(default_factory=list)
    queue_directories: list[Path] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.texts


def check(
    config: StoreConfig,
    disk: Disk | None = None,
    progress: Callable[[str], Progress | None] = lambda _: None,
) -> tuple[OfflineStore, Report]:
    """Check a whole store; `progress(what)` gives the callback for a part of the work.

    The lock is gone on return: a broker may then open the returned store.
    """
    with open_offline(config, disk) as store:
        return store, check_open(store, progress)


def check_open(
    store: OfflineStore, progress: Callable[[str], Progress | None] = lambda _: None
) -> Report:
    report = Checker(store).run(progress("commit log and queues"))
    check_index(store, report, progress("index"))
    return report


def plan_repair(store: OfflineStore, report: Report) -> RepairPlan:
    """Plan the steps that repair what the report found.

    Raises StoreUnusableError if no repair can put the store in order.
    """
    plan = RepairPlan()
    size = store.config.mapped_file_size_commit_log
    for bad in store.bad_files:
        if bad.path.parent != store.config.commit_log_path:
            continue
        actual = store.disk.size(bad.path)
        if actual is None:
            plan.missing_files.append(bad.path)
            plan.texts.append(f"make {bad.path} again, without messages")
        elif actual < size:
            plan.short_files.append(bad.path)
            plan.texts.append(f"give {bad.path} its full size; the part that was cut off is lost")
        else:
            said = bad.reason if bad.reason.startswith("has") else f"has {bad.reason}"
            raise StoreUnusableError(
                f"{bad.path} {said}: move away anything that does not belong there"
            )
    for damage in report.damages:
        count = damage.end_position - damage.position
        what = "cut off the tail" if damage.is_tail else f"give up {count} bytes"
        plan.texts.append(f"{what} at {damage.position} of {damage.path}: {damage.reason}")
    plan.queue_directories = _damaged_queues(store, report)
    plan.texts += [f"rebuild {path} from the log" for path in plan.queue_directories]
    areas = {finding.area for finding in report.findings}
    if Area.INDEX in areas or plan.texts:
        plan.texts.append("rebuild the index from the log")
    if Area.FILES in areas:
        plan.texts.append(f"make {store.config.checkpoint_path} anew")
    return plan


def _damaged_queues(store: OfflineStore, report: Report) -> list[Path]:
    root = store.config.consume_queue_path
    paths = [found.path for found in report.findings if found.area is Area.QUEUE]
    # A finding names the queue's directory or a file in it.
    return sorted({root.joinpath(*path.relative_to(root).parts[:2]) for path in paths})


def repair(
    store: OfflineStore,
    plan: RepairPlan,
    *,
    clock: Clock,
    stamp: str,
    progress: Callable[[str], Progress | None] = lambda _: None,
) -> None:
    """Carry out `plan`; `stamp` names the directory that keeps the overwritten bytes.

    Raises StoreLockedError when a broker runs on the store, StoreUnusableError when this user may
    not write it, StoreFullError when the disk is full.
    """
    config, disk = store.config, store.disk
    check_usable(config, disk)
    lock = disk.lock(config.lock_path)
    try:
        # From here on a crash must not look like a clean stop, and no checkpoint may vouch for
        # anything.
        disk.write(config.abort_path, b"repair")
        disk.remove(config.checkpoint_path)
        disk.sync_directory(config.abort_path.parent)
        for path in plan.short_files:
            disk.allocate(path, config.mapped_file_size_commit_log)
        for path in plan.missing_files:
            _make_blank(disk, path, config.mapped_file_size_commit_log)
        _give_up_damage(
            OfflineStore(config, disk),
            config.store_path_root_dir / f"repair-{stamp}",
            progress("damaged records"),
        )
        for path in plan.queue_directories:
            disk.remove_tree(path)
    finally:
        lock.release()
    rebuild(config, disk, clock, progress("consume queues and index"))


def _make_blank(disk: Disk, path: Path, size: int) -> None:
    disk.allocate(path, size)
    disk.write_at(path, 0, memoryview(HEAD.pack(size, MAGIC_BLANK)))
    disk.sync(path)
    disk.sync_directory(path.parent)


def _give_up_damage(store: OfflineStore, kept: Path, progress: Progress | None) -> None:
    """Overwrite the damaged parts that good records follow; recovery itself cuts off the tail."""
    damages: list[Damage] = []
    for found in store.records(progress):
        if isinstance(found, Damage):
            if not found.is_tail:
                damages.append(found)
            continue
        # A damaged part gets the time of the record behind it: times in the log never go back, and
        # a part at the start of the log has no record before it.
        for damage in damages:
            _give_up(store, damage, kept, found.store_timestamp)
        damages.clear()


def _give_up(store: OfflineStore, damage: Damage, kept: Path, timestamp: int) -> None:
    disk = store.disk
    file = next(file for file in store.log_files if file.base == damage.base)
    disk.make_directory(kept)
    saved = kept / f"{damage.path.name}-{damage.position}"
    disk.write(saved, bytes(file.view[damage.position : damage.end_position]))
    size = damage.end_position - damage.position
    at_end = damage.end_position == file.size
    if at_end or size < MIN_RECORD_SIZE + len(_LOST):
        # Where no record fits, give up the rest of the file.
        filler = HEAD.pack(file.size - damage.position, MAGIC_BLANK)
    else:
        filler = encode_record(
            topic=_LOST,
            body=bytes(size - MIN_RECORD_SIZE - len(_LOST)),
            properties=b"",
            queue_id=0,
            queue_offset=0,
            physical_offset=damage.offset,
            sys_flag=TRANSACTION_ROLLBACK,
            born_timestamp=timestamp,
            born_host=_HOST,
            store_timestamp=timestamp,
            store_host=_HOST,
        )
    disk.write_at(damage.path, damage.position, memoryview(filler))
    disk.sync(damage.path)


def rebuild(config: StoreConfig, disk: Disk, clock: Clock, progress: Progress | None) -> None:
    """Open the store as after a crash, without a checkpoint, complete the index, and close it."""
    store = MessageStore(config, clock=clock, store_host=_HOST, disk=disk)
    store.open(progress)
    try:
        store.index.catch_up(store.commit_log.end, _WITHOUT_END_S)
    finally:
        store.close()
