"""Runs coroutines in virtual time: when nothing is ready, the time jumps to the next timer.

Every handle belongs to the node in whose context it was made. Those of a paused node are kept until
it resumes, those of a killed node never run.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

if TYPE_CHECKING:
    from cometmq.testing.virtual.node import Node

T = TypeVar("T")

# The node that the running code belongs to.
NODE: Final[ContextVar[Node | None]] = ContextVar("cometmq.node", default=None)


class DeadlockError(RuntimeError):
    """Everybody waits and no timer is set. The message says what each task waits for."""


class BlockingCallError(RuntimeError):
    """Code in virtual time called what would hold up the only thread, or leave the virtual world."""


class LeftBehindError(RuntimeError):
    """A run ended and left tasks, timers or connections behind. The message says who made them."""


class _Handle(asyncio.Handle):
    """Runs unless its node is paused or killed."""

    __slots__ = ("node",)

    def __init__(
        self, callback: Callable[..., object], args: Any, loop: Any, context: Context | None
    ) -> None:
        super().__init__(callback, args, loop, context)
        self.node: Node | None = self._context.get(NODE)  # type: ignore[attr-defined]

    def _run(self) -> None:
        if self.node is None or self.node.takes(self):
            super()._run()


class _Timer(asyncio.TimerHandle):
    __slots__ = ("node",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Any,
        loop: Any,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.node: Node | None = self._context.get(NODE)  # type: ignore[attr-defined]

    def _run(self) -> None:
        if self.node is None or self.node.takes(self):
            super()._run()


class VirtualLoop(asyncio.BaseEventLoop):
    """Goes to the time of the next timer as soon as nothing else is to be done.

    Work for the loop's own threads is done at once. The machine's network is out of reach. Timers of
    one time run in the order in which they were set.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[tuple[float, int, _Timer]]
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._timers_set = 0

    def time(self) -> float:
        """Return the time of the running code's node."""
        node = NODE.get()
        return self.now_s if node is None else node.clock.monotonic()

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_closed()  # type: ignore[attr-defined]
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._check_closed()  # type: ignore[attr-defined]
        if (node := NODE.get()) is not None:
            when = node.clock.loop_time(when)
        timer = _Timer(when, callback, args, self, context)
        self._timers_set += 1
        heapq.heappush(self._scheduled, (when, self._timers_set, timer))
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def run_in_executor(  # type: ignore[override]  # typeshed's variadic generics say the same
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        if executor is not None:
            return asyncio.wrap_future(executor.submit(func, *args), loop=self)
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it reaches whoever awaits the future
            done.set_exception(error)
        return done

    async def create_connection(self, *_: object, **__: object) -> NoReturn:  # type: ignore[override]
        raise BlockingCallError("a connection of the machine in virtual time")

    async def create_server(self, *_: object, **__: object) -> NoReturn:  # type: ignore[override]
        raise BlockingCallError("a listener of the machine in virtual time")

    def _run_once(self) -> None:
        if not self._ready:
            self._advance()
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _advance(self) -> None:
        """Go to the time of the next timer, and make all timers of that time ready."""
        scheduled = self._scheduled
        while scheduled and scheduled[0][2].cancelled():
            heapq.heappop(scheduled)[2]._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1
        if not scheduled:
            raise DeadlockError("everybody waits, and no timer is set")
        self.now_s = max(self.now_s, scheduled[0][0])
        while scheduled and scheduled[0][0] <= self.now_s:
            timer = heapq.heappop(scheduled)[2]
            timer._scheduled = False  # type: ignore[attr-defined]
            if timer.cancelled():
                self._timer_cancelled_count -= 1
            else:
                self._ready.append(timer)

    def run_again(self, handles: list[asyncio.Handle]) -> None:
        """Run `handles` of a node that was paused, in their order."""
        self._ready.extend(handles)

    def _process_events(self, event_list: object) -> None:
        """There are no files to wait for."""

    def _write_to_self(self) -> None:
        """There is no other thread whose work could wake the loop."""


def run(main: Coroutine[Any, Any, T], *, seed: int = 0) -> T:
    """Run `main` in virtual time on the node `main` of a new world, and return its result."""
    from cometmq.testing.virtual.world import World

    return World(seed).run(main)
