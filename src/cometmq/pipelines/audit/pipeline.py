"""Audit that sent = stored = archived = consumed, by topic, queue and hour, and explain each
difference.

The audit reads in this order, so that what happens meanwhile changes no result: the ends of the
queues (the cut), the groups' offsets, the ends of the topics that serve as evidence, and then the
messages. Messages stored after the cut only show that a send was not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from cometmq.client.namespaces import Namespace
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.audit import batch_ids, blocks, rows
from cometmq.pipelines.audit import evidence as ev
from cometmq.pipelines.audit.archive import ArchiveNotes, archive_notes, archived
from cometmq.pipelines.audit.blocks import Block, Kind
from cometmq.pipelines.audit.causes import (
    LEDGER,
    OFFSETS,
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
from cometmq.pipelines.small_tables import collected

__all__ = ["Config", "Report", "run"]

_HOUR_MS: Final = 3_600_000
_WHERE: Final = (*rows.QUEUE, "hour")
_WHAT: Final = ("difference", "grp", "cause", "explained")
_NO_DIFFERENCE: Final = {
    "difference": "string",
    "grp": "string",
    "cause": "string",
    "explained": "boolean",
    "count": "bigint",
    "example": "string",
}


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


class Seen(NamedTuple):
    """What the places of a queue tell together: the times of the oldest message of the log and of the
    newest one, the highest archived offset, and how many messages came in batches.
    """

    oldest_ms: int | None
    newest_ms: int | None
    archived: int | None
    of_batches: int

    def plus(self, other: Seen) -> Seen:
        return Seen(
            _of_both(min, self.oldest_ms, other.oldest_ms),
            _of_both(max, self.newest_ms, other.newest_ms),
            _of_both(max, self.archived, other.archived),
            self.of_batches + other.of_batches,
        )


def _of_both(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


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
        self._has_batches = False
        self._others: list[Any] = []
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
            self._places, count = self._read_places()
            step.outcome = f"{count:,} places"
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
            notes = archive_notes(self._spark, config.archive, config.topics)
            names = [name for name in columns if name != "file"]
            archive = archived(self._spark, config.archive, config.topics, names)
        latest = self._log.ranges(config.topics)
        whole: Ranges = {
            queue: (low, max(end, latest.get(queue, (0, 0))[1]))
            for queue, (low, end) in self.cut.log.items()
        }
        return _Sources(self._log.frame(whole, columns), archive, notes, *frames)

    def _read_places(self) -> tuple[Any, int]:
        """Return a row for each place, and how many there are."""
        config, sources, spark = self._config, self._sources, self._spark
        known = sources.notes.known_files
        # The log of brokers goes on, so it is read once. A store stays as it is, and reading it again
        # in the JVM takes less than keeping its rows.
        logged = rows.facts(sources.messages, config)
        if not self._log.reads_again:
            logged = self._keep(logged)
        log, self._extents = blocks.sums_of(logged)
        archive: Any = None
        archived: dict[Block, blocks.Sums] = {}
        if sources.archive is not None:
            archive = rows.facts(sources.archive, config, "file")
            archived, _ = blocks.sums_of(archive, known)
        kinds = blocks.kinds_of(log, archived)
        self._kinds, self._log_sums = kinds, log
        as_logged = blocks.in_blocks(spark, logged, kinds, (Kind.BOTH, Kind.LOG))
        places = rows.told_places(as_logged)
        count = sum(log[b].messages for b, kind in kinds.items() if kind in (Kind.BOTH, Kind.LOG))
        others: list[Any] = []
        if archive is not None and Kind.ARCHIVE in kinds.values():
            as_archived = blocks.in_blocks(spark, archive, kinds, (Kind.ARCHIVE,))
            others.append(rows.told_places(as_archived))
        if Kind.MIXED in kinds.values():
            mixed_log, mixed_archive = (
                None
                if each is None
                else blocks.in_blocks(spark, each, kinds, (Kind.MIXED,)).drop("kind")
                for each in (logged, archive)
            )
            others.append(rows.places(mixed_log, mixed_archive, known))
        for each in others:
            kept = self._keep(each)
            self._others.append(kept)
            count += kept.count()
            places = places.unionByName(kept)
        return places, count

    def _as_told(self) -> Iterable[tuple[Block, Kind]]:
        """Yield the blocks whose messages of the log are rows as they stand."""
        for block, kind in self._kinds.items():
            if kind in (Kind.BOTH, Kind.LOG):
                yield block, kind

    def _seen(self) -> dict[MessageQueue, Seen]:
        """Return what the places of each queue tell together."""
        from pyspark.sql import functions as f

        seen: dict[MessageQueue, Seen] = {}
        for block, kind in self._as_told():
            one = self._extents[block]
            told = Seen(
                one.oldest_ms,
                one.newest_ms,
                one.last if kind is Kind.BOTH else None,
                one.of_batches,
            )
            queue = MessageQueue(*block[:3])
            seen[queue] = seen[queue].plus(told) if queue in seen else told
        for other in self._others:
            found = other.groupBy(*rows.QUEUE).agg(
                f.unix_millis(f.min(f.when(f.col("log_count") > 0, f.col("store_time")))),
                f.unix_millis(f.max("store_time")),
                f.max(f.when(f.col("archive_count") > 0, f.col("queue_offset"))),
                f.count("batch_msg_id"),
            )
            for row in found.collect():
                queue, told = MessageQueue(*row[:3]), Seen(*row[3:])
                seen[queue] = seen[queue].plus(told) if queue in seen else told
        return seen

    def _complete(self) -> set[Block]:
        """Return blocks of which surely no place is missing."""
        complete = set()
        for block, _ in self._as_told():
            queue = MessageQueue(*block[:3])
            if queue in self.cut.log:
                first, end = self.cut.begin(queue), self.cut.log[queue][1]
                sums, extent = self._log_sums[block], self._extents[block]
                if blocks.lacks_nothing(block, sums, extent, first, end):
                    complete.add(block)
        return complete

    def _look(self) -> Told:
        """Return what all places together tell."""
        notes = self._sources.notes
        seen = self._seen()
        self._has_batches = any(row.of_batches for row in seen.values())
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

        config = self._config
        bounds = rows.log_bounds(self._spark, self.cut, config.groups)
        whole = rows.with_missing(self._places, bounds, self._complete())
        whole = rows.with_copies(whole, config.resend_window_s, self._keep)
        whole = rows.with_key_copies(whole, self._keep, by_key=config.business_key is not None)
        gaps = self._log.gaps(config.topics)
        whole = rows.with_gaps(self._spark, whole, gaps, self._sources.notes)
        if config.sent or config.consumed or config.trace_topic or self._has_batches:
            whole = self._keep(whole)  # evidence is looked for in it
        evidence = self._keep(ev.by_id(self._known_evidence(whole), config.groups))
        self.told = replace(self.told, first_sent_ms=_first_sent_ms(evidence))
        joined = _joined(whole, evidence).where("late is null or not late")
        counts = [name for name in evidence.columns if not name.endswith(("_id", "topic", "_ms"))]
        return _grouped(joined.fillna(0, counts), self.told)

    def _known_evidence(self, whole: Any) -> Any:
        config, evidence, told = self._config, self._evidence, self.told
        known = whole.where("copy = 1")
        members = None
        if self._has_batches:
            ids = known.select("topic", "msg_id", "batch_msg_id", "queue_offset")
            members = self._keep(batch_ids.batches(ids))
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
                ids = batch_ids.known_ids(known, members)
                frames.append(evidence.consumed_by_trace(events, ids))
        if sent is not None:
            frames.append(evidence.sent_by_ledger(self._sources.sent, sent, by_key))
        if consumed is not None and config.groups:
            frames.append(evidence.consumed_by_ledger(self._sources.consumed, consumed, by_key))
        union = ev.nothing(self._spark)
        for frame in frames:
            union = union.union(frame)
        return union if members is None else batch_ids.dealt_out(self._keep(union), members)

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


def _joined(whole: Any, evidence: Any) -> Any:
    """Return all rows with the evidence of their messages, and a row for evidence of others."""
    from pyspark.sql import functions as f

    known = f.col("msg_id").isNotNull()
    by = ["topic", "msg_id"]
    if evidence.count() > rows.MOST_BROADCAST:
        # Offsets without a message have no id, so the join would put them all into one task.
        joined = whole.where(known).join(evidence, by, "full")
        return joined.unionByName(whole.where(~known), allowMissingColumns=True)
    evidence = collected(evidence)
    little = f.broadcast(evidence)
    met = whole.where(known).select(*by).join(little.select(*by), by, "left_semi").distinct()
    others = evidence.join(f.broadcast(collected(met)), by, "left_anti")
    return whole.join(little, by, "left").unionByName(others, allowMissingColumns=True)


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
    # Python would convert a timestamp to the driver's own time zone.
    where = (*rows.QUEUE, f.floor(f.unix_millis(time) / _HOUR_MS).alias("hour"))
    # Numbers and differences are summed apart: every row has numbers, and sums of mere numbers need
    # no sorting, while few rows have differences. If none has, nothing is read for them.
    differences = Differences(told).column()
    sums = collected(
        joined.groupBy(*where).agg(
            *(f.sum(column.cast("bigint")).alias(name) for name, column in counted.items()),
            f.count_if(f.size(differences) > 0).alias("differing"),
        )
    )
    numbered = sums.select(
        *_WHERE,
        *(f.lit(None).cast(kind).alias(name) for name, kind in _NO_DIFFERENCE.items()),
        f.array(*counted).alias("numbers"),
    )
    if sums.where("differing > 0").isEmpty():
        return numbered
    each = joined.select(
        *where,
        f.struct(time.alias("time"), example.alias("text")).alias("example"),
        f.explode(differences).alias("found"),
    )
    differing = (
        each.groupBy(*_WHERE, *(f.col(f"found.{name}").alias(name) for name in _WHAT))
        .agg(
            f.sum("found.count").alias("count"),
            f.min("example").getField("text").alias("example"),
        )
        .select(
            *_WHERE, *_WHAT, "count", "example", f.array().cast("array<bigint>").alias("numbers")
        )
    )
    return numbered.union(differing)
