"""Receive messages for handlers: each subscriber is a member of its group, with a simple consumer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSchema
from faststream.specification.schema import Operation, SubscriberSpec

from cometmq.client.limits import check_client_group, check_range
from cometmq.client.membership.subscribing import message_selector
from cometmq.client.popping.message import ReceivedMessage
from cometmq.client.popping.renewals import Renewals
from cometmq.client.popping.simple_consumer import SimpleConsumer
from cometmq.errors import ClientStateError, IllegalArgumentError
from cometmq.faststream.config import RocketMQBrokerConfig, check_ack_policy
from cometmq.faststream.message import Parser, RocketMQMessage
from cometmq.faststream.producer import ReplyPublisher
from cometmq.filtering.tags import accepts, build_subscription
from cometmq.model.durations import Duration, milliseconds
from cometmq.model.message import Message, MessageExt
from cometmq.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream.message import StreamMessage

_DAY_MS: Final = 24 * 3600 * 1000
MAX_WORKERS: Final = 1_000


@dataclass(kw_only=True)
class Selection:
    """Says which messages of a topic a group receives; SimpleConsumer.subscribe explains the fields."""

    topic: str
    group: str
    tags: str = "*"
    sql: str | None = None
    predicate: str | None = None
    from_newest: bool = False

    def __post_init__(self) -> None:
        self._selector = message_selector(self.topic, self.tags, self.sql, self.predicate)
        check_client_group(self.group)

    def accepts(self, tag: str | None) -> bool:
        """Return whether a message with this tag is selected, as far as tags decide."""
        return accepts(build_subscription(self.topic, *self._selector), tag)


@dataclass(kw_only=True)
class Work:
    """Says how a subscriber works on its messages; RocketMQRegistrator.subscriber explains the fields."""

    max_workers: int
    prefetch: int
    invisible_ms: Duration
    longest_ms: Duration
    retry_delay_ms: Duration

    def __post_init__(self) -> None:
        check_range("max_workers", self.max_workers, 1, MAX_WORKERS)
        check_range("prefetch", self.prefetch, 1, 32)
        check_range("invisible_ms", milliseconds(self.invisible_ms), 1_000, _DAY_MS)
        check_range("longest_ms", milliseconds(self.longest_ms), 1_000, 30 * _DAY_MS)
        check_range("retry_delay_ms", milliseconds(self.retry_delay_ms), 0, _DAY_MS)


@dataclass(kw_only=True)
class RocketMQSubscriberConfig(SubscriberUsecaseConfig):
    _outer_config: RocketMQBrokerConfig = field(default_factory=RocketMQBrokerConfig)

    selection: Selection
    work: Work

    def __post_init__(self) -> None:
        check_ack_policy(self._ack_policy)

    @property
    def ack_policy(self) -> AckPolicy:
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class RocketMQSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    topic: str


class RocketMQSubscriberSpecification(
    SubscriberSpecification[RocketMQBrokerConfig, RocketMQSubscriberSpecificationConfig]
):
    """Describes a subscriber in AsyncAPI, which has no bindings for RocketMQ."""

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        payload = resolve_payloads(self.get_payloads())
        message = MessageSchema(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketMQSubscriber(SubscriberUsecase[MessageExt]):
    """Receives messages of a topic as a member of a group, and calls its handlers with them."""

    _outer_config: RocketMQBrokerConfig

    def __init__(
        self,
        config: RocketMQSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[MessageExt],
    ) -> None:
        parser = Parser(config.work.retry_delay_ms)
        config.parser = parser.parse_message
        config.decoder = parser.decode_message
        super().__init__(config, specification, calls)
        self._selection = config.selection
        self._work = config.work
        self._consumer: SimpleConsumer | None = None
        self._tasks: TaskOwner | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._held = self._new_renewals()

    @classmethod
    def of(
        cls,
        config: RocketMQSubscriberConfig,
        title: str | None,
        description: str | None,
        include_in_schema: bool,
    ) -> Self:
        """Return a subscriber that AsyncAPI describes with this title and description."""
        described = RocketMQSubscriberSpecificationConfig(
            topic=config.selection.topic,
            title_=title,
            description_=description,
            include_in_schema=include_in_schema,
        )
        calls = CallsCollection[MessageExt]()
        specification = RocketMQSubscriberSpecification(config._outer_config, described, calls)  # noqa: SLF001 - FastStream's name
        return cls(config, specification, calls)

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self._selection.topic}"

    @property
    def group(self) -> str:
        return self._selection.group

    def selects(self, message: Message) -> bool:
        """Return whether the subscriber receives a message, as far as topic and tags decide."""
        return message.topic == self.topic and self._selection.accepts(message.tags)

    async def start(self) -> None:
        """Start to receive. If the subscriber has been started, nothing happens.

        Raises IllegalArgumentError if another started subscriber is in the group, and the errors of SimpleConsumer
        for its options and at its start.
        """
        if self._consumer is None:
            self._check_group()
        elif self.running:
            return
        await super().start()
        await self._start_consumer()
        assert self._tasks is not None, "set with the consumer"
        self._post_start()
        if self.calls:
            self._receiving = self._tasks.spawn(self._receive(), "receive")

    async def stop(self) -> None:
        """Receive no more, wait for running handlers (`graceful_timeout`), and give back all unsettled messages."""
        tasks, self._tasks = self._tasks, None
        self.running = False
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.wait((self._receiving,))
            self._receiving = None
        await super().stop()
        if tasks is not None:
            await tasks.close()
        await self._held.give_back()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            del self._outer_config.topics_by_group[self.group]
            await consumer.close()

    async def get_one(self, *, timeout: float = 5.0) -> RocketMQMessage | None:  # noqa: ASYNC109 - FastStream's
        """Receive one message. Return None if none comes within `timeout` seconds. For a subscriber without handlers.

        The caller acknowledges the message.
        """
        consumer = await self._own_consumer("get_one")
        received = await consumer.receive(1, wait_ms=round(timeout * 1000))
        self._held.add(received)
        return await self._processed(received[0]) if received else None

    async def __aiter__(self) -> AsyncIterator[RocketMQMessage]:
        consumer = await self._own_consumer("async for")
        lists = aiter(consumer)
        while received := await lists.next_list():
            self._held.add(received)
            for each in received:
                yield await self._processed(each)

    def get_log_context(self, message: StreamMessage[MessageExt] | None) -> dict[str, str]:
        return {
            "topic": self.topic,
            "group": self.group,
            "message_id": getattr(message, "message_id", ""),
        }

    def _make_response_publisher(
        self, message: StreamMessage[MessageExt]
    ) -> Sequence[PublisherProto]:
        return (ReplyPublisher(self._outer_config.producer, message.raw_message),)

    # Inside

    def _new_renewals(self) -> Renewals:
        return Renewals(
            f"FastStream subscriber of {self._selection.group}",
            milliseconds(self._work.invisible_ms),
            milliseconds(self._work.longest_ms),
        )

    async def _start_consumer(self) -> SimpleConsumer:
        """Start a consumer, unless one runs: after `stop`, a subscriber may start again."""
        if self._consumer is not None:
            return self._consumer
        work, selection = self._work, self._selection
        consumer = SimpleConsumer(
            selection.group,
            max_messages=work.prefetch,
            invisible_ms=work.invisible_ms,
            from_newest=selection.from_newest,
            **self._outer_config.client_options,
        )
        consumer.subscribe(
            self.topic, selection.tags, sql=selection.sql, predicate=selection.predicate
        )
        if self._outer_config.watch is not None:
            self._outer_config.watch(consumer)
        self._check_group()
        self._outer_config.topics_by_group[self.group] = self.topic
        try:
            await consumer.start()
        except BaseException:
            del self._outer_config.topics_by_group[self.group]
            raise
        self._consumer = consumer
        self._held = self._new_renewals()
        self._tasks = TaskOwner(f"faststream-{selection.group}")
        self._tasks.spawn(self._held.renew(), "renew")
        return consumer

    def _check_group(self) -> None:
        """Raise IllegalArgumentError if a started subscriber is in the group."""
        topic = self._outer_config.topics_by_group.get(self.group)
        if topic is not None:
            raise IllegalArgumentError(
                f"the subscribers of {topic} and {self.topic} are both in the group {self.group!r:.100}, but all "
                "members of a group must select the same messages; give each subscriber a group of its own"
            )

    async def _own_consumer(self, what: str) -> SimpleConsumer:
        if self.calls:
            raise ClientStateError(
                f"the subscriber of {self.topic} has a handler, which receives the messages; use {what} with a "
                "subscriber that has no handler"
            )
        return await self._start_consumer()

    async def _receive(self) -> None:
        """Receive, and begin the work on a message whenever a worker is free, until cancelled."""
        assert self._consumer is not None, "started before"
        assert self._tasks is not None, "started before"
        workers = asyncio.Semaphore(self._work.max_workers)
        lists = aiter(self._consumer)
        while self.running:
            async with workers:
                pass  # ask for messages only when a worker is free
            messages = await lists.next_list()
            self._held.add(messages)
            for message in messages:
                await workers.acquire()
                self._tasks.spawn(self._work_on(message, workers), "work")

    async def _work_on(self, message: ReceivedMessage, workers: asyncio.Semaphore) -> None:
        message.enter_block()  # hooks see the work: the span "process TOPIC"
        try:
            await self.consume(message)
        finally:
            message.leave_block(None)
            workers.release()
            # If the acknowledgement failed, the message comes again. Manual ones may follow after the handler.
            if message.is_settled or self.ack_policy is not AckPolicy.MANUAL:
                self._held.let_go(message)

    async def _processed(self, raw: MessageExt) -> RocketMQMessage:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        message = await process_msg(
            msg=raw,
            middlewares=(make(raw, context=context) for make in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        assert isinstance(message, RocketMQMessage), "made by our parser"
        return message
