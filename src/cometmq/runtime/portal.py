"""Run an event loop in a background thread for callers that have none (the blocking facade)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

from cometmq.errors import ClientStateError, ForkedClientError
from cometmq.runtime.loop import new_event_loop

T = TypeVar("T")
R = TypeVar("R")


# The thread that waits for the coroutine in whose context code runs, None if none waits.
WAITING_THREAD: Final[ContextVar[int | None]] = ContextVar("cometmq_waiting_thread", default=None)


class _Call(Generic[T]):
    """A coroutine that a thread waits for.

    It costs half as much as a concurrent future, and the blocking clients make one per message.
    """

    __slots__ = ("_coroutine", "_ended", "_loop", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[T] | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def enter(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        loop.call_soon_threadsafe(self._begin)

    def wait(self, timeout_s: float | None) -> None:
        """Block the calling thread until the coroutine has ended. Raises TimeoutError."""
        if not self._ended.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise TimeoutError(f"not done within {timeout_s} s")

    def result(self) -> T:
        assert self._task is not None, "waited for"
        return self._task.result()

    def leave(self) -> None:
        """Have the coroutine cancelled if it has not ended."""
        if self._task is None or not self._task.done():
            assert self._loop is not None, "entered"
            with contextlib.suppress(RuntimeError):  # a closed loop has cancelled it already
                self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self) -> None:
        assert self._loop is not None, "entered"
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # else asyncio logs it as never retrieved when nobody waits any more
        self._ended.release()

    def _cancel(self) -> None:
        assert self._task is not None, "begun before it is cancelled"
        self._task.cancel()


class LoopThread:
    """Runs coroutines on its own loop while other threads wait for them.

    The thread is a daemon: it does not keep an interpreter alive. It belongs to the process that
    started it; in a fork, which has no such thread, `call` and `submit` raise ForkedClientError.
    Call the methods from any other thread.
    """

    def __init__(self, name: str = "cometmq-loop") -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._pid = 0
        self._stopping = False
        # Orders submissions before the stop, so that none is left in a loop that has ended.
        self._submitting = threading.Lock()

    @property
    def running(self) -> bool:
        """Whether `call` works here: started, not stopped, and not inherited by a fork."""
        return self._thread is not None and self._thread.is_alive() and self._pid == os.getpid()

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that started the thread."""
        return self._pid not in (0, os.getpid())

    def start(self) -> None:
        """Start the thread and wait until its loop runs. Raises ClientStateError if it runs."""
        if self.running:
            raise ClientStateError(f"the loop thread {self._name} is started already")
        ready = threading.Event()
        self._pid = os.getpid()
        self._stopping = False
        self._submitting = threading.Lock()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name=self._name, daemon=True
        )
        self._thread.start()
        ready.wait()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run `coroutine` on the loop and return its result or raise its error.

        Raises TimeoutError when the coroutine takes longer than `timeout_s`, ForkedClientError in a
        fork, and ClientStateError when the loop does not run, ends meanwhile, or runs in the
        calling thread. A caller that stops waiting (timeout, KeyboardInterrupt) cancels the
        coroutine.
        """
        waiting = _Call(coroutine)
        token = WAITING_THREAD.set(threading.get_ident())
        try:
            self._enter(coroutine, waiting.enter)
        finally:
            WAITING_THREAD.reset(token)
        try:
            waiting.wait(timeout_s)
            return waiting.result()
        except asyncio.CancelledError as error:
            raise ClientStateError(f"the loop thread {self._name} was stopped") from error
        finally:
            waiting.leave()

    def stop(self) -> None:
        """Cancel the coroutines that still run, close the loop and end the thread. Idempotent."""
        thread = self._thread
        if thread is None or not self.running:
            return
        with self._submitting:
            if not self._stopping:
                self._stopping = True
                assert self._loop is not None
                assert self._stop is not None
                self._loop.call_soon_threadsafe(self._stop.set)
        thread.join()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` as `call` does, without waiting for it.

        The future gives its outcome, and the future's `cancel` cancels the coroutine.
        """
        return self._enter(
            coroutine, lambda loop: asyncio.run_coroutine_threadsafe(coroutine, loop)
        )

    def _enter(
        self,
        coroutine: Coroutine[Any, Any, Any],
        enter: Callable[[asyncio.AbstractEventLoop], R],
    ) -> R:
        """Call `enter` while the loop surely runs; otherwise close the coroutine and raise."""
        if self.inherited:
            coroutine.close()
            raise ForkedClientError(
                f"the loop thread {self._name} belongs to process {self._pid}, not to this fork; "
                "create and start clients in the child"
            )
        fault = self._call_fault()
        if fault is None:
            with self._submitting:
                if not self._stopping:
                    assert self._loop is not None
                    return enter(self._loop)
            fault = f"the loop thread {self._name} was stopped"
        coroutine.close()
        raise ClientStateError(fault)

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._main(ready))

    async def _main(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        ready.set()
        await self._stop.wait()

    def _call_fault(self) -> str | None:
        if self._thread is threading.current_thread():
            return (
                f"a blocking call on the loop thread {self._name} would wait for itself; "
                "use cometmq.aio there"
            )
        if not self.running:
            return f"the loop thread {self._name} does not run"
        return None
