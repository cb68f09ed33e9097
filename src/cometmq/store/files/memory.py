"""Do with mapped memory what Python's `mmap` cannot: keep it from being swapped, and touch pages
ahead of use without the GIL (Java: LibC, TransientStorePool, DefaultMappedFile.warmMappedFile).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
from contextlib import suppress
from typing import Final

_MADV_POPULATE_READ: Final = 22
_MLOCK_ONFAULT: Final = 1

_libc: Final = ctypes.CDLL(None, use_errno=True)


def lock(mapping: mmap.mmap) -> str | None:
    """Keep a mapping in memory. Return None on success, else why the system refuses and what to do.

    Pages are locked when they are first touched, so a buffer costs only the pages in use.
    """
    address = ctypes.c_void_p(_address(mapping))
    size = ctypes.c_size_t(len(mapping))
    if hasattr(_libc, "mlock2"):
        failed = _libc.mlock2(address, size, _MLOCK_ONFAULT)
    else:
        failed = _libc.mlock(address, size)
    if not failed:
        return None
    reason = ctypes.get_errno()
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if reason in (errno.ENOMEM, errno.EPERM, errno.EAGAIN):
        return (
            f"{len(mapping)} bytes cannot be locked in memory, RLIMIT_MEMLOCK allows {limit}: "
            f"raise it (ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit)"
        )
    return f"{len(mapping)} bytes cannot be locked in memory: {os.strerror(reason)}"


def populate(mapping: mmap.mmap, start: int, end: int) -> None:
    """Bring the pages of a part into memory without changing them; a hint, so it never fails.

    `start` is a multiple of the page size. Releases the GIL, except for a read-only mapping.
    """
    with suppress(AttributeError, ValueError, OSError):
        try:
            address = _address(mapping)
        except TypeError:
            # Python does not give the address of a read-only mapping.
            mapping.madvise(_MADV_POPULATE_READ, start, end - start)
            return
        _libc.madvise(
            ctypes.c_void_p(address + start), ctypes.c_size_t(end - start), _MADV_POPULATE_READ
        )


def _address(mapping: mmap.mmap) -> int:
    # Nothing holds the mapping's buffer after this expression: the mapping must outlive the
    # address.
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))
