"""Compare the messages sent, stored, archived and consumed, and count numbers and differences.

A comparison reads in this order, so that events meanwhile change no result: the ends of the
queues (the cut), the groups' offsets, the ends of the topics that serve as evidence, and then the
messages. Messages stored after the cut only show that a send was not lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from cometmq.client.namespaces import Namespace
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.audit import batch_ids, blocks, rows
from cometmq.pipelines.audit import evidence as ev
from cometmq.pipelines.audit.archive import ArchiveNotes, archive_notes, archived
from cometmq.pipelines.audit.blocks import Block, Kind, Seen
from cometmq.pipelines.audit.causes import (
    LEDGER,
    OFFSETS,
    TRACE,
    Basis,
    Differences,
    Numbers,
    offsets_source,
)
from cometmq.pipelines.audit.found import Found
from cometmq.pipelines.audit.settings import Config, Ledger
from cometmq.pipelines.context import Context
from cometmq.pipelines.known_names import unknown_name
from cometmq.pipelines.message_logs import (
    MessageLog,
    Ranges,
    check_topics,
    no_messages,
)
from cometmq.pipelines.small_tables import collected

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


@dataclass(frozen=True)
class Sources:
    """Holds what is compared, as it is when the comparison runs."""

    messages: Any
    archive: Any | None
    notes: ArchiveNotes
    sent: Any | None
    consumed: Any | None


class Comparison:
    """Compares all that log, archive and evidence have.

    A round of a stream compares a part. It overrides the methods that choose what is read, and that
    add what earlier rounds know (`stream_round`).

    `cut` and `basis` are set by `found`, for the report.
    """

    def __init__(self, config: Config, context: Context, log: MessageLog) -> None:
        self._config = config
        self._context = context
        self._spark = context.spark
        self._log = log
        self._kept: list[Any] = []
        self._has_batches = False
        self._others: list[Any] = []
        self.cut_ms = 0
        self.newest_ms: dict[MessageQueue, int] = {}

    def found(self) -> list[Found]:
        """Read and compare; return numbers and differences by topic, queue, hour and cause."""
        context = self._context
        with context.progress.step("cut") as step:
            self.cut_ms = context.clock.now_ms()
            self.cut = self._take_cut()
            step.outcome = f"{len(self.cut.log):,} queues"
        with context.progress.step("log and archive") as step, step.spark_jobs(self._spark):
            self._read()
            step.outcome = f"{self._count:,} places"
        with context.progress.step("compare") as step, step.spark_jobs(self._spark):
            found = self._compared()
            step.outcome = f"{sum(each.difference is not None for each in found):,} differences"
        return found

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
            "sent": named(self.basis.sent_by, ledgers[0], "offsets that brokers have given"),
            "stored": self._log.what,
            "archived": self._config.archive or "no archive is named",
        }
        for group, by in self.basis.consumed_by.items():
            offsets = offsets_source(self.cut.committed.get(group, {}).values())
            said[f"consumed by {group}"] = named(by, ledgers[1], offsets)
        return said

    # Overridden by a round of a stream

    def _bounds(
        self, ranges: Ranges, committed: Mapping[str, Mapping[MessageQueue, int | None]]
    ) -> rows.Bounds:
        """Return the part to compare of queues that now have these ranges."""
        return rows.Bounds(ranges, committed=committed)

    def _evidence_ranges(self, ranges: Ranges) -> Ranges:
        """Return the ranges to read of the topics that serve as evidence."""
        return ranges

    def _ledger(self, frame: Any, ledger: Ledger, key: str) -> Any:
        """Return the rows of a ledger that count."""
        del ledger, key
        return frame

    def _archive(self) -> tuple[ArchiveNotes, Any]:
        """Return the archive's notes about itself, and its messages with `file`."""
        config = self._config
        assert config.archive is not None, "asked only where there is one"
        names = [name for name in rows.columns_for(config) if name != "file"]
        notes = archive_notes(self._spark, config.archive, config.topics)
        return notes, archived(self._spark, config.archive, config.topics, names)

    def _logged(self) -> Ranges:
        """Return the ranges to read of the log; messages behind the cut show what was not lost."""
        latest = self._log.ranges(self._config.topics)
        return {
            queue: (low, max(end, latest.get(queue, (0, 0))[1]))
            for queue, (low, end) in self.cut.log.items()
        }

    def _whole(self, places: Any, bounds: Any) -> Any:
        """Return all rows, made of the places that were read: without copies and gaps yet."""
        return rows.with_missing(places, bounds, self._complete())

    def _reads_rows_again(self) -> bool:
        """Say whether evidence is looked for in the rows before they are counted."""
        return bool(self._config.sent or self._config.consumed or self._config.trace_topic)

    def _explained(self, whole: Any) -> Any:
        """Return the rows with the reasons of noted gaps."""
        gaps = self._log.gaps(self._config.topics)
        return rows.with_gaps(self._spark, whole, gaps, self._sources.notes)

    def _of_messages(self, evidence: Any) -> Any:
        """Return evidence by messages, with what earlier rounds know of it."""
        return evidence

    def _expired_ms(self, oldest_ms: Mapping[MessageQueue, int]) -> dict[str, int]:
        """Return `Basis.expired_ms`. oldest_ms: of the messages that were read of each queue."""
        expired_ms: dict[str, int] = {}
        for queue in self._shortened():
            oldest = oldest_ms.get(queue, self.cut_ms)
            expired_ms[queue.topic] = min(oldest, expired_ms.get(queue.topic, oldest))
        return expired_ms

    def _first_sent_ms(self, evidence: Any) -> dict[str, int]:
        from pyspark.sql import functions as f

        first = evidence.groupBy("topic").agg(f.min("sent_ms").alias("first"))
        known = first.where("first is not null").select("topic", "first")
        return {row.topic: row.first for row in known.collect()}

    def _summed(self, judged: Any) -> list[Found]:
        """Return the rows and the evidence of others, each with its verdict, by place and cause."""
        differences = Differences(self.basis).column()
        return [Found(*row) for row in grouped(judged, self.basis, differences).collect()]

    # Inside

    def _take_cut(self) -> rows.Bounds:
        config = self._config
        ranges = self._log.ranges(config.topics)
        check_topics(self._log, ranges, config.topics, "topics")
        committed = {group: self._log.committed(group, config.topics) for group in config.groups}
        # A broker before 5.0 says 0 instead of none, even of a group that it does not know.
        strange = [group for group, offsets in committed.items() if not any(offsets.values())]
        if strange and self._said_by(config.consumed) == OFFSETS:
            self._check_groups(strange)
        return self._bounds(ranges, committed)

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

    def _read(self) -> None:
        config, log = self._config, self._log
        ranges = self._evidence_ranges(log.ranges(ev.asked_topics(config)))
        waiting = log.frame(ev.waiting_ranges(ranges, config), ev.WAITING_COLUMNS)
        self._evidence = ev.Evidence(
            self._spark,
            config,
            log,
            ranges,
            self._keep(waiting),
            Namespace(None if config.stores else self._context.cluster.namespace),
        )
        self._sources = self._open()
        self._places, self._count = self._read_places()
        self.basis = self._look()

    def _open(self) -> Sources:
        """Open ledgers and archive before the log is read to its end, so that the log has all that
        they mention.
        """
        config = self._config
        sent, consumed = config.sent_ledger(), config.consumed_ledger()
        frames = [
            self._ledger(ev.read_ledger(self._spark, ledger, key), ledger, key) if ledger else None
            for ledger, key in ((sent, "sent"), (consumed, "consumed"))
        ]
        columns = rows.columns_for(config)
        rows.facts(no_messages(self._spark, columns), config)  # raises for a wrong expression
        notes, archive = ArchiveNotes(), None
        if config.archive is not None:
            notes, archive = self._archive()
        return Sources(self._log.frame(self._logged(), columns), archive, notes, *frames)

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
        places = rows.places_of_blocks(as_logged)
        count = sum(log[b].messages for b, kind in kinds.items() if kind in (Kind.BOTH, Kind.LOG))
        others: list[Any] = []
        if archive is not None and Kind.ARCHIVE in kinds.values():
            as_archived = blocks.in_blocks(spark, archive, kinds, (Kind.ARCHIVE,))
            others.append(rows.places_of_blocks(as_archived))
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

    def _as_reported(self) -> Iterable[tuple[Block, Kind]]:
        """Yield the blocks whose messages of the log are rows as they stand."""
        for block, kind in self._kinds.items():
            if kind in (Kind.BOTH, Kind.LOG):
                yield block, kind

    def _seen(self) -> dict[MessageQueue, Seen]:
        """Return the sums over the places of each queue."""
        from pyspark.sql import functions as f

        seen: dict[MessageQueue, Seen] = {}
        for block, kind in self._as_reported():
            queue, reported = MessageQueue(*block[:3]), Seen.of_block(self._extents[block], kind)
            seen[queue] = seen[queue].plus(reported) if queue in seen else reported
        for other in self._others:
            found = other.groupBy(*rows.QUEUE).agg(
                f.unix_millis(f.min(f.when(f.col("log_count") > 0, f.col("store_time")))),
                f.unix_millis(f.max("store_time")),
                f.max(f.when(f.col("archive_count") > 0, f.col("queue_offset"))),
                f.count("batch_msg_id"),
            )
            for row in found.collect():
                queue, reported = MessageQueue(*row[:3]), Seen(*row[3:])
                seen[queue] = seen[queue].plus(reported) if queue in seen else reported
        return seen

    def _complete(self) -> set[Block]:
        """Return blocks of which surely no place is missing."""
        complete = set()
        for block, _ in self._as_reported():
            queue = MessageQueue(*block[:3])
            if queue in self.cut.log:
                first, end = self.cut.begin(queue), self.cut.log[queue][1]
                sums, extent = self._log_sums[block], self._extents[block]
                if blocks.lacks_nothing(block, sums, extent, first, end):
                    complete.add(block)
        return complete

    def _look(self) -> Basis:
        """Return the sums over all places."""
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
        oldest_ms = {q: row.oldest_ms for q, row in seen.items() if row.oldest_ms is not None}
        self.newest_ms = {q: row.newest_ms for q, row in seen.items() if row.newest_ms is not None}
        return Basis(
            self._config,
            self._said_by(self._config.sent),
            {group: self._said_by(self._config.consumed) for group in self._config.groups},
            frozenset(group for group, offsets in self.cut.committed.items() if offsets),
            self.cut_ms,
            {},
            self._expired_ms(oldest_ms),
        )

    def _shortened(self) -> Iterable[MessageQueue]:
        """Yield the queues that may have lost messages which nothing else holds."""
        gaps = {gap.place for gap in self._sources.notes.gaps}
        for queue, (low, _) in self.cut.log.items():
            first, to = self.cut.archived.get(queue, (low, 0))
            if low > 0 and (first > 0 or to < low or rows.queue_columns(queue) in gaps):
                yield queue

    def _said_by(self, ledger: str | Ledger | None) -> str:
        """Return the kind of evidence for sends or consumptions if this ledger may be given."""
        if ledger is not None:
            return LEDGER
        return TRACE if self._config.trace_topic else OFFSETS

    def _compared(self) -> list[Found]:
        config = self._config
        bounds = rows.log_bounds(self._spark, self.cut, config.groups)
        whole = self._whole(self._places, bounds)
        whole = rows.with_copies(whole, config.resend_window_s, self._keep)
        whole = rows.with_key_copies(whole, self._keep, by_key=config.business_key is not None)
        whole = self._explained(whole)
        if self._reads_rows_again():
            whole = self._keep(whole)
        known = ev.by_id(self._known_evidence(whole), config.groups)
        evidence = self._keep(self._of_messages(known))
        self.basis = replace(self.basis, first_sent_ms=self._first_sent_ms(evidence))
        joined = _joined(whole, evidence).where("late is null or not late")
        counts = [name for name in evidence.columns if not name.endswith(("_id", "topic", "_ms"))]
        return self._summed(joined.fillna(0, counts))

    def _known_evidence(self, whole: Any) -> Any:
        config, evidence, basis = self._config, self._evidence, self.basis
        known = whole.where("copy = 1")
        in_batches = known.select("topic", "msg_id", "batch_msg_id", "queue_offset")
        members = None
        by_key = whole.where("key_copy = 1").select("topic", "msg_id", "key")
        frames = [evidence.retried(at, group) for at, group in enumerate(config.groups)]
        if config.groups or basis.sent_by != OFFSETS:
            frames.append(evidence.delayed())
        if basis.sent_by != OFFSETS:
            frames.append(evidence.halves())
        sent, consumed = config.sent_ledger(), config.consumed_ledger()
        if config.trace_topic:
            events = self._keep(evidence.traces())
            if basis.sent_by == TRACE:
                frames.append(evidence.sent_by_trace(events))
            if TRACE in basis.consumed_by.values():
                if self._has_batches:
                    members = self._keep(batch_ids.batches(in_batches))
                ids = batch_ids.known_ids(known, members)
                frames.append(evidence.consumed_by_trace(events, ids))
        if sent is not None:
            frames.append(evidence.sent_by_ledger(self._sources.sent, sent, by_key))
        if consumed is not None and config.groups:
            frames.append(evidence.consumed_by_ledger(self._sources.consumed, consumed, by_key))
        union = ev.nothing(self._spark)
        for frame in frames:
            union = union.union(frame)
        if not self._has_batches or not frames:
            return union
        return batch_ids.of_messages(self._keep(union), in_batches, members, self._keep)

    def _keep(self, frame: Any) -> Any:
        """Persist a frame, so that it is read only once."""
        kept = frame.persist()
        self._kept.append(kept)
        return kept


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


