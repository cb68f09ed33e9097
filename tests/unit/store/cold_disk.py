"""A disk of which nothing is in memory that was not read since."""

from __future__ import annotations

import mmap
import threading
from pathlib import Path

from tests.unit.store.store_box import QuickDisk
from tests.waits import WAIT_S

from cometmq.errors import StoreError
from cometmq.store.config import PAGE_SIZE


class ColdDisk(QuickDisk):
    """Says that pages are not in memory until `bring_in` has been called for them.

    `brought` has what was read: directory, first and last byte. Reads wait for `lets_read`, and fail
    with `fault` if there is one. With `forgets` they bring nothing in.
    """

    def __init__(self) -> None:
        self.brought: list[tuple[str, int, int]] = []
        self.readers: set[str] = set()
        self.lets_read = threading.Event()
        self.lets_read.set()
        self.fault: StoreError | None = None
        self.forgets = False
        self._mappings: list[mmap.mmap] = []  # kept, so that no other one gets an id of theirs
        self._here: set[tuple[int, int]] = set()

    @property
    def brought_of_log(self) -> list[tuple[str, int, int]]:
        return [part for part in self.brought if part[0] == "commitlog"]

    def is_cached(self, mapping: mmap.mmap, start: int, end: int) -> bool:
        assert start % PAGE_SIZE == 0
        return all((id(mapping), page) in self._here for page in range(start, end, PAGE_SIZE))

    def bring_in(self, path: Path, mapping: mmap.mmap, start: int, end: int) -> None:
        assert start % PAGE_SIZE == 0
        assert end <= len(mapping)
        self.readers.add(threading.current_thread().name)
        assert self.lets_read.wait(WAIT_S)
        if self.fault is not None:
            raise self.fault
        self.brought.append((path.parent.name, start, end))
        self._mappings.append(mapping)
        if not self.forgets:
            self._here.update((id(mapping), page) for page in range(start, end, PAGE_SIZE))
