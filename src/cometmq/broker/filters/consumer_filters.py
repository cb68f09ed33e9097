"""Keep the expressions by which groups select messages, by topic and group: consumerFilter.json.

Java: ConsumerFilterManager, ConsumerFilterData, FilterDataMapByTopic. Heartbeats bring the
expressions; the newest subscription version counts. When a group leaves, its data is marked dead
and kept for a while, so that the group can use the bit maps written meanwhile when it comes back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from cometmq.errors import FilterExpressionError
from cometmq.filtering.bloom import BloomFilter
from cometmq.filtering.metering import MeteredProperties, decoding_cost
from cometmq.filtering.sql92 import SqlCondition, compile_sql, compile_steps
from cometmq.filtering.sql92_terms import Condition
from cometmq.filtering.tags import is_tag_type
from cometmq.logs.loggers import get_logger
from cometmq.model.java.ranges import Int32, Int64
from cometmq.model.measures.work import OutOfWorkError, WorkBudget
from cometmq.model.subscription import EXPRESSION_CLASS, EXPRESSION_SQL92, SubscriptionData
from cometmq.protocol.messages.properties import decode_properties
from cometmq.runtime.clock import Clock
from cometmq.store.queues.consume_queue_ext import ExtUnit

log = get_logger(__name__)

# As in Java, a group that was alive at the stop counts at the start as dead for so long.
_DEAD_BEFORE_RESTART_MS = 30_000
# Characters of all expressions, each of which counts for some more. The whole table is written when
# an expression is replaced, and expressions that a group has left stay for a day.
MAX_FILTER_CHARACTERS: Final = 8 * 1024 * 1024
_COUNTED_FOR_EACH: Final = 1_000
# Work for the bit map of one message while the store recovers.
_BIT_MAP_WORK = 1_000_000


class BloomFilterData(msgspec.Struct, rename="camel"):
    """The positions of the bits for `group#topic` in a message's bit map of `bit_num` bits."""

    bit_num: Int32
    bit_pos: list[Int32] = []


class ConsumerFilterData(msgspec.Struct, rename="camel", dict=True):
    """The expression of one group on one topic. Times in ms; `client_version` is the version of the
    subscription.

    `dead` says whether the group has left. The file has it for its readers; a start ignores it.
    """

    consumer_group: str
    topic: str
    expression: str
    expression_type: str = EXPRESSION_SQL92
    born_time: Int64 = 0
    dead_time: Int64 = 0
    client_version: Int64 = 0
    bloom_filter_data: BloomFilterData | None = None
    dead: bool = False

    def live(self) -> None:
        self.dead_time, self.dead = 0, False

    def die(self, now_ms: int) -> None:
        """Mark the data as dead from `now_ms` on, or from `born_time` if that is later.

        Java takes data as dead only if its dead time is not before its born time.
        """
        self.dead_time, self.dead = max(now_ms, self.born_time), True

    @functools.cached_property
    def condition(self) -> Condition:
        """The compiled expression, which cannot fail: it compiled when the data was made.

        It is kept here because the compiler remembers only so many expressions. Beyond that number
        each expression would be compiled again for each message.
        """
        return compile_sql(self.expression)

    def keep_condition(self) -> None:
        """Keep the condition now: once it is forgotten, a message would wait until it is compiled."""
        self.condition  # noqa: B018 - it is a cached property


class FilterDataByTopic(msgspec.Struct, rename="camel"):
    topic: str
    group_filter_data: dict[str, ConsumerFilterData] = {}


class ConsumerFilterTable(msgspec.Struct, rename="camel"):
    """The contents of the file consumerFilter.json."""

    filter_data_by_topic: dict[str, FilterDataByTopic] = {}


def compile_expression(expression: str | None, expression_type: str | None) -> SqlCondition:
    """Compile an expression. Raises FilterExpressionError, also for a type other than SQL92."""
    if expression_type != EXPRESSION_SQL92:
        raise FilterExpressionError(
            f"expressions of type {expression_type} are unknown; use TAG or SQL92", 1, 1
        )
    return compile_sql(expression or "")


