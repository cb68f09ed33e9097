"""Audit that sent = stored = archived = consumed, by topic, queue and hour, and explain each
difference.

The audit reads in this order, so that what happens meanwhile changes no result: the ends of the
queues (the cut), the groups' offsets, the ends of the topics that serve as evidence, and then the
messages. Messages stored after the cut only show that a send was not lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from cometmq.client.namespaces import Namespace
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.audit import evidence as ev
from cometmq.pipelines.audit import rows
from cometmq.pipelines.audit.archive import ArchiveNotes, archive_notes, archived
from cometmq.pipelines.audit.causes import (
    LEDGER,
    OFFSETS,
    STRUCT,
    TRACE,
    Differences,
    Numbers,
    Told,
)
from cometmq.pipelines.audit.report import Found, Report, make_report
from cometmq.pipelines.audit.settings import Config, Ledger
from cometmq.pipelines.context import Context
from cometmq.pipelines.known_names import unknown_name
from cometmq.pipelines.message_logs import (
    MessageLog,
    Ranges,
    check_topics,
    no_messages,
    open_message_log,
)
from cometmq.pipelines.report import now

__all__ = ["Config", "Report", "run"]

_HOUR_MS: Final = 3_600_000
_WHERE: Final = (*rows.QUEUE, "hour")
_WHAT: Final = ("difference", "grp", "cause", "explained")


def run(config: Config, context: Context) -> Report:
    """Audit the topics.

    Raise ConfigError for a configuration that does not fit, and the clients' errors when brokers do
    not answer.
    """
    started = now()
    with open_message_log(context, config.stores, config.work_path) as log:
        audit = _Audit(config, context, log)
        try:
            return make_report(started, config, audit.told, audit.cut, audit.what(), audit.found())
        finally:
            audit.close()


@dataclass(frozen=True)
class _Sources:
    """What the audit reads, as it is when the audit runs."""

    messages: Any
    archive: Any | None
    notes: ArchiveNotes
    sent: Any | None
    consumed: Any | None


class _Audit:
    def __init__(self, config: Config, context: Context, log: MessageLog) -> None:
        self._config = config
        self._context = context
        self._spark = context.spark
        self._log = log
        self._kept: list[Any] = []
        with context.progress.step("cut") as step:
            self.cut_ms = context.clock.now_ms()
            self.cut = self._take_cut()
            step.outcome = f"{len(self.cut.log):,} queues"
        with context.progress.step("log and archive") as step, step.spark_jobs(self._spark):
            ranges = log.ranges(ev.asked_topics(config))
            waiting = log.frame(ev.waiting_ranges(ranges, config), ev.WAITING_COLUMNS)
            self._evidence = ev.Evidence(
                self._spark,
                config,
                log,
                ranges,
                self._keep(waiting),
                Namespace(None if config.stores else context.cluster.namespace),
            )
            self._sources = self._open()
            self._places = self._keep(self._read_places())
            step.outcome = f"{self._places.count():,} places"
        self.told = self._look()

    def close(self) -> None:
        for frame in self._kept:
            frame.unpersist()

    def what(self) -> dict[str, str]:
        """Return where each number comes from."""
        ledgers = self._config.sent_ledger(), self._config.consumed_ledger()
        trace = f"traces in {self._config.trace_topic}"

        def named(by: str, ledger: Any, offsets: str) -> str:
            return {LEDGER: f"ledger {ledger.path}" if ledger else "", TRACE: trace}.get(
                by, offsets
            )

        said = {
            "sent": named(self.told.sent_by, ledgers[0], "offsets that brokers have given"),
            "stored": self._log.what,
            "archived": self._config.archive or "no archive is named",
        }
        for group, by in self.told.consumed_by.items():
            has_any = group in self.told.has_offsets
            offsets = "the group's offsets" + ("" if has_any else ", of which it has none")
            said[f"consumed by {group}"] = named(by, ledgers[1], offsets)
        return said

    def found(self) -> list[Found]:
        """Return numbers and differences by topic, queue, hour and cause."""
        context = self._context
        with context.progress.step("compare") as step, step.spark_jobs(self._spark):
            found = [Found(*row) for row in self._compared().collect()]
            step.outcome = f"{sum(each.difference is not None for each in found):,} differences"
        return found

    # Inside

    def _take_cut(self) -> rows.Bounds:
        config = self._config
        ranges = self._log.ranges(config.topics)
        check_topics(self._log, ranges, config.topics, "topics")
        committed = {group: self._log.committed(group, config.topics) for group in config.groups}
        # Brokers answer 0 for a group that they do not know if the queue still has its first
        # message.
        strange = [group for group, offsets in committed.items() if not any(offsets.values())]
        if strange and self._said_by(config.consumed) == OFFSETS:
            self._check_groups(strange)
        return rows.Bounds(ranges, committed=committed)

    def _check_groups(self, groups: Iterable[str]) -> None:
        """Raise ConfigError for a group that nobody knows, since every message would seem to wait
        for it.
        """
        known = self._log.groups()
        for group in groups:
            if group not in known:
                raise unknown_name(
                    f"groups names {group}, of which {self._log.what} knows nothing; there are",
                    group,
                    known,
                )

    def _open(self) -> _Sources:
        """Open ledgers and archive before the log is read to its end, so that the log has all that
        they mention.
        """
        config = self._config
        sent, consumed = config.sent_ledger(), config.consumed_ledger()
        frames = [
            ev.read_ledger(self._spark, ledger, key) if ledger else None
            for ledger, key in ((sent, "sent"), (consumed, "consumed"))
        ]
        columns = rows.columns_for(config)
        rows.facts(no_messages(self._spark, columns), config)  # raises for a wrong expression
        notes, archive = ArchiveNotes(), None
        if config.archive is not None:
            notes = archive_notes(config.archive, config.topics)
            names = [name for name in columns if name != "file"]
            archive = archived(self._spark, config.archive, config.topics, names)
        latest = self._log.ranges(config.topics)
        whole: Ranges = {
            queue: (low, max(end, latest.get(queue, (0, 0))[1]))
            for queue, (low, end) in self.cut.log.items()
        }
        return _Sources(self._log.frame(whole, columns), archive, notes, *frames)

    def _read_places(self) -> Any:
        config, sources = self._config, self._sources
        archive = None
        if sources.archive is not None:
            archive = rows.facts(sources.archive, config, "file")
        return rows.places(rows.facts(sources.messages, config), archive, sources.notes.known_files)

    def _look(self) -> Told:
        """Return what all places together tell."""
        from pyspark.sql import functions as f

        notes = self._sources.notes
        seen = {
            MessageQueue(row.topic, row.broker, row.queue_id): row
            for row in self._places.groupBy(*rows.QUEUE)
            .agg(
                f.unix_millis(f.min(f.when(f.col("log_count") > 0, f.col("store_time")))).alias(
                    "oldest_ms"
                ),
                f.unix_millis(f.max("store_time")).alias("newest_ms"),
                f.max(f.when(f.col("archive_count") > 0, f.col("queue_offset"))).alias("archived"),
            )
            .collect()
        }
        offsets = notes.offsets
        if self._config.archive is not None and notes.known_files is None:
            # The offsets of a mere directory of files reach as far as its files do.
            offsets = {
                queue: (self.cut.log[queue][0], row.archived + 1)
                for queue, row in seen.items()
                if row.archived is not None and queue in self.cut.log
            }
        self.cut = replace(self.cut, archived=offsets)
        if self._config.stores:
            self.cut_ms = max((row.newest_ms or 0 for row in seen.values()), default=0)
        expired_ms: dict[str, int] = {}
        for queue in self._shortened():
            row = seen.get(queue)
            oldest = self.cut_ms if row is None or row.oldest_ms is None else row.oldest_ms
            expired_ms[queue.topic] = min(oldest, expired_ms.get(queue.topic, oldest))
        return Told(
            self._config,
            self._said_by(self._config.sent),
            {group: self._said_by(self._config.consumed) for group in self._config.groups},
            frozenset(group for group, offsets in self.cut.committed.items() if offsets),
            self.cut_ms,
            {},
            expired_ms,
        )

    def _shortened(self) -> Iterable[MessageQueue]:
        """Yield the queues that may have lost messages which nothing else holds."""
        gaps = {gap.place for gap in self._sources.notes.gaps}
        for queue, (low, _) in self.cut.log.items():
            first, to = self.cut.archived.get(queue, (low, 0))
            if low > 0 and (first > 0 or to < low or rows.queue_columns(queue) in gaps):
                yield queue

    def _said_by(self, ledger: str | Ledger | None) -> str:
        """Return what says which messages were sent, or consumed, where this ledger may be given."""
        if ledger is not None:
            return LEDGER
        return TRACE if self._config.trace_topic else OFFSETS

    def _compared(self) -> Any:
        from pyspark.sql import functions as f

        config = self._config
        bounds = rows.log_bounds(self._spark, self.cut, config.groups)
        whole = rows.with_missing(self._places, bounds)
        whole = rows.with_copies(
            whole, config.resend_window_s, by_key=config.business_key is not None
        )
        gaps = self._log.gaps(config.topics)
        whole = rows.with_gaps(self._spark, whole, gaps, self._sources.notes)
        whole = self._keep(whole)
        evidence = self._keep(ev.by_id(self._known_evidence(whole), config.groups))
        self.told = replace(self.told, first_sent_ms=_first_sent_ms(evidence))
        # Offsets without a message have no id, so the join would put them all into one task.
        known = f.col("msg_id").isNotNull()
        joined = whole.where(known).join(evidence, ["topic", "msg_id"], "full")
        joined = joined.unionByName(whole.where(~known), allowMissingColumns=True)
        joined = joined.where("late is null or not late")
        counts = [name for name in evidence.columns if not name.endswith(("_id", "topic", "_ms"))]
        return _grouped(joined.fillna(0, counts), self.told)

    def _known_evidence(self, whole: Any) -> Any:
        config, evidence, told = self._config, self._evidence, self.told
        known = whole.where("copy = 1").select("topic", "msg_id", "key")
        by_key = whole.where("key_copy = 1").select("topic", "msg_id", "key")
        frames = [evidence.retried(at, group) for at, group in enumerate(config.groups)]
        if config.groups or told.sent_by != OFFSETS:
            frames.append(evidence.delayed())
        if told.sent_by != OFFSETS:
            frames.append(evidence.halves())
        sent, consumed = config.sent_ledger(), config.consumed_ledger()
        if config.trace_topic:
            events = self._keep(evidence.traces())
            if told.sent_by == TRACE:
                frames.append(evidence.sent_by_trace(events))
            if TRACE in told.consumed_by.values():
                frames.append(evidence.consumed_by_trace(events, known))
        if sent is not None:
            frames.append(evidence.sent_by_ledger(self._sources.sent, sent, by_key))
        if consumed is not None and config.groups:
            frames.append(evidence.consumed_by_ledger(self._sources.consumed, consumed, by_key))
        union = ev.nothing(self._spark)
        for frame in frames:
            union = union.union(frame)
        return union

    def _keep(self, frame: Any) -> Any:
        """Persist a frame, so that it is read only once."""
        kept = frame.persist()
        self._kept.append(kept)
        return kept


def _first_sent_ms(evidence: Any) -> dict[str, int]:
    from pyspark.sql import functions as f

    first = (
        evidence.groupBy("topic").agg(f.min("sent_ms").alias("first")).where("first is not null")
    )
    return {row.topic: row.first for row in first.select("topic", "first").collect()}


def _grouped(joined: Any, told: Told) -> Any:
    """Return the fields of Found, grouped by place and by difference."""
    from pyspark.sql import functions as f

    numbers = Numbers(told)
    counted = {"sent": numbers.sent, "stored": numbers.stored, "archived": numbers.archived} | {
        f"consumed_{at}": column for at, column in enumerate(numbers.consumed)
    }
    time = f.coalesce("store_time", f.timestamp_millis(f.coalesce("sent_ms", "done_ms")))
    place = f.concat_ws(":", "broker", "queue_id", "queue_offset")
    example = f.concat_ws(
        " at ", f.coalesce("msg_id", f.lit("no message")), f.when(place != "", place)
    )
    # Each row gives one row for its numbers and one for each of its differences.
    nothing = f.lit(None).cast(STRUCT)
    each = joined.select(
        *rows.QUEUE,
        # Python would convert a timestamp to the driver's own time zone.
        f.floor(f.unix_millis(time) / _HOUR_MS).alias("hour"),
        *(column.cast("bigint").alias(f"n_{name}") for name, column in counted.items()),
        f.struct(time.alias("time"), example.alias("text")).alias("example"),
        f.explode(f.concat(f.array(nothing), Differences(told).column())).alias("found"),
    )
    is_number = f.col("found").isNull()
    return (
        each.groupBy(*_WHERE, *(f.col(f"found.{name}").alias(name) for name in _WHAT))
        .agg(
            f.sum("found.count").alias("count"),
            f.min("example").getField("text").alias("example"),
            f.array(
                *(f.sum(f.when(is_number, f.col(f"n_{name}"))) for name in counted),
            ).alias("numbers"),
        )
        .select(*_WHERE, *_WHAT, "count", "example", "numbers")
    )
