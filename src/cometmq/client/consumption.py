"""From pulled messages to committed offsets (Java: ConsumeMessageConcurrentlyService)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from cometmq.client.listening import ConsumeJob, Listener, listener_runner
from cometmq.client.offset_store import RemoteOffsetStore
from cometmq.client.process_queue import ProcessQueue
from cometmq.errors import CometMQError
from cometmq.model.message import MessageExt
from cometmq.model.results import ConsumeResult
from cometmq.runtime.tasks import TaskOwner

log = structlog.get_logger(__name__)

# When a failed message could not be handed to the broker, it is consumed here again after this.
LOCAL_RETRY_S: Final = 5.0

# Hands a message to the broker for a later delivery; raises CometMQError when that is impossible.
SendBack = Callable[[MessageExt], Awaitable[None]]


class Consumption:
    """Cuts what was pulled into jobs, and acts on their outcomes. For the loop's thread."""

    def __init__(
        self,
        group: str,
        listener: Listener,
        offsets: RemoteOffsetStore,
        send_back: SendBack,
        *,
        concurrency: int,
        batch_max_size: int,
        local_retry_s: float = LOCAL_RETRY_S,
    ) -> None:
        self._group = group
        self._offsets = offsets
        self._send_back = send_back
        self._batch_max_size = batch_max_size
        self._local_retry_s = local_retry_s
        self._owner = TaskOwner(f"consume-{group}")
        self._sending_back: set[asyncio.Task[None]] = set()
        self._closed = False
        self._runner = listener_runner(listener, concurrency, f"listener-{group}", self._on_done)

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        size = self._batch_max_size
        self._runner.submit(
            [
                ConsumeJob(process_queue, messages[start : start + size])
                for start in range(0, len(messages), size)
            ]
        )

    async def close(self, timeout_s: float) -> None:
        """Let running listeners finish, at most `timeout_s`, and hand back what they refused."""
        await self._runner.close(timeout_s)
        if self._sending_back:
            await asyncio.wait(self._sending_back, timeout=timeout_s)
        self._closed = True
        await self._owner.close()

    def _on_done(self, jobs: list[ConsumeJob]) -> None:
        if self._closed:
            return  # a listener that outlived the close; its messages will come again
        consumed: dict[ProcessQueue, list[int]] = {}
        for job in jobs:
            if job.process_queue.dropped:
                continue  # another member consumes the queue from the committed offset on
            if job.result is ConsumeResult.SUCCESS:
                offsets = consumed.setdefault(job.process_queue, [])
                offsets += [message.queue_offset for message in job.messages]
            else:
                task = self._owner.spawn(self._consume_again(job), "send-back")
                self._sending_back.add(task)
                task.add_done_callback(self._sending_back.discard)
        for process_queue, offsets in consumed.items():
            self._finish(process_queue, offsets)

    def _finish(self, process_queue: ProcessQueue, offsets: Sequence[int]) -> None:
        below = process_queue.remove(offsets)
        if below >= 0 and not process_queue.dropped:
            self._offsets.update(process_queue.queue, below, increase_only=True)

    async def _consume_again(self, job: ConsumeJob) -> None:
        kept = []
        for message in job.messages:
            try:
                await self._send_back(message)
            except CometMQError as error:
                log.warning(
                    "a message that failed could not be sent back, it is retried here",
                    group=self._group,
                    msg_id=message.msg_id,
                    reason=str(error),
                )
                message.reconsume_times += 1
                kept.append(message)
            else:
                self._finish(job.process_queue, (message.queue_offset,))
        if kept:
            self._owner.spawn(self._retry_later(job.process_queue, kept), "local-retry")

    async def _retry_later(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        await asyncio.sleep(self._local_retry_s)
        if not process_queue.dropped:
            self.submit(process_queue, messages)
