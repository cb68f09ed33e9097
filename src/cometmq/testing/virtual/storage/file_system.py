"""Keep files and directories in memory, in two states: as running code sees them, and as they
would be after a loss of power.

A file's bytes seen by running code are its cache: an anonymous mapping, of which untouched pages
take no memory, or a few bytes for a file that is not mapped. Its durable bytes are a table of those
pages that are not zero. Names are durable, too, only once their directory is synced; until then a
loss of power keeps any number of the changes of one directory, in their order, as the journal of a
file system does.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from cometmq.runtime.randomness import Randomness
from cometmq.testing.virtual.storage.touched import touched_pages

PAGE: Final = 4096
SECTOR: Final = 512
# Smaller files are not mapped before somebody asks for it.
_LEAST_MAPPED: Final = 16 * PAGE
_ZEROS: Final = bytes(PAGE)
_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)


def refuse(code: int, path: Path) -> NoReturn:
    raise OSError(code, os.strerror(code), str(path))


class Node:
    """Holds what a file and a directory have in common: permissions."""

    def __init__(self, mode: int) -> None:
        self.mode = mode


class File(Node):
    """A file. `room` is how many of its bytes no full disk can refuse any more."""

    def __init__(self, size: int = 0, mode: int = 0o600) -> None:
        super().__init__(mode)
        self.size = size
        self.room = 0
        self.modified_ms = 0
        self._cache: bytearray | mmap.mmap = _blank(size)
        self._durable: dict[int, bytes] = {}
        self.durable_size = 0
        # The journal of the file system has the size, or will have it in its order.
        self.is_size_journaled = False
        # Pages that the kernel takes for written after a sync that failed.
        self._believed: dict[int, bytes] = {}

    # As running code sees it

    def mapped(self) -> mmap.mmap:
        if not isinstance(self._cache, mmap.mmap):
            mapping = _mapping(self.size)
            mapping[: self.size] = bytes(self._cache)
            self._cache = mapping
        return self._cache

    def read(self, start: int, end: int) -> bytes:
        return bytes(self._cache[start : min(end, self.size)])

    def write(self, start: int, data: bytes | memoryview) -> None:
        end = start + len(data)
        if end > self.size:
            self.resize(end)
        self._cache[start:end] = data
        # The same bytes, too: a page that was written waits for a sync again.
        for number in range(start // PAGE, -(-end // PAGE)):
            self._believed.pop(number, None)

    def resize(self, size: int) -> None:
        """Cut the file or add zeros. A mapping that was handed out shows no later changes then."""
        if size == self.size:
            return
        kept = self.read(0, min(size, self.size))
        self._cache, self.size = _blank(size), size
        self._cache[: len(kept)] = kept
        self.room = min(self.room, size)

    def flip(self, offset: int, bits: int) -> None:
        """Change bits of a byte, in the cache and in what is durable."""
        self._cache[offset] ^= bits
        number, position = divmod(offset, PAGE)
        page = bytearray(self._durable.get(number, _ZEROS))
        page[position] ^= bits
        self._keep(number, bytes(page))

    # The durable state

    def sync(self) -> bool:
        """Make all bytes durable but those that a failed sync lost. Return if any were not yet."""
        changed = self.durable_size != self.size
        for number, page in self._dirty():
            if self._believed.get(number) == page:
                continue
            self._believed.pop(number, None)
            self._keep(number, page)
            changed = True
        self.durable_size = self.size
        self.is_size_journaled = False
        return changed

    def fail_sync(self, randomness: Randomness) -> None:
        """Write some of the pages; take the others for written, as Linux does after an error."""
        for number, page in self._dirty():
            if randomness.random() < 0.5:
                self._keep(number, page)
            else:
                self._believed[number] = page

    def lose_power(self, randomness: Randomness) -> None:
        """Keep what was synced; any other page may have reached the disk, some only in part."""
        size = self._size_after(randomness)
        for number, page in self._dirty():
            if self._believed.get(number) != page:
                self._keep(number, _torn(page, self._durable.get(number, _ZEROS), randomness))
        self.restore(size)

    def _size_after(self, randomness: Randomness) -> int:
        if self.durable_size == self.size or self.is_size_journaled:
            return self.durable_size
        return randomness.randint(*sorted((self.durable_size, self.size)))

    def restore(self, size: int) -> None:
        """Let running code see the durable bytes of a file of `size` bytes, as after a start."""
        self._believed.clear()
        self._durable = {
            number: page for number, page in self._durable.items() if number * PAGE < size
        }
        tail = size % PAGE
        if tail and (last := self._durable.get(size // PAGE)) is not None:
            self._keep(size // PAGE, last[:tail].ljust(PAGE, b"\0"))
        self.size = self.durable_size = size
        self.is_size_journaled = False
        self.room = min(self.room, size)
        self._cache = _blank(size)
        for number, page in self._durable.items():
            start = number * PAGE
            self._cache[start : start + PAGE] = page[: size - start]

    def pages(self) -> Iterator[tuple[int, bytes]]:
        """Yield the pages that running code sees and that are not zero, with their numbers."""
        cache, count = self._cache, -(-self.size // PAGE)
        numbers = touched_pages(cache, count) if isinstance(cache, mmap.mmap) else range(count)
        for number in numbers:
            page = bytes(cache[number * PAGE : min((number + 1) * PAGE, self.size)])
            if page.strip(b"\0"):
                yield number, page

    def _keep(self, number: int, page: bytes) -> None:
        if page == _ZEROS:
            self._durable.pop(number, None)
        else:
            self._durable[number] = page

    def _dirty(self) -> Iterator[tuple[int, bytes]]:
        """Yield the pages whose durable bytes are others than those in the cache."""
        cache, durable, count = self._cache, self._durable, -(-self.size // PAGE)
        numbers = touched_pages(cache, count) if isinstance(cache, mmap.mmap) else range(count)
        for number in numbers:
            start = number * PAGE
            page = bytes(cache[start : min(start + PAGE, self.size)]).ljust(PAGE, b"\0")
            if page != durable.get(number, _ZEROS):
                yield number, page


class _Change:
    """One change in a file system's journal: of names, in one directory or in two, that happens as
    a whole or not at all; or of the size of a file, which is kept by its directory.
    """

    def __init__(
        self,
        names: list[tuple[Directory, str, Node | None]],
        sized: tuple[File, int] | None = None,
    ) -> None:
        self._names = names
        self._sized = sized
        for directory in self.directories():
            directory.pending.append(self)

    def keep_partly(self, randomness: Randomness) -> None:
        """Let a file grow to a part of its size, as when its room was being reserved.

        Room is given in blocks, so what lies beyond is lost by whole sectors, as a torn page is.
        """
        if self._sized is not None:
            file, size = self._sized
            end = randomness.randint(file.durable_size, size)
            file.durable_size = max(file.durable_size, end - end % SECTOR)

    def directories(self) -> list[Directory]:
        return list(dict.fromkeys(directory for directory, _, _ in self._names))

    def has(self, directory: Directory, name: str) -> bool:
        return any(where is directory and which == name for where, which, _ in self._names)

    def happen(self) -> None:
        for directory, name, node in self._names:
            if node is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = node

    def keep(self) -> None:
        """Make the change durable, and all that came before it in its directories."""
        for directory in self.directories():
            while directory.pending[0] is not self:
                directory.pending[0].keep()
        for directory, name, node in self._names:
            if node is None:
                directory.durable.pop(name, None)
            else:
                directory.durable[name] = node
        if self._sized is not None:
            file, size = self._sized
            file.durable_size = max(file.durable_size, size)
        for directory in self.directories():
            directory.pending.remove(self)


class Directory(Node):
    def __init__(self, mode: int = 0o700) -> None:
        super().__init__(mode)
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: list[_Change] = []

    def sync(self) -> None:
        while self.pending:
            self.pending[0].keep()

    def keep_name(self, name: str) -> None:
        """Make durable what one name stands for, and what was changed before it."""
        for change in [change for change in self.pending if change.has(self, name)]:
            change.keep()

    def lose_power(self, randomness: Randomness) -> None:
        if not self.pending:
            return
        changes = list(self.pending)
        kept = randomness.randrange(len(changes) + 1)
        for change in changes[:kept]:
            if change in self.pending:
                change.keep()
        if kept < len(changes):
            changes[kept].keep_partly(randomness)


class FileSystem:
    """A tree of directories. All failures are OSErrors, as the operating system's are."""

    def __init__(self) -> None:
        self.root = Directory()

    def find(self, path: Path) -> Node | None:
        node: Node | None = self.root
        for name in _names(path):
            if not isinstance(node, Directory):
                return None
            node = node.entries.get(name)
        return node

    def file(self, path: Path) -> File:
        node = self.find(path)
        if node is None:
            refuse(errno.ENOENT, path)
        if not isinstance(node, File):
            refuse(errno.EISDIR, path)
        return node

    def directory(self, path: Path) -> Directory:
        node = self.find(path)
        if node is None:
            refuse(errno.ENOENT, path)
        if not isinstance(node, Directory):
            refuse(errno.ENOTDIR, path)
        return node

    def files(self, below: Path = Path("/")) -> Iterator[tuple[Path, File]]:
        """Yield all files below a directory, sorted by path."""
        node = self.find(below)
        if node is not None:
            yield from _files(below, node)

    def room(self) -> int:
        """Return how many bytes all files take; a file with two names counts twice.

        Brokers ask for it many times a minute, so this makes no paths.
        """
        room = 0
        directories = [self.root]
        for directory in directories:
            for node in directory.entries.values():
                if isinstance(node, File):
                    room += node.room
                elif isinstance(node, Directory):
                    directories.append(node)
        return room

    def directories(self, below: Path = Path("/")) -> Iterator[tuple[Path, Directory]]:
        """Yield a directory and all below it, sorted by path."""
        node = self.find(below)
        if isinstance(node, Directory):
            yield below, node
            for name in sorted(node.entries):
                yield from self.directories(below / name)

    # Changes of names

    def make_directory(self, path: Path, mode: int) -> list[Path]:
        """Make a directory and what is missing above it; return what was made."""
        made = []
        for directory in [*reversed(path.parents), path]:
            if self.find(directory) is None:
                self._enter(directory, Directory(mode))
                made.append(directory)
        self.directory(path)
        return made

    def create(self, path: Path, mode: int) -> File:
        """Make an empty file of a name that is free."""
        if self.find(path) is not None:
            refuse(errno.EEXIST, path)
        file = File(mode=mode)
        self._enter(path, file)
        return file

    def grow(self, path: Path, size: int) -> None:
        """Give a file more bytes, in the order of the journal."""
        file, directory = self.file(path), self.directory(path.parent)
        if file.size < size:
            file.resize(size)
            file.is_size_journaled = True
            _Change([(directory, path.name, file)], (file, size))

    def link(self, path: Path, second: Path) -> None:
        file = self.file(path)
        if self.find(second) is not None:
            refuse(errno.EEXIST, second)
        self._enter(second, file)

    def remove(self, path: Path) -> bool:
        """Remove a file; return False if there is none."""
        if self.find(path) is None:
            return False
        self.file(path)
        self._enter(path, None)
        return True

    def remove_tree(self, path: Path) -> None:
        if self.find(path) is None:
            return
        directory = self.directory(path)
        for name in sorted(directory.entries):
            if isinstance(directory.entries[name], Directory):
                self.remove_tree(path / name)
            else:
                self.remove(path / name)
        self._enter(path, None)

    def rename(self, source: Path, target: Path) -> None:
        node = self.find(source)
        if node is None:
            refuse(errno.ENOENT, source)
        if self.find(target) is node:  # two names of one file: nothing happens
            return
        old, new = self.directory(source.parent), self.directory(target.parent)
        _Change([(old, source.name, None), (new, target.name, node)]).happen()

    def _enter(self, path: Path, node: Node | None) -> None:
        _Change([(self.directory(path.parent), path.name, node)]).happen()

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable, and those of the directories above it on its path.

        POSIX leaves the latter open. A file system with a journal never loses a directory after it
        was asked to keep its names.
        """
        parts = _names(path)
        for depth, name in enumerate(parts):
            self.directory(Path("/", *parts[:depth])).keep_name(name)
        self.directory(path).sync()

    # The ends of machines

    def lose_power(self, randomness: Randomness) -> None:
        for _, directory in list(self.directories()):
            directory.lose_power(randomness)
        for directory in _all_directories(self.root):
            directory.entries = dict(directory.durable)
            directory.pending.clear()
        done: set[int] = set()
        for _, file in self.files():
            if id(file) not in done:  # a file with two names loses once
                done.add(id(file))
                file.lose_power(randomness)

    def sync_all(self) -> None:
        """Make everything durable, as after a clean stop of the machine."""
        for _, directory in self.directories():
            directory.sync()
        for _, file in self.files():
            file.sync()


def _files(path: Path, node: Node) -> Iterator[tuple[Path, File]]:
    if isinstance(node, File):
        yield path, node
    elif isinstance(node, Directory):
        for name in sorted(node.entries):
            # The caller may remove files while it iterates over them.
            if (below := node.entries.get(name)) is not None:
                yield from _files(path / name, below)


def _all_directories(root: Directory) -> list[Directory]:
    """Return the directories that are there durably, and `root`."""
    found = [root]
    for directory in found:
        found += [node for node in directory.durable.values() if isinstance(node, Directory)]
    return found


def _names(path: Path) -> tuple[str, ...]:
    return path.parts[1:] if path.is_absolute() else path.parts


def _blank(size: int) -> bytearray | mmap.mmap:
    return bytearray(size) if size < _LEAST_MAPPED else _mapping(size)


def _mapping(size: int) -> mmap.mmap:
    mapping = mmap.mmap(-1, max(size, 1), flags=_PRIVATE)
    # One byte must not take the two megabytes of a huge page.
    with suppress(OSError, AttributeError):
        mapping.madvise(mmap.MADV_NOHUGEPAGE)
    return mapping


def _torn(new: bytes, old: bytes, randomness: Randomness) -> bytes:
    """Return what a page is after a loss of power that found it changed but not synced."""
    draw = randomness.random()
    if draw < 0.45:
        return old
    if draw < 0.85:
        return new
    sectors = range(0, PAGE, SECTOR)
    if draw < 0.93:  # the first ones
        cut = SECTOR * randomness.randrange(1, PAGE // SECTOR)
        return new[:cut] + old[cut:]
    return b"".join(
        (new if randomness.random() < 0.5 else old)[sector : sector + SECTOR] for sector in sectors
    )
