"""Share answers of the cluster between the pages that ask for the same."""

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
# Longer than a live page waits before it asks again.
LATE_S: Final = 6.0


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


async def known_of(ask: Callable[[], Awaitable[T]]) -> Known[T]:
    """Do what `known` does, for several questions at once. The question is put only when this runs: if a page is
    given up before, no question is left that nobody awaits.
    """
    return await known(ask())


@dataclass(slots=True)
class _Asked:
    """Is a question: when it was asked, and whether its answer came too late for a caller."""

    asked_s: float
    task: asyncio.Task[Any]
    is_late: bool = False
    # Forgets the answer.
    timer: asyncio.TimerHandle | None = None

    def fits(self, now_s: float, age_s: float) -> bool:
        if not self.task.done():
            return True
        if self.task.cancelled() or self.task.exception() is not None:
            return False
        return now_s - self.asked_s <= age_s or (self.is_late and age_s > 0)

    def kept_s(self, age_s: float) -> float:
        return max(age_s, LATE_S) if self.is_late else age_s


class Recent:
    """Asks a question of many viewers once, and gives all of them the same answer for a moment.

    For the loop's thread only. At most MAX_ANSWERS answers are kept, each no longer than it may be
    given: messages with their bodies are among them.
    """

    def __init__(self, clock: Clock, tasks: TaskOwner) -> None:
        self._clock = clock
        self._tasks = tasks
        self._answers: OrderedDict[object, _Asked] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    async def get(self, key: object, age_s: float, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer for `key` if it is at most `age_s` old, else ask for it.

        Callers that come while the question is under way get the same answer, or the same error. An
        error is not kept. An answer that came too late for a page is kept for its next refresh.
        """
        now_s = self._clock.monotonic()
        found = self._answers.get(key)
        if found is not None and found.fits(now_s, age_s):
            given: T = await self._given(found)
            return given

        async def asking() -> T:
            return await ask()

        loop = asyncio.get_running_loop()
        task = self._tasks.spawn(asking(), "ask", log_failure=False)
        asked = _Asked(now_s, task)
        self._answers[key] = asked
        self._answers.move_to_end(key)

        def keep(_: object) -> None:
            asked.timer = loop.call_later(asked.kept_s(age_s), self._drop, key, asked)

        task.add_done_callback(keep)
        while len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        answer: T = await self._given(asked)
        return answer

    def forget(self) -> None:
        """Forget all answers, because an action has changed the cluster."""
        self._answers.clear()

    def drop(self, key: object) -> None:
        """Keep the answer for `key` no longer: it is large."""
        asked = self._answers.pop(key, None)
        if asked is not None and asked.timer is not None:
            asked.timer.cancel()  # it holds the answer, too

    @staticmethod
    async def _given(asked: _Asked) -> Any:
        try:
            return await asyncio.shield(asked.task)
        except asyncio.CancelledError:
            # Its callers have waited for long enough, and come again.
            asked.is_late = asked.is_late or not asked.task.done()
            raise

    def _drop(self, key: object, asked: _Asked) -> None:
        if self._answers.get(key) is asked:
            del self._answers[key]
