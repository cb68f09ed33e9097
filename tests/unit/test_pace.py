"""Test what tests must not depend on: a busy machine, ignored signals, a disk that is nearly full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pace import MOST, pace_of, paced_limit_s, wanting_per_core
from tests.waits import PROCESS_WAIT_S

ROOT = Path(__file__).parents[2]
A_TEST = """
import signal, subprocess, sys

def test_a_child_is_interrupted_by_sigint():
    child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdout.readline() == b"1\\n"
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == -signal.SIGINT
    child.stdin.close()
    child.stdout.close()
"""


@pytest.mark.parametrize(
    ("work_s", "wanting", "pace"),
    [
        (0.05, 0.5, 1.0),  # two quiet cores
        (0.02, 0.0, 1.0),  # faster ones: deadlines are for what never comes
        (0.2, 0.5, 4.0),  # a slow machine
        (0.05, 9.0, 6.0),  # a busy one, on which the work happened to have its turn
        (0.45, 9.0, 9.0),
        (60.0, 1000.0, MOST),  # a test that hangs ends nevertheless
    ],
)
def test_a_machine_is_as_slow_as_its_work_or_its_load_says(
    work_s: float, wanting: float, pace: float
) -> None:
    assert pace_of(work_s, wanting) == pace


@pytest.mark.parametrize(
    ("loadavg", "wanting"),
    [
        ("0.10 0.20 0.30 1/312 4711\n", 0.05),  # the one that runs is the one that asks
        ("0.10 0.20 0.30 19/312 4711\n", 9.0),  # sixteen began a moment ago
        ("17.00 9.21 4.80 2/312 4711\n", 8.5),  # they wait for the disk at the moment
    ],
)
def test_processes_count_that_want_a_core_now_or_wanted_one(loadavg: str, wanting: float) -> None:
    assert wanting_per_core(loadavg, 2) == wanting


def test_limits_follow_the_pace_but_a_hang_still_ends() -> None:
    assert paced_limit_s(300, 8.0) == 2400
    assert paced_limit_s(1800, 8.0) == 7200
    assert paced_limit_s(10_000, 8.0) == 10_000
    assert paced_limit_s(0, 8.0) == 0


def test_processes_take_the_pace_of_the_one_that_starts_them() -> None:
    program = "from tests.waits import WAIT_S, SEND_WAIT_MS; print(WAIT_S, SEND_WAIT_MS)"
    said = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "COMETMQ_PACE": "2.5"},
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=True,
    )
    assert said.stdout.split() == ["150.0", "150000"]


def test_what_is_started_in_the_background_can_be_interrupted_by_tests(tmp_path: Path) -> None:
    """A shell has what it starts with `&` ignore SIGINT, and that is inherited."""
    module = tmp_path / "test_interrupting.py"
    module.write_text(A_TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "tests.conftest", "-c"]
    done = subprocess.run(
        [*command, str(ROOT / "pyproject.toml"), str(module)],
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("used", ["80", "95"])
def test_a_disk_can_be_shown_as_full_as_one_likes(tmp_path: Path, used: str) -> None:
    program = (
        "import sys, pathlib; from cometmq.store.files.disk import Disk\n"
        "print(round(Disk().usage(pathlib.Path(sys.argv[1])).used_ratio, 3))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "tests" / "full_disk"),
            "COMETMQ_DISK_USED": used,
        },
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=True,
    )
    assert said.stdout.strip() == str(int(used) / 100)
