"""Creates the asyncio tasks of servers and clients. Each task belongs to an owner who ends it.

No other module calls `create_task`, except `portal` for calls from other threads.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from cometmq.runtime.loggers import get_logger

log = get_logger(__name__)

T = TypeVar("T")


def _sleep_between_calls(period_s: float, _quiet_s: Callable[[], float]) -> Awaitable[None]:
    return asyncio.sleep(period_s)


def quiet_if(is_idle: bool) -> float:
    """Return for how many seconds idle work has nothing to do: until something else happens."""
    return math.inf if is_idle else 0.0


class TaskOwner:
    """Creates tasks and, on `close`, cancels and awaits all that still run.

    A task that fails is logged when it ends, so no failure goes unseen. For the loop's thread only.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # A dict, because it has an order: tasks are cancelled in the order in which they were made.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def spawn(
        self, coroutine: Coroutine[Any, Any, T], name: str, *, log_failure: bool = True
    ) -> asyncio.Task[T]:
        """Run `coroutine` as a task named `owner.name`. Raises RuntimeError after `close`.

        Give `log_failure=False` when the failure reaches whoever awaits the task.
        """
        if self._closed:
            coroutine.close()
            raise RuntimeError(f"the task owner {self._name} is closed")
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self._name}.{name}")
        self._tasks[task] = None
        task.add_done_callback(self._log_failure if log_failure else self._forget)
        return task

    def every(
        self,
        period_s: float | Callable[[], float],
        action: Callable[[], Awaitable[None] | None],
        name: str,
        *,
        first_s: float | None = None,
        quiet_s: Callable[[], float] = lambda: 0.0,
    ) -> asyncio.Task[Any]:
        """Call `action` every `period_s` seconds, first after `first_s` (default: one period).

        A call that fails is logged and does not end the repetition. If the period may change, pass
        a function; it is called before each wait.

        `quiet_s` returns for how many seconds a call would have nothing to do as things are. A loop
        in virtual time asks when a call is due, and leaves such calls out. Other loops do not ask.
        """
        return self.spawn(self._repeat(period_s, action, name, first_s, quiet_s), name)

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
        quiet_s: Callable[[], float],
    ) -> None:
        period = period_s if callable(period_s) else lambda: period_s
        sleep_between_calls = getattr(
            asyncio.get_running_loop(), "sleep_between_calls", _sleep_between_calls
        )
        await asyncio.sleep(period() if first_s is None else first_s)
        while True:
            try:
                outcome = action()
                if outcome is not None:
                    await outcome
            except Exception:
                log.exception("periodic task failed", task=f"{self._name}.{name}")
            await sleep_between_calls(period(), quiet_s)

    def _forget(self, task: asyncio.Task[Any]) -> BaseException | None:
        self._tasks.pop(task, None)
        return None if task.cancelled() else task.exception()

    def _log_failure(self, task: asyncio.Task[Any]) -> None:
        if (error := self._forget(task)) is not None:
            log.error("task failed", task=task.get_name(), exc_info=error)
