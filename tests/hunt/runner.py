"""Run kinds of attempts in lanes until the time is over, and note what each has covered."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.hunt.kinds import ROOT, Attempt, Kind, replay
from tests.pace import paced_limit_s

# All processes of an attempt have it in their environment, however they were started.
MARK: Final = "COMETMQ_HUNT"
# An attempt that has begun in time may take so much longer; after that it is ended and proves nothing.
LATE_S: Final = 120.0
# What is killed gets so long for its files and network namespaces.
_GRACE_S: Final = 10.0
_LOOK_S: Final = 0.1
# So often the processes of an attempt are looked for: one that waits for a disk cannot be killed.
_ROUNDS: Final = 100
# A kind that has failed so often is left out for the rest of the hunt: there is enough to mend.
MOST_FAILURES: Final = 10
# What of a failure is shown; its file has all of it.
_LINES: Final = 12
_LINE: Final = 200

PASSED, FAILED, HANGS, ENDED = "passed", "FAILED", "HANGS", "ended"


@dataclass
class Row:
    """Results of one kind of run in this hunt."""

    runs: int = 0
    count: int = 0
    seconds: float = 0.0
    failures: int = 0
    # When the attempt that is under way began, and what it is.
    began_s: float | None = None
    running: str = ""

    def used_s(self) -> float:
        return self.seconds + (time.monotonic() - self.began_s if self.began_s else 0.0)


class Hunt:
    """One hunt. `run` returns when its time is over, or `stop` was called."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        directory: Path,
        *,
        minutes: float,
        rng: random.Random,
        say: Callable[[str], None] = print,
    ) -> None:
        self.kinds = kinds
        self.rows = {kind.name: Row() for kind in kinds}
        self._directory = directory
        self._rng = rng
        self._say = say
        self._began_s = time.monotonic()
        self._ends_s = self._began_s + 60 * minutes
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._number = 0
        self._commit = commit()
        directory.mkdir(parents=True, exist_ok=True)

    def run(self, lanes: int, tick: Callable[[], None] = lambda: None) -> bool:
        """Hunt with so many lanes; return whether nothing failed. `tick` is called now and then."""
        threads = [threading.Thread(target=self._lane, name=f"lane-{n}") for n in range(lanes)]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                tick()
                time.sleep(_LOOK_S)
        finally:
            # Also when the user interrupts: no process is left behind.
            self._stop.set()
            for thread in threads:
                if thread.ident is not None:  # an interrupt may come before all have started
                    thread.join()
        return self.failures() == 0

    def stop(self) -> None:
        """End what runs, and begin nothing more."""
        self._stop.set()

    def failures(self) -> int:
        return sum(row.failures for row in self.rows.values())

    def progress(self) -> str:
        """Return the line that is shown on a terminal."""
        now_s = time.monotonic()
        under_way = [
            f"{name} ({row.running[:40]}, {now_s - row.began_s:.0f} s)"
            for name, row in self.rows.items()
            if row.began_s
        ]
        runs = sum(row.runs for row in self.rows.values())
        return (
            f"{_clock(now_s - self._began_s)} of {_clock(self._ends_s - self._began_s)}  {runs} runs, "
            f"{self.failures()} failures  {'; '.join(under_way)}"
        )

    def table(self) -> list[str]:
        """Return what each kind has done, a line each."""
        lines = [f"{'kind':<20} {'runs':>5} {'drawn':>14} {'seconds':>8} {'failures':>9}"]
        for kind in self.kinds:
            row = self.rows[kind.name]
            drawn = f"{row.count} {kind.unit}"
            lines.append(
                f"{kind.name:<20} {row.runs:>5} {drawn:>14} {row.seconds:>8.0f} {row.failures:>9}"
            )
        return lines

    def _lane(self) -> None:
        while (kind := self._next()) is not None:
            row = self.rows[kind.name]
            try:
                with self._lock:
                    self._number += 1
                    name = f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{self._number}"
                    attempt = kind.draw(self._rng)
                    row.running = attempt.covers
                self._attempt(kind, attempt, f"{name}-{kind.name.replace(' ', '-')}")
            except Exception as error:  # noqa: BLE001 - one kind that cannot be run ends no lane
                row.failures += 1
                self._say(f"FAILED {kind.name}: cannot be run: {error!r}")
            finally:
                with self._lock:
                    row.seconds, row.began_s = row.used_s(), None

    def _next(self) -> Kind | None:
        """Take the kind that has had the least time for its weight, and is not under way."""
        with self._lock:
            left_s = self._ends_s - time.monotonic()
            if self._stop.is_set() or left_s <= 0:
                return None
            fitting = [
                kind
                for kind in self.kinds
                if self.rows[kind.name].began_s is None
                and self.rows[kind.name].failures < MOST_FAILURES
                and kind.usual_s <= left_s
            ]
            if not fitting:
                return None
            kind = min(fitting, key=lambda one: self.rows[one.name].used_s() / one.weight)
            self.rows[kind.name].began_s = time.monotonic()
            return kind

    def _attempt(self, kind: Kind, attempt: Attempt, name: str) -> None:
        output = self._directory / f"{name}.txt"
        began_s = time.monotonic()
        longest_s = paced_limit_s(kind.limit_s)
        limit_s = min(longest_s, self._ends_s - began_s + LATE_S)
        status = run(attempt, output, limit_s, self._stop)
        took_s = time.monotonic() - began_s
        if status is not None:
            result = PASSED if status == 0 else FAILED
        elif limit_s < longest_s or self._stop.is_set():
            result = ENDED
        else:
            result = HANGS
        with self._lock:
            row = self.rows[kind.name]
            row.runs += 1
            row.count += attempt.count if result != ENDED else 0
            row.failures += result in {FAILED, HANGS}
        self._log(kind, attempt, took_s, result, output)
        if result in {FAILED, HANGS}:
            self._show(kind, attempt, result, output, took_s)
        else:
            output.unlink()

    def _show(self, kind: Kind, attempt: Attempt, result: str, output: Path, took_s: float) -> None:
        said = output.read_text(errors="replace")
        lines = [f"{result} {kind.name} after {took_s:.0f} s ({attempt.covers}); replay it by"]
        lines += [f"    {replay(attempt, said)}", f"  all it said: {output}"]
        self._say("\n".join([*lines, *(f"  | {line}" for line in short_of(said))]))
        shorter = kind.cut(attempt, said)
        if shorter is None or self._stop.is_set():
            return
        cut = output.with_suffix(".cut.txt")
        run(shorter, cut, paced_limit_s(kind.limit_s), self._stop)
        files = [line for line in cut.read_text().splitlines() if "--schedule" in line]
        self._say("\n".join(["Cut short, replay it by", *files]) if files else f"Not cut: {cut}")

    def _log(self, kind: Kind, attempt: Attempt, took_s: float, result: str, output: Path) -> None:
        entry = {
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": self._commit,
            "kind": kind.name,
            "covers": attempt.covers,
            "command": attempt.command(),
            "seconds": round(took_s, 1),
            "result": result,
        }
        if result in {FAILED, HANGS}:
            entry["output"] = str(output)
        with self._lock, (self._directory / "log.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")


