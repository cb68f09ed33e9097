"""`trace`: measure how long messages took, from the trace topic.

    produce    from the call of `send` to the broker's answer, as producers say
    store      from the creation of a message to its storing
    deliver    from its storing to the first call of a group's listener
    consume    how long the listener took

Traces do not say when a message was stored. With `topics`, the pipeline reads that from the
messages themselves. Without `topics`, a delivery begins with the answer to the producer, and
`store` is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.client.namespaces import Namespace
from cometmq.errors import ConfigError
from cometmq.model.names import TRACE_TOPIC, check_topic
from cometmq.pipelines.audit.archive import archived
from cometmq.pipelines.configuration import Settings, check_names
from cometmq.pipelines.context import Context
from cometmq.pipelines.hadoop_files import location
from cometmq.pipelines.message_logs import MessageLog, check_topics, open_message_log
from cometmq.pipelines.report import now
from cometmq.pipelines.trace import measures
from cometmq.pipelines.trace.events import MALFORMED, TRACE_COLUMNS, trace_events
from cometmq.pipelines.trace.report import Report, make_report
from cometmq.spark.gaps import Gap

__all__ = ["Config", "Report", "run"]

_MESSAGE_COLUMNS: Final = (
    "topic",
    "msg_id",
    "batch_msg_id",
    "born_time",
    "store_time",
    "transaction_type",
    "delay_level",
    "deliver_time",
)


class Config(Settings, frozen=True):
    """The table [trace].

    trace_topic: the topic to which clients write traces.
    topics: topics to read as well, for their store times; then only events of these topics count.
    stores: store directories by broker name, in place of the cluster's brokers.
    archive: the directory of an archive, in place of both; it must have the trace topic.
    slowest: the number of slowest messages to list for each measure.
    failed: the number of failures to list.
    limits: times in ms that must not be exceeded, by measure and percentile: { "produce.p99" = 50
        }; the report fails if any topic and group exceeds one.
    work_path: a directory that driver and workers see; if left out, a temporary one of this machine.
    """

    trace_topic: str = TRACE_TOPIC
    topics: list[str] = msgspec.field(default_factory=list)
    stores: dict[str, str] = msgspec.field(default_factory=dict)
    archive: str | None = None
    slowest: int = 10
    failed: int = 20
    limits: dict[str, float] = msgspec.field(default_factory=dict)
    work_path: str | None = None

    def __post_init__(self) -> None:
        check_names([self.trace_topic], "trace_topic", check_topic)
        check_names(self.topics, "topics", check_topic)
        for name in ("slowest", "failed"):
            if not 0 <= getattr(self, name) <= 10_000:
                raise ConfigError(f"{name} is {getattr(self, name)}; it lies in 0..10000")
        if self.archive is not None and self.stores:
            raise ConfigError("archive and stores are both given; traces are read from one of them")
        known = [
            f"{measure}.{name}" for measure in measures.MEASURES for name in measures.QUANTILES
        ]
        for name, limit in self.limits.items():
            if name not in known:
                raise ConfigError(
                    f"limits has {name!r}, which is not measured; there are {', '.join(known)}"
                )
            if not 0 < limit < math.inf:
                raise ConfigError(f"limits has {name} = {limit}; it is a time in ms, above 0")


class _Source(NamedTuple):
    """Where the pipeline reads traces.

    what: names the place in a few words.
    messages: those of the topics, if any are named.
    gaps: returns what could not be read; asked after the reading.
    """

    what: str
    traces: Any
    messages: Any | None
    gaps: Callable[[], list[Gap]]


def run(config: Config, context: Context) -> Report:
    """Measure the latencies.

    Raise ConfigError for a configuration that does not fit, and the clients' errors when brokers do
    not answer.
    """
    started = now()
    if config.archive is not None:
        return _measured(started, config, context, _of_archive(config.archive, config, context))
    with open_message_log(context, config.stores, config.work_path) as log:
        return _measured(started, config, context, _of_log(log, config))


def _measured(started: datetime, config: Config, context: Context, source: _Source) -> Report:
    spark, progress = context.spark, context.progress
    messages = source.messages
    events = trace_events(source.traces).persist()
    try:
        with progress.step("traces") as step, step.spark_jobs(spark):
            counts = _counts(events)
            step.outcome = f"{sum(counts.values()):,} events"
        known = events.where(f"kind <> '{MALFORMED}'")
        if not (config.stores or config.archive):
            known = measures.unwrapped(known, Namespace(context.cluster.namespace))
        if messages is not None:
            known = measures.of_topics(known, config.topics)
            messages = messages.persist()
        latencies = measures.latencies(known, messages).persist()
        with progress.step("latencies") as step, step.spark_jobs(spark):
            tables = measures.tables(latencies, known, messages, config.slowest, config.failed)
            report = make_report(started, source.what, counts, tables, config.limits, source.gaps())
            step.outcome = f"{len(report.latencies):,} distributions"
        latencies.unpersist()
        if messages is not None:
            messages.unpersist()
    finally:
        events.unpersist()
    return report


def _of_archive(archive: str, config: Config, context: Context) -> _Source:
    if not location(context.spark, archive, "archive").exists():
        raise ConfigError(
            f"archive is {archive!r}, which is no directory here; give the path of one"
        )

    def of(topics: list[str], columns: tuple[str, ...]) -> Any:
        return archived(context.spark, archive, topics, columns).drop("file")

    traces = of([config.trace_topic], TRACE_COLUMNS)
    messages = of(config.topics, _MESSAGE_COLUMNS) if config.topics else None
    # The archive's own report says what the archive did not get.
    return _Source(f"the archive {archive}", traces, messages, list)


def _of_log(log: MessageLog, config: Config) -> _Source:
    topics = [config.trace_topic, *config.topics]
    ranges = log.ranges(topics)
    check_topics(log, ranges, [config.trace_topic], "trace_topic")
    check_topics(log, ranges, config.topics, "topics")

    def of(names: list[str], columns: tuple[str, ...]) -> Any:
        chosen = {queue: bounds for queue, bounds in ranges.items() if queue.topic in names}
        return log.frame(chosen, columns)

    traces = of([config.trace_topic], TRACE_COLUMNS)
    messages = of(config.topics, _MESSAGE_COLUMNS) if config.topics else None
    return _Source(log.what, traces, messages, lambda: log.gaps(topics))


def _counts(events: Any) -> dict[str, int]:
    """Return how many events there are of each kind."""
    return {row["kind"]: row["count"] for row in events.groupBy("kind").count().collect()}
