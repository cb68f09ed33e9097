"""Call the handlers of a broker in memory, without servers."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound
from faststream.response.publish_type import PublishType
from faststream.response.response import Response

from cometmq.client.limits import MessageChecks
from cometmq.errors import RequestTimeoutError
from cometmq.faststream.broker import RocketMQBroker
from cometmq.faststream.commands import RocketMQPublishCommand
from cometmq.faststream.producer import NULL, RocketMQProducer
from cometmq.faststream.publisher import RocketMQPublisher
from cometmq.faststream.subscriber import RocketMQSubscriber
from cometmq.model.durations import milliseconds
from cometmq.model.message import Message, MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult, SendStatus

_BROKER = "in-memory"
# How long a request without `timeout_ms` waits.
_REQUEST_MS = 3_000


class TestRocketMQBroker(TestBroker[RocketMQBroker, EnterType], broker=RocketMQBroker):
    """Hands the messages that are published to a broker to its subscribers at once, without servers.

        async with TestRocketMQBroker(broker) as test_broker:
            await test_broker.publish({"id": "O-1"}, "orders", tags="paid")
            bill.mock.assert_called_once_with({"id": "O-1"})

    It refuses the messages that a producer refuses. An exception of a handler reaches the caller of `publish`.
    No message comes again, delays are ignored, and a subscriber that selects by SQL or a predicate receives every
    message of its topic. To test retries, delays, selection and everything else that servers do, run the broker
    against `cometmq.testing.Cluster`.
    """

    def create_publisher_fake_subscriber(
        self, broker: RocketMQBroker, publisher: RocketMQPublisher
    ) -> tuple[RocketMQSubscriber, bool]:
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        # With real servers each subscriber needs a group of its own.
        group = f"test-{publisher.topic}"
        return broker.subscriber(publisher.topic, group=group, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: RocketMQBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, _Deliveries(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: RocketMQBroker, *args: Any, **kwargs: Any) -> None:
        """Connect to nothing."""


def _subscribers(brokers: Iterable[RocketMQBroker]) -> Iterable[RocketMQSubscriber]:
    for broker in brokers:
        for subscriber in broker.subscribers:
            assert isinstance(subscriber, RocketMQSubscriber)
            yield subscriber


class _Deliveries(RocketMQProducer):
    """Hands each sent message to the subscribers that select it, one after the other."""

    def __init__(self, broker: RocketMQBroker, brokers: Sequence[RocketMQBroker]) -> None:
        config = broker.config.broker_config
        super().__init__(config.broker_parser, config.broker_decoder)
        self._brokers = brokers
        self._checks = MessageChecks()
        self._serializer = config.fd_config._serializer  # noqa: SLF001 - as all its brokers
        self.codec = config.broker_codec or self.codec
        self._offsets = count()

    async def publish(self, cmd: RocketMQPublishCommand) -> SendResult:
        if cmd.asked is not None:  # the reply, which `request` takes from the handler itself
            return self._result(cmd.asked)
        return await self._deliver(await self.encoded(cmd, cmd.body))

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> SendResult:
        messages = self._checks.check_batch(
            [await self.encoded(cmd, body) for body in cmd.batch_bodies]
        )
        results = [await self._deliver(message) for message in messages]
        return results[0]

    async def request(self, cmd: RocketMQPublishCommand) -> MessageExt:
        asked = self._delivered(await self.encoded(cmd, cmd.body))
        for subscriber in _subscribers(self._brokers):
            if subscriber.selects(asked):
                timeout_ms = _REQUEST_MS if cmd.timeout_ms is None else milliseconds(cmd.timeout_ms)
                try:
                    async with asyncio.timeout(timeout_ms / 1000):
                        answer = await subscriber.process_message(asked)
                except TimeoutError:
                    raise RequestTimeoutError(f"no reply came within {timeout_ms} ms") from None
                body = NULL if answer.body is None else answer.body
                return self._delivered(await self.encoded(_command(answer), body))
        raise SubscriberNotFound(f"no subscriber of {cmd.destination} selects the message")

    async def encoded(self, cmd: RocketMQPublishCommand, body: Any) -> Message:
        """Return the message for one body. Raises IllegalArgumentError if a producer refuses such a message."""
        message = await super().encoded(cmd, body)
        self._checks.check(message)
        return message

    async def _deliver(self, message: Message) -> SendResult:
        delivered = self._delivered(message)
        for subscriber in list(_subscribers(self._brokers)):
            if subscriber.selects(delivered):
                await subscriber.process_message(delivered)
        return self._result(delivered)

    def _delivered(self, message: Message) -> MessageExt:
        offset = next(self._offsets)
        return MessageExt(
            message.topic,
            message.body,
            properties=message.properties,
            msg_id=f"{offset:032X}",
            broker_name=_BROKER,
            queue_offset=offset,
        )

    @staticmethod
    def _result(message: MessageExt) -> SendResult:
        return SendResult(
            SendStatus.SEND_OK,
            message.msg_id,
            message.msg_id,
            MessageQueue(message.topic, _BROKER, message.queue_id),
            message.queue_offset,
        )


def _command(answer: Response) -> RocketMQPublishCommand:
    return RocketMQPublishCommand(
        answer.body,
        _publish_type=PublishType.REPLY,
        topic="replies",
        headers=answer.headers,
        correlation_id=answer.correlation_id,
    )