def run(attempt: Attempt, output: Path, limit_s: float, stop: threading.Event) -> int | None:
    """Run an attempt into a file and return its exit status, or None if it was ended.

    Afterwards none of its processes is left, whether it has passed, failed or hung.
    """
    mark = f"{os.getpid()}-{output.stem}"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [attempt.python, *attempt.arguments],
            cwd=ROOT,
            env={**os.environ, **attempt.settings, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        ends_s = time.monotonic() + limit_s
        try:
            while (status := process.poll()) is None:
                if stop.wait(_LOOK_S) or time.monotonic() >= ends_s:
                    # As a user would end it, so that its fixtures clean up.
                    process.send_signal(signal.SIGINT)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_GRACE_S)
                    break
        finally:
            _kill_all(process, mark)
    return status


def _kill_all(process: subprocess.Popen[bytes], mark: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    # One that is killed may have just started another.
    for _ in range(_ROUNDS):
        pids = list(marked(mark))
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)


def marked(mark: str) -> Iterator[int]:
    """Find the running processes that have the mark of an attempt, where the system has /proc."""
    wanted = f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if wanted in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)


def commit() -> str:
    """Return the commit that is hunted in, with a plus if files have changed since."""
    shown = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return shown.stdout.strip() or "unknown"


def short_of(said: str) -> list[str]:
    """Return the lines of a failure that say most: pytest's errors, else the last ones."""
    lines = said.splitlines()
    errors = [line for line in lines if line.startswith(("E  ", "FAILED ", "ERROR "))]
    return [line[:_LINE] for line in (errors[:_LINES] or lines[-_LINES:])]


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
