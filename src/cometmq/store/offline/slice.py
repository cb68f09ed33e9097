"""Copy a part of a store into a directory of its own, from which a broker can start.

A slice has the records of one contiguous part of the log, and the files that belong to them: the
consume queues and the index, built again from those records, and the state files. Offsets stay what
they were, in the log and in the queues. The bytes in front of the slice's first record become
records that no queue and no reader sees, as after a repair of lost bytes; they take no room on the
disk.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from cometmq.errors import ConfigError, StoreError, StoreUnusableError
from cometmq.model.sysflag import TRANSACTION_ROLLBACK
from cometmq.protocol.messages.record import MIN_RECORD_SIZE, encode_record
from cometmq.protocol.messages.record_layout import BODY_AT
from cometmq.store.append import Clock
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.log.scan import ScannedRecord, check_record
from cometmq.store.offline.repair import check
from cometmq.store.offline.store import LOST_TOPIC, Damage, OfflineStore, Progress
from cometmq.store.queues.queue_ledger import QueueLedger
from cometmq.store.reading.units import UNIT_DTYPE, Units, is_message
from cometmq.store.store import MessageStore

_LOST: Final = LOST_TOPIC.encode()
LEAST_FILLER: Final = MIN_RECORD_SIZE + len(_LOST)
_FILLER: Final = 1 << 20
_CHUNK: Final = 1 << 16
_ZEROS: Final = bytes(_CHUNK)
_HOST: Final = bytes(8)
_WITHOUT_END_S: Final = 1e9
_MOST_NAMES: Final = 10

ProgressOf = Callable[[str], Progress | None]


@dataclass(frozen=True)
class Selection:
    """Says which records are wanted: all that begin in a part of the log, and with a topic or times
    the part from the first to the last of these messages. Ends are not included.
    """

    first_offset: int = 0
    end_offset: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    begin_ms: int | None = None
    end_ms: int | None = None

    @property
    def is_of_queues(self) -> bool:
        return self.topic is not None or self.begin_ms is not None or self.end_ms is not None


@dataclass
class SlicedQueue:
    topic: str
    queue_id: int
    first_offset: int
    end_offset: int
    message_count: int = 0


@dataclass
class Slice:
    """Says what a slice has. `idle_queues` are those that have offsets but no message in it."""

    config: StoreConfig
    first_offset: int
    end_offset: int
    record_count: int = 0
    first_timestamp: int = 0
    last_timestamp: int = 0
    queues: dict[tuple[str, int], SlicedQueue] = field(default_factory=dict)
    idle_queues: list[tuple[str, int]] = field(default_factory=list)
    state_files: list[str] = field(default_factory=list)

    def take(self, record: ScannedRecord) -> None:
        if not self.record_count:
            self.first_offset, self.first_timestamp = record.offset, record.store_timestamp
        self.record_count += 1
        self.end_offset = record.offset + record.size
        self.last_timestamp = record.store_timestamp


def make_slice(
    store: OfflineStore,
    target: Path,
    selection: Selection,
    *,
    clock: Clock,
    disk: Disk | None = None,
    progress: ProgressOf = lambda _: None,
) -> Slice:
    """Copy what `selection` names to the directory `target` on `disk`, which must be empty or new.

    The source is only read. Raises ConfigError for a selection without records and for a target
    that cannot be one, StoreUnusableError for damage in the part, StoreFullError and StoreError; the
    target is then as before.
    """
    disk = disk or Disk()
    _check_target(store, target, disk)
    found = _find(store, selection, progress("commit log"))
    config = dataclasses.replace(
        store.config,
        store_path_root_dir=target,
        store_path_commit_log=None,
        transient_store_pool_enable=False,
    )
    made = dataclasses.replace(found, config=config)
    was_there = disk.owner(target) is not None
    try:
        _copy_log(store, made, disk, progress("copy"))
        _copy_idle_queues(store, made, disk)
        _copy_state(store, made, disk)
        _complete(made, disk, clock, progress)
    except BaseException:
        disk.remove_tree(target)
        if was_there:
            disk.make_directory(target)
        raise
    return made


# The wanted records


def _check_target(store: OfflineStore, target: Path, disk: Disk) -> None:
    place = target.resolve()
    for directory in (store.config.store_path_root_dir, store.config.commit_log_path):
        source = directory.resolve()
        if place == source or source in place.parents or place in source.parents:
            raise ConfigError(
                f"{target} and the store {source} lie in each other: name another directory"
            )
    reason = disk.access_fault(target, write=True)
    if reason is not None:
        raise StoreUnusableError(reason)
    if disk.names(target):
        raise ConfigError(
            f"{target} is not empty, it has {disk.names(target)[0]}: name a directory that is new "
            "or empty"
        )


def _find(store: OfflineStore, selection: Selection, progress: Progress | None) -> Slice:
    """Return the part of the log, with its records checked and counted."""
    first, end = selection.first_offset, selection.end_offset
    if selection.is_of_queues and (first or end is not None):
        raise ConfigError("name offsets of the log, or a topic and times, not both")
    if selection.queue_id is not None and selection.topic is None:
        raise ConfigError(f"queue {selection.queue_id} is of no topic: name the topic, too")
    if end is not None and end <= first:
        raise ConfigError(
            f"the part from {first} to {end} is empty: give an end behind its beginning"
        )
    if selection.is_of_queues:
        first, end = _of_queues(store, selection)
    size = store.config.mapped_file_size_commit_log
    files = [file for file in store.log_files if file.end > first]
    if end is not None:
        files = [file for file in files if file.base < end]
    _check_whole(files)
    # In front of the first record there is nothing, or room for a filler.
    least = (first - first % size) + LEAST_FILLER
    found = Slice(store.config, first, first)
    part = OfflineStore(store.config, store.disk)
    part.log_files = files
    for record in part.records(progress):
        if end is not None and record.offset >= end:
            continue
        if isinstance(record, Damage):
            if record.base + record.end_position > first and not record.is_tail:
                raise StoreUnusableError(
                    f"{record.path} is damaged at {record.position}: {record.reason}. Run cometmq "
                    f"store repair on a copy first, or choose a part without offset {record.offset}"
                )
            continue
        if record.offset >= first or first < least:
            found.take(record)
    if not found.record_count:
        log_end = store.log_files[-1].end if store.log_files else 0
        raise ConfigError(
            f"no record begins in the log from {first} to {'its end' if end is None else end}: the "
            f"files have the offsets from {store.min_offset} to {log_end}"
        )
    return found


def _check_whole(files: list[MappedFile]) -> None:
    """Raise StoreUnusableError if a file of the log is missing between others of the part."""
    for before, after in pairwise(files):
        if before.end != after.base:
            raise StoreUnusableError(
                f"the log has no file for the offsets from {before.end} to {after.base}, behind "
                f"{before.path}: bring the file back, or choose a part on one side of the gap, with "
                f"--to {before.end} or --from {after.base}"
            )


def _of_queues(store: OfflineStore, selection: Selection) -> tuple[int, int]:
    """Return the part of the log from the first to the last of the messages that are wanted."""
    parts = []
    names = set()
    for topic, queue_id, files in store.queue_files():
        names.add(topic)
        if selection.topic not in (None, topic) or selection.queue_id not in (None, queue_id):
            continue
        for file in files:
            units = _messages(file)
            units = units[units["physical_offset"] >= store.min_offset]
            low, high = 0, len(units)
            if selection.begin_ms is not None:
                low = _position(store, units, selection.begin_ms)
            if selection.end_ms is not None:
                high = _position(store, units, selection.end_ms)
            if low < high:
                last = units[high - 1]
                end = int(last["physical_offset"]) + int(last["size"])
                parts.append((int(units[low]["physical_offset"]), end))
            file.release()
    if selection.topic is not None and selection.topic not in names:
        some = ", ".join(sorted(names)[:_MOST_NAMES])
        raise ConfigError(f"the store has no topic {selection.topic}; it has {some or 'none'}")
    if not parts:
        raise ConfigError(
            f"no message is {_described(selection)}: see cometmq store stats --queues"
        )
    return min(low for low, _ in parts), max(high for _, high in parts)


def _described(selection: Selection) -> str:
    texts = [] if selection.topic is None else [f"of topic {selection.topic}"]
    if selection.queue_id is not None:
        texts.append(f"in queue {selection.queue_id}")
    if selection.begin_ms is not None:
        texts.append(f"stored at {selection.begin_ms} ms or later")
    if selection.end_ms is not None:
        texts.append(f"stored before {selection.end_ms} ms")
    return ", ".join(texts)


def _messages(file: MappedFile) -> Units:
    """Return a copy of a file's units. The units of a whole queue may be more than memory holds."""
    units = np.frombuffer(file.view, UNIT_DTYPE)
    messages: Units = units[is_message(units)]
    return messages