def grouped(joined: Any, basis: Basis, differences: Any, *by: str) -> Any:
    """Return the fields of Found, grouped by place and by difference, and the columns `by` by which
    they are divided, too.

    differences: the column with the differences of each row.
    """
    from pyspark.sql import functions as f

    numbers = Numbers(basis)
    counted = {"sent": numbers.sent, "stored": numbers.stored, "archived": numbers.archived} | {
        f"consumed_{at}": column for at, column in enumerate(numbers.consumed)
    }
    time = f.coalesce("store_time", f.timestamp_millis(f.coalesce("sent_ms", "done_ms")))
    place = f.concat_ws(":", "broker", "queue_id", "queue_offset")
    example = f.concat_ws(
        " at ", f.coalesce("msg_id", f.lit("no message")), f.when(place != "", place)
    )
    # Python would convert a timestamp to the driver's own time zone.
    where = (*rows.QUEUE, f.floor(f.unix_millis(time) / _HOUR_MS).alias("hour"), *by)
    # Numbers and differences are summed apart: every row has numbers, and sums of mere numbers need
    # no sorting, while few rows have differences. If none has, nothing is read for them.
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
        *by,
    )
    if sums.where("differing > 0").isEmpty():
        return numbered
    each = joined.select(
        *where,
        f.struct(time.alias("time"), example.alias("text")).alias("example"),
        f.explode(differences).alias("found"),
    )
    differing = (
        each.groupBy(*_WHERE, *by, *(f.col(f"found.{name}").alias(name) for name in _WHAT))
        .agg(
            f.sum("found.count").alias("count"),
            f.min("example").getField("text").alias("example"),
        )
        .select(
            *_WHERE,
            *_WHAT,
            "count",
            "example",
            f.array().cast("array<bigint>").alias("numbers"),
            *by,
        )
    )
    return numbered.union(differing)
