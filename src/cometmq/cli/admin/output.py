"""Print results of `cometmq admin`: a table for people, JSON, CSV and YAML for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from cometmq.logs.plain import plain, plain_json

GAP: Final = "  "
# The first rows decide how wide a streamed table is; they wait no longer than this.
_FIRST_ROWS: Final = 200
_FIRST_ROWS_S: Final = 0.3


class Form(Enum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    YAML = "yaml"


def as_text(value: object) -> str:
    """Return a value for people, in one line and without characters that move a terminal's
    cursor.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.2f}"
    return plain(value if isinstance(value, str) else _in_one_line(value))


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

    def value(self, value: object) -> object:
        """Return a value for programs: None for a time that a server gives as 0 or less."""
        is_no_time = self.form is as_time and isinstance(value, int) and value <= 0
        return None if is_no_time else value


class Output:
    """Takes tables and records, and prints them in one form on stdout.

    Notes for people (`note`) go to stderr, so that a pipe gets the result alone. A table is
    as wide as its values: nothing is cut.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        self._sections: list[tuple[str, Any]] = []
        self._printed = False
        # The section that was streamed; in JSON and YAML the later sections continue its document.
        self._streamed: str | None = None

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
            put = _csv_writer([column.key for column in columns])
            for row in found:
                put([column.value(value) for column, value in zip(columns, row, strict=True)])
        else:
            items = [
                {
                    column.key: column.value(value)
                    for column, value in zip(columns, row, strict=True)
                }
                for row in found
            ]
            if self._sections and self._sections[-1][0] == section:
                self._sections[-1][1].extend(items)  # a command that prints the table in parts
            else:
                self._sections.append((section, items))

    @contextmanager
    def stream(
        self, columns: Sequence[Column], *, section: str = ""
    ) -> Iterator[Callable[[Sequence[object]], None]]:
        """Print rows as they come, however many: call the yielded function with each.

        A command has one stream, before its other sections. JSON has one row in a line.
        """
        assert not self._sections, "a streamed section comes first"
        put: Callable[[Sequence[object]], None]
        if self.form is Form.TABLE:
            self._head(section)
            rows = _StreamedTable(columns)
            put, end = rows.put, rows.end
        elif self.form is Form.CSV:
            self._gap()
            put, end = _csv_writer([column.key for column in columns]), lambda: None
        else:
            items = _StreamedItems(self.form, [column.key for column in columns], section)
            put, end = items.put, items.end
            self._streamed = section
        try:
            yield put
        finally:
            end()
            sys.stdout.flush()

    def text(self, text: str, *, section: str) -> None:
        """Print text of any number of lines to people. Programs get it as a value of a record."""
        if self.form is Form.TABLE:
            self._head(section)
            for line in text.removesuffix("\n").split("\n"):
                sys.stdout.write(f"{GAP}{as_text(line.removesuffix(chr(13)).expandtabs())}\n")

    def record(self, values: Mapping[str, object], *, section: str = "") -> None:
        """Print the values of one thing, each with its name."""
        if self.form is Form.TABLE:
            self._head(section)
            texts = [(as_text(name), as_text(value)) for name, value in values.items()]
            width = max((_width(name) for name, _ in texts), default=0)
            for line in texts:
                _print_line(line, (width, 0), (False, False))
        elif self.form is Form.CSV:
            self._gap()
            put = _csv_writer(("name", "value"))
            for item in values.items():
                put(item)
        else:
            self._sections.append((section, dict(values)))

    def note(self, text: str) -> None:
        """Print a note for people beside the result."""
        sys.stdout.flush()
        sys.stderr.write(f"{plain(text, keep=chr(10))}\n")

    def finish(self) -> None:
        """Print the sections that JSON and YAML have held back, because one document needs them
        all.

        A command that prints again every few seconds prints a document each time.
        """
        if self.form in (Form.JSON, Form.YAML):
            if self._streamed is None:
                if self._sections:
                    sys.stdout.write(_text_of(self._document(), self.form))
            elif self._streamed:
                self._continue_document()
            self._sections.clear()
        sys.stdout.flush()

    def _continue_document(self) -> None:
        """Print the sections that follow the streamed one, and end the document."""
        rest = _text_of(_plain(dict(self._sections)), self.form) if self._sections else ""
        if self.form is Form.JSON:
            sys.stdout.write(f",{rest[1:]}" if rest else "\n}\n")
        else:
            sys.stdout.write(rest)

    def _document(self) -> Any:
        sections = self._sections
        return _plain(
            sections[0][1] if len(sections) == 1 and not sections[0][0] else dict(sections)
        )

    def _head(self, section: str) -> None:
        self._gap()
        if section:
            sys.stdout.write(f"{plain(section)}:\n")

    def _gap(self) -> None:
        if self._printed:
            sys.stdout.write("\n")
        self._printed = True


class _StreamedTable:
    """Prints rows of a table; its columns are as wide as their titles and values in the first rows."""

    def __init__(self, columns: Sequence[Column]) -> None:
        # Imported here, because it imports logging, which most commands do without.
        from cometmq.runtime.clock import SYSTEM_CLOCK

        self._clock = SYSTEM_CLOCK
        self._columns = columns
        self._first: list[Sequence[object]] | None = []
        self._begin_s = self._clock.monotonic()
        self._widths: list[int] = []
        self._right: list[bool] = []

    def put(self, row: Sequence[object]) -> None:
        if self._first is None:
            texts = [c.form(value) for c, value in zip(self._columns, row, strict=True)]
            _print_line(texts, self._widths, self._right)
            return
        self._first.append(row)
        waited_s = self._clock.monotonic() - self._begin_s
        if len(self._first) >= _FIRST_ROWS or waited_s >= _FIRST_ROWS_S:
            self.end()

    def end(self) -> None:
        if self._first is not None:
            self._widths, self._right = _print_table(self._columns, self._first)
            self._first = None
            sys.stdout.flush()


class _StreamedItems:
    """Prints rows as items of a list in JSON or YAML, below the name of a section if it has one."""

    def __init__(self, form: Form, keys: Sequence[str], section: str) -> None:
        self._form = form
        self._keys = keys
        self._section = section
        self._count = 0
        if form is Form.JSON:
            sys.stdout.write(f"{{\n{json.dumps(section)}: [" if section else "[")

    def put(self, row: Sequence[object]) -> None:
        item = dict(zip(self._keys, row, strict=True))
        if self._form is Form.JSON:
            text = plain_json(json.dumps(item, ensure_ascii=False, default=str))
            sys.stdout.write(f",\n{text}" if self._count else f"\n{text}")
        else:
            if self._section and not self._count:
                name = _text_of({self._section: None}, self._form)
                sys.stdout.write(name.replace(" null", ""))
            sys.stdout.write(_text_of([_plain(item)], self._form))
        self._count += 1

    def end(self) -> None:
        if self._form is Form.JSON:
            # A named section is in an object, which `Output.finish` ends.
            sys.stdout.write(("\n]" if self._count else "]") + ("" if self._section else "\n"))
        elif not self._count:
            sys.stdout.write(_text_of({self._section: []} if self._section else [], self._form))


def _plain(value: object) -> Any:
    """Return a value in JSON's types, so that JSON and YAML have the same values."""
    return json.loads(json.dumps(value, default=str))


