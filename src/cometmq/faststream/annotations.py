"""Name the type of a parameter by which a handler asks for its message, as FastStream's brokers do."""

from __future__ import annotations

from typing import Annotated

from faststream import Context

from cometmq.faststream.message import RocketMQMessage as Message

# FastStream passes the message that the handler works on to a parameter of this type.
RocketMQMessage = Annotated[Message, Context("message")]
