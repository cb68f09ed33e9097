"""Report the result of a rebuild."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from cometmq.pipelines.page import COLOURS, new_plot, svg_of
from cometmq.pipelines.rebuild.compare import (
    DIFFERENT,
    EQUAL,
    KEPT,
    LEFT_OUT,
    NEW,
    BuiltIndexFile,
    BuiltQueue,
)
from cometmq.pipelines.report import Figure, Section, Table
from cometmq.pipelines.report import Report as BaseReport

_MIB: Final = 1024 * 1024
_OUTCOMES: Final = (EQUAL, NEW, KEPT, DIFFERENT, LEFT_OUT)
_COLOUR_OF: Final = dict(
    zip(_OUTCOMES, (COLOURS[2], COLOURS[0], COLOURS[5], COLOURS[3], COLOURS[1]), strict=True)
)
_MOST_TOPICS: Final = 20
_MOST_QUEUES: Final = 200
_MOST_FILES: Final = 60


class LogFileScan(msgspec.Struct, frozen=True):
    """A file of the log as it was read. `end` is the log offset behind its last record."""

    base: int
    end: int
    record_count: int
    key_count: int
    seconds: float


class Report(BaseReport):
    """The report of a rebuild.

    log_end: the log offset behind the last record.
    seconds: the duration of the run that finished building.
    replaced: where the former directories are, once the built ones are in the store.
    """

    store: str
    target: str
    log_end: int
    seconds: float
    log_files: list[LogFileScan]
    queues: list[BuiltQueue]
    index: list[BuiltIndexFile]
    replaced: str | None = None

    def sections(self) -> list[Section]:
        return [
            self._outcomes(),
            *self._to_look_at(),
            self._topics(),
            self._topics_figure(),
            self._speed_figure(),
            self._queues(),
        ]

    def _outcomes(self) -> Table:
        queues = Counter(queue.outcome for queue in self.queues)
        index = Counter(file.outcome for file in self.index)
        says = {
            EQUAL: "byte for byte what the store has",
            NEW: "the store has none",
            KEPT: "no message in the log; taken as the store has it",
            DIFFERENT: "the store has other bytes",
            LEFT_OUT: "in the store, but nothing in the log accounts for it",
        }
        return Table(
            "Built beside the store's",
            ["outcome", "queues", "index files", "meaning"],
            [
                [outcome, queues[outcome], index[outcome], says[outcome]]
                for outcome in _OUTCOMES
                if queues[outcome] or index[outcome]
            ],
        )

    def _to_look_at(self) -> list[Table]:
        rows: list[list[object]] = [
            [f"{queue.topic}/{queue.queue_id}", queue.outcome, queue.note]
            for queue in self.queues
            if queue.outcome in (DIFFERENT, LEFT_OUT)
        ]
        rows += [
            [f"index/{file.name}", file.outcome, file.note]
            for file in self.index
            if file.outcome in (DIFFERENT, LEFT_OUT)
        ]
        return [
            Table("Other than in the store", ["queue or file", "outcome", "where"], rows)
        ] * bool(rows)

    def _topics(self) -> Table:
        rows = [
            [
                topic,
                len(queues),
                sum(queue.message_count for queue in queues),
                sum(queue.log_bytes for queue in queues) / _MIB,
                sum(queue.file_count for queue in queues),
                _worst(queue.outcome for queue in queues),
            ]
            for topic, queues in self._by_topic()
        ]
        columns = ["topic", "queues", "messages", "MiB of the log", "files", "outcome"]
        return Table("Topics", columns, rows, empty="the log has no message")

    def _queues(self) -> Table:
        first = sorted(self.queues, key=lambda queue: -queue.message_count)[:_MOST_QUEUES]
        title = "Queues"
        if len(first) < len(self.queues):
            title = f"The {_MOST_QUEUES} queues of most messages; the JSON has all"
        return Table(
            title,
            ["queue", "first offset", "end", "messages", "files", "outcome"],
            [
                [
                    f"{queue.topic}/{queue.queue_id}",
                    queue.first_offset,
                    queue.end_offset,
                    queue.message_count,
                    queue.file_count,
                    queue.outcome,
                ]
                for queue in first
            ],
            empty="the log has no message",
        )

    def _by_topic(self) -> list[tuple[str, list[BuiltQueue]]]:
        topics: dict[str, list[BuiltQueue]] = {}
        for queue in self.queues:
            topics.setdefault(queue.topic, []).append(queue)
        return sorted(
            topics.items(), key=lambda item: -sum(queue.message_count for queue in item[1])
        )

    def _topics_figure(self) -> Figure:
        topics = self._by_topic()[:_MOST_TOPICS][::-1]
        plot, axes = new_plot(height=1.4 + 0.28 * len(topics))
        names = [topic for topic, _ in topics]
        left = [0] * len(topics)
        for outcome in _OUTCOMES:
            counts = [
                sum(queue.message_count for queue in queues if queue.outcome == outcome)
                for _, queues in topics
            ]
            if any(counts):
                axes.barh(names, counts, 0.6, left, color=_COLOUR_OF[outcome], label=outcome)
                left = [a + b for a, b in zip(left, counts, strict=True)]
        for name, count in zip(names, left, strict=True):
            axes.annotate(
                f"{count:,}", (count, name), (4, 0), textcoords="offset points", va="center",
                fontsize=8,
            )  # fmt: skip
        axes.grid(visible=False)
        axes.margins(x=0.12)
        axes.set_xlabel("messages")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        if any(left):
            axes.legend(
                loc="lower left", bbox_to_anchor=(0, 1), ncols=len(_OUTCOMES), frameon=False
            )
        caption = "The topics of most messages, coloured by what came of their queues."
        return Figure("Messages by topic", svg_of(plot), caption)

    def _speed_figure(self) -> Figure:
        files = self.log_files[-_MOST_FILES:]
        plot, axes = new_plot()
        rates = [file.record_count / file.seconds if file.seconds else 0 for file in files]
        sizes = [(file.end - file.base) / _MIB for file in files]
        axes.bar(range(len(files)), rates, color=COLOURS[0])
        axes.set_ylabel("records a second, one task")
        axes.set_xlabel("files of the commit log, by their order")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xticks([0, len(files) - 1] if len(files) > 1 else [0])
        axes.set_xticklabels(
            [f"{file.base:020d}" for file in ([files[0], files[-1]] if len(files) > 1 else files)],
            fontsize=7,
        )
        caption = (
            f"How fast each file was read and checked: {sum(f.record_count for f in files):,} records, "
            f"{sum(sizes):,.1f} MiB in {sum(f.seconds for f in files):,.1f} s of tasks."
        )
        return Figure("Reading the log", svg_of(plot), caption)


def _worst(outcomes: Iterable[str]) -> str:
    return max(outcomes, key=_OUTCOMES.index)
