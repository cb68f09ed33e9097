"""Do long work on the loop in slices, so that requests are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final
from weakref import WeakKeyDictionary

from cometmq.runtime.garbage import collect_young
from cometmq.runtime.rotation import LoopTurns

# How long one slice of any long work may take; a step that takes longer is not cut. In a turn of the
# loop there may be a slice of each kind of work: delayed messages, first sends, tables, answers.
SLICE_S: Final = 0.0005


_turns: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, LoopTurns]] = WeakKeyDictionary()


def run_slice(steps: Iterator[object]) -> bool:
    """Take steps for SLICE_S seconds and return whether none is left. For the loop's thread."""
    loop = asyncio.get_running_loop()
    stop_at = loop.time() + SLICE_S
    is_done = all(loop.time() < stop_at for _ in steps)
    collect_young()
    return is_done


async def run_slices(steps: Iterator[object]) -> None:
    """Take all steps, and let the loop go round after each slice.

    All callers of a loop share the time of one slice in each turn.
    """
    turns = _turns.setdefault(asyncio.get_running_loop(), LoopTurns())
    if turns.is_busy:
        await turns.later("")
    while not run_slice(steps):
        await turns.later("")
