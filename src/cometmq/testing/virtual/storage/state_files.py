"""Put a node's state files on its disk in memory."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.runtime.state_files.durable import PRIVATE_DIRECTORY, PRIVATE_FILE
from cometmq.testing.virtual.storage.file_system import Directory, File, refuse

if TYPE_CHECKING:
    from cometmq.testing.virtual.storage.disk import VirtualDisk


class _VirtualAppendFile:
    def __init__(self, disk: VirtualDisk, file: File, path: Path) -> None:
        self._disk = disk
        self._file: File | None = file
        self._path = path

    def append(self, data: bytes) -> None:
        if self._file is None:
            refuse(errno.EBADF, self._path)
        self._disk.append_to(self._file, self._path, data)
        if self._disk.system.find(self._path) is not self._file:
            refuse(errno.ENOENT, self._path)

    def close(self) -> None:
        self._file = None


class VirtualFiles:
    """The `Files` of a virtual disk: its operations fail by the disk's rules, as OSErrors."""

    def __init__(self, disk: VirtualDisk) -> None:
        self._disk = disk

    def read(self, path: Path) -> bytes:
        self._disk.faults.strike("read", path)
        file = self._disk.system.file(path)
        return file.read(0, file.size)

    def size(self, path: Path) -> int | None:
        node = self._disk.system.find(path)
        return node.size if isinstance(node, File) else None

    def modified_ns(self, path: Path) -> int | None:
        node = self._disk.system.find(path)
        return node.modified_ms * 1_000_000 if isinstance(node, File) else None

    def names(self, path: Path) -> list[tuple[str, bool]]:
        node = self._disk.system.find(path)
        if not isinstance(node, Directory):
            return []
        return sorted((name, isinstance(below, Directory)) for name, below in node.entries.items())

    def exists(self, path: Path) -> bool:
        return self._disk.system.find(path) is not None

    def permissions(self, path: Path) -> int | None:
        node = self._disk.system.find(path)
        return None if node is None else node.mode

    def make_directories(self, path: Path) -> None:
        if isinstance(self._disk.system.find(path), Directory):
            return
        self._disk.faults.strike("make_directory", path)
        for made in self._disk.system.make_directory(path, PRIVATE_DIRECTORY):
            self._disk.system.sync_directory(made.parent)

    def write_new(self, path: Path, pieces: Iterable[bytes], mode: int = PRIVATE_FILE) -> None:
        self._disk.system.remove(path)
        try:
            self._disk.write_file(path, b"".join(pieces), mode)
        except BaseException:
            self._disk.system.remove(path)
            raise

    def append_to(self, path: Path) -> _VirtualAppendFile:
        return _VirtualAppendFile(self._disk, self._disk.system.file(path), path)

    def link(self, path: Path, second: Path) -> None:
        self._disk.faults.strike("link", path)
        self._disk.system.link(path, second)

    def replace(self, source: Path, target: Path) -> None:
        self._disk.faults.strike("rename", source)
        self._disk.system.rename(source, target)

    def remove(self, path: Path) -> bool:
        self._disk.faults.strike("remove", path)
        return self._disk.system.remove(path)

    def sync(self, path: Path) -> None:
        system = self._disk.system
        if isinstance(system.find(path), Directory):
            self._disk.faults.strike("sync_directory", path)
            system.sync_directory(path)
        else:
            self._disk.sync_file(system.file(path), path)
