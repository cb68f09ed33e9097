"""Report the letters that a redrive found and sent."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime

from cometmq.pipelines.redrive.letters import LetterCount
from cometmq.pipelines.report import Section, Table
from cometmq.pipelines.resending.report import ResendReport
from cometmq.pipelines.resending.timeline import timeline_figure


class Report(ResendReport):
    """The report of a redrive.

    letters: how many there are.
    counts: all and chosen letters by origin topic, reason and hour.
    stranded: topics of chosen letters that do not exist.
    """

    group: str
    send: bool
    to: str
    letters: int
    stranded: list[str]
    counts: list[LetterCount]

    def sections(self) -> list[Section]:
        sections: list[Section] = [self._reasons()]
        if self.stranded:
            rows = [[topic] for topic in self.stranded]
            sections.append(Table("Came from topics that are not there", ["topic"], rows))
        sections += self.refusal_tables()
        if self.counts:
            title = "When they were given up, and why"
            sections.append(timeline_figure(self.timeline, title, "dead letters"))
        sections.append(self._hours())
        return sections + self.dropped_tables()

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


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
