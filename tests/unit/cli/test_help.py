"""The help that a user sees of the commands before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from cometmq import _compiled
from cometmq.cli.main import app


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "150"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def lines_of(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of a command and of all below it."""
    yield words
    if isinstance(command, TyperGroup):
        with command.make_context("", [], resilient_parsing=True) as context:
            for name in command.list_commands(context):
                yield from lines_of(command.get_command(context, name), *words, name)


# Half a second: not for each process that only collects the tests.
@cache
def every() -> list[tuple[str, ...]]:
    """Return the words of each command."""
    return list(lines_of(typer.main.get_command(app)))


# Of more than a hundred commands; so many parts that several processes share them.
PARTS: Final = 6
OURS: Final = ("explain", "doctor", "store", "bench")


@pytest.mark.parametrize("part", range(PARTS))
def test_a_help_has_no_types_of_flags_no_refused_options_and_our_letters(part: int) -> None:
    """In every command of ours a letter means the same."""
    lines = every()[part::PARTS]
    assert len(lines) > 20
    for line in lines:
        text = shown(*line, "-h")
        assert "--help" in text, line
        assert "<bool>" not in text, line
        options = text.partition("─ Options ─")[2].partition("╰─")[0]
        assert "Refused" not in options, line
        if line and line[0] in OURS:
            assert misused_letters(text) == [], line


def misused_letters(text: str) -> list[str]:
    """Return the lines of a help that give one of these letters to another option."""
    letters = {"-n": "--namesrvAddr", "-o": "--output", "-t": "--topic"}
    return [
        shown_line
        for letter, long in letters.items()
        for shown_line in text.splitlines()
        if re.search(rf" {letter} ", shown_line) and long not in shown_line
    ]


def test_our_commands_are_among_those_whose_help_is_read() -> None:
    assert set(OURS) <= {line[0] for line in every() if line}


def test_what_stands_in_brackets_is_not_taken_for_markup() -> None:
    assert re.search(r"Keep the messages in DIR \(default: a temporary", shown("dev", "-h"))


def test_completion_is_offered() -> None:
    assert "--install-completion" in shown("-h")


def test_the_version_names_a_script_in_a_checkout_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compiled, "state", lambda: "not compiled; see scripts/compile")
    assert _compiled.is_checkout()
    assert "scripts/compile" in shown("--version")
    monkeypatch.setattr(_compiled, "is_checkout", lambda: False)
    assert shown("--version").endswith("(interpreted)\n")


def test_the_help_of_a_pipeline_leads_to_its_keys() -> None:
    # With Spark the keys themselves, see tests/spark/test_pipeline_help.py.
    assert "its keys" in shown("pipeline", "archive", "-h").lower()
