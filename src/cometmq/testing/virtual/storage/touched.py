"""Ask the kernel which pages of an anonymous mapping were ever touched.

So a file of a gigabyte that holds a few messages costs a sync no more than those. The answer may
have too many pages, never too few.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from typing import Final

import numpy as np

# Smaller mappings are looked through faster than the kernel answers.
_FEW_PAGES: Final = 64
_PAGE: Final = 4096
_ENTRY_BYTES: Final = 8
# Bit 63 of an entry: the page is in memory; bit 62: it is swapped.
_THERE: Final = np.uint64(3 << 62)


def touched_pages(mapping: mmap.mmap, count: int) -> Iterable[int]:
    """Return the numbers, ascending, of the first `count` pages that may not be zero."""
    if count <= _FEW_PAGES or mmap.PAGESIZE != _PAGE:
        return range(count)
    first = ctypes.addressof(ctypes.c_char.from_buffer(mapping)) // mmap.PAGESIZE
    try:
        fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # no such file, or not for this process
        return range(count)
    try:
        data = os.pread(fd, count * _ENTRY_BYTES, first * _ENTRY_BYTES)
    finally:
        os.close(fd)
    if len(data) < count * _ENTRY_BYTES:
        return range(count)
    return [int(n) for n in np.flatnonzero(np.frombuffer(data, np.uint64) & _THERE)]
