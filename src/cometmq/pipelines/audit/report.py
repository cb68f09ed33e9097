"""Report the findings of an audit, for programs and for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from cometmq.pipelines.audit.causes import Basis
from cometmq.pipelines.audit.figures import balance_figure, difference_figure
from cometmq.pipelines.audit.found import Found
from cometmq.pipelines.audit.rows import Bounds
from cometmq.pipelines.audit.settings import Config
from cometmq.pipelines.report import Report as BaseReport
from cometmq.pipelines.report import Section, Table

_MOST_EXAMPLES: Final = 5
_MOST_ROWS: Final = 500


class Cell(msgspec.Struct):
    """The numbers of a topic, queue and hour. Broker and queue are None for messages that are known
    only from evidence.
    """

    topic: str
    broker: str | None
    queue_id: int | None
    hour: str | None
    sent: int = 0
    stored: int = 0
    archived: int | None = None
    consumed: dict[str, int] = {}
    explained: int = 0
    unexplained: int = 0
    # In a stream: differences that are judged again.
    waiting: int = 0

    @property
    def queue(self) -> str:
        return "-" if self.broker is None else f"{self.broker}:{self.queue_id}"


class Difference(msgspec.Struct):
    """A kind of difference with one cause. `examples` give msg_id and offset of some messages,
    oldest first.
    """

    topic: str
    difference: str
    group: str | None
    cause: str
    explained: bool
    count: int
    examples: list[str]


class Cut(msgspec.Struct):
    """How far a queue was audited: from `first` to below `end`. `low` is the lowest offset of the
    log.
    """

    topic: str
    broker: str
    queue_id: int
    first: int
    low: int
    end: int
    archived_to: int | None
    committed: dict[str, int | None]


class Report(BaseReport):
    """The report of an audit. `evidence` says where each number comes from.

    Of a stream, the numbers are of everything since it began; `differences` has a verdict, `waiting`
    is judged again by the next round. `hours_from`: of the hours before it there are only sums, in
    cells without an hour.
    """

    topics: list[Cell]
    cells: list[Cell]
    differences: list[Difference]
    evidence: dict[str, str]
    cut_at: str
    cut: list[Cut]
    mode: str = "once"
    waiting: list[Difference] = msgspec.field(default_factory=list)
    rounds: int = 1
    hours_from: str | None = None

    def sections(self) -> list[Section]:
        groups = sorted({group for cell in self.topics for group in cell.consumed})
        archived = any(cell.archived is not None for cell in self.topics)
        sections: list[Section] = [
            Table(
                "Messages",
                self._columns(["topic"], archived, groups),
                self._topic_rows(groups),
            ),
            Table(
                "Differences",
                ["", "difference", "cause", "count", "for example, at"],
                [self._difference_row(each) for each in self.differences],
                empty="none: all numbers are equal",
            ),
            *self._waiting_table(),
            balance_figure(self.cells, archived, groups),
            difference_figure(self.cells),
            Table(
                "Queues and hours",
                self._columns(["topic", "queue", "hour (UTC)"], archived, groups),
                [
                    [cell.topic, cell.queue, cell.hour, *self._numbers(cell, archived, groups)]
                    for cell in self.cells[:_MOST_ROWS]
                ],
                page_only=True,
            ),
            Table(
                "Where the numbers come from",
                ["number", "source"],
                [[name, source] for name, source in self.evidence.items()],
            ),
        ]
        return sections

    def _topic_rows(self, groups: Sequence[str]) -> list[list[object]]:
        archived = any(cell.archived is not None for cell in self.topics)
        rows = [[cell.topic, *self._numbers(cell, archived, groups)] for cell in self.topics]
        if len(rows) > 1:
            whole = _sum("all", self.topics)
            rows.append([whole.topic, *self._numbers(whole, archived, groups)])
        return rows

    def _waiting_table(self) -> list[Section]:
        if self.mode == "once":
            return []
        columns = ["difference", "cause", "count", "for example, at"]
        rows = [self._difference_row(each)[1:] for each in self.waiting]
        return [Table("Judged again by the next round", columns, rows, empty="nothing waits")]

    def _columns(self, first: list[str], archived: bool, groups: Sequence[str]) -> list[str]:
        waiting = ["waiting"] if self.mode == "stream" else []
        return [*_columns(first, archived, groups), *waiting]

    def _numbers(self, cell: Cell, archived: bool, groups: Sequence[str]) -> list[object]:
        waiting = [cell.waiting] if self.mode == "stream" else []
        return [*_numbers(cell, archived, groups), *waiting]

    def _difference_row(self, each: Difference) -> list[object]:
        what = each.difference if each.group is None else f"{each.difference} by {each.group}"
        if len(self.topics) > 1:
            what = f"{each.topic}: {what}"
        # The offset is short and enough to find the message; the JSON also has the id.
        example = each.examples[0].rpartition(" at ")[2] if each.examples else None
        return ["✓" if each.explained else "✗", what, each.cause, each.count, example]


def make_report(
    started: datetime,
    config: Config,
    basis: Basis,
    cut: Bounds,
    evidence: Mapping[str, str],
    found: Collection[Found],
    waiting: Collection[Found] = (),
) -> Report:
    """Make the report of `found`, and of what is `waiting` for a verdict of a stream."""
    cells = _cells(config, found, waiting)
    differences = _differences(found)
    topics = [
        _sum(topic, [cell for cell in cells if cell.topic == topic]) for topic in config.topics
    ]
    unexplained = sum(each.count for each in differences if not each.explained)
    return Report(
        pipeline="audit",
        started=started,
        holds=not unexplained,
        summary=_summary(differences, topics, config) + _still_waiting(topics),
        mode=config.mode,
        topics=topics,
        cells=cells,
        differences=differences,
        evidence=dict(evidence),
        cut_at=datetime.fromtimestamp(basis.cut_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        cut=_cut(config, cut),
        waiting=_differences(waiting),
    )


def _still_waiting(topics: Iterable[Cell]) -> str:
    waiting = sum(cell.waiting for cell in topics)
    return f"; {waiting:,} differences are judged again" if waiting else ""


def _summary(differences: Sequence[Difference], topics: Sequence[Cell], config: Config) -> str:
    stored = sum(cell.stored for cell in topics)
    unexplained = sum(each.count for each in differences if not each.explained)
    if unexplained:
        kinds = ", ".join(dict.fromkeys(e.difference for e in differences if not e.explained))
        return f"{unexplained:,} of {stored:,} messages are not explained: {kinds}"
    numbers = ["sent", "stored"]
    numbers += ["archived"] if config.archive is not None else []
    numbers += ["consumed"] if config.groups else []
    equation = " = ".join(numbers)
    if not differences:
        return f"{equation}: {stored:,} messages"
    explained = sum(each.count for each in differences)
    return f"{equation} but for {explained:,} explained differences of {stored:,} messages"


def _cells(config: Config, found: Iterable[Found], waiting: Iterable[Found]) -> list[Cell]:
    cells: dict[tuple[Any, ...], Cell] = {}
    for each, has_verdict in (*((one, True) for one in found), *((one, False) for one in waiting)):
        hour = None
        if each.hour is not None:
            hour = f"{datetime.fromtimestamp(each.hour * 3600, UTC):%Y-%m-%dT%H}"
        where = (each.topic, each.broker, each.queue_id, hour)
        cell = cells.setdefault(where, Cell(*where, consumed=dict.fromkeys(config.groups, 0)))
        if each.difference is None:
            sent, stored, archived, *consumed = (count or 0 for count in each.numbers)
            cell.sent += sent
            cell.stored += stored
            if config.archive is not None:
                cell.archived = (cell.archived or 0) + archived
            for group, count in zip(config.groups, consumed, strict=True):
                cell.consumed[group] += count
        elif not has_verdict:
            cell.waiting += each.times or 0
        elif each.explained:
            cell.explained += each.times or 0
        else:
            cell.unexplained += each.times or 0
    order = {topic: at for at, topic in enumerate(config.topics)}
    return sorted(
        (cell for cell in cells.values() if _counts(cell)),
        key=lambda cell: (
            order.get(cell.topic, 0),
            cell.broker or "",
            -1 if cell.queue_id is None else cell.queue_id,
            cell.hour or "",
        ),
    )


def _counts(cell: Cell) -> bool:
    """Return whether the cell has anything to report; a cell with only evidence about other places
    has not.
    """
    numbers = (
        *(cell.sent, cell.stored, cell.archived),
        *(cell.explained, cell.unexplained, cell.waiting),
    )
    return any(numbers) or any(cell.consumed.values())


def _differences(found: Iterable[Found]) -> list[Difference]:
    kinds: dict[tuple[Any, ...], Difference] = {}
    examples: dict[tuple[Any, ...], list[tuple[int, str]]] = defaultdict(list)
    for each in found:
        if each.difference is None:
            continue
        kind = (each.topic, each.difference, each.group, each.cause, each.explained)
        into = kinds.setdefault(kind, Difference(*kind, count=0, examples=[]))  # type: ignore[arg-type]  # `kind` is a tuple of Difference's first fields
        into.count += each.times or 0
        if each.example is not None:
            examples[kind].append((each.hour or 0, each.example))
    for kind, difference in kinds.items():
        difference.examples = [text for _, text in sorted(examples[kind])[:_MOST_EXAMPLES]]
    return sorted(kinds.values(), key=lambda each: (each.explained, -each.count, each.difference))


def _cut(config: Config, cut: Bounds) -> list[Cut]:
    return [
        Cut(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            cut.begin(queue),
            low,
            end,
            cut.archived[queue][1] if queue in cut.archived else None,
            {group: cut.committed.get(group, {}).get(queue) for group in config.groups},
        )
        for queue, (low, end) in sorted(cut.log.items())
    ]


def _sum(topic: str, cells: Iterable[Cell]) -> Cell:
    whole = Cell(topic, None, None, None)
    for cell in cells:
        whole.sent += cell.sent
        whole.stored += cell.stored
        if cell.archived is not None:
            whole.archived = (whole.archived or 0) + cell.archived
        for group, count in cell.consumed.items():
            whole.consumed[group] = whole.consumed.get(group, 0) + count
        whole.explained += cell.explained
        whole.unexplained += cell.unexplained
        whole.waiting += cell.waiting
    return whole


def _columns(first: list[str], archived: bool, groups: Sequence[str]) -> list[str]:
    consumed = ["consumed"] if len(groups) == 1 else [f"consumed by {group}" for group in groups]
    return [
        *first,
        "sent",
        "stored",
        *(["archived"] if archived else []),
        *consumed,
        "explained",
        "unexplained",
    ]


def _numbers(cell: Cell, archived: bool, groups: Sequence[str]) -> list[object]:
    return [
        cell.sent,
        cell.stored,
        *([cell.archived or 0] if archived else []),
        *(cell.consumed.get(group, 0) for group in groups),
        cell.explained,
        cell.unexplained,
    ]
