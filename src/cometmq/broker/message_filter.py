"""Which messages a pull gets (Java: ExpressionMessageFilter, ExpressionForRetryMessageFilter)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.broker.consumer_filters import ConsumerFilterManager
from cometmq.filtering.sql92_terms import Condition
from cometmq.filtering.tags import TagMatcher
from cometmq.model.names import RETRY_PREFIX, is_retry_topic
from cometmq.model.properties import RETRY_TOPIC
from cometmq.protocol.record import properties_of
from cometmq.store.consume_queue_ext import ExtUnit

PropertiesMatcher = Callable[[Mapping[str, str]], bool]


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """Tests that a message must pass; None where all do.

    `matches` sees the tags code, `matches_properties` the properties; `matches_ext` sorts out before
    that what cannot match, by the bit map beside the consume queue. `matches_whole` sees all of a
    record; what waits with it is woken by every message.
    """

    matches: TagMatcher | None = None
    matches_properties: PropertiesMatcher | None = None
    matches_ext: Callable[[ExtUnit], bool] | None = None
    matches_whole: Callable[[memoryview], bool] | None = None

    def matches_record(self) -> Callable[[memoryview], bool] | None:
        """The test for a whole record in the log."""
        matches = self.matches_properties
        if matches is None:
            return self.matches_whole
        return lambda record: matches(properties_of(record))


EVERYTHING: Final = MessageFilter()


def sql_filter(
    condition: Condition, matches_ext: Callable[[ExtUnit], bool] | None = None
) -> MessageFilter:
    """What is not known to be true is not selected."""
    return MessageFilter(None, lambda properties: condition(properties) is True, matches_ext)


def retry_filter(retry_topic: str, filters: ConsumerFilterManager) -> MessageFilter:
    """For a retry topic: by the expression of its group on the topic that a message came from.

    A topic on which the group has no expression passes.
    """
    assert is_retry_topic(retry_topic)
    group = retry_topic.removeprefix(RETRY_PREFIX)

    def matches(properties: Mapping[str, str]) -> bool:
        data = filters.get(properties.get(RETRY_TOPIC, ""), group)
        return data is None or data.condition()(properties) is True

    return MessageFilter(matches_properties=matches)
