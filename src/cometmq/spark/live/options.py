"""Check the options of a read of live brokers, on the driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from cometmq.bulk.range_reader import PATIENCE_MS, TOOLS_GROUP, BlockingRangeReader
from cometmq.client.limits import check_client_group
from cometmq.client.membership.subscribing import message_selector
from cometmq.errors import IllegalArgumentError
from cometmq.model.names import check_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SUB_ALL
from cometmq.spark.connecting import CONNECTING, Connecting
from cometmq.spark.options import MAX_PARTITIONS, Options, gap_log, topic_names, topic_pattern
from cometmq.spark.ranges.by_queue import EARLIEST, LATEST, offsets_option, times_option
from cometmq.spark.rows.columns import named_columns

T = TypeVar("T")

NAME: Final = "rocketmq"
# Strategies for a queue that has nothing as new as where reading is to start.
FROM_LATEST: Final = "latest"
FAIL: Final = "error"
_MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000
_DAY_MS: Final = 24 * 3600 * 1000
_INT64_MAX: Final = 2**63 - 1

_BOTH: Final = (
    *CONNECTING,
    "group",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxMessagesPerPartition",
    "tags",
    "sqlFilter",
    "columns",
    "decompress",
    "failOnDataLoss",
    "pushFilters",
    "gapLog",
    "timeoutMs",
)
_BATCH: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM: Final = (
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "commitGroup",
)
KNOWN: Final = _BOTH + _BATCH + _STREAM
# The remedy in refusals of statements with tables.
TABLES_REMEDY: Final = (
    f"write CREATE TEMPORARY VIEW … USING {NAME} OPTIONS (namesrv '…', subscribe '…') to read in SQL, and "
    f'df.write.format("{NAME}").option("namesrv", …).option("topic", …).mode("append").save() to send'
)
# Options of the sink that the source does not have; here because every read needs their names, and no
# read needs the sink.
SINK_ONLY: Final = (
    "topic",
    "delivery",
    "outbox",
    "keepOrigin",
    "badRows",
    "deadLetterTopic",
    "compression",
    "compressOverBytes",
    "batchBytes",
    "sendsInFlight",
    "transactionId",
    "outboxKeepDays",
    # Spark's own options of a stream.
    "checkpointLocation",
    "queryName",
)


class LiveOptions:
    """The options of a read of live brokers. Raises IllegalArgumentError for values that do not
    fit.

    namesrv, namespace, accessKey, tls and so on: see Connecting.
    subscribe: topics, separated by commas; subscribePattern: a regular expression that whole topic
        names match; assign: queues, as {"topic": {"broker": [0, 1]}}. One of the three.
    startingOffsets, endingOffsets: earliest, latest, or {"topic": {"broker": {"0": 17}}} with -2
        for earliest and -1 for latest, which may also stand for all queues of a broker or topic.
        Streams start at latest by default, and have no end.
    startingTimestamp, endingTimestamp: instead of offsets, times of storing, ISO 8601 with a zone
        or ms since the epoch; the ending time itself is excluded. A stream also leaves out older
        messages of queues that appear later. startingOffsetsByTimestamp, endingOffsetsByTimestamp:
        likewise by topic, broker or queue.
    startingOffsetsByTimestampStrategy: how to treat a queue that has no message of its starting
        time or later: latest (it starts at its end, default) or error.
    minPartitions: into how many tasks the reading is split at least, if there are enough messages;
        maxMessagesPerPartition: how many messages a task reads at most.
    tags (`paid || open`), sqlFilter (SQL92 over the properties): the messages that the broker
        selects.
    columns: which columns the rows have; see `cometmq.spark.rows.columns`.
    decompress: return bodies as they were sent (default), not as they are stored.
    pushFilters: let Spark's filters narrow a batch (see docs/spark.md, Filters, before you do).
    maxMessagesPerTrigger, maxBytesPerTrigger: limits of a stream's batch. The first is exact. Bytes
        are estimated from samples all over the batch, because brokers do not report sizes: a batch
        may be larger if the sizes of messages vary much.
    minMessagesPerTrigger: a batch begins once this many messages wait, or one has waited for
        maxTriggerDelay (15m). Neither counts with Trigger.AvailableNow.
    commitGroup: the consumer group for which a stream commits each finished batch.
    group: the consumer group in whose name brokers are read (TOOLS_CONSUMER, which every broker
        has).
    failOnDataLoss: fail where messages are gone (default). With false they are left out, and gapLog
        must name a directory in which every gap is noted.
    timeoutMs: for how long a broker that does not answer is asked again. A stream goes on with the
        brokers that answer, and waits while none answers. A batch by `assign` with an offset for each
        start and end also waits for this time for queues without a route.
    """

    def __init__(self, given: Any, *, streaming: bool | None) -> None:
        """Check the options. `load` does not know yet whether it is for a stream: it says None, and
        both kinds are accepted.
        """
        self._options = options = Options(NAME, given, KNOWN)
        wrong = {None: (), True: _BATCH, False: _STREAM}[streaming]
        for name in wrong:
            if name in options:
                kind = "a batch, not a stream" if streaming else "a stream, not a batch"
                raise options.error(name, f"is for {kind}")
        self.connecting = Connecting(options)
        self.namesrv = self.connecting.namesrv
        self.group = self._group("group") or TOOLS_GROUP
        self.commit_group = self._group("commitGroup")
        self._read_topics()
        self._read_positions(streaming=bool(streaming))
        self.min_partitions = options.number("minPartitions", 1, MAX_PARTITIONS) or 1
        self.max_per_partition = options.number("maxMessagesPerPartition", 1, _INT64_MAX)
        self.max_messages = options.number("maxMessagesPerTrigger", 1, _INT64_MAX)
        self.max_bytes = options.number("maxBytesPerTrigger", 1, _INT64_MAX)
        self._read_least()
        options.one_of("tags", "sqlFilter")
        self.tags = options.text("tags") or SUB_ALL
        self.sql = options.text("sqlFilter")
        message_selector("topic", self.tags, self.sql)
        self.columns = named_columns(options)
        self.decompress = options.flag("decompress", True)
        self.push_filters = options.flag("pushFilters", False)
        self.gaps = gap_log(options)
        timeout_ms = options.number("timeoutMs", 0, _DAY_MS)
        self.timeout_ms = PATIENCE_MS if timeout_ms is None else timeout_ms

    def new_reader(self) -> BlockingRangeReader:
        return BlockingRangeReader(
            self.group, patience_ms=self.timeout_ms, **self.connecting.parameters()
        )

    @property
    def named_topics(self) -> frozenset[str]:
        """Return the topics that `subscribe` or `assign` names."""
        return self.topics or frozenset(queue.topic for queue in self.assigned)

    @property
    def names_each_offset(self) -> bool:
        """Whether `assign` names the queues, and the offsets of each are numbers."""
        return bool(self.assigned) and all(
            isinstance(offsets.of(queue), int)
            for offsets in (self.start, self.end)
            for queue in self.assigned
        )

    # Inside

    def _group(self, name: str) -> str | None:
        group = self._options.text(name)
        if group is not None:
            check_client_group(group)
        return group

    def _read_positions(self, *, streaming: bool) -> None:
        options = self._options
        options.one_of("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
        options.one_of("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
        self.start = offsets_option(options, "startingOffsets", LATEST if streaming else EARLIEST)
        self.end = offsets_option(options, "endingOffsets", LATEST)
        self.start_times = times_option(options, "startingTimestamp", "startingOffsetsByTimestamp")
        self.end_times = times_option(options, "endingTimestamp", "endingOffsetsByTimestamp")
        low = None if self.start_times is None else self.start_times.of_all
        high = None if self.end_times is None else self.end_times.of_all
        if isinstance(low, int) and isinstance(high, int) and high < low:
            raise options.error(
                "endingTimestamp", f"is {high}, it must not be before startingTimestamp, {low}"
            )
        name = "startingOffsetsByTimestampStrategy"
        strategy = (options.text(name) or FROM_LATEST).lower()
        if strategy not in (FROM_LATEST, FAIL):
            raise options.error(name, f"is {strategy!r}, it must be {FAIL} or {FROM_LATEST}")
        if name in options and self.start_times is None:
            raise options.error(
                name,
                "is for startingTimestamp and startingOffsetsByTimestamp; give one of them too",
            )
        self.fails_without_match = strategy == FAIL

    def _read_least(self) -> None:
        options = self._options
        self.min_messages = options.number("minMessagesPerTrigger", 1, _INT64_MAX)
        if "maxTriggerDelay" in options and self.min_messages is None:
            raise options.error("maxTriggerDelay", "is for minMessagesPerTrigger; give it too")
        delay_ms = options.duration_ms("maxTriggerDelay", _DAY_MS)
        self.max_delay_ms = _MAX_TRIGGER_DELAY_MS if delay_ms is None else delay_ms
        if self.max_messages is not None and (self.min_messages or 0) > self.max_messages:
            raise options.error(
                "minMessagesPerTrigger",
                f"is {self.min_messages}, it must not be above maxMessagesPerTrigger, "
                f"{self.max_messages}",
            )

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

    def _json(self, name: str, kind: Any, example: str) -> Any:
        text = self._options.need(name, example)
        try:
            return msgspec.json.decode(text.encode(), type=kind)
        except msgspec.DecodeError as error:
            raise self._options.error(
                name, f"does not fit: {error}; for example {example}"
            ) from error


OffsetTable = dict[str, dict[str, dict[str, int]]]
# An offset with the marks of `cometmq.spark.live.identity`, which have a name of their own.
LiveTable = dict[str, dict[str, dict[str, Any]]]
MARKS: Final = "@stored"


def offsets_of(table: LiveTable) -> dict[MessageQueue, int]:
    """Return offsets by queue, from {"topic": {"broker": {"0": 17}}}, without marks. Raise
    ValueError.
    """
    return {
        MessageQueue(topic, broker, int(queue_id)): offset
        for topic, brokers in table.items()
        if topic != MARKS
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def table_of(offsets: Mapping[MessageQueue, T]) -> dict[str, dict[str, dict[str, T]]]:
    """Return the table of these offsets, sorted; the inverse of `offsets_of`."""
    table: dict[str, dict[str, dict[str, T]]] = {}
    for queue, offset in sorted(offsets.items()):
        brokers = table.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return table
