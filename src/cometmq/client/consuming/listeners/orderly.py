"""Consume each queue in order, one listener at a time (Java: ConsumeMessageOrderlyService)."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple, cast

from cometmq.client.consuming.consume_stats import ConsumeStats
from cometmq.client.consuming.listeners.batches import Key
from cometmq.client.consuming.listeners.consume_hooks import ConsumeHooks
from cometmq.client.consuming.listeners.consumption import Cause, Finish
from cometmq.client.consuming.listeners.listening import (
    ConsumeJob,
    CoroutineListener,
    FunctionListener,
    Listener,
    ListenerRunner,
    consume_one,
    is_awaited,
    listener_runner,
    takes_await,
)
from cometmq.client.membership.offset_store import OffsetStore
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.model.durations import milliseconds
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeResult
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.portal import WAITING_THREAD
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

SUSPEND_MS: Final = 1000
SUSPEND_MIN_MS: Final = 10
SUSPEND_MAX_MS: Final = 30_000
# The interval at which a worker looks whether its queue's lock is valid again.
LOCK_LOOK_S: Final = 0.05
UNLIMITED_RECONSUME_TIMES: Final = 2**31 - 1

# Hands a message that had all its chances to the broker, or that shall have no other (`final`). Raises
# CometMQError when the broker does not take the message.
Retire = Callable[[MessageExt, Cause, bool], Awaitable[None]]


def committing_in_order(offsets: OffsetStore) -> Finish:
    """Return the function that finishes messages pulled in order: it commits the offset behind them."""

    def finish(process_queue: ProcessQueue, done: Sequence[int]) -> None:
        below = process_queue.remove(done)
        # This member still owns a dropped queue: it releases the queue after the last listener.
        if below >= 0 and not process_queue.forfeited:
            offsets.update(process_queue.queue, below, increase_only=False)

    return finish


class _Call(NamedTuple):
    """A call of the listener: its first message, and its task, or its thread if it is a function."""

    message: MessageExt
    task: asyncio.Task[Any] | None
    thread: int


# The call of the listener in which code runs. Calls of a blocking client bring the context of their thread to
# the loop.
_CALL: Final[ContextVar[_Call | None]] = ContextVar("cometmq_orderly_call", default=None)


class OrderlyConsumption:
    """Gives every queue a worker of its own. For the loop's thread.

    A worker hands one list of messages at a time to the listener. After SUCCESS it goes on with the
    next list, else it pauses and hands over the same list again. A message that was refused more
    than `max_reconsume_times` times goes to `retire`; without `retire` it is left behind.
    """

    def __init__(
        self,
        group: str,
        listener: Listener,
        finish: Finish,
        retire: Retire | None,
        *,
        concurrency: int,
        batch_max_size: int,
        max_reconsume_times: int = UNLIMITED_RECONSUME_TIMES,
        suspend_ms: int = SUSPEND_MS,
        stats: ConsumeStats | None = None,
        hooks: ConsumeHooks | None = None,
        clock: Clock = SYSTEM_CLOCK,
        key: Key | None = None,
    ) -> None:
        self.key = key
        self._group = group
        self._stats = stats or ConsumeStats(clock.monotonic)
        self._finish_offsets = finish
        self._retire = retire
        self.batch_max_size = batch_max_size
        self._max_reconsume_times = max_reconsume_times
        self._suspend_ms = suspend_ms
        self._owner = TaskOwner(f"consume-{group}")
        self._workers: dict[MessageQueue, _QueueWorker] = {}
        self.runner: ListenerRunner = listener_runner(
            _marking(listener), concurrency, f"listener-{group}", self._on_done, hooks, clock
        )

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        queue = process_queue.queue
        worker = self._workers.get(queue)
        if worker is None:
            worker = self._workers[queue] = _QueueWorker(self, process_queue)
            worker.task = self._owner.spawn(worker.run(), f"worker-{queue}")
        assert worker.process_queue is process_queue, "a queue is released before it is begun again"
        worker.add(messages)

    def busy(self, queue: MessageQueue) -> bool:
        """Say whether the listener may still have messages of the queue."""
        return queue in self._workers

    def held_by_caller(self, queue: MessageQueue) -> bool:
        """Return whether the listener that has messages of the queue waits for the calling code."""
        call, worker = _CALL.get(), self._workers.get(queue)
        if call is None or worker is None or worker.job is None:
            return False
        if (
            call.task is None
        ):  # only a blocking face waits: a coroutine that was handed to the loop does not
            waits = call.thread == WAITING_THREAD.get()
        else:
            waits = call.task is asyncio.current_task()
        return waits and worker.job.messages[0] is call.message

    async def release(self, process_queue: ProcessQueue) -> None:
        """Wait until the listener is done with the messages that it has of a dropped queue."""
        assert process_queue.dropped, "nothing more may be begun"
        worker = self._workers.get(process_queue.queue)
        if worker is not None and worker.process_queue is process_queue:
            await worker.stop()
            self._workers.pop(process_queue.queue, None)

    async def close(self, timeout_s: float) -> None:
        """Begin nothing more and let running listeners finish, at most `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        workers = list(self._workers.values())
        for worker in workers:
            worker.process_queue.dropped = True
        stops = [self._owner.spawn(self.release(w.process_queue), "release") for w in workers]
        if stops:
            await asyncio.wait(stops, timeout=timeout_s)
        await self.runner.close(max(0.0, deadline - loop.time()))
        await self._owner.close()

    async def conclude(self, job: ConsumeJob) -> list[MessageExt]:
        """Act on the listener's verdict. Return the messages to consume again."""
        succeeded = job.result is ConsumeResult.SUCCESS
        count, topic = len(job.messages), job.process_queue.queue.topic
        failed = len(job.undecodable) + (0 if succeeded else len(job.taken))
        self._stats.consumed(topic, count - failed, failed, job.seconds)
        if succeeded and not job.undecodable:
            self._finish(job.process_queue, job.messages)
            return []
        done, kept = job.disposed, []
        if succeeded:
            done += job.taken
        causes: dict[int, tuple[Cause, bool]] = {
            id(each.message): (each.error, each.level < 0) for each in job.undecodable
        }
        finished = {id(message) for message in done}
        for message in job.messages:
            if id(message) in finished:
                continue
            cause, final = causes.get(id(message), (job.cause, False))
            is_last = final or message.reconsume_times >= self._max_reconsume_times
            if is_last and await self._given_up(message, cause, final):
                done.append(message)
            else:
                message.reconsume_times += 1
                kept.append(message)
        if done:
            self._finish(job.process_queue, done)
        return kept

    def pause_s(self, job: ConsumeJob) -> float:
        """Return how long the queue rests, in seconds, before the same messages are tried again."""
        wanted_ms = job.report.suspend_current_queue_time_ms if job.report is not None else None
        pause_ms = self._suspend_ms if wanted_ms is None else milliseconds(wanted_ms)
        return min(max(pause_ms, SUSPEND_MIN_MS), SUSPEND_MAX_MS) / 1000

    async def _given_up(self, message: MessageExt, cause: Cause, final: bool) -> bool:
        if self._retire is None:
            log.warning("a message is given up", group=self._group, msg_id=message.msg_id)
            return True
        try:
            await self._retire(message, cause, final)
        except CometMQError as error:
            log.warning(
                "a message that had its chances could not be retired, it is tried here again",
                group=self._group,
                msg_id=message.msg_id,
                reason=str(error),
            )
            return False
        return True

    def _finish(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        self._finish_offsets(process_queue, [message.queue_offset for message in messages])

    def _on_done(self, jobs: list[ConsumeJob]) -> None:
        for job in jobs:
            is_awaited(job)


class _QueueWorker:
    """Consumes one queue in order. `stop` lets a running listener finish."""

    def __init__(self, consumption: OrderlyConsumption, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self.task: asyncio.Task[None] | None = None
        self._consumption = consumption
        self._messages: deque[MessageExt] = deque()
        self._arrived = asyncio.Event()
        self.job: ConsumeJob | None = None  # those that the listener has

    def add(self, messages: Sequence[MessageExt]) -> None:
        self._messages.extend(messages)
        self._arrived.set()

    async def stop(self) -> None:
        assert self.task is not None, "set when it was made"
        if self.job is None:
            self.task.cancel()
        await asyncio.wait((self.task,))

    async def run(self) -> None:
        while not self.process_queue.dropped:
            if not self._messages:
                self._arrived.clear()
                await self._arrived.wait()
            elif not self.process_queue.consumable:
                await asyncio.sleep(LOCK_LOOK_S)
            else:
                pause_s = await self._step()
                if pause_s and not self.process_queue.dropped:
                    await asyncio.sleep(pause_s)

    async def _step(self) -> float:
        """Call the listener once and act on its verdict. Return the pause to make, in seconds."""
        count = min(self._consumption.batch_max_size, len(self._messages))
        if (key := self._consumption.key) is not None:
            first = key(self._messages[0])
            alike = takewhile(lambda m: key(m) == first, islice(self._messages, count))
            count = sum(1 for _ in alike)
        job = ConsumeJob(self.process_queue, [self._messages.popleft() for _ in range(count)])
        self.job = job
        try:
            await consume_one(self._consumption.runner, job)
            if job.begun_at is None:
                self._messages.extendleft(reversed(job.messages))
                return 0.0
            kept = await self._consumption.conclude(job)
        finally:
            self.job = None
        self._messages.extendleft(reversed(kept))
        return self._consumption.pause_s(job) if kept else 0.0


def _marking(listener: Listener) -> Listener:
    """Wrap a listener so that `_CALL` identifies the call in all code that the listener runs."""
    if takes_await(listener):
        awaited = cast("CoroutineListener", listener)

        async def listen(messages: list[MessageExt]) -> Any:
            token = _CALL.set(_Call(messages[0], asyncio.current_task(), 0))
            try:
                return await awaited(messages)
            finally:
                _CALL.reset(token)

        return listen
    called = cast("FunctionListener", listener)

    def listen_in_thread(messages: list[MessageExt]) -> Any:
        token = _CALL.set(_Call(messages[0], None, threading.get_ident()))
        try:
            return called(messages)
        finally:
            _CALL.reset(token)

    return listen_in_thread
