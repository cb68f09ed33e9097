"""Do what the store asks of the disk: only this module opens, maps, syncs and locks.

The disk is a parameter of the store, so that a test can pass a disk that forgets what was not
synced. Files are named by path; a mapping keeps its file open by itself.
"""

from __future__ import annotations

import mmap
import os
import pwd
import resource
import shutil
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.errors import StoreError
from cometmq.store.files import locks, memory
from cometmq.store.files.descriptors import SPARE
from cometmq.store.files.errors import NO_ROOM, PASSING, full_error, named_errors
from cometmq.store.files.locks import DirectoryLock, identity_of

# A store is for its owner alone, and no file is made where a planted link leads.
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_MAKE: Final = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

# Not named by the mmap module.
_MADV_POPULATE_WRITE: Final = 23
# As much is written to the device when a byte of it changes; in larger steps it takes the same time.
_ZEROS: Final = memoryview(bytes(64 * 1024))
_MANY_ZEROS: Final = [_ZEROS] * 16

# One commit of a file system's journal serves all threads that wait for it. So more threads are
# quicker, up to a few.
_SIDE_BY_SIDE: Final = 16

# Stands where no file is mapped; nothing writes to it.
NO_MAPPING: Final = mmap.mmap(-1, mmap.PAGESIZE)


_OF_A_STORE: Final = frozenset({"checkpoint", "commitlog", "consumequeue", "queues.json"})


class DiskUsage(NamedTuple):
    """Says what users but root can have of a file system; `used_ratio` is the ratio that `df`
    shows.
    """

    total_bytes: int
    free_bytes: int

    @property
    def used_ratio(self) -> float:
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 0.0


class FileState(NamedTuple):
    """Identifies the file that has a name, to distinguish it from another file of that name, with
    its size.
    """

    identity: tuple[int, int]
    size: int


