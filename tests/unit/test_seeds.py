"""Test that runs draw the same unless somebody asks for something else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.seeds import FIXED, seed_of

ROOT = Path(__file__).parents[2]
A_TEST = """
from tests.seeds import seed_of

def test_draws():
    assert seed_of("COMETMQ_SOME_SEED") == seed_of("COMETMQ_OTHER_SEED")
"""


def test_a_plain_run_draws_what_the_run_before_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMETMQ_CRASH_SEED", raising=False)
    assert seed_of("COMETMQ_CRASH_SEED") == seed_of("COMETMQ_CRASH_SEED") == FIXED
    assert seed_of("COMETMQ_CRASH_SEED", 20) == 20


def test_a_failure_shows_the_setting_that_repeats_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMETMQ_CRASH_SEED", "4711")
    assert seed_of("COMETMQ_CRASH_SEED") == 4711
    assert capsys.readouterr().out == "COMETMQ_CRASH_SEED=4711\n"


@pytest.mark.parametrize("value", ["-1", "0x10", "4294967296", "new"])
def test_a_setting_that_is_no_seed_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("COMETMQ_CRASH_SEED", value)
    with pytest.raises(ValueError, match=f"COMETMQ_CRASH_SEED={value} is no seed; give a number"):
        seed_of("COMETMQ_CRASH_SEED")


def test_a_fresh_seed_is_drawn_once_before_workers_start_and_printed(tmp_path: Path) -> None:
    module = tmp_path / "test_drawing.py"
    module.write_text(A_TEST)
    fresh = {"COMETMQ_SOME_SEED": "fresh", "COMETMQ_OTHER_SEED": "17"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "tests.conftest", "-c"]
    done = subprocess.run(
        [*command, str(ROOT / "pyproject.toml"), str(module)],
        env={**os.environ, **fresh}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    (printed,) = (line for line in done.stdout.splitlines() if line.startswith("drawn for"))
    drawn = printed.removeprefix("drawn for this run: ")
    assert drawn != "COMETMQ_SOME_SEED=17"
    # The failure of the worker names what the process that started it drew.
    assert [line for line in done.stdout.splitlines() if line.startswith("COMETMQ_SOME_SEED=")] == [
        drawn
    ]
