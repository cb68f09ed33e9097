"""Makes once what many ask for at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedMaking(Generic[T]):
    """Awaits `make`, one call at a time, for all who ask. For the loop's thread only.

    Who asks gets what was made by a call that began after it asked.
    """

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._one_at_a_time = asyncio.Lock()
        self._next: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """Return what the next call of `make` returns; raise what it raises."""
        while (shared := self._next) is not None:
            try:
                return await asyncio.shield(shared)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not shared.cancelled() or (task is not None and task.cancelling()):
                    raise
                # Not this one was cancelled, but who would have made it for all.
        future = self._next = asyncio.get_running_loop().create_future()
        try:
            async with self._one_at_a_time:
                self._next = None
                made = await self._make()
        except BaseException as error:
            if self._next is future:
                self._next = None
            if isinstance(error, Exception):
                future.set_exception(error)
                future.exception()  # perhaps nobody waits for it
            else:
                future.cancel()
            raise
        future.set_result(made)
        return made
