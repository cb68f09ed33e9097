"""Does long work on the loop in slices, so that requests are served in between."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final
from weakref import WeakKeyDictionary

from cometmq.runtime.garbage import collect_young

# How long one slice of any long work may take; a step that takes longer is not cut. In a turn of the
# loop there may be a slice of each kind of work: delayed messages, first sends, tables, answers.
SLICE_S: Final = 0.0005


class _Rotation:
    """Lets one of those who wait go on in each turn of a loop, in the order in which they came.

    If each had a slice in every turn, a hundred clients with long requests would stretch the turn to
    a hundred slices.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    async def turn(self) -> None:
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        self._waiting.append(waiting)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._wake, loop)
        await waiting

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():  # else its task was cancelled
                waiting.set_result(None)
                break
        self._is_due = bool(self._waiting)
        if self._is_due:
            loop.call_soon(self._wake, loop)


_rotations: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Rotation]] = WeakKeyDictionary()


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
    rotation = _rotations.setdefault(asyncio.get_running_loop(), _Rotation())
    if rotation.is_busy:
        await rotation.turn()
    while not run_slice(steps):
        await rotation.turn()
