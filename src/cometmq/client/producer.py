"""The asyncio producer (Java: DefaultMQProducer)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import structlog

from cometmq.client.encoding import COMPRESS_OVER_BYTES, MessageEncoder, Outgoing
from cometmq.client.identity import DEFAULT_INSTANCE_NAME
from cometmq.client.instance import ClientInstance
from cometmq.client.lifecycle import AsyncClient
from cometmq.client.limits import MAX_MESSAGE_SIZE_BYTES, MessageChecks, check_range
from cometmq.client.selectors import QueueSelector, select_queue
from cometmq.client.sending import Sender, SendLimits
from cometmq.errors import ClientStateError, IllegalArgumentError, TooManyRequestsError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult
from cometmq.protocol.compression import CompressionType
from cometmq.runtime.tasks import TaskOwner

log = structlog.get_logger(__name__)

SEND_TIMEOUT_MS: Final = 3000
MAX_TIMEOUT_MS: Final = 24 * 3600 * 1000
MAX_PENDING_SENDS: Final = 10_000

# Gets the result and None, or None and the error, on the producer's loop.
SendCallback = Callable[[SendResult | None, BaseException | None], None]


class Producer(AsyncClient):
    """Sends messages. Use it in an `async with` statement, or call `start` and `close`.

    `group` names the producers that do the same work. `namesrv` is `host:port`, several joined by
    `;`; without it the environment variable NAMESRV_ADDR counts. Times are milliseconds, sizes
    bytes. Producers with the same `instance_name` on one loop share connections.

    Sends may run concurrently, on the loop that started the producer. What a call refuses before
    sending raises IllegalArgumentError; what fails on the way RemotingError, RouteNotFoundError, or
    RemoteError when a broker refused. After a RequestTimeoutError or ConnectionLostError the message
    may be stored or not.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str = DEFAULT_INSTANCE_NAME,
        unit_name: str | None = None,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        retry_times: int = 2,
        max_message_size_bytes: int = MAX_MESSAGE_SIZE_BYTES,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        compression: CompressionType = CompressionType.ZLIB,
        default_topic_queue_nums: int = 4,
        max_pending_sends: int = MAX_PENDING_SENDS,
    ) -> None:
        super().__init__(group, namesrv=namesrv, instance_name=instance_name, unit_name=unit_name)
        check_range("send_timeout_ms", send_timeout_ms, 1, MAX_TIMEOUT_MS)
        check_range("retry_times", retry_times, 0, 100)
        check_range("compress_over_bytes", compress_over_bytes, 0, 2**31 - 1)
        check_range("default_topic_queue_nums", default_topic_queue_nums, 1, 65536)
        check_range("max_pending_sends", max_pending_sends, 1, 10_000_000)
        self._send_timeout_ms = send_timeout_ms
        self._max_pending_sends = max_pending_sends
        self._checks = MessageChecks(max_message_size_bytes)
        self._limits = SendLimits(retry_times, default_topic_queue_nums)
        self._compress_over_bytes = compress_over_bytes
        self._compression = CompressionType(compression)
        self._encoder: MessageEncoder | None = None
        self._sender: Sender | None = None
        self._tasks: TaskOwner | None = None
        self._pending: set[asyncio.Task[SendResult]] = set()

    async def send(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> SendResult:
        """Send one message and wait until the broker has it.

        Without `queue`, `selector` and `key` the queues take turns, and a failed attempt is repeated
        at another broker (`retry_times`) within `timeout_ms`. `queue` sends to that queue,
        `selector(queues, message, key)` to the one it returns, `key` alone to the one its hash gives:
        then there is one attempt, since another queue would break the order that was asked for.
        """
        sender, encoder = self._ready()
        return await self._send(sender, encoder, message, timeout_ms, queue, selector, key)

    def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> asyncio.Future[SendResult]:
        """As `send`, without waiting: the future, and `callback(result, error)`, tell the outcome.

        At most `max_pending_sends` may be under way; TooManyRequestsError beyond. `close` waits for
        them.
        """
        sender, encoder = self._ready()
        if len(self._pending) >= self._max_pending_sends:
            raise TooManyRequestsError(
                f"{len(self._pending)} sends are under way, the limit is max_pending_sends; wait "
                "for some of their futures, or raise it"
            )
        assert self._tasks is not None, "set by start"
        task = self._tasks.spawn(
            self._send(sender, encoder, message, timeout_ms, queue, selector, key),
            "send",
            log_failure=False,
        )
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        if callback is not None:
            task.add_done_callback(lambda done: _report(done, callback))
        return task

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> None:
        """Send one message without an acknowledgement: it may be lost unnoticed."""
        sender, encoder = self._ready()
        self._checks.check(message)
        deadline = asyncio.get_running_loop().time() + self._send_timeout_ms / 1000
        outgoing = await encoder.encode(message)
        target = await _target(sender, message, queue, selector, key, deadline)
        await sender.send_oneway(outgoing, target)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Send several messages of one topic to one queue in one request.

        They must agree on `wait_store_ok`, carry no delay, and fit together into
        `max_message_size_bytes`: see `split_batches`. The ids of the result are joined by commas.
        """
        sender, encoder = self._ready()
        batch = list(messages)
        self._checks.check_batch(batch)
        outgoing = encoder.encode_batch(batch)
        self._check_batch_size(outgoing, len(batch))
        timeout_s = self._timeout_s(timeout_ms)
        if queue is None:
            return await sender.send(outgoing, timeout_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        target = await _target(sender, batch[0], queue, None, None, deadline)
        return await sender.send_to(outgoing, target, deadline)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of `topic` that may be sent to, in order (Java: fetchPublishMessageQueues)."""
        sender, _ = self._ready()
        deadline = asyncio.get_running_loop().time() + self._send_timeout_ms / 1000
        return list((await sender.route(topic, deadline)).queues)

    # Inside

    def _ready(self) -> tuple[Sender, MessageEncoder]:
        self._running()
        assert self._sender is not None, "set by start"
        assert self._encoder is not None, "set by start"
        return self._sender, self._encoder

    async def _send(
        self,
        sender: Sender,
        encoder: MessageEncoder,
        message: Message,
        timeout_ms: int | None,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        key: Any,
    ) -> SendResult:
        self._checks.check(message)
        timeout_s = self._timeout_s(timeout_ms)
        outgoing = await encoder.encode(message)
        if queue is None and selector is None and key is None:
            return await sender.send(outgoing, timeout_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        target = await _target(sender, message, queue, selector, key, deadline)
        return await sender.send_to(outgoing, target, deadline)

    def _timeout_s(self, timeout_ms: int | None) -> float:
        if timeout_ms is None:
            return self._send_timeout_ms / 1000
        check_range("timeout_ms", timeout_ms, 1, MAX_TIMEOUT_MS)
        return timeout_ms / 1000

    def _check_batch_size(self, outgoing: Outgoing, count: int) -> None:
        limit = self._checks.max_message_size_bytes
        if len(outgoing.body) > limit:
            raise IllegalArgumentError(
                f"a batch of {count} messages to {outgoing.topic} takes {len(outgoing.body)} "
                f"bytes, the limit max_message_size_bytes is {limit}; cut it with split_batches"
            )

    async def _open(self, instance: ClientInstance) -> None:
        self._join(instance)
        self._tasks = TaskOwner(f"producer-{self._group}")
        self._sender = Sender(instance, self._limits)
        self._encoder = MessageEncoder(
            self._group,
            instance.unique_ids,
            default_topic_queue_nums=self._limits.default_topic_queue_nums,
            compress_over_bytes=self._compress_over_bytes,
            compression=self._compression,
        )

    def _join(self, instance: ClientInstance) -> None:
        instance.add_producer(self._group)

    async def _shut(self, instance: ClientInstance) -> None:
        assert self._tasks is not None, "set by start"
        try:
            if self._pending:
                # Each ends within its own timeout.
                await asyncio.wait(self._pending)
        finally:
            await self._tasks.close()
            await instance.remove_producer(self._group)


def _report(task: asyncio.Task[SendResult], callback: SendCallback) -> None:
    try:
        if task.cancelled():
            callback(None, ClientStateError("the send was cancelled"))
        elif (error := task.exception()) is not None:
            callback(None, error)
        else:
            callback(task.result(), None)
    except Exception:
        log.exception("a send callback failed")


async def _target(
    sender: Sender,
    message: Message,
    queue: MessageQueue | None,
    selector: QueueSelector | None,
    key: Any,
    deadline: float,
) -> MessageQueue:
    """The queue to send to; the route is known afterwards, even when the caller named the queue."""
    if queue is not None and queue.topic != message.topic:
        raise IllegalArgumentError(f"a message to {message.topic} cannot go to the queue {queue}")
    route = await sender.route(message.topic, deadline)
    if queue is not None:
        return queue
    if selector is None and key is None:
        return route.choose()
    return select_queue(selector, route.queues, message, key)
