"""Compare, in one round of a stream, new messages and those without a verdict.

Messages are read once. Facts of messages without a verdict stay in tables (`stream_state`) to be
judged again. Facts of judged messages stay for a while, to show that copies and late evidence belong
to something. Evidence is read again from the oldest message on that waits.

A message gets its verdict when

- it was stored `hold_s` ago, so that everything that follows a message soon (its archiving, records
  of its sending and consuming, copies of it) was read;
- none of its differences has a cause that time removes (`settings.WAITING`), or `patience_s` are over;
- no difference was without an explanation for the first time less than `hold_s` ago.

A send or consumption of which no message is known gets its verdict by the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, NamedTuple

from cometmq.errors import ConfigError, DataLossError
from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.layout import layout_of
from cometmq.pipelines.audit import evidence as ev
from cometmq.pipelines.audit import rows
from cometmq.pipelines.audit.archive import ArchiveNotes, archive_notes, archived
from cometmq.pipelines.audit.causes import Differences
from cometmq.pipelines.audit.comparison import Comparison, grouped
from cometmq.pipelines.audit.found import Found
from cometmq.pipelines.audit.settings import DELAYED_SEND, WAITING, Config, Ledger
from cometmq.pipelines.audit.streaming.stream_state import (
    Judged,
    Place,
    State,
    StateDirectory,
    oldest_first,
)
from cometmq.pipelines.context import Context
from cometmq.pipelines.message_logs import MessageLog, Ranges, no_messages
from cometmq.pipelines.small_tables import small_table
from cometmq.spark.live.admission import shared
from cometmq.spark.live.identity import LiveIdentity, Marks

# Clocks of brokers, clients and the driver differ by less.
_CLOCKS_APART_MS: Final = 60_000
# The further columns of a table of messages, beside their facts.
_KEPT: Final = (
    "log_count bigint, archive_count bigint, differs boolean, stray boolean, log_gap string, "
    "aside boolean, seen_ms bigint, doubt_ms bigint"
)
_PENDING: Final = "topic string, msg_id string, item_seen_ms bigint, item_doubt_ms bigint"
_ID: Final = ("topic", "msg_id")


@dataclass(frozen=True)
class Outcome:
    """Holds the findings of a round. judged: for good. waiting: judged again by the next round.

    state: as it is when the round is committed, but for the sums.
    is_behind: the log has more that could be read at once.
    """

    judged: list[Found]
    waiting: list[Found]
    state: State
    is_behind: bool


class _Left(NamedTuple):
    """The rest for further rounds: the names of its tables, and the time of the oldest message."""

    open: str
    pending: str
    judged: str
    oldest_ms: int | None


class Round(Comparison):
    def __init__(
        self,
        config: Config,
        context: Context,
        log: MessageLog,
        state: State,
        directory: StateDirectory,
    ) -> None:
        super().__init__(config, context, log)
        self._state = state
        self._directory = directory
        self._limited: set[MessageQueue] = set()
        self._marks: Marks = {}
        self._waiting: list[Found] = []
        self._hold_ms = round(config.hold_s * 1000)

    def outcome(self) -> Outcome:
        """Compare, and write the tables of the rest."""
        judged = self.found()
        cut_ms, left = self.cut_ms, self._left
        judged_ms = max(self._settled_ms, self._state.judged_ms or 0)
        oldest_ms = judged_ms if left.oldest_ms is None else min(left.oldest_ms, judged_ms)
        places = [
            Place(*queue, self._first[queue], end, low, self._marks.get(queue))
            for queue, (low, end) in sorted(self.cut.log.items())
        ]
        kept = [one for one in self._state.judged if one.cut_ms > self._remembered_ms]
        state = State(
            self._state.asked,
            self._state.started_ms,
            rounds=self._state.rounds + 1,
            cut_ms=cut_ms,
            read_ms=self._read_ms,
            judged_ms=judged_ms,
            since_ms=oldest_ms - self._hold_ms - _CLOCKS_APART_MS,
            queues=tuple(places),
            first_sent_ms=dict(self.basis.first_sent_ms),
            expired_ms=dict(self.basis.expired_ms),
            has_batches=self._has_batches,
            open=left.open,
            pending=left.pending,
            judged=(*kept, Judged(left.judged, cut_ms)),
            totals=self._state.totals,
            hours_from=self._state.hours_from,
        )
        return Outcome(judged, self._waiting, state, bool(self._limited))

    @property
    def _remembered_ms(self) -> int:
        """Return the time since which rounds have judged what is still looked at."""
        window_s = max(2 * self._config.hold_s, self._config.resend_window_s)
        return int(self.cut_ms - window_s * 1000)

    @cached_property
    def _read_ms(self) -> int:
        """Return the time before which everything that was stored has been read."""
        if not self._limited:
            return self.cut_ms
        known = self._state.read_ms
        return max(known, min(self.newest_ms.get(queue, known) for queue in self._limited))

    @property
    def _settled_ms(self) -> int:
        return self._read_ms - self._hold_ms

    # Reading

    def _bounds(
        self, ranges: Ranges, committed: Mapping[str, Mapping[MessageQueue, int | None]]
    ) -> rows.Bounds:
        known = self._state.by_queue()
        # Messages of a broker that is away keep waiting.
        away = {q: (place.low, place.to) for q, place in known.items() if q not in ranges}
        whole = {**ranges, **away}
        starts = self._starts(whole)
        identity = self._same_as_before(ranges, starts)
        for queue, (_, end) in whole.items():
            if starts[queue] > end:
                raise DataLossError(
                    f"{queue} was audited up to {starts[queue]:,} and ends at {end:,}: its topic "
                    f"was deleted and created again, or its broker lost messages. Audit it with "
                    f"another state"
                )
        lags = {queue: end - starts[queue] for queue, (_, end) in whole.items()}
        counts = shared(lags, self._config.max_messages)
        self._limited = {queue for queue, lag in lags.items() if counts[queue] < lag}
        self._first = {q: known[q].first if q in known else start for q, start in starts.items()}
        log = {queue: (low, starts[queue] + counts[queue]) for queue, (low, _) in whole.items()}
        self._marks = identity.set(self._log, {queue: end for queue, (_, end) in log.items()})
        return rows.Bounds(log, committed=committed, first=starts)

    def _same_as_before(self, ranges: Ranges, starts: Mapping[MessageQueue, int]) -> LiveIdentity:
        """Compare the queues with the marks of the last round. Raise DataLossError for a topic that
        was deleted and created again.
        """
        identity = LiveIdentity(0.0)
        known = self._state.by_queue()
        identity.marks = {queue: place.mark for queue, place in known.items() if place.mark}
        identity.compare(self._log, ranges, starts)
        for queue, found in sorted(identity.made_again.items()):
            raise DataLossError(
                f"topic {queue.topic} was deleted and made again since it was audited: {found}. "
                "Messages that the audit had not read are gone, and a further round would skip the new "
                f"topic's messages below offset {starts[queue]}. Audit the new topic with another state"
            )
        return identity

    def _starts(self, ranges: Ranges) -> dict[MessageQueue, int]:
        """Return from where on each queue is read."""
        known = self._state.by_queue()
        path = self._config.archive
        archive = {}
        if path is not None and not ranges.keys() <= known.keys():
            archived = layout_of(self._spark, path, "archive").load_state().queues
            archive = {one.queue: (one.first, one.to) for one in archived}
        begins = rows.Bounds(ranges, archive)
        return {
            queue: known[queue].to if queue in known else begins.begin(queue) for queue in ranges
        }

    def _evidence_ranges(self, ranges: Ranges) -> Ranges:
        since_ms = self._state.since_ms
        if since_ms is None:
            return ranges
        filled = [queue for queue, (low, end) in ranges.items() if low < end]
        found = self._log.at_time(filled, max(0, since_ms)) if filled else {}
        return {
            queue: (min(max(low, found.get(queue, low)), end), end)
            for queue, (low, end) in ranges.items()
        }

    def _ledger(self, frame: Any, ledger: Ledger, key: str) -> Any:
        return ev.since(frame, ledger, key, self._state.since_ms)

    def _archive(self) -> tuple[ArchiveNotes, Any]:
        from pyspark.sql import functions as f

        config, state = self._config, self._state
        assert config.archive is not None, "asked only where there is one"
        since_hour = ""
        if state.rounds:
            # Messages that wait, and those stored since the last round.
            oldest_ms = min(state.since_ms or 0, state.read_ms - _CLOCKS_APART_MS)
            since_hour = f"{datetime.fromtimestamp(max(0, oldest_ms) / 1000, UTC):%Y-%m-%dT%H}"
        notes = archive_notes(self._spark, config.archive, config.topics, since_hour)
        if notes.known_files is None:
            raise ConfigError(
                f"archive is {config.archive!r}, which is no archive of ours; a stream has to know "
                "how far it reaches"
            )
        names = [name for name in rows.columns_for(config) if name != "file"]
        self._archived = archived(self._spark, config.archive, config.topics, names, since_hour)
        read = small_table(
            self._spark,
            [
                (*rows.queue_columns(queue), self.cut.begin(queue), end)
                for queue, (_, end) in self.cut.log.items()
            ],
            "topic string, broker string, queue_id int, read_from bigint, read_to bigint",
        )
        joined = self._archived.join(f.broadcast(read), list(rows.QUEUE))
        new = joined.where("queue_offset >= read_from and queue_offset < read_to")
        return notes, new.select(*self._archived.columns)

    def _logged(self) -> Ranges:
        return {
            queue: (min(max(low, self.cut.begin(queue)), end), end)
            for queue, (low, end) in self.cut.log.items()
        }

    # Known from earlier rounds

    def _reads_rows_again(self) -> bool:
        return True  # what waits is kept for the next round

    def _whole(self, places: Any, bounds: Any) -> Any:
        from pyspark.sql import functions as f

        self._has_batches |= self._state.has_batches
        nothing = f.lit(None)
        fresh = (
            rows.with_missing(places, bounds, self._complete())
            .withColumn("seen_ms", f.lit(self.cut_ms).cast("bigint"))
            .withColumn("doubt_ms", nothing.cast("bigint"))
            .withColumn("earlier_gap", nothing.cast("string"))
        )
        earlier = self._earlier()
        if earlier is None:
            return fresh
        others = (
            earlier.withColumnRenamed("log_gap", "earlier_gap")
            .withColumnRenamed("aside", "late")
            .join(f.broadcast(bounds), list(rows.QUEUE))
        )
        return fresh.unionByName(others, allowMissingColumns=True)

    def _earlier(self) -> Any | None:
        """Return the messages of earlier rounds; None if there are none."""
        from pyspark.sql import functions as f

        state = self._state
        self._aside = None
        if not state.rounds:
            return None
        waits = self._table(state.open)
        gone = [one.name for one in state.judged if one.cut_ms <= self._remembered_ms]
        recent = [one.name for one in state.judged if one.name not in gone]
        # Messages with a copy that still waits are looked at for as long as the copy waits.
        self._aside = self._keep(waits.where("aside").unionByName(self._table(*gone)))
        judged = self._aside.unionByName(self._table(*recent)).withColumn("aside", f.lit(True))
        return self._looked_at_again(waits.where("not aside")).unionByName(judged)

    def _looked_at_again(self, waits: Any) -> Any:
        """Return messages that wait, with what the archive has of them now."""
        from pyspark.sql import functions as f

        if self._config.archive is None:
            return waits
        sound = (
            (f.col("archive_count") == 1) & ~f.coalesce("differs", f.lit(False)) & ~f.col("stray")
        )
        others = self._keep(waits.where(~sound))
        by = list(rows.PLACE)
        facts = self._facts.fieldNames()
        archive = rows.facts(self._archived, self._config, "file")
        there = archive.join(others.select(*by), by, "left_semi")
        logged = others.where("log_count > 0").select(*facts)
        known = self._sources.notes.known_files
        looked = rows.places(logged, there, known)
        kept = others.select(*by, "log_gap", "aside", "seen_ms", "doubt_ms")
        again = kept.join(looked, by, "left").fillna(0, ["log_count", "archive_count"])
        again = again.fillna(value=False, subset=["stray"])
        return waits.where(sound).unionByName(again.select(*waits.columns))

    def _explained(self, whole: Any) -> Any:
        from pyspark.sql import functions as f

        explained = super()._explained(whole)
        gap = f.coalesce("log_gap", "earlier_gap")
        return explained.withColumn("log_gap", gap).drop("earlier_gap")

    def _of_messages(self, evidence: Any) -> Any:
        pending = (
            self._spark.read.schema(_PENDING).parquet(
                str(self._directory.path / self._state.pending)
            )
            if self._state.pending
            else small_table(self._spark, [], _PENDING)
        )
        return evidence.join(pending, list(_ID), "left")

    def _expired_ms(self, oldest_ms: Mapping[MessageQueue, int]) -> dict[str, int]:
        if not self._state.rounds:
            return super()._expired_ms(oldest_ms)
        before = dict(self._state.expired_ms)
        now: dict[str, int] = {}
        for queue, (low, _) in self.cut.log.items():
            # Messages have expired since the last round, so sends of the time before may be gone.
            if self.cut.begin(queue) < low:
                oldest = oldest_ms.get(queue, self.cut_ms)
                now[queue.topic] = min(oldest, now.get(queue.topic, oldest))
        return before | {topic: max(ms, before.get(topic, ms)) for topic, ms in now.items()}

    def _first_sent_ms(self, evidence: Any) -> dict[str, int]:
        return oldest_first(super()._first_sent_ms(evidence), self._state.first_sent_ms)

    # Results

    def _summed(self, judged: Any) -> list[Found]:
        verdicts = self._keep(self._with_verdict(judged))
        self._left = self._write(verdicts)
        found: list[Found] = []
        for *fields, is_judged in grouped(verdicts, self.basis, "differences", "judged").collect():
            (found if is_judged else self._waiting).append(Found(*fields))
        return found

    def _with_verdict(self, joined: Any) -> Any:
        """Return the rows that count, with their differences and whether they are judged for
        good.
        """
        from pyspark.sql import functions as f

        has_message = f.col("queue_offset").isNotNull()
        rows_ = joined.withColumn("differences", Differences(self.basis).column())
        # Evidence of messages that were judged before is read, too, and forgotten messages have no row
        # to join.
        time = f.coalesce("sent_ms", "done_ms")
        is_new = f.lit(True) if self._state.judged_ms is None else time >= self._state.judged_ms
        counts = (f.size("differences") > 0) & (is_new | f.col("item_seen_ms").isNotNull())
        rows_ = rows_.where(has_message | counts)
        seen_ms = f.coalesce("seen_ms", "item_seen_ms", f.lit(self.cut_ms))

        def some(condition: Any) -> Any:
            return f.exists("differences", condition)

        unexplained = some(lambda one: ~one.explained)
        waits = some(lambda one: one.cause.isin(*WAITING))
        waits_longer = some(lambda one: one.cause == DELAYED_SEND)
        doubt_ms = f.when(
            unexplained & ~waits, f.coalesce("doubt_ms", "item_doubt_ms", f.lit(self.cut_ms))
        )
        is_old = seen_ms <= self.cut_ms - round(self._config.patience_s * 1000)
        # A gap has no time, and nothing that comes later changes it.
        event_ms = f.when(has_message, f.unix_millis("store_time")).otherwise(
            f.greatest("sent_ms", "done_ms", "due_ms")
        )
        is_held = f.coalesce(event_ms > self._settled_ms, f.lit(False))
        doubted = f.coalesce(doubt_ms > self.cut_ms - self._hold_ms, f.lit(False))
        done = ~is_held & ~doubted & (~waits | (is_old & ~waits_longer))
        return rows_.select(
            *(name for name in rows_.columns if name not in ("seen_ms", "doubt_ms")),
            seen_ms.alias("seen_ms"),
            doubt_ms.alias("doubt_ms"),
            event_ms.alias("event_ms"),
            done.alias("judged"),
        )

    def _write(self, verdicts: Any) -> _Left:
        """Write the tables of the rest."""
        from pyspark.sql import functions as f

        messages = verdicts.where("queue_offset is not null").withColumn("aside", f.lit(False))
        waits = self._keep(messages.where("not judged"))
        opened = self._written("open", self._as_kept(waits).unionByName(self._copied(waits)))
        known = messages.where("judged and msg_id is not null")
        judged = self._written("judged", self._as_kept(known))
        items = verdicts.where("queue_offset is null and not judged")
        first_ms = f.coalesce("sent_ms", "done_ms")
        pending = items.where(first_ms < self._settled_ms).select(
            *_ID, f.col("seen_ms").alias("item_seen_ms"), f.col("doubt_ms").alias("item_doubt_ms")
        )
        oldest = verdicts.where("not judged").agg(
            f.min(f.least(f.unix_millis("store_time"), "sent_ms", "done_ms"))
        )
        return _Left(opened, self._written("pending", pending), judged, oldest.first()[0])

    def _copied(self, waits: Any) -> Any:
        """Return judged messages that would be forgotten now, of which copies wait for a verdict."""
        if self._aside is None:
            return self._table()
        aside = self._aside
        by_id = waits.where("copies > 1").select(*_ID).distinct()
        found = aside.join(by_id, list(_ID), "left_semi")
        if self._config.business_key is not None:
            by_key = waits.where("key_copy > 1").select("topic", "key").distinct()
            of_key = aside.join(by_key, ["topic", "key"], "left_semi")
            found = found.unionByName(of_key).dropDuplicates(list(rows.PLACE))
        from pyspark.sql import functions as f

        return found.withColumn("aside", f.lit(True))

    # Tables

    @cached_property
    def _facts(self) -> Any:
        columns = rows.columns_for(self._config)
        return rows.facts(no_messages(self._spark, columns), self._config).schema

    @cached_property
    def _schema(self) -> Any:
        kept = small_table(self._spark, [], _KEPT).schema
        schema = type(kept)([*self._facts.fields, *kept.fields])
        for field in schema.fields:
            field.nullable = True
        return schema

    def _table(self, *names: str) -> Any:
        """Return the messages of these tables."""
        paths = [str(self._directory.path / name) for name in names]
        if not paths:
            return self._spark.createDataFrame([], self._schema)
        return self._spark.read.schema(self._schema).parquet(*paths)

    def _as_kept(self, messages: Any) -> Any:
        return messages.select(*self._schema.fieldNames())

    def _written(self, kind: str, frame: Any) -> str:
        path = self._directory.new_table(kind)
        few = frame.coalesce(self._spark.sparkContext.defaultParallelism)
        few.write.parquet(str(path))
        return path.name
