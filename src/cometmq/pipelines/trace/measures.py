"""Measure latencies of traced messages with Spark.

A latency is a row of (measure, topic, grp, msg_id, ms, at_ms). `grp` is the producer group for
`produce` and `store`, the consumer group for `deliver` and `consume`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from cometmq.client.namespaces import Namespace
from cometmq.client.tracing.codec import TraceType

PRODUCE: Final = "produce"
STORE: Final = "store"
DELIVER: Final = "deliver"
CONSUME: Final = "consume"
MEASURES: Final = (PRODUCE, STORE, DELIVER, CONSUME)
QUANTILES: Final = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
# Steps per factor of ten in the logarithmic histogram behind the figure.
STEPS: Final = 10
UNKNOWN_TOPIC: Final = "(unknown topic)"


@dataclass(frozen=True)
class Tables:
    """The results, which are small: rows as Spark returns them.

    latencies: measure, topic, grp, count, quantiles (in the order of QUANTILES), most (ms).
    histogram: measure, topic, grp, step, count.
    slowest: measure, topic, grp, msg_id, ms, at_ms, the slowest first.
    failures: kind, topic, grp, code, count.
    failed: the same events one by one, with msg_id, at_ms, ms.
    """

    latencies: list[Any]
    histogram: list[Any]
    slowest: list[Any]
    failures: list[Any]
    failed: list[Any]


def unwrapped(events: Any, namespace: Namespace) -> Any:
    """Return the events with topics and groups named as in the namespace."""
    from pyspark.sql import functions as f

    if not namespace:
        return events
    prefix = rf"^(%RETRY%|%DLQ%)?{namespace.name}%"
    return events.withColumns(
        {name: f.regexp_replace(name, prefix, "$1") for name in ("topic", "grp")}
    )


def of_topics(events: Any, topics: Sequence[str]) -> Any:
    """Return the events of these topics, and those that name no topic."""
    from pyspark.sql import functions as f

    return events.where(f.col("topic").isNull() | f.col("topic").isin(list(topics)))


def latencies(events: Any, messages: Any | None) -> Any:
    """Return the latencies of all measures. An event without a topic gets the topic of its
    message.
    """
    from pyspark.sql import functions as f

    produced, attempts = _produced(events), _attempts(events)
    frames = [_produce(produced)]
    if messages is None:
        # The producer's own event is the best evidence; a message may have been sent several times.
        stored = produced.groupBy("msg_id").agg(*_first("topic", "stored_ms", by="stored_ms"))
    else:
        stored = _stored(messages)
        frames.append(_store(messages, produced))
    found = attempts.join(stored, "msg_id", "left")
    if messages is not None:
        found = found.where("topic is not null")
    frames += [_deliver(found), _consume(found)]
    whole = reduce(lambda one, other: one.unionByName(other), frames)
    return whole.withColumn("topic", f.coalesce("topic", f.lit(UNKNOWN_TOPIC)))


def tables(
    latencies: Any, events: Any, messages: Any | None, slowest_count: int, failed_count: int
) -> Tables:
    from pyspark.sql import functions as f

    by = ("measure", "topic", "grp")
    # Exact percentiles are cheap: whole milliseconds have few values, and Spark counts each value.
    quantiles = f.percentile("ms", f.array(*map(f.lit, QUANTILES.values())))
    summary = latencies.groupBy(*by).agg(
        f.count("*").alias("count"), quantiles.alias("quantiles"), f.max("ms").alias("most")
    )
    step = f.floor(f.log10(f.greatest("ms", f.lit(1))) * STEPS + 1e-9).cast("int")
    step = f.when(f.col("ms") < 1, -1).otherwise(step)
    histogram = latencies.groupBy(*by, step.alias("step")).count()
    chosen = [
        latencies.where(f.col("measure") == measure)
        .orderBy(f.desc("ms"), "msg_id")
        .limit(slowest_count)
        for measure in MEASURES
    ]
    slowest = reduce(lambda one, other: one.unionByName(other), chosen).collect()
    failed = _failed(events, messages)
    counted = failed.groupBy("kind", "topic", "grp", "code").count()
    return Tables(
        sorted(summary.collect(), key=_place),
        sorted(histogram.collect(), key=lambda row: (*_place(row), row.step)),
        sorted(slowest, key=lambda row: (MEASURES.index(row.measure), -row.ms)),
        counted.orderBy(f.desc("count")).collect(),
        failed.orderBy("at_ms").limit(failed_count).collect(),
    )


def _place(row: Any) -> tuple[int, str, str]:
    return MEASURES.index(row.measure), row.topic, row.grp or ""


# Producers


def _produced(events: Any) -> Any:
    """Return the sends: msg_id, topic, grp, cost_ms, success, time_ms, stored_ms."""
    from pyspark.sql import functions as f

    return events.where(f.col("kind") == TraceType.PUB.value).select(
        "msg_id",
        "topic",
        "grp",
        "cost_ms",
        "success",
        "time_ms",
        (f.col("time_ms") + f.col("cost_ms")).alias("stored_ms"),
    )


def _produce(produced: Any) -> Any:
    return _measured(produced.where("success"), PRODUCE, "cost_ms", "time_ms")


def _stored(messages: Any) -> Any:
    """Return when and in which topic each message was stored first: msg_id, topic, stored_ms."""
    from pyspark.sql import functions as f

    return (
        _named(messages)
        .select("msg_id", "topic", f.unix_millis("store_time").alias("stored_ms"))
        .groupBy("msg_id")
        .agg(*_first("topic", "stored_ms", by="stored_ms"))
    )


def _named(messages: Any) -> Any:
    """Return the messages under each id that a trace may have: Java's consumers take the id of the
    batch for that of the message.
    """
    from pyspark.sql import functions as f

    ids = f.array_compact(f.array("msg_id", "batch_msg_id"))
    return messages.select("topic", "store_time", f.explode(ids).alias("msg_id"))


def _store(messages: Any, produced: Any) -> Any:
    """Measure messages that are stored at once: a delay or a transaction is not the broker's
    slowness.
    """
    from pyspark.sql import functions as f

    at_once = messages.where("transaction_type is null and delay_level is null")
    at_once = at_once.where("deliver_time is null")
    groups = produced.groupBy("msg_id").agg(f.min("grp").alias("grp"))
    took = "greatest(unix_millis(store_time) - unix_millis(born_time), 0)"
    at_once = at_once.join(groups, "msg_id", "left")
    return _measured(at_once, STORE, took, "unix_millis(born_time)")


# Consumers


def _attempts(events: Any) -> Any:
    """Return one row for each call of a listener with a message.

    Columns: msg_id, grp, retry_times, before_ms, cost_ms, success, code. The last three are null if
    nothing is known about the end of the call.
    """
    from pyspark.sql import functions as f

    before = f.col("kind") == TraceType.SUB_BEFORE.value
    after = f.col("kind") == TraceType.SUB_AFTER.value
    return (
        events.where(before | after)
        .groupBy("request_id", "msg_id")
        .agg(
            f.max("grp").alias("grp"),
            f.max(f.when(before, f.col("retry_times"))).alias("retry_times"),
            f.min(f.when(before, f.col("time_ms"))).alias("before_ms"),
            f.max(f.when(after, f.col("cost_ms"))).alias("cost_ms"),
            f.max(f.when(after, f.col("success"))).alias("success"),
            f.max(f.when(after, f.col("code"))).alias("code"),
        )
    )


def _deliver(attempts: Any) -> Any:
    """Measure first deliveries only, because a retry is late on purpose."""
    first = attempts.where("before_ms is not null and stored_ms is not null and retry_times = 0")
    # Two machines' clocks may differ, hence no value below 0.
    return _measured(first, DELIVER, "greatest(before_ms - stored_ms, 0)", "before_ms")


def _consume(attempts: Any) -> Any:
    return _measured(attempts.where("cost_ms is not null"), CONSUME, "cost_ms", "before_ms")


def _measured(rows: Any, measure: str, ms: str, at_ms: str) -> Any:
    """Return the latencies of a measure; `ms` and `at_ms` are Spark SQL."""
    return rows.selectExpr(
        f"'{measure}' as measure", "topic", "grp", "msg_id", f"{ms} as ms", f"{at_ms} as at_ms"
    )


def _failed(events: Any, messages: Any | None) -> Any:
    """Return failed sends and consumptions: kind, topic, grp, code, msg_id, at_ms, ms."""
    from pyspark.sql import functions as f

    produced = _produced(events)
    sends = produced.where("not success").select(
        f.lit(PRODUCE).alias("kind"),
        "topic",
        "grp",
        f.lit("not SEND_OK").alias("code"),
        "msg_id",
        f.col("time_ms").alias("at_ms"),
        f.col("cost_ms").alias("ms"),
    )
    topics = (
        produced.groupBy("msg_id").agg(f.min("topic").alias("topic"))
        if messages is None
        else _named(messages).groupBy("msg_id").agg(f.min("topic").alias("topic"))
    )
    consumed = _attempts(events).where("not success").join(topics, "msg_id", "left")
    if messages is not None:
        consumed = consumed.where("topic is not null")
    return sends.unionByName(
        consumed.select(
            f.lit(CONSUME).alias("kind"),
            f.coalesce("topic", f.lit(UNKNOWN_TOPIC)).alias("topic"),
            "grp",
            "code",
            "msg_id",
            f.col("before_ms").alias("at_ms"),
            f.col("cost_ms").alias("ms"),
        )
    )


def _first(*names: str, by: str) -> list[Any]:
    """Return aggregates that take columns of the row with the lowest `by`."""
    from pyspark.sql import functions as f

    return [f.min_by(name, by).alias(name) for name in names]
