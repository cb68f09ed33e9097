"""Report each day of the service: a page and a JSON file, `table-2026-11-30.html` and `.json`.

The files are written every ten minutes, at each restart, and when the day or the service ends. A service that
starts reads the file of the day, and goes on with its figures. Days are those of UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from cometmq.pipelines import report
from cometmq.pipelines.report import Section, Table
from cometmq.pipelines.table.board import Board, Taken
from cometmq.pipelines.table.notes import Figures
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock

_WRITE_EVERY_S: Final = 600.0
_MB: Final = 1_000_000
# A driver that ends again and again all day must not fill the page.
_MOST_RESTARTS: Final = 200


class TopicLine(msgspec.Struct):
    """A topic on this day. rows: written on this day. worst_s: the longest time that the tables were behind.
    The other figures are those of the last round.
    """

    topic: str
    rows: int = 0
    worst_s: float = 0.0
    rows_in_all: int = 0
    files: int = 0
    bytes: int = 0


class HourLine(msgspec.Struct):
    """The figures of all topics in an hour of the day, such as 16."""

    hour: int
    rows: int = 0
    worst_s: float = 0.0


class RestartLine(msgspec.Struct):
    """The end of a driver that nobody had asked to end."""

    at: datetime
    why: str


class DayReport(report.Report):
    """The report of a day. Freshness is in seconds; cpu_s is the processor time of the drivers."""

    day: str
    target_s: float
    topics: dict[str, TopicLine] = msgspec.field(default_factory=dict)
    hours: dict[int, HourLine] = msgspec.field(default_factory=dict)
    restarts: list[RestartLine] = msgspec.field(default_factory=list)
    restart_count: int = 0
    cpu_s: float = 0.0

    def sections(self) -> list[Section]:
        topics = [
            (
                one.topic,
                one.rows,
                one.worst_s,
                one.rows_in_all,
                one.files,
                one.bytes / _MB,
            )
            for one in self.topics.values()
        ]
        hours = [
            (f"{one.hour:02d}:00", one.rows, one.worst_s)
            for one in sorted(self.hours.values(), key=lambda one: one.hour)
        ]
        return [
            Table(
                "Topics",
                ("topic", "rows written", "most seconds behind", "rows in all", "files", "MB"),
                topics,
            ),
            Table("Hours", ("hour", "rows written", "most seconds behind"), hours),
            Table("Restarts", ("at", "cause"), [(one.at, one.why) for one in self.restarts]),
        ]


class Days:
    """Keeps the report of the current day. For one thread.

    say: shows the user a line if a report cannot be written.
    """

    def __init__(
        self,
        directory: Path,
        target_s: float,
        say: Callable[[str], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._directory = directory
        self._target_s = target_s
        self._say = say
        self._clock = clock
        self._fault = ""
        self._cpu_s = 0.0
        self._report = self._of_today()
        self._written_s = clock.monotonic()

    def take(self, figures: Figures, taken: Taken, board: Board) -> None:
        """Add the figures of a round of a driver."""
        today = self._today()
        now = self._now()
        hour = today.hours.setdefault(now.hour, HourLine(now.hour))
        for one in figures.topics:
            line = today.topics.setdefault(one.topic, TopicLine(one.topic))
            line.rows += taken.rows[one.topic]
            line.rows_in_all, line.files, line.bytes = one.rows, one.files, one.bytes
            hour.rows += taken.rows[one.topic]
            behind_s = taken.ages_s.get(one.topic, 0.0)
            line.worst_s = max(line.worst_s, behind_s)
            hour.worst_s = max(hour.worst_s, behind_s)
        cpu_s = board.cpu_s or 0.0
        today.cpu_s += max(0.0, cpu_s - self._cpu_s)
        self._cpu_s = cpu_s
        today.holds = figures.problems == 0 and not any(one.problem for one in figures.tables)
        if self._clock.monotonic() - self._written_s >= _WRITE_EVERY_S:
            self.write()

    def restarted(self, why: str) -> None:
        """Add the end of a driver, and write the report."""
        today = self._today()
        today.restart_count += 1
        today.restarts = [*today.restarts, RestartLine(self._now(), why)][-_MOST_RESTARTS:]
        self.write()

    def write(self) -> None:
        """Write the report. If that fails, say so once for each reason."""
        from cometmq.pipelines.page import write_page

        self._written_s = self._clock.monotonic()
        one = self._report
        one.ended = self._now()
        one.summary = _summary(one)
        try:
            one.write_json(self._path(one.day, "json"))
            write_page(one, self._path(one.day, "html"))
        except OSError as error:
            fault = f"the report of the day cannot be written to {self._directory}: {error}"
            if fault != self._fault:
                self._say(fault)
            self._fault = fault

    # Inside

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)

    def _today(self) -> DayReport:
        if self._report.day != f"{self._now():%Y-%m-%d}":
            self.write()
            self._report = self._of_today()
        return self._report

    def _of_today(self) -> DayReport:
        now = self._now()
        day = f"{now:%Y-%m-%d}"
        try:
            # A file that another program has written there must not stop the service.
            found = msgspec.json.decode(self._path(day, "json").read_bytes(), type=DayReport)
        except (OSError, msgspec.DecodeError):
            return DayReport(
                pipeline="table",
                started=now,
                holds=True,
                summary="",
                day=day,
                target_s=self._target_s,
            )
        found.target_s = self._target_s
        return found

    def _path(self, day: str, suffix: str) -> Path:
        return self._directory / f"table-{day}.{suffix}"


def _summary(one: DayReport) -> str:
    rows = sum(line.rows for line in one.topics.values())
    worst_s = max((line.worst_s for line in one.topics.values()), default=0.0)
    return (
        f"{rows:,} rows in {len(one.topics):,} topics; the tables were {worst_s:,.0f} s behind at most, "
        f"with a target of {one.target_s:g} s; {one.restart_count:,} restarts; {one.cpu_s:,.0f} s of "
        "processor time"
    )
