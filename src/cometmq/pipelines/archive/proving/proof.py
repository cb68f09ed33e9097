"""Prove an archive against the log that it came from, and mark the offsets that may expire.

The proof reads the log once more, for what was archived since the last proof, and computes figures
(count, span, checksum) for each queue and hour. It adds them to the figures of earlier proofs,
which the manifests keep. It also reads the files of every hour that has changed, as they are now;
the sum of their figures must equal the log's. So compaction may run any number of times, and files
can be compared with their proof after the log has expired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from cometmq.model.queue import MessageQueue
from cometmq.pipelines.archive.commits import Archive, Commit
from cometmq.pipelines.archive.layout import (
    Figures,
    Hour,
    in_order,
    read_files,
)
from cometmq.pipelines.archive.proving.differences import LENIENT, differences
from cometmq.pipelines.archive.proving.figures import Found, Place, Sum, figures, summed, with_hour
from cometmq.pipelines.archive.proving.inventory import (
    Inventory,
    Problem,
    take_inventory,
    unreadable,
)
from cometmq.pipelines.archive.proving.judgement import (
    Evidence,
    Judgement,
    safe_ranges,
    spans_by_queue,
)
from cometmq.pipelines.archive.proving.spans import Span, length, within, without
from cometmq.pipelines.archive.source import Source
from cometmq.pipelines.locations import Location
from cometmq.pipelines.report import now
from cometmq.spark.gaps import Gap

# At most this many pairs of hour and queue that do not fit are compared message by message.
_MOST_COMPARED: Final = 8


class Proved(NamedTuple):
    """The outcome of a proof. messages: how many it has proved. gaps: those among their offsets."""

    messages: int = 0
    problems: tuple[Problem, ...] = ()
    gaps: tuple[Gap, ...] = ()


class Proof:
    def __init__(self, spark: Any, archive: Archive, log: Source) -> None:
        self._spark = spark
        self._archive = archive
        self._log = log

    def run(self, *, everything: bool, all_of_them: bool, suspects: Iterable[Hour] = ()) -> Proved:
        """Prove new offsets, and look again at `suspects` and at the hours that earlier proofs have
        found; or at `everything`.

        Hours that do not fit are not marked, and every proof reports them until they fit. Queues
        whose broker is away wait for the next proof, unless `all_of_them` are needed.
        """
        archive = self._archive
        gaps = archive.layout.load_gaps()
        inventory = take_inventory(archive.layout, archive.manifests)
        evidence = self._evidence(gaps, inventory, all_of_them=all_of_them)
        hours = {h for h, one in archive.manifests.items() if everything or not one.is_proved}
        hours |= {*suspects, *inventory.suspects, *(hour for hour, *_ in evidence.log)}
        judgement = Judgement(
            archive.manifests, hours, evidence, inventory, self._archived(hours, inventory)
        )
        problems = [*judgement.problems, *_lost_problems(evidence)]
        problems += self._explained(judgement, inventory)
        self._commit(judgement, evidence, gaps)
        return _proved(judgement, evidence, gaps, problems)

    # Inside

    def _evidence(
        self, gaps: tuple[Gap, ...], inventory: Inventory, *, all_of_them: bool
    ) -> Evidence:
        queues = {s.queue: s for s in self._archive.state.queues if s.proved_to < s.to}
        if not queues:
            return Evidence({}, frozenset(), {}, {})
        known = {queue: state.to for queue, state in queues.items()}
        bounds = self._log.bounds(known, all_of_them=all_of_them)
        spans = {q: (state.proved_to, state.to) for q, state in queues.items() if q in bounds}
        ranges = {
            queue: (max(start, bounds[queue][0]), end)
            for queue, (start, end) in spans.items()
            if bounds[queue][0] < end
        }
        # Messages that are gone by now are noted apart, because the log had them when they were
        # archived.
        aside = self._archive.new_gap_log()
        log: dict[Sum, Figures] = {}
        schema = self._archive.schema()
        if ranges:
            frame = self._log.rows(self._spark, ranges, aside, schema.columns)
            log = summed((h, one) for h, _, one in figures(frame, schema, by_file=False))
        lost = {}
        gone_now = spans_by_queue(self._archive.gaps_noted(aside))
        never = spans_by_queue(gaps)
        for queue, (start, end) in spans.items():
            begin = ranges[queue][0] if queue in ranges else end
            gone = within((start, end), [(start, begin), *gone_now.get(queue, ())])
            own = never.get(queue, ())
            if parts := [part for span in gone for part in without(span, own)]:
                lost[queue] = parts
        if lost:
            own_figures = self._own_figures(lost, inventory)
            log = summed([*((h, one) for (h, *_), one in log.items()), *own_figures])
        return Evidence(spans, frozenset(queues.keys() - spans.keys()), log, lost, gaps)

    def _own_figures(
        self, spans: Mapping[MessageQueue, list[Span]], inventory: Inventory
    ) -> list[tuple[Hour, Figures]]:
        """Return the archive's own figures for offsets that have left the log."""
        from pyspark.sql import functions as F

        manifests = self._archive.manifests
        paths = [
            path
            for hour, there in inventory.listed.items()
            for path in there
            if not manifests[hour].is_proved
        ]
        if not paths:
            return []
        chosen = reduce(
            or_,
            (
                (F.col("topic") == queue.topic)
                & (F.col("broker") == queue.broker_name)
                & (F.col("queue_id") == queue.queue_id)
                & F.col("queue_offset").between(start, end - 1)
                for queue, parts in spans.items()
                for start, end in parts
            ),
        )
        data, schema = self._archive.layout.data, self._archive.schema()
        rows = read_files(self._spark, data, paths, schema, **LENIENT).where(chosen)
        return [(hour, one) for hour, _, one in figures(rows, schema, by_file=False)]

    def _archived(self, hours: Iterable[Hour], inventory: Inventory) -> Found:
        """Return the figures of every file of these hours, and of strange files."""
        archive = self._archive
        schema_of = archive.schemas_of(hours)
        paths = [path for hour in sorted(hours) for path in inventory.listed.get(hour, ())]
        paths += [path for there in inventory.strange.values() for path in there]
        found: Found = []
        for schema in archive.schemas.values():
            # A strange file may have any columns; its figures only say what seems to be in it.
            own = [path for path in paths if schema_of.get(path, archive.schema()) == schema]
            if own:
                rows = read_files(self._spark, archive.layout.data, own, schema, **LENIENT)
                found += figures(rows, schema, by_file=True)
        return found

    def _explained(self, judgement: Judgement, inventory: Inventory) -> Iterable[Problem]:
        """Yield the problems where the figures differ: files, or single messages."""
        failed = judgement.failed
        if not failed:
            return
        reported = {(Hour(p.topic, p.hour or ""), p.broker, p.queue_id) for p in judgement.problems}
        schema_of = self._archive.schemas_of({hour for hour, _ in failed})
        for hour in sorted({hour for hour, _ in failed}):
            listed = {path: schema_of[path] for path in inventory.listed.get(hour, ())}
            for path, reason in unreadable(listed).items():
                yield Problem("file unreadable", *hour, path.name, detail=reason)
        bounds = self._log.bounds({}, all_of_them=False)
        for at, (place, (wanted, there)) in enumerate(failed.items()):
            hour, queue = place
            found: list[Problem] = []
            if at < _MOST_COMPARED and queue in bounds:
                paths = inventory.listed.get(hour, ())
                found = self._compared(place, wanted or there, bounds[queue], paths)
            yield from found
            if not found and (hour, queue.broker_name, queue.queue_id) not in reported:
                yield _hour_differs(place, wanted, there)

    def _compared(
        self, place: Place, of: Figures | None, bound: Span, paths: Sequence[Location]
    ) -> list[Problem]:
        """Compare an hour message by message, as far as the log still has the messages."""
        assert of is not None, "an hour without messages on both sides fits"
        hour, queue = place
        low, high = max(of.first, bound[0]), min(of.last + 1, bound[1])
        if low >= high:
            return []
        aside = self._archive.new_gap_log()
        rows = with_hour(self._log.rows(self._spark, {queue: (low, high)}, aside))
        here = rows.where(rows.hour == hour.hour)
        data, schema_of = self._archive.layout.data, self._archive.schemas_of([hour])
        found = differences(
            self._spark, data, place, {path: schema_of[path] for path in paths}, here, low
        )
        self._archive.gaps_noted(aside)
        return found

    def _commit(self, judgement: Judgement, evidence: Evidence, gaps: tuple[Gap, ...]) -> None:
        archive = self._archive
        changed = judgement.manifests()
        queues = archive.state.by_queue()
        for queue in evidence.spans:
            if span := judgement.proved(queue):
                queues[queue] = replace(queues[queue], proved_to=span[1])
        state = replace(archive.state, queues=in_order(queues))
        if not changed and state == archive.state and archive.layout.safe.exists():
            return
        after = {**archive.manifests, **{one.key: one for one in changed}}
        proved_at = now().isoformat(timespec="seconds").replace("+00:00", "Z")
        safe = safe_ranges(state.queues, after.values(), gaps, proved_at)
        archive.commit(Commit("nothing", changed, state, safe=safe))


