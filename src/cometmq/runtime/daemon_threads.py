"""Run users' functions in threads that do not hold up the exit of the interpreter.

`concurrent.futures` joins its threads at exit, so one function that never returns would keep a program
alive for ever. These threads are daemons.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from cometmq.logs.loggers import get_logger
from cometmq.runtime.surroundings import current

log = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_END: Final = None


class _Call(NamedTuple):
    future: asyncio.Future[Any]
    function: Callable[[], Any]


class DaemonThreads:
    """Runs functions in up to `limit` threads, which it starts when they are needed.

    For use on the loop on which it was made.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0
        self._unfinished = 0

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` in one of the threads and return its result or raise its error.

        The threads take calls in the order in which they were made. A call that is cancelled before
        a thread took it is not run. In virtual time the function runs at once.
        """
        if current().is_virtual:
            return function(*args, **kwargs)
        future: asyncio.Future[T] = self._loop.create_future()
        self._unfinished += 1
        self._calls.put(_Call(future, lambda: function(*args, **kwargs)))
        if self._unfinished > self._threads < self._limit:
            self._threads += 1
            threading.Thread(
                target=self._work, name=f"{self._name}-{self._threads}", daemon=True
            ).start()
        return await future

    def close(self) -> None:
        """Have the threads end after the calls that were made before."""
        for _ in range(self._threads):
            self._calls.put(_END)

    def _work(self) -> None:
        while (call := self._calls.get()) is not _END:
            result, error = None, None
            if not call.future.cancelled():
                try:
                    result = call.function()
                except BaseException as failure:  # noqa: BLE001 - it reaches whoever awaits the call
                    error = failure
            try:
                self._loop.call_soon_threadsafe(self._finish, call.future, result, error)
            except RuntimeError:
                log.debug("the loop is closed, a result is lost", name=self._name)

    def _finish(
        self, future: asyncio.Future[Any], result: Any, error: BaseException | None
    ) -> None:
        self._unfinished -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:
            # SystemExit would end the loop, and a future takes no StopIteration.
            failure = RuntimeError(f"the function raised {type(error).__name__}: {error}")
            failure.__cause__ = error
            future.set_exception(failure)
