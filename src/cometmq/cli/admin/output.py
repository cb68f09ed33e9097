"""Prints what commands of `cometmq admin` found: a table for people, JSON, CSV and YAML for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

GAP: Final = "  "


class Form(Enum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    YAML = "yaml"


def as_text(value: object) -> str:
    """Return a value as people read it, in one line and without what moves a terminal's cursor."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.2f}"
    text = value if isinstance(value, str) else _in_one_line(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def as_time(value: object) -> str:
    """Return ms since the epoch as mqadmin prints them, in local time; 0 stands for no time."""
    if not isinstance(value, int) or value <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(value / 1000).astimezone()
    except (OverflowError, ValueError, OSError):
        return str(value)
    return f"{moment:%Y-%m-%d %H:%M:%S},{value % 1000:03}"


def _in_one_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str) if _nests(value) else str(value)


def _nests(value: object) -> bool:
    return isinstance(value, list | tuple | dict)


@dataclass(frozen=True, slots=True)
class Column:
    """Describes a column: its key for programs, its title and its form for people."""

    key: str
    title: str
    form: Callable[[object], str] = as_text


class Output:
    """Takes tables and records, and prints them in one form on stdout.

    What is for people only (`note`) goes to stderr, so that a pipe gets the result alone. A table is
    as wide as its values: nothing is cut.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        self._sections: list[tuple[str, object]] = []
        self._printed = False

    def table(
        self, columns: Sequence[Column], rows: Iterable[Sequence[object]], *, section: str = ""
    ) -> None:
        """Print rows of values. Commands that print several tables name each `section`."""
        found = list(rows)
        if self.form is Form.TABLE:
            self._head(section)
            _print_table(columns, found)
        elif self.form is Form.CSV:
            self._gap()
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow([column.key for column in columns])
            writer.writerows([_csv_value(value) for value in row] for row in found)
        else:
            keys = [column.key for column in columns]
            self._sections.append((section, [dict(zip(keys, row, strict=True)) for row in found]))

    def record(self, values: Mapping[str, object], *, section: str = "") -> None:
        """Print the values of one thing, each with its name."""
        if self.form is Form.TABLE:
            self._head(section)
            width = max(map(len, values), default=0)
            for name, value in values.items():
                sys.stdout.write(f"{as_text(name):<{width}}{GAP}{as_text(value)}\n")
        elif self.form is Form.CSV:
            self._gap()
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(("name", "value"))
            writer.writerows((name, _csv_value(value)) for name, value in values.items())
        else:
            self._sections.append((section, dict(values)))

    def note(self, text: str) -> None:
        """Tell people something beside the result."""
        sys.stdout.flush()
        sys.stderr.write(f"{text}\n")

    def finish(self) -> None:
        """Print what JSON and YAML hold back: one document needs all of it."""
        if self.form in (Form.JSON, Form.YAML) and self._sections:
            document = self._document()
            if self.form is Form.JSON:
                text = json.dumps(document, indent=2, ensure_ascii=False)
                sys.stdout.write(f"{text}\n")
            else:
                import yaml

                yaml.safe_dump(
                    document, sys.stdout, sort_keys=False, allow_unicode=True, width=10**9
                )
        sys.stdout.flush()

    def _document(self) -> Any:
        # Through JSON, so that both forms know the same values.
        sections = self._sections
        whole = sections[0][1] if len(sections) == 1 and not sections[0][0] else dict(sections)
        return json.loads(json.dumps(whole, default=str))

    def _head(self, section: str) -> None:
        self._gap()
        if section:
            sys.stdout.write(f"{section}:\n")

    def _gap(self) -> None:
        if self._printed:
            sys.stdout.write("\n")
        self._printed = True


def _csv_value(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _in_one_line(value) if _nests(value) else value


def _print_table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    texts = [
        [column.form(value) for column, value in zip(columns, row, strict=True)] for row in rows
    ]
    widths = [
        max([len(column.title), *(len(row[place]) for row in texts)])
        for place, column in enumerate(columns)
    ]
    right = [
        bool(rows) and all(_is_number(row[place]) for row in rows) and column.form is as_text
        for place, column in enumerate(columns)
    ]
    for line in ([column.title for column in columns], *texts):
        cells = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        )
        sys.stdout.write(f"{GAP.join(cells).rstrip()}\n")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
