"""Keeps the pauses of Python's garbage collector short in a server that holds large tables.

Reference counts free nearly everything; the collector is there for cycles. A full pass looks at
every object: with 50,000 topics it takes 0.3 s, in which nobody is served. The entries of a
server's tables stay for years and are no garbage.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LONG_PASS_S: Final = 0.003
_FULL: Final = 2


def keep_passes_short() -> None:
    """Exempt from collection the objects of now, and later those that survive a long full pass.

    A full pass is long if it takes more than LONG_PASS_S.
    For a server process that has just started. An exempt object that later becomes part of a
    garbage cycle is never freed: this happens to the connections of that moment, a few kilobytes
    each. Long passes come when tables have grown by tens of thousands of entries.
    """
    begun = 0.0

    def passed(phase: str, info: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.monotonic()
        elif info["generation"] == _FULL and time.monotonic() - begun > LONG_PASS_S:
            gc.freeze()

    gc.freeze()
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
