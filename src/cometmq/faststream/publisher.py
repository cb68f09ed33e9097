"""Publish the results of decorated handlers, and messages of programs, to the topic of a publisher."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSchema
from faststream.specification.schema import Operation, PublisherSpec

from cometmq.faststream.commands import RocketMQPublishCommand
from cometmq.faststream.config import RocketMQBrokerConfig
from cometmq.model.durations import Duration, Moment
from cometmq.model.results import SendResult

if TYPE_CHECKING:
    from faststream._internal.types import PublisherMiddleware
    from faststream.response.response import PublishCommand

    from cometmq.faststream.message import RocketMQMessage


@dataclass(kw_only=True)
class RocketMQPublisherConfig(PublisherUsecaseConfig):
    _outer_config: RocketMQBrokerConfig = field(default_factory=RocketMQBrokerConfig)

    topic: str
    tags: str
    headers: dict[str, str]


@dataclass(kw_only=True)
class RocketMQPublisherSpecificationConfig(PublisherSpecificationConfig):
    topic: str


class RocketMQPublisherSpecification(
    PublisherSpecification[RocketMQBrokerConfig, RocketMQPublisherSpecificationConfig]
):
    """Describes a publisher in AsyncAPI, which has no bindings for RocketMQ."""

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = MessageSchema(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketMQPublisher(PublisherUsecase):
    """Publishes to one topic. Its tag and headers are the defaults for its messages."""

    _outer_config: RocketMQBrokerConfig

    def __init__(
        self,
        config: RocketMQPublisherConfig,
        specification: PublisherSpecification[Any, Any],
    ) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.tags = config.tags
        self.headers = config.headers

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: Any,
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
        """Send a message; RocketMQBroker.publish explains the arguments."""
        command = RocketMQPublishCommand(
            message,
            _publish_type=PublishType.PUBLISH,
            topic=topic or self.topic,
            tags=tags or self.tags,
            keys=keys,
            ordering_key=ordering_key,
            delay_ms=delay_ms,
            deliver_at_ms=deliver_at_ms,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            timeout_ms=timeout_ms,
        )
        result: SendResult = await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return result

    async def request(
        self,
        message: Any,
        topic: str = "",
        *,
        tags: str = "",
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout_ms: Duration | None = None,
    ) -> RocketMQMessage:
        """Send a message and return the reply to it; RocketMQBroker.request explains the arguments."""
        command = RocketMQPublishCommand(
            message,
            _publish_type=PublishType.REQUEST,
            topic=topic or self.topic,
            tags=tags or self.tags,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            timeout_ms=timeout_ms,
        )
        reply: RocketMQMessage = await self._basic_request(
            command, producer=self._outer_config.producer
        )
        return reply

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Send the result of a decorated handler. Send nothing for None, because brokers refuse a message without a body."""
        if cmd.body is None:
            return
        command = RocketMQPublishCommand.from_cmd(cmd)
        command.destination = command.destination or self.topic
        command.tags = command.tags or self.tags
        command.add_headers(self.headers, override=False)
        await self._basic_publish(
            command,
            producer=self._outer_config.producer,
            _extra_middlewares=_extra_middlewares,
        )
