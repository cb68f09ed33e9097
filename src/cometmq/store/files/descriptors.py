"""Spare file descriptors for work that must not fail when all others are taken.

A sync, a new file of the log, or a reservation of room needs a descriptor for a moment. When
clients or mappings hold all descriptors that the process may have, one of the spare ones kept here
is closed to make place, and opened again afterwards.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from cometmq.errors import StoreStarvedError

# At most so many threads sync, write and clean at the same time.
SPARE_COUNT: Final = 8
# More than an import of numpy opens at a time, with some for other threads meanwhile.
_DESCRIPTORS_OF_AN_IMPORT: Final = 16


class SpareDescriptors:
    """Keeps `count` descriptors open on /dev/null. For any thread."""

    def __init__(self, count: int = SPARE_COUNT) -> None:
        self._count = count
        self._spare: list[int] = []
        self._lock = threading.Lock()

    def keep(self) -> None:
        """Open missing spare descriptors, if the system has any. Cheap when none is missing."""
        with self._lock, suppress(OSError):
            while len(self._spare) < self._count:
                self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    @contextmanager
    def opened(self, path: Path, flags: int, mode: int = 0o600) -> Iterator[int]:
        """Open the file for the length of the context, giving up a spare descriptor if none is
        free.

        Raises OSError.
        """
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
                # Another thread may take the descriptor given up here; then give up the next one.
                if error.errno != errno.EMFILE or not self._give_up_one():
                    raise

    def _give_up_one(self) -> bool:
        with self._lock:
            if not self._spare:
                return False
            os.close(self._spare.pop())
            return True


# One for the process, however many stores it has open: the limit is the process's, too.
SPARE: Final = SpareDescriptors()


def make_sure_of_numpy() -> None:
    """Raise StoreStarvedError if numpy is not loaded and too few descriptors are free to load it.

    A load that breaks off leaves modules of numpy that do not fit those of the next one, so numpy
    would stay broken for as long as the process lives.
    """
    if "numpy" in sys.modules:
        return
    held: list[int] = []
    try:
        while len(held) < _DESCRIPTORS_OF_AN_IMPORT:
            held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise starved("numpy cannot be loaded", error) from error
    finally:
        for fd in held:
            os.close(fd)


def starved(what: object, error: OSError) -> StoreStarvedError:
    """Return the error for an operation that found no free descriptor, with the limit and the
    remedy.
    """
    remedy = "try again in a moment"
    if error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        remedy = (
            f"this process may have {limit} files and connections open: raise the limit (ulimit -n, "
            "or LimitNOFILE in the systemd unit), or wait until some are closed"
        )
    elif error.errno == errno.ENFILE:
        remedy = "the system may have fs.file-max files open: raise it, or close some"
    return StoreStarvedError(f"{what}: {error.strerror}; {remedy}")
