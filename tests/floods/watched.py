"""Run `cometmq` with a thread that watches its event loop, and write down what it sees.

    python -m tests.floods.watched FILE broker -c broker.conf

A timer of the loop beats every `BEAT_S`. Each second a line of JSON goes to FILE: the time of the
machine's monotonic clock, how late each beat was, and how much processor time the loop's thread took
since the beat before, in ms. A beat that is late without processor time was kept waiting by the
machine, or by another thread; one that is late with it was kept waiting by the loop's own work. The
line also has how often each limit of the server has refused something since it started.

SIGUSR2 has the loop compute for nothing, in turns of a slice each, until the signal comes again. Each turn
is the same work, so a turn that takes longer shows a processor that is slower at that moment. A client
notices no more of it than of any busy loop on this machine.

With COMETMQ_STACKS=1 a beat that is very late has the stack of the loop's thread written down, too.
Functions that are compiled have no frame there: COMETMQ_PURE=1 shows them. Looking costs the loop
some of its time: each look takes the interpreter from it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import ClassVar, Final

import cometmq.metrics.limit_hits as limit_hits_module
import cometmq.runtime.loop as loop_module
from cometmq.runtime.slices import SLICE_S

BEAT_S: Final = 0.002
_LOOK_S: Final = 0.01 if os.environ.get("COMETMQ_STACKS") else 1.0
_STUCK_S: Final = 0.02
_SHOWN_FRAMES: Final = 8
_TRIED_STEPS: Final = 2_000


class CountedLimits(limit_hits_module.LimitHits):
    """Counts as servers do; all of a process are found in `made`."""

    made: ClassVar[list[limit_hits_module.LimitHits]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)

    @classmethod
    def totals(cls) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for each in cls.made:
            totals.update(dict(each.counts))  # a copy: the loop's thread counts on
        return totals


class Watch:
    """Beats on the loop of one thread and looks at the beats from another."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._late_ms: list[float] = []
        self._cpu_ms: list[float] = []
        self._due_s = 0.0
        self._cpu_s = 0.0
        self._clock = 0
        self._thread_id = 0
        self._stacks: Counter[str] = Counter()
        self._computes = False

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start on the loop's thread."""
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread_id)
        self._due_s = time.monotonic() + BEAT_S
        self._cpu_s = time.clock_gettime(self._clock)
        loop.call_later(BEAT_S, self._beat)
        loop.add_signal_handler(signal.SIGUSR2, self._toggle)
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    def _beat(self) -> None:
        now_s, cpu_s = time.monotonic(), time.clock_gettime(self._clock)
        self._late_ms.append(round(max(0.0, now_s - self._due_s) * 1000, 2))
        self._cpu_ms.append(round((cpu_s - self._cpu_s) * 1000, 2))
        self._due_s, self._cpu_s = now_s + BEAT_S, cpu_s
        self._loop.call_later(BEAT_S, self._beat)

    def _toggle(self) -> None:
        self._computes = not self._computes
        if self._computes:
            tried_s = min(self._taken_s(_TRIED_STEPS) for _ in range(20))
            self._loop.call_soon(self._compute, int(_TRIED_STEPS * SLICE_S / tried_s))

    def _compute(self, steps: int) -> None:
        self._taken_s(steps)
        if self._computes:
            self._loop.call_soon(self._compute, steps)

    @staticmethod
    def _taken_s(steps: int) -> float:
        """Compute for nothing, and return for how long."""
        began_s, total = time.monotonic(), 0
        for step in range(steps):
            total += step * step % 7
        return time.monotonic() - began_s

    def _look(self) -> None:
        written_s = time.monotonic()
        with self._file.open("w") as file:
            while True:
                time.sleep(_LOOK_S)
                now_s = time.monotonic()
                if now_s - self._due_s > _STUCK_S:
                    frame = sys._current_frames().get(self._thread_id)
                    self._stacks[_described(frame)] += 1
                if now_s - written_s >= 1.0:
                    written_s = now_s
                    late, self._late_ms = self._late_ms, []
                    cpu, self._cpu_ms = self._cpu_ms, []
                    stacks, self._stacks = self._stacks, Counter()
                    line: dict[str, object] = {
                        "at": now_s,
                        "late": late,
                        "cpu": cpu,
                        "stacks": stacks,
                    }
                    line["limits"] = CountedLimits.totals()
                    file.write(json.dumps(line) + "\n")
                    file.flush()


def _described(frame: FrameType | None) -> str:
    places: list[str] = []
    while frame is not None and len(places) < _SHOWN_FRAMES:
        code = frame.f_code
        places.append(f"{Path(code.co_filename).stem}:{code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(places)


def main() -> None:
    watch = Watch(Path(sys.argv[1]))
    new_event_loop = loop_module.new_event_loop

    def watched_loop() -> asyncio.AbstractEventLoop:
        loop = new_event_loop()
        loop.call_soon(watch.begin, loop)
        return loop

    loop_module.new_event_loop = watched_loop
    # Before anything else of the server is imported: it takes the class by its name.
    limit_hits_module.LimitHits = CountedLimits  # type: ignore[misc]  # for this process only
    sys.argv = ["cometmq", *sys.argv[2:]]
    from cometmq.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
