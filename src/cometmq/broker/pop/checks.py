"""Check requests about popped messages in Java's order, and compile what they select."""

from __future__ import annotations

from typing import Final

from cometmq.broker.filters.consumer_filters import compile_expression
from cometmq.broker.filters.message_filter import EVERYTHING, MessageFilter, sql_filter
from cometmq.broker.filters.predicates import by_class
from cometmq.broker.filters.property_filters import check_property_filter
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.errors import IllegalArgumentError
from cometmq.filtering.sql92 import QUICK_LENGTH, TERM_BYTES, outcomes
from cometmq.filtering.tags import build_subscription, is_tag_type, tag_matcher
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.subscription import EXPRESSION_SQL92, EXPRESSION_TAG
from cometmq.model.sysflag import PERM_READ
from cometmq.model.topic import TopicConfig
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.pop.headers import PopMessageRequestHeader

# Messages of one pop (Java: PopMessageProcessor).
MAX_POPPED: Final = 32
# A check point of Java's is a timer message, so no message is hidden for longer than timerMaxDelaySec there.
MAX_INVISIBLE_TIME_MS: Final = 3 * 24 * 3600 * 1000


class PopChecks:
    """Finds topic, group and filter of a request, or refuses it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._config = parts.config

    def readable(self, doing: str) -> None:
        """Raise Refused unless the broker may be read."""
        if not self._config.broker_permission & PERM_READ:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] {doing} message is forbidden: brokerPermission is "
                f"{self._config.broker_permission}",
            )

    def count(self, max_msg_nums: int) -> None:
        if not 0 < max_msg_nums <= MAX_POPPED:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._config.broker_ip1}] pop message's num is {max_msg_nums}; ask for 1 to "
                f"{MAX_POPPED} (MAX_POPPED)",
                limit="MAX_POPPED",
            )

    def invisible_time(self, invisible_time: int) -> None:
        if not 0 <= invisible_time <= MAX_INVISIBLE_TIME_MS:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime is {invisible_time}; a message is hidden for 0 to {MAX_INVISIBLE_TIME_MS} ms "
                "(MAX_INVISIBLE_TIME_MS)",
                limit="MAX_INVISIBLE_TIME_MS",
            )

    def topic(self, name: str, doing: str) -> TopicConfig:
        topic = self._parts.topics.get(name)
        if topic is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!"
            )
        if not topic.readable:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the topic[{name}] {doing} message is forbidden: perm is {topic.perm}",
            )
        return topic

    def queue(self, queue_id: int, topic: TopicConfig, group: str) -> None:
        if queue_id >= topic.read_queue_nums:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{group}]",
            )

    def group(self, name: str) -> SubscriptionGroupConfig:
        group = self._parts.groups.find(name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, self._parts.groups.unknown(name)
            )
        if not group.consume_enable:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {group.group_name}: consumeEnable is false",
            )
        return group

    def compiles_long(self, header: PopMessageRequestHeader) -> bool:
        """Say whether an expression takes too long to be compiled at once."""
        return (
            header.exp is not None
            and len(header.exp) > QUICK_LENGTH
            and header.exp_type == EXPRESSION_SQL92
            and self._config.enable_property_filter
            and header.exp not in outcomes
        )

    def filter(self, header: PopMessageRequestHeader) -> MessageFilter:
        """Return what a pop selects."""
        if not header.exp:
            return EVERYTHING
        try:
            subscription = build_subscription(
                header.topic, header.exp, header.exp_type or EXPRESSION_TAG
            )
            if by_class(subscription):
                return self._parts.predicates.message_filter(subscription)
            if is_tag_type(subscription.expression_type):
                matches = tag_matcher(subscription)
                return EVERYTHING if matches is None else MessageFilter(matches)
            check_property_filter(self._config, subscription.expression_type)
            condition = compile_expression(subscription.sub_string, subscription.expression_type)
        except IllegalArgumentError as error:
            raise Refused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from error
        return sql_filter(condition, weight=condition.size * TERM_BYTES)
