"""Keeping the pauses of Python's garbage collector short in a server that holds large tables.

Reference counts free nearly everything; the collector is there for cycles, and a full pass looks at
every object there is: 0.3 s with 50,000 topics, in which nobody is served. What a server has in its
tables stays for years and is no garbage.
"""

from __future__ import annotations

import gc
import time
from typing import Final

LONG_PASS_S: Final = 0.05
_FULL: Final = 2


def keep_passes_short() -> None:
    """Have the collector leave alone what is there now, and what outlives a full pass that took long.

    For a process that is a server and has just started. What of that becomes a cycle of garbage later
    is never freed: connections of that moment, a few kilobytes each. Long passes come when tables have
    grown by tens of thousands of entries.
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
