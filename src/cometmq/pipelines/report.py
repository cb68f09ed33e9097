"""What a pipeline says it did: a JSON file for programs, tables and figures for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec


@dataclass(frozen=True)
class Table:
    """A table of a report. Numbers are numbers: whoever shows them decides how they look."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    # Shown in place of the rows when there are none.
    empty: str = "none"
    # Too long, or too detailed, for a terminal.
    page_only: bool = False


@dataclass(frozen=True)
class Figure:
    """A picture of a report: `svg` is an element <svg>, `caption` says what is to be seen."""

    title: str
    svg: str
    caption: str = ""


Section = Table | Figure


def now() -> datetime:
    return datetime.now(UTC)


class Report(msgspec.Struct, kw_only=True):
    """The base of the pipelines' reports; their fields are the JSON's.

    holds: False when something is left over that somebody has to look at; the exit status is 1 then.
    summary: what came of it, in a sentence.
    """

    pipeline: str
    started: datetime
    ended: datetime = msgspec.field(default_factory=now)
    holds: bool
    summary: str

    def sections(self) -> list[Section]:
        """Its tables and figures, the most important first."""
        return []

    def write_json(self, path: Path) -> None:
        """Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
