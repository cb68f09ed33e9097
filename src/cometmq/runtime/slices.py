"""Does long work on the loop in slices, so that requests are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

# How long one slice may take; a step that takes longer is not cut.
SLICE_S: Final = 0.003


def run_slice(steps: Iterator[object]) -> bool:
    """Take steps for SLICE_S seconds and return whether none is left. For the loop's thread."""
    loop = asyncio.get_running_loop()
    stop_at = loop.time() + SLICE_S
    return all(loop.time() < stop_at for _ in steps)


async def run_slices(steps: Iterator[object]) -> None:
    """Take all steps, and let the loop go round after each slice."""
    while not run_slice(steps):  # noqa: ASYNC110 - it polls nothing, it lets others run
        await asyncio.sleep(0)
