"""Bound the sends that a producer has under way in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cometmq.errors import ClientStateError, TooManyRequestsError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

T = TypeVar("T")
# The loop calls it with the result and None, or with None and the error.
Callback = Callable[[T | None, BaseException | None], None]


class Pending(TaskOwner):
    """Runs at most `max_sends` tasks with at most `max_bytes` of bodies.

    A task that runs alone may have more bytes. Error texts name the limits by the options of
    Producer. For the loop's thread only.
    """

    def __init__(self, name: str, max_sends: int, max_bytes: int) -> None:
        super().__init__(name)
        self._max_sends = max_sends
        self._max_bytes = max_bytes
        # By task: the bytes of its bodies, and the function that gets its outcome.
        self._sizes: dict[asyncio.Task[Any], tuple[int, Callback[Any] | None]] = {}
        self._bytes = 0

    def send(
        self, size: int, work: Coroutine[Any, Any, T], callback: Callback[T] | None
    ) -> asyncio.Task[T]:
        """Run `work`, which sends `size` bytes. Raises TooManyRequestsError if there is no room."""
        fault = self._fault(size)
        if fault is not None:
            work.close()
            raise TooManyRequestsError(f"{fault}; wait for some of their futures, or raise it")
        task = self.spawn(work, "send", log_failure=False)
        self._sizes[task] = size, callback
        self._bytes += size
        return task

    def load(self) -> tuple[int, int]:
        """Return how many sends are under way, and the bytes of their bodies. For any thread."""
        return len(self._sizes), self._bytes

    async def wait(self) -> None:
        """Wait until all tasks have ended. Each of them ends within its own timeout."""
        if self._sizes:
            await asyncio.wait(self._sizes)

    def _forget(self, task: asyncio.Task[Any]) -> BaseException | None:
        size, callback = self._sizes.pop(task)
        self._bytes -= size
        error = super()._forget(task)
        if callback is not None:
            _report(callback, task)
        return error

    def _fault(self, size: int) -> str | None:
        if len(self._sizes) >= self._max_sends:
            return (
                f"{len(self._sizes)} sends are under way, the limit is max_pending_sends = "
                f"{self._max_sends}"
            )
        if self._sizes and self._bytes + size > self._max_bytes:
            return (
                f"sends with {self._bytes} bytes are under way and {size} more are asked for, "
                f"the limit is max_pending_bytes = {self._max_bytes}"
            )
        return None


def _report(callback: Callback[T], task: asyncio.Task[T]) -> None:
    try:
        if task.cancelled():
            callback(None, ClientStateError("the send was cancelled"))
        elif (error := task.exception()) is not None:
            callback(None, error)
        else:
            callback(task.result(), None)
    except Exception:
        log.exception("a send callback failed")
