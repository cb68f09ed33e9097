"""Keeps the pauses of Python's garbage collector short in a server that holds large tables.

Reference counts free nearly everything; the collector is there for cycles, and requests make none. A
full pass looks at every object: with 50,000 topics it takes 0.3 s, in which nobody is served. The
entries of a server's tables stay for years and are no garbage.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LONG_PASS_S: Final = 0.001
# A pass of the second generation comes after 5 of the first, a full one after 2 of the second: a table that
# grows adds 7,000 objects to a full pass. Python's own thresholds make it 84,000, which take up to 50 ms.
THRESHOLDS: Final = (700, 4, 1)
_FULL: Final = 2


def keep_passes_short() -> None:
    """Exempt from collection the objects of now, and later those that survive a long full pass.

    A full pass is long if it takes more than LONG_PASS_S.
    For a server process that has just started. An exempt object that later becomes part of a
    garbage cycle is never freed: this happens to what is under way at that moment, a few kilobytes.
    Long passes come when tables have grown by thousands of entries.
    """
    begun = 0.0

    def passed(phase: str, info: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.monotonic()
        elif info["generation"] == _FULL and time.monotonic() - begun > LONG_PASS_S:
            gc.freeze()

    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(passed)


@contextmanager
def resting() -> Iterator[None]:
    """Have the collector rest while many objects are made that stay.

    It would look at them again and again for nothing. For the loop's thread, without an await inside.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
