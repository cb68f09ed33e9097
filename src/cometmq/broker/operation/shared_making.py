"""Make an answer once for all that ask for it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from cometmq.runtime.tasks import TaskOwner

T = TypeVar("T")


class SharedMaking(Generic[T]):
    """Awaits `make` in a task of `tasks`, one call at a time, for all who ask. For the loop's thread only.

    A caller gets what was made by a call that began after it asked.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], tasks: TaskOwner, name: str) -> None:
        self._make = make
        self._tasks = tasks
        self._name = name
        self._one_at_a_time = asyncio.Lock()
        self._next: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return what the next call of `make` returns; raise what it raises."""
        if self._next is None:
            self._next = self._tasks.spawn(self._make_next(), self._name, log_failure=False)
        # A caller that leaves must not end it for the others.
        return await asyncio.shield(self._next)

    async def _make_next(self) -> T:
        async with self._one_at_a_time:
            self._next = None
            return await self._make()
