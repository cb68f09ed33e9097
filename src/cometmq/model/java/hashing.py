"""Compute Java's String.hashCode, from which tag codes and index keys are made."""

from __future__ import annotations

import array
import sys
from functools import lru_cache
from typing import Final

# A client that sends or pulls may name a tag of a megabyte: 4,096 of them would fill the memory.
LONGEST_CACHED: Final = 256


def java_hash(text: str) -> int:
    """Return the int32 that Java's `text.hashCode()` returns: h = 31·h + unit over UTF-16 units.

    Results for tags of common length are cached: a broker sees few different tags, but needs a code
    for every message.
    """
    return _cached(text) if len(text) <= LONGEST_CACHED else hash_once(text)


def hash_once(text: str) -> int:
    """Return the same hash as `java_hash`, without its cache."""
    units = array.array("H", text.encode("utf-16-le", "surrogatepass"))
    if sys.byteorder == "big":
        units.byteswap()
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def cached_count() -> int:
    """Return how many results are cached."""
    return _cached.cache_info().currsize


_cached = lru_cache(maxsize=4096)(hash_once)
