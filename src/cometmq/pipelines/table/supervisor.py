"""Keep a driver running: start it, watch it, start it again, and stop it with its batch finished.

The supervisor imports no Spark. It serves metrics and writes the report of the day, so both go on while a
driver is away. A driver is lost when its process ends, for any reason, and late when it has shown no
progress for `stalled_after`. The supervisor kills a late driver with all processes that it started.
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, NamedTuple

from cometmq.pipelines.table.board import Board, Cause
from cometmq.pipelines.table.days import Days
from cometmq.pipelines.table.metrics import TableMetrics, served
from cometmq.pipelines.table.notes import VARIABLE, Note, notes_of
from cometmq.pipelines.table.processes import cpu_s
from cometmq.pipelines.table.settings import Config
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.runtime.supervision.restarts import Restarts

_READ_BYTES: Final = 64 * 1024
_GIVEN_WRONG: Final = 2


class Timing(NamedTuple):
    """How long the supervisor waits, in seconds.

    first_pause_s, last_pause_s: before a restart; the pause doubles with each death in a row, and is not
    longer than the freshness. steady_s: a driver that got on for so long, from its first figures to its last
    sign of life, begins a new row. ending_s: a driver that has noted why it fails ends within this time, or
    is killed, because its Java may not answer. stalled_after_s: the longest time without a sign of life.
    """

    stalled_after_s: float
    first_pause_s: float = 1.0
    last_pause_s: float = 60.0
    steady_s: float = 600.0
    ending_s: float = 30.0


class End(NamedTuple):
    """How a driver ended. alive_until_s: its last sign of life, by the steady clock. is_final: no
    restart could help. is_given_wrong: no restart could help if this configuration has never
    worked. is_clean: the driver completed its work.
    """

    status: int
    cause: Cause
    why: str
    alive_until_s: float
    is_final: bool = False
    is_given_wrong: bool = False
    is_clean: bool = False


class Supervisor:
    """Runs the command of a driver until a signal comes. For the main thread.

    say: shows a line to the user. days: take the figures for the report of each day.
    """

    def __init__(
        self,
        config: Config,
        command: Sequence[str],
        say: Callable[[str], None],
        days: Days,
        timing: Timing | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._config = config
        self._command = list(command)
        self._say = say
        self._days = days
        self._clock = clock
        self._timing = timing = timing or Timing(config.stalled_after_s)
        last_pause_s = min(timing.last_pause_s, config.freshness_s)
        self._restarts = Restarts(timing.first_pause_s, last_pause_s, timing.steady_s)
        self._stop_signals: list[int] = []
        # Whether a driver of this service has looked at the log, so that what it was given has fitted once.
        self._has_worked = False
        self._driver: subprocess.Popen[bytes] | None = None
        # Of drivers that have ended, in seconds.
        self._cpu_before_s = 0.0
        self.board = Board(config.freshness_s, clock)

    def run(self) -> int:
        """Return the exit status: 0 after a stop, that of the driver if it could not begin, else 1.

        Raise ConfigError if metrics cannot be served.
        """
        with ExitStack() as stack:
            woken = stack.enter_context(self._signals())
            if self._config.metrics is not None:
                metrics = TableMetrics(self.board, self._look_at_cpu)
                port = stack.enter_context(served(metrics, self._config.metrics_place()))
                self._say(f"metrics are served at {self._config.metrics_place()[0]}:{port}")
            while not self._stop_signals:
                end = self._drive(woken)
                if self._stop_signals:
                    return self._stopped(end)
                self.board.ended(end.cause)
                status = self._next(end, woken)
                if status is not None:
                    return status
            self._days.write()
            return 0

    # Inside

    def _next(self, end: End, woken: int) -> int | None:
        """Decide what follows the end of a driver: None for another one, else the exit status."""
        has_worked = self._has_worked
        # A place that is away for a while looks like one that was given wrong.
        if end.is_final or (end.is_given_wrong and not has_worked):
            # The driver has said why.
            if has_worked:
                self._say("the service ends, because a restart would fail in the same way")
            if end.status >= 0:
                return end.status
            # The driver hung after it noted its failure, and was killed.
            return _GIVEN_WRONG if end.is_given_wrong else 1
        # The time in which it stood still says nothing good of it.
        again = self._restarts.died(end.alive_until_s)
        self._days.restarted(end.why)
        if again.deaths > self._config.max_restarts:
            self._say(
                f"the driver ended {again.deaths} times in a row, and max_restarts is "
                f"{self._config.max_restarts}, so the service ends; the last cause: {end.why}. "
                "Remove the cause, and run the same command again: it continues where it stopped"
            )
            return 1
        self._say(
            f"the driver ended: {end.why}; the service starts it again in {again.pause_s:g} s "
            f"(restart {again.deaths} of {self._config.max_restarts} in a row)"
        )
        self._wait(woken, again.pause_s)
        return None

    def _stopped(self, end: End) -> int:
        self._days.write()
        if len(self._stop_signals) > 1:
            return 128 + self._stop_signals[-1]
        if not end.is_clean:
            self._say(
                f"the driver did not finish its batch: {end.why}; the next run archives that batch"
            )
            return 1
        return end.status

    def _drive(self, woken: int) -> End:
        """Run one driver to its end."""
        reading, writing = os.pipe()
        try:
            driver = subprocess.Popen(  # noqa: S603 - our own interpreter and command
                self._command,
                stdin=subprocess.PIPE,
                pass_fds=(writing,),
                env={**os.environ, VARIABLE: str(writing)},
                # A Ctrl-C at the terminal reaches the supervisor only, and a kill of this group also ends
                # the driver's Java.
                process_group=0,
            )
        except OSError as error:
            os.close(reading)
            why = f"it could not be started: {error}"
            return End(1, Cause.FAILED, why, self._clock.monotonic())
        finally:
            os.close(writing)
        self._driver = driver
        self.board.is_running = True
        watch = _Watch(driver, reading, self._timing, self._clock)
        try:
            while (data := self._heard(watch, woken)) is None or data:
                for line in watch.lines(data or b""):
                    if (note := notes_of(line)) is not None:
                        self._take(note, watch)
            self._look_at_cpu()
            return watch.end()
        finally:
            os.close(reading)
            watch.kill()  # the processes that the driver has started
            self._cpu_before_s = self.board.cpu_s or 0.0
            self._driver = None

    def _heard(self, watch: _Watch, woken: int) -> bytes | None:
        """Wait for a note or a signal; return the bytes of notes, b"" at their end, None without any."""
        wanted = [watch.reading, woken]
        readable, _, _ = select.select(wanted, [], [], watch.pause_s())
        if woken in readable:
            os.read(woken, _READ_BYTES)
        if self._stop_signals:
            watch.ask_to_stop()
            if len(self._stop_signals) > 1:
                watch.kill()
        if watch.reading in readable:
            return os.read(watch.reading, _READ_BYTES)
        watch.kill_if_late()
        return None

    def _take(self, note: Note, watch: _Watch) -> None:
        if note.failed is not None:
            watch.failed(note)
        if note.figures is not None:
            # The figures at the start of a driver are those of the archive, before any look at the log.
            if any(one.complete_until_ms is not None for one in note.figures.topics):
                self._has_worked = True
            if watch.are_first_figures():
                self._restarts.ready(self._clock.monotonic())
            self._look_at_cpu()
            self._days.take(note.figures, self.board.take(note.figures), self.board)

    def _look_at_cpu(self) -> None:
        # Scrapes call this in a thread of their own. This order does not count a driver twice that ends
        # meanwhile.
        before_s = self._cpu_before_s
        driver = self._driver
        found_s = cpu_s(driver.pid) if driver is not None else None
        if found_s is not None:
            self.board.cpu_s = max(self.board.cpu_s or 0.0, before_s + found_s)

    def _wait(self, woken: int, pause_s: float) -> None:
        """Wait for `pause_s`, or until a signal comes."""
        if not self._stop_signals and select.select([woken], [], [], pause_s)[0]:
            os.read(woken, _READ_BYTES)

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """Note SIGINT and SIGTERM within the context; yield a descriptor that is readable after one."""
        woken, waking = os.pipe()
        os.set_blocking(waking, False)
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [
            signal.signal(number, lambda one, _: self._stop_signals.append(one))
            for number in numbers
        ]
        descriptor = signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)
            os.close(waking)
            os.close(woken)


class _Watch:
    """Watches one driver: its notes, and the time at which the next one is due."""

    def __init__(
        self, driver: subprocess.Popen[bytes], reading: int, timing: Timing, clock: Clock
    ) -> None:
        self._driver = driver
        self.reading = reading
        self._timing = timing
        self._monotonic = clock.monotonic
        self._alive_until_s = self._monotonic()
        self._due_s = self._alive_until_s + timing.stalled_after_s
        self._rest = b""
        self._has_figures = False
        self._failure: Note | None = None
        self._is_late = False

    def lines(self, data: bytes) -> list[bytes]:
        """Return the notes that `data` completes. Each is a sign of life."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if whole and self._failure is None:
            self._alive_until_s = self._monotonic()
            self._due_s = self._alive_until_s + self._timing.stalled_after_s
        return whole

    def are_first_figures(self) -> bool:
        """Note that the driver has shown figures, and return whether they are its first."""
        had, self._has_figures = self._has_figures, True
        return not had

    def failed(self, note: Note) -> None:
        """Take the reason for which the driver ends, and give it `ending_s` to do so."""
        self._failure = note
        self._due_s = self._monotonic() + self._timing.ending_s

    def pause_s(self) -> float | None:
        """Return how long to wait for a note; None, for ever, if the driver was killed."""
        return None if self._due_s == math.inf else max(0.0, self._due_s - self._monotonic())

    def ask_to_stop(self) -> None:
        """Close the driver's standard input, upon which it finishes its batch. Idempotent."""
        assert self._driver.stdin is not None
        with suppress(OSError):
            self._driver.stdin.close()

    def kill_if_late(self) -> None:
        if self._monotonic() >= self._due_s:
            self._is_late = self._failure is None
            self.kill()

    def kill(self) -> None:
        """Kill the driver's process group with its Java, also if the driver itself has ended."""
        self._due_s = math.inf
        with suppress(ProcessLookupError):
            os.killpg(self._driver.pid, signal.SIGKILL)

    def end(self) -> End:
        """Return the end of the driver, after the end of its notes."""
        self.ask_to_stop()
        try:
            status = self._driver.wait(self._timing.ending_s)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._driver.wait()
        if self._is_late:
            why = f"it showed no progress for {self._timing.stalled_after_s:g} s (stalled_after)"
            return End(status, Cause.STALLED, why, self._alive_until_s)
        if self._failure is not None:
            assert self._failure.failed is not None
            why, alive_until_s = self._failure.failed, self._alive_until_s
            is_final, is_given_wrong = self._failure.is_final, self._failure.is_given_wrong
            return End(status, Cause.FAILED, why, alive_until_s, is_final, is_given_wrong)
        if status < 0:
            why = f"{signal.Signals(-status).name} killed it"
            return End(status, Cause.KILLED, why, self._alive_until_s)
        # Status 1 of a pipeline that did its work says that its report names something to look at.
        why = f"it ended with status {status}"
        is_given_wrong, is_clean = status == _GIVEN_WRONG, status in (0, 1)
        return End(status, Cause.FAILED, why, self._alive_until_s, False, is_given_wrong, is_clean)
