"""Open a store directory for reading, for the tools and without changing anything on disk.

The store need not be in order: what cannot be used becomes a `Damage`, and reading goes on behind
it. The sizes of files are taken from the files themselves, so a store of a Java broker needs no
settings.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.index.index_file import file_size as index_file_size
from cometmq.store.layout import check_readable, foreign
from cometmq.store.log.scan import BLANK, ScannedRecord, check_record, find_record_in
from cometmq.store.reading.layout import is_file_name

# The topic of records that a repair has put where bytes were lost. It is a topic of the system, so
# that no user's topic appears from nowhere.
LOST_TOPIC: Final = "rmq_sys_lost"

_NAME_LENGTH: Final = 20
_INDEX_NAME_LENGTH: Final = 17
_PROGRESS_EVERY_RECORDS: Final = 4096

# (bytes done, bytes there are)
Progress = Callable[[int, int], None]


class Damage(NamedTuple):
    """Names bytes of the log that belong to no record: from `position` of a file to `end_position`.

    With `is_tail` no record follows anywhere, so a crash may have left these bytes.
    """

    path: Path
    base: int
    position: int
    end_position: int
    reason: str
    is_tail: bool = False

    @property
    def offset(self) -> int:
        """Offset of the damage in the commit log."""
        return self.base + self.position


class BadFile(NamedTuple):
    """Names a file whose contents do not fit its place."""

    path: Path
    reason: str


class OfflineStore:
    """Reads a store; see `open_offline`. `config` is the given one with the sizes found."""

    def __init__(self, config: StoreConfig, disk: Disk) -> None:
        self.disk = disk
        self.config = _with_sizes_found(config, disk)
        self._use_index_sizes()
        self.bad_files: list[BadFile] = []
        self.log_files = self._load(
            self.config.commit_log_path, self.config.mapped_file_size_commit_log, foreign
        )

    @property
    def min_offset(self) -> int:
        return self.log_files[0].base if self.log_files else 0

    @property
    def log_bytes(self) -> int:
        return sum(file.size for file in self.log_files)

    @property
    def is_clean(self) -> bool:
        """Whether the broker that used it last was stopped, not killed."""
        return self.disk.size(self.config.abort_path) is None

    def queue_files(self) -> Iterator[tuple[str, int, list[MappedFile]]]:
        """Yield topic, queue id and files of each consume queue on disk."""
        root = self.config.consume_queue_path
        size = self.config.mapped_file_size_consume_queue
        for topic in self.disk.names(root):
            if not self.disk.is_directory(root / topic):
                continue
            for name in self.disk.names(root / topic):
                if name.isdecimal():
                    yield topic, int(name), self._load(root / topic / name, size)

    def index_paths(self) -> list[Path]:
        """Return the index files, oldest first."""
        directory = self.config.index_path
        return [
            directory / name
            for name in self.disk.names(directory)
            if len(name) == _INDEX_NAME_LENGTH and name.isdecimal()
        ]

    def _use_index_sizes(self) -> None:
        """Use the sizes of the newest index file, where they are known."""
        paths = self.index_paths()
        sizes = self.index_sizes(paths[-1]) if paths else None
        if sizes is not None:
            slots, entries = sizes
            self.config = dataclasses.replace(
                self.config, max_hash_slot_num=slots, max_index_num=entries
            )

    def _load(
        self,
        directory: Path,
        file_size: int,
        fault_of: Callable[[Disk, Path], str | None] = lambda _disk, _path: None,
    ) -> list[MappedFile]:
        """Return the files of a directory that have the right size and no fault; the others go to
        `bad_files`.
        """
        files: list[MappedFile] = []
        names = [name for name in self.disk.names(directory) if is_file_name(name)]
        for name in names:
            path = directory / name
            size = self.disk.size(path)
            if size != file_size:
                # A file is made with its full size; a crash meanwhile leaves the last one short.
                last = ", it was being made" if name == names[-1] else ""
                self.bad_files.append(BadFile(path, f"{size} bytes where {file_size} belong{last}"))
                continue
            if (fault := fault_of(self.disk, path)) is not None:
                self.bad_files.append(BadFile(path, fault))
                continue
            if files and int(name) != files[-1].end:
                missing = directory / f"{files[-1].end:0{_NAME_LENGTH}d}"
                self.bad_files.append(BadFile(missing, "the file is missing"))
            files.append(MappedFile(self.disk, path, int(name), file_size, writable=False))
        return files

    def records(self, progress: Progress | None = None) -> Iterator[ScannedRecord | Damage]:
        """Yield every record of the log, in order, and every damaged part between them."""
        total = self.log_bytes
        done = count = 0
        # Parts that would be the end of the log if no record followed.
        ends: list[Damage] = []
        for file in self.log_files:
            for found in _scan(file):
                if isinstance(found, Damage) and found.end_position == file.size:
                    ends.append(found)
                    continue
                yield from map(_in_the_middle, ends)
                ends.clear()
                yield found
                count += 1
                if progress is not None and count % _PROGRESS_EVERY_RECORDS == 0:
                    position = found.offset - file.base
                    progress(done + position, total)
            done += file.size
            if progress is not None:
                progress(done, total)
            file.release()
        yield from (end._replace(is_tail=True) for end in ends if end.reason)

    def index_sizes(self, path: Path) -> tuple[int, int] | None:
        """Return slots and entries of an index file; None when its size fits no known ones."""
        size = self.disk.size(path) or 0
        slots, entries = self.config.max_hash_slot_num, self.config.max_index_num
        if size == index_file_size(slots, entries):
            return slots, entries
        # By default there are four entries for each slot.
        slots, rest = divmod(
            size - index_file_size(0, 0), index_file_size(1, 4) - index_file_size(0, 0)
        )
        return (slots, 4 * slots) if slots > 0 and rest == 0 else None


@contextmanager
def open_offline(
    config: StoreConfig, disk: Disk | None = None, *, lock: bool = True
) -> Iterator[OfflineStore]:
    """Give access to the store, and keep brokers from it meanwhile unless `lock` is False.

    Raises StoreUnusableError for a directory that is no store or cannot be read, StoreLockedError
    when a broker runs on it.
    """
    disk = disk or Disk()
    check_readable(config, disk)
    held = disk.lock_for_reading(config.lock_path) if lock else None
    try:
        yield OfflineStore(config, disk)
    finally:
        if held is not None:
            held.release()


def _scan(file: MappedFile) -> Iterator[ScannedRecord | Damage]:
    """Yield the records of one file, and the damaged parts between them.

    The part behind the last record is a Damage without a reason when nothing was written there, and
    none when a blank record declares it.
    """
    view = file.view
    position = 0
    while position < file.size:
        found = check_record(view, position, file.base + position, check_crc=True)
        if isinstance(found, ScannedRecord):
            yield found
            position += found.size
            continue
        reason = found.reason
        if found is BLANK:
            declared = int.from_bytes(view[position : position + 4], "big")
            if declared == file.size - position:
                return
            reason = f"a blank record of {declared} bytes where {file.size - position} are left"
        following = find_record_in(file, position)
        end = file.size
        if following is not None:
            end = following.offset - file.base
            reason = reason or "zeros"
        yield Damage(file.path, file.base, position, end, reason)
        position = end


def _in_the_middle(damage: Damage) -> Damage:
    """Give a reason to a part that would be the end of the log if no later file had a record."""
    if damage.reason:
        return damage
    if damage.position == 0:
        return damage._replace(reason="an empty file")
    return damage._replace(reason="zeros where a blank record should end the file")


def _with_sizes_found(config: StoreConfig, disk: Disk) -> StoreConfig:
    """Return the settings with the sizes of the files on disk, unless other sizes were given."""
    default = StoreConfig()
    log_size = _size(
        disk,
        config.mapped_file_size_commit_log,
        default.mapped_file_size_commit_log,
        [config.commit_log_path],
    )
    root = config.consume_queue_path
    topics = [root / topic for topic in disk.names(root) if disk.is_directory(root / topic)]
    queue_size = _size(
        disk,
        config.mapped_file_size_consume_queue,
        default.mapped_file_size_consume_queue,
        [topic / name for topic in topics for name in disk.names(topic) if name.isdecimal()],
    )
    return dataclasses.replace(
        config,
        mapped_file_size_commit_log=log_size,
        mapped_file_size_consume_queue=queue_size,
    )


def _size(disk: Disk, configured: int, default: int, directories: list[Path]) -> int:
    """Return the configured size; or, if that is a default that no file has, the commonest size."""
    sizes = Counter(
        size
        for directory in directories
        if disk.is_directory(directory)
        for name in disk.names(directory)
        if is_file_name(name) and (size := disk.size(directory / name))
    )
    if configured != default or not sizes or default in sizes:
        return configured
    return sizes.most_common(1)[0][0]
