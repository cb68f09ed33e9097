"""Hold the file that a server's log goes to: renamed when it is full, opened again when it moved.

`LineWriter` calls it in its own thread only, so no request ever waits for the disk.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from cometmq.errors import ConfigError

# As large as a file may become by default, and how many full ones are kept beside it.
FILE_MIB: Final = 100
KEPT_FILES: Final = 10
MOST_KEPT_FILES: Final = 1000
# Readable for the group of the server, which collectors of logs join.
_MODE: Final = 0o640


class LogFile:
    """A log's file `path`, with `path.1` (the newest full one) to `path.N` beside it.

    A file that something else moved, deleted or truncated (logrotate, say) is noticed before the
    next line, and at most a second later: the program needs no signal.
    """

    def __init__(self, path: Path, *, file_bytes: int, kept_files: int) -> None:
        """Open the file. Raises ConfigError that names the path and the remedy."""
        # Renaming would otherwise move the link and leave its target where it is.
        self.path = path.resolve()
        self._file_bytes = file_bytes
        self._kept_files = kept_files
        self._fd = -1
        self._inode = (-1, -1)
        self._fault: str | None = None
        self._reported: str | None = None
        try:
            self._open()
        except OSError as error:
            raise ConfigError(
                f"the log file {path} cannot be opened: {error.strerror or error}; name a file in a "
                "directory that exists and that this user may write to"
            ) from error

    def descriptor(self, size: int = 0) -> int:
        """Return the descriptor that the next `size` bytes belong to. Raises OSError.

        A file that cannot be renamed grows on: that is better than to lose lines.
        """
        if self._has_moved():
            self._open()
        length = os.fstat(self._fd).st_size
        if length and length + size > self._file_bytes:
            try:
                self._rename()
                self._fault = None
            except OSError as error:
                self._fault = error.strerror or str(error)
            if self._has_moved():
                self._open()
        return self._fd

    def new_fault(self) -> str | None:
        """Return why full files cannot be renamed, once for each reason."""
        fault, reported, self._reported = self._fault, self._reported, self._fault
        return fault if fault != reported else None

    def _has_moved(self) -> bool:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return True
        return (found.st_dev, found.st_ino) != self._inode

    def _open(self) -> None:
        # Without O_NONBLOCK a pipe that nobody reads would never open.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(self.path, flags, _MODE)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise OSError(0, "it is no regular file")
        old, self._fd = self._fd, fd
        self._inode = (found.st_dev, found.st_ino)
        if old >= 0:
            os.close(old)

    def _rename(self) -> None:
        for number in range(self._kept_files - 1, 0, -1):
            with suppress(FileNotFoundError):
                self._kept(number).replace(self._kept(number + 1))
        self.path.replace(self._kept(1))

    def _kept(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
