"""Run coroutines in virtual time: when nothing is ready, the time jumps to the next timer.

Every handle belongs to the node in whose context it was made. Handles of a paused node are kept
until it resumes, handles of a killed node never run.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, TypeVarTuple, Unpack

from cometmq.testing.virtual.blocking import refusal, refuse_blocking_calls
from cometmq.testing.virtual.errors import BlockingCallError, DeadlockError, LeftBehindError
from cometmq.testing.virtual.handles import NODE, Callback, Handle, Timer, VirtualTask, made_at
from cometmq.testing.virtual.zone import zone_of_simulations

if TYPE_CHECKING:
    from cometmq.testing.virtual.node import Node

__all__ = [
    "NODE",
    "BlockingCallError",
    "DeadlockError",
    "LeftBehindError",
    "VirtualLoop",
    "VirtualTask",
    "made_at",
    "run",
]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# This many callbacks at one time show that a task waits for the time to go on, and keeps it from doing
# so.
_CALLBACKS_OF_ONE_TIME: Final = 2_000_000
# Finished tasks are forgotten when there are so many more of them than at the last look.
_TASKS_AT_LEAST: Final = 256
# Brokers and consumers set timers for ever, so a test whose event never comes meets no end of them. No
# message is delayed for more than three days by default.
_WAITS_AT_MOST_S: Final = 4 * 86_400.0
_LOOK_AT_WAITS_EVERY_S: Final = 3 * 3600.0
_WAITERS_SHOWN: Final = 8
_ELSEWHERE: Final = "in virtual time there are the clients of cometmq.aio and fakes of all else; or run this in real time"


class VirtualLoop(asyncio.BaseEventLoop):
    """Goes to the time of the next timer as soon as nothing else is to be done.

    Work for the loop's own threads is done at once. The machine's network is out of reach. Timers of
    one time run in the order in which they were set. `now_s` is the time without any node's drift.
    """

    _ready: deque[Handle]
    _scheduled: list[tuple[float, int, Timer]]
    _timer_cancelled_count: int
    _stopping: bool
    _closed: bool
    _check_closed: Callable[[], None]
    # No other process changes the files of a node.
    has_no_outside: Final = True

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._timers_set = 0
        self._run_since = 0
        self._tasks: list[VirtualTask[Any]] = []
        self._tasks_until_look = _TASKS_AT_LEAST
        self._failure: BaseException | None = None
        # The future that each of the user's tasks waits for, and since when none of them has changed.
        self._waited_for: list[tuple[VirtualTask[Any], object]] = []
        self._waited_since_s = 0.0
        self._look_at_waits_s = 0.0

    def run_forever(self) -> None:
        with refuse_blocking_calls(self.fail), zone_of_simulations():
            super().run_forever()

    def fail(self, error: BaseException) -> None:
        """End the run with `error` after this callback, even if code in there catches it."""
        if self._failure is None:
            self._failure = error

    # Time

    def time(self) -> float:
        """Return the time of the running code's node."""
        node = NODE.get()
        return self.now_s if node is None else node.clock.monotonic()

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        if self._closed:
            self._check_closed()
        handle = Callback(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._closed:
            self._check_closed()
        if (node := NODE.get()) is not None:
            when = node.clock.loop_time(when)
        timer = Timer(when, callback, args, self, context)
        self._schedule(when, timer)
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._closed:
            self._check_closed()
        if (node := NODE.get()) is not None:
            delay = delay / node.clock.rate
        when = self.now_s + delay
        timer = Timer(when, callback, args, self, context)
        self._schedule(when, timer)
        return timer

    def _schedule(self, when: float, timer: Timer) -> None:
        if timer.node is not None and not timer.wakes_task:
            timer.made_at = made_at()
        self._timers_set += 1
        heapq.heappush(self._scheduled, (when, self._timers_set, timer))

    def rescale(self, node: Node, old: Callable[[float], float]) -> None:
        """Move the timers of a node whose clock goes at another rate from now on.

        `old` returns what that clock would have shown at a time of the loop.
        """
        moved = []
        for when, number, timer in self._scheduled:
            if timer.node is node:
                timer.move(max(self.now_s, node.clock.loop_time(old(when))))
            moved.append((timer.when(), number, timer))
        heapq.heapify(moved)
        self._scheduled[:] = moved

    # Tasks

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        self._check_closed()
        task = VirtualTask(coro, self, name, context)
        self._tasks.append(task)
        if len(self._tasks) >= self._tasks_until_look:
            self._tasks = self.tasks()
            self._tasks_until_look = 2 * len(self._tasks) + _TASKS_AT_LEAST
        return task

    def tasks(self) -> list[VirtualTask[Any]]:
        """Return all tasks that have not ended, in the order in which they were made."""
        return [task for task in self._tasks if not task.done()]

    def timers(self) -> list[Timer]:
        """Return the timers that are set and belong to a node, but to no task of it."""
        return [
            timer
            for _, _, timer in sorted(self._scheduled, key=lambda entry: entry[1])
            if timer.made_at is not None and not timer.cancelled()
        ]

    def run_again(self, handles: Iterable[Handle]) -> None:
        """Run `handles` of a node that was paused, in their order."""
        self._ready.extend(handles)

    def drop(self, node: Node) -> tuple[list[VirtualTask[Any]], list[Handle]]:
        """Forget the handles and tasks of a killed node, and return them.

        As long as the result is kept, no `finally` in it runs.
        """
        dropped: list[Handle] = [h for h in self._ready if h.node is node]
        dropped += [timer for _, _, timer in self._scheduled if timer.node is node]
        kept = [handle for handle in self._ready if handle.node is not node]
        self._ready.clear()
        self._ready.extend(kept)
        self._scheduled[:] = [entry for entry in self._scheduled if entry[2].node is not node]
        heapq.heapify(self._scheduled)
        self._timer_cancelled_count = sum(t.cancelled() for _, _, t in self._scheduled)
        tasks = [task for task in self.tasks() if task.node is node]
        for task in tasks:
            task.forget()
        self._tasks = [task for task in self.tasks() if task.node is not node]
        return tasks, dropped

    # Other methods of a loop

    def run_in_executor(  # type: ignore[override]  # typeshed's variadic generics say the same
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        if executor is not None:
            return asyncio.wrap_future(executor.submit(func, *args), loop=self)
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it reaches the task that awaits the future
            done.set_exception(error)
        return done

    async def create_connection(self, *_: object, **__: object) -> NoReturn:
        self._refuse("loop.create_connection")

    async def create_server(self, *_: object, **__: object) -> NoReturn:
        self._refuse("loop.create_server")

    async def create_datagram_endpoint(self, *_: object, **__: object) -> NoReturn:
        self._refuse("loop.create_datagram_endpoint")

    async def subprocess_exec(self, *_: object, **__: object) -> NoReturn:
        self._refuse("loop.subprocess_exec")

    async def subprocess_shell(self, *_: object, **__: object) -> NoReturn:
        self._refuse("loop.subprocess_shell")

    def _refuse(self, what: str) -> NoReturn:
        error = refusal(what, _ELSEWHERE)
        self.fail(error)
        raise error

    def _run_once(self) -> None:
        if not self._ready:
            self._advance()
        ready = self._ready
        count = len(ready)
        self._run_since += count
        if self._run_since > _CALLBACKS_OF_ONE_TIME:
            self._run_since = 0
            raise DeadlockError(
                f"{_CALLBACKS_OF_ONE_TIME} callbacks ran at one time, so the time does not go on; "
                "wait for an event, or by asyncio.sleep with more than 0 seconds:" + self._waits()
            )
        for _ in range(count):
            if not ready:
                return  # a node was killed, and its handles are gone
            handle = ready.popleft()
            if not handle.cancelled():
                handle.run()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure

    def _advance(self) -> None:
        """Go to the time of the next timer, and make all timers of that time ready."""
        if self._stopping:
            return
        self._run_since = 0
        scheduled = self._scheduled
        while scheduled and scheduled[0][2].cancelled():
            self._unschedule()
        if not scheduled:
            raise DeadlockError("everybody waits, and no timer is set:" + self._waits())
        now_s = self.now_s = max(self.now_s, scheduled[0][0])
        if now_s >= self._look_at_waits_s:
            self._look_at_waits()
        ready = self._ready
        while scheduled and scheduled[0][0] <= now_s:
            timer = self._unschedule()
            if not timer.cancelled():
                ready.append(timer)

    def _look_at_waits(self) -> None:
        """Raise DeadlockError if the user's tasks have waited for days, and for no timer so far ahead."""
        self._look_at_waits_s = self.now_s + _LOOK_AT_WAITS_EVERY_S
        waited_for: list[tuple[VirtualTask[Any], object]] = [
            (task, getattr(task, "_fut_waiter", None))
            for task in self.tasks()
            if task.waits_in_users_code()
        ]
        same = len(waited_for) == len(self._waited_for) and all(
            new[0] is old[0] and new[1] is old[1]
            for new, old in zip(waited_for, self._waited_for, strict=True)
        )
        if not waited_for or not same:
            self._waited_since_s = self.now_s
        self._waited_for = waited_for
        # A task that sleeps for a month has set a timer for its end.
        last_s = max(timer.when() for _, _, timer in self._scheduled)
        if last_s > self.now_s + _WAITS_AT_MOST_S / 2:
            self._waited_since_s = last_s
        waited_s = self.now_s - self._waited_since_s
        if waited_s >= _WAITS_AT_MOST_S:
            raise DeadlockError(
                f"nothing has happened for {waited_s / 86_400:.0f} days of virtual time that this waits "
                "for; put asyncio.timeout(…) around what may not come:" + self._waits()
            )

    def _unschedule(self) -> Timer:
        timer = heapq.heappop(self._scheduled)[2]
        timer.is_scheduled = False
        if timer.cancelled():
            self._timer_cancelled_count -= 1
        return timer

    def _timer_handle_cancelled(self, handle: Timer) -> None:
        if not handle.is_scheduled:
            return
        self._timer_cancelled_count += 1
        if self._timer_cancelled_count > 100 + len(self._scheduled) // 2:
            kept = []
            for entry in self._scheduled:
                if entry[2].cancelled():
                    entry[2].is_scheduled = False
                else:
                    kept.append(entry)
            heapq.heapify(kept)
            self._scheduled[:] = kept
            self._timer_cancelled_count = 0

    def _waits(self) -> str:
        """List the tasks that wait: those in the user's own code, if any, and a few of the
        others.
        """
        tasks = sorted(self.tasks(), key=lambda task: not task.waits_in_users_code())
        users = sum(task.waits_in_users_code() for task in tasks)
        shown = tasks[: max(users, _WAITERS_SHOWN)] if users else tasks
        lines = [f"\n  {task.described()}" for task in shown]
        if left := len(tasks) - len(shown):
            lines.append(f"\n  … and {left} more of servers and clients")
        nodes = {task.node: None for task in self.tasks() if task.node is not None}
        lines += [f"\n  {node.name} is paused; resume it" for node in nodes if node.is_paused]
        return "".join(lines)

    def _process_events(self, event_list: object) -> None:
        """There are no files to wait for."""

    def _write_to_self(self) -> None:
        """There is no other thread whose work could wake the loop."""


def run(main: Coroutine[Any, Any, T], *, seed: int = 0) -> T:
    """Run `main` in virtual time on the node `main` of a new world, and return its result."""
    from cometmq.testing.virtual.world import World

    with World(seed) as world:
        return world.run(main)
