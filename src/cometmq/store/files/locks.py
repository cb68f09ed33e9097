"""Hold the lock of a store, by a file as Java's brokers do, and by the file's directory as well."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from cometmq.errors import StoreLockedError
from cometmq.store.files.descriptors import SPARE
from cometmq.store.files.errors import named_errors
from cometmq.store.reading.lock import EXCLUSIVE, SHARED, take_lock

_FILE_MODE: Final = 0o600
_MAKE: Final = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC

# POSIX locks do not stop the process that holds them, so the process keeps a list of its own
# (device, inode).
_held_locks: set[tuple[int, int]] = set()
# The locks of directories belong to open files, and a forked child inherits these: it would keep
# the locks.
_directory_fds: set[int] = set()


def _let_go_of_directories() -> None:
    while _directory_fds:
        os.close(_directory_fds.pop())


os.register_at_fork(after_in_child=_let_go_of_directories)


class DirectoryLock:
    """Holds two locks: one on byte 0 of a file, as Java's FileChannel.tryLock(0, 1, shared) takes
    it, and one on the file's directory. The second lock keeps our own processes out when somebody
    removes the file.
    """

    def __init__(self, path: Path, fd: int, directory_fd: int = -1) -> None:
        self._path = path
        self._fd = fd
        self._directory_fd = directory_fd
        self._identity = identity_of(os.fstat(fd)) if fd >= 0 else None
        if self._identity is not None:
            _held_locks.add(self._identity)

    def renew(self) -> bool:
        """Take the lock of a new file if somebody removed the file or put another one in its place.

        Returns whether the file was removed or replaced. Raises StoreLockedError if another process
        has the lock by now.
        """
        with named_errors(self._path):
            with suppress(FileNotFoundError):
                if identity_of(self._path.stat()) == self._identity:
                    return False
            fd = os.open(self._path, os.O_RDWR | _MAKE, _FILE_MODE)
            if not _take_or_close(fd, EXCLUSIVE):
                raise locked_error(self._path, "another process")
            former, self._fd = self._fd, fd
            self._forget_file(former)
            self._identity = identity_of(os.fstat(fd))
            _held_locks.add(self._identity)
            os.pwrite(fd, b"lock", 0)
            return True

    def release(self) -> None:
        """Release the lock. Idempotent."""
        fd, self._fd = self._fd, -1
        self._forget_file(fd)
        if self._directory_fd >= 0:
            _directory_fds.discard(self._directory_fd)
            os.close(self._directory_fd)
            self._directory_fd = -1

    def _forget_file(self, fd: int) -> None:
        if fd >= 0:
            os.close(fd)
            if self._identity is not None:
                _held_locks.discard(self._identity)


def take(path: Path) -> DirectoryLock:
    """Take the exclusive lock. Raises StoreLockedError when any process holds it."""
    with named_errors(path):
        # Looked up before the file is opened: closing any descriptor of a file drops every
        # POSIX lock that the process holds on it.
        if path.exists() and identity_of(path.stat()) in _held_locks:
            raise locked_error(path, "this process")
        directory_fd = _lock_directory(path, fcntl.LOCK_EX)
        with ExitStack() as on_failure:
            on_failure.callback(_close_directory, directory_fd)
            fd = os.open(path, os.O_RDWR | _MAKE, _FILE_MODE)
            if not _take_or_close(fd, EXCLUSIVE):
                raise locked_error(path, "another process")
            os.pwrite(fd, b"lock", 0)
            SPARE.keep()
            on_failure.pop_all()
        return DirectoryLock(path, fd, directory_fd)


def take_for_reading(path: Path) -> DirectoryLock | None:
    """Take a lock that keeps brokers out, without writing; if there is no file, it keeps out only
    our own brokers.

    Raises StoreLockedError when a broker holds the lock. Returns None without file and directory.
    """
    with named_errors(path):
        if not path.parent.is_dir():
            return None
        directory_fd = _lock_directory(path, fcntl.LOCK_SH)
        with ExitStack() as on_failure:
            on_failure.callback(_close_directory, directory_fd)
            fd = -1
            with suppress(FileNotFoundError):
                if identity_of(path.stat()) in _held_locks:
                    raise locked_error(path, "this process")
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if fd >= 0 and not _take_or_close(fd, SHARED):
                raise _used_by_broker(path)
            on_failure.pop_all()
        return DirectoryLock(path, fd, directory_fd)


def _take_or_close(fd: int, kind: int) -> bool:
    """Take a lock as `take_lock` does; if that fails, close the descriptor."""
    is_held = False
    try:
        is_held = take_lock(fd, kind)
    finally:
        if not is_held:
            os.close(fd)
    return is_held


def _lock_directory(path: Path, kind: int) -> int:
    """Lock the directory of the file `path`; return its descriptor, -1 where that is impossible.

    Network file systems lock only files that are open for writing, and a directory never is.
    """
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
            return -1
        raise (
            locked_error(path, "another process")
            if kind == fcntl.LOCK_EX
            else _used_by_broker(path)
        ) from None
    _directory_fds.add(fd)
    return fd


def _close_directory(fd: int) -> None:
    if fd >= 0:
        _directory_fds.discard(fd)
        os.close(fd)


def _used_by_broker(path: Path) -> StoreLockedError:
    return StoreLockedError(
        f"{path.parent} is in use by a broker: stop it first, or work on a copy"
    )


def identity_of(stats: os.stat_result) -> tuple[int, int]:
    return stats.st_dev, stats.st_ino


def locked_error(path: Path, owner: str) -> StoreLockedError:
    return StoreLockedError(
        f"{path.parent} is in use by {owner}: stop the broker that runs there, "
        f"or set storePathRootDir to a directory of its own"
    )
