"""Create the asyncio tasks of servers and clients. Each task belongs to an owner who ends it.

No other module calls `create_task`, except `portal` for calls from other threads.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from cometmq.logs.loggers import get_logger

log = get_logger(__name__)

T = TypeVar("T")


class TaskOwner:
    """Creates tasks and, on `close`, cancels and awaits all that still run.

    A task that fails is logged when it ends, so no failure goes unseen. For the loop's thread only.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # A dict, because it has an order: tasks are cancelled in the order in which they were made.
        # Each has the coroutine that is closed when it ends, if any.
        self._tasks: dict[asyncio.Task[Any], Coroutine[Any, Any, Any] | None] = {}
        self._closed = False

    def spawn(
        self,
        coroutine: Coroutine[Any, Any, T],
        name: str,
        *,
        log_failure: bool = True,
        awaits: Coroutine[Any, Any, Any] | None = None,
    ) -> asyncio.Task[T]:
        """Run `coroutine` as a task named `owner.name`. Raises RuntimeError after `close`.

        Give `log_failure=False` when the failure reaches the code that awaits the task, and as `awaits`
        another coroutine that this one awaits: it is closed for a task that is cancelled before it
        begins.
        """
        if self._closed:
            coroutine.close()
            if awaits is not None:
                awaits.close()
            raise RuntimeError(f"the task owner {self.name} is closed")
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self.name}.{name}")
        self._tasks[task] = awaits
        task.add_done_callback(self._log_failure if log_failure else self._forget)
        return task

    def every(
        self,
        period_s: float | Callable[[], float],
        action: Callable[[], Awaitable[None] | None],
        name: str,
        *,
        first_s: float | None = None,
        of_outside: bool = False,
    ) -> asyncio.Task[Any] | None:
        """Call `action` every `period_s` seconds, first after `first_s` (default: one period).

        A call that fails is logged and does not end the repetition. If the period may change, pass
        a function; it is called before each wait.

        `of_outside` marks a look at what other processes did to files. In virtual time there are
        none, so nothing is called.
        """
        if of_outside and getattr(asyncio.get_running_loop(), "has_no_outside", False):
            return None
        return self.repeat(period_s, action, name, first_s, asyncio.sleep)

    def repeat(
        self,
        period_s: float | Callable[[], float],
        action: Callable[[], Awaitable[None] | None],
        name: str,
        first_s: float | None,
        pause: Callable[[float], Awaitable[None]],
    ) -> asyncio.Task[None]:
        """Call `action` as `every` does, with `pause` awaited for a period between the calls."""
        return self.spawn(self._repeat(period_s, action, name, first_s, pause), name)

    @property
    def is_closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended. Idempotent."""
        self._closed = True
        current = asyncio.current_task()
        pending = [task for task in self._tasks if task is not current]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)

    async def _repeat(
        self,
        period_s: float | Callable[[], float],
        action: Callable[[], Awaitable[None] | None],
        name: str,
        first_s: float | None,
        pause: Callable[[float], Awaitable[None]],
    ) -> None:
        period = period_s if callable(period_s) else lambda: period_s
        await asyncio.sleep(period() if first_s is None else first_s)
        while True:
            try:
                outcome = action()
                if outcome is not None:
                    await outcome
            except Exception:
                log.exception("periodic task failed", task=f"{self.name}.{name}")
            await pause(period())

    def _forget(self, task: asyncio.Task[Any]) -> BaseException | None:
        awaits = self._tasks.pop(task, None)
        if awaits is not None:
            awaits.close()  # of a task that never began; else it has ended, and nothing happens
        return None if task.cancelled() else task.exception()

    def _log_failure(self, task: asyncio.Task[Any]) -> None:
        if (error := self._forget(task)) is not None:
            log.error("task failed", task=task.get_name(), exc_info=error)


class OnDemand:
    """Repeats periodic work as long as there is some, and then rests until `arm` or a known time.

    `idle_s` returns for how many seconds nothing is to be done as things are: 0 if something is,
    math.inf if nothing is until `arm`. It is asked after each call. `on_rest`, if given, is called
    with `arm` whenever the work begins to rest until `arm`. For the loop's thread only.
    """

    def __init__(
        self,
        tasks: TaskOwner,
        idle_s: Callable[[], float],
        on_rest: Callable[[Callable[[], None]], None] = lambda _: None,
    ) -> None:
        self.is_armed = True
        self._tasks = tasks
        self._idle_s = idle_s
        self._on_rest = on_rest
        self._resting: list[asyncio.Future[None]] = []

    def every(
        self,
        period_s: float | Callable[[], float],
        action: Callable[[], Awaitable[None] | None],
        name: str,
        *,
        first_s: float | None = None,
    ) -> None:
        """Call `action` as `TaskOwner.every` does, and a period after `arm` at the latest."""
        self._tasks.repeat(period_s, action, name, first_s, self._pause)

    def arm(self) -> None:
        """Have all work of this begin again, because there is something to do. Idempotent, cheap."""
        if not self.is_armed:
            self.is_armed = True
            resting, self._resting = self._resting, []
            for waiting in resting:
                if not waiting.done():
                    waiting.set_result(None)

    async def _pause(self, period_s: float) -> None:
        idle_s = self._idle_s()
        if idle_s > period_s:
            loop = asyncio.get_running_loop()
            timer = None
            if idle_s < math.inf:
                timer = loop.call_later(idle_s - period_s, self.arm)
            elif self.is_armed:
                self._on_rest(self.arm)
            self.is_armed = False
            waiting: asyncio.Future[None] = loop.create_future()
            self._resting.append(waiting)
            try:
                await waiting
            finally:
                if timer is not None:
                    timer.cancel()
        await asyncio.sleep(period_s)
