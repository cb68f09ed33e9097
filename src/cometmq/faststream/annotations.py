"""Name what handlers may ask for by the type of a parameter, as the brokers of FastStream do."""

from __future__ import annotations

from typing import Annotated

from faststream import Context

from cometmq.faststream.message import RocketMQMessage as Message

# A parameter of this type is the message that the handler works on.
RocketMQMessage = Annotated[Message, Context("message")]
