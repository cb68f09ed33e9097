"""Texts that others wrote cannot move the cursor of an operator, choose files, or show a secret."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from rich.text import Text
from typer.testing import CliRunner

from cometmq.cli.admin.command import Run
from cometmq.cli.admin.commands.message_view import show, write_body
from cometmq.cli.admin.output import Column, Form, Output, as_time
from cometmq.cli.connection import Connection, Security
from cometmq.cli.doctor import screen as doctor_screen
from cometmq.cli.main import app
from cometmq.cli.markup import as_markup
from cometmq.cli.store import screen as store_screen
from cometmq.errors import ConfigError, RemoteError, ServersFailedError
from cometmq.logs.plain import plain_json
from cometmq.model.message import MessageExt
from cometmq.model.reports.finding import Finding, Severity

EVIL = "\x1b]0;title\x07\x9b2J"
ID = "7F0000010712478430C271216810A175"


def message(msg_id: str) -> MessageExt:
    return MessageExt("orders", b"body", msg_id=msg_id, offset_msg_id="0" * 32)


def with_keys(file: Path) -> Connection:
    return Security(credentials_file=file).connection(None, 1)


def test_no_escape_sequence_reaches_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(Form.TABLE)
    show(out, message(EVIL), "utf-8", None, None)
    out.record({EVIL: EVIL}, section=EVIL)
    run = Run(cast(Any, None), out, cast(Any, None), False, False)
    run.failed(EVIL, f"{EVIL}\nsecond line")
    out.finish()
    printed = capsys.readouterr()
    assert (printed.out + printed.err).replace("\n", "").isprintable()
    assert "\nsecond line" in printed.err


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("form", [Form.JSON, Form.YAML, Form.CSV])
def test_what_programs_read_has_no_escape_sequence_for_a_terminal(
    form: Form,
    is_streamed: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    evil = f"{EVIL}\x85\u202e\U000e0001 ü\n"
    out = Output(form)
    if is_streamed:
        with out.stream((Column("name", "Name"), Column("none", "None"))) as put:
            put((evil, None))
    else:
        out.table((Column("name", "Name"), Column("none", "None")), [(evil, None)])
    out.finish()
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    if form is Form.CSV:
        assert "None" not in printed
    else:
        read = json.loads if form is Form.JSON else yaml.safe_load
        assert read(printed) == [{"name": evil, "none": None}]


def test_a_pipe_gets_the_values_of_csv_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Form.CSV).record({"name": EVIL})
    assert capsys.readouterr().out == f"name,value\nname,{EVIL}\n"


def test_json_for_people_means_the_same() -> None:
    value = {"a": "\x7f\x9b\u2028\u202e\ud800\U000e0001", "ü": ["\x1b", "\\u0041", 1]}
    text = plain_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == value
    assert "ü" in text


def test_other_screens_show_no_escape_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding(EVIL, Severity.WARNING, EVIL, EVIL, EVIL)
    doctor_screen.print_table({EVIL: [finding]})
    doctor_screen.print_json({EVIL: [finding]})
    store_screen.print_line({EVIL: EVIL})
    store_screen.print_json({EVIL: EVIL})
    assert capsys.readouterr().out.replace("\n", "").isprintable()
    assert Text.from_markup(as_markup(f"[bold]{EVIL}")).plain.isprintable()


def test_columns_are_as_wide_as_a_terminal_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    columns = (Column("name", "Name"), Column("count", "Count"))
    Output(Form.TABLE).table(columns, [("世界世", 1), ("abc", 2), ("a\u0301", 3)])
    assert capsys.readouterr().out.splitlines() == [
        "Name    Count",
        "世界世      1",
        "abc         2",
        "a\u0301           3",
    ]


@pytest.mark.parametrize("msg_id", [".bashrc", "Makefile", "../up", "", ".."])
def test_a_producer_does_not_choose_the_file_of_a_body(tmp_path: Path, msg_id: str) -> None:
    directory = tmp_path / "bodies"
    assert write_body(message(msg_id), directory) == directory / ("0" * 32)
    assert write_body(message(ID), directory) == directory / ID
    assert {file.name for file in directory.iterdir()} == {"0" * 32, ID}


def test_a_change_in_steps_that_failed_is_not_told_as_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def fail() -> None:
        raise ServersFailedError("no", results={"a": None}, errors={"b": RemoteError("no", code=1)})

    def change(**options: bool) -> Awaitable[object]:
        run = Run(cast(Any, None), Output(Form.TABLE), cast(Any, None), False, True)
        return run.change("delete group g", ["a", "b"], fail, **options)

    asyncio.run(cast(Any, change(in_steps=True)))
    assert "a       unfinished, repeat it: delete group g" in capsys.readouterr().out
    asyncio.run(cast(Any, change()))
    assert "a       done: delete group g" in capsys.readouterr().out


def test_a_value_that_is_not_utf_8_is_refused_in_a_sentence() -> None:
    result = CliRunner().invoke(
        app, ["admin", "topicRoute", "-t", "\udcff", "-n", "127.0.0.1:1"], env={}
    )
    assert isinstance(result.exception, ConfigError)
    assert "is no text in UTF-8" in str(result.exception)


@pytest.mark.parametrize("secret", ["@the-secret", '"the-secret', "[the-secret]", ""])
def test_a_credentials_file_that_does_not_fit_is_refused_without_its_keys(
    tmp_path: Path, secret: str
) -> None:
    file = tmp_path / "tools.yml"
    file.write_text(f"accessKey: someone\nsecretKey: {secret}\n")
    with pytest.raises(ConfigError) as refused:
        with_keys(file)
    assert "tools.yml" in str(refused.value)
    assert "the-secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_keys_are_the_texts_that_are_written(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: 0123\nsecretKey: yes\n")
    found = with_keys(file).credentials
    assert found is not None
    assert (found.access_key, found.secret_key) == ("0123", "yes")


@pytest.mark.parametrize("none", [0, -1, None])
def test_a_time_that_is_none_was_0_in_json(
    capsys: pytest.CaptureFixture[str], none: int | None
) -> None:
    columns = (Column("lastTime", "LastTime", as_time), Column("diff", "Diff"))
    for form, printed in ((Form.JSON, '"lastTime": null'), (Form.CSV, "\n,0"), (Form.TABLE, "-")):
        out = Output(form)
        out.table(columns, [(none, 0)])
        out.finish()
        assert printed in capsys.readouterr().out