def _position(store: OfflineStore, units: Units, time_ms: int) -> int:
    """Return the position of the first unit whose message was stored at `time_ms` or later."""

    def stored_ms(index: int) -> int:
        offset = int(units[index]["physical_offset"])
        for file in store.log_files:
            if file.base <= offset < file.end:
                record = check_record(file.view, offset - file.base, offset, check_crc=False)
                if isinstance(record, ScannedRecord):
                    return record.store_timestamp
        raise StoreUnusableError(
            f"a consume queue names a record at {offset} that is not there: run cometmq store repair "
            "on a copy first, or choose the part with --from and --to"
        )

    return bisect_left(range(len(units)), time_ms, key=stored_ms)


# Copies


def _copy_log(store: OfflineStore, made: Slice, disk: Disk, progress: Progress | None) -> None:
    size = made.config.mapped_file_size_commit_log
    directory = made.config.commit_log_path
    disk.make_directory(directory)
    total = made.end_offset - made.first_offset
    for file in store.log_files:
        if file.end <= made.first_offset or file.base >= made.end_offset:
            continue
        path = directory / file.path.name
        disk.allocate(path, size, reserved=1)
        start = max(made.first_offset - file.base, 0)
        stop = min(made.end_offset - file.base, size)
        for at, data in fillers(file.base, start, made.first_timestamp):
            disk.write_at(path, at, memoryview(data))
        for at in range(start, stop, _CHUNK):
            end = min(at + _CHUNK, stop)
            if file.view[at:end] != _ZEROS[: end - at]:
                disk.write_at(path, at, file.view[at:end])
            if progress is not None:
                progress(file.base + end - made.first_offset, total)
        disk.sync(path)
        file.release()
    disk.sync_directory(directory)


