"""Computes Java's String.hashCode, from which tag codes and index keys are made."""

from __future__ import annotations

import array
import sys
from functools import lru_cache


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """Return the int32 that Java's `text.hashCode()` returns: h = 31·h + unit over UTF-16 units.

    Results are cached: a broker sees few different tags, but needs a code for every message.
    """
    units = array.array("H", text.encode("utf-16-le", "surrogatepass"))
    if sys.byteorder == "big":
        units.byteswap()
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value