class ConsumerFilterManager:
    """Keeps the filter data of all groups. For the loop's thread only.

    `changed` signals that the file must be written. The functions in `on_replaced` are called with
    the topic when another expression of a group replaces the old one. Dead data is dropped
    `clean_time_span_ms` after its group left.
    """

    def __init__(
        self,
        clock: Clock,
        bloom: BloomFilter,
        clean_time_span_ms: int,
        table: ConsumerFilterTable | None = None,
    ) -> None:
        self.changed = False
        # Called with the name of the limit that an expression exceeds.
        self.on_limit: Callable[[str], None] = lambda _limit: None
        self.on_replaced: list[Callable[[str], None]] = []
        self._clock = clock
        self._bloom = bloom
        self._clean_time_span_ms = clean_time_span_ms
        self._topics: dict[str, FilterDataByTopic] = {}
        self._topics_of: dict[str, set[str]] = {}
        # Why expressions of live groups were refused, by group and topic.
        self._faults: dict[str, dict[str, str]] = {}
        self._characters = 0
        # Whether there may be dead data.
        self._has_dead = True
        # The budget for bit maps; with None each message gets _BIT_MAP_WORK.
        self.work: WorkBudget | None = None
        if table is not None:
            self._take_over(table)

    def get(self, topic: str, group: str) -> ConsumerFilterData | None:
        by_topic = self._topics.get(topic)
        return by_topic.group_filter_data.get(group) if by_topic is not None else None

    def of_topic(self, topic: str) -> Iterable[ConsumerFilterData]:
        """Return the data of every group on `topic`, dead data included."""
        by_topic = self._topics.get(topic)
        return by_topic.group_filter_data.values() if by_topic is not None else ()

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Take in a heartbeat; `subscriptions` are all that the group has."""
        for _ in self.register_steps(group, list(subscriptions)):
            pass

    def register_steps(self, group: str, subscriptions: list[SubscriptionData]) -> Iterator[None]:
        """Take in a heartbeat in a step for each expression, each of which has a line in the log."""
        self._faults.pop(group, None)
        if group in self._topics_of:  # before others come, which may need the room
            topics = {subscription.topic for subscription in subscriptions}
            self._die(group, self._topics_of[group] - topics)
        for subscription in subscriptions:
            if (
                not is_tag_type(subscription.expression_type)
                and subscription.expression_type != EXPRESSION_CLASS  # a name, nothing to compile
                and subscription.sub_string
            ):
                # The expression compiled for the heartbeat may have been dropped since the last step.
                if subscription.expression_type == EXPRESSION_SQL92 and self._is_new(
                    group, subscription
                ):
                    yield from compile_steps(subscription.sub_string)
                self._register(group, subscription)
                yield

    def copy(self, master: ConsumerFilterTable) -> Iterator[None]:
        """Take over what a slave's master knows, in steps of one expression each.

        Data that a consumer has sent here stays, unless the master's is newer. The bits of messages
        that are here already were set without an expression that is new here. It counts as dead
        until a heartbeat of its group comes.
        """
        now_ms = self._clock.now_ms()
        for topic, by_topic in master.filter_data_by_topic.items():
            for group, data in by_topic.group_filter_data.items():
                known = self.get(topic, group)
                if known is None or (known.dead and known.client_version < data.client_version):
                    data.topic, data.consumer_group = topic, group
                    data.bloom_filter_data = self.bloom_data(group, topic)
                    data.born_time = now_ms
                    data.die(now_ms)
                    if self._put_if_sound(data):
                        self.changed = True
                yield

    def unregister(self, group: str) -> None:
        """Mark the data of a group as dead, because its last member left."""
        self._faults.pop(group, None)
        if group in self._topics_of:
            self._die(group, self._topics_of[group])

    def table(self) -> ConsumerFilterTable:
        """Drop data that has been dead for too long, and return the contents of the file."""
        limit = self._clock.now_ms() - self._clean_time_span_ms
        for by_topic in list(self._topics.values()):
            for data in list(by_topic.group_filter_data.values()):
                if data.dead and data.dead_time <= limit:
                    self._remove(data)
        return ConsumerFilterTable(self._topics)

    def bit_map(self, topic: str, properties: bytes) -> bytes | None:
        """Return the bit map of the groups that want a message, dead groups included.

        Returns None if no group has an expression, and if the work budget is spent: each pull then
        evaluates its expression itself. For any thread while no heartbeat comes in: recovery calls
        this in a thread of its own. Java: CommitLogDispatcherCalcBitMap.
        """
        by_topic = self._topics.get(topic)
        if by_topic is None:
            return None
        budget = self.work or WorkBudget(_BIT_MAP_WORK)
        text = properties.decode("utf-8", "replace")
        try:
            budget.charge(decoding_cost(text))
            decoded = MeteredProperties(decode_properties(text), budget)
            return self._bloom.bit_map(
                [
                    data.bloom_filter_data.bit_pos
                    for data in by_topic.group_filter_data.values()
                    if data.bloom_filter_data is not None and data.condition(decoded) is True
                ]
            )
        except OutOfWorkError:
            return None

    def ext_matcher(self, data: ConsumerFilterData) -> Callable[[ExtUnit], bool] | None:
        """Return a test whether a message may match, by its bit map; None if there are no bits to
        test (Java: isMatchedByConsumeQueue).

        Messages stored before the expression was known always pass: their bits are those of another
        expression, or there are none.
        """
        bloom, born_time = self._bloom, data.born_time
        if data.bloom_filter_data is None:
            return None
        positions = data.bloom_filter_data.bit_pos

        def may_match(unit: ExtUnit) -> bool:
            return (
                unit.store_timestamp <= born_time
                or len(unit.bit_map) * 8 != bloom.bit_count
                or bloom.hits(unit.bit_map, positions)
            )

        return may_match

    def bloom_data(self, group: str, topic: str) -> BloomFilterData:
        positions = self._bloom.positions(f"{group}#{topic}")
        return BloomFilterData(self._bloom.bit_count, list(positions))

    def snapshot(self) -> ConsumerFilterTable:
        """Return `table` as it is now, whatever changes later."""
        return ConsumerFilterTable(
            {
                topic: FilterDataByTopic(
                    topic,
                    {
                        group: msgspec.structs.replace(data)
                        for group, data in by_topic.group_filter_data.items()
                    },
                )
                for topic, by_topic in self.table().filter_data_by_topic.items()
            }
        )

    def _is_new(self, group: str, subscription: SubscriptionData) -> bool:
        known = self.get(subscription.topic, group)
        return known is None or known.expression != subscription.sub_string

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        known = self.get(subscription.topic, group)
        version = subscription.sub_version
        if known is not None:
            same = (known.expression, known.expression_type) == (
                subscription.sub_string,
                subscription.expression_type,
            )
            if version < known.client_version or (version == known.client_version and not same):
                log.debug("older filter ignored", group=group, topic=subscription.topic)
                return
            if same:
                if known.dead or version != known.client_version:
                    known.client_version = version
                    known.live()
                    self.changed = True
                return
        try:
            compile_expression(subscription.sub_string, subscription.expression_type)
            self._make_room(subscription.sub_string)
        except FilterExpressionError as error:
            if error.limit:
                self.on_limit(error.limit)
            # Without filter data the group's pulls are refused. The old expression must not be used
            # in place of the new one.
            if known is not None and self.get(subscription.topic, group) is known:
                self._remove(known)
            log.warning("filter refused", group=group, topic=subscription.topic, reason=str(error))
            self._faults.setdefault(group, {})[subscription.topic] = str(error)
            return
        self._put(
            ConsumerFilterData(
                group,
                subscription.topic,
                subscription.sub_string,
                subscription.expression_type,
                born_time=self._clock.now_ms(),
                client_version=version,
                bloom_filter_data=self.bloom_data(group, subscription.topic),
            )
        )
        self.changed = True
        log.info("filter registered", group=group, topic=subscription.topic)
        if known is not None:
            for callback in self.on_replaced:
                callback(subscription.topic)

    def _die(self, group: str, topics: Iterable[str]) -> None:
        died = []
        for topic in topics:
            data = self.get(topic, group)
            if data is not None and not data.dead:
                data.die(self._clock.now_ms())
                died.append(topic)
        if died:  # one line for all: there may be hundreds
            self.changed = self._has_dead = True
            log.info("filters left unused", group=group, topics=len(died), first=min(died))

    def fault(self, topic: str, group: str) -> str:
        """Return why the expression of a group was refused, "" if it was not."""
        return self._faults.get(group, {}).get(topic, "")

    def _room_fault(self, expression: str) -> str:
        """Say why there is no room for another expression, "" if there is."""
        would_be = self._characters + len(expression) + _COUNTED_FOR_EACH
        if would_be <= MAX_FILTER_CHARACTERS:
            return ""
        return (
            f"the expressions of all groups would count for {would_be} characters, each for "
            f"{_COUNTED_FOR_EACH} more than it has, the limit MAX_FILTER_CHARACTERS is "
            f"{MAX_FILTER_CHARACTERS}; use fewer or shorter ones"
        )

    def _make_room(self, expression: str) -> None:
        """Drop what was left longest ago if there is no room for another expression.

        Raises FilterExpressionError if there is none even so.
        """
        if not self._room_fault(expression):
            return
        if self._has_dead:
            self._drop_dead(MAX_FILTER_CHARACTERS * 7 // 8)
        if fault := self._room_fault(expression):
            raise FilterExpressionError(fault, 1, 1, limit="MAX_FILTER_CHARACTERS")

    def _drop_dead(self, enough: int) -> None:
        """Drop dead data, the oldest first, until `enough` characters are left: more than one expression
        needs, so that not each of them goes through all.
        """
        dead = [
            data
            for by_topic in self._topics.values()
            for data in by_topic.group_filter_data.values()
            if data.dead
        ]
        dead.sort(key=lambda data: data.dead_time)
        for data in dead:
            if self._characters <= enough:
                return
            self._remove(data)
        self._has_dead = False

    def _put(self, data: ConsumerFilterData) -> None:
        by_topic = self._topics.setdefault(data.topic, FilterDataByTopic(data.topic))
        known = by_topic.group_filter_data.get(data.consumer_group)
        if known is not None:
            self._characters -= len(known.expression) + _COUNTED_FOR_EACH
        self._characters += len(data.expression) + _COUNTED_FOR_EACH
        by_topic.group_filter_data[data.consumer_group] = data
        data.keep_condition()
        self._topics_of.setdefault(data.consumer_group, set()).add(data.topic)

    def _remove(self, data: ConsumerFilterData) -> None:
        groups = self._topics[data.topic].group_filter_data
        del groups[data.consumer_group]
        self._characters -= len(data.expression) + _COUNTED_FOR_EACH
        if not groups:
            del self._topics[data.topic]
        topics = self._topics_of[data.consumer_group]
        topics.discard(data.topic)
        if not topics:
            del self._topics_of[data.consumer_group]
        self.changed = True

    def _take_over(self, table: ConsumerFilterTable) -> None:
        """Take over the contents of a file; each group counts as dead until its first heartbeat."""
        now_ms = self._clock.now_ms()
        for topic, by_topic in table.filter_data_by_topic.items():
            for group, data in by_topic.group_filter_data.items():
                data.topic, data.consumer_group = topic, group
                if data.bloom_filter_data != self.bloom_data(group, topic):
                    # The store's bit maps were made with other positions and must not be used.
                    data.bloom_filter_data = self.bloom_data(group, topic)
                    data.born_time = now_ms
                data.die(data.dead_time or now_ms - _DEAD_BEFORE_RESTART_MS)
                self._put_if_sound(data)

    def _put_if_sound(self, data: ConsumerFilterData) -> bool:
        try:
            compile_expression(data.expression, data.expression_type)
        except FilterExpressionError as error:
            log.warning(
                "filter dropped", group=data.consumer_group, topic=data.topic, reason=str(error)
            )
            return False
        self._put(data)
        return True
