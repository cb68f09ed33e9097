"""Keep files of one size whose names are the offsets of their first bytes (Java: MappedFileQueue).

A name has 20 decimal digits. Every file has its full size from the moment it exists.
"""

from __future__ import annotations

import mmap
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from cometmq.errors import StoreCorruptError, StoreError, StoreFileLostError
from cometmq.logs.loggers import get_logger
from cometmq.store.config import PAGE_SIZE
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file import MappedFile

log = get_logger(__name__)

_LOOKED_AT_ONCE: Final = 32


class MappedFileQueue:
    """Keeps the files of one directory in order. `flush` and `prepare_next` are for an executor's
    thread, all else is for the store's thread.

    `flushed` is the offset up to which everything is on disk. With `sparse` a new file takes only
    the room of its first page, and its writer reserves more room step by step. `on_map` is called
    each time one of the files is mapped. With `watched` a flush raises StoreFileLostError if the
    file that it wrote has no name any more.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        file_size: int,
        *,
        size_key: str,
        writable: bool = True,
        sparse: bool = False,
        watched: bool = False,
    ) -> None:
        self._watched = watched
        # The file at which the next look continues.
        self._looked = 0
        self.on_map: Callable[[], None] | None = None
        self._sparse = sparse
        self._disk = disk
        self._size_key = size_key
        self._writable = writable
        self.directory = directory
        self.file_size = file_size
        self.files: list[MappedFile] = []
        self.flushed = 0
        # Files with changes below `flushed`, which the next flush syncs.
        self.rewritten: deque[MappedFile] = deque()
        self._prepared: MappedFile | None = None
        # Held while a file is made, so that two threads never make (or on failure remove) the same.
        self._creation = threading.Lock()
        self._directory_changed = False
        self._directory_made = False

    def load(self, *, repair: bool = False) -> None:
        """Find the files in the directory.

        An empty last file is removed, as Java does. With `repair` a last file that is too short
        (cut while it was being made) gets its full size. Raises StoreCorruptError for files of
        another size and for a missing file in the middle.
        """
        names = [name for name in self._disk.names(self.directory) if _is_file_name(name)]
        self.files = []
        for index, name in enumerate(names):
            path = self.directory / name
            size = self._disk.size(path)
            is_last = index == len(names) - 1
            if size == 0 and is_last and self._writable:
                log.warning("an empty file was removed", path=str(path))
                self._disk.remove(path)
                continue
            if size is not None and size < self.file_size and is_last and repair:
                log.warning("a short file gets its full size", path=str(path), size=size)
                self._allocate(path)
                size = self.file_size
            if size != self.file_size:
                raise StoreCorruptError(
                    f"{path} has {size} bytes, expected {self.file_size}: set {self._size_key} "
                    f"to the size of the files, or move away a file that does not belong there"
                )
            self._take(path, int(name))
        self._directory_made = bool(self.files)

    def _take(self, path: Path, base: int) -> None:
        if self.files and base != self.files[-1].end:
            raise StoreCorruptError(
                f"{self.directory}: the file {self.files[-1].end:020d} is missing before {base:020d}"
            )
        self.files.append(self._file(path, base))

    @property
    def min_offset(self) -> int:
        return self.files[0].base if self.files else 0

    @property
    def end(self) -> int:
        """Where the next file will begin."""
        return self.files[-1].end if self.files else 0

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds the byte at `offset`, None if there is none."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].base) // self.file_size
        return files[index] if 0 <= index < len(files) else None

    def overlapping(self, start: int, end: int) -> list[MappedFile]:
        """Return the files that hold bytes from `start` to `end`."""
        # Copied first, because the list may change while another thread flushes.
        return [file for file in tuple(self.files) if start < file.end and file.base < end]

    def append_file(self, *, first_base: int = 0) -> MappedFile:
        """Add the next file, made now unless `prepare_next` did; the first is at `first_base`.

        Raises StoreFullError or StoreStarvedError; the queue is then as before.
        """
        base = self.files[-1].end if self.files else first_base
        with self._creation:
            file = self._prepared
            if file is None or file.base != base or file.loss() is not None:
                file = self._prepared = self._create(base)
            # Mapped first: a file that cannot be mapped waits for the next attempt. If it were the
            # last one of the queue already, it would be behind a gap that nobody can write to.
            file.map  # noqa: B018 - the property maps the file
            self._prepared = None
        self.files.append(file)
        return file

    @property
    def has_next(self) -> bool:
        """Whether the next file is made already."""
        prepared = self._prepared
        return prepared is not None and prepared.base == self.end

    def prepare_next(self, *, warm_step_bytes: int = 0) -> None:
        """Make the next file ahead of need, and bring its pages into memory in steps of
        `warm_step_bytes`, 0 for not at all. Blocks, so call it from an executor.
        """
        with self._creation:
            if not self.files or self.has_next:
                return
            file = self._prepared = self._create(self.end)
        # A mapping holds a descriptor, which may be hard to get when the file is needed.
        file.map  # noqa: B018 - the property maps the file
        if warm_step_bytes:
            file.warm(warm_step_bytes)

    def _create(self, base: int) -> MappedFile:
        if not self._directory_made:
            self._disk.make_directory(self.directory)
            self._directory_made = True
        path = self.directory / f"{base:020d}"
        self._allocate(path)
        self._directory_changed = True
        return self._file(path, base)

    def _allocate(self, path: Path) -> None:
        reserved = min(PAGE_SIZE, self.file_size) if self._sparse else None
        self._disk.allocate(path, self.file_size, reserved=reserved)

    def _file(self, path: Path, base: int) -> MappedFile:
        return MappedFile(
            self._disk,
            path,
            base,
            self.file_size,
            writable=self._writable,
            read_ahead=not self._sparse,
            on_map=self.on_map,
        )

    def populate(self, mapping: mmap.mmap, start: int, end: int) -> None:
        """Make the pages of a mapping's part writable now, not at the first touch of each."""
        self._disk.populate(mapping, start, end)

    def write_zeros(self, base: int, start: int, end: int) -> None:
        """Fill whole pages of a part of the file at `base` with zeros; see `Disk.write_zeros`."""
        file = self.find(base)
        if file is not None:
            self._disk.write_zeros(file.path, start, end)

    def flush(self, written: int, least_pages: int = 0) -> bool:
        """Sync everything up to `written`, if `least_pages` pages or a whole file wait.

        Returns whether anything was synced. `written` must have been read before the call: what a
        thread appends meanwhile is not covered.
        """
        while self.rewritten:
            self.rewritten.popleft().sync()
        flushed = self.flushed
        if not self._worth_flushing(flushed, written, least_pages):
            return False
        self._flush_names()
        flushed_files = self.overlapping(flushed, written)
        for file in flushed_files:
            file.sync()
        if self._watched and (loss := self._loss_among(flushed_files)) is not None:
            raise loss
        self.flushed = written
        return True

    def loss(self) -> StoreFileLostError | None:
        """Return the error to raise if somebody removed, replaced or cut one of the files. For any
        thread.

        Checks all names, the last file, and some of the others in turn: a log may have thousands.
        """
        files = tuple(self.files)
        names = set(self._disk.names(self.directory))
        missing = [file for file in files if file.path.name not in names]
        begin = self._looked if self._looked < len(files) else 0
        self._looked = begin + _LOOKED_AT_ONCE
        return self._loss_among((*missing, *files[-1:], *files[begin : self._looked]))

    def _loss_among(self, files: Iterable[MappedFile]) -> StoreFileLostError | None:
        for file in files:
            if (loss := file.loss()) is not None and self._is_kept(file):
                return loss
        return None

    def _is_kept(self, file: MappedFile) -> bool:
        # The store's thread may have removed it meanwhile.
        return any(kept is file for kept in tuple(self.files))

    def _flush_names(self) -> None:
        if not self._directory_changed:
            return
        # Cleared first: a file made meanwhile sets it again.
        self._directory_changed = False
        try:
            self._disk.sync_directory(self.directory)
            self._disk.sync_directory(self.directory.parent)
        except StoreError:
            self._directory_changed = True
            raise

    def _worth_flushing(self, flushed: int, written: int, least_pages: int) -> bool:
        if written <= flushed:
            return False
        if least_pages == 0 or flushed // self.file_size != written // self.file_size:
            return True
        return written // PAGE_SIZE - flushed // PAGE_SIZE >= least_pages

    def truncate(self, end: int, *, clear: bool) -> None:
        """Drop everything from `end` on, and sync that.

        Files behind `end` are removed. With `clear` the rest of its file becomes zero, so that no
        old bytes can follow what is written next.
        """
        removed = False
        while self.files and self.files[-1].base > end:
            self.files.pop().remove()
            removed = True
        if removed:
            self._disk.sync_directory(self.directory)
        if self.files and clear and self.files[-1].base <= end < self.files[-1].end:
            self.files[-1].cut(end - self.files[-1].base, reserve=not self._sparse)
        self.flushed = min(self.flushed, end)

    def detach_first(self) -> Path:
        """Forget the oldest file and return its path for deletion; views of it stay readable."""
        # A new list: another thread may be looking something up in the old one.
        file, *self.files = self.files
        file.release()
        return file.path

    def remove_all(self) -> None:
        """Delete the directory."""
        self.release()
        self.files = []
        self.flushed = 0
        self._prepared = None
        self._directory_made = False
        self._disk.remove_tree(self.directory)

    def release(self) -> None:
        """Let go of all mappings (see MappedFile)."""
        for file in self.files:
            file.release()


def _is_file_name(name: str) -> bool:
    return len(name) == 20 and name.isdecimal()
