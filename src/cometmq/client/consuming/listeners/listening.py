"""Call listeners: functions in threads, coroutine functions in tasks, both in bounded number.

Java: the consume executor of ConsumeMessageConcurrentlyService. Waking a Python thread costs more
than most listeners take to run. So pulled messages are handed over together and results come back
together: one wake-up each way for many messages. A listener that waits (for a database, say) gets
more threads, up to `concurrency`, as soon as it turns out to be slow.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from cometmq.client.consuming.listeners.consume_hooks import ConsumeHooks
from cometmq.client.consuming.listeners.partly import Partly, Refused
from cometmq.client.hooks import ConsumeContext
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.logs.loggers import get_logger
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.results import ConsumeReport, ConsumeResult
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.surroundings import current
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

# A listener gets the messages and returns its verdict on them. None counts as SUCCESS; any other value
# but a ConsumeResult or ConsumeReport counts as RECONSUME_LATER, and so does an exception.
Verdict = ConsumeResult | ConsumeReport | None
Listener = Callable[[list[MessageExt]], Verdict | Awaitable[Verdict]]
FunctionListener = Callable[[list[MessageExt]], Verdict]
CoroutineListener = Callable[[list[MessageExt]], Awaitable[Verdict]]
KindT = TypeVar("KindT", FunctionListener, CoroutineListener)

# A listener that takes longer than this is given a thread for each waiting job at once.
_SLOW_S: Final = 0.0002
# The interval at which the runner looks whether running listeners hold up waiting jobs.
_LOOK_S: Final = 0.002
# After so many jobs, a task whose listener never waits gives other tasks of the loop a turn.
_JOBS_PER_TURN: Final = 64


_UNSAID: Final = object()


class ConsumeJob:
    """Holds messages of one queue that go to the listener in one call, and the call's outcome.

    `begun_at` is the start of the call in seconds of the monotonic clock. It is None when the
    listener did not get the messages, because the queue was not consumable by then. `seconds` is
    how long the call took. `outcome` is the value that the listener returned or raised, unless it
    returned just the `result`. `partly` is set if the listener did not get all messages. `ended` is
    set for a job of `consume_one`.
    """

    __slots__ = (
        "begun_at",
        "ended",
        "messages",
        "outcome",
        "partly",
        "process_queue",
        "result",
        "seconds",
    )

    def __init__(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        self.process_queue = process_queue
        self.messages = messages
        self.result = ConsumeResult.RECONSUME_LATER
        self.outcome: object = _UNSAID
        self.partly: Partly | None = None
        self.begun_at: float | None = None
        self.seconds = 0.0
        self.ended: asyncio.Future[None] | None = None

    @property
    def answered(self) -> bool:
        """True when the listener returned a ConsumeResult, a ConsumeReport, or None for SUCCESS."""
        return self.outcome is _UNSAID or isinstance(self.outcome, ConsumeReport)

    @property
    def failure(self) -> BaseException | None:
        return self.outcome if isinstance(self.outcome, BaseException) else None

    @property
    def cause(self) -> BaseException | str:
        """The note on messages that come again: the exception, or the name of the result."""
        return self.failure or (self.result.name if self.answered else f"returned {self.outcome!r}")

    @property
    def plain_success(self) -> bool:
        """True when the listener returned SUCCESS, not in a report: all messages are done with."""
        return (
            self.result is ConsumeResult.SUCCESS and self.outcome is _UNSAID and self.partly is None
        )

    @property
    def taken(self) -> Sequence[MessageExt]:
        """The messages that the listener got."""
        return self.messages if self.partly is None else self.partly.kept

    @property
    def undecodable(self) -> Sequence[Refused]:
        return () if self.partly is None else self.partly.refused

    @property
    def disposed(self) -> list[MessageExt]:
        """The messages that are done without the listener."""
        if self.partly is None:
            return []
        known = {id(message) for message in self.partly.kept}
        known |= {id(each.message) for each in self.partly.refused}
        return [message for message in self.messages if id(message) not in known]

    @property
    def report(self) -> ConsumeReport | None:
        return self.outcome if isinstance(self.outcome, ConsumeReport) else None


class ListenerRunner(Protocol):
    """Runs jobs and reports them in lists, on the loop."""

    concurrency: int

    def submit(self, jobs: Sequence[ConsumeJob]) -> None: ...

    def running(self) -> list[ConsumeJob]:
        """Return the jobs whose listeners run at this moment."""

    async def close(self, timeout_s: float) -> None:
        """Drop the jobs that have not begun, and wait for the others, at most `timeout_s`."""


OnDone = Callable[[list[ConsumeJob]], None]


def takes_await(listener: object) -> bool:
    """Say whether the listener is a coroutine function, or an object whose call is one."""
    call = getattr(listener, "__call__", None)  # noqa: B004 - its kind is asked, not its presence
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)


async def consume_one(runner: ListenerRunner, job: ConsumeJob) -> None:
    """Have the listener called. Return when the call is done, or is given up."""
    job.ended = asyncio.get_running_loop().create_future()
    runner.submit([job])
    await job.ended


def is_awaited(job: ConsumeJob) -> bool:
    """Wake the call of `consume_one` that waits for a done job. Return False if none submitted the job."""
    if job.ended is None:
        return False
    if not job.ended.done():
        job.ended.set_result(None)
    return True


def listener_runner(
    listener: Listener,
    concurrency: int,
    name: str,
    on_done: OnDone,
    hooks: ConsumeHooks | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> ListenerRunner:
    """Return the runner for a function or for a coroutine function (see `takes_await`). The runner
    calls `hooks` before and after the listener. In virtual time there is one thread, so functions
    run in tasks, too."""
    if takes_await(listener):
        coroutine = cast("CoroutineListener", listener)
        return TaskRunner(coroutine, concurrency, name, on_done, hooks, clock)
    function = cast("FunctionListener", listener)
    if current().is_virtual:

        async def call(messages: list[MessageExt]) -> Any:
            return function(messages)

        return TaskRunner(call, concurrency, name, on_done, hooks, clock)
    return ThreadRunner(function, concurrency, name, on_done, hooks, clock)


def _prepare(job: ConsumeJob, now_ms: int) -> list[MessageExt]:
    """Return the list of messages for the listener: a copy, since the listener may change it."""
    started_ms = str(now_ms)
    for message in job.messages:
        message.properties[p.CONSUME_START_TIMESTAMP] = started_ms
    return list(job.messages)


def _judge(job: ConsumeJob, returned: object) -> None:
    if returned is None:
        job.result = ConsumeResult.SUCCESS
        return
    if isinstance(returned, Partly):
        job.partly = returned
        if not returned.kept and returned.refused:
            job.outcome = returned.refused[0].error
            return
        returned = returned.outcome
        if isinstance(returned, BaseException):
            _blame(job, returned)
            return
        if returned is None:
            job.result = ConsumeResult.SUCCESS
            return
    if isinstance(returned, ConsumeResult):
        job.result = returned
        return
    job.outcome = returned
    if isinstance(returned, ConsumeReport):
        job.result = returned.result
        return
    log.warning(
        "the listener returned no ConsumeResult, the messages will be consumed again",
        queue=str(job.process_queue.queue),
        offset=job.messages[0].queue_offset,
        returned=repr(returned)[:100],
        remedy="return nothing, or ConsumeResult.SUCCESS; raise an exception to have them again",
    )


def _blame(job: ConsumeJob, error: BaseException) -> None:
    job.outcome = error
    log.warning(
        "the listener failed, the messages will be consumed again",
        queue=str(job.process_queue.queue),
        offset=job.messages[0].queue_offset,
        exc_info=error,
    )


@dataclass(eq=False, repr=False)
class _Runner(Generic[KindT]):
    """The common part of both runners: the running jobs, their times and their hooks. `on_done` gets done jobs."""

    listener: KindT
    concurrency: int
    name: str
    on_done: OnDone
    hooks: ConsumeHooks | None = None
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        self._monotonic = self.clock.monotonic
        self._now_ms = self.clock.now_ms
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[ConsumeJob] = deque()
        # By the thread's identifier, or by the task.
        self._running: dict[object, ConsumeJob] = {}

    def running(self) -> list[ConsumeJob]:
        return list(self._running.copy().values())

    def _begin(self, job: ConsumeJob, runs_in: object) -> ConsumeContext | None:
        job.begun_at = self._monotonic()
        self._running[runs_in] = job
        return self.hooks.before(job.process_queue.queue, job.messages) if self.hooks else None

    def _end(self, job: ConsumeJob, context: ConsumeContext | None) -> None:
        assert job.begun_at is not None, "begun before"
        job.seconds = self._monotonic() - job.begun_at
        if self.hooks is not None and context is not None:
            self.hooks.after(context, job, job.seconds)


class ThreadRunner(_Runner[FunctionListener]):
    """Runs a listener in threads of its own, which it starts as needed.

    The threads are daemons, because a listener that never returns must not keep the interpreter
    alive.

    `_jobs` and `_idle` are shared with the threads; deque operations are atomic. A thread puts an
    entry into `_idle` and looks once more for jobs before it sleeps. It wakes when a token comes in
    `_tokens`. If it finds a job, it takes an entry out of `_idle` again; any other taker of an
    entry must put a token into `_tokens`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._done: deque[ConsumeJob] = deque()
        self._done_notified = False
        self._done_count = 0
        self._idle: deque[None] = deque()
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._threads = 0
        self._typical_s = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._closing = False
        self._ended: asyncio.Future[None] | None = None

    # On the loop

    def submit(self, jobs: Sequence[ConsumeJob]) -> None:
        self._jobs.extend(jobs)
        if self._typical_s > _SLOW_S:
            self._wake(len(jobs))
        elif len(self._idle) == self._threads:
            self._wake(1)
        if self._look is None:
            self._look = self._loop.call_later(_LOOK_S, self._look_after, self._done_count)

    async def close(self, timeout_s: float) -> None:
        self._closing = True
        self._jobs.clear()
        if self._look is not None:
            self._look.cancel()
        if self._threads:
            self._ended = self._loop.create_future()
            for _ in range(self._threads):
                self._tokens.put(None)
            await asyncio.wait((self._ended,), timeout=timeout_s)
            if not self._ended.done():
                log.warning("listeners still run, their messages will come again", name=self.name)
        self._drain()

    def _wake(self, count: int) -> None:
        for _ in range(count):
            try:
                self._idle.pop()
            except IndexError:
                if self._threads >= self.concurrency:
                    return
                self._threads += 1
                threading.Thread(
                    target=self._work, name=f"{self.name}-{self._threads}", daemon=True
                ).start()
            else:
                self._tokens.put(None)

    def _look_after(self, done_before: int) -> None:
        """Wake more threads if jobs wait and no job was finished since the last look: the running
        listeners wait for something then, so more of them may run."""
        self._look = None
        if not self._jobs:
            return
        if self._done_count == done_before and not self._done:
            self._wake(min(len(self._jobs), max(1, self._threads)))
        self._look = self._loop.call_later(_LOOK_S, self._look_after, self._done_count)

    def _drain(self) -> None:
        # Clear the flag before emptying the deque, so that a thread that appends later gives notice again.
        self._done_notified = False
        jobs = []
        done = self._done
        while done:
            jobs.append(done.popleft())
        self._done_count += len(jobs)
        if jobs:
            self.on_done(jobs)

    def _thread_ended(self) -> None:
        self._threads -= 1
        if self._threads == 0 and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    # In the threads

    def _work(self) -> None:
        ident = threading.get_ident()
        while not self._closing:
            try:
                job = self._jobs.popleft()
            except IndexError:
                self._sleep()
                continue
            if job.process_queue.consumable:  # else another member gets the messages
                self._run(job, ident)
            self._report(job)
            if self._threads > self.concurrency:
                break
        self._notify(self._thread_ended)

    def _sleep(self) -> None:
        self._idle.append(None)
        if self._jobs or self._closing:
            try:
                self._idle.pop()
            except IndexError:
                pass  # another thread took the entry, so a token is there or on its way
            else:
                return
        self._tokens.get()

    def _run(self, job: ConsumeJob, ident: int) -> None:
        context = self._begin(job, ident)
        try:
            _judge(job, self.listener(_prepare(job, self._now_ms())))
        except BaseException as error:  # noqa: BLE001 - the user's code; what it raises is its verdict
            # SystemExit too: it would end this thread, and the job would never be reported.
            _blame(job, error)
        finally:
            del self._running[ident]
        self._end(job, context)
        # The typical duration changes by at most a factor of two at a time: one listener that lost
        # the interpreter lock to another thread says nothing about the others.
        typical = max(self._typical_s, 1e-6)
        self._typical_s = min(max(job.seconds, typical / 2), typical * 2)

    def _report(self, job: ConsumeJob) -> None:
        self._done.append(job)
        if not self._done_notified:
            self._done_notified = True
            self._notify(self._drain)

    def _notify(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            log.debug("the loop is closed, a listener's result is lost", name=self.name)


class TaskRunner(_Runner[CoroutineListener]):
    """Runs a coroutine listener in tasks, which end when no job is left.

    Each task begins another one, if jobs wait, before it calls the listener.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._owner = TaskOwner(self.name)
        self._done: list[ConsumeJob] = []
        self._tasks: set[asyncio.Task[None]] = set()
        # The number of tasks that will look for another job. A task that found no job is not
        # counted, although it leaves `_tasks` only in a later turn of the loop: it will not take a
        # job that is submitted until then.
        self._looking = 0

    def submit(self, jobs: Sequence[ConsumeJob]) -> None:
        self._jobs.extend(jobs)
        self._begin_another()

    async def close(self, timeout_s: float) -> None:
        self._jobs.clear()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            if late:
                log.warning("listeners still run and are cancelled", name=self.name)
        await self._owner.close()
        self._drain()

    def _begin_another(self) -> None:
        if self._jobs and self._looking < self.concurrency:
            self._looking += 1
            task = self._owner.spawn(self._work(), "listener")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        count = 0
        task: asyncio.Task[None] | None = asyncio.current_task()
        try:
            while self._jobs and self._looking <= self.concurrency:
                job = self._jobs.popleft()
                self._begin_another()
                if job.process_queue.consumable:  # else another member gets the messages
                    await self._run(job, task)
                self._report(job)
                count += 1
                if count % _JOBS_PER_TURN == 0:
                    await asyncio.sleep(0)
        finally:
            self._looking -= 1

    async def _run(self, job: ConsumeJob, task: asyncio.Task[None] | None) -> None:
        context = self._begin(job, task)
        try:
            _judge(job, await self.listener(_prepare(job, self._now_ms())))
        except KeyboardInterrupt:
            raise  # the loop's runner handles it
        except BaseException as error:
            # SystemExit would end the loop of all clients. A CancelledError that comes from
            # something the listener awaits, not from a cancellation of this task, would leave the
            # messages unaccounted for.
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            _blame(job, error)
        finally:
            del self._running[task]
        self._end(job, context)

    def _report(self, job: ConsumeJob) -> None:
        if not self._done:
            self._loop.call_soon(self._drain)
        self._done.append(job)

    def _drain(self) -> None:
        jobs, self._done = self._done, []
        if jobs:
            self.on_done(jobs)
