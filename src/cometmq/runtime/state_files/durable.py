"""Write files that survive a loss of power and that nobody else can have planted.

Each file is created again: a file or a symbolic link that has the name of a temporary file is
removed, never written through. State files and their directories are for their owner alone.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700
# The umask is applied to these modes only.
SHARED_FILE: Final = 0o666
SHARED_DIRECTORY: Final = 0o777

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
# The codes by which the file system or the kernel says that it cannot exchange two names.
_NO_EXCHANGE: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
# The codes by which a file system says that it has no hard links. vfat says EPERM.
_NO_LINKS: Final = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP)


def make_directories(path: Path, mode: int = PRIVATE_DIRECTORY) -> None:
    """Make a directory and its missing parents, durably; by default for this user alone.

    Raises OSError.
    """
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(mode=mode, exist_ok=True)
        sync(directory.parent)


def create(path: Path, mode: int = PRIVATE_FILE) -> int:
    """Remove any file of that name, make a new one and open it for writing.

    Returns the descriptor. Raises OSError, FileExistsError if somebody else makes the file meanwhile.
    """
    with suppress(FileNotFoundError):
        path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    if mode != SHARED_FILE:
        os.fchmod(descriptor, mode)  # whatever the umask is
    return descriptor


def write_new(path: Path, pieces: Iterable[bytes], mode: int = PRIVATE_FILE) -> None:
    """Make a file of `pieces` and sync it. Raises OSError and then leaves no file."""
    descriptor = create(path, mode)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.writelines(pieces)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        # A partial file would take up room that a full disk lacks.
        with suppress(OSError):
            path.unlink()
        raise


def write_atomically(path: Path, data: bytes, mode: int = SHARED_FILE) -> None:
    """Write a file as a whole or not at all. Raises OSError; the file is then as before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write_new(temporary, [data], mode)
    temporary.replace(path)
    sync(path.parent)


def create_atomically(path: Path, data: bytes, mode: int = SHARED_FILE) -> None:
    """Write a file as a whole, in a directory that is there, if there is none of that name.

    Raises FileExistsError, and of several callers all but one get it; else OSError. On a file system
    without hard links two callers may both succeed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write_new(temporary, [data], mode)
    try:
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
            temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def permissions(path: Path) -> int | None:
    """Return the permission bits of a file, or None if there is no such file."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


def sync(path: Path) -> None:
    """Flush a file's bytes, or a directory's entries, to the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange_names(one: Path, other: Path) -> bool:
    """Exchange two files or directories atomically. Return False if the file system cannot.

    Linux has renameat2 for that; NFS, for example, cannot. Raises OSError.
    """
    import ctypes  # short commands import this module, and need no more of it than files

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    names = os.fsencode(one), os.fsencode(other)
    if not libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        return True
    if (code := ctypes.get_errno()) in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))
