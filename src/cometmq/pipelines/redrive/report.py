"""What a redrive found, and sent."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime

from cometmq.pipelines.redrive.letters import LetterCount
from cometmq.pipelines.report import Report as BaseReport
from cometmq.pipelines.report import Section, Table
from cometmq.pipelines.resending.timeline import Timeline, timeline_figure


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
    timeline: Timeline

    def sections(self) -> list[Section]:
        sections: list[Section] = [self._reasons()]
        if self.stranded:
            rows = [[topic] for topic in self.stranded]
            sections.append(Table("Came from topics that are not there", ["topic"], rows))
        if self.refusals:
            refusals = [[text] for text in self.refusals]
            sections.append(Table("Cannot be sent", ["the first of each task"], refusals))
        if self.counts:
            title = "When they were given up, and why"
            sections.append(timeline_figure(self.timeline, title, "dead letters"))
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


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
