"""The help that a user sees of the commands before anything runs."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from cometmq import _compiled
from cometmq.cli.main import app


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "150"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    "command",
    [
        "",
        "broker",
        "namesrv",
        "dev",
        "pipeline",
        "store",
        "store repair",
        "bench",
        "bench producer",
    ],
)
def test_a_flag_has_no_type(command: str) -> None:
    text = shown(*command.split(), "-h")
    assert "--help" in text
    assert "<bool>" not in text


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
