"""What a redrive found, and sent."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import Final

from cometmq.pipelines.page import COLOURS, new_plot, svg_of
from cometmq.pipelines.redrive_letters import LetterCount
from cometmq.pipelines.report import Figure, Section, Table
from cometmq.pipelines.report import Report as BaseReport

_MOST_REASONS: Final = 5
_OTHERS: Final = "other reasons"


class Report(BaseReport):
    """letters: how many there are; chosen: how many the conditions choose; counts: both by origin
    topic, reason and hour.

    sent and already_there: of the whole redrive, all runs of it together; the second were found in the
    target when a run went on from one that was killed. refused: can never be sent, and refusals says
    why (the first of each task). stranded: topics of chosen letters that are not there.
    """

    group: str
    id: str
    send: bool
    to: str
    letters: int
    chosen: int
    sent: int
    already_there: int
    refused: int
    refusals: list[str]
    stranded: list[str]
    counts: list[LetterCount]

    def sections(self) -> list[Section]:
        sections: list[Section] = [self._reasons()]
        if self.stranded:
            rows = [[topic] for topic in self.stranded]
            sections.append(Table("Came from topics that are not there", ["topic"], rows))
        if self.refusals:
            refusals = [[text] for text in self.refusals]
            sections.append(Table("Cannot be sent", ["the first of each task"], refusals))
        if self.counts:
            sections.append(self._figure())
        sections.append(self._hours())
        return sections

    def _reasons(self) -> Table:
        groups: defaultdict[tuple[str, str], list[LetterCount]] = defaultdict(list)
        for found in self.counts:
            groups[found.topic, found.reason].append(found)
        rows = [
            [
                topic or "(unknown)",
                reason,
                sum(found.count for found in founds),
                sum(found.chosen for found in founds),
                _time(min(found.first_ms for found in founds)),
                _time(max(found.last_ms for found in founds)),
            ]
            for (topic, reason), founds in groups.items()
        ]
        columns = ["from topic", "reason", "dead letters", "chosen", "first", "last"]
        return Table("Dead letters", columns, rows, empty=f"group {self.group} has none")

    def _hours(self) -> Table:
        rows = [
            [found.hour, found.topic or "(unknown)", found.reason, found.count, found.chosen]
            for found in sorted(self.counts, key=lambda found: found.hour)
        ]
        columns = ["hour (UTC)", "from topic", "reason", "dead letters", "chosen"]
        return Table("By hour", columns, rows)

    def _figure(self) -> Figure:
        hours = sorted({found.hour for found in self.counts})
        places = {hour: at for at, hour in enumerate(hours)}
        totals: defaultdict[str, int] = defaultdict(int)
        for found in self.counts:
            totals[found.reason] += found.count
        shown = sorted(totals, key=lambda reason: (-totals[reason], reason))[:_MOST_REASONS]
        heights: dict[str, list[int]] = {reason: [0] * len(hours) for reason in shown}
        for found in self.counts:
            reason = found.reason if found.reason in shown else _OTHERS
            of_reason = heights.setdefault(reason, [0] * len(hours))
            of_reason[places[found.hour]] += found.count
        plot, axes = new_plot()
        bottoms = [0] * len(hours)
        for number, (reason, bars) in enumerate(heights.items()):
            colour = COLOURS[number % len(COLOURS)]
            axes.bar(range(len(hours)), bars, bottom=bottoms, color=colour, label=reason, width=0.7)
            bottoms = [low + bar for low, bar in zip(bottoms, bars, strict=True)]
        step = max(1, -(-len(hours) // 8))
        labels = [f"{hour[5:10]} {hour[11:13]}h" for hour in hours[::step]]
        axes.set_xticks(range(0, len(hours), step), labels)
        axes.set_xlim(-0.6, max(len(hours), 6) - 0.4)
        axes.set_ylabel("dead letters")
        axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
        return Figure(
            "When they were given up, and why",
            svg_of(plot),
            "Dead letters of each hour (UTC) by their reasons; hours without any are left out.",
        )


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
