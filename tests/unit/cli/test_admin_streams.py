"""Rows that are streamed by `cometmq admin` are one document in each form, and none waits for the last."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable

import pytest
import yaml

from cometmq.cli.admin.commands.message_view import charset
from cometmq.cli.admin.output import Column, Form, Output
from cometmq.cli.admin.time_range import time_ms

COLUMNS = (Column("name", "Name"), Column("count", "Count"), Column("more", "More"))
ROWS = [("a", 1, {"k": "v"}), ("ü\n", None, []), ("null", 3, None)]
ITEMS = [{"name": name, "count": count, "more": more} for name, count, more in ROWS]
READERS: list[tuple[Form, Callable[[str], object]]] = [
    (Form.JSON, json.loads),
    (Form.YAML, yaml.safe_load),
]


def printed(
    form: Form, rows: int, section: str, rest: bool, capsys: pytest.CaptureFixture[str]
) -> str:
    out = Output(form)
    with out.stream(COLUMNS, section=section) as put:
        for row in ROWS[:rows]:
            put(row)
    if rest:
        out.record({"total": rows}, section="summary")
    out.finish()
    return capsys.readouterr().out


@pytest.mark.parametrize(("form", "read"), READERS)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_streamed_rows_are_one_document(
    form: Form, read: Callable[[str], object], rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(form, rows, "", False, capsys)
    assert text.endswith("\n")
    assert read(text) == ITEMS[:rows]
    assert read(printed(form, rows, "rows", False, capsys)) == {"rows": ITEMS[:rows]}
    whole = {"rows": ITEMS[:rows], "summary": {"total": rows}}
    assert read(printed(form, rows, "rows", True, capsys)) == whole


def test_streamed_rows_are_lines_of_csv(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(csv.DictReader(io.StringIO(printed(Form.CSV, 3, "", False, capsys))))
    assert [row["name"] for row in found] == ["a", "ü\n", "null"]
    assert json.loads(found[0]["more"]) == {"k": "v"}


@pytest.mark.parametrize("form", list(Form))
def test_no_row_waits_for_the_last(form: Form, capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(form)
    with out.stream(COLUMNS) as put:
        for number in range(1_000):
            put((f"row-{number}", number, None))
        assert "row-999" in capsys.readouterr().out
    out.finish()


def test_a_streamed_table_keeps_the_widths_of_its_first_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = Output(Form.TABLE)
    with out.stream(COLUMNS[:2]) as put:
        for number in range(300):
            put(("x" * 9 if number < 299 else "y" * 12, number))
    head, *lines = capsys.readouterr().out.splitlines()
    assert (head, lines[0], lines[-1]) == (
        "Name       Count",
        "xxxxxxxxx      0",
        "yyyyyyyyyyyy    299",  # nothing is cut
    )


def test_times_are_taken_as_mqadmin_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    import typer

    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        assert time_ms("1700000000123") == 1700000000123
        assert time_ms("2023-11-15#00:13:20:123") == 1700000000123
        # As the tables print it.
        assert time_ms("2023-11-15 00:13:20,123") == 1700000000123
    finally:
        monkeypatch.undo()
        time.tzset()
    for text in ("", "gestern", "-1", "2023-02-30#00:00:00:000", "9" * 30, "2023-11-15"):
        with pytest.raises(typer.BadParameter, match="is no time"):
            time_ms(text)


def test_only_charsets_of_text_are_taken() -> None:
    import typer

    assert charset("UTF-8") == "utf-8"
    assert charset("gbk") == "gbk"
    for name in ("hex", "base64", "no-such", ""):
        with pytest.raises(typer.BadParameter, match="is no charset"):
            charset(name)
