"""Round-robins: a participant with many items delays each of the others by only one of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Rotation(Generic[K, T]):
    """Keeps items by owner, such as a connection; the owners take turns. Its length counts items.

    A mechanism keeps its own limits: this bounds nothing.
    """

    __slots__ = ("_count", "_waiting")

    def __init__(self) -> None:
        # The owner whose turn is next comes first.
        self._waiting: dict[K, deque[T]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def count_of(self, owner: K) -> int:
        """Return how many items of one owner wait."""
        return len(self._waiting.get(owner, ()))

    def add(self, owner: K, item: T) -> None:
        """Put an item behind the others of its owner."""
        waiting = self._waiting.get(owner)
        if waiting is None:
            waiting = self._waiting[owner] = deque()
        waiting.append(item)
        self._count += 1

    def take(self) -> tuple[K, T]:
        """Take the first item of the owner whose turn is next. Raises StopIteration when empty."""
        owner = next(iter(self._waiting))
        waiting = self._waiting.pop(owner)
        item = waiting.popleft()
        if waiting:
            self._waiting[owner] = waiting  # behind the other owners
        self._count -= 1
        return owner, item

    def remove(self, owner: K) -> deque[T]:
        """Take all items of one owner."""
        waiting = self._waiting.pop(owner, None) or deque()
        self._count -= len(waiting)
        return waiting


class LoopTurns:
    """Lets one of the waiting callers go on in each turn of the loop. For the loop's thread only.

    A request takes 0.3 ms to some milliseconds of the loop. If all waiting requests went on in the
    same turn, five hundred connections would hold it for half a second. Owners, such as networks
    or accounts, take turns.
    """

    def __init__(self) -> None:
        self._waiting: Rotation[str, Callable[[], None]] = Rotation()
        self._is_taken = False

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits."""
        return len(self._waiting) > 0

    def take(self) -> bool:
        """Return whether the caller may go on at once: nobody else does in this turn of the loop."""
        if self._is_taken:
            return False
        self._is_taken = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._next, loop)
        return True

    def join(self, owner: str, go_on: Callable[[], None]) -> None:
        """Have `go_on` called in a later turn of the loop."""
        self._waiting.add(owner, go_on)
        self.take()

    async def turn(self, owner: str) -> None:
        """Return in a turn of the loop in which nobody else goes on."""
        if not self.take():
            await self.later(owner)

    async def later(self, owner: str) -> None:
        """Return in a later turn of the loop, in which nobody else goes on."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.join(owner, lambda: None if waiting.done() else waiting.set_result(None))
        await waiting

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_taken = len(self._waiting) > 0
        if self._is_taken:
            # First, so that a failure does not end the rotation.
            loop.call_soon(self._next, loop)
            self._waiting.take()[1]()
