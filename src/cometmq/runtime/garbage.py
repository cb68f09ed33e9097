"""Keep the pauses of Python's garbage collector short in a server that holds large tables.

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
# A pass over what one slice of work has made takes as long if that was some hundreds of objects.
_MANY_S: Final = 0.00002
# A pass of the second generation comes after 5 of the first, a full one after 2 of the second: a table that
# grows adds 7,000 objects to a full pass. Python's own thresholds make it 84,000, which take up to 50 ms.
THRESHOLDS: Final = (700, 4, 1)
_FULL: Final = 2
_YOUNG: Final = 1


class _Young:
    """Holds figures about the objects that were made lately."""

    is_watched = False
    # Seconds that passes over many of them have taken since the last full pass, or the last exemption.
    looked_s = 0.0


def keep_passes_short() -> None:
    """Exempt from collection the objects of now, and later those that survive a long full pass.

    A full pass is long if it takes more than LONG_PASS_S.
    For a server process that has just started. An exempt object that later becomes part of a
    garbage cycle is never freed: this happens to objects that are in use at that moment, a few
    kilobytes. Long passes come when tables have grown by thousands of entries.
    """
    begun = 0.0

    def passed(phase: str, info: dict[str, int]) -> None:
        nonlocal begun
        if phase == "start":
            begun = time.monotonic()
        elif info["generation"] == _FULL:
            _Young.looked_s = 0.0
            if time.monotonic() - begun > LONG_PASS_S:
                gc.freeze()

    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(passed)
    _Young.is_watched = True


def collect_young() -> None:
    """Look at objects that were made lately, and exempt them if they are many; in a server process
    only.

    To be called after each slice of long work. The collector waits until 700 objects more were made
    than freed. So it does not come while a table is replaced, and then looks at all of it: at 190,000
    objects of four heartbeats, which took 162 ms. With nothing new, a call takes two microseconds.
    """
    if not _Young.is_watched or not gc.isenabled():
        return
    begun = time.monotonic()
    gc.collect(_YOUNG)
    took_s = time.monotonic() - begun
    if took_s > _MANY_S:
        _Young.looked_s += took_s
        if _Young.looked_s > LONG_PASS_S:
            _Young.looked_s = 0.0
            gc.freeze()


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
