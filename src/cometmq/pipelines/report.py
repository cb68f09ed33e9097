"""Hold the report of a pipeline: a JSON file for programs, tables and figures for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.state_files.durable import write_atomically


@dataclass(frozen=True)
class Table:
    """A table of a report. Its numbers stay numbers; the page and the terminal format them."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    # Shown instead of rows if there are none.
    empty: str = "none"
    # The table is too long or too detailed for a terminal.
    page_only: bool = False


@dataclass(frozen=True)
class Figure:
    """A picture of a report: `svg` is an element <svg>, `caption` says what it shows."""

    title: str
    svg: str
    caption: str = ""


Section = Table | Figure


def now() -> datetime:
    return datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC)


class Report(msgspec.Struct, kw_only=True):
    """The base of the pipelines' reports; its fields are the fields of the JSON.

    holds: False if something is left that somebody has to look at; the exit status is then 1.
    summary: the outcome in one sentence.
    """

    pipeline: str
    started: datetime
    ended: datetime = msgspec.field(default_factory=now)
    holds: bool
    summary: str

    def sections(self) -> list[Section]:
        """Return the report's tables and figures, the most important first."""
        return []

    def write_json(self, path: Path) -> None:
        """Write the report as JSON. Raise OSError; the file is then as before."""
        # A stream replaces its report while people and programs read it.
        write_atomically(path, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
