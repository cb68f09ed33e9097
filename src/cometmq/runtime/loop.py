"""The event loop of a process: uvloop where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

# For how long a thread that computes keeps the interpreter from the loop; Python's own is 5 ms. Threads
# that build the index, format tables for the disk or make pages of the console compute for that long.
SWITCH_INTERVAL_S: Final = 0.0005


def new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a loop of its own and close the loop. Not for a thread that runs a loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
