"""Run an event loop in a background thread for callers that have none (the blocking facade)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, Generic, TypeVar

from cometmq.errors import ClientStateError, ForkedClientError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.loop import new_event_loop

log = get_logger(__name__)

T = TypeVar("T")

# The largest number of posted functions that run before other work of the loop has its turn.
_POSTED_PER_TURN: Final = 256

# The thread that waits for the coroutine in whose context code runs, None if none waits.
WAITING_THREAD: Final[ContextVar[int | None]] = ContextVar("cometmq_waiting_thread", default=None)


class _Call(Generic[T]):
    """A coroutine that a thread waits for.

    It costs half as much as a concurrent future, and the blocking clients make one per message.
    """

    __slots__ = ("_context", "_coroutine", "_ended", "_task")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine
        # The caller's context, with the mark that its thread waits.
        self._context = copy_context()
        self._context.run(WAITING_THREAD.set, threading.get_ident())
        self._task: asyncio.Task[T] | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def wait(self, timeout_s: float | None) -> None:
        """Block the calling thread until the coroutine has ended. Raises TimeoutError."""
        if not self._ended.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise TimeoutError(f"not done within {timeout_s} s")

    def result(self) -> T:
        assert self._task is not None, "waited for"
        return self._task.result()

    @property
    def is_over(self) -> bool:
        return self._task is not None and self._task.done()

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._coroutine, context=self._context)
        self._task.add_done_callback(self._end, context=self._context)

    def _end(self, task: asyncio.Task[T]) -> None:
        if not task.cancelled():
            task.exception()  # else asyncio logs it as never retrieved when nobody waits any more
        self._ended.release()

    def cancel(self) -> None:
        assert self._task is not None, "begun before it is cancelled"
        self._task.cancel()


class _Outcome(Future[T]):
    """The outcome of a future of the loop, for other threads. Cancelling it cancels the future of the loop."""

    def __init__(self, begin: Callable[[], asyncio.Future[T]], thread: LoopThread) -> None:
        super().__init__()
        self._begin: Callable[[], asyncio.Future[T]] | None = begin
        self._thread = thread
        self._inner: asyncio.Future[T] | None = None

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if is_cancelled:
            with contextlib.suppress(ClientStateError):  # a loop that stops cancels it anyway
                self._thread.post(self._cancel_inner)
        return is_cancelled

    def begin(self) -> None:
        begin, self._begin = self._begin, None  # it holds a dozen objects
        assert begin is not None, "called once"
        try:
            self._inner = begin()
        except Exception as error:  # noqa: BLE001 - the caller's thread gets it
            if self.set_running_or_notify_cancel():
                self.set_exception(error)
            return
        self._inner.add_done_callback(self._end)
        if self.cancelled():
            self._inner.cancel()

    def _end(self, inner: asyncio.Future[T]) -> None:
        self._inner = None
        if inner.cancelled():
            super().cancel()
            self.set_running_or_notify_cancel()
            return
        error = inner.exception()
        if not self.set_running_or_notify_cancel():
            return
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(inner.result())

    def _cancel_inner(self) -> None:
        if self._inner is not None:
            self._inner.cancel()


class LoopThread:
    """Runs coroutines on its own loop while other threads wait for them.

    Requests of threads wait for the loop in one line, in the order of the threads. One wake-up of the loop serves all that
    stands there: it costs more than most of what is asked.

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
        # Set by the thread itself.
        self._runs = False
        self._thread_id = 0
        self._stopping = False
        # Orders submissions before the stop, so that none is left in a loop that has ended. Reentrant: garbage
        # collection may close an iteration, which posts, while the same thread is about to post.
        self._submitting = threading.RLock()
        # Functions that wait for the loop, and whether the loop was woken for them.
        self._posted: deque[Callable[[], object]] = deque()
        self._is_woken = False
        # Each function runs in the context of its caller, so this shared context saves copies.
        self._context = Context()

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
        self._submitting = threading.RLock()
        self._posted.clear()
        self._is_woken = False
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
        try:
            self.check_thread()
            self._put(waiting.begin)
        except BaseException:
            coroutine.close()
            raise
        try:
            waiting.wait(timeout_s)
            return waiting.result()
        except asyncio.CancelledError as error:
            raise ClientStateError(f"the loop thread {self._name} was stopped") from error
        finally:
            if not waiting.is_over:
                with contextlib.suppress(ClientStateError):  # a loop that stops cancels it anyway
                    self._put(waiting.cancel)

    def stop(self, wait_s: float | None = None) -> None:
        """Cancel the coroutines that still run, close the loop and end the thread. Idempotent.

        With `wait_s`, return after this time although the thread has not ended.
        """
        thread = self._thread
        if thread is None or not self.running:
            return
        with self._submitting:
            if not self._stopping:
                self._stopping = True
                assert self._loop is not None
                assert self._stop is not None
                self._loop.call_soon_threadsafe(self._stop.set)
        thread.join(wait_s)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` as `call` does, without waiting for it.

        The future gives its outcome, and the future's `cancel` cancels the coroutine.
        """
        try:
            return self.begin(lambda: asyncio.get_running_loop().create_task(coroutine))
        except BaseException:
            coroutine.close()
            raise

    def begin(self, begin: Callable[[], asyncio.Future[T]]) -> Future[T]:
        """Call `begin` on the loop, and return a future of the outcome of the future that it returns.

        Its `cancel` cancels the inner future. Raises the same errors as `call`.
        """
        self.check_thread()
        outcome = _Outcome(begin, self)
        self.post(outcome.begin)
        return outcome

    def post(self, function: Callable[[], object]) -> None:
        """Call `function` on the loop, in the caller's context, after all that was posted or called before.

        Raises ForkedClientError in a fork, and ClientStateError when the loop does not run or ends. Any
        thread may call this.
        """
        self._put(functools.partial(copy_context().run, function))

    def _put(self, function: Callable[[], object]) -> None:
        if not self._runs or self._pid != os.getpid():
            raise self._refusal()
        with self._submitting:
            if not self._stopping:
                self._posted.append(function)
                if not self._is_woken:
                    self._is_woken = True
                    assert self._loop is not None, "it runs"
                    self._loop.call_soon_threadsafe(self._run_posted, context=self._context)
                return
        raise ClientStateError(f"the loop thread {self._name} was stopped")

    def _run_posted(self) -> None:
        # Clear the flag before looking, so that a thread that posts later wakes the loop again.
        self._is_woken = False
        posted = self._posted
        left = _POSTED_PER_TURN
        while posted and left:
            left -= 1
            try:
                posted.popleft()()
            except Exception:
                log.exception("a call from another thread failed", thread=self._name)
        if posted and not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._run_posted)

    def _run(self, ready: threading.Event) -> None:
        self._thread_id = threading.get_ident()
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._main(ready))
        finally:
            self._runs = False
            self._thread_id = 0  # another thread may get the number

    async def _main(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._runs = True
        self._stop = asyncio.Event()
        ready.set()
        await self._stop.wait()
        while self._posted:  # so that waiting threads see that the loop ends
            self._run_posted()

    def check_thread(self) -> None:
        """Raise ClientStateError in the loop's own thread, which cannot wait for itself."""
        if self._thread_id == threading.get_ident() and self._pid == os.getpid():
            raise ClientStateError(
                f"a blocking call on the loop thread {self._name} would wait for itself; "
                "use cometmq.aio there"
            )

    def _refusal(self) -> ClientStateError:
        """Return the error for a thread that calls a loop which does not run in this process."""
        if self.inherited:
            return ForkedClientError(
                f"the loop thread {self._name} belongs to process {self._pid}, not to this fork; "
                "create and start clients in the child"
            )
        return ClientStateError(f"the loop thread {self._name} does not run")
