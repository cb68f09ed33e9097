"""Define the handles of a virtual loop: callbacks, timers and tasks, each of a node.

A simulated hour makes some hundred thousand handles, so each must be cheap to make. The constructors of
callbacks and timers set the attributes themselves, and call asyncio's `__init__` only in debug mode.
"""

from __future__ import annotations

import asyncio
from asyncio.tasks import _unregister_task
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.testing.virtual.origins import Line, calling_line, is_users, waiting_lines

if TYPE_CHECKING:
    from cometmq.testing.virtual.loop import VirtualLoop
    from cometmq.testing.virtual.node import Node

T = TypeVar("T")

# The node that the running code belongs to.
NODE: Final[ContextVar[Node | None]] = ContextVar("cometmq.node", default=None)


class Callback(asyncio.Handle):
    """Runs unless its node is paused or killed."""

    __slots__ = ("node",)
    _run: Callable[[], None]

    def __init__(
        self, callback: Callable[..., object], args: Any, loop: VirtualLoop, context: Context | None
    ) -> None:
        if context is None:  # an empty one is false
            context = copy_context()
            self.node = NODE.get()
        else:
            self.node = context.get(NODE)
        if loop.get_debug():
            super().__init__(callback, args, loop, context)
            return
        self._context = context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None

    def run(self) -> None:
        if self.node is None or self.node.lets_run(self):
            self._run()


class Timer(asyncio.TimerHandle):
    __slots__ = ("callback", "is_scheduled", "made_at", "node")
    _run: Callable[[], None]

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Any,
        loop: VirtualLoop,
        context: Context | None,
    ) -> None:
        if context is None:  # an empty one is false
            context = copy_context()
            self.node = NODE.get()
        else:
            self.node = context.get(NODE)
        if loop.get_debug():
            super().__init__(when, callback, args, loop, context)
        else:
            self._context = context
            self._loop = loop
            self._callback = callback
            self._args = args
            self._cancelled = self._scheduled = False
            self._repr = self._source_traceback = None
            self._when = when
        self.callback = callback
        # Not known of a timer that wakes a task, since reports name the task.
        self.made_at: Line | None = None
        self.is_scheduled = True

    @property
    def wakes_task(self) -> bool:
        """True when `asyncio.sleep`, `asyncio.timeout` or the like set this timer."""
        module = getattr(self.callback, "__module__", None)
        return module is not None and module.startswith("asyncio.")

    def move(self, when: float) -> None:
        self._when = when

    def run(self) -> None:
        if self.node is None or self.node.lets_run(self):
            self._run()

    def described(self) -> str:
        """Describe the timer: its node, what it calls and when, and the line that made it."""
        name = getattr(self.callback, "__qualname__", repr(self.callback))
        node = "" if self.node is None else f" of {self.node.name}"
        return f"a timer{node} that calls {name} at {self.when():.3f} s; made at {self.made_at}"


Handle = Callback | Timer


class VirtualTask(asyncio.Task[T]):
    """Knows its node, and the line that made it."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], loop: Any, name: Any, context: Any
    ) -> None:
        self.node = NODE.get() if context is None else context.get(NODE)
        super().__init__(coroutine, loop=loop, name=name, context=context)
        self.made_at = made_at()

    def forget(self) -> None:
        """Take this task out of asyncio's tables: nobody will cancel it or miss its end."""
        self._log_destroy_pending = False
        _unregister_task(self)

    def waits_in_users_code(self) -> bool:
        """Return whether a line of the user's is among those that this task waits at."""
        return any(is_users(line) for line in waiting_lines(self.get_coro()))

    def described(self) -> str:
        """Say who this task is and where it waits."""
        where = waiting_lines(self.get_coro())
        node = "" if self.node is None else f" of {self.node.name}"
        return f"{self.get_name()}{node} waits at " + ", for ".join(str(line) for line in where)


def made_at() -> Line | None:
    """Return the user's line that made something, or else the one that made the running task."""
    line, is_users = calling_line()
    if not is_users:
        task = _running_task()
        if task is not None and task.made_at is not None:
            return task.made_at
    return line


def _running_task() -> VirtualTask[Any] | None:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # the loop does not run yet
        return None
    return task if isinstance(task, VirtualTask) else None
