"""Java's String.hashCode, on which tag codes and index keys rest."""

from __future__ import annotations

import array
import sys
from functools import lru_cache


@lru_cache(maxsize=4096)
def java_hash(text: str) -> int:
    """The int32 that Java's `text.hashCode()` gives: h = 31·h + unit over UTF-16 units.

    Cached: a broker sees few different tags, and each on every message.
    """
    units = array.array("H", text.encode("utf-16-le", "surrogatepass"))
    if sys.byteorder == "big":
        units.byteswap()
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value
