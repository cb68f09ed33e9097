"""Check on the driver what a read of live brokers was asked for."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from cometmq.client.limits import check_client_group
from cometmq.client.range_reader import PATIENCE_MS, TOOLS_GROUP, BlockingRangeReader
from cometmq.client.subscribing import message_selector
from cometmq.errors import IllegalArgumentError
from cometmq.model.names import check_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SUB_ALL
from cometmq.spark.connecting import CONNECTING, Connecting
from cometmq.spark.options import MAX_PARTITIONS, Options, gap_log, topic_names, topic_pattern

NAME: Final = "rocketmq"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"
# Numbers that stand for offsets of single queues, as in Spark's Kafka source.
_EARLIEST_NUMBER: Final = -2
_LATEST_NUMBER: Final = -1
_INT64_MAX: Final = 2**63 - 1

_BOTH: Final = (
    *CONNECTING,
    "group",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "minPartitions",
    "tags",
    "sqlFilter",
    "decompress",
    "failOnDataLoss",
    "gapLog",
    "timeoutMs",
)
_BATCH: Final = ("endingOffsets", "endingTimestamp")
_STREAM: Final = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "commitGroup")

# Earliest, latest, or for each queue an offset or one of these two words.
Position = str | dict[MessageQueue, int | str]


class LiveOptions:
    """The options of a read of live brokers. Raises IllegalArgumentError for values that do not
    fit.

    namesrv, namespace, accessKey, tls and so on: see Connecting.
    subscribe: topics, separated by commas; subscribePattern: a regular expression that whole topic
        names match; assign: queues, as {"topic": {"broker": [0, 1]}}. One of the three.
    startingOffsets, endingOffsets: earliest, latest, or {"topic": {"broker": {"0": 17}}} with -2
        for earliest and -1 for latest. Streams start at latest unless told otherwise and have no
        end.
    startingTimestamp, endingTimestamp: instead of offsets, times of storing in ms since the epoch;
        the ending time itself is excluded. A stream also leaves out older messages of queues that
        appear later.
    minPartitions: into how many tasks the reading is split at least, if there are enough messages.
    tags (`paid || open`), sqlFilter (SQL92 over the properties): what the broker is to select.
    maxMessagesPerTrigger, maxBytesPerTrigger: limits of a stream's batch. The first is exact. Bytes
        are estimated from samples all over the batch, because brokers do not tell sizes: a batch
        may be larger if the sizes of messages vary much.
    commitGroup: the consumer group for which a stream commits each finished batch.
    group: the group that brokers see reading (TOOLS_CONSUMER, which every broker has).
    failOnDataLoss: fail where messages are gone (default). With false they are left out, and gapLog
        must name a directory in which every gap is noted.
    timeoutMs: for how long a broker that does not answer is asked again. A stream goes on with the
        brokers that answer, and waits while there is none.
    """

    def __init__(self, given: Any, *, streaming: bool) -> None:
        self._options = options = Options(NAME, given, _BOTH + _BATCH + _STREAM)
        for name in _BATCH if streaming else _STREAM:
            if name in options:
                kind = "a batch, not a stream" if streaming else "a stream, not a batch"
                raise options.error(name, f"is for {kind}")
        self.connecting = Connecting(options)
        self.namesrv = self.connecting.namesrv
        self.group = self._group("group") or TOOLS_GROUP
        self.commit_group = self._group("commitGroup")
        self._read_topics()
        self.start = self._position("startingOffsets", LATEST if streaming else EARLIEST)
        self.start_time_ms = self._time("startingTimestamp", "startingOffsets")
        self.end = self._position("endingOffsets", LATEST)
        self.end_time_ms = self._time("endingTimestamp", "endingOffsets")
        if (self.end_time_ms or 0) < (self.start_time_ms or 0) and self.end_time_ms is not None:
            raise options.error(
                "endingTimestamp",
                f"is {self.end_time_ms}, it must not be before startingTimestamp, {self.start_time_ms}",
            )
        self.min_partitions = options.number("minPartitions", 1, MAX_PARTITIONS) or 1
        self.max_messages = options.number("maxMessagesPerTrigger", 1, _INT64_MAX)
        self.max_bytes = options.number("maxBytesPerTrigger", 1, _INT64_MAX)
        options.one_of("tags", "sqlFilter")
        self.tags = options.text("tags") or SUB_ALL
        self.sql = options.text("sqlFilter")
        message_selector("topic", self.tags, self.sql)
        self.decompress = options.flag("decompress", True)
        self.gaps = gap_log(options)
        timeout_ms = options.number("timeoutMs", 0, 24 * 3600 * 1000)
        self.timeout_ms = PATIENCE_MS if timeout_ms is None else timeout_ms

    def new_reader(self) -> BlockingRangeReader:
        return BlockingRangeReader(
            self.group, patience_ms=self.timeout_ms, **self.connecting.parameters()
        )

    # Inside

    def _group(self, name: str) -> str | None:
        group = self._options.text(name)
        if group is not None:
            check_client_group(group)
        return group

    def _read_topics(self) -> None:
        options = self._options
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.assigned: frozenset[MessageQueue] = frozenset()
        chosen = options.one_of("subscribe", "subscribePattern", "assign")
        if chosen is None:
            raise IllegalArgumentError(
                f"the source {NAME} needs to know what to read; give it one of the options "
                "subscribe, subscribePattern and assign"
            )
        if chosen == "subscribe":
            self.topics = topic_names(options)
            for topic in self.topics:
                check_topic(topic)
        elif chosen == "subscribePattern":
            self.pattern = topic_pattern(options)
        else:
            table = self._json(
                "assign", dict[str, dict[str, list[int]]], '{"orders": {"broker-a": [0, 1]}}'
            )
            self.assigned = frozenset(
                MessageQueue(topic, broker, queue_id)
                for topic, brokers in table.items()
                for broker, queue_ids in brokers.items()
                for queue_id in queue_ids
            )
            if not self.assigned:
                raise options.error("assign", "names no queue")

    def _position(self, name: str, default: str) -> Position:
        text = self._options.text(name) or default
        if text.lower() in (EARLIEST, LATEST):
            return text.lower()
        example = f'{EARLIEST}, {LATEST} or {{"orders": {{"broker-a": {{"0": 17}}}}}}'
        table = self._json(name, dict[str, dict[str, dict[str, int]]], example)
        try:
            offsets = offsets_of(table)
        except ValueError as error:
            raise self._options.error(name, f"has a queue id that is no number: {error}") from error
        return {queue: self._offset(name, queue, at) for queue, at in offsets.items()}

    def _offset(self, name: str, queue: MessageQueue, offset: int) -> int | str:
        if offset == _EARLIEST_NUMBER:
            return EARLIEST
        if offset == _LATEST_NUMBER:
            return LATEST
        if offset < 0:
            raise self._options.error(
                name,
                f"gives {queue} the offset {offset}; below zero only -2 (earliest) and -1 (latest)",
            )
        return offset

    def _time(self, name: str, instead: str) -> int | None:
        self._options.one_of(name, instead)
        return self._options.number(name, 0, _INT64_MAX)

    def _json(self, name: str, kind: Any, example: str) -> Any:
        text = self._options.need(name, example)
        try:
            return msgspec.json.decode(text.encode(), type=kind)
        except msgspec.DecodeError as error:
            raise self._options.error(
                name, f"does not fit: {error}; for example {example}"
            ) from error


OffsetTable = dict[str, dict[str, dict[str, int]]]


def offsets_of(table: OffsetTable) -> dict[MessageQueue, int]:
    """Return offsets by queue, from {"topic": {"broker": {"0": 17}}}. Raise ValueError."""
    return {
        MessageQueue(topic, broker, int(queue_id)): offset
        for topic, brokers in table.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def table_of(offsets: dict[MessageQueue, int]) -> OffsetTable:
    """Return the table of these offsets, sorted; the inverse of `offsets_of`."""
    table: OffsetTable = {}
    for queue, offset in sorted(offsets.items()):
        brokers = table.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return table
