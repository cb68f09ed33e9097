"""Fuzz all targets, guided by coverage, and show how it goes: `make fuzz`.

    python -m tests.fuzz                              ten minutes, two targets at a time
    python -m tests.fuzz --inputs 10000000            until so many inputs were fed
    python -m tests.fuzz --targets header,bodies      only these
    python -m tests.fuzz --keep                       keep in the tree what reached new code
    python -m tests.fuzz --record                     write the figures into docs/reliability.md

The targets take turns of `--slice` seconds, so that each gets the same time. Inputs that reach new
code stay in build/fuzz/TARGET/corpus for the next run; so do the sums of all runs, which `--record`
writes. The first input of each fault is in build/fuzz/TARGET/faults with its traceback. Ends with 1 if
there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.fuzz import figures
from tests.fuzz.smallest import keep_smallest
from tests.fuzz.targets import MODULES, targets_of

BUILD: Final = Path("build/fuzz")
_COVERAGE: Final = re.compile(r"cov: (\d+)")
_TOTAL: Final = re.compile(r"^Done (\d+) runs")
_ADDING: Final = threading.Lock()
# Beyond its time a target may start, load its corpus, and finish an input.
_LATE_S: Final = 600


@dataclass
class Course:
    """One target and what has come of it in this run."""

    module: str
    name: str
    inputs: int = 0
    seconds: float = 0.0
    coverage: int = 0
    ended_badly: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def directory(self) -> Path:
        return BUILD / self.name

    def fault_count(self) -> int:
        faults = self.directory / "faults"
        return len([*faults.glob("*.txt"), *faults.glob("*-*[!t]")]) if faults.is_dir() else 0

    def turn(self, seconds: int, inputs: int) -> None:
        """Fuzz for so many seconds, or until so many inputs were fed."""
        begun_at_s, before, fed = time.monotonic(), self.inputs, 0
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "tests.fuzz.guided", self.module, self.name,
            f"--directory={self.directory}", f"--seconds={seconds}", f"--inputs={inputs}",
        ]  # fmt: skip
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "COMETMQ_PURE": "1"},
        ) as process:
            stop = threading.Timer(seconds + _LATE_S, process.kill)
            stop.start()
            last: list[str] = []
            assert process.stdout is not None
            for line in process.stdout:
                last = [*last[-30:], line]
                if line.startswith("{"):
                    fed = max(fed, json.loads(line)["inputs"])
                elif (done := _TOTAL.match(line)) is not None:
                    fed = max(fed, int(done[1]))
                elif (found := _COVERAGE.search(line)) is not None:
                    self.coverage = max(self.coverage, int(found[1]))
                self.inputs = before + fed
            stop.cancel()
        took_s = time.monotonic() - begun_at_s
        self.seconds += took_s
        with _ADDING:
            figures.add(BUILD / "sums.json", {self.name: (fed, took_s, self.coverage)})
        if process.returncode != 0:
            self.ended_badly = "".join(last)


def main() -> int:
    given = _arguments()
    wanted = set(given.targets.split(",")) if given.targets else None
    courses = [
        Course(module, target.name)
        for module in MODULES
        for target in targets_of(module)
        if wanted is None or target.name in wanted
    ]
    begun_at_s = time.monotonic()
    turns = _turns(courses, given, begun_at_s)
    choosing = threading.Lock()

    def lane() -> None:
        while True:
            with choosing:
                course = next(turns, None)
            if course is None:
                return
            with course.lock:
                course.turn(given.slice, given.inputs_at_once)

    lanes = [threading.Thread(target=lane, daemon=True) for _ in range(given.jobs)]
    for one in lanes:
        one.start()
    while any(one.is_alive() for one in lanes):
        time.sleep(1 if sys.stdout.isatty() else 15)
        _show(courses, begun_at_s)
    return _end(courses, given)


def _turns(courses: list[Course], given: argparse.Namespace, begun_at_s: float) -> Iterator[Course]:
    while True:
        for course in courses:
            if given.inputs:
                if sum(one.inputs for one in courses) >= given.inputs:
                    return
            elif time.monotonic() - begun_at_s >= given.seconds:
                return
            if not course.ended_badly and not course.lock.locked():
                yield course
        if all(course.ended_badly for course in courses):
            return


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=600, help="how long, without --inputs")
    parser.add_argument("--inputs", type=int, default=0, help="how many inputs, however long")
    parser.add_argument("--slice", type=int, default=20, help="seconds of a target's turn")
    parser.add_argument("--inputs-at-once", type=int, default=0, help="most inputs of a turn")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--targets", default="", help="names, separated by commas")
    parser.add_argument("--keep", action="store_true", help="keep the smallest corpus in the tree")
    parser.add_argument("--record", action="store_true", help="write docs/reliability.md")
    return parser.parse_args()


def _show(courses: list[Course], begun_at_s: float) -> None:
    seconds = time.monotonic() - begun_at_s
    inputs = sum(course.inputs for course in courses)
    running = [f"{one.name} (cov {one.coverage})" for one in courses if one.lock.locked()]
    faults = sum(course.fault_count() for course in courses)
    line = (
        f"{seconds:5.0f} s  {inputs:,} inputs  {inputs / seconds:,.0f}/s  {faults} faults  "
        f"{', '.join(running)}"
    )
    end = "\r" if sys.stdout.isatty() else "\n"
    print(f"{line:<100}", end=end, flush=True)  # noqa: T201 - it is a program


def _end(courses: list[Course], given: argparse.Namespace) -> int:
    faults = sum(course.fault_count() for course in courses)
    for course in courses:
        print(  # noqa: T201 - it is a program
            f"{course.name:<16} {course.inputs:>12,} inputs {course.seconds:8.0f} s  "
            f"cov {course.coverage:>6}  {course.fault_count()} faults"
        )
        if course.ended_badly:
            print(course.ended_badly)  # noqa: T201 - it is a program
    if given.keep:
        for course in courses:
            keep_smallest(course.module, course.name, course.directory / "corpus")
    if given.record:
        figures.record(BUILD / "sums.json", Path("docs/reliability.md"))
    if faults:
        print(f"{faults} faults: see {BUILD}/*/faults")  # noqa: T201 - it is a program
    return 1 if faults or any(course.ended_badly for course in courses) else 0


if __name__ == "__main__":
    sys.exit(main())
