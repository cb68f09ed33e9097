"""Filter a pull's messages (Java: ExpressionMessageFilter, ExpressionForRetryMessageFilter)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.broker.filters.consumer_filters import ConsumerFilterManager
from cometmq.filtering.metering import MeteredProperties, decoding_cost
from cometmq.filtering.sql92_terms import Condition
from cometmq.filtering.tags import TagMatcher
from cometmq.model.measures.work import OutOfWorkError, WorkBudget
from cometmq.model.names import RETRY_PREFIX, is_retry_topic
from cometmq.model.properties import RETRY_TOPIC
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import properties_text
from cometmq.protocol.messages.record_layout import PHYSICAL_OFFSET_AT
from cometmq.runtime.clock import Clock
from cometmq.store.queues.consume_queue_ext import ExtUnit

PropertiesMatcher = Callable[[Mapping[str, str]], bool]
RecordMatcher = Callable[[memoryview], bool]
# They return None when the budget is spent: the caller must test the same message again later,
# before any other.
MeteredMatcher = Callable[[memoryview], bool | None]
MeteredExtMatcher = Callable[[ExtUnit], bool | None]

# Cost of reading a unit of the queue's extension and testing a group's bits in its bit map.
_EXT_UNIT_COST: Final = 5_000


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """The tests that a message must pass; a test that is None is passed by all.

    `matches` tests the tags code, `matches_properties` the properties. Before those, `matches_ext`
    rules out messages that cannot match, by the bit map in the queue's extension. `matches_whole`
    gives the test of the whole record for a budget; every message wakes a waiting pull that has
    this test. `weight` is an estimate of the bytes of memory that it takes if only one pull has it.
    """

    matches: TagMatcher | None = None
    matches_properties: PropertiesMatcher | None = None
    matches_ext: Callable[[ExtUnit], bool] | None = None
    matches_whole: Callable[[WorkBudget], MeteredMatcher] | None = None
    weight: int = 0

    def record_matcher(self, budget: WorkBudget) -> MeteredMatcher | None:
        """Return the test for records in the log, for one pull, charged to `budget`."""
        if self.matches_properties is not None:
            return _PropertiesTest(self.matches_properties, budget)
        if self.matches_whole is not None:
            return self.matches_whole(budget)
        return None

    def ext_matcher(self, budget: WorkBudget) -> MeteredExtMatcher | None:
        """Return `matches_ext` as a test that is charged to `budget`."""
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
    """Evaluates an expression on records.

    If the budget is spent in the middle of a record, the next call for that record uses the same
    MeteredProperties, which remember the searches done. So a record that costs more than a whole
    budget is decided, too.
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
            if properties is not None:
                properties.goes_on = True
            self._begun, self._begun_at = properties, _offset_in(record)
            return None
        self._begun = None
        return matches


def _offset_in(record: memoryview) -> bytes:
    return bytes(record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8])


def timed(matches: RecordMatcher, clock: Clock, budget: WorkBudget) -> MeteredMatcher:
    """Charge `matches` by the time that it takes: only a clock can measure an operator's code."""

    def passes(record: memoryview) -> bool | None:
        try:
            budget.charge(0)
        except OutOfWorkError:
            return None
        begun_at = clock.monotonic()
        try:
            return matches(record)
        finally:
            budget.left -= int((clock.monotonic() - begun_at) * 1_000_000_000)

    return passes


def sql_filter(
    condition: Condition,
    matches_ext: Callable[[ExtUnit], bool] | None = None,
    weight: int = 0,
) -> MessageFilter:
    """Return a filter that selects messages for which `condition` is true, and not unknown."""
    return MessageFilter(
        None, lambda properties: condition(properties) is True, matches_ext, weight=weight
    )


def retry_filter(retry_topic: str, filters: ConsumerFilterManager) -> MessageFilter:
    """Return the filter of a retry topic: its group's expression on the topic that the message came
    from. A message from a topic for which the group has no expression passes.
    """
    assert is_retry_topic(retry_topic)
    group = retry_topic.removeprefix(RETRY_PREFIX)

    def matches(properties: Mapping[str, str]) -> bool:
        data = filters.get(properties.get(RETRY_TOPIC, ""), group)
        return data is None or data.condition(properties) is True

    return MessageFilter(matches_properties=matches)
