"""File descriptors for work that must not fail because others have taken all of them.

A sync, a new file of the log, or room in it needs a descriptor for a moment. When clients or mappings
hold all that the process may have, one of those that are kept here is given up for it, and taken back
afterwards.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

# As many threads sync, write and clean at the same time.
SPARE_COUNT: Final = 8


class SpareDescriptors:
    """Keeps `count` descriptors open on nothing. For any thread."""

    def __init__(self, count: int = SPARE_COUNT) -> None:
        self._count = count
        self._spare: list[int] = []
        self._lock = threading.Lock()

    def keep(self) -> None:
        """Take as many as are wanted and as there are. Cheap when all are there."""
        with self._lock, suppress(OSError):
            while len(self._spare) < self._count:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    @contextmanager
    def opened(self, path: Path, flags: int, mode: int = 0o600) -> Iterator[int]:
        """A descriptor of the file within the context. Raises OSError."""
        fd = self._open(path, flags | os.O_CLOEXEC, mode)
        try:
            yield fd
        finally:
            os.close(fd)
            if len(self._spare) < self._count:
                self.keep()

    def _open(self, path: Path, flags: int, mode: int) -> int:
        while True:
            try:
                return os.open(path, flags, mode)
            except OSError as error:
                # Another thread may take what is given up here: then the next one is.
                if error.errno != errno.EMFILE or not self._give_up_one():
                    raise

    def _give_up_one(self) -> bool:
        with self._lock:
            if not self._spare:
                return False
            os.close(self._spare.pop())
            return True


# The limit is the process's, whatever number of stores it has open.
SPARE: Final = SpareDescriptors()
