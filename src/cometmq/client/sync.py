"""The blocking clients: the asyncio ones, run on one background loop thread.

No rule of RocketMQ lives here. Parameters, results and errors are those of the asyncio classes
(`cometmq.client.producing.producer`, `cometmq.client.consuming.push_consumer`), which say what they mean; a test keeps
the signatures equal. Any thread may call any method, except from a coroutine listener, which runs
on the loop thread itself and uses `cometmq.aio`.

Longer than 500 lines: every class repeats the parameters of its twin, so that editors show them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Unpack

from cometmq.client.blocking import BlockingClient, awaited
from cometmq.client.cluster.latency_faults import LatencyTables
from cometmq.client.consuming.listening import Listener
from cometmq.client.consuming.lite_pull_consumer import (
    AUTO_COMMIT_INTERVAL_MS,
    POLL_TIMEOUT_MS,
    PULL_THRESHOLD_SIZE_BYTES,
)
from cometmq.client.consuming.lite_pull_consumer import LitePullConsumer as AsyncLitePullConsumer
from cometmq.client.consuming.orderly import SUSPEND_MS
from cometmq.client.consuming.push_consumer import CLOSE_TIMEOUT_MS, CONSUME_TIMEOUT_MS, ListenerT
from cometmq.client.consuming.push_consumer import PushConsumer as AsyncPushConsumer
from cometmq.client.identity import DEFAULT_INSTANCE_NAME
from cometmq.client.limits import MAX_MESSAGE_SIZE_BYTES
from cometmq.client.membership.allocation import AllocationStrategy, allocate_averagely
from cometmq.client.producing.encoding import COMPRESS_OVER_BYTES
from cometmq.client.producing.producer import (
    LATENCY_TABLES,
    MAX_PENDING_BYTES,
    MAX_PENDING_SENDS,
    SEND_TIMEOUT_MS,
    ProducerOptions,
    RequestCallback,
    SendCallback,
)
from cometmq.client.producing.producer import Producer as AsyncProducer
from cometmq.client.producing.selectors import QueueSelector
from cometmq.client.producing.transaction_producer import MAX_PENDING_CHECKS, TransactionListener
from cometmq.client.producing.transaction_producer import (
    TransactionProducer as AsyncTransactionProducer,
)
from cometmq.model.message import Message, MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import (
    ConsumeFromWhere,
    DamageCounts,
    DamagedMessage,
    MessageModel,
    PullResult,
    SendResult,
    TransactionSendResult,
)
from cometmq.protocol.compression import CompressionType
from cometmq.remoting.credentials import Credentials
from cometmq.remoting.tls import Tls


class Producer(BlockingClient, of=AsyncProducer):
    """The blocking `cometmq.aio.Producer`: as below, with `with` for `async with` and without `await`.

    Any thread may call its methods. `send_async` and `request_async` return futures of
    concurrent.futures, and call their callbacks on the loop thread.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str = DEFAULT_INSTANCE_NAME,
        unit_name: str | None = None,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: bool | Tls | None = None,
        vip_channel_enabled: bool = False,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        retry_times: int = 2,
        retry_times_async: int = 2,
        retry_another_broker_when_not_store_ok: bool = False,
        send_latency_fault_enable: bool = False,
        latency_tables: LatencyTables = LATENCY_TABLES,
        max_message_size_bytes: int = MAX_MESSAGE_SIZE_BYTES,
        compress_over_bytes: int = COMPRESS_OVER_BYTES,
        compression: CompressionType = CompressionType.ZLIB,
        default_topic_queue_nums: int = 4,
        max_pending_sends: int = MAX_PENDING_SENDS,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        enable_trace: bool = False,
        trace_topic: str | None = None,
    ) -> None:
        self._async: AsyncProducer = AsyncProducer(
            group,
            namesrv=namesrv,
            instance_name=instance_name,
            unit_name=unit_name,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
            vip_channel_enabled=vip_channel_enabled,
            send_timeout_ms=send_timeout_ms,
            retry_times=retry_times,
            retry_times_async=retry_times_async,
            retry_another_broker_when_not_store_ok=retry_another_broker_when_not_store_ok,
            send_latency_fault_enable=send_latency_fault_enable,
            latency_tables=latency_tables,
            max_message_size_bytes=max_message_size_bytes,
            compress_over_bytes=compress_over_bytes,
            compression=compression,
            default_topic_queue_nums=default_topic_queue_nums,
            max_pending_sends=max_pending_sends,
            max_pending_bytes=max_pending_bytes,
            enable_trace=enable_trace,
            trace_topic=trace_topic,
        )
        super().__init__(self._async)

    def send(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> SendResult:
        return self._call(
            self._async.send(
                message, timeout_ms=timeout_ms, queue=queue, selector=selector, key=key
            )
        )

    def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> Future[SendResult]:
        return self._submit(
            awaited(
                self._async.send_async,
                message,
                callback,
                timeout_ms=timeout_ms,
                queue=queue,
                selector=selector,
                key=key,
            )
        )

    def request(
        self,
        message: Message,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> MessageExt:
        return self._call(
            self._async.request(
                message, timeout_ms=timeout_ms, queue=queue, selector=selector, key=key
            )
        )

    def request_async(
        self,
        message: Message,
        callback: RequestCallback | None = None,
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> Future[MessageExt]:
        return self._submit(
            awaited(
                self._async.request_async,
                message,
                callback,
                timeout_ms=timeout_ms,
                queue=queue,
                selector=selector,
                key=key,
            )
        )

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> None:
        self._call(self._async.send_oneway(message, queue=queue, selector=selector, key=key))

    @property
    def unsent(self) -> list[Message]:
        return self._async.unsent

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        timeout_ms: int | None = None,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        return self._call(self._async.send_batch(messages, timeout_ms=timeout_ms, queue=queue))

    def recall(self, topic: str, recall_handle: str, *, timeout_ms: int | None = None) -> str:
        return self._call(self._async.recall(topic, recall_handle, timeout_ms=timeout_ms))

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._call(self._async.queues(topic))


class TransactionProducer(Producer, of=AsyncTransactionProducer):
    """The blocking `cometmq.aio.TransactionProducer`: as below, without `await`.

    Any thread may call its methods. Listeners that are functions run in its own threads.
    """

    def __init__(
        self,
        group: str,
        listener: TransactionListener,
        *,
        topics: Sequence[str] = (),
        concurrency: int = 20,
        max_pending_checks: int = MAX_PENDING_CHECKS,
        **options: Unpack[ProducerOptions],
    ) -> None:
        self._transactional = AsyncTransactionProducer(
            group,
            listener,
            topics=topics,
            concurrency=concurrency,
            max_pending_checks=max_pending_checks,
            **options,
        )
        self._async = self._transactional
        BlockingClient.__init__(self, self._transactional)

    def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout_ms: int | None = None
    ) -> TransactionSendResult:
        return self._call(
            self._transactional.send_in_transaction(message, arg, timeout_ms=timeout_ms)
        )


class PushConsumer(BlockingClient, of=AsyncPushConsumer):
    """The blocking `cometmq.aio.PushConsumer`: as below, with `with` for `async with`.

    Any thread may call its methods.
    """

    def __init__(
        self,
        group: str,
        listener: Listener | None = None,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str = DEFAULT_INSTANCE_NAME,
        unit_name: str | None = None,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: bool | Tls | None = None,
        enable_trace: bool = False,
        trace_topic: str | None = None,
        consume_from: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        orderly: bool = False,
        message_model: MessageModel = MessageModel.CLUSTERING,
        local_offset_dir: str | os.PathLike[str] | None = None,
        concurrency: int = 20,
        consume_message_batch_max_size: int = 1,
        max_reconsume_times: int = -1,
        suspend_current_queue_time_ms: int = SUSPEND_MS,
        consume_timeout_ms: int = CONSUME_TIMEOUT_MS,
        allocation: AllocationStrategy = allocate_averagely,
        pull_batch_size: int = 32,
        pull_interval_ms: int = 0,
        pull_threshold_for_queue: int = 1000,
        pull_threshold_size_for_queue_bytes: int = 100 * 1024 * 1024,
        pull_threshold_for_topic: int = -1,
        pull_threshold_size_for_topic_bytes: int = -1,
        consume_max_span: int = 2000,
        on_damaged: DamagedMessage = DamagedMessage.DEAD_LETTER,
        close_timeout_ms: int = CLOSE_TIMEOUT_MS,
    ) -> None:
        self._async = AsyncPushConsumer(
            group,
            listener,
            namesrv=namesrv,
            instance_name=instance_name,
            unit_name=unit_name,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
            enable_trace=enable_trace,
            trace_topic=trace_topic,
            consume_from=consume_from,
            consume_timestamp_ms=consume_timestamp_ms,
            orderly=orderly,
            message_model=message_model,
            local_offset_dir=local_offset_dir,
            concurrency=concurrency,
            consume_message_batch_max_size=consume_message_batch_max_size,
            max_reconsume_times=max_reconsume_times,
            suspend_current_queue_time_ms=suspend_current_queue_time_ms,
            consume_timeout_ms=consume_timeout_ms,
            allocation=allocation,
            pull_batch_size=pull_batch_size,
            pull_interval_ms=pull_interval_ms,
            pull_threshold_for_queue=pull_threshold_for_queue,
            pull_threshold_size_for_queue_bytes=pull_threshold_size_for_queue_bytes,
            pull_threshold_for_topic=pull_threshold_for_topic,
            pull_threshold_size_for_topic_bytes=pull_threshold_size_for_topic_bytes,
            consume_max_span=consume_max_span,
            on_damaged=on_damaged,
            close_timeout_ms=close_timeout_ms,
        )
        super().__init__(self._async)

    def listen(self, listener: ListenerT) -> ListenerT:
        return self._async.listen(listener)

    def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, predicate: str | None = None
    ) -> None:
        self._apply(self._async.subscribe, topic, tags, sql=sql, predicate=predicate)

    def unsubscribe(self, topic: str) -> None:
        self._apply(self._async.unsubscribe, topic)

    def assigned_queues(self) -> list[MessageQueue]:
        return self._apply(self._async.assigned_queues)

    def pause(self) -> None:
        self._apply(self._async.pause)

    def resume(self) -> None:
        self._apply(self._async.resume)

    @property
    def paused(self) -> bool:
        return self._async.paused

    def damage_counts(self) -> DamageCounts:
        return self._apply(self._async.damage_counts)

    def set_concurrency(self, concurrency: int) -> None:
        self._apply(self._async.set_concurrency, concurrency)


class LitePullConsumer(BlockingClient, of=AsyncLitePullConsumer):
    """The blocking `cometmq.aio.LitePullConsumer`: as below, with `with` for `async with` and without
    `await`. Any thread may call its methods.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | Sequence[str] | None = None,
        instance_name: str = DEFAULT_INSTANCE_NAME,
        unit_name: str | None = None,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: bool | Tls | None = None,
        enable_trace: bool = False,
        trace_topic: str | None = None,
        consume_from: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        message_model: MessageModel = MessageModel.CLUSTERING,
        local_offset_dir: str | os.PathLike[str] | None = None,
        auto_commit: bool = True,
        auto_commit_interval_ms: int = AUTO_COMMIT_INTERVAL_MS,
        poll_timeout_ms: int = POLL_TIMEOUT_MS,
        allocation: AllocationStrategy = allocate_averagely,
        pull_batch_size: int = 10,
        pull_threshold_for_queue: int = 1000,
        pull_threshold_size_for_queue_bytes: int = PULL_THRESHOLD_SIZE_BYTES,
        pull_threshold_for_all: int = 10_000,
        consume_max_span: int = 2000,
        on_damaged: DamagedMessage = DamagedMessage.SKIP,
    ) -> None:
        self._async = AsyncLitePullConsumer(
            group,
            namesrv=namesrv,
            instance_name=instance_name,
            unit_name=unit_name,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
            enable_trace=enable_trace,
            trace_topic=trace_topic,
            consume_from=consume_from,
            consume_timestamp_ms=consume_timestamp_ms,
            message_model=message_model,
            local_offset_dir=local_offset_dir,
            auto_commit=auto_commit,
            auto_commit_interval_ms=auto_commit_interval_ms,
            poll_timeout_ms=poll_timeout_ms,
            allocation=allocation,
            pull_batch_size=pull_batch_size,
            pull_threshold_for_queue=pull_threshold_for_queue,
            pull_threshold_size_for_queue_bytes=pull_threshold_size_for_queue_bytes,
            pull_threshold_for_all=pull_threshold_for_all,
            consume_max_span=consume_max_span,
            on_damaged=on_damaged,
        )
        super().__init__(self._async)

    def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, predicate: str | None = None
    ) -> None:
        self._apply(self._async.subscribe, topic, tags, sql=sql, predicate=predicate)

    def unsubscribe(self, topic: str) -> None:
        self._apply(self._async.unsubscribe, topic)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        self._apply(self._async.assign, queues)

    def assigned_queues(self) -> list[MessageQueue]:
        return self._apply(self._async.assigned_queues)

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._call(self._async.queues(topic))

    def damage_counts(self) -> DamageCounts:
        return self._apply(self._async.damage_counts)

    def poll(self, timeout_ms: int | None = None) -> list[MessageExt]:
        return self._call(self._async.poll(timeout_ms))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        tags: str = "*",
        *,
        sql: str | None = None,
        predicate: str | None = None,
        suspend_ms: int = 0,
    ) -> PullResult:
        return self._call(
            self._async.pull(
                queue,
                offset,
                max_messages,
                tags,
                sql=sql,
                predicate=predicate,
                suspend_ms=suspend_ms,
            )
        )

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        self._apply(self._async.pause, queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._apply(self._async.resume, queues)

    def paused_queues(self) -> list[MessageQueue]:
        return self._apply(self._async.paused_queues)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._call(self._async.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        self._call(self._async.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        self._call(self._async.seek_to_end(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return self._call(self._async.offset_for_timestamp(queue, timestamp_ms))

    def min_offset(self, queue: MessageQueue) -> int:
        return self._call(self._async.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        return self._call(self._async.max_offset(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        return self._call(self._async.committed(queue))

    def commit(
        self, offsets: Mapping[MessageQueue, int] | None = None, *, wait: bool = True
    ) -> None:
        self._call(self._async.commit(offsets, wait=wait))
