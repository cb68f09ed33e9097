"""Do with mapped memory what Python's `mmap` cannot: keep it from being swapped, touch pages ahead
of use without the GIL, and say whether pages are there (Java: LibC, TransientStorePool,
DefaultMappedFile.warmMappedFile, DefaultMappedFile.isLoaded).
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
# Calls through this one keep the GIL: what returns within microseconds must not have to wait for it
# afterwards.
_brief: Final = ctypes.PyDLL(None)


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


def populate(mapping: mmap.mmap, start: int, end: int) -> bool:
    """Bring the pages of a part into memory without changing them; return whether that was done.

    `start` is a multiple of the page size. Releases the GIL, except for a read-only mapping.
    """
    with suppress(AttributeError, ValueError, OSError):
        try:
            address = _address(mapping)
        except TypeError:
            # Python does not give the address of a read-only mapping.
            mapping.madvise(_MADV_POPULATE_READ, start, end - start)
            return True
        failed = _libc.madvise(
            ctypes.c_void_p(address + start), ctypes.c_size_t(end - start), _MADV_POPULATE_READ
        )
        return not failed
    return False


def is_resident(mapping: mmap.mmap, start: int, end: int) -> bool:
    """Say whether the page cache has all pages of a part; True also where nobody can say.

    `start` is a multiple of the page size. Does not wait for the disk.
    """
    try:
        address = _address(mapping)
    except (TypeError, ValueError):
        return True
    count = -(-(end - start) // mmap.PAGESIZE)
    present = ctypes.create_string_buffer(count)
    failed = _brief.mincore(ctypes.c_void_p(address + start), ctypes.c_size_t(end - start), present)
    return bool(failed) or b"\0" not in present.raw


def _address(mapping: mmap.mmap) -> int:
    # Nothing holds the mapping's buffer after this expression: the mapping must outlive the
    # address.
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))