def _text_of(document: object, form: Form) -> str:
    if form is Form.JSON:
        return plain_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"
    text = _yaml_of(document, ascii_only=False)
    is_plain = text.replace("\n", "").isprintable()
    return text if is_plain else _yaml_of(document, ascii_only=True)


def _yaml_of(document: object, *, ascii_only: bool) -> str:
    import yaml

    text: str = yaml.dump(
        document,
        Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
        sort_keys=False,
        allow_unicode=not ascii_only,
        width=10**9,
    )
    return text


def _csv_writer(head: Sequence[object]) -> Callable[[Sequence[object]], None]:
    """Print the first line of a CSV table; return the function that prints a row.

    CSV has no escapes: programs get each value as it is, a terminal without characters that move
    its cursor.
    """
    to_people = sys.stdout.isatty()
    writer = csv.writer(sys.stdout, lineterminator="\n")

    def put(row: Sequence[object]) -> None:
        values = map(_csv_value, row)
        writer.writerow(
            [plain(each) if to_people and isinstance(each, str) else each for each in values]
        )

    put(head)
    return put


def _csv_value(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _in_one_line(value) if _nests(value) else value


def _print_table(
    columns: Sequence[Column], rows: Sequence[Sequence[object]]
) -> tuple[list[int], list[bool]]:
    """Print a table; return how wide its columns are, and which of them are aligned to the right."""
    texts = [
        [column.form(value) for column, value in zip(columns, row, strict=True)] for row in rows
    ]
    widths = [
        max([len(column.title), *(_width(row[place]) for row in texts)])
        for place, column in enumerate(columns)
    ]
    right = [
        column.form is as_text
        and any(_is_number(row[place]) for row in rows)
        and all(row[place] is None or _is_number(row[place]) for row in rows)
        for place, column in enumerate(columns)
    ]
    for line in ([column.title for column in columns], *texts):
        _print_line(line, widths, right)
    return widths, right


def _print_line(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> None:
    cells = []
    for text, width, to_right in zip(texts, widths, right, strict=True):
        blanks = " " * (width - _width(text))
        cells.append(f"{blanks}{text}" if to_right else f"{text}{blanks}")
    sys.stdout.write(f"{GAP.join(cells).rstrip()}\n")


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes: ideographs take two, accents none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
