"""Provide the asyncio producer (Java: DefaultMQProducer).

Longer than 500 lines: these are the ways to send, a short one each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.client.cluster.latency_faults import LatencyFaults, LatencyTables
from cometmq.client.hooks import (
    CheckForbiddenHook,
    CommunicationMode,
    EndTransactionHook,
    Hook,
    SendMessageHook,
)
from cometmq.client.instance import ClientInstance
from cometmq.client.limits import (
    MAX_MESSAGE_SIZE_BYTES,
    MessageChecks,
    check_callable,
    check_callback,
    check_flag,
    check_queue,
    check_range,
    check_recall_handle,
)
from cometmq.client.options import choice, takes
from cometmq.client.producing.begun import BegunSend
from cometmq.client.producing.encoding import COMPRESS_OVER_BYTES, MessageEncoder, Outgoing
from cometmq.client.producing.oneway_line import OnewayLine, Post
from cometmq.client.producing.oneways import Oneways
from cometmq.client.producing.pending import Callback, Pending
from cometmq.client.producing.requesting import request
from cometmq.client.producing.selectors import QueueSelector, select_queue
from cometmq.client.producing.sending import Sender, SendLimits
from cometmq.client.tracing.traced_client import TracedClient, TracedOptions
from cometmq.errors import IllegalArgumentError
from cometmq.logs.loggers import get_logger
from cometmq.model.durations import Duration, Milliseconds, OptionalMilliseconds, milliseconds
from cometmq.model.message import Message, MessageExt
from cometmq.model.names import check_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult
from cometmq.payloads.codec import Codec
from cometmq.payloads.codecs import Codecs, codecs_of
from cometmq.protocol.messages.compression import CompressionType
from cometmq.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from cometmq.client.tracing.dispatcher import TraceDispatcher
    from cometmq.client.tracing.send_trace import SendTrace

log = get_logger(__name__)

T = TypeVar("T")

SEND_TIMEOUT_MS: Final = 3000
MAX_TIMEOUT_MS: Final = 24 * 3600 * 1000
MAX_PENDING_SENDS: Final = 10_000
# Java: backPressureForAsyncSendSize.
MAX_PENDING_BYTES: Final = 100 * 1024 * 1024
LATENCY_TABLES: Final = LatencyTables()

# The producer's loop calls it with the result and None, or with None and the error.
SendCallback = Callback[SendResult]
RequestCallback = Callback[MessageExt]


@dataclass(repr=False, kw_only=True)
class ProducerOptions(TracedOptions):
    """Holds the options of a producer; Producer explains them."""

    vip_channel_enabled: bool = False
    send_timeout_ms: Milliseconds = Milliseconds(SEND_TIMEOUT_MS)
    max_timeout_per_request_ms: OptionalMilliseconds = OptionalMilliseconds(None)
    retry_times: int = 2
    retry_times_async: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    send_latency_fault_enable: bool = False
    latency_tables: LatencyTables = LATENCY_TABLES
    max_message_size_bytes: int = MAX_MESSAGE_SIZE_BYTES
    compress_over_bytes: int = COMPRESS_OVER_BYTES
    compression: CompressionType = CompressionType.ZLIB
    default_topic_queue_nums: int = 4
    max_pending_sends: int = MAX_PENDING_SENDS
    max_pending_bytes: int = MAX_PENDING_BYTES
    codecs: Codecs | Mapping[str, Codec[Any]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("send_timeout_ms", self.send_timeout_ms, 1, MAX_TIMEOUT_MS)
        if self.max_timeout_per_request_ms is not None:
            most = self.max_timeout_per_request_ms
            check_range("max_timeout_per_request_ms", most, 1, MAX_TIMEOUT_MS)
        check_range("retry_times", self.retry_times, 0, 100)
        check_range("retry_times_async", self.retry_times_async, 0, 100)
        check_range("compress_over_bytes", self.compress_over_bytes, 0, 2**31 - 1)
        check_range("default_topic_queue_nums", self.default_topic_queue_nums, 1, 65536)
        check_range("max_pending_sends", self.max_pending_sends, 1, 10_000_000)
        check_range("max_pending_bytes", self.max_pending_bytes, 1, 2**40)
        check_flag("vip_channel_enabled", self.vip_channel_enabled)
        check_flag("send_latency_fault_enable", self.send_latency_fault_enable)
        another = self.retry_another_broker_when_not_store_ok
        check_flag("retry_another_broker_when_not_store_ok", another)
        if not isinstance(self.latency_tables, LatencyTables):
            raise IllegalArgumentError(
                f"latency_tables is {self.latency_tables!r:.80}; pass LatencyTables(latency_max_ms, "
                "not_available_duration_ms)"
            )
        self.codecs = codecs_of(self.codecs)
        self.compression = choice("compression", self.compression, CompressionType)


class Producer(TracedClient):
    """Sends messages. Use it in an `async with` statement, or call `start` and `close`.

    `group` names the producers that do the same work. `namesrv` is `host:port`, several joined by
    `;`; without it the environment variable NAMESRV_ADDR counts. Times are milliseconds, sizes
    bytes. Producers that are given the same `instance_name` on one loop share connections.

    Sends may run concurrently, on the loop that started the producer. A call raises
    IllegalArgumentError for a message that it does not send, RouteNotFoundError when no name server
    knows the topic, RemotingError when an exchange fails, and RemoteError when a broker refuses.
    After a RequestTimeoutError or ConnectionLostError the message may be stored or not.

    `send` repeats a failed attempt at another broker, `retry_times` times, also after some refusals
    (Java: retryResponseCodes), all within the send's timeout. A broker that dies without closing
    its connections would use all of it: with `max_timeout_per_request_ms` an attempt that is not
    the last one is given up after that time (Java 5: sendMsgMaxTimeoutPerRequest). With
    `retry_another_broker_when_not_store_ok` it does so after any status but SEND_OK, too.
    `send_async` repeats a failed attempt `retry_times_async` times, unless a broker refused it. A
    one-way send is never repeated. With `send_latency_fault_enable` the producer avoids brokers
    that are slow or fail, for as long as `latency_tables` say. With `vip_channel_enabled` it sends
    to the brokers' second port.

    `max_pending_sends` bounds the sends that `send_async` has under way, `max_pending_bytes` the
    bytes of their bodies. With `codecs`, a dict from topic to codec, messages may have a `value` in place
    of a body (`cometmq.payloads`); one that does not fit raises UnencodableError before anything is sent.
    AsyncClient explains `namespace`, `credentials` and `tls`; TracedClient
    explains the options of traces.
    """

    _hook_kinds = (SendMessageHook, CheckForbiddenHook, EndTransactionHook)
    _trace_kind = "PRODUCE"

    @takes(ProducerOptions)
    def __init__(self, options: ProducerOptions) -> None:
        self._set_up(options)

    async def send(
        self,
        message: Message,
        *,
        timeout_ms: Duration | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> SendResult:
        """Send one message and wait until the broker has it.

        Without `queue`, `selector` and `key` the queues take turns, and a failed attempt is
        repeated at another broker (`retry_times`) within `timeout_ms`. With `queue` the message
        goes to that queue, with `selector` to the queue that `selector(queues, message, key)`
        returns, with `key` alone to the queue that the key's hash gives. Then there is one attempt,
        since another queue would break the order that the caller asked for. Keys and selectors
        choose among queues that stay the same while brokers come and go: see
        `cometmq.client.cluster.keyed_queues`.
        """
        self._ready()
        timeout_s = self._timeout_s(timeout_ms)
        return await self._send(message, timeout_s, CommunicationMode.SYNC, queue, selector, key)

    def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        *,
        timeout_ms: Duration | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> asyncio.Future[SendResult]:
        """Send as `send` does, without waiting. Returns a future of the result.

        `callback(result, error)`, if given, gets the outcome too. Raises TooManyRequestsError when
        the sends of this method and of `request_async` that are under way would exceed
        `max_pending_sends`, or their bodies `max_pending_bytes`. `close` waits for these sends.
        """
        self._ready()
        timeout_s = self._timeout_s(timeout_ms)
        check_callback(callback)
        if queue is None and selector is None and key is None:
            begun = self._begin_send(message, timeout_s, callback)
            if begun is not None:
                return begun
        sending = self._send(message, timeout_s, CommunicationMode.ASYNC, queue, selector, key)
        return self._spawn(message, sending, callback)

    async def request(
        self,
        message: Message,
        *,
        timeout_ms: Duration | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> MessageExt:
        """Send a message and wait for the reply of the consumer that gets it.

        The consumer sends `create_reply_message(message, body)` with a producer of its own. Raises
        RequestTimeoutError when no reply came within `timeout_ms`, and what `send_async` raises.
        """
        self._ready()
        timeout_s = self._timeout_s(timeout_ms)
        return await self._request(message, timeout_s, queue, selector, key)

    def request_async(
        self,
        message: Message,
        callback: RequestCallback | None = None,
        *,
        timeout_ms: Duration | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> asyncio.Future[MessageExt]:
        """Ask as `request` does, without waiting. Returns a future of the reply.

        `callback(reply, error)`, if given, gets the outcome too. The limits of `send_async` hold.
        """
        self._ready()
        timeout_s = self._timeout_s(timeout_ms)
        check_callback(callback)
        asking = self._request(message, timeout_s, queue, selector, key)
        return self._spawn(message, asking, callback)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> None:
        """Send one message without an acknowledgement: the broker may lose it unnoticed.

        Waits, up to `send_timeout_ms`, while the broker does not read. `close` waits as long for
        messages that have not left this process; see `unsent`.
        """
        sender, encoder = self._ready()
        assert self._oneways is not None, "set by start"
        if _has_value_only(message):
            await self._codecs.encode(message)
        self._checks.check(message)
        deadline = asyncio.get_running_loop().time() + self._send_timeout_ms / 1000
        outgoing = encoder.encode_now(message) or await encoder.encode(message)
        target = None
        if queue is None and selector is None and key is None:
            target = sender.known_queue(outgoing.topic)
        if target is None:
            target = await self._target(sender, message, queue, selector, key, deadline)
        connection, size = await sender.send_oneway(outgoing, target, deadline)
        self._oneways.sent(message, connection, size)

    @property
    def unsent(self) -> list[Message]:
        """The one-way messages of which `close` could not say whether they left this process."""
        return list(self._unsent)

    def posts_oneway(
        self,
        message: Message,
        post: Post,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        key: Any,
    ) -> bool:
        """Have the loop send a one-way message of another thread, or return False if the thread has to wait.

        `post` calls a function on the loop. Raises the errors of `send_oneway`.
        """
        self.check_started()
        assert self._oneway_line is not None, "set by start"
        is_plain = queue is None and selector is None and key is None
        return is_plain and self._oneway_line.put(message, post)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        timeout_ms: Duration | None = None,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Send several messages of one topic to one queue in one request.

        The messages must agree on `wait_store_ok`, carry no delay, and fit together into
        `max_message_size_bytes`; `split_batches` cuts longer lists. The ids in the result are
        joined by commas.
        """
        sender, encoder = self._ready()
        messages = list(messages) if isinstance(messages, Iterable) else messages
        for message in messages if isinstance(messages, list) else ():
            if _has_value_only(message):
                await self._codecs.encode(message)
        batch = self._checks.check_batch(messages)
        outgoing = encoder.encode_batch(batch)
        self._check_batch_size(outgoing, len(batch))
        timeout_s = self._timeout_s(timeout_ms)
        if queue is None:
            return await sender.send(outgoing, timeout_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        target = await self._target(sender, batch[0], queue, None, None, deadline)
        return await sender.send_fixed(outgoing, target, deadline)

    async def recall(
        self, topic: str, recall_handle: str, *, timeout_ms: Duration | None = None
    ) -> str:
        """Keep the broker from delivering a message that was sent with `delay_ms` or
        `deliver_at_ms`.

        `recall_handle` is the one in the message's SendResult. Returns the message's unique id.
        There is one attempt, at the broker that has the message. The broker answers alike for a
        message that it does not know and for one that it will not deliver. Repeating a recall does
        no harm.

        Raises IllegalArgumentError for text that is no handle, or the handle of another topic's
        message; RouteNotFoundError when no name server knows the broker; RemoteError when the
        message is due (ILLEGAL_OPERATION), or when recalls are forbidden (NO_PERMISSION; a Java
        broker wants recallMessageEnable=true). Java: DefaultMQProducer.recallMessage.
        """
        sender, _ = self._ready()
        check_topic(topic)
        check_recall_handle(recall_handle)
        timeout_s, name = self._timeout_s(timeout_ms), self._namespace.wrap(topic)
        msg_id = await sender.recall(self._group, name, recall_handle, timeout_s)
        if self._send_trace is not None:
            self._send_trace.recalled(self.group, topic, msg_id, success=True)
        return msg_id

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of `topic` to send to, in order (Java: fetchPublishMessageQueues)."""
        sender, _ = self._ready()
        check_topic(topic)
        deadline = asyncio.get_running_loop().time() + self._send_timeout_ms / 1000
        route = await sender.route(self._namespace.wrap(topic), deadline)
        return [self._namespace.unwrap_queue(queue) for queue in route.queues]

    # Inside

    def _set_up(self, options: ProducerOptions) -> None:
        TracedClient.__init__(self, options)
        self._send_timeout_ms = options.send_timeout_ms
        self._max_pending_sends = options.max_pending_sends
        self._max_pending_bytes = options.max_pending_bytes
        self._latency_tables = options.latency_tables if options.send_latency_fault_enable else None
        self._checks = MessageChecks(options.max_message_size_bytes)
        self._codecs = codecs_of(options.codecs) or Codecs({})
        self._limits = SendLimits(
            options.retry_times,
            options.default_topic_queue_nums,
            options.retry_times_async,
            options.retry_another_broker_when_not_store_ok,
            options.vip_channel_enabled,
            options.max_message_size_bytes,
            options.max_timeout_per_request_ms and options.max_timeout_per_request_ms / 1000,
        )
        self._compress_over_bytes = options.compress_over_bytes
        self._compression = options.compression
        self._encoder: MessageEncoder | None = None
        self._sender: Sender | None = None
        self._tasks: TaskOwner | None = None
        self._pending: Pending | None = None
        self._oneways: Oneways | None = None
        self._oneway_line: OnewayLine | None = None
        self._opened: ClientInstance | None = None
        self._unsent: list[Message] = []
        self._send_trace: SendTrace | None = None

    def _ready(self) -> tuple[Sender, MessageEncoder]:
        self._running()
        return self._ready_inside()

    def _ready_inside(self) -> tuple[Sender, MessageEncoder]:
        """Return the sender and the encoder, also while `close` waits for sends under way."""
        assert self._sender is not None, "set by start"
        assert self._encoder is not None, "set by start"
        return self._sender, self._encoder

    def _begin_send(
        self, message: Message, timeout_s: float, callback: SendCallback | None
    ) -> BegunSend | None:
        """Send a message at once, or return None if it needs a task because it has to wait, or is refused.

        Raises TooManyRequestsError.
        """
        sender, encoder = self._ready_inside()
        pending = self._pending
        assert pending is not None, "set by start"
        # Messages leave in the order of the calls, so none may pass one that still waits.
        if pending.any_behind or not isinstance(message, Message) or message.is_unencoded:
            return None
        try:
            self._checks.check(message)
            size = len(message.body)
            pending.check_room(size)
            outgoing = encoder.encode_now(message)
        except IllegalArgumentError:  # the future of the task gets it
            return None
        attempt = None if outgoing is None else sender.begin(outgoing, timeout_s)
        if outgoing is None or attempt is None:
            return None
        return BegunSend(sender, pending, outgoing, attempt, size, callback)

    async def _send(
        self,
        message: Message,
        timeout_s: float,
        mode: CommunicationMode,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        key: Any,
    ) -> SendResult:
        sender, encoder = self._ready_inside()
        if _has_value_only(message):
            await self._codecs.encode(message)
        self._checks.check(message)
        outgoing = encoder.encode_now(message) or await encoder.encode(message)
        if queue is None and selector is None and key is None:
            return await sender.send(outgoing, timeout_s, mode)
        deadline = asyncio.get_running_loop().time() + timeout_s
        target = await self._target(sender, message, queue, selector, key, deadline)
        return await sender.send_fixed(outgoing, target, deadline, mode)

    async def _request(
        self,
        message: Message,
        timeout_s: float,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        key: Any,
    ) -> MessageExt:
        sender, _ = self._ready_inside()
        await self._prepare(message)
        topic = self._namespace.wrap(message.topic)
        deadline = asyncio.get_running_loop().time() + timeout_s
        await sender.route(topic, deadline)

        def send(asking: Message, within_s: float) -> Awaitable[SendResult]:
            return self._send(asking, within_s, CommunicationMode.ASYNC, queue, selector, key)

        assert self._opened is not None, "set by start"
        return await request(self._opened, message, topic, timeout_s, send)

    async def _prepare(self, message: Message) -> None:
        """Encode the value of a message that has one, and check the message."""
        if _has_value_only(message):
            await self._codecs.encode(message)
        self._checks.check(message)

    def _spawn(
        self, message: Message, work: Coroutine[Any, Any, T], callback: Callback[T] | None
    ) -> asyncio.Task[T]:
        assert self._pending is not None, "set by start"
        if _has_value_only(message):
            try:
                self._codecs.encode_now(message)
            except BaseException:
                work.close()
                raise
        body = getattr(message, "body", None)  # `work` refuses an object that is no Message
        size = len(body) if isinstance(body, bytes) else 0
        return self._pending.send(size, work, callback)

    async def _target(
        self,
        sender: Sender,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        key: Any,
        deadline: float,
    ) -> MessageQueue:
        """Return the queue to send to, named as on the wire. Fetches the topic's route if needed,
        even when the caller named the queue.
        """
        if queue is not None and (selector is not None or key is not None):
            given = f"the selector {selector!r}" if selector is not None else f"the key {key!r}"
            raise IllegalArgumentError(
                f"a message is sent to the queue {queue} or to one chosen by {given}, not by both"
            )
        if queue is not None:
            check_queue(queue)
        if selector is not None:
            check_callable("selector", selector, "a function of (queues, message, key)")
        if queue is not None and queue.topic != message.topic:
            raise IllegalArgumentError(
                f"a message to {message.topic} cannot go to the queue {queue}"
            )
        topic = self._namespace.wrap(message.topic)
        if queue is not None:
            await sender.route(topic, deadline)
            return self._namespace.wrap_queue(queue)
        if selector is None and key is None:
            return await sender.next_queue(topic, deadline)
        queues = await sender.keyed_queues(topic, deadline)
        if self._namespace:
            queues = [self._namespace.unwrap_queue(queue) for queue in queues]
        return self._namespace.wrap_queue(select_queue(selector, queues, message, key))

    def _timeout_s(self, timeout_ms: Duration | None) -> float:
        if timeout_ms is None:
            return self._send_timeout_ms / 1000
        whole_ms = milliseconds(timeout_ms)
        check_range("timeout_ms", whole_ms, 1, MAX_TIMEOUT_MS)
        return whole_ms / 1000

    def _check_batch_size(self, outgoing: Outgoing, count: int) -> None:
        limit = self._checks.max_message_size_bytes
        if len(outgoing.body) > limit:
            raise IllegalArgumentError(
                f"a batch of {count} messages to {outgoing.topic} takes {len(outgoing.body)} "
                f"bytes, the limit max_message_size_bytes is {limit}; cut it with split_batches"
            )

    def _pending_sends(self) -> tuple[int, int]:
        return (0, 0) if self._pending is None else self._pending.load()

    async def _open(self, instance: ClientInstance) -> None:
        self._join(instance)
        self._opened = instance
        name = f"producer-{self._group}"
        self._tasks = TaskOwner(name)
        self._tasks.spawn(instance.look_for_servers(self.group), "look for servers")
        self._pending = Pending(name, self._max_pending_sends, self._max_pending_bytes)
        self._oneways = Oneways()
        faults = None
        if self._latency_tables is not None:
            faults = LatencyFaults(self._latency_tables, asyncio.get_running_loop().time)
        self._sender = Sender(
            instance,
            self._limits,
            group=self.group,
            namespace=self._namespace,
            hooks=self._hooks,
            faults=faults,
            on_left=self._pending.left,
        )
        self._encoder = MessageEncoder(
            self._group,
            instance.unique_ids,
            default_topic_queue_nums=self._limits.default_topic_queue_nums,
            compress_over_bytes=self._compress_over_bytes,
            compression=self._compression,
            namespace=self._namespace,
            clock=instance.clock,
        )

        self._oneway_line = OnewayLine(
            self._sender,
            self._encoder,
            self._checks,
            self._oneways,
            self._tasks,
            self._send_timeout_ms / 1000,
        )

    def _trace(self, dispatcher: TraceDispatcher) -> Hook:
        from cometmq.client.tracing.send_trace import SendTrace

        self._send_trace = SendTrace(dispatcher)
        return self._send_trace

    def _join(self, instance: ClientInstance) -> None:
        instance.add_producer(self._group)

    async def _shut(self, instance: ClientInstance) -> None:
        assert self._tasks is not None, "set by start"
        assert self._pending is not None, "set by start"
        try:
            await self._pending.wait()
            await self._drain_oneways()
        finally:
            await self._pending.close()
            await self._tasks.close()
            await instance.remove_producer(self._group)

    async def _drain_oneways(self) -> None:
        assert self._oneways is not None, "set by start"
        assert self._oneway_line is not None, "set by start"
        await self._oneway_line.close()
        self._unsent = await self._oneways.drain(self._send_timeout_ms / 1000)
        if self._unsent:
            log.error(
                "one-way messages did not leave before the producer was closed; see its `unsent`",
                group=self.group,
                count=len(self._unsent),
                send_timeout_ms=self._send_timeout_ms,
            )


def _has_value_only(message: object) -> bool:
    """Say whether a codec has to make the message's body. Users may hand over any object."""
    return isinstance(message, Message) and message.is_unencoded
