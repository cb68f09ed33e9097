"""Provide the broker of a FastStream application: a producer, and a consumer for each subscriber."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from fast_depends import Provider, dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from cometmq.client.popping.simple_consumer import SimpleConsumer
from cometmq.client.producing.producer import Producer
from cometmq.errors import IllegalArgumentError
from cometmq.faststream.commands import RocketMQPublishCommand
from cometmq.faststream.config import RocketMQBrokerConfig, Watch
from cometmq.faststream.producer import RocketMQProducer
from cometmq.faststream.registrator import RocketMQRegistrator
from cometmq.faststream.subscriber import RocketMQSubscriber
from cometmq.model.durations import Duration, Moment
from cometmq.model.message import MessageExt
from cometmq.model.results import SendResult

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.configs import UnderlyingDriverAnnotation
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
    from faststream.security import BaseSecurity
    from faststream.specification.schema.extra import Tag, TagDict

    from cometmq.faststream.message import RocketMQMessage

# Whole ids are logged: those of one client differ only at their ends.
_MESSAGE_ID_LENGTH: Final = 32
# The interval between two checks for an open connection.
_LOOK_S: Final = 0.05


class _LoggerStorage(DefaultLoggerStorage):
    """Makes the logger of a broker if the application passes none."""

    def __init__(self) -> None:
        super().__init__()
        self._widths: Counter[str] = Counter(topic=4, group=4)

    def register_subscriber(self, params: dict[str, Any]) -> None:
        for name, width in list(self._widths.items()):
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        known = self._get_logger_ref()
        if known is not None:
            return known
        widths = self._widths
        made = get_broker_logger(
            name="rocketmq",
            default_context={"topic": "", "group": ""},
            message_id_ln=_MESSAGE_ID_LENGTH,
            fmt=f"%(asctime)s %(levelname)-8s - %(topic)-{widths['topic']}s | %(group)-{widths['group']}s | "
            f"%(message_id)-{_MESSAGE_ID_LENGTH}s - %(message)s",
            context=context,
            log_level=self.logger_log_level,
        )
        self._logger_ref.add(made)
        return made


def _needed_annotations() -> Mapping[Any, UnderlyingDriverAnnotation]:
    from cometmq.faststream.annotations import named_annotations  # it imports this module

    return named_annotations()


class RocketMQBroker(
    RocketMQRegistrator, BrokerUsecase[MessageExt, Producer, RocketMQBrokerConfig]
):
    """Runs the subscribers and publishers of a FastStream application.

        broker = RocketMQBroker("127.0.0.1:9876")
        app = FastStream(broker)

        @broker.subscriber("orders", group="billing", tags="paid")
        @broker.publisher("invoices")
        async def bill(order: Order) -> Invoice: ...

    Each subscriber is a member of its group, and receives by a simple consumer of its own (`subscriber` explains
    the options). One producer of the group `producer_group` sends the results of decorated handlers and the
    messages of `publish`. `request` sends a message and waits for the reply; a handler replies to such a message
    with its result.

    The broker calls `watch` with each client before the client starts. `watch=OpenTelemetryHook().watch` records
    spans and metrics; a function of yours may add hooks. All clients get the `client_options`: `namespace`, `tls`,
    `credentials` and the others of ClientOptions. The other arguments are those of FastStream's own brokers.

    The servers must know POP: CometMQ, or Java's from 5.0 on.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        producer_group: str = "faststream",
        watch: Watch | None = None,
        graceful_timeout: float | None = 15.0,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketMQRegistrator] = (),
        ack_policy: AckPolicy = EMPTY,
        id_generator: IdGenerator = gen_cor_id,
        specification_url: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        security: BaseSecurity | None = None,
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
        **client_options: Any,
    ) -> None:
        if namesrv is not None:
            client_options["namesrv"] = namesrv
        # Wrong options raise their error here, not only when the application starts.
        Producer(producer_group, **client_options)
        SimpleConsumer(producer_group, **client_options)
        self._producer_group = producer_group
        super().__init__(
            routers=routers,
            config=RocketMQBrokerConfig(
                client_options=client_options,
                watch=watch,
                default_driver_annotations=_needed_annotations(),
                producer=RocketMQProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_logger_state(
                    logger=logger, log_level=log_level, default_storage_cls=_LoggerStorage
                ),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                description=description,
                url=[specification_url or namesrv or "NAMESRV_ADDR"],
                protocol="rocketmq",
                protocol_version=protocol_version,
                tags=tags,
                security=security,
            ),
        )

    async def start(self) -> None:
        """Start the producer, then the subscribers.

        Raises IllegalArgumentError if two subscribers are in one group, and the errors of the clients' `start`.
        """
        self._check_groups()
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, then the producer.

        Each subscriber waits for its running handlers, for `graceful_timeout` seconds at most.
        """
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            producer, self._connection = self._connection, None
            self.config.broker_config.producer.disconnect()
            if producer is not None:
                await producer.close()

    async def ping(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - FastStream's
        """Return whether a connection to a server is open. Wait for one for `timeout` seconds, 3 by default."""
        deadline = asyncio.get_running_loop().time() + (3.0 if timeout is None else timeout)
        while self._connection is not None:
            if self._connection.load().connections:
                return True
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(_LOOK_S)
        return False

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        tags: str = "",
        keys: str | Iterable[str] = (),
        ordering_key: Any = None,
        delay_ms: Duration | None = None,
        deliver_at_ms: Moment | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout_ms: Duration | None = None,
    ) -> SendResult:
        """Send a message to `topic`, and return the result with its queue and offset.

        FastStream encodes `message`: bytes, text, a model, or any value that JSON can hold. `tags`, `keys`,
        `delay_ms` and `deliver_at_ms` are those of `cometmq.Message`; `headers` become properties. Messages with
        the same `ordering_key` go to the same queue. Raises the errors of Producer.send.
        """
        command = RocketMQPublishCommand(
            message,
            _publish_type=PublishType.PUBLISH,
            topic=topic,
            tags=tags,
            keys=keys,
            ordering_key=ordering_key,
            delay_ms=delay_ms,
            deliver_at_ms=deliver_at_ms,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            timeout_ms=timeout_ms,
        )
        result: SendResult = await self._basic_publish(command, producer=self.config.producer)
        return result

    async def publish_batch(  # type: ignore[override]  # more arguments, as FastStream's own brokers
        self,
        *messages: Any,
        topic: str = "",
        tags: str = "",
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout_ms: Duration | None = None,
    ) -> SendResult:
        """Send messages to one queue of `topic` in one request; see `publish` and Producer.send_batch."""
        if not messages or any(message is None for message in messages):
            raise IllegalArgumentError(
                f"publish_batch got {'None as a message' if messages else 'no messages'}; pass one or more messages "
                "with bodies"
            )
        command = RocketMQPublishCommand(
            *messages,
            _publish_type=PublishType.PUBLISH,
            topic=topic,
            tags=tags,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            timeout_ms=timeout_ms,
        )
        result: SendResult = await self._basic_publish_batch(command, producer=self.config.producer)
        return result

    async def request(  # type: ignore[override]  # more arguments, as FastStream's own brokers
        self,
        message: Any = None,
        topic: str = "",
        *,
        tags: str = "",
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout_ms: Duration | None = None,
    ) -> RocketMQMessage:
        """Send a message, and return the reply of a handler of `topic` or of another client.

        Raises RequestTimeoutError if no reply comes within `timeout_ms`, and the other errors of Producer.request.
        """
        command = RocketMQPublishCommand(
            message,
            _publish_type=PublishType.REQUEST,
            topic=topic,
            tags=tags,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            timeout_ms=timeout_ms,
        )
        reply: RocketMQMessage = await self._basic_request(command, producer=self.config.producer)
        return reply

    # Inside

    async def _connect(self) -> Producer:
        config = self.config.broker_config
        producer = Producer(self._producer_group, **config.client_options)
        if config.watch is not None:
            config.watch(producer)
        await producer.start()
        config.producer.connect(producer, config.fd_config._serializer, config.broker_codec)  # noqa: SLF001 - as all its brokers
        return producer

    def _check_groups(self) -> None:
        members = Counter(
            subscriber.group
            for subscriber in self.subscribers
            if isinstance(subscriber, RocketMQSubscriber)
        )
        for group, count in members.items():
            if count > 1:
                raise IllegalArgumentError(
                    f"{count} subscribers are in the group {group!r:.100}, but all members of a group must select "
                    "the same messages; give each subscriber a group of its own"
                )
