"""Find the files of a store directory, ours or Java's, for readers without a broker.

    commitlog/<offset>                          records (`cometmq.protocol.messages.record`), then a blank one
    consumequeue/<topic>/<queue id>/<offset>    per message: offset in the log 8, size 4, tags code 8
    lock                                        byte 0 is locked by the broker that runs
    abort                                       there while a broker runs, and after one was killed

File names are offsets in bytes, 20 digits; sizes are taken from the files. Nothing is written.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from cometmq.errors import StoreLockedError, StoreUnusableError
from cometmq.store.reading.layout import is_file_name
from cometmq.store.reading.lock import SHARED, take_lock
from cometmq.store.reading.units import UNIT_DTYPE, Units, is_message

# How many messages of one consume-queue file `some_offsets` takes at least, if the file has as
# many.
_SAMPLES: Final = 1024
# Size and magic of a record.
_HEAD_BYTES: Final = 8
# So much of a consume queue is in memory at a time while its bounds are looked for.
_PIECE_BYTES: Final = 65_536 * UNIT_DTYPE.itemsize


class LogFile(NamedTuple):
    """Names a file of the commit log; `base` is the offset of its first byte."""

    path: str
    base: int
    size: int

    @property
    def end(self) -> int:
        return self.base + self.size


class QueueFiles(NamedTuple):
    """Names the files of a consume queue, oldest first."""

    topic: str
    queue_id: int
    paths: tuple[str, ...]

    def bounds(self, log_base: int) -> tuple[int, int]:
        """Return the queue offset of the first message that lies in the log from `log_base` on, and
        the one behind the last message; equal when there is none.
        """
        end = self._end()
        for path in self.paths:
            for first, units in _unit_pieces(path):
                kept = np.flatnonzero(is_message(units) & (units["physical_offset"] >= log_base))
                if len(kept):
                    return _first_unit(path) + first + int(kept[0]), end
        return end, end

    def units(self, start: int, end: int) -> Any:
        """Return the units of these queue offsets (UNIT_DTYPE); zeros where no file has any."""
        units = np.zeros(end - start, UNIT_DTYPE)
        for path in self.paths:
            first = _first_unit(path)
            low = max(start, first)
            if low >= end or Path(path).stat().st_size <= (low - first) * UNIT_DTYPE.itemsize:
                continue
            found = np.fromfile(
                path, UNIT_DTYPE, end - low, offset=(low - first) * UNIT_DTYPE.itemsize
            )
            units[low - start : low - start + len(found)] = found
        return units

    def some_offsets(self) -> Any:
        """Return the places in the log of some of the queue's messages, spread over its files."""
        parts = [np.zeros(0, np.int64)]
        for path in self.paths:
            count = sum(int(is_message(units).sum()) for _, units in _unit_pieces(path))
            step = max(1, count // _SAMPLES)
            passed = 0
            for _, units in _unit_pieces(path):
                offsets = units["physical_offset"][is_message(units)].astype(np.int64)
                parts.append(offsets[-passed % step :: step])
                passed += len(offsets)
        return np.concatenate(parts)

    def _end(self) -> int:
        for path in reversed(self.paths):
            for first, units in _unit_pieces(path, backwards=True):
                written = np.flatnonzero(units["size"] > 0)
                if len(written):
                    return _first_unit(path) + first + int(written[-1]) + 1
        return 0


def _unit_pieces(path: str, *, backwards: bool = False) -> Iterator[tuple[int, Units]]:
    """Yield the units of a consume-queue file in pieces, each with the number of its first one.

    Parts that the file system knows as never written are left out: most of a file that is made for
    300,000 messages when the queue gets its first.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = [
            (start, min(start + _PIECE_BYTES, end))
            for low, end in _written_extents(fd)
            for start in range(low, end, _PIECE_BYTES)
        ]
        for start, end in reversed(pieces) if backwards else pieces:
            data = os.pread(fd, end - start, start)
            whole = len(data) // UNIT_DTYPE.itemsize
            yield start // UNIT_DTYPE.itemsize, np.frombuffer(data, UNIT_DTYPE, whole)
    finally:
        os.close(fd)


def _written_extents(fd: int) -> list[tuple[int, int]]:
    """Return where a file of units holds data, in bytes, widened to whole units. Where a file system
    does not know, that is all of it.
    """
    unit = UNIT_DTYPE.itemsize
    size = os.fstat(fd).st_size // unit * unit
    extents = []
    end = 0
    while end < size:
        try:
            data = os.lseek(fd, end, os.SEEK_DATA)
            hole = os.lseek(fd, data, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # nothing but a hole up to the end
            return [(0, size)]
        start, end = max(end, data // unit * unit), min(size, -(-hole // unit) * unit)
        if start < end:
            extents.append((start, end))
    return extents


def _first_unit(path: str) -> int:
    """Return the queue offset of a file's first unit."""
    return int(Path(path).name) // UNIT_DTYPE.itemsize


class StoreFiles:
    """Finds the files of the store at `root`. Raises StoreUnusableError for a directory that is no store.

    The commit log may lie in directories of its own, among which its files are spread
    (storePathCommitLog; Java: MultiPathMappedFileQueue).
    """

    def __init__(self, root: str, commit_logs: Sequence[str] = ()) -> None:
        self.root = Path(root)
        self._commit_logs = [Path(path) for path in commit_logs]
        self._check()

    @property
    def is_clean(self) -> bool:
        """Whether the broker that used it last was stopped, not killed."""
        return not (self.root / "abort").exists()

    def log_files(self) -> list[LogFile]:
        """Return the files oldest first, without those at the end made ahead of need."""
        files = [
            LogFile(str(path), int(path.name), size)
            for directory in self._log_directories
            for path in _numbered(directory)
            if (size := _size(path))
        ]
        files.sort(key=lambda file: file.base)
        while files and _is_unwritten(files[-1]):
            files.pop()
        return files

    def queues(self) -> list[QueueFiles]:
        """Return all consume queues, by topic and queue id."""
        root = self.root / "consumequeue"
        found = []
        for topic in sorted(root.iterdir()) if root.is_dir() else ():
            for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
                if queue.name.isdecimal():
                    paths = tuple(map(str, _numbered(queue)))
                    found.append(QueueFiles(topic.name, int(queue.name), paths))
        return found

    @property
    def _log_directories(self) -> list[Path]:
        return self._commit_logs or [self.root / "commitlog"]

    def _check(self) -> None:
        if not self.root.is_dir():
            raise StoreUnusableError(
                f"{self.root} is no directory on this machine: give the path of a store directory "
                "(storePathRootDir) that the driver and all workers see"
            )
        for path in (self.root, *self._log_directories):
            if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
                raise StoreUnusableError(f"{path} cannot be read by this user")
        if any(path.name.startswith("dledger-") for path in self.root.iterdir()):
            raise StoreUnusableError(
                f"{self.root} is the store of a DLedger broker, which cannot be read here"
            )
        if (self.root / "consumequeue" / "CURRENT").exists():
            raise StoreUnusableError(
                f"{self.root} keeps its consume queues in RocksDB (storeType=defaultRocksDB), "
                "which cannot be read here"
            )
        for path in self._commit_logs:
            if not path.is_dir():
                raise StoreUnusableError(
                    f"{path}, which the option commitLogPath names, is no directory on this machine"
                )
        if not self._commit_logs and not (self.root / "commitlog").is_dir():
            raise StoreUnusableError(
                f"{self.root} is no store, it has no directory commitlog; where "
                "storePathCommitLog lies elsewhere, give it as the option commitLogPath"
            )


@contextmanager
def kept_from_brokers(root: Path | str) -> Iterator[None]:
    """Let no broker start on the store within the context; any number of readers may do so at once.

    Raises StoreLockedError when a broker runs on the store. A copy without a lock file needs no
    lock.
    """
    path = Path(root) / "lock"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        if not take_lock(fd, SHARED):
            raise StoreLockedError(
                f"{root} is being written by a broker that runs: stop it first, read a copy of the "
                "directory, or read the broker itself with the source rocketmq"
            )
        yield
    finally:
        os.close(fd)


def _size(path: Path) -> int:
    """Return the size of a file, 0 if retention has deleted it since it was listed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _is_unwritten(file: LogFile) -> bool:
    try:
        with Path(file.path).open("rb") as opened:
            return not any(opened.read(_HEAD_BYTES))
    except FileNotFoundError:
        return True


def map_file(path: str) -> mmap.mmap:
    """Map a whole file for reading. Its pages are read ahead, so it is for passing through."""
    with Path(path).open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapping.madvise(mmap.MADV_SEQUENTIAL)
    return mapping


def _numbered(directory: Path) -> list[Path]:
    return sorted(
        path
        for path in (directory.iterdir() if directory.is_dir() else ())
        if is_file_name(path.name)
    )
