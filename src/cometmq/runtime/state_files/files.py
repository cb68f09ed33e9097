"""Read and write the state files beside a store: small texts and journals.

Servers and clients take `Files` as they take a clock or a network, so that a simulated node has its
state files on its own disk, where they share that disk's faults. The store's large files go through
`cometmq.store.files.disk.Disk`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from cometmq.runtime.state_files import durable
from cometmq.runtime.state_files.durable import PRIVATE_FILE


class AppendFile(Protocol):
    """An open file that only grows."""

    def append(self, data: bytes) -> None:
        """Add bytes at the end and sync them. Raises OSError, also if the file was removed."""

    def close(self) -> None:
        """Close the file. Idempotent."""


class Files(Protocol):
    """Defines what state files need of a file system. All methods block and raise OSError."""

    def read(self, path: Path) -> bytes:
        """Return the bytes of a file. Raises FileNotFoundError if there is none."""

    def size(self, path: Path) -> int | None:
        """Return how many bytes a file has, or None if there is no such file."""

    def modified_ns(self, path: Path) -> int | None:
        """Return when a file was last written, or None if there is no file or it is a link."""

    def names(self, path: Path) -> list[tuple[str, bool]]:
        """Return the names in a directory, sorted, and which of them are directories.

        Return none if there is no such directory.
        """

    def exists(self, path: Path) -> bool:
        """Say whether there is a file or directory of that name."""

    def permissions(self, path: Path) -> int | None:
        """Return the permission bits of a file, or None if there is no such file."""

    def make_directories(self, path: Path) -> None:
        """Make a directory and its missing parents, durably and for this user alone."""

    def write_new(self, path: Path, pieces: Iterable[bytes], mode: int = PRIVATE_FILE) -> None:
        """Make a file of `pieces`, in the place of any of that name, and sync it.

        A failure leaves no file. The file's name is durable after `sync` of its directory.
        """

    def append_to(self, path: Path) -> AppendFile:
        """Open an existing file to add to it."""

    def link(self, path: Path, second: Path) -> None:
        """Give a file a second name, which must be free."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, in the place of any that has the name already."""

    def remove(self, path: Path) -> bool:
        """Remove a file. Return False if there was none."""

    def sync(self, path: Path) -> None:
        """Flush a file's bytes, or a directory's entries, to the disk."""


class _SystemAppendFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)

    def append(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        os.fdatasync(self._fd)
        if not os.fstat(self._fd).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "removed while it was written", str(self._path))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file. A pipe in its place would keep the thread until somebody writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


class SystemFiles:
    """The files of the operating system."""

    permissions = staticmethod(durable.permissions)
    make_directories = staticmethod(durable.make_directories)
    write_new = staticmethod(durable.write_new)
    sync = staticmethod(durable.sync)

    def read(self, path: Path) -> bytes:
        with open(path, "rb", opener=open_without_waiting) as file:
            # A pipe whose writer has written nothing yet gives None.
            return file.read() or b""

    def size(self, path: Path) -> int | None:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def modified_ns(self, path: Path) -> int | None:
        try:
            found = path.lstat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns if stat.S_ISREG(found.st_mode) else None

    def names(self, path: Path) -> list[tuple[str, bool]]:
        try:
            return sorted((entry.name, entry.is_dir()) for entry in path.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def append_to(self, path: Path) -> AppendFile:
        return _SystemAppendFile(path)

    def link(self, path: Path, second: Path) -> None:
        second.hardlink_to(path)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> bool:
        with suppress(FileNotFoundError):
            path.unlink()
            return True
        return False


SYSTEM_FILES: Final[Files] = SystemFiles()
