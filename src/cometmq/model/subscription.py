"""Define what a consumer group subscribes to (Java: SubscriptionData, ConsumerData)."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from cometmq.model.java.enums import (
    CONSUME_FROM_WHERE,
    CONSUME_TYPES,
    MESSAGE_MODELS,
    EnumName,
    enum_name,
)
from cometmq.model.java.ranges import Int32, Int64

SUB_ALL: Final = "*"
# Bounds the tags of a subscription, or of a pull's expression: a broker goes through them each
# time.
MAX_TAGS: Final = 4_096
EXPRESSION_TAG: Final = "TAG"
EXPRESSION_SQL92: Final = "SQL92"
# Java has no such type: its class filters say TAG and set `class_filter_mode`. A Java broker would
# take that for a subscription to everything, but it refuses a type that it does not know.
EXPRESSION_CLASS: Final = "FILTER_CLASS"


class MessageSelector(NamedTuple):
    """Selects messages of a topic by tags (`TagA || TagB`, `*` for all), by SQL92, or by the name
    of a predicate at the broker."""

    expression: str = SUB_ALL
    expression_type: str = EXPRESSION_TAG


# The garbage collector does not look at these: a broker has tens of thousands, and they hold no cycle.
class SubscriptionData(msgspec.Struct, rename="camel", gc=False):
    """Describes one group's subscription to one topic.

    `code_set` has the Java hash codes of `tags_set`, by which the broker selects; `sub_version`
    (ms) orders the versions of one subscription.
    """

    topic: str
    sub_string: str = SUB_ALL
    tags_set: list[str] = []
    code_set: list[Int32] = []
    sub_version: Int64 = 0
    expression_type: str = EXPRESSION_TAG
    class_filter_mode: bool = False


class ConsumerData(msgspec.Struct, rename="camel"):
    """Describes a client's membership in one consumer group, as its heartbeat reports it."""

    group_name: str
    consume_type: EnumName = "CONSUME_PASSIVELY"
    message_model: EnumName = "CLUSTERING"
    consume_from_where: EnumName = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False

    def __post_init__(self) -> None:
        self.consume_type = enum_name("consumeType", self.consume_type, CONSUME_TYPES)
        self.message_model = enum_name("messageModel", self.message_model, MESSAGE_MODELS)
        self.consume_from_where = enum_name(
            "consumeFromWhere", self.consume_from_where, CONSUME_FROM_WHERE
        )


class ProducerData(msgspec.Struct, rename="camel"):
    group_name: str
