"""Run the calls of blocking clients on one background loop thread.

The thread runs while one of the blocking clients does. A forked child gets a thread of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import threading
import warnings
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar

from cometmq.client.faces import ASYNC_WITH, refuses
from cometmq.client.options import NamesOptions
from cometmq.client.running import Lifecycle, check_main_thread
from cometmq.errors import ClientStateError
from cometmq.forks import PROCESS, in_each_child
from cometmq.runtime.portal import LoopThread
from cometmq.runtime.signals import blocking_stop
from cometmq.runtime.surroundings import current

P = ParamSpec("P")
T = TypeVar("T")

# How long the interpreter's end waits for the loop thread. Work of the user in the loop's executor may hold it up.
_END_S: Final = 1.0


class _SharedLoopThread:
    """Runs the loop thread of all blocking clients of the process, while one of them is started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._users = 0

    def borrow(self) -> LoopThread:
        with self._lock:
            if self._thread is None or not self._thread.running:
                self._thread = LoopThread("cometmq-client")
                self._thread.start()
                self._users = 0
            self._users += 1
            return self._thread

    def give_back(self, thread: LoopThread) -> None:
        with self._lock:
            if thread is self._thread:
                self._users -= 1
                if self._users == 0:
                    self._thread = None
                    thread.stop()

    def leave_to_parent(self) -> None:
        """Forget the thread and the lock in a forked child.

        A child has only the thread that forked: no loop thread, and perhaps not the thread that
        held the lock.
        """
        PROCESS.keep(self._thread)
        self._lock = threading.Lock()
        self._thread = None
        self._users = 0

    def end(self) -> None:
        """Warn of unclosed clients at the interpreter's end, and end the thread.

        The running thread refers to the clients, so they are not collected and cannot warn
        themselves. A thread that runs on while the interpreter is taken down may crash it.
        """
        thread = self._thread
        if thread is not None and thread.running:
            warnings.warn(
                f"{self._users} blocking clients are unclosed at exit; call close() or use them in "
                "a with statement",
                ResourceWarning,
                stacklevel=1,
            )
            thread.stop(_END_S)


_shared = _SharedLoopThread()
atexit.register(_shared.end)
in_each_child(_shared.leave_to_parent)


class BlockingFace(NamesOptions):
    """Is the base of the blocking classes; `of` names the asyncio class that each one runs."""

    def __init_subclass__(cls, *, of: type, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__doc__ = "\n\n".join(filter(None, (inspect.getdoc(cls), inspect.getdoc(of))))
        _document(cls, of)

    def __init__(self, asynchronous: Lifecycle[Any]) -> None:
        if current().is_virtual:
            raise ClientStateError(
                f"cometmq.{type(self).__name__} blocks, and would hold up the only thread of virtual "
                f"time; use cometmq.aio.{type(self).__name__} there"
            )
        self._client = asynchronous
        self._thread: LoopThread | None = None
        self._is_closing = False

    def start(self) -> None:
        thread = _shared.borrow()
        # Set before the start is over, for functions of the user that are called right after it.
        before, self._thread = self._thread, thread
        try:
            thread.call(self._client.start())
        except BaseException:
            self._thread = before
            _shared.give_back(thread)
            raise

    def close(self) -> None:
        thread = self._thread
        # Without a start, in a fork, and at the interpreter's end.
        if thread is None or not thread.running:
            PROCESS.keep(thread)
            self._thread = None
            self._client.close_unstarted()
            return
        if self._is_closing:
            return
        self._is_closing = True
        try:
            thread.call(self._client.close())
        finally:
            self._thread = None
            _shared.give_back(thread)

    def _run_until_signal(self) -> None:
        """Start unless it runs, wait for SIGTERM or SIGINT, and close."""
        check_main_thread(type(self).__name__)
        with blocking_stop() as wait:
            try:
                if self._thread is None:
                    self.start()
                wait()
            finally:
                self.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    if not TYPE_CHECKING:
        __aenter__ = __aexit__ = refuses("async with", ASYNC_WITH)

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._running_thread(coroutine).call(coroutine)

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return self._running_thread(coroutine).submit(coroutine)

    def _begin(self, begin: Callable[[], asyncio.Future[T]]) -> Future[T]:
        """Call `begin` on the loop thread, and return a future of the outcome of its future."""
        return self._started_thread().begin(begin)

    def _outside(self) -> LoopThread:
        """Return the loop thread. Raises ClientStateError on the loop thread itself, and unless the client runs."""
        thread = self._started_thread()
        thread.check_thread()
        return thread

    def _post(self, function: Callable[[], object]) -> None:
        """Call a function on the loop thread, before all that this thread calls after it."""
        self._started_thread().post(function)

    def _apply(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain method of the asyncio client, on the loop thread if the client runs."""
        if self._thread is None:
            return function(*args, **kwargs)
        return self._thread.call(_later(function, *args, **kwargs))

    def _running_thread(self, coroutine: Coroutine[Any, Any, Any]) -> LoopThread:
        if self._thread is None:
            coroutine.close()
        return self._started_thread()

    def _started_thread(self) -> LoopThread:
        if self._thread is None:
            self._client.check_started()
            raise AssertionError("a started client has its thread")
        return self._thread


def _document(cls: type, of: type) -> None:
    """Give each public method without a docstring the one of the asyncio class, for `help`."""
    for name, member in vars(cls).items():
        if not name.startswith("_") and not member.__doc__:
            member.__doc__ = inspect.getdoc(getattr(of, name))


_document(BlockingFace, Lifecycle)


async def _later(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return function(*args, **kwargs)
