"""Gather evidence about messages: that they were sent, wait somewhere, or were consumed.

Evidence is a table of (topic, msg_id, what, time_ms), with several rows for a message of which
several things are known. `what` ends with the number of the group that it is about, as in
`consumed 0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cometmq.client.namespaces import Namespace
from cometmq.client.tracing.codec import TraceType
from cometmq.errors import ConfigError
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.pipelines.audit.rows import REDRIVE_ID
from cometmq.pipelines.audit.settings import Config, Ledger, level_delays_ms
from cometmq.pipelines.message_logs import MessageLog, Ranges
from cometmq.pipelines.small_tables import small_table
from cometmq.pipelines.trace.events import TRACE_COLUMNS, trace_events

SENT: Final = "sent"
SEND_FAILED: Final = "send failed"
COMMITTED: Final = "committed"
# Its `time_ms` is when the message is due.
DELAYED: Final = "delayed send"
RECALLED: Final = "recalled"
HALF: Final = "half"
HALF_ENDED: Final = "half ended"
GIVEN_UP: Final = "given up"
CONSUMED: Final = "consumed"
CONSUME_FAILED: Final = "consume failed"
DEAD: Final = "dead"
# RETRY: in the retry topic. RETRY_WAITS: and the group has not reached it. RETRY_REDRIVEN: and a
# redrive has sent it.
RETRY: Final = "retry"
RETRY_WAITS: Final = "retry waits"
RETRY_REDRIVEN: Final = "retry redriven"
# In the delay topic, on its way to the retry topic.
RETRY_DELAYED: Final = "retry delayed"

_SCHEMA: Final = "topic string, msg_id string, what string, time_ms bigint"
_WORDS_FOR_YES: Final = ("true", "1", "yes", "ok", "send_ok", "success", "consume_success")
# The columns that are read of messages that wait somewhere.
WAITING_COLUMNS: Final = (
    "broker",
    "topic",
    "queue_id",
    "queue_offset",
    "msg_id",
    "properties",
    "store_time",
    "delay_level",
    "deliver_time",
)


def of_group(what: str, at: int) -> str:
    return f"{what} {at}"


@dataclass(frozen=True)
class Evidence:
    """Reads the evidence.

    ranges: those of the topics of `asked_topics`, taken after the cut.
    waiting: the messages of `waiting_ranges` with WAITING_COLUMNS, read in one go, because reading
        each topic by itself would cost one process per topic.
    """

    spark: Any
    config: Config
    log: MessageLog
    ranges: Ranges
    waiting: Any
    namespace: Namespace

    def of_topics(self, *topics: str) -> Ranges:
        return {queue: bounds for queue, bounds in self.ranges.items() if queue.topic in topics}

    # Places where messages wait, or went instead of their topic

    def delayed(self) -> Any:
        """Return the delayed messages of the audited topics, and the delayed retries of the
        groups.
        """
        from pyspark.sql import functions as f

        messages = self._of(names.SCHEDULE_TOPIC, names.TIMER_TOPIC)
        delays = f.array(*map(f.lit, level_delays_ms(self.config.delay_levels)))
        by_level = f.unix_millis("store_time") + f.get(delays, f.col("delay_level") - 1)
        due = f.coalesce(f.unix_millis("deliver_time"), by_level)
        real = self._unwrapped(f.col("properties")[p.REAL_TOPIC])
        origin = self._unwrapped(f.col("properties")[p.RETRY_TOPIC])
        # A recall order waits beside the message that it recalls, under the same id.
        recalls = f.col("properties")[p.TIMER_DEL_UNIQKEY].isNotNull()
        rows = messages.select(
            "msg_id",
            real.alias("real"),
            origin.alias("origin"),
            due.alias("due"),
            f.when(recalls, RECALLED).otherwise(DELAYED).alias("what"),
        )
        frames = [
            rows.where(f.col("real").isin(self.config.topics)).select(
                f.col("real").alias("topic"), "msg_id", "what", "due"
            )
        ]
        for at, group in enumerate(self.config.groups):
            what = f.lit(of_group(RETRY_DELAYED, at)).alias("what")
            retried = rows.where(f.col("real") == names.retry_topic(group))
            frames.append(retried.select(f.col("origin").alias("topic"), "msg_id", what, "due"))
        return self._union(frames)

    def halves(self) -> Any:
        """Return the half messages of transactions, and whether their transactions have ended."""
        from pyspark.sql import functions as f

        halves = self._of(names.TRANS_HALF_TOPIC)
        ops = self.log.frame(self.of_topics(names.TRANS_OP_HALF_TOPIC), ("broker", "body"))
        offsets = f.split(f.decode("body", "UTF-8"), ",")
        ended = ops.select("broker", f.explode(offsets).alias("text")).select(
            "broker", f.expr("try_cast(text as bigint)").alias("queue_offset")
        )
        ended = ended.dropna().distinct().withColumn("ended", f.lit(True))
        what = f.when(f.col("ended"), HALF_ENDED).otherwise(HALF)
        joined = halves.join(ended, ["broker", "queue_offset"], "left")
        given_up = self._of(names.TRANS_CHECK_MAX_TIME_TOPIC)
        return self._union(
            [self._by_real_topic(joined, what), self._by_real_topic(given_up, f.lit(GIVEN_UP))]
        )

    def retried(self, at: int, group: str) -> Any:
        """Return the messages that a group has sent back, and its dead letters."""
        from pyspark.sql import functions as f

        topic, dead_topic = names.retry_topic(group), names.dlq_topic(group)
        committed = self.log.committed(group, [topic])
        done = small_table(
            self.spark,
            [
                (queue.broker_name, queue.queue_id, offset)
                for queue, offset in committed.items()
                if offset is not None
            ],
            "broker string, queue_id int, committed bigint",
        )
        origin = self._unwrapped(f.col("properties")[p.RETRY_TOPIC]).alias("topic")
        retries = self._of(topic).drop("topic")
        waits = f.col("queue_offset") >= f.coalesce("committed", f.lit(0))
        redriven = f.col("properties")[REDRIVE_ID].isNotNull()
        words = f.array_compact(
            f.array(
                f.lit(of_group(RETRY, at)),
                f.when(waits, of_group(RETRY_WAITS, at)),
                f.when(redriven, of_group(RETRY_REDRIVEN, at)),
            )
        )
        rows = retries.join(f.broadcast(done), ["broker", "queue_id"], "left").select(
            origin, "msg_id", f.explode(words).alias("what")
        )
        letters = self._of(dead_topic).select(
            origin, "msg_id", f.lit(of_group(DEAD, at)).alias("what")
        )
        return self._union([_timeless(rows), _timeless(letters)])

    # Reports of clients

    def traces(self) -> Any:
        """Return the events of the trace topic. Call once for both `sent_by_trace` and
        `consumed_by_trace`.
        """
        assert self.config.trace_topic is not None
        messages = self.log.frame(self.of_topics(self.config.trace_topic), TRACE_COLUMNS)
        return trace_events(messages)

    def sent_by_trace(self, events: Any) -> Any:
        from pyspark.sql import functions as f

        kind = f.col("kind")
        is_commit = f.col("transaction_state") == "COMMIT_MESSAGE"
        what = (
            f.when((kind == TraceType.PUB.value) & f.col("success"), SENT)
            .when(kind == TraceType.PUB.value, SEND_FAILED)
            .when((kind == TraceType.END_TRANSACTION.value) & is_commit, COMMITTED)
        )
        rows = events.select(
            self._unwrapped(f.col("topic")).alias("topic"), "msg_id", what.alias("what"), "time_ms"
        )
        return rows.where(f.col("what").isNotNull() & f.col("topic").isin(self.config.topics))

    def consumed_by_trace(self, events: Any, known: Any) -> Any:
        """Return the consumptions among trace events.

        known: topic, msg_id and is_batch of all messages and batches, because consumers' traces do
            not name the topic.
        """
        from pyspark.sql import functions as f

        after = f.col("kind") == TraceType.SUB_AFTER.value
        attempts = (
            events.where(f.col("kind").isin(TraceType.SUB_BEFORE.value, TraceType.SUB_AFTER.value))
            # Some releases name the group only in the SUB_BEFORE event.
            .groupBy("request_id", "msg_id")
            .agg(
                f.max("grp").alias("grp"),
                f.max(f.when(after, f.col("success"))).alias("success"),
                f.min("time_ms").alias("time_ms"),
                f.count_if(after).cast("int").alias("times"),
            )
            .where("success is not null")
        )
        group = self._unwrapped(f.col("grp"))
        rows = attempts.select(
            "msg_id", _outcome(group, self.config.groups, f.col("success")), "time_ms", "times"
        )
        # Consumed together, messages of a batch are several events with one id. Other events that
        # agree are one that was traced twice.
        found = known.join(rows.where("what is not null"), "msg_id")
        each = f.array_repeat("time_ms", f.when(f.col("is_batch"), f.col("times")).otherwise(1))
        return found.select("topic", "msg_id", "what", f.explode(each).alias("time_ms"))

    def sent_by_ledger(self, frame: Any, ledger: Ledger, known: Any) -> Any:
        """Return the sends of a ledger.

        frame: the table of `read_ledger`. known: topic, msg_id and key of all messages.
        """
        from pyspark.sql import functions as f

        rows = self._ledger(frame, ledger, "sent", known)
        what = f.when(f.col("ok"), SENT).otherwise(SEND_FAILED).alias("what")
        return rows.select("topic", "msg_id", what, "time_ms")

    def consumed_by_ledger(self, frame: Any, ledger: Ledger, known: Any) -> Any:
        from pyspark.sql import functions as f

        rows = self._ledger(frame, ledger, "consumed", known)
        groups = self.config.groups
        if "grp" not in rows.columns:
            if len(groups) > 1:
                raise ConfigError(
                    f"consumed: {ledger.path} has no column {ledger.group!r}, which says of which of "
                    f"the groups {', '.join(groups)} each row is; name the column by group"
                )
            rows = rows.withColumn("grp", f.lit(groups[0]))
        what = _outcome(f.col("grp"), groups, f.col("ok"))
        return rows.select("topic", "msg_id", what, "time_ms").where("what is not null")

    # Inside

    def _of(self, *topics: str) -> Any:
        from pyspark.sql import functions as f

        return self.waiting.where(f.col("topic").isin(*topics))

    def _ledger(self, frame: Any, ledger: Ledger, key: str, known: Any) -> Any:
        """Return topic, msg_id, time_ms, ok and, if the ledger has it, grp of a ledger's rows."""
        from pyspark.sql import functions as f

        has_id = ledger.msg_id in frame.columns
        if not has_id and (ledger.key not in frame.columns or self.config.business_key is None):
            raise ConfigError(
                f"{key}: {ledger.path} has the columns {', '.join(frame.columns)}, none of which is "
                f"the message's id; name one by msg_id, or by key and give the audit a business_key"
            )
        has_topic = ledger.topic in frame.columns
        if not has_topic and len(self.config.topics) > 1:
            raise ConfigError(
                f"{key}: {ledger.path} has no column {ledger.topic!r}, which says of which of the "
                f"topics {', '.join(self.config.topics)} each row is; name the column by topic"
            )
        types = dict(frame.dtypes)
        rows = frame.select(
            f.col(ledger.topic) if has_topic else f.lit(self.config.topics[0]).alias(ledger.topic),
            f.col(ledger.msg_id if has_id else ledger.key).cast("string").alias("given"),
            milliseconds(ledger.time, types.get(ledger.time)).alias("time_ms"),
            _is_yes(ledger.ok, types).alias("ok"),
            *([f.col(ledger.group).alias("grp")] if ledger.group in types else []),
        ).withColumnRenamed(ledger.topic, "topic")
        rows = rows.where(f.col("topic").isin(self.config.topics) & f.col("given").isNotNull())
        if has_id:
            return rows.withColumnRenamed("given", "msg_id")
        by_key = known.where("key is not null").select(
            "topic", f.col("key").alias("given"), f.col("msg_id").alias("found")
        )
        unknown = f.concat(f.lit("key "), f.col("given"))
        return (
            rows.join(by_key, ["topic", "given"], "left")
            .withColumn("msg_id", f.coalesce("found", unknown))
            .drop("given", "found")
        )

    def _by_real_topic(self, messages: Any, what: Any) -> Any:
        from pyspark.sql import functions as f

        real = self._unwrapped(f.col("properties")[p.REAL_TOPIC])
        rows = messages.select(real.alias("topic"), "msg_id", what.alias("what"))
        return _timeless(rows.where(f.col("topic").isin(self.config.topics)))

    def _unwrapped(self, name: Any) -> Any:
        from pyspark.sql import functions as f

        if not self.namespace:
            return name
        prefix = rf"^(%RETRY%|%DLQ%)?{self.namespace.name}%"
        return f.regexp_replace(name, prefix, "$1")

    def _union(self, frames: Sequence[Any]) -> Any:
        whole = nothing(self.spark)
        for frame in frames:
            whole = whole.union(frame)
        return whole


