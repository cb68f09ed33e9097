"""A disk in memory that forgets, at a crash, part of what was not synced."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from cometmq.errors import StoreFullError
from cometmq.store.disk import Disk

PAGE = 4096
SECTOR = 512


class File:
    """A file. `cache` is what running code sees, `durable` what certainly survives a crash."""

    def __init__(self, size: int) -> None:
        self.cache = mmap.mmap(-1, max(size, 1))
        self.durable = bytearray(size)

    def resize(self, size: int) -> None:
        grown = File(size)
        kept = min(size, len(self.durable))
        grown.cache[:kept] = self.cache[:kept]
        grown.durable[:kept] = self.durable[:kept]
        self.cache, self.durable = grown.cache, grown.durable

    def sync(self) -> None:
        self.durable[:] = self.cache[: len(self.durable)]

    def crash(self, rng: random.Random) -> None:
        """Lose the power: any page may have been written back before, some only in part."""
        for start in range(0, len(self.durable), PAGE):
            end = min(start + PAGE, len(self.durable))
            if self.durable[start:end] == self.cache[start:end] or rng.random() < 0.5:
                continue
            if rng.random() < 0.2:
                end = min(end, start + SECTOR * rng.randrange(1, PAGE // SECTOR))
            self.durable[start:end] = self.cache[start:end]
        self.cache = mmap.mmap(-1, max(len(self.durable), 1))
        self.cache[: len(self.durable)] = bytes(self.durable)


class FaultDisk(Disk):
    """A disk in memory. `crash` starts a new life of the disk; `room` is how many more files it
    takes.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files: dict[Path, File] = {}
        self.room = 1 << 30

    def crash(self) -> None:
        for file in self.files.values():
            file.crash(self.rng)

    def side_by_side(self, works: Sequence[Callable[[], object]]) -> None:
        # In order, so that a seed replays.
        for work in works:
            work()

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def names(self, path: Path) -> list[str]:
        depth = len(path.parts)
        return sorted(
            {file.parts[depth] for file in self.files if file.parts[:depth] == path.parts}
        )

    def is_directory(self, path: Path) -> bool:
        return path not in self.files

    def size(self, path: Path) -> int | None:
        return len(self.files[path].durable) if path in self.files else None

    def allocate(self, path: Path, size: int, *, reserved: int | None = None) -> None:
        if path in self.files:
            if len(self.files[path].durable) < size:
                self.files[path].resize(size)
            return
        if self.room <= 0:
            raise StoreFullError(f"{path}: the disk has no room for {size} bytes")
        self.room -= 1
        self.files[path] = File(size)

    def reserve(self, path: Path, start: int, end: int) -> None:
        pass

    def cut(self, path: Path, start: int, size: int, *, reserve: bool) -> None:
        file = self.files[path]
        file.cache[start:size] = bytes(size - start)
        file.sync()

    def map(
        self, path: Path, size: int, *, writable: bool = True, read_ahead: bool = True
    ) -> mmap.mmap:
        return self.files[path].cache

    def populate(self, mapping: mmap.mmap, start: int, end: int) -> None:
        pass

    def warm(self, mapping: mmap.mmap, start: int, end: int) -> None:
        pass

    def write_at(self, path: Path, start: int, data: memoryview) -> None:
        self.files[path].cache[start : start + len(data)] = data

    def sync(self, path: Path) -> None:
        if path in self.files:
            self.files[path].sync()

    def sync_directory(self, path: Path) -> None:
        pass

    def write(self, path: Path, data: bytes) -> None:
        self.files[path] = File(len(data))
        self.files[path].cache[: len(data)] = data
        self.files[path].sync()

    def overwrite(self, path: Path, data: bytes, size: int) -> None:
        self.allocate(path, size)
        self.files[path].cache[: len(data)] = data
        self.files[path].sync()

    def read(self, path: Path) -> bytes:
        return bytes(self.files[path].cache)

    def read_into(self, path: Path, offset: int, target: memoryview) -> int:
        data = self.files[path].cache[offset : offset + len(target)]
        target[: len(data)] = data
        return len(data)

    def rename(self, source: Path, target: Path) -> None:
        self.files[target] = self.files.pop(source)

    def remove(self, path: Path) -> None:
        self.files.pop(path, None)

    def remove_tree(self, path: Path) -> None:
        for file in [file for file in self.files if path in file.parents]:
            del self.files[file]
