"""Keep other processes out of a directory by the lock of a file in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[IO[str]]:
    """Hold the lock of the file at `path`, which is made if it is missing; yield it open.

    Raise BlockingIOError at once if somebody else holds the lock, without `wait`, and OSError for a
    file that cannot be opened. The lock ends with its process, however that ends.
    """
    import fcntl  # Windows has none, and clients there import this module

    with path.open("a+") as file:
        # `lockf` would also grant the lock to a second holder in this process.
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file
