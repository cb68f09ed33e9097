"""Supervises drivers without Spark: python -m tests.unit.pipelines.supervising DIRECTORY MAX_RESTARTS.

DIRECTORY/acts.json lists what one driver after the other does:

work         notes a batch of 10 rows, and ends when it is asked to
stubborn     notes a batch, and does not end when it is asked to
killed       notes a batch, and kills itself
silent       notes a batch, and then nothing any more
while        notes a batch, shows signs of life for twice STEADY_S, and kills itself
fail TEXT    notes TEXT as its failure and hangs, as one does whose Java is gone
final TEXT   notes TEXT as a failure that comes again, and ends with status 2
given TEXT   notes TEXT as a failure by what is given, and ends with status 2
stuck TEXT   notes TEXT as a failure by what is given, and hangs
held TEXT    notes TEXT as a failure by what another process holds, and ends with status 2
wrong        ends with status 2
look         notes a batch, and ends with status 1 when it is asked to: its report names something

DIRECTORY/steady holds the seconds for which a driver must get on so that its death begins a new row; without this
file they are 600.
SIGUSR1 sets the supervisor's clock forward by STALLED_S, SIGUSR2 by ENDING_S.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from cometmq.pipelines.table.notes import Figures, Note, Notes, TableFigures, TopicFigures
from cometmq.runtime.clock import SystemClock

STALLED_S = 600.0
# Longer than a driver takes to end on a busy machine.
ENDING_S = 30.0
STEADY_S = 0.3


class ForwardClock(SystemClock):
    """A clock that runs like the machine's, and can be set forward."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self.monotonic = self._monotonic

    def _monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    def forward(self, number: int, _: object) -> None:
        self._ahead_s += STALLED_S if number == signal.SIGUSR1 else ENDING_S


def figures_of(rows: int, batches: int) -> Figures:
    topic = TopicFigures("orders", rows, 0, 3, time.time_ns() // 1_000_000, 2, 5000, 2, 1)
    return Figures((topic,), (TableFigures("delta", 1, None),), batches, 0)


def until_asked() -> None:
    while os.read(0, 100):
        pass


def drive(directory: Path) -> None:
    started = len(list(directory.glob("started-*")))
    (directory / f"started-{started}").write_text(str(os.getpid()))
    act, _, text = json.loads((directory / "acts.json").read_text())[started].partition(" ")
    notes = Notes()
    if act == "wrong":
        sys.stderr.write("what is given does not fit\n")
        sys.exit(2)
    if act in ("fail", "final", "given", "held", "stuck"):
        is_given_wrong = act in ("given", "stuck")
        notes.write(Note(failed=text, is_final=act == "final", is_given_wrong=is_given_wrong))
        if act in ("fail", "stuck"):
            (directory / f"hangs-{started}").touch()
            signal.pause()
        sys.exit(2)
    notes.write(Note(figures=figures_of(10 * started, 0)))
    notes.write(Note(figures=figures_of(10 * started + 10, 1)))
    if act == "while":
        end_s = time.monotonic() + 2 * STEADY_S
        while time.monotonic() < end_s:
            notes.write(Note())
            time.sleep(STEADY_S / 10)
    if act in ("killed", "while"):
        os.kill(os.getpid(), signal.SIGKILL)
    if act in ("silent", "stubborn"):
        signal.pause()
    if act in ("work", "look"):
        until_asked()
        sys.exit(act == "look")


def main(directory: Path, max_restarts: int) -> int:
    # A driver needs none of these, and starts sooner without them.
    from cometmq.pipelines.table.days import Days
    from cometmq.pipelines.table.settings import Config
    from cometmq.pipelines.table.supervisor import Supervisor, Timing

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    config = Config(
        path="/data/archive",
        topics=["orders"],
        max_restarts=max_restarts,
        metrics="127.0.0.1:0",
    )
    days = Days(directory, config.freshness_s, say)
    clock = ForwardClock()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, clock.forward)
    steady = directory / "steady"
    steady_s = float(steady.read_text()) if steady.exists() else 600.0
    timing = Timing(STALLED_S, 0.01, 0.1, steady_s, ENDING_S)
    command = [sys.executable, "-m", __spec__.name, str(directory)]
    return Supervisor(config, command, say, days, timing, clock).run()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if len(sys.argv) > 2:
        sys.exit(main(place, int(sys.argv[2])))
    drive(place)
