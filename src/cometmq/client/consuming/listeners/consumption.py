"""Consume pulled and popped messages concurrently (Java: ConsumeMessageConcurrentlyService)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from cometmq.client.consuming.consume_stats import ConsumeStats
from cometmq.client.consuming.listeners.batches import Key, cut
from cometmq.client.consuming.listeners.consume_hooks import ConsumeHooks
from cometmq.client.consuming.listeners.listening import (
    ConsumeJob,
    Listener,
    ListenerRunner,
    is_awaited,
    listener_runner,
)
from cometmq.client.membership.offset_store import OffsetStore
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeResult
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

# The time after which a failed message that the broker did not take is consumed here again.
LOCAL_RETRY_S: Final = 5.0

# Java: the delay level of the messages that cleanExpiredMsg sends back.
EXPIRED_DELAY_LEVEL: Final = 3
CONSUME_TIMEOUT_S: Final = 15 * 60.0

# The note on a message that is given back: the listener's exception, or the name of its result.
Cause = BaseException | str | None

# Hands a message of a queue to the broker for a later delivery, with a delay level and the cause. Raises
# CometMQError when the broker does not take the message.
SendBack = Callable[[ProcessQueue, MessageExt, int, Cause], Awaitable[None]]

# Removes the messages at these offsets from a queue, and records that they are done.
Finish = Callable[[ProcessQueue, Sequence[int]], None]


def committing(offsets: OffsetStore) -> Finish:
    """Return the function that finishes pulled messages: it commits the offset below which all are done."""

    def finish(process_queue: ProcessQueue, done: Sequence[int]) -> None:
        below = process_queue.remove(done)
        if below >= 0 and not process_queue.dropped:
            offsets.update(process_queue.queue, below, increase_only=True)

    return finish


class QueueConsumption(Protocol):
    """Brings pulled messages to the listener, concurrently or queue by queue in order."""

    batch_max_size: int
    runner: ListenerRunner

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None: ...

    def busy(self, queue: MessageQueue) -> bool:
        """Say whether the queue must not be begun again or handed over yet."""

    def held_by_caller(self, queue: MessageQueue) -> bool:
        """Return whether `release` of the queue would wait for a listener that itself waits for the caller."""

    async def release(self, process_queue: ProcessQueue) -> None:
        """Wait until a dropped queue may be handed over."""

    async def close(self, timeout_s: float) -> None:
        """Let running listeners finish, at most `timeout_s`, and act on their verdicts."""


class _Account:
    """Sums up the finished jobs of one queue. `offsets` are those that are done with."""

    __slots__ = ("calls", "failed", "offsets", "seconds")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.failed = 0
        self.calls = 0
        self.seconds = 0.0


class Consumption:
    """Cuts pulled or popped messages into jobs, and acts on their outcomes. For the loop's thread.

    Without `send_back` (broadcasting) a message that the listener refuses is left behind. With it,
    a listener that takes longer than `consume_timeout_s` loses its messages to a later delivery,
    since a listener that is stuck would hold up its queue's offset for ever. Its verdict does not
    count then.
    """

    def __init__(
        self,
        group: str,
        listener: Listener,
        finish: Finish,
        send_back: SendBack | None,
        *,
        concurrency: int,
        batch_max_size: int,
        local_retry_s: float = LOCAL_RETRY_S,
        consume_timeout_s: float = CONSUME_TIMEOUT_S,
        stats: ConsumeStats | None = None,
        hooks: ConsumeHooks | None = None,
        clock: Clock = SYSTEM_CLOCK,
        key: Key | None = None,
    ) -> None:
        self._key = key
        self._monotonic = clock.monotonic
        self._group = group
        self._stats = stats or ConsumeStats(clock.monotonic)
        self._finish = finish
        self._send_back = send_back
        self.batch_max_size = batch_max_size
        self._local_retry_s = local_retry_s
        self._consume_timeout_s = consume_timeout_s
        self._owner = TaskOwner(f"consume-{group}")
        self._sending_back: set[asyncio.Task[None]] = set()
        # Listeners begin no more; then: what listeners say no longer counts.
        self._closing = self._closed = False
        self.runner: ListenerRunner = listener_runner(
            listener, concurrency, f"listener-{group}", self._on_done, hooks, clock
        )
        if send_back is not None:
            self._owner.every(consume_timeout_s, self._give_up_expired, "expire")

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        self.runner.submit(
            [
                ConsumeJob(process_queue, part)
                for part in cut(messages, self.batch_max_size, self._key)
            ]
        )

    def busy(self, _queue: MessageQueue) -> bool:
        return False

    def held_by_caller(self, _queue: MessageQueue) -> bool:
        return False

    async def release(self, process_queue: ProcessQueue) -> None:
        """Return at once: the next member consumes again the messages that are not committed."""

    async def close(self, timeout_s: float) -> None:
        """Let running listeners finish, at most `timeout_s`, and send back what they refused."""
        self._closing = True
        await self.runner.close(timeout_s)
        if self._sending_back:
            await asyncio.wait(self._sending_back, timeout=timeout_s)
        self._closed = True
        await self._owner.close()

    def _on_done(self, jobs: list[ConsumeJob]) -> None:
        if self._closed:
            return  # these listeners outlived the close; their messages will come again
        accounts: dict[ProcessQueue, _Account] = {}
        for job in jobs:
            if is_awaited(job):
                continue
            if job.process_queue.dropped:
                continue  # another member consumes the queue from the committed offset on
            process_queue = job.process_queue
            account = accounts.get(process_queue)
            if account is None:
                account = accounts[process_queue] = _Account()
            account.calls += 1
            account.seconds += job.seconds
            if job.plain_success:
                account.offsets += [message.queue_offset for message in job.messages]
                continue
            done, refused = self._sort(job)
            account.offsets += [message.queue_offset for message in done]
            account.failed += len(refused)
            if refused:
                level = job.report.delay_level if job.report is not None else 0
                self._spawn_sending_back(process_queue, refused, level, job.cause)
            account.failed += self._refuse_undecodable(job)
        for process_queue, account in accounts.items():
            self._stats.consumed(
                process_queue.queue.topic,
                len(account.offsets),
                account.failed,
                account.seconds,
                account.calls,
            )
            if account.offsets:
                self._finish(process_queue, account.offsets)

    def _refuse_undecodable(self, job: ConsumeJob) -> int:
        """Give back the messages that do not fit. Return their number."""
        count = 0
        for message, error, level in job.undecodable:
            if self._send_back is not None and message.queue_offset in job.process_queue:
                count += 1
                self._spawn_sending_back(job.process_queue, [message], level, error)
        return count

    def _sort(self, job: ConsumeJob) -> tuple[Sequence[MessageExt], list[MessageExt]]:
        """Return the messages of a job that are done with, and those to deliver again."""
        count = 0
        if job.result is ConsumeResult.SUCCESS:
            index = job.report.ack_index if job.report is not None else None
            count = len(job.taken) if index is None else max(0, index + 1)
        refused = [
            # A message that expired meanwhile was sent back already.
            message
            for message in job.taken[count:]
            if message.queue_offset in job.process_queue
        ]
        if self._send_back is None and (refused or job.undecodable):
            log.warning(
                "messages are left behind, in broadcasting nothing is delivered again",
                group=self._group,
                queue=str(job.process_queue.queue),
                offsets=[
                    message.queue_offset
                    for message in (*refused, *(each.message for each in job.undecodable))
                ],
            )
            return job.messages, []
        return [*job.taken[:count], *job.disposed], refused

    def _spawn_sending_back(
        self, process_queue: ProcessQueue, messages: list[MessageExt], level: int, cause: Cause
    ) -> None:
        again = self._consume_again(process_queue, messages, level, cause)
        task = self._owner.spawn(again, "send-back")
        self._sending_back.add(task)
        task.add_done_callback(self._sending_back.discard)

    async def _consume_again(
        self, process_queue: ProcessQueue, messages: list[MessageExt], level: int, cause: Cause
    ) -> None:
        kept = []
        for message in messages:
            if not await self._sent_back(process_queue, message, level, cause):
                # The deliveries of a popped message are counted by its broker alone: counted here, too, the
                # last but one would pass for the last, and the broker would not make it a dead letter.
                if p.POP_CK not in message.properties:
                    message.reconsume_times += 1
                kept.append(message)
        if kept:
            self._owner.spawn(self._retry_later(process_queue, kept), "local-retry")

    async def _sent_back(
        self, process_queue: ProcessQueue, message: MessageExt, level: int, cause: Cause
    ) -> bool:
        assert self._send_back is not None, "broadcasting sends nothing back"
        try:
            await self._send_back(process_queue, message, level, cause)
        except CometMQError as error:
            log.warning(
                "a message could not be sent back, it stays here",
                group=self._group,
                msg_id=message.msg_id,
                reason=str(error),
            )
            return False
        self._finish(process_queue, (message.queue_offset,))
        return True

    async def _give_up_expired(self) -> None:
        limit = self._monotonic() - self._consume_timeout_s
        for job in self.runner.running():
            if job.begun_at is None or job.begun_at > limit or job.process_queue.dropped:
                continue
            for message in job.messages:
                if message.queue_offset in job.process_queue:
                    log.warning(
                        "a listener takes too long, its message is sent back",
                        group=self._group,
                        msg_id=message.msg_id,
                        consume_timeout_s=self._consume_timeout_s,
                    )
                    await self._sent_back(
                        job.process_queue, message, EXPIRED_DELAY_LEVEL, "TIME_OUT"
                    )

    async def _retry_later(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        await asyncio.sleep(self._local_retry_s)
        if not (process_queue.dropped or self._closing):
            self.submit(process_queue, messages)
