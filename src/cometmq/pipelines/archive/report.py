"""Report the work of an archive run, and how far the archive reaches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from cometmq.model.queue import MessageQueue
from cometmq.pipelines import report
from cometmq.pipelines.archive.batches import Written
from cometmq.pipelines.archive.commits import Archive
from cometmq.pipelines.archive.compaction import Compacted
from cometmq.pipelines.archive.decoded.lines import DecodedLine
from cometmq.pipelines.archive.decoded.lines import table_of as decoded_table
from cometmq.pipelines.archive.layout import Manifest
from cometmq.pipelines.archive.proving.inventory import Problem
from cometmq.pipelines.archive.proving.judgement import spans_by_queue
from cometmq.pipelines.archive.proving.proof import Proved
from cometmq.pipelines.archive.proving.spans import length, within
from cometmq.pipelines.archive.tables.publisher import TableLine, table_of
from cometmq.pipelines.report import Figure, Section, Table
from cometmq.spark.gaps import Gap

_MB: Final = 1_000_000
_HOURS_SHOWN: Final = 72
_TOPICS_SHOWN: Final = 5
_QUEUES_SHOWN: Final = 32


class TopicLine(msgspec.Struct, frozen=True):
    """A topic of the archive. `messages` counts archived ones, proved or not."""

    topic: str
    queues: int
    hours: int
    messages: int
    files: int
    bytes: int
    proved: bool


class QueueLine(msgspec.Struct, frozen=True):
    """A queue of the archive: offsets from `first` to below `to` are archived, those below
    `safe_to` proved.
    """

    topic: str
    broker: str
    queue_id: int
    first: int
    to: int
    messages: int
    missing: int
    safe_to: int


class HourLine(msgspec.Struct, frozen=True):
    topic: str
    hour: str
    messages: int
    bytes: int


class Report(report.Report):
    """The report of an archive run.

    `archived`, `files_written`, `bytes_written` and `proved` count this run. The lists are of the
    whole archive, except `new_gaps`: the gaps that this run's proof has found.
    """

    path: str
    mode: str
    archived: int
    files_written: int
    bytes_written: int
    compacted_directories: int
    compacted_files_before: int
    compacted_files_after: int
    proved: int
    topics: list[TopicLine]
    queues: list[QueueLine]
    hours: list[HourLine]
    problems: list[Problem]
    new_gaps: list[Gap]
    gaps: list[Gap]
    tables: list[TableLine]
    decoded: list[DecodedLine]

    def sections(self) -> list[Section]:
        sections: list[Section] = []
        if self.problems:
            sections.append(self._problem_table())
        if self.gaps:
            sections.append(self._gap_table())
        if self.tables:
            sections.append(table_of(self.tables))
        if self.decoded:
            sections.append(decoded_table(self.decoded))
        sections += [self._topic_table(), *self._figures(), self._queue_table()]
        return sections

    # Inside

    def _problem_table(self) -> Table:
        columns = ("problem", "queue", "offsets", "hour", "file", "")
        rows = [
            (
                one.kind,
                one.topic if one.broker is None else f"{one.topic}@{one.broker}:{one.queue_id}",
                None if one.first is None else f"{one.first:,} to {one.last:,}",
                one.hour,
                one.file,
                one.detail,
            )
            for one in self.problems
        ]
        return Table("Problems", columns, rows)

    def _gap_table(self) -> Table:
        columns = ("topic", "queue", "from", "to (exclusive)", "messages", "cause", "new")
        new = set(self.new_gaps)
        rows = [
            (
                g.topic,
                f"{g.broker}:{g.queue_id}",
                g.start,
                g.end,
                g.end - g.start,
                g.cause,
                g in new,
            )
            for g in self.gaps
        ]
        return Table("Gone before they could be archived", columns, rows)

    def _topic_table(self) -> Table:
        columns = ("topic", "queues", "hours", "messages", "files", "MB", "bytes each", "proved")
        rows = [
            (
                one.topic,
                one.queues,
                one.hours,
                one.messages,
                one.files,
                one.bytes / _MB,
                one.bytes / one.messages if one.messages else None,
                one.proved,
            )
            for one in self.topics
        ]
        return Table("Topics", columns, rows, "nothing is archived yet")

    def _queue_table(self) -> Table:
        columns = (
            *("topic", "queue", "from", "to (exclusive)"),
            *("messages", "missing", "safe to expire"),
        )
        rows = [
            (
                one.topic,
                f"{one.broker}:{one.queue_id}",
                one.first,
                one.to,
                one.messages,
                one.missing,
                "all" if one.safe_to == one.to else f"below {one.safe_to:,}",
            )
            for one in self.queues
        ]
        return Table("Queues", columns, rows)

    def _figures(self) -> list[Figure]:
        figures = []
        if len({line.hour for line in self.hours}) > 1:
            figures.append(_hours_figure(self.hours))
        if self.queues:
            figures.append(_queues_figure(self.queues))
        return figures


def report_of(
    archive: Archive,
    started: datetime,
    mode: str,
    written: Written,
    compacted: Compacted,
    proved: Proved,
    tables: list[TableLine],
    decoded: list[DecodedLine],
) -> Report:
    gaps = archive.layout.load_gaps()
    queues = list(_queue_lines(archive, gaps))
    manifests = list(archive.manifests.values())
    return Report(
        pipeline="archive",
        started=started,
        holds=not proved.problems
        and not proved.gaps
        and not any(one.problem for one in tables)
        and all(one.holds for one in decoded),
        summary=_summary(queues, written, proved, tables, decoded),
        path=str(archive.layout.path),
        mode=mode,
        archived=written.messages,
        files_written=written.files,
        bytes_written=written.bytes,
        compacted_directories=compacted.directories,
        compacted_files_before=compacted.files_before,
        compacted_files_after=compacted.files_after,
        proved=proved.messages,
        topics=list(_topic_lines(queues, manifests)),
        queues=queues,
        hours=[
            HourLine(one.topic, one.hour, _count(one), sum(file.bytes for file in one.files))
            for one in sorted(manifests, key=lambda one: one.key)
        ],
        problems=list(proved.problems),
        new_gaps=list(proved.gaps),
        gaps=list(gaps),
        tables=tables,
        decoded=decoded,
    )


def _summary(
    queues: Sequence[QueueLine],
    written: Written,
    proved: Proved,
    tables: Sequence[TableLine],
    decoded: Sequence[DecodedLine],
) -> str:
    total = sum(one.messages for one in queues)
    said = f"{written.messages:,} messages archived, {total:,} in all"
    if proved.problems:
        return f"{said}; the archive differs from the log: {len(proved.problems)} problems"
    if proved.gaps:
        count = sum(gap.end - gap.start for gap in proved.gaps)
        return f"{said}; {count:,} were gone before they could be archived"
    if behind := [one.format for one in tables if one.problem]:
        return f"{said}; not all of it is in the table: {', '.join(behind)}"
    if left := [one.topic for one in decoded if not one.holds]:
        return f"{said}; not all of them are decoded: {', '.join(left)}"
    if any(one.safe_to < one.to for one in queues):
        return (
            f"{said}; some wait for their proof: the next run proves them, if their broker answers"
        )
    return f"{said}, each equal to the log: safe to expire"


def _queue_lines(archive: Archive, gaps: Sequence[Gap]) -> Iterable[QueueLine]:
    safe = {MessageQueue(m.topic, m.broker, m.queue_id): m.to for m in archive.layout.load_safe()}
    gone = spans_by_queue(gaps)
    for state in archive.state.queues:
        missing = length(within((state.first, state.to), gone.get(state.queue, ())))
        yield QueueLine(
            *state.queue,
            first=state.first,
            to=state.to,
            messages=state.to - state.first - missing,
            missing=missing,
            safe_to=safe.get(state.queue, state.first),
        )


def _topic_lines(queues: Sequence[QueueLine], manifests: Sequence[Manifest]) -> Iterable[TopicLine]:
    for topic in sorted({one.topic for one in queues}):
        own = [one for one in queues if one.topic == topic]
        hours = [one for one in manifests if one.topic == topic]
        files = [file for one in hours for file in one.files]
        yield TopicLine(
            topic,
            len(own),
            len(hours),
            sum(one.messages for one in own),
            len(files),
            sum(file.bytes for file in files),
            all(one.safe_to == one.to for one in own),
        )


def _count(manifest: Manifest) -> int:
    """Return how many messages of the manifest are proved."""
    return sum(one.count for one in manifest.log)


def _hours_figure(lines: Sequence[HourLine]) -> Figure:
    from cometmq.pipelines.page import new_plot, svg_of

    hours = sorted({line.hour for line in lines})[-_HOURS_SHOWN:]
    totals: dict[str, int] = {}
    for line in lines:
        totals[line.topic] = totals.get(line.topic, 0) + line.messages
    shown = sorted(totals, key=lambda topic: -totals[topic])[:_TOPICS_SHOWN]
    heights: dict[str, list[int]] = {}
    for line in lines:
        name = line.topic if line.topic in shown else "others"
        if line.hour in hours:
            row = heights.setdefault(name, [0] * len(hours))
            row[hours.index(line.hour)] += line.messages
    plot, axes = new_plot()
    bottom = [0] * len(hours)
    for name in sorted(heights, key=lambda name: (name == "others", -totals.get(name, 0))):
        axes.bar(range(len(hours)), heights[name], bottom=bottom, label=name, width=0.85)
        bottom = [low + height for low, height in zip(bottom, heights[name], strict=True)]
    step = max(1, len(hours) // 12)
    axes.set_xticks(range(0, len(hours), step), [_hour_label(hour) for hour in hours[::step]])
    axes.margins(x=0.01, y=0.15)  # leaves room for the legend at the top
    axes.set_ylabel("messages")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, ncols=3, loc="upper left")
    return Figure("Messages by hour", svg_of(plot), "by the time of storing, UTC")


def _hour_label(hour: str) -> str:
    return f"{hour[11:13]}:00\n{hour[5:10]}"


def _queues_figure(lines: Sequence[QueueLine]) -> Figure:
    from cometmq.pipelines.page import COLOURS, new_plot, svg_of

    most = sorted(lines, key=lambda one: one.first - one.to)[:_QUEUES_SHOWN]
    shown = sorted(most, key=lambda one: (one.topic, one.broker, one.queue_id), reverse=True)
    plot, axes = new_plot(height=1.1 + 0.28 * len(shown))
    at = range(len(shown))
    proved = [max(0, one.safe_to - one.first) for one in shown]
    rest = [one.to - one.first - done for one, done in zip(shown, proved, strict=True)]
    starts = [one.first for one in shown]
    axes.barh(at, proved, left=starts, color=COLOURS[2], label="safe to expire")
    if any(rest):
        begins = [one.first + done for one, done in zip(shown, proved, strict=True)]
        axes.barh(at, rest, left=begins, color=COLOURS[1], label="archived, not proved")
    axes.set_yticks(at, [f"{one.topic} {one.broker}:{one.queue_id}" for one in shown])
    axes.grid(axis="x", alpha=0.3)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("queue offset")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    more = len(lines) - len(shown)
    caption = f"the longest {len(shown)} queues; {more:,} more below" if more else ""
    return Figure("Archived and proved, by queue", svg_of(plot), caption)
