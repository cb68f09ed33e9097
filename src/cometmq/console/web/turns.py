"""Let connections and pages go on one after the other, so that none of them waits for all others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class AccountTurns:
    """Limits how many things of a kind each account does at once. For the loop's thread only.

    Its further requests wait, and nobody waits for the requests of another account.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        # The accounts that do something or wait.
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, who: str) -> AsyncIterator[None]:
        """Wait until the account may go on; its turn is over at the end of the block."""
        turns = self._turns.get(who)
        if turns is None:
            turns = self._turns[who] = asyncio.Semaphore(self._at_once)
        async with turns:
            yield
