"""Turn errors of the operating system into StoreErrors with the path and the remedy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cometmq.errors import StoreError, StoreFullError, StoreUnusableError
from cometmq.store.files.descriptors import starved

# SERVICE_NOT_AVAILABLE: clients then try another broker.
_CODE_UNAVAILABLE: Final = 14

# Errors that pass by themselves, as long as they do not come from a sync.
PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_UNUSABLE: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Raise a StoreError that names `path` where the block raises an OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise full_error(path, None) from error
        if error.errno in PASSING:
            raise starved(path, error) from error
        if error.errno == errno.ELOOP:
            raise StoreUnusableError(
                f"{path} is a symbolic link, where the store makes a file of its own: remove the link"
            ) from error
        kind = StoreUnusableError if error.errno in _UNUSABLE else StoreError
        raise kind(f"{path}: {error.strerror or error}") from error


def full_error(path: Path, size: int | None) -> StoreFullError:
    """Return the error of a disk that has no room for `size` bytes, or with None for a write of
    any size.
    """
    what = "a write" if size is None else f"{size} bytes"
    return StoreFullError(
        f"{path}: the disk has no room for {what}; free space there, shorten fileReservedTime, "
        f"or move the store with storePathRootDir",
        code=_CODE_UNAVAILABLE,
    )