def nothing(spark: Any) -> Any:
    """Return an empty table of evidence."""
    return small_table(spark, [], _SCHEMA)


def read_ledger(spark: Any, ledger: Ledger, key: str) -> Any:
    """Read the ledger's table as it is. Raise ConfigError when there is none."""
    from pyspark.errors import AnalysisException

    reader = spark.read.format(ledger.file_format())
    if ledger.file_format() == "csv":
        reader = reader.option("header", "true")
    try:
        return reader.load(ledger.path)
    except AnalysisException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{key} is {ledger.path!r}, which cannot be read as {ledger.file_format()}: {reason}"
        ) from error


def since(frame: Any, ledger: Ledger, key: str, since_ms: int | None) -> Any:
    """Return the rows of a ledger of this time or later. Raise ConfigError if it has no times."""
    from pyspark.sql import functions as f

    kind = dict(frame.dtypes).get(ledger.time)
    if kind is None:
        raise ConfigError(
            f"{key}: {ledger.path} has no column {ledger.time!r}, and a stream has to know when each "
            "message was sent or consumed; name the column by time"
        )
    if since_ms is None:
        return frame
    # Readers of Parquet pass over what an untouched column excludes.
    if kind.startswith("timestamp"):
        return frame.where(f.col(ledger.time) >= f.timestamp_millis(f.lit(since_ms)))
    time = milliseconds(ledger.time, kind) if kind == "string" else f.col(ledger.time)
    return frame.where(time >= since_ms)


