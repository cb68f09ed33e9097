"""Hold the messages that handlers and programs send."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

from cometmq.model.durations import Duration, Moment
from cometmq.model.message import MessageExt


class RocketMQResponse(Response):
    """Lets a handler return more than the body of a message.

    `tags`, `keys`, `delay_ms` and `deliver_at_ms` are those of `cometmq.Message`; `headers` become properties.
    Messages with the same `ordering_key` go to the same queue.
    """

    def __init__(
        self,
        body: Any,
        *,
        tags: str = "",
        keys: str | Iterable[str] = (),
        ordering_key: Any = None,
        delay_ms: Duration | None = None,
        deliver_at_ms: Moment | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.tags = tags
        self.keys = keys
        self.ordering_key = ordering_key
        self.delay_ms = delay_ms
        self.deliver_at_ms = deliver_at_ms

    def as_publish_command(self) -> RocketMQPublishCommand:
        return RocketMQPublishCommand(
            self.body,
            _publish_type=PublishType.PUBLISH,
            headers=self.headers,
            correlation_id=self.correlation_id,
            tags=self.tags,
            keys=self.keys,
            ordering_key=self.ordering_key,
            delay_ms=self.delay_ms,
            deliver_at_ms=self.deliver_at_ms,
        )

    def get_publish_key(self) -> Any | None:
        return self.ordering_key


class RocketMQPublishCommand(BatchPublishCommand):
    """Holds messages to send: one for each of `batch_bodies`, all with the other fields of the command.

    If the message is a reply, `asked` is the request to which it replies.
    """

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        _publish_type: PublishType,
        topic: str = "",
        tags: str = "",
        keys: str | Iterable[str] = (),
        ordering_key: Any = None,
        delay_ms: Duration | None = None,
        deliver_at_ms: Moment | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout_ms: Duration | None = None,
    ) -> None:
        super().__init__(
            body,
            *bodies,
            _publish_type=_publish_type,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
        )
        self.tags = tags
        self.keys = keys
        self.ordering_key = ordering_key
        self.delay_ms = delay_ms
        self.deliver_at_ms = deliver_at_ms
        self.timeout_ms = timeout_ms
        self.asked: MessageExt | None = None

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> Self:
        """Return `cmd`, or a RocketMQ command with the same fields if it is of another class."""
        if isinstance(cmd, cls):
            return cmd
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *bodies,
            _publish_type=cmd.publish_type,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
        )
