"""Send FastStream's commands: encode bodies, and write content type, correlation and headers as properties."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

from cometmq.client.producing.producer import Producer
from cometmq.client.producing.requests import create_reply_message
from cometmq.errors import CometMQError
from cometmq.faststream.commands import RocketMQPublishCommand
from cometmq.faststream.message import CONTENT_TYPE, CORRELATION, Parser
from cometmq.logs.loggers import get_logger
from cometmq.model.message import Message, MessageExt
from cometmq.model.results import SendResult

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import AsyncCallable, CustomCallable, PublisherMiddleware
    from faststream.response.response import PublishCommand

log = get_logger(__name__)

# Stands for JSON's null, where FastStream would send an empty body.
NULL: Final = object()


class RocketMQProducer(ProducerProto[RocketMQPublishCommand]):
    """Sends commands by the broker's producer, which the broker passes to `connect`."""

    _parser: AsyncCallable
    _decoder: AsyncCallable
    codec: CodecProto

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        default = Parser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec = DefaultCodec()
        self._serializer: SerializerProto | None = None
        self._producer: Producer | None = None

    def connect(
        self, producer: Producer, serializer: SerializerProto | None, codec: CodecProto | None
    ) -> None:
        self._producer = producer
        self._serializer = serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        self._producer = None

    @property
    def _connected(self) -> Producer:
        if self._producer is None:
            raise IncorrectState("The broker is not connected; start it before you publish.")
        return self._producer

    async def publish(self, cmd: RocketMQPublishCommand) -> SendResult:
        message = await self.encoded(cmd, cmd.body)
        if cmd.asked is not None:
            reply = create_reply_message(cmd.asked, message.body)
            for name, text in message.properties.items():
                reply.properties.setdefault(name, text)
            message = reply
        return await self._connected.send(message, timeout_ms=cmd.timeout_ms, key=cmd.ordering_key)

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> SendResult:
        messages = [await self.encoded(cmd, body) for body in cmd.batch_bodies]
        return await self._connected.send_batch(messages, timeout_ms=cmd.timeout_ms)

    async def request(self, cmd: RocketMQPublishCommand) -> MessageExt:
        message = await self.encoded(cmd, cmd.body)
        return await self._connected.request(
            message, timeout_ms=cmd.timeout_ms, key=cmd.ordering_key
        )

    async def encoded(self, cmd: RocketMQPublishCommand, body: Any) -> Message:
        """Return the message for one body of a command. Raises the errors of the codec."""
        content_type: str | None
        if body is NULL:
            encoded, content_type = b"null", "application/json"
        else:
            encoded, content_type = await self.codec.encode(body, self._serializer)
        properties = {name: str(text) for name, text in cmd.headers.items()}
        if content_type:
            properties[CONTENT_TYPE] = content_type
        if cmd.correlation_id:
            properties[CORRELATION] = cmd.correlation_id
        return Message(
            cmd.destination,
            encoded,
            tags=cmd.tags or None,
            keys=cmd.keys,
            properties=properties,
            delay_ms=cmd.delay_ms,
            deliver_at_ms=cmd.deliver_at_ms,
        )


class ReplyPublisher(FakePublisher):
    """Replies to a request with the result of its handler.

    The reply for None is JSON's null, because brokers refuse a message without a body. A reply that cannot be sent
    is logged: the handler has done its work, and must not do it again because the requester went away.
    """

    def __init__(self, producer: ProducerProto[Any], asked: MessageExt) -> None:
        super().__init__(producer=producer)
        self._asked = asked

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> Any:
        try:
            return await super()._publish(cmd, _extra_middlewares=_extra_middlewares)
        except CometMQError as error:
            log.warning("a request is not answered", msg_id=self._asked.msg_id, reason=str(error))
            return None

    def patch_command(self, cmd: PublishCommand) -> RocketMQPublishCommand:
        reply = RocketMQPublishCommand.from_cmd(super().patch_command(cmd))
        reply.asked = self._asked
        if reply.body is None:
            reply.body = NULL
        return reply
