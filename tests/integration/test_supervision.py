"""A supervisor with real processes: small scripts here, brokers in test_processes.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.waits import WAIT_S, eventually

from cometmq.runtime.supervision.plan import Member, Plan

BEGIN = (
    "import json, sys\n"
    "from cometmq.runtime.supervision.plan import Plan, become_supervisor\n"
    "become_supervisor(Plan.from_json(sys.argv[1]), ['shown'])\n"
)
# Serves until it is told to stop or its input ends.
SERVES = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
print(f"{os.getpid()} boot success. ", flush=True)
sys.stdin.read()
open(sys.argv[1], "a").write("input ended\\n")
"""
# Does not stop when it is told to, but when its supervisor is gone.
HANGS = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("it boot success. ", flush=True)
sys.stdin.read()
"""


class Supervised:
    """A supervisor that a test started, and what it says."""

    def __init__(self, process: subprocess.Popen[str], log: Path, notes: Path) -> None:
        self.process = process
        self.log = log
        self.notes = notes

    def events(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the lines of the log that have these members."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in lines if line.items() >= wanted.items()]

    def pid_of(self, name: str) -> int:
        pid: int = self.events(event="broker process started", broker=name)[-1]["pid"]
        return pid

    def wait_until_ready(self) -> list[str]:
        """Return the lines printed, the last of which says that all serve."""
        assert self.process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("All brokers boot success"):
            line = self.process.stdout.readline()
            assert line, f"it ended: {self.log.read_text()}"
            lines.append(line)
        return lines

    def end(self) -> tuple[int, str]:
        """Return the exit status and what was written to standard error."""
        _, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, errors


def is_running(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@contextmanager
def supervised(directory: Path, scripts: dict[str, str], **options: Any) -> Iterator[Supervised]:
    log, notes = directory / "log", directory / "notes"
    notes.touch()
    plan = Plan(
        members=[
            Member(name, [sys.executable, "-S", "-c", script, str(notes)])
            for name, script in scripts.items()
        ],
        ready_mark=" boot success. ",
        log_file=str(log),
        log_file_bytes=1 << 20,
        **{"first_pause_s": 0.02, "last_pause_s": 0.1, **options},
    )
    command = [sys.executable, "-c", BEGIN, plan.to_json()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Supervised(process, log, notes)
        finally:
            process.kill()


@pytest.fixture
def supervise(tmp_path: Path) -> Callable[..., Any]:
    return lambda scripts, **options: supervised(tmp_path, scripts, **options)


Supervise = Callable[..., Any]


def test_all_are_told_of_when_all_serve_and_stop_at_one_signal(supervise: Supervise) -> None:
    with supervise({"a": SERVES, "b": SERVES}) as run:
        *each, last = run.wait_until_ready()
        assert [int(line.split()[0]) for line in each] == [run.pid_of("a"), run.pid_of("b")]
        assert last == f"All brokers boot success: 2 under supervisor {run.process.pid}\n"
        # A Ctrl-C at the terminal must come to them once, by way of the supervisor.
        assert os.getpgid(run.pid_of("a")) == run.pid_of("a")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == (0, "")
        assert run.notes.read_text() == ""
        assert not run.events(level="error")


def test_one_that_is_killed_is_started_again_and_the_others_go_on(supervise: Supervise) -> None:
    with supervise({"a": SERVES, "b": SERVES}) as run:
        run.wait_until_ready()
        first, other = run.pid_of("a"), run.pid_of("b")
        os.kill(first, signal.SIGKILL)
        eventually(lambda: run.events(event="broker serves again", broker="a"))
        assert run.events(event="broker ended", broker="a", how="signal SIGKILL")
        assert run.pid_of("a") != first
        assert run.pid_of("b") == other
        run.process.terminate()
        assert run.end()[0] == 0


def test_all_stop_when_the_supervisor_is_killed(supervise: Supervise) -> None:
    with supervise({"a": SERVES, "b": SERVES}) as run:
        run.wait_until_ready()
        pids = [run.pid_of("a"), run.pid_of("b")]
        run.process.kill()
        eventually(lambda: any(map(is_running, pids)), lambda running: not running)
        assert run.notes.read_text() == "input ended\n" * 2


def test_one_that_dies_at_each_start_is_told_of_and_tried_again(supervise: Supervise) -> None:
    dies = "import sys; sys.exit('no such thing')"
    with supervise({"a": SERVES, "b": dies}) as run:
        hopeless = "broker dies at each start; the supervisor goes on trying"
        [reported] = eventually(lambda: run.log.exists() and run.events(event=hopeless))
        assert (reported["broker"], reported["deaths"], reported["longest_pause_s"]) == (
            "b",
            5,
            0.1,
        )
        eventually(lambda: len(run.events(event="broker ended", how="status 1")), lambda n: n > 7)
        assert run.events(event="no such thing", logger="stderr", broker="b")
        assert is_running(run.pid_of("a"))
        run.process.terminate()
        assert run.end()[0] == 0


def test_a_configuration_that_does_not_fit_ends_all_with_the_reason(supervise: Supervise) -> None:
    refuses = "import sys; sys.stderr.write('cometmq: it has 2 mistakes:\\n  one\\n'); sys.exit(2)"
    with supervise({"a": SERVES, "b": refuses}) as run:
        assert run.end() == (2, "cometmq: b: it has 2 mistakes:\n  one\n")
        assert run.events(event="broker ended", broker="b", why="it has 2 mistakes:\n  one")


def test_a_configuration_that_no_longer_fits_stops_nobody_who_serves(supervise: Supervise) -> None:
    once = (
        "import os, sys\n"
        "if 'mark' in open(sys.argv[1]).read():\n"
        "    sys.stderr.write('cometmq: wrong\\n'); sys.exit(2)\n"
        "open(sys.argv[1], 'a').write('mark')\n"
    )
    with supervise({"a": SERVES, "b": once + SERVES}) as run:
        run.wait_until_ready()
        os.kill(run.pid_of("b"), signal.SIGKILL)
        eventually(
            lambda: run.events(event="broker ended", broker="b", how="status 2", why="wrong")
        )
        assert is_running(run.pid_of("a"))
        run.notes.write_text("")
        eventually(lambda: run.events(event="broker serves again", broker="b"))
        run.process.terminate()
        assert run.end()[0] == 0


def test_one_that_does_not_stop_is_killed_at_the_limit(supervise: Supervise) -> None:
    with supervise({"a": SERVES, "b": HANGS}, stop_limit_s=0.3) as run:
        run.wait_until_ready()
        run.process.terminate()
        assert run.end()[0] == 1
        assert run.events(event="broker killed", broker="b", why="did not stop within 0.3 s")
        assert not run.events(event="broker killed", broker="a")


def test_a_second_signal_kills_who_has_not_stopped(supervise: Supervise) -> None:
    with supervise({"a": HANGS}) as run:
        run.wait_until_ready()
        run.process.terminate()
        eventually(lambda: run.events(event="stopping; once more to force it"))
        run.process.send_signal(signal.SIGINT)
        assert run.end()[0] == 128 + signal.SIGINT
        assert run.events(event="broker killed", why="SIGINT came a second time")


def test_the_log_goes_on_in_a_new_file_when_the_old_one_was_moved(supervise: Supervise) -> None:
    talks = SERVES.replace("sys.stdin.read()", "[sys.stderr.write(line) for line in sys.stdin]")
    with supervise({"a": talks, "b": SERVES}) as run:
        run.wait_until_ready()
        other = run.pid_of("b")
        run.log.rename(run.log.with_name("old"))
        eventually(run.log.exists)
        os.kill(other, signal.SIGKILL)
        eventually(lambda: run.events(event="broker serves again", broker="b"))
        run.process.terminate()
        assert run.end()[0] == 0


def test_lines_of_many_that_write_at_once_stay_whole(supervise: Supervise) -> None:
    writes = (
        "import os, sys\n"
        "for n in range(500):\n"
        "    os.write(2, b'{\"n\": %d, \"text\": \"' % n); os.write(2, b'x' * 5000 + b'\"}\\n')\n"
    )
    scripts = dict.fromkeys("abc", writes + SERVES)
    with supervise(scripts, kept_log_files=50) as run:
        run.wait_until_ready()
        run.process.terminate()
        assert run.end()[0] == 0
        found: list[tuple[str, int]] = []
        lost = 0
        for path in run.log.parent.glob("log*"):
            for line in map(json.loads, path.read_text().splitlines()):
                if "n" in line:
                    assert line["text"] == "x" * 5000
                    found.append((line["broker"], line["n"]))
                lost += line.get("lines", 0)
        assert len(found) == len(set(found))
        assert len(found) + lost == 3 * 500
