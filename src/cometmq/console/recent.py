"""Shares answers of the cluster between the pages that ask for the same."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from cometmq.errors import CometMQError
from cometmq.runtime.clock import Clock
from cometmq.runtime.tasks import TaskOwner

T = TypeVar("T")
MAX_ANSWERS: Final = 512


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """Is an answer, or why there is none."""

    value: T | None
    error: CometMQError | None = None

    @property
    def is_known(self) -> bool:
        return self.error is None


async def known(asked: Awaitable[T]) -> Known[T]:
    """Return what `asked` gives, or the error by which the cluster refused it.

    So a page shows what is still known when a server is away.
    """
    try:
        return Known(await asked)
    except CometMQError as error:
        return Known(None, error)


class Recent:
    """Asks once for what many viewers want, and gives the same answer for a moment.

    For the loop's thread only. At most MAX_ANSWERS answers are kept, each no longer than it may be
    given: messages with their bodies are among them.
    """

    def __init__(self, clock: Clock, tasks: TaskOwner) -> None:
        self._clock = clock
        self._tasks = tasks
        self._answers: OrderedDict[object, tuple[float, asyncio.Task[Any]]] = OrderedDict()

    async def get(self, key: object, age_s: float, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer for `key` if it is at most `age_s` old, else ask for it.

        Whoever asks while the question is under way gets the same answer, or the same error. An
        error is not kept.
        """
        now_s = self._clock.monotonic()
        found = self._answers.get(key)
        if found is not None:
            asked_s, task = found
            failed = task.done() and (task.cancelled() or task.exception() is not None)
            if not failed and (not task.done() or now_s - asked_s <= age_s):
                return await asyncio.shield(task)

        async def asking() -> T:
            return await ask()

        loop = asyncio.get_running_loop()
        task = self._tasks.spawn(asking(), "ask", log_failure=False)
        self._answers[key] = now_s, task
        self._answers.move_to_end(key)
        task.add_done_callback(lambda _: loop.call_later(age_s, self._drop, key, task))
        while len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        return await asyncio.shield(task)

    def forget(self) -> None:
        """Ask anew for everything: an action has changed the cluster."""
        self._answers.clear()

    def _drop(self, key: object, task: asyncio.Task[Any]) -> None:
        found = self._answers.get(key)
        if found is not None and found[1] is task:
            del self._answers[key]