def by_id(evidence: Any, groups: Sequence[str]) -> Any:
    """Return one row per topic and msg_id: how often each thing is known, `sent_ms`, `due_ms`,
    `done_ms`.
    """
    from pyspark.sql import functions as f

    def count(what: str) -> Any:
        return f.count_if(f.col("what") == what).alias(what.replace(" ", "_"))

    words = [SENT, SEND_FAILED, COMMITTED, DELAYED, RECALLED, HALF, HALF_ENDED, GIVEN_UP]
    each = (CONSUMED, CONSUME_FAILED, DEAD, RETRY, RETRY_WAITS, RETRY_REDRIVEN, RETRY_DELAYED)
    words += [of_group(what, at) for at in range(len(groups)) for what in each]
    is_sending = f.col("what").isin(SENT, SEND_FAILED)
    is_done = f.col("what").startswith(CONSUMED)
    return evidence.groupBy("topic", "msg_id").agg(
        *map(count, words),
        f.min(f.when(is_sending, f.col("time_ms"))).alias("sent_ms"),
        f.max(f.when(f.col("what") == DELAYED, f.col("time_ms"))).alias("due_ms"),
        f.min(f.when(is_done, f.col("time_ms"))).alias("done_ms"),
    )


def waiting_ranges(ranges: Ranges, config: Config) -> Ranges:
    """Return the ranges of topics in which messages wait. The audit reads the other topics' bodies
    instead.
    """
    others = (names.TRANS_OP_HALF_TOPIC, config.trace_topic)
    return {queue: bounds for queue, bounds in ranges.items() if queue.topic not in others}


