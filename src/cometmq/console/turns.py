"""Lets connections and pages go on one after the other, so that none of them waits for all others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary


class FairTurns:
    """Lets one of those who wait go on in each turn of the loop. For the loop's thread only.

    A request takes the loop from 0.3 to some milliseconds. If all that are there were served in the
    same turn, five hundred connections would hold it for half a second. Those whom they belong to, networks
    or accounts, take turns: whoever has many waiting delays the others by one of them.
    """

    def __init__(self) -> None:
        # By whom they belong to, the one that goes on next first.
        self._waiting: Final[dict[str, deque[Callable[[], None]]]] = {}
        self._is_taken = False

    def take(self) -> bool:
        """Return whether the caller may go on at once: nobody else does in this turn of the loop."""
        if self._is_taken:
            return False
        self._is_taken = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._next, loop)
        return True

    def join(self, who: str, go_on: Callable[[], None]) -> None:
        """Have `go_on` called in a later turn of the loop."""
        self._waiting.setdefault(who, deque()).append(go_on)
        self.take()

    async def turn(self, who: str) -> None:
        """Return in a turn of the loop in which nobody else goes on."""
        if self.take():
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.join(who, lambda: None if waiting.done() else waiting.set_result(None))
        await waiting

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_taken = bool(self._waiting)
        if not self._waiting:
            return
        # First, so that a failure does not end the rotation.
        loop.call_soon(self._next, loop)
        who, queue = next(iter(self._waiting.items()))
        go_on = queue.popleft()
        del self._waiting[who]
        if queue:
            self._waiting[who] = queue  # behind the others
        go_on()


class AccountTurns:
    """Has each account do only so many things of a kind at once. For the loop's thread only.

    What else it asks for waits, and nobody waits for what another account does.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        # Of accounts that do something or wait.
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Wait until the account may go on; its turn is over at the end of the block."""
        turns = self._turns.get(who)
        if turns is None:
            turns = self._turns[who] = asyncio.Semaphore(self._at_once)
        async with turns:
            yield
