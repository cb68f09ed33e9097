"""The temporary directory of a run of pytest goes with the run, whatever lies in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests import temporary

def pytest_configure(config):
    temporary.register(config)
"""
# A JVM that is killed leaves such files.
TEST = """
import os, subprocess, sys, tempfile

LEAVE = "import tempfile; print(tempfile.mkstemp()[1])"

def test_something_is_left(tmp_path):
    found = tempfile.mkstemp()[1]
    below = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, text=True, check=True)
    with open(os.environ["SEEN"], "a") as seen:
        print(found, below.stdout.strip(), tmp_path, sep="\\n", file=seen)
    assert "pass" in os.environ["VERDICT"]
"""


def left_files(tmp_path: Path, *options: str, verdict: str) -> tuple[list[Path], list[Path]]:
    """Run a test that leaves files; return what it left, and those of them that are still there."""
    place, suite = tmp_path / "place", tmp_path / "suite"
    for directory in (place, suite):
        directory.mkdir()
    (suite / "conftest.py").write_text(CONFTEST)
    (suite / "test_leaving.py").write_text(TEST)
    seen = tmp_path / "seen"
    settings = {"TMPDIR": str(place), "PYTHONPATH": str(ROOT)}
    settings |= {"SEEN": str(seen), "VERDICT": verdict}
    dropped = ("PYTEST_DEBUG_TEMPROOT", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    policy = ("-o", "tmp_path_retention_policy=failed")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *policy, *options],
        cwd=suite, env={**kept, **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == (0 if verdict == "pass" else 1), done.stdout + done.stderr
    left = [Path(line) for line in seen.read_text().splitlines()]
    assert len(left) == 3
    assert all(place in path.parents for path in left)
    return left, [path for path in left if path.exists()]


def test_what_tests_and_their_programs_leave_goes_with_the_run(tmp_path: Path) -> None:
    for number, options in enumerate(((), ("-n", "1"))):
        run = tmp_path / str(number)
        run.mkdir()
        left, still_there = left_files(run, *options, verdict="pass")
        assert still_there == []
        assert not left[0].parent.exists()


def test_the_directory_of_a_test_that_failed_is_kept(tmp_path: Path) -> None:
    left, still_there = left_files(tmp_path, verdict="fail")
    assert still_there == [left[2]]
