"""Bound the sends that a producer has under way in the background."""

from __future__ import annotations

import asyncio
import functools
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
    """Bounds sends under way to `max_sends` with `max_bytes` of bodies. Runs those that need a task.

    A send that is alone may have more bytes. Error texts name the limits by the options of
    Producer. For the loop's thread only.
    """

    def __init__(self, name: str, max_sends: int, max_bytes: int) -> None:
        super().__init__(name)
        self._max_sends = max_sends
        self._max_bytes = max_bytes
        # By task or future: the bytes of its bodies, and the function that gets its outcome.
        self._sizes: dict[asyncio.Future[Any], tuple[int, Callback[Any] | None]] = {}
        self._bytes = 0
        # Tasks whose messages have not left yet, as far as this class knows.
        self._behind: set[asyncio.Task[Any]] = set()

    def send(
        self, size: int, work: Coroutine[Any, Any, T], callback: Callback[T] | None
    ) -> asyncio.Task[T]:
        """Run `work`, which sends `size` bytes. Raises TooManyRequestsError if there is no room."""
        try:
            self.check_room(size)
        except TooManyRequestsError:
            work.close()
            raise
        task = self.spawn(work, "send", log_failure=False)
        self._behind.add(task)
        self.follow(task, size, callback)
        return task

    @property
    def any_behind(self) -> bool:
        """Say whether a task may not have sent its message yet, so that a message sent now would pass it."""
        return bool(self._behind)

    def left(self) -> None:
        """Note that the message of the running task is on its way."""
        task = asyncio.current_task()
        if task is not None:
            self._behind.discard(task)

    def check_room(self, size: int) -> None:
        """Raise TooManyRequestsError if `size` more bytes may not be under way."""
        fault = self._fault(size)
        if fault is not None:
            raise TooManyRequestsError(f"{fault}; wait for some of their futures, or raise it")

    def follow(self, future: asyncio.Future[T], size: int, callback: Callback[T] | None) -> None:
        """Count a send of `size` bytes until `end`, which gives its outcome to `callback`."""
        self._sizes[future] = size, callback
        self._bytes += size

    def end(self, future: asyncio.Future[Any]) -> None:
        """Stop counting a send that has ended or whose caller was cancelled. Idempotent."""
        size, callback = self._sizes.pop(future, (0, None))
        self._bytes -= size
        if callback is not None:
            _report(callback, future)

    def go_on(self, future: asyncio.Future[T], work: Coroutine[Any, Any, T]) -> None:
        """Go on with a send by `work`, and give its outcome to `future`."""
        if self.is_closed:
            work.close()
            future.cancel()
            return
        task = self.spawn(work, "send", log_failure=False)
        task.add_done_callback(functools.partial(self._pass_on, future))
        future.add_done_callback(functools.partial(_cancel_with, task))

    def load(self) -> tuple[int, int]:
        """Return how many sends are under way, and the bytes of their bodies. For any thread."""
        return len(self._sizes), self._bytes

    async def wait(self) -> None:
        """Wait until all sends have ended. Each of them ends within its own timeout."""
        if self._sizes:
            await asyncio.wait(self._sizes)

    async def close(self) -> None:
        await super().close()
        for future in list(self._sizes):
            future.cancel()

    def _forget(self, task: asyncio.Task[Any]) -> BaseException | None:
        error = super()._forget(task)
        self._behind.discard(task)
        self.end(task)
        return error

    def _pass_on(self, future: asyncio.Future[T], task: asyncio.Task[T]) -> None:
        if not future.done():
            if task.cancelled():
                future.cancel()
            elif (error := task.exception()) is not None:
                future.set_exception(error)
                future.exception()  # else asyncio logs it if only the callback reads it
            else:
                future.set_result(task.result())
        self.end(future)

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


def _cancel_with(task: asyncio.Task[Any], future: asyncio.Future[Any]) -> None:
    if future.cancelled():
        task.cancel()


def _report(callback: Callback[T], future: asyncio.Future[T]) -> None:
    try:
        if future.cancelled():
            callback(None, ClientStateError("the send was cancelled"))
        elif (error := future.exception()) is not None:
            callback(None, error)
        else:
            callback(future.result(), None)
    except Exception:
        log.exception("a send callback failed")
