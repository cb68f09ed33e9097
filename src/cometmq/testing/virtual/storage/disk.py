"""Keep a node's files in memory, and do to them what real disks do: lose, tear, fail, fill, rot.

A file has two states. The page cache is what running code sees, through mappings, too. The platter
is what certainly survives a loss of power: the pages that a sync has written, and the names that
the sync of a directory has. `crash_process` keeps the page cache, `lose_power` does not.
"""

# ruff: noqa: ARG002 - the parameters are those of the class that it stands in for

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from cometmq.errors import StoreLockedError
from cometmq.runtime.clock import Clock
from cometmq.runtime.randomness import Randomness
from cometmq.store.files.disk import Disk, DiskUsage, FileState
from cometmq.store.files.errors import named_errors
from cometmq.store.files.locks import DirectoryLock, locked_error
from cometmq.testing.virtual.storage import copies
from cometmq.testing.virtual.storage.faults import OPERATIONS, DiskFaults
from cometmq.testing.virtual.storage.file_system import Directory, File, FileSystem, refuse
from cometmq.testing.virtual.storage.state_files import VirtualFiles

__all__ = ["OPERATIONS", "VirtualDisk"]

_PROCESS_ID: Final = 1
_USER: Final = "cometmq"
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_OPEN_FILES: Final = 1 << 20
_MEMORY_BYTES: Final = 8 << 30


class _VirtualLock(DirectoryLock):
    def __init__(self, locks: dict[Path, list[_VirtualLock]], path: Path, kind: str) -> None:
        self._holders = locks.setdefault(path, [])
        self._holders.append(self)
        self.kind = kind

    def release(self) -> None:
        if self in self._holders:
            self._holders.remove(self)

    def renew(self) -> bool:
        return False


