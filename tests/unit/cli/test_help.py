"""The help that a user sees of the commands before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
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


EVERY: Final = list(lines_of(typer.main.get_command(app)))


@pytest.mark.parametrize("line", EVERY, ids=" ".join)
def test_a_help_has_no_types_of_flags_and_no_options_that_are_refused(
    line: tuple[str, ...],
) -> None:
    text = shown(*line, "-h")
    assert "--help" in text
    assert "<bool>" not in text
    options = text.partition("─ Options ─")[2].partition("╰─")[0]
    assert "Refused" not in options


@pytest.mark.parametrize(
    "line", [line for line in EVERY if line and line[0] in ("explain", "doctor", "store", "bench")]
)
def test_a_letter_means_the_same_in_every_command_of_ours(line: tuple[str, ...]) -> None:
    text = shown(*line, "-h")
    for letter, long in {"-n": "--namesrvAddr", "-o": "--output", "-t": "--topic"}.items():
        for shown_line in text.splitlines():
            if re.search(rf" {letter} ", shown_line):
                assert long in shown_line


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
