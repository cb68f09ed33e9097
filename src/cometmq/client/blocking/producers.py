"""Provide the blocking producer, which runs the asyncio producer on one background loop thread.

The consumers are in `client/blocking/consumers.py`, which has the rules of both. So a program that only sends imports no
consumers: they take a third of the import's time.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from cometmq.client.blocking.client import BlockingClient
from cometmq.client.options import takes
from cometmq.client.producing.producer import Producer as AsyncProducer
from cometmq.client.producing.producer import RequestCallback, SendCallback
from cometmq.client.producing.selectors import QueueSelector
from cometmq.model.durations import Duration
from cometmq.model.message import Message, MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult


class Producer(BlockingClient, of=AsyncProducer):
    """Sends messages like `cometmq.aio.Producer`, whose text follows in `help`, but blocks.

    Use `with` for `async with`, and no `await`. Any thread may call the methods. `send_async` and
    `request_async` return futures of concurrent.futures, and call their callbacks on the loop
    thread. `send_oneway` may return before the loop has sent the message; if the loop then cannot send it,
    the producer logs it, and `unsent` lists it after the close.
    """

    @takes(AsyncProducer)
    def __init__(self, asynchronous: AsyncProducer) -> None:
        self._async: AsyncProducer = asynchronous
        super().__init__(asynchronous)

    def send(
        self,
        message: Message,
        *,
        timeout_ms: Duration | None = None,
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
        timeout_ms: Duration | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> Future[SendResult]:
        return self._begin(
            lambda: self._async.send_async(
                message, callback, timeout_ms=timeout_ms, queue=queue, selector=selector, key=key
            )
        )

    def request(
        self,
        message: Message,
        *,
        timeout_ms: Duration | None = None,
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
        timeout_ms: Duration | None = None,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        key: Any = None,
    ) -> Future[MessageExt]:
        return self._begin(
            lambda: self._async.request_async(
                message, callback, timeout_ms=timeout_ms, queue=queue, selector=selector, key=key
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
        if not self._async.posts_oneway(message, self._outside().post, queue, selector, key):
            self._call(self._async.send_oneway(message, queue=queue, selector=selector, key=key))

    @property
    def unsent(self) -> list[Message]:
        return self._async.unsent

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        timeout_ms: Duration | None = None,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        return self._call(self._async.send_batch(messages, timeout_ms=timeout_ms, queue=queue))

    def recall(self, topic: str, recall_handle: str, *, timeout_ms: Duration | None = None) -> str:
        return self._call(self._async.recall(topic, recall_handle, timeout_ms=timeout_ms))

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._call(self._async.queues(topic))