def fillers(base: int, size: int, timestamp: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes that are not zero of records that fill the first `size` bytes of a file."""
    at = 0
    while at < size:
        left = size - at
        length = left if left < 2 * _FILLER else _FILLER
        record = encode_record(
            topic=_LOST,
            body=bytes(length - LEAST_FILLER),
            properties=b"",
            queue_id=0,
            queue_offset=0,
            physical_offset=base + at,
            sys_flag=TRANSACTION_ROLLBACK,
            born_timestamp=timestamp,
            born_host=_HOST,
            store_timestamp=timestamp,
            store_host=_HOST,
        )
        tail = len(record) - (length - LEAST_FILLER) - BODY_AT
        yield at, record[:BODY_AT]
        yield at + len(record) - tail, record[len(record) - tail :]
        at += length


def _copy_idle_queues(store: OfflineStore, made: Slice, disk: Disk) -> None:
    """Copy the end of queues without a message in the slice: their next offset stays what it was.

    Retention leaves such queues, too: units of messages that lie before the log. In front of a log
    that begins at 0 no message can lie; there these queues begin again.
    """
    config = made.config
    if made.first_offset < config.mapped_file_size_commit_log:
        return
    for topic, queue_id, files in store.queue_files():
        there = before = False
        for file in files:
            places = _messages(file)["physical_offset"]
            there |= bool(((places >= made.first_offset) & (places < made.end_offset)).any())
            before |= bool((places < made.first_offset).any())
            file.release()
        if before and not there:
            _copy_queue_end(files, config.consume_queue_path / topic / str(queue_id), made, disk)
            made.idle_queues.append((topic, queue_id))


def _copy_queue_end(files: list[MappedFile], directory: Path, made: Slice, disk: Disk) -> None:
    """Copy the last file with units of messages before the slice, and no unit of later ones."""
    for file in reversed(files):
        units = np.frombuffer(file.view, UNIT_DTYPE).copy()
        is_before = units["physical_offset"] < made.first_offset
        if not (is_message(units) & is_before).any():
            continue
        # Units of the slice's first file that lie in front of its records are marked as lying before
        # the log.
        units["physical_offset"][is_message(units) & is_before] = 0
        units[is_message(units) & ~is_before] = (0, 0, 0)
        disk.make_directory(directory)
        path = directory / file.path.name
        disk.allocate(path, file.size)
        disk.write_at(path, 0, memoryview(units.tobytes()))
        disk.sync(path)
        disk.sync_directory(directory)
        return


def _copy_state(store: OfflineStore, made: Slice, disk: Disk) -> None:
    source = store.config.store_path_root_dir / "config"
    directory = made.config.store_path_root_dir / "config"
    disk.make_directory(directory)
    for name in store.disk.names(source):
        if name.endswith(".tmp") or store.disk.is_directory(source / name):
            continue
        disk.write(directory / name, store.disk.read(source / name))
        made.state_files.append(name)
    disk.sync_directory(directory)
    known = QueueLedger(store.disk, store.config.ledger_path)
    known.load()
    if known.deleted or known.is_replica:
        # Records of deleted topics are in the log, and must not come back.
        ledger = QueueLedger(disk, made.config.ledger_path)
        ledger.deleted, ledger.is_replica = known.deleted, known.is_replica
        ledger.save()


def _complete(made: Slice, disk: Disk, clock: Clock, progress: ProgressOf) -> None:
    """Have a store build queues and index and write the rest, then check what it has made."""
    disk.write(made.config.abort_path, b"slice")
    store = MessageStore(made.config, clock=clock, store_host=_HOST, disk=disk)
    store.open(progress("consume queues and index"))
    try:
        store.index.catch_up(store.commit_log.end, _WITHOUT_END_S)
        for topic, ids in store.topics().items():
            for queue_id in ids:
                first, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
                if (topic, queue_id) not in made.idle_queues and first < end:
                    queue = SlicedQueue(topic, queue_id, first, end, end - first)
                    made.queues[topic, queue_id] = queue
    finally:
        store.close()
    _, report = check(made.config, disk, progress)
    if not report.is_sound:
        finding = report.findings[0]
        raise StoreError(
            f"the slice is not sound: {finding.path} at {finding.position}: {finding.text}. Please "
            "report this, with the output of cometmq store check for the store"
        )
