"""Copy between real directories and a file system in memory. Zeros take no room on either side."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cometmq.testing.virtual.storage.file_system import PAGE, FileSystem

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_CHUNK: Final = 256 * PAGE


def load(system: FileSystem, directory: Path, root: Path) -> None:
    """Copy a real directory to `root`, where no file may be yet; all of it is durable."""
    if not directory.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
    system.make_directory(root, _DIRECTORY_MODE)
    for path in sorted(directory.rglob("*")):
        place = root / path.relative_to(directory)
        if path.is_dir():
            system.make_directory(place, _DIRECTORY_MODE)
        elif path.is_file():
            file = system.create(place, _FILE_MODE)
            stats = path.stat()
            file.resize(stats.st_size)
            file.room = min(stats.st_size, stats.st_blocks * 512)
            file.modified_ms = stats.st_mtime_ns // 1_000_000
            for start, data in _data(path):
                file.write(start, data)
    system.sync_all()


def save(system: FileSystem, root: Path, directory: Path) -> None:
    """Copy what lies below `root` into a real directory."""
    for path, _ in system.directories(root):
        (directory / path.relative_to(root)).mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
    for path, file in system.files(root):
        place = directory / path.relative_to(root)
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        try:
            os.ftruncate(fd, file.size)
            for number, page in file.pages():
                os.pwrite(fd, page, number * PAGE)
        finally:
            os.close(fd)
        os.utime(place, ns=(file.modified_ms * 1_000_000,) * 2)


def _data(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield what is not zero in a file, with its offsets, without reading its holes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        end, size = 0, os.fstat(fd).st_size
        while end < size:
            try:
                start = os.lseek(fd, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    return
                raise
            end = min(os.lseek(fd, start, os.SEEK_HOLE), start + _CHUNK)
            data = os.pread(fd, end - start, start)
            if data.strip(b"\0"):
                yield start, data
    finally:
        os.close(fd)
