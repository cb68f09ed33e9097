"""Map one file of a fixed size, when it is first touched (Java: DefaultMappedFile)."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import partial
from pathlib import Path

from cometmq.errors import StoreFileLostError
from cometmq.store.config import PAGE_SIZE
from cometmq.store.files.disk import Disk, FileState


class MappedFile:
    """Maps a file on demand. `base` is the offset of its first byte in its queue.

    Views handed out keep the mapping alive, and with it the bytes of a file that has been removed.
    So nothing is ever unmapped by force: `release` drops the reference held here, and the memory is
    freed with its last view. `on_map` is called after each mapping of the file.
    """

    __slots__ = (
        "_disk",
        "_identity",
        "_map",
        "_on_map",
        "_read_ahead",
        "_view",
        "_writable",
        "base",
        "path",
        "size",
    )

    def __init__(
        self,
        disk: Disk,
        path: Path,
        base: int,
        size: int,
        *,
        writable: bool = True,
        read_ahead: bool = True,
        on_map: Callable[[], None] | None = None,
    ) -> None:
        self._on_map = on_map
        self._read_ahead = read_ahead
        self._disk = disk
        self._writable = writable
        self.path = path
        self.base = base
        self.size = size
        self._identity: tuple[int, int] | None = None
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    @property
    def map(self) -> mmap.mmap:
        """The mapping, for `struct.pack_into` and slice assignment."""
        if self._map is None:
            self._map = self._disk.map(
                self.path, self.size, writable=self._writable, read_ahead=self._read_ahead
            )
            mapped = self._map
            if self._identity is None:
                self._look()
            if self._on_map is not None:
                self._on_map()
            return mapped
        return self._map

    @property
    def view(self) -> memoryview:
        """The whole file, read-only; slices of it stay valid after `release`."""
        if self._view is None:
            self._view = memoryview(self.map).toreadonly()
        return self._view

    @property
    def end(self) -> int:
        return self.base + self.size

    def write(self, position: int, data: memoryview) -> None:
        """Write with a system call instead of through the mapping, which shows the bytes
        afterwards.

        Blocks; for any thread.
        """
        self._disk.write_at(self.path, position, data)

    def populate(self, start: int, end: int) -> None:
        """Bring a part of the file into memory at once, which is three times as fast as page by
        page.

        This is a hint to the system, so it never fails. Blocks.
        """
        self._disk.warm(self.map, start - start % PAGE_SIZE, end)

    def absent(self, start: int, end: int, ahead_to: int) -> Callable[[], None] | None:
        """Return None if the bytes from `start` to `end` can be read without waiting for the disk.

        Otherwise return what brings them into memory, and with them the bytes up to `ahead_to`: it
        blocks, is for any thread, keeps the mapping alive, and raises StoreError if the disk fails.
        """
        mapping = self.map
        start -= start % PAGE_SIZE
        if self._disk.is_cached(mapping, start, end):
            return None
        return partial(
            self._disk.bring_in, self.path, mapping, start, min(max(end, ahead_to), self.size)
        )

    def warm(self, step_bytes: int) -> None:
        """Map the file and bring all of it into memory, step by step. Blocks; for any thread."""
        for start in range(0, self.size, step_bytes):
            self._disk.warm(self.map, start, min(start + step_bytes, self.size))

    def sync(self) -> None:
        """Sync the file with fdatasync. Blocks; for any thread."""
        self._disk.sync(self.path)

    def _look(self) -> FileState | None:
        """Check which file has this name; at the first look that file counts as ours."""
        state = self._disk.state(self.path)
        if self._identity is None and state is not None:
            self._identity = state.identity
        return state

    def loss(self) -> StoreFileLostError | None:
        """Return the error to raise if somebody removed, replaced or cut the file since it was
        first mapped or checked. For any thread; a check takes microseconds.
        """
        state = self._look()
        if state is None:
            what = "was removed"
        elif state.identity != self._identity:
            what = "was replaced by another file"
        elif state.size < self.size:
            what = f"was cut from {self.size} bytes to {state.size}"
        else:
            return None
        remedy = "put it back from a copy or from a slave"
        copy = self._disk.where_open(self._identity) if self._identity is not None else None
        if copy is not None and (state is None or state.identity != self._identity):
            remedy = (
                "save what it held as long as this process lives: "
                f"cp --remove-destination {copy} {self.path}"
            )
        return StoreFileLostError(
            f"{self.path} {what} while the broker ran; {remedy}, and then start the broker again"
        )

    def cut(self, position: int, *, reserve: bool) -> None:
        """Zero all bytes from `position` on; with `reserve` they keep their room on the disk."""
        self.release()
        self._disk.cut(self.path, position, self.size, reserve=reserve)

    def reserve(self, start: int, end: int) -> None:
        """Reserve room on the disk for a part of the file. Raises StoreFullError."""
        self._disk.reserve(self.path, start, end)

    def release(self) -> None:
        self._view = None
        self._map = None

    def remove(self) -> None:
        """Delete the file; readers that hold views of it can finish."""
        self.release()
        self._disk.remove(self.path)
