"""A file of lines that several processes of one machine add to and all follow.

All see the same order, which is that of the file. A process that dies holds up nobody: the lock
ends with it, and a line that it left unfinished is one damaged line for the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from cometmq.runtime.state_files import durable
from cometmq.runtime.state_files.file_lock import locked

log = structlog.get_logger(__name__)

# A smaller file is not written anew.
COMPACT_FROM_BYTES: Final = 8 * 1024 * 1024

# Makes the lines to add from the news that lie before them.
MakeLines = Callable[[list[bytes]], Iterable[bytes]]
# Returns those of all lines that the file must keep.
Compact = Callable[[list[bytes]], Iterable[bytes]]


class SharedLines:
    """One process's view of the file: it knows up to where it has read.

    All methods block and raise OSError, `append` BlockingIOError if another process is adding
    lines. One call at a time. Lines have no ends here.

    When the file has grown to `compact_from_bytes`, and to twice what was kept last, it is replaced
    by the lines that `compact` keeps. Whoever has read the old file then gets all kept lines as
    news, so lines must say by themselves which of them are known.
    """

    def __init__(
        self, path: Path, compact: Compact, *, compact_from_bytes: int = COMPACT_FROM_BYTES
    ) -> None:
        self.path = path
        self._lock = path.with_name(path.name + ".lock")
        self._compact = compact
        self._least_bytes = self._compact_from_bytes = compact_from_bytes
        # Kept open, so that no other file gets the inode's number meanwhile.
        self._file: BinaryIO | None = None
        self._inode = -1
        self._offset = 0
        # How far the last look went; beyond the offset there may be a line that has no end yet.
        self._seen = 0

    def has_news(self) -> bool:
        """Say whether the file has changed since the last call of another method."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        return found.st_ino != self._inode or found.st_size != self._seen

    def read(self) -> list[bytes]:
        """Return the whole lines that came since the last time."""
        try:
            if self._file is None or self.path.stat().st_ino != self._inode:
                self._open()
        except FileNotFoundError:
            return []
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < self._offset:
            self._offset = 0
        self._file.seek(self._offset)
        data = self._file.read()
        end = data.rfind(b"\n") + 1
        self._seen = self._offset + len(data)
        self._offset += end
        return data[:end].split(b"\n")[:-1]

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file, self._inode = None, -1

    def _open(self) -> None:
        file = self.path.open("rb", buffering=0)
        self.close()
        self._file, self._offset = file, 0
        self._inode = os.fstat(file.fileno()).st_ino

    def append(self, make: MakeLines) -> list[bytes]:
        """Add lines durably, and return the news that came before them."""
        durable.make_directories(self.path.parent)
        with locked(self._lock):
            news = self.read()
            data = b"".join(line + b"\n" for line in make(news))
            if self._seen > self._offset and self._inode >= 0:
                data = b"\n" + data  # ends the line of a process that died meanwhile
            self._add(data)
            if self._seen >= self._compact_from_bytes:
                try:
                    self._write_anew()
                except OSError as error:
                    # The lines are added. Whoever got an error would add them once more.
                    self._compact_from_bytes = self._seen + self._least_bytes // 8
                    log.warning("shared file grows on", path=str(self.path), why=str(error))
        return news

    def _add(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.path, flags, durable.PRIVATE_FILE)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fdatasync(fd)
        finally:
            os.close(fd)
        self._know_all()

    def _write_anew(self) -> None:
        lines = self.path.read_bytes().split(b"\n")[:-1]
        temporary = self.path.with_name(self.path.name + ".tmp")
        durable.write_new(temporary, (line + b"\n" for line in self._compact(lines)))
        temporary.replace(self.path)
        durable.sync(self.path.parent)
        self._know_all()
        self._compact_from_bytes = max(self._least_bytes, 2 * self._offset)

    def _know_all(self) -> None:
        if self._file is None or self.path.stat().st_ino != self._inode:
            self._open()
        assert self._file is not None
        self._offset = self._seen = os.fstat(self._file.fileno()).st_size
