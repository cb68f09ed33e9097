"""A disk in memory that, beside forgetting at a crash what was not synced, fails when it is told to,
and can be damaged afterwards.
"""

from __future__ import annotations

import errno
import mmap
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.unit.store.fault_disk import PAGE, SECTOR, FaultDisk, File

from cometmq.errors import StoreError, StoreFullError
from cometmq.store.files.disk import DiskUsage


class HostileDisk(FaultDisk):
    """`arm` makes one of the following write operations fail, as a full or a broken disk does.

    After a failed sync the kernel takes the pages for clean that it could not write: they are lost
    at the next crash, and further syncs say that all is well.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.used_ratio = 0.5
        self.operation_count = 0
        self._fuse = -1
        self._fault = ""
        self.failures: list[str] = []
        # By path: what the kernel believes to be on disk after a failed sync.
        self._believed: dict[Path, bytes] = {}
        # By directory: files whose names no sync has made durable, in the order they were made.
        self._new_names: dict[Path, list[Path]] = {}

    def arm(self, fault: str, operations: int) -> None:
        """Fail the write operation that comes after so many others: "ENOSPC" or "EIO"."""
        self._fuse, self._fault = operations, fault

    def disarm(self) -> None:
        self._fuse = -1

    @contextmanager
    def at_peace(self) -> Iterator[None]:
        """Nothing fails meanwhile."""
        fuse, self._fuse = self._fuse, -1
        yield
        self._fuse = fuse

    def _write(self, operation: str, path: Path) -> None:
        self.operation_count += 1
        if self._fuse < 0:
            return
        self._fuse -= 1
        if self._fuse >= 0:
            return
        self.failures.append(f"{self._fault} {operation} {path.name}")
        if self._fault == "ENOSPC" and operation not in ("sync", "sync_directory", "remove"):
            raise StoreFullError(f"{path}: the disk has no room", code=14)
        if operation == "sync" and path in self.files:
            self._lose(path)
        raise StoreError(f"{path}: Input/output error") from OSError(errno.EIO, "EIO")

    def _lose(self, path: Path) -> None:
        """Write some of the dirty pages; take the others for written."""
        file = self.files[path]
        for start in range(0, len(file.durable), PAGE):
            if self.rng.random() < 0.5:
                file.durable[start : start + PAGE] = file.cache[start : start + PAGE][
                    : len(file.durable) - start
                ]
        self._believed[path] = bytes(file.cache[: len(file.durable)])

    def crash(self) -> None:
        for names in self._new_names.values():
            # The journal of a file system keeps their order.
            for path in names[self.rng.randrange(len(names) + 1) :]:
                self.files.pop(path, None)
        self._new_names.clear()
        for path, file in self.files.items():
            believed = self._believed.get(path)
            if believed is not None and len(believed) == len(file.durable):
                _forget(file, believed)
            _tear(file, self.rng)
        super().crash()
        self._believed.clear()
        self.disarm()

    # Every way in which the store writes.

    def allocate(self, path: Path, size: int, *, reserved: int | None = None) -> None:
        self._write("allocate", path)
        if path not in self.files:
            self._new_names.setdefault(path.parent, []).append(path)
        super().allocate(path, size, reserved=reserved)

    def reserve(self, path: Path, start: int, end: int) -> None:
        self._write("reserve", path)
        super().reserve(path, start, end)

    def cut(self, path: Path, start: int, size: int, *, reserve: bool) -> None:
        self._write("cut", path)
        super().cut(path, start, size, reserve=reserve)

    def write_at(self, path: Path, start: int, data: memoryview) -> None:
        self._write("write_at", path)
        super().write_at(path, start, data)

    def sync(self, path: Path) -> None:
        self._write("sync", path)
        file = self.files.get(path)
        believed = self._believed.get(path)
        if file is None or believed is None or len(believed) != len(file.durable):
            super().sync(path)
            return
        for start in range(0, len(believed), PAGE):
            end = min(start + PAGE, len(believed))
            if file.cache[start:end] != believed[start:end]:
                file.durable[start:end] = file.cache[start:end]
        self._believed[path] = bytes(file.cache[: len(believed)])

    def sync_directory(self, path: Path) -> None:
        self._write("sync_directory", path)
        self._new_names.pop(path, None)

    def write(self, path: Path, data: bytes) -> None:
        self._write("write", path)
        super().write(path, data)

    def overwrite(self, path: Path, data: bytes, size: int) -> None:
        self._write("overwrite", path)
        # Not through `allocate`: one operation, one chance to fail.
        FaultDisk.allocate(self, path, size)
        self.files[path].cache[: len(data)] = data
        self.files[path].sync()

    def rename(self, source: Path, target: Path) -> None:
        self._write("rename", source)
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._write("remove", path)
        super().remove(path)

    def remove_tree(self, path: Path) -> None:
        self._write("remove", path)
        super().remove_tree(path)

    # What the tools and retention ask.

    def usage(self, path: Path) -> DiskUsage:
        total = 1 << 40
        return DiskUsage(total, total - int(total * self.used_ratio))

    def modified_ms(self, path: Path) -> int:
        return 0

    def owner(self, path: Path) -> str | None:
        exists = path in self.files or any(path in file.parents for file in self.files)
        return self.user() if exists else None

    def access_fault(self, path: Path, *, write: bool) -> str | None:
        return None

    # Damage, to what is durable and what is seen.

    def change(self, path: Path, change: Callable[[bytearray], bytearray]) -> None:
        file = self.files[path]
        data = change(bytearray(file.cache[: len(file.durable)]))
        fresh = File(len(data))
        fresh.cache[: len(data)] = bytes(data)
        fresh.durable[:] = data
        self.files[path] = fresh


def _forget(file: File, believed: bytes) -> None:
    """What was taken for written while it was not: the disk's old bytes come back."""
    cache = mmap.mmap(-1, max(len(file.durable), 1))
    for start in range(0, len(file.durable), PAGE):
        end = min(start + PAGE, len(file.durable))
        same = file.cache[start:end] == believed[start:end]
        cache[start:end] = bytes(file.durable[start:end]) if same else file.cache[start:end]
    file.cache = cache


def _tear(file: File, rng: random.Random) -> None:
    """Of some unsynced pages any sectors reach the disk, not only the first ones."""
    for start in range(0, len(file.durable), PAGE):
        end = min(start + PAGE, len(file.durable))
        if file.durable[start:end] == file.cache[start:end] or rng.random() < 0.9:
            continue
        for sector in range(start, end, SECTOR):
            if rng.random() < 0.5:
                stop = min(sector + SECTOR, end)
                file.durable[sector:stop] = file.cache[sector:stop]
