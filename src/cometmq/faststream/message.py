"""Turn received messages into messages of FastStream, which handlers acknowledge."""

from __future__ import annotations

import sys
from typing import Any, Final

from faststream.exceptions import HandlerException
from faststream.message import StreamMessage, decode_message

from cometmq.client.popping.message import ReceivedMessage
from cometmq.model import properties as p
from cometmq.model.durations import Duration
from cometmq.model.message import MessageExt

# Properties for values that messages of other systems have in fields.
CONTENT_TYPE: Final = "content-type"
# Not the property CORRELATION_ID of a request: by that one, a client finds the reply to its request.
CORRELATION: Final = "correlation-id"
_NO_HEADERS: Final = (
    p.RESERVED
    | p.OF_ONE_SENDING
    | {p.TAGS, p.KEYS, p.FIRST_POP_TIME, p.ORIGIN_GROUP, p.DLQ_ORIGIN_TOPIC}
    | {CONTENT_TYPE, CORRELATION}
)


class RocketMQMessage(StreamMessage[MessageExt]):
    """Holds a received message in FastStream's form; `raw_message` is CometMQ's message.

    `headers` are the properties that the sender set. The subscriber acknowledges the message by its `ack_policy`,
    unless the handler called `ack`, `nack` or `reject` before. Further calls do nothing.
    """

    def __init__(self, *arguments: Any, retry_delay_ms: Duration = 0, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._retry_delay_ms = retry_delay_ms

    async def ack(self) -> None:
        """Acknowledge the message. Do nothing if it was acknowledged, given back or rejected before."""
        raw = self.raw_message
        if self.committed is None and isinstance(raw, ReceivedMessage):
            await raw.ack()
        await super().ack()

    async def nack(self, delay_ms: Duration | None = None) -> None:
        """Give the message back: the group receives it again after `delay_ms`, by default `retry_delay_ms`.

        After the last of the group's deliveries (`retryMaxTimes`) it becomes a dead letter instead.
        """
        raw = self.raw_message
        if self.committed is None and isinstance(raw, ReceivedMessage):
            await raw.nack(self._retry_delay_ms if delay_ms is None else delay_ms)
        await super().nack()

    async def reject(self, reason: str | BaseException | None = None) -> None:
        """Make the message a dead letter of its group at once.

        `reason`, a text or an exception, becomes its failure (`MessageExt.failure`). By default it is the exception
        that is being handled, or "rejected" outside of an `except` block.
        """
        raw = self.raw_message
        if self.committed is None and isinstance(raw, ReceivedMessage):
            await raw.dead_letter(_handled() or "rejected" if reason is None else reason)
        await super().reject()


def _handled() -> BaseException | None:
    """Return the exception because of which a message is rejected, if there is one.

    FastStream rejects a message while it handles the exception of the message's handler. Its own RejectMessage gives
    no reason, but the exception that made the handler raise it does.
    """
    error = sys.exc_info()[1]
    if isinstance(error, HandlerException):
        # `raise RejectMessage from None` hides it.
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error


class Parser:
    """Makes RocketMQMessages. A message that is given back comes again after `retry_delay_ms`."""

    def __init__(self, retry_delay_ms: Duration = 0) -> None:
        self._retry_delay_ms = retry_delay_ms

    async def parse_message(self, raw: MessageExt) -> RocketMQMessage:
        properties = raw.properties
        return RocketMQMessage(
            raw,
            raw.body,
            headers={name: text for name, text in properties.items() if name not in _NO_HEADERS},
            reply_to=properties.get(p.REPLY_TO_CLIENT, ""),
            content_type=properties.get(CONTENT_TYPE),
            correlation_id=properties.get(CORRELATION) or properties.get(p.CORRELATION_ID),
            message_id=raw.msg_id,
            retry_delay_ms=self._retry_delay_ms,
        )

    async def decode_message(self, message: StreamMessage[Any]) -> Any:
        return decode_message(message)