def _hour_differs(place: Place, wanted: Figures | None, there: Figures | None) -> Problem:
    hour, queue = place
    one = wanted or there
    assert one is not None, "an hour without messages on both sides fits"
    said = (
        f"the log had {wanted.count if wanted else 0:,} messages, "
        f"the archive has {there.count if there else 0:,}"
    )
    of_queue = (queue.broker_name, queue.queue_id)
    return Problem("hour differs", *hour, None, *of_queue, one.first, one.last, said)


def _lost_problems(evidence: Evidence) -> Iterable[Problem]:
    for queue, spans in evidence.lost.items():
        for start, end in spans:
            said = "the log does not have them any more, so their archived copies cannot be proved"
            place = (queue.broker_name, queue.queue_id, start, end - 1)
            yield Problem("gone before the proof", queue.topic, None, None, *place, said)


def _proved(
    judgement: Judgement,
    evidence: Evidence,
    gaps: Iterable[Gap],
    problems: Iterable[Problem],
) -> Proved:
    messages = 0
    new = []
    for gap in gaps:
        span = judgement.proved(gap.queue) if gap.queue else None
        if span and within(span, [(gap.start, gap.end)]):
            new.append(gap)
    gone = spans_by_queue(new)
    for queue in evidence.spans:
        if span := judgement.proved(queue):
            messages += span[1] - span[0] - length(within(span, gone.get(queue, ())))
    in_order_of = sorted(
        problems,
        key=lambda one: (one.topic, one.hour or "", one.kind, one.file or "", one.first or 0),
    )
    return Proved(messages, tuple(in_order_of), tuple(new))