def asked_topics(config: Config) -> list[str]:
    """Return the topics besides the audited ones that may hold evidence."""
    topics = [names.SCHEDULE_TOPIC, names.TIMER_TOPIC]
    topics += [
        names.TRANS_HALF_TOPIC,
        names.TRANS_OP_HALF_TOPIC,
        names.TRANS_CHECK_MAX_TIME_TOPIC,
    ]
    for group in config.groups:
        topics += [names.retry_topic(group), names.dlq_topic(group)]
    return [*topics, config.trace_topic] if config.trace_topic else topics


def _timeless(rows: Any) -> Any:
    from pyspark.sql import functions as f

    return rows.withColumn("time_ms", f.lit(None).cast("bigint"))


def _outcome(group: Any, groups: Sequence[str], success: Any) -> Any:
    """Return `what` for a group's attempt, null for groups that are not audited."""
    from pyspark.sql import functions as f

    what = f.lit(None).cast("string")
    for at, name in enumerate(groups):
        outcome = f.when(success, of_group(CONSUMED, at)).otherwise(of_group(CONSUME_FAILED, at))
        what = f.when(group == name, outcome).otherwise(what)
    return what.alias("what")


def milliseconds(name: str, kind: str | None) -> Any:
    """Return a time column as ms since the epoch, whatever its type; null for values that are no
    time.
    """
    from pyspark.sql import functions as f

    if kind is None:
        return f.lit(None).cast("bigint")
    if kind.startswith("timestamp"):
        return f.unix_millis(f.col(name).cast("timestamp"))
    if kind == "string":
        text = f.col(name)
        return f.coalesce(text.try_cast("bigint"), f.unix_millis(f.try_to_timestamp(text)))
    return f.col(name).cast("bigint")


def _is_yes(name: str, types: dict[str, str]) -> Any:
    """Return whether a row's column says success; true if there is no such column."""
    from pyspark.sql import functions as f

    if name not in types:
        return f.lit(True)
    return f.lower(f.col(name).cast("string")).isin(*_WORDS_FOR_YES)