class VirtualDisk(Disk):
    """The disk of one simulated node; pass it to `Broker(disk=...)`.

    State files lie on it, too: `files` is for `NameServer(files=...)`, and a broker takes it from
    its disk. Times of change come from `clock`; without one they are 0. `record(event)` is called
    for each fault. Nothing here waits or starts a thread; a seed gives the same losses each time.
    """

    def __init__(
        self,
        randomness: Randomness | None = None,
        clock: Clock | None = None,
        *,
        capacity_bytes: int = 1 << 40,
        record: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.randomness = Randomness(0) if randomness is None else randomness
        self.capacity_bytes = capacity_bytes
        # How probable it is that old messages are not in the page cache; without it no draw is made.
        self.cold_share = 0.0
        # By how many seconds each piece of work of the node's workers is slowed.
        self.slow_s = 0.0
        self._now_ms: Callable[[], int] = (lambda: 0) if clock is None else clock.now_ms
        self._record = record
        self._foreign_bytes = 0
        # At least what the files take: it is looked up only where that may be too much.
        self._taken_bytes = 0
        self._locks: dict[Path, list[_VirtualLock]] = {}
        self.system = FileSystem()
        self.faults = DiskFaults(record)
        self.files = VirtualFiles(self)

    # Ends of the node

    def crash_process(self) -> None:
        """End the process that uses the disk: its locks go, the page cache stays."""
        self._locks.clear()
        self._record("disk: its process ended")

    def lose_power(self) -> None:
        """End the machine: of what no sync has written any part may be lost, torn at sectors.

        Mappings of code that ran before do not belong to the disk any more.
        """
        self._locks.clear()
        self.system.lose_power(self.randomness)
        self._taken_bytes = self._used_bytes()  # removed files may be back
        self._record("disk: lost its power")

    # Faults

    def fail(
        self,
        operation: str,
        error: str = "EIO",
        *,
        after: int = 0,
        times: int | None = 1,
        path: str = "*",
    ) -> None:
        """Fail an operation with the error of that name (`EIO`, `ENOSPC`, `EMFILE`, ...).

        `operation` is one of OPERATIONS; "any" is any that writes. The first `after` calls pass,
        the following `times` fail (None: all, until `mend`). `path` is a pattern for the whole path
        or the last part of it. Raises ValueError for an unknown name. A failed operation may be
        done in part. A failed sync loses pages as Linux does: it takes them for written.
        """
        self.faults.add(operation, error, after, times, path)
        self._record(f"disk: {operation} is to fail with {error}")

    def mend(self) -> None:
        """End what `fail`, `fill` and `slow` have begun."""
        self.faults.clear()
        self.free()
        self.slow(0.0)

    def at_peace(self) -> AbstractContextManager[None]:
        """Let nothing fail by `fail` inside of a `with` block, and count no call there."""
        return self.faults.suspended()

    def fill(self, left_bytes: int = 0) -> None:
        """Leave only so much room, as if somebody else had filled the disk."""
        self._foreign_bytes = max(0, self.capacity_bytes - self._used_bytes() - left_bytes)
        self._record(f"disk: {left_bytes} bytes are left")

    def free(self) -> None:
        """Give back the room that `fill` took."""
        self._foreign_bytes = 0
        self._record("disk: has room again")

    def slow(self, seconds: float) -> None:
        """Let each piece of work of the node's workers take so much longer; 0 ends it."""
        if seconds < 0:
            raise ValueError(f"a disk cannot be slower by {seconds} seconds; give 0 or more")
        self.slow_s = seconds
        self._record(f"disk: slower by {seconds} s")

    def flip_bit(self, path: Path, offset: int, bit: int | None = None) -> None:
        """Flip one bit of the byte at `offset`, in cache and on the platter; any if none is named.

        Raises ValueError for an offset that the file does not have, and StoreError without a file.
        """
        with named_errors(path):
            file = self.system.file(path)
        if not 0 <= offset < file.size:
            raise ValueError(f"{path} has {file.size} bytes, there is none at {offset}")
        number = self.randomness.randrange(8) if bit is None else bit
        if not 0 <= number < 8:
            raise ValueError(f"a byte has the bits 0 to 7, not {number}")
        file.flip(offset, 1 << number)
        self._record(f"disk: bit {number} of byte {offset} of {path} flipped")

    def damage(self, path: Path, change: Callable[[bytearray], bytearray]) -> None:
        """Give a file the bytes that `change` makes of its own, in cache and on the platter.

        Meant for a store that is not open: what was mapped before does not change.
        """
        with named_errors(path):
            file = self.system.file(path)
        data = change(bytearray(file.read(0, file.size)))
        file.resize(0)
        file.write(0, bytes(data))
        file.sync()
        self._record(f"disk: {path} damaged")

    def wipe(self) -> None:
        """Remove everything, durably, as if the node came back with an empty disk."""
        self.system = FileSystem()
        self._locks.clear()
        self._record("disk: wiped")

    # To and from real directories

    def load(self, directory: Path, *, root: Path | None = None) -> None:
        """Copy a real directory to `root`, by default to the same path; all of it is durable.

        Raises OSError, FileNotFoundError for a directory that does not exist.
        """
        copies.load(self.system, directory, root or directory.absolute())
        self._taken_bytes = self._used_bytes()

    def save(self, directory: Path, *, root: Path = Path("/")) -> None:
        """Copy what running code sees below `root` into a real directory, made if it is missing.

        Raises OSError; FileExistsError for a file that would be overwritten.
        """
        copies.save(self.system, root, directory)

    # The interface for the store

    def side_by_side(self, works: Sequence[Callable[[], object]]) -> None:
        for work in works:
            work()

    def make_directory(self, path: Path) -> None:
        with named_errors(path):
            if not isinstance(self.system.find(path), Directory):
                self.faults.strike("make_directory", path)
                self.system.make_directory(path, _DIRECTORY_MODE)

    def is_open_to_others(self, path: Path) -> bool:
        node = self.system.find(path)
        return node is not None and node.mode & 0o077 != 0

    def restrict(self, path: Path) -> None:
        with named_errors(path):
            if (node := self.system.find(path)) is None:
                refuse(errno.ENOENT, path)
            node.mode &= ~0o077

    def names(self, path: Path) -> list[str]:
        with named_errors(path):
            if self.system.find(path) is None:
                return []
            return sorted(self.system.directory(path).entries)

    def is_directory(self, path: Path) -> bool:
        return isinstance(self.system.find(path), Directory)

    def size(self, path: Path) -> int | None:
        node = self.system.find(path)
        return node.size if isinstance(node, File) else None if node is None else mmap.PAGESIZE

    def state(self, path: Path) -> FileState | None:
        node = self.system.find(path)
        return FileState((0, id(node)), node.size) if isinstance(node, File) else None

    def where_open(self, identity: tuple[int, int]) -> Path | None:
        return None

    def modified_ms(self, path: Path) -> int:
        with named_errors(path):
            return self.system.file(path).modified_ms

    def allocate(self, path: Path, size: int, *, reserved: int | None = None) -> None:
        with named_errors(path):
            self.faults.strike("allocate", path)
            node = self.system.find(path)
            file = None if node is None else self.system.file(path)
            self.take_room("allocate", path, file, size if reserved is None else reserved)
            if file is None:
                file = self.create(path, _FILE_MODE)
            self.system.grow(path, size)
            file.room = max(file.room, size if reserved is None else reserved)

    def reserve(self, path: Path, start: int, end: int) -> None:
        with named_errors(path):
            self.faults.strike("reserve", path)
            file = self.system.file(path)
            self.take_room("reserve", path, file, end)
            file.room = max(file.room, end)

    def cut(self, path: Path, start: int, size: int, *, reserve: bool) -> None:
        with named_errors(path):
            self.faults.strike("cut", path)
            file = self.system.file(path)
            file.resize(start)
            file.resize(size)
            file.room = size if reserve else max(start, 1)
            self._sync_file(file)

    def map(
        self, path: Path, size: int, *, writable: bool = True, read_ahead: bool = True
    ) -> mmap.mmap:
        with named_errors(path):
            self.faults.strike("map", path)
            file = self.system.file(path)
            if file.size < size:
                raise ValueError(f"{path} has {file.size} bytes and cannot be mapped as {size}")
            return file.mapped()

    def populate(self, mapping: mmap.mmap, start: int, end: int) -> None:
        """Pages in memory need no hint."""

    def write_zeros(self, path: Path, start: int, end: int) -> None:
        start += -start % mmap.PAGESIZE
        file = self.system.find(path)
        if isinstance(file, File) and start < end:
            self._write(file, start, memoryview(bytes(end - start)))

    def warm(self, mapping: mmap.mmap, start: int, end: int) -> None:
        """Pages in memory need no hint."""

    def is_cached(self, mapping: mmap.mmap, start: int, end: int) -> bool:
        # The kernel's figures for memory that stands in for a file must not decide anything.
        return not self.cold_share or self.randomness.random() >= self.cold_share

    def bring_in(self, path: Path, mapping: mmap.mmap, start: int, end: int) -> None:
        with named_errors(path):
            self.faults.strike("read_into", path)

    def write_at(self, path: Path, start: int, data: memoryview) -> None:
        with named_errors(path):
            file = self.system.file(path)
            try:
                self.faults.strike("write_at", path)
            except OSError:
                pages = len(data) // mmap.PAGESIZE
                self._write(file, start, data[: self.randomness.randint(0, pages) * mmap.PAGESIZE])
                raise
            self.take_room("write_at", path, file, start + len(data))
            self._write(file, start, data)

    def sync(self, path: Path) -> None:
        with named_errors(path):
            if self.system.find(path) is None:
                return
            self.sync_file(self.system.file(path), path)

    def sync_directory(self, path: Path) -> None:
        with named_errors(path):
            self.faults.strike("sync_directory", path)
            if self.system.find(path) is not None:
                self.system.sync_directory(path)

    def write(self, path: Path, data: bytes) -> None:
        with named_errors(path):
            self.write_file(path, data, _FILE_MODE)

    def overwrite(self, path: Path, data: bytes, size: int) -> None:
        with named_errors(path):
            node = self.system.find(path)
            file = None if node is None else self.system.file(path)
            self.take_room("overwrite", path, file, size)
            if file is None:
                file = self.create(path, _FILE_MODE)
            self.system.grow(path, size)
            file.room = max(file.room, size)
            self._write(file, 0, data)
            try:
                self.faults.strike("overwrite", path)
            except OSError:
                file.fail_sync(self.randomness)
                raise
            self._sync_file(file)

    def read(self, path: Path) -> bytes:
        with named_errors(path):
            self.faults.strike("read", path)
            file = self.system.file(path)
            return file.read(0, file.size)

    def read_into(self, path: Path, offset: int, target: memoryview) -> int:
        with named_errors(path):
            self.faults.strike("read_into", path)
            data = self.system.file(path).read(offset, offset + len(target))
            target[: len(data)] = data
            return len(data)

    def remove(self, path: Path) -> None:
        with named_errors(path):
            self.faults.strike("remove", path)
            self.system.remove(path)

    def remove_tree(self, path: Path) -> None:
        with named_errors(path):
            self.faults.strike("remove", path)
            self.system.remove_tree(path)

    def rename(self, source: Path, target: Path) -> None:
        with named_errors(source):
            self.faults.strike("rename", source)
            self.system.rename(source, target)

    def lock(self, path: Path) -> DirectoryLock:
        with named_errors(path):
            self.faults.strike("lock", path)
            if self._locks.get(path):
                raise locked_error(path, "this process")
            if self.system.find(path) is None:
                self._write(self.create(path, _FILE_MODE), 0, b"lock")
            return _VirtualLock(self._locks, path, "exclusive")

    def lock_for_reading(self, path: Path) -> DirectoryLock | None:
        with named_errors(path):
            self.faults.strike("lock", path)
            if self.system.find(path) is None:
                return None
            if any(holder.kind == "exclusive" for holder in self._locks.get(path, [])):
                raise StoreLockedError(
                    f"{path.parent} is in use by a broker: stop it first, or work on a copy"
                )
            return _VirtualLock(self._locks, path, "shared")

    def process_id(self) -> int:
        # The machine's value would make each run write other bytes.
        return _PROCESS_ID

    def user(self) -> str:
        return _USER

    def owner(self, path: Path) -> str | None:
        return None if self.system.find(path) is None else _USER

    def access_fault(self, path: Path, *, write: bool) -> str | None:
        while (node := self.system.find(path)) is None:
            path = path.parent
        if isinstance(node, File):
            return f"{path} is no directory: name another one with storePathRootDir"
        return None

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(self.capacity_bytes, self._free_bytes())

    def open_files_limit(self) -> int:
        return _OPEN_FILES

    def physical_memory_bytes(self) -> int:
        return _MEMORY_BYTES

    # Shared with the state files

    def create(self, path: Path, mode: int) -> File:
        file = self.system.create(path, mode)
        file.modified_ms = self._now_ms()
        return file

    def take_room(self, operation: str, path: Path, file: File | None, room: int) -> None:
        """Raise OSError if a file cannot have so much room."""
        more = max(0, room - (0 if file is None else file.room))
        limit = self.capacity_bytes - self._foreign_bytes
        if self._taken_bytes + more > limit:
            self._taken_bytes = self._used_bytes()
            if self._taken_bytes + more > limit and more:
                self.faults.raise_error(errno.ENOSPC, operation, path)
        self._taken_bytes += more

    def write_file(self, path: Path, data: bytes, mode: int) -> None:
        """Make a file or empty it, write it and sync it; a failure leaves a part of it."""
        if self.system.find(path) is None:
            self.create(path, mode)
        file = self.system.file(path)
        file.resize(0)
        try:
            self.faults.strike("write", path)
            self.take_room("write", path, file, len(data))
        except OSError:
            self._write(file, 0, data[: self.randomness.randint(0, len(data))])
            raise
        self._write(file, 0, data)
        file.room = len(data)
        self._sync_file(file)

    def append_to(self, file: File, path: Path, data: bytes) -> None:
        """Add to a file and sync it; a failure may leave a part of what was to be added."""
        try:
            self.faults.strike("append", path)
            self.take_room("append", path, file, file.size + len(data))
        except OSError:
            self._write(file, file.size, data[: self.randomness.randint(0, len(data))])
            raise
        self._write(file, file.size, data)
        file.room = max(file.room, file.size)
        self._sync_file(file)

    def sync_file(self, file: File, path: Path) -> None:
        try:
            self.faults.strike("sync", path)
        except OSError:
            file.fail_sync(self.randomness)
            raise
        self._sync_file(file)

    def _sync_file(self, file: File) -> None:
        if file.sync():
            file.modified_ms = self._now_ms()

    def _write(self, file: File, start: int, data: bytes | memoryview) -> None:
        file.write(start, data)
        file.modified_ms = self._now_ms()

    def _used_bytes(self) -> int:
        return self.system.room()

    def _free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self._foreign_bytes - self._used_bytes())
