"""Name the types of parameters by which a handler asks for its message or its broker, as FastStream's brokers do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from faststream import Context
from faststream._internal.configs import UnderlyingDriverAnnotation

from cometmq.client.popping.message import ReceivedMessage
from cometmq.faststream.broker import RocketMQBroker as Broker
from cometmq.faststream.message import RocketMQMessage as Message
from cometmq.model.message import Message as SentMessage
from cometmq.model.message import MessageExt

# FastStream passes these to a parameter of the type: the message that the handler works on, CometMQ's message in it,
# and the broker.
RocketMQMessage = Annotated[Message, Context("message")]
RawMessage = Annotated[ReceivedMessage, Context("message.raw_message")]
RocketMQBroker = Annotated[Broker, Context("broker")]


def named_annotations() -> Mapping[Any, UnderlyingDriverAnnotation]:
    """Return the annotation that a handler needs instead of each class. FastStream names it in its error."""
    needed = {
        Message: ("RocketMQMessage", RocketMQMessage),
        Broker: ("RocketMQBroker", RocketMQBroker),
        **dict.fromkeys((ReceivedMessage, MessageExt, SentMessage), ("RawMessage", RawMessage)),
    }
    return {
        wrong: UnderlyingDriverAnnotation(type_hint=hint, module=__name__, name=name)
        for wrong, (name, hint) in needed.items()
    }
