"""Which messages a pull gets (Java: ExpressionMessageFilter, ExpressionForRetryMessageFilter)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.broker.consumer_filters import ConsumerFilterManager
from cometmq.filtering.metering import MeteredProperties, decoding_cost
from cometmq.filtering.sql92_terms import Condition
from cometmq.filtering.tags import TagMatcher
from cometmq.model.names import RETRY_PREFIX, is_retry_topic
from cometmq.model.properties import RETRY_TOPIC
from cometmq.model.work import OutOfWorkError, WorkBudget
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import PHYSICAL_OFFSET_OFFSET, properties_text
from cometmq.store.consume_queue_ext import ExtUnit

PropertiesMatcher = Callable[[Mapping[str, str]], bool]
RecordMatcher = Callable[[memoryview], bool]
# None when the budget is spent: the same message is then to be tested first once more, later.
MeteredMatcher = Callable[[memoryview], bool | None]
MeteredExtMatcher = Callable[[ExtUnit], bool | None]

# Of reading a unit beside the consume queue and looking for a group's bits in it.
_EXT_UNIT_COST: Final = 5_000


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
    matches_whole: RecordMatcher | None = None

    def record_matcher(self, budget: WorkBudget) -> MeteredMatcher | None:
        """The test for a whole record in the log, for one pull, charged to `budget`."""
        if self.matches_properties is not None:
            return _PropertiesTest(self.matches_properties, budget)
        if self.matches_whole is not None:
            return _timed(self.matches_whole, budget)
        return None

    def ext_matcher(self, budget: WorkBudget) -> MeteredExtMatcher | None:
        """`matches_ext`, charged to `budget`."""
        matches = self.matches_ext
        if matches is None:
            return None

        def may_match(unit: ExtUnit) -> bool | None:
            try:
                budget.charge(_EXT_UNIT_COST)
            except OutOfWorkError:
                return None
            return matches(unit)

        return may_match


EVERYTHING: Final = MessageFilter()


class _PropertiesTest:
    """Evaluates an expression on records. What ran out of work in the middle of a record goes on
    where it was, so that a record that costs more than a whole budget is decided all the same.
    """

    __slots__ = ("_begun", "_begun_at", "_budget", "_matches")

    def __init__(self, matches: PropertiesMatcher, budget: WorkBudget) -> None:
        self._matches = matches
        self._budget = budget
        self._begun: MeteredProperties | None = None
        self._begun_at = b""

    def __call__(self, record: memoryview) -> bool | None:
        properties = self._begun
        try:
            if properties is None or _offset_in(record) != self._begun_at:
                properties = None
                text = properties_text(record)
                self._budget.charge(decoding_cost(text))
                properties = MeteredProperties(decode_properties(text), self._budget)
            matches = self._matches(properties)
        except OutOfWorkError:
            self._begun, self._begun_at = properties, _offset_in(record)
            return None
        self._begun = None
        return matches


def _offset_in(record: memoryview) -> bytes:
    return bytes(record[PHYSICAL_OFFSET_OFFSET : PHYSICAL_OFFSET_OFFSET + 8])


def _timed(matches: RecordMatcher, budget: WorkBudget) -> MeteredMatcher:
    """`matches` is the operator's code, whose work only a clock can count."""

    def passes(record: memoryview) -> bool | None:
        try:
            budget.charge(0)
        except OutOfWorkError:
            return None
        begun_at = time.perf_counter_ns()
        try:
            return matches(record)
        finally:
            budget.left -= time.perf_counter_ns() - begun_at

    return passes


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
        return data is None or data.condition(properties) is True

    return MessageFilter(matches_properties=matches)