class Disk:
    """Does the operations on real files. OSErrors become StoreErrors that name the path.

    All methods may be called from any thread.
    """

    def side_by_side(self, works: Sequence[Callable[[], object]]) -> None:
        """Do works that mostly wait for the disk and are independent of each other, in threads.

        Returns when all have ended, or raises what the first of them raised.
        """
        if len(works) < 2:
            for work in works:
                work()
            return
        left = iter(works)
        errors: list[Exception] = []

        # Each thread takes the next work by itself: a future for each of thousands of works costs more
        # than most of them do, and keeps the loop's thread waiting.
        def take() -> None:
            for work in left:
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - the others are done nevertheless
                    errors.append(error)

        count = min(len(works), _SIDE_BY_SIDE)
        with ThreadPoolExecutor(count) as pool:
            for _ in range(count):
                pool.submit(take)
        if errors:
            raise errors[0]

    def make_directory(self, path: Path) -> None:
        """Make a directory, and those above it that are missing, for this user alone."""
        with named_errors(path):
            missing = []
            while not path.is_dir():
                missing.append(path)
                path = path.parent
            for directory in reversed(missing):
                directory.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)

    def is_open_to_others(self, path: Path) -> bool:
        """Say whether a file or directory, not a link, gives rights to others than its owner."""
        with named_errors(path):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                return False
        is_ours = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        return is_ours and stat.S_IMODE(mode) & ~_DIRECTORY_MODE & 0o777 != 0

    def restrict(self, path: Path) -> None:
        """Take from a file or directory the rights of all but its owner."""
        with named_errors(path):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) & ~0o077)
            finally:
                os.close(fd)

    def names(self, path: Path) -> list[str]:
        """Return the entries of a directory, sorted; none when it does not exist."""
        with named_errors(path):
            try:
                return sorted(os.listdir(path))  # noqa: PTH208 - names, not paths
            except FileNotFoundError:
                return []

    def is_directory(self, path: Path) -> bool:
        return path.is_dir()

    def size(self, path: Path) -> int | None:
        """Return the size of a file in bytes, None when there is no such file."""
        with named_errors(path):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return None

    def state(self, path: Path) -> FileState | None:
        """Return which file has a name, and its size; None when there is no such file."""
        with named_errors(path):
            try:
                found = path.stat()
            except FileNotFoundError:
                return None
            return FileState(identity_of(found), found.st_size)

    def where_open(self, identity: tuple[int, int]) -> Path | None:
        """Return a path by which other processes can copy a file that this process has open or
        mapped, even after its removal; None if it is not open.
        """
        for entry in Path("/proc/self/fd").glob("*"):
            with suppress(OSError):
                if identity_of(entry.stat()) == identity:
                    return Path(f"/proc/{os.getpid()}/fd/{entry.name}")
        return None

    def modified_ms(self, path: Path) -> int:
        with named_errors(path):
            return path.stat().st_mtime_ns // 1_000_000

    def allocate(self, path: Path, size: int, *, reserved: int | None = None) -> None:
        """Give the file `size` bytes; new ones are zero.

        The first `reserved` of them (default: all) get room that no full disk can take back;
        `reserve` gives room to the others. Raises StoreFullError when there is no room; a file that
        this call made is removed then.
        """
        with named_errors(path):
            existed = path.exists()
            with SPARE.opened(path, os.O_RDWR | _MAKE, _FILE_MODE) as fd:
                try:
                    os.posix_fallocate(fd, 0, size if reserved is None else reserved)
                    if os.fstat(fd).st_size < size:
                        os.ftruncate(fd, size)
                except OSError as error:
                    if not existed:
                        path.unlink(missing_ok=True)
                    if error.errno in NO_ROOM:
                        raise full_error(path, size) from error
                    raise

    def reserve(self, path: Path, start: int, end: int) -> None:
        """Make sure that a part of an existing file has room. Raises StoreFullError."""
        with named_errors(path), SPARE.opened(path, os.O_RDWR) as fd:
            os.posix_fallocate(fd, start, end - start)

    def cut(self, path: Path, start: int, size: int, *, reserve: bool) -> None:
        """Make the bytes from `start` to `size` zero, whatever stood there, and sync that."""
        with named_errors(path):
            os.truncate(path, start)
        self.allocate(path, size, reserved=None if reserve else max(start, 1))
        self.sync(path)

    def map(
        self, path: Path, size: int, *, writable: bool = True, read_ahead: bool = True
    ) -> mmap.mmap:
        """Map the first `size` bytes of an existing file.

        Without `read_ahead`, touching a page brings only that page, not megabytes around it.
        """
        with named_errors(path):
            fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
            try:
                access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
                mapping = mmap.mmap(fd, size, access=access)
            finally:
                # The mapping holds a duplicate of the descriptor.
                os.close(fd)
            if not read_ahead:
                mapping.madvise(mmap.MADV_RANDOM)
            return mapping

    def populate(self, mapping: mmap.mmap, start: int, end: int) -> None:
        """Make the pages of a mapping's part writable at once, where the kernel can (Linux 5.14).

        This makes whole pages around the part writable, and no others. With read-ahead the kernel
        would also fill megabytes behind them with zeros, which takes the caller 25 ms where
        read_ahead_kb is 8192. It is a hint, so it never fails.
        """
        start -= start % mmap.PAGESIZE
        with suppress(OSError, ValueError):
            mapping.madvise(mmap.MADV_RANDOM, start, end - start)
            mapping.madvise(_MADV_POPULATE_WRITE, start, end - start)
            # A reader of the part later, when it is not in memory any more, wants what follows, too.
            mapping.madvise(mmap.MADV_NORMAL, start, end - start)

    def write_zeros(self, path: Path, start: int, end: int) -> None:
        """Fill a part of an existing file with zeros, from the first page that begins in it.

        The kernel then has its pages in memory, and makes many at once: a tenth of the time of
        `populate`. It writes what was made at once together, too, so this does not suit a log that is
        synced after every record. It is a hint, so it never fails.
        """
        start += -start % mmap.PAGESIZE
        with suppress(OSError), SPARE.opened(path, os.O_WRONLY) as fd:
            # Each call gives up the interpreter, which a thread then has to wait for.
            while end - start >= len(_ZEROS) * len(_MANY_ZEROS):
                start += os.pwritev(fd, _MANY_ZEROS, start)
            while start < end:
                start += os.pwrite(fd, _ZEROS[: end - start], start)

    def warm(self, mapping: mmap.mmap, start: int, end: int) -> None:
        """Bring the pages of a mapping's part into memory unchanged. Blocks.

        `start` must be a multiple of the page size.
        """
        memory.populate(mapping, start, end)

    def is_cached(self, mapping: mmap.mmap, start: int, end: int) -> bool:
        """Say whether a mapping's part can be read without waiting for the device.

        `start` must be a multiple of the page size.
        """
        return memory.is_resident(mapping, start, end)

    def bring_in(self, path: Path, mapping: mmap.mmap, start: int, end: int) -> None:
        """Read a mapping's part of the file at `path` into the page cache. Blocks without the GIL.

        `start` must be a multiple of the page size. Raises StoreError if the device fails, where
        touching the page would end the process. A file that was removed stays readable for those who
        have it mapped.
        """
        # Linux before 5.14 cannot populate, nor can a device that fails: reading then says which.
        if not memory.populate(mapping, start, end) and path.exists():
            self.read_into(path, start, memoryview(bytearray(end - start)))

    def write_at(self, path: Path, start: int, data: memoryview) -> None:
        """Write into an existing file; mappings of it see the bytes. Blocks without the GIL."""
        with named_errors(path), SPARE.opened(path, os.O_WRONLY) as fd:
            while data:
                written = os.pwrite(fd, data, start)
                start += written
                data = data[written:]

    def sync(self, path: Path) -> None:
        """Sync a file with fdatasync, which covers what was written through mappings. Blocks."""
        self._sync(path, os.fdatasync)

    def sync_directory(self, path: Path) -> None:
        """Make created, renamed and removed entries of a directory durable. Blocks."""
        self._sync(path, os.fsync)

    @staticmethod
    def _sync(path: Path, synchronise: Callable[[int], None]) -> None:
        # A missing file was removed meanwhile, by retention or with its topic: nothing is left to
        # sync.
        with (
            named_errors(path),
            suppress(FileNotFoundError),
            SPARE.opened(path, os.O_RDONLY) as fd,
        ):
            try:
                synchronise(fd)
            except OSError as error:
                # Whatever the reason, the kernel may have dropped the pages. So no error of a sync
                # counts as passing.
                if error.errno in PASSING:
                    raise StoreError(f"{path}: {error.strerror}") from error
                raise

    def write(self, path: Path, data: bytes) -> None:
        """Create or overwrite a small file and sync it.

        A link that stands there, or another user's file, is removed first.
        """
        with named_errors(path):
            with suppress(FileNotFoundError):
                found = path.lstat()
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    path.unlink()
            with SPARE.opened(path, os.O_WRONLY | os.O_TRUNC | _MAKE, _FILE_MODE) as fd:
                _write_all(fd, data)
                os.fsync(fd)

    def overwrite(self, path: Path, data: bytes, size: int) -> None:
        """Replace the first bytes of a file in place, give it `size` bytes, and sync it."""
        self.allocate(path, size)
        with named_errors(path), SPARE.opened(path, os.O_RDWR) as fd:
            os.pwrite(fd, data, 0)
            os.fdatasync(fd)

    def read(self, path: Path) -> bytes:
        with named_errors(path):
            return path.read_bytes()

    def read_into(self, path: Path, offset: int, target: memoryview) -> int:
        """Fill `target` with the file's bytes from `offset` on; return how many there were. Blocks.

        Unlike touching a mapping, this lets other threads run while the disk works.
        """
        with named_errors(path), SPARE.opened(path, os.O_RDONLY) as fd:
            filled = 0
            while filled < len(target):
                count = os.preadv(fd, [target[filled:]], offset + filled)
                if count == 0:
                    break
                filled += count
            return filled

    def remove(self, path: Path) -> None:
        with named_errors(path):
            path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        with named_errors(path), suppress(FileNotFoundError):
            shutil.rmtree(path)

    def rename(self, source: Path, target: Path) -> None:
        with named_errors(source):
            source.replace(target)

    def lock(self, path: Path) -> DirectoryLock:
        """Take the exclusive lock. Raises StoreLockedError when any process holds it."""
        return locks.take(path)

    def lock_for_reading(self, path: Path) -> DirectoryLock | None:
        """Take a lock that keeps brokers out; see `locks.take_for_reading`."""
        return locks.take_for_reading(path)

    def process_id(self) -> int:
        """Return the id of the process that uses the disk."""
        return os.getpid()

    def user(self) -> str:
        """Return the name of the user whose rights this process has."""
        return _user_name(os.geteuid())

    def owner(self, path: Path) -> str | None:
        """Return the name of the user who owns a file or directory; None when there is none."""
        with named_errors(path):
            try:
                return _user_name(path.stat().st_uid)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def access_fault(self, path: Path, *, write: bool) -> str | None:
        """Return why a directory cannot be used, and what to do; None if it can be used or made."""
        wanted = path
        while not os.path.lexists(path):
            path = path.parent
        if not path.is_dir():
            return f"{path} is no directory: name another one with storePathRootDir"
        if os.access(path, os.R_OK | os.X_OK) and (not write or os.access(path, os.W_OK)):
            return None
        if write and os.statvfs(path).f_flag & os.ST_RDONLY:
            return (
                f"{path} is on a file system that is mounted read-only: mount it read-write, or "
                f"move the store with storePathRootDir"
            )
        may_not = "write" if write else "read"
        fault = f"{path} belongs to the user {self.owner(path)} and {self.user()} may not {may_not} there"
        if path != wanted:
            return (
                f"{fault}: ask a user who may write there to make {wanted} and to give it to "
                f"{self.user()}, or name another directory with storePathRootDir"
            )
        remedy = "name another directory with storePathRootDir"
        if _may_be_store(path):
            remedy = f"give the store to {self.user()}: chown -R {self.user()} {path}"
        return f"{fault}: run as that user, or {remedy}"

    def usage(self, path: Path) -> DiskUsage:
        """Return the usage of the file system that holds `path`, or will once it is made."""
        with named_errors(path):
            while not path.exists():
                path = path.parent
            stats = os.statvfs(path)
            total = stats.f_blocks - stats.f_bfree + stats.f_bavail
            return DiskUsage(total * stats.f_frsize, stats.f_bavail * stats.f_frsize)

    def open_files_limit(self) -> int:
        """Return how many descriptors this process may have; each mapping takes one."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return soft if soft != resource.RLIM_INFINITY else 1 << 30

    def physical_memory_bytes(self) -> int:
        """Return how many bytes a page cache could hold at most."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _may_be_store(path: Path) -> bool:
    """Say whether a directory could be a store or a commit log; only then may its owner be changed.

    It could be one if it is empty, has a file or directory of a store, or cannot be read.
    """
    try:
        names = [entry.name for entry in path.iterdir()]
    except OSError:
        return True
    return not names or any(name in _OF_A_STORE or len(name) == 20 for name in names)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)
