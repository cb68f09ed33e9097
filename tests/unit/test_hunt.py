"""The hunt goes on whatever its attempts do, keeps what failed, and leaves no process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.hunt.kinds import KINDS, ROOT, Attempt, Kind, replay
from tests.hunt.runner import Hunt, marked, short_of
from tests.waits import PROCESS_WAIT_S, eventually

PASSES = "print('fine')"
FAILS = """
print("E   AssertionError: 1 == 2")
print("COMETMQ_CRASH_SEED=99")
raise SystemExit(1)
"""
# As a test that leaves a broker running, in a session of its own.
HANGS = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("waits for ever", flush=True)
time.sleep(600)
"""


def kind(name: str, program: str, **more: Any) -> Kind:
    def draw(rng: random.Random) -> Attempt:
        seed = str(rng.randrange(10))
        settings = {"COMETMQ_CRASH_SEED": seed}
        return Attempt(("-c", program), f"seed {seed}", settings, count=3)

    fields: dict[str, Any] = {"weight": 1, "usual_s": 0.0, "limit_s": 300.0, **more}
    return Kind(name, draw=draw, **fields)


class Hunted:
    """A hunt with some kinds, which ends when each has been run `runs` times, and `says` texts were
    printed.
    """

    def __init__(
        self, directory: Path, *kinds: Kind, runs: int = 1, lanes: int = 2, says: int = 0
    ) -> None:
        self.said: list[str] = []
        self.directory = directory
        self.hunt = Hunt(kinds, directory, minutes=60.0, rng=random.Random(1), say=self.said.append)

        def tick() -> None:
            rows = self.hunt.rows.values()
            if all(row.runs >= runs for row in rows) and len(self.said) >= says:
                self.hunt.stop()

        self.passed = self.hunt.run(lanes, tick)

    def log(self) -> list[dict[str, Any]]:
        lines = (self.directory / "log.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def test_the_log_says_what_was_covered_and_goes_on_in_the_next_hunt(tmp_path: Path) -> None:
    for _ in range(2):
        hunted = Hunted(tmp_path, kind("lives", PASSES))
        assert hunted.passed
        assert hunted.said == []
    log = [entry for entry in hunted.log() if entry["result"] == "passed"]
    assert len(log) >= 2
    assert log[0]["kind"] == "lives"
    assert log[0]["covers"].startswith("seed ")
    assert log[0]["commit"]
    assert log[0]["command"].startswith("COMETMQ_CRASH_SEED=")
    assert {path.name for path in tmp_path.iterdir()} == {"log.jsonl"}


def test_a_failure_is_shown_with_its_command_and_kept(tmp_path: Path) -> None:
    hunted = Hunted(tmp_path, kind("lives", FAILS), kind("others", PASSES))
    assert not hunted.passed
    shown = hunted.said[0]
    assert shown.startswith("FAILED lives after ")
    # The test printed the seed of the life that failed.
    assert "    COMETMQ_CRASH_SEED=99 " in shown
    assert "  | E   AssertionError: 1 == 2" in shown
    failed = next(entry for entry in hunted.log() if entry["result"] == "FAILED")
    assert "AssertionError" in Path(failed["output"]).read_text()
    assert hunted.hunt.rows["others"].failures == 0


def test_an_attempt_that_hangs_is_ended_with_all_of_its_processes(tmp_path: Path) -> None:
    # On a busy machine two starts of Python may take longer than the first of these limits.
    for limit_s in (3.0, 15.0, PROCESS_WAIT_S):
        directory = tmp_path / f"{limit_s:g}"
        hunted = Hunted(directory, kind("waits", HANGS, limit_s=limit_s), lanes=1)
        if "waits for ever" in hunted.said[0]:
            break
    assert not hunted.passed
    assert hunted.said[0].startswith("HANGS waits after ")
    assert "waits for ever" in hunted.said[0]
    (entry,) = (entry for entry in hunted.log() if entry["result"] == "HANGS")
    assert list(marked(f"{os.getpid()}-{Path(entry['output']).stem}")) == []


def test_a_kind_that_cannot_be_drawn_keeps_no_other_from_its_turn(tmp_path: Path) -> None:
    def draw(rng: random.Random) -> Attempt:
        raise OSError("no module there")

    said: list[str] = []
    hunted = Hunt(
        [Kind("broken", 1, 0.0, 300.0, draw), kind("lives", PASSES)],
        tmp_path,
        minutes=60.0,
        rng=random.Random(1),
        say=said.append,
    )
    hunted.run(2, lambda: hunted.stop() if hunted.rows["lives"].runs >= 2 else None)
    assert said[0] == "FAILED broken: cannot be run: OSError('no module there')"
    # It is left out when it has failed ten times.
    assert hunted.rows["broken"].failures <= 10


def test_kinds_take_turns_by_their_weights(tmp_path: Path) -> None:
    kinds = [kind("often", PASSES, weight=3), kind("seldom", PASSES)]
    hunt = Hunt(kinds, tmp_path, minutes=60.0, rng=random.Random(1))
    hunt.rows["often"].seconds, hunt.rows["seldom"].seconds = 2000.0, 1000.0
    hunt.run(1, lambda: hunt.stop() if hunt.rows["often"].runs else None)
    assert hunt.rows["seldom"].runs == 0


def test_no_attempt_begins_that_would_not_end_in_time(tmp_path: Path) -> None:
    hunt = Hunt([kind("long", PASSES, usual_s=600.0)], tmp_path, minutes=1.0, rng=random.Random(1))
    assert hunt.run(2)
    assert hunt.rows["long"].runs == 0


def test_a_failure_that_can_be_cut_short_names_the_file(tmp_path: Path) -> None:
    shorter = Attempt(("-c", "print('    python -m x --schedule short.json')"), "seed 1")
    hunted = Hunted(
        tmp_path, kind("runs", FAILS, cut=lambda _attempt, _said: shorter), lanes=1, says=2
    )
    assert hunted.said[1] == "Cut short, replay it by\n    python -m x --schedule short.json"


PROGRAM = """
import random, sys
from tests.hunt import __main__ as command
from tests.unit.test_hunt import HANGS, kind
sys.argv = ["hunt", "--directory", sys.argv[1]]
print("ready", flush=True)
sys.exit(command.main((kind("waits", HANGS),)))
"""


def test_an_interrupt_ends_with_the_table_and_leaves_no_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        eventually(
            lambda: [one for one in tmp_path.glob("*-waits.txt") if "for ever" in one.read_text()],
            wait_s=PROCESS_WAIT_S,  # two programs and git start first
        )
        (output,) = tmp_path.glob("*-waits.txt")
        mark = f"{process.pid}-{output.stem}"
        assert len(list(marked(mark))) == 2
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate()
        assert process.returncode == 0
    assert "interrupted" in shown
    assert shown.splitlines()[-1].split() == ["waits", "1", "0", "seeds", *shown.split()[-2:]]
    assert list(marked(mark)) == []
    assert json.loads((tmp_path / "log.jsonl").read_text())["result"] == "ended"


def test_a_failure_is_replayed_by_the_command_that_it_printed() -> None:
    attempt = Attempt(("-m", "pytest", "tests/crash"), "seed 4", {"COMETMQ_CRASH_SEED": "4"})
    said = (
        "E   seed 7 (faults: {}); replay it with COMETMQ_CRASH_SEED=7 COMETMQ_CRASHES=1 make crash"
    )
    assert replay(attempt, said) == "COMETMQ_CRASH_SEED=7 COMETMQ_CRASHES=1 make crash"
    said = "seed 7 FAILED; replay it by\n    make sim SEED=7 HOURS=0.1\n    no message came"
    assert replay(attempt, said) == "make sim SEED=7 HOURS=0.1"


def test_the_lines_of_a_test_that_print_its_command_are_no_command() -> None:
    """Pytest shows them before what they made, and the hunt printed a lone quotation mark."""
    attempt = Attempt(("-m", "pytest", "tests/crash"), "seed 4", {"COMETMQ_CRASH_SEED": "4"})
    command = (
        "COMETMQ_CRASH_SEED=7 COMETMQ_CRASHES=1 python -m pytest tests/crash/test_x.py::test_y"
    )
    said = f"""
                except Exception as error:
>                   raise AssertionError(
                        f"seed {{seed}} (faults: {{run.disk.faults.strikes}}); replay it with "
                        f"COMETMQ_CRASH_SEED={{seed}} COMETMQ_CRASHES=1 python -m pytest {{request.node.nodeid}}"
                    ) from error
E                   AssertionError: seed 7 (faults: ['EIO remove 0']); replay it with {command}

tests/crash/test_x.py:56: AssertionError
"""
    assert replay(attempt, said) == command


def test_a_failure_is_replayed_by_the_tests_that_failed_alone() -> None:
    attempt = Attempt(
        ("-m", "pytest", "-q", "tests/unit"), "seed 4", {"COMETMQ_EXPLORE": "1"}, python=ROOT / "py"
    )
    said = "FAILED tests/unit/test_a.py::test_b[1 2] - AssertionError: x\nERROR tests/unit/test_c.py::test_d"
    assert replay(attempt, said) == (
        "COMETMQ_EXPLORE=1 py -m pytest -q 'tests/unit/test_a.py::test_b[1 2]' tests/unit/test_c.py::test_d"
    )


def test_little_of_a_long_failure_is_shown() -> None:
    assert short_of("\n".join(["x" * 500] * 50)) == ["x" * 200] * 12
    assert short_of("one\nE   two\nthree") == ["E   two"]


@pytest.mark.parametrize("one", KINDS, ids=lambda one: one.name)
def test_a_kind_draws_what_is_there(one: Kind) -> None:
    for seed in range(5):
        attempt = one.draw(random.Random(seed))
        assert attempt == one.draw(random.Random(seed))
        assert attempt.covers
        for path in attempt.arguments:
            if path.startswith("tests/"):
                assert (ROOT / path).is_file(), path
