"""Supervise processes: `python -m cometmq.runtime.supervision.supervisor DESCRIPTOR`.

One thread waits for signals and for the output of the processes; it never waits for one of them.
Each process has a pipe as its standard input. That ends with the supervisor, whatever ended it, and
the processes take its end as a signal to stop.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cometmq.errors import ConfigError
from cometmq.logs.file import LogFile
from cometmq.logs.line_writer import LineWriter, reserve_standard_descriptors
from cometmq.runtime.supervision.lines import Lines, SharedLog
from cometmq.runtime.supervision.plan import Member, Plan, read_plan
from cometmq.runtime.supervision.restarts import Restarts

_STANDARD_OUTPUT: Final = 1
_READ_BYTES: Final = 64 * 1024
# How the commands of `cometmq` end after something that the user gave wrong, and how they begin that
# line.
_GIVEN_WRONG: Final = 2
_COMPLAINT: Final = "cometmq: "
_MOST_KEPT_LINES: Final = 50
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Child:
    """One process of the plan, which runs or is to be started again."""

    def __init__(self, member: Member, plan: Plan) -> None:
        self.name = member.name
        self.arguments = member.arguments
        self.restarts = Restarts(plan.first_pause_s, plan.last_pause_s, plan.steady_s)
        self.pid: int | None = None
        self.is_ready = False
        self.due: float | None = None
        # The line that the process printed when it served first, until all are ready.
        self.ready_line = ""
        # Why it could not begin, in its own words.
        self.complaint: deque[str] = deque(maxlen=_MOST_KEPT_LINES)
        self._input = -1
        self.outputs: dict[int, Lines] = {}
        self.errors = -1

    def start(self) -> None:
        """Start the process. Raises OSError."""
        self.is_ready, self.due = False, None
        self.complaint.clear()
        child_input, self._input = os.pipe()
        output, child_output = os.pipe()
        self.errors, child_errors = os.pipe()
        self.outputs = {output: Lines(), self.errors: Lines()}
        for descriptor in self.outputs:
            os.set_blocking(descriptor, False)
        given = (child_input, child_output, child_errors)
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                self.arguments,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, descriptor, number)
                    for number, descriptor in enumerate(given)
                ],
                # A Ctrl-C at the terminal is for the supervisor, which passes it on once.
                setpgroup=0,
            )
        except OSError:
            self.close_input()
            for descriptor in self.outputs:
                os.close(descriptor)
            self.outputs = {}
            raise
        finally:
            for descriptor in given:
                os.close(descriptor)

    def send(self, number: signal.Signals) -> None:
        """Send a signal if the process runs."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def close_input(self) -> None:
        """Close our end of the standard input. Idempotent."""
        if self._input >= 0:
            os.close(self._input)
            self._input = -1


class Supervisor:
    """Runs the processes of a plan until a signal ends it. For the main thread."""

    def __init__(
        self, plan: Plan, log: SharedLog, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._log = log
        self._now = now
        self._children = [Child(member, plan) for member in plan.members]
        self._selector = selectors.DefaultSelector()
        self._out = LineWriter(_STANDARD_OUTPUT)
        self._were_ready = False
        self._stop_deadline: float | None = None
        self._killed = False
        self._status = 0

    def run(self) -> int:
        """Start all, and return the exit status when all have ended."""
        waking, woken = socket.socketpair()
        for end in (waking, woken):
            end.setblocking(False)
        # First of all: a signal between would be taken by a handler that does nothing.
        signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD):
            # The handler does nothing; the number arrives through the socket.
            signal.signal(number, lambda *_: None)
        self._selector.register(woken, selectors.EVENT_READ, None)
        self._log.say(
            "info",
            "supervisor started",
            **{"pid": os.getpid(), self._plan.kinds: len(self._children)},
        )
        for child in self._children:
            self._start(child)
        while self._stop_deadline is None or any(child.pid for child in self._children):
            self._wait(woken)
        self._log.say("info", "supervisor stopped", status=self._status)
        self._log.drain()
        self._out.drain()
        return self._status

    # -- what happens --

    def _wait(self, woken: socket.socket) -> None:
        for key, _ in self._selector.select(self._pause_s()):
            if key.fileobj is woken:
                self._take_signals(woken)
            else:
                self._read(key.data, key.fd)
        # Not only after SIGCHLD: signals of one number may come as one.
        self._reap()
        now = self._now()
        for child in self._children:
            if child.due is not None and child.due <= now:
                self._start(child)
        if self._stop_deadline is not None and now >= self._stop_deadline and not self._killed:
            self._kill(f"did not stop within {self._plan.stop_limit_s:g} s")
            self._status = self._status or 1

    def _pause_s(self) -> float | None:
        times = [child.due for child in self._children if child.due is not None]
        if self._stop_deadline is not None and not self._killed:
            times.append(self._stop_deadline)
        return max(0.0, min(times) - self._now()) if times else None

    def _take_signals(self, woken: socket.socket) -> None:
        for number in woken.recv(_READ_BYTES):
            if number not in _STOP_SIGNALS:
                continue
            name = signal.Signals(number).name
            if self._stop_deadline is None:
                self._log.say("info", "stopping; once more to force it", signal=name)
                self._stop()
            elif not self._killed:
                self._status = 128 + number
                self._kill(f"{name} came a second time")

    def _start(self, child: Child) -> None:
        try:
            child.start()
        except OSError as error:
            self._log.say(
                "error", f"{self._plan.kind} not started", **self._named(child), why=str(error)
            )
            self._restart_later(child)
            return
        for descriptor in child.outputs:
            self._selector.register(descriptor, selectors.EVENT_READ, child)
        self._log.say(
            "info", f"{self._plan.kind} process started", **self._named(child), pid=child.pid
        )

    def _read(self, child: Child, descriptor: int) -> bool:
        """Take what a process wrote; return whether there may be more."""
        lines = child.outputs[descriptor]
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        for line in lines.feed(data) if data else lines.end():
            if descriptor == child.errors:
                self._take_line(child, line)
            else:
                self._take_output(child, line)
        if not data:
            self._selector.unregister(descriptor)
            os.close(descriptor)
            del child.outputs[descriptor]
        return bool(data)

    def _take_line(self, child: Child, line: str) -> None:
        # A complaint is the last thing that a command writes, and may have several lines.
        if child.complaint or line.startswith(_COMPLAINT):
            child.complaint.append(line.removeprefix(_COMPLAINT))
        else:
            self._log.relay(child.name, line)

    def _take_output(self, child: Child, line: str) -> None:
        if self._plan.ready_mark not in line:
            self._log.relay(child.name, line)
            return
        child.is_ready = True
        child.restarts.ready(self._now())
        if self._were_ready:
            self._log.say(
                "info", f"{self._plan.kind} serves again", **self._named(child), pid=child.pid
            )
            return
        child.ready_line = line
        if all(child.is_ready for child in self._children):
            self._were_ready = True
            for ready in self._children:
                self._out.write(f"{ready.ready_line}\n")
            count = len(self._children)
            self._out.write(
                f"All {self._plan.kinds} boot success: {count} under supervisor {os.getpid()}\n"
            )

    # -- how processes end --

    def _reap(self) -> None:
        """Take note of all processes that ended, also of orphans: as process 1 of a container the
        supervisor inherits those.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children:
                if child.pid == pid:
                    self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: Child, status: int) -> None:
        child.pid = None
        child.close_input()
        for descriptor in list(child.outputs):  # its last words
            while self._read(child, descriptor):
                pass
            if descriptor in child.outputs:  # a process of its own still holds the other end
                self._selector.unregister(descriptor)
                os.close(descriptor)
        child.outputs = {}
        how = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        complaint = "\n".join(child.complaint)
        fields: dict[str, Any] = {self._plan.kind: child.name, "how": how}
        if complaint:
            fields["why"] = complaint
        if self._stop_deadline is not None:
            # Nothing runs yet in a process that could not even take note of the signal.
            if status and (child.is_ready or status != -signal.SIGTERM):
                self._status = self._status or 1
                self._log.say("error", f"{self._plan.kind} did not stop cleanly", **fields)
            return
        self._log.say("error", f"{self._plan.kind} ended", **fields)
        if status == _GIVEN_WRONG and not self._were_ready:
            # The same start fails again, and probably so do those of the others.
            self._complain(child.name, complaint)
            self._status = _GIVEN_WRONG
            self._stop()
            return
        self._restart_later(child)

    def _restart_later(self, child: Child) -> None:
        child.is_ready = False
        again = child.restarts.died(self._now())
        child.due = self._now() + again.pause_s
        fields: dict[str, Any] = {self._plan.kind: child.name, "pause_s": again.pause_s}
        if again.is_hopeless:
            self._log.say(
                "error",
                f"{self._plan.kind} dies at each start; the supervisor goes on trying",
                **fields,
                deaths=again.deaths,
                longest_pause_s=self._plan.last_pause_s,
                remedy=f"find the reason in the lines of this {self._plan.kind} above",
            )
        else:
            self._log.say(
                "info", f"{self._plan.kind} is started again", **fields, deaths=again.deaths
            )

    def _named(self, child: Child) -> dict[str, str]:
        return {self._plan.kind: child.name}

    @staticmethod
    def _complain(name: str, complaint: str) -> None:
        with suppress(OSError):
            os.write(2, f"{_COMPLAINT}{name}: {complaint or 'it cannot start'}\n".encode())

    def _stop(self) -> None:
        """Have all processes stop at once, each in its own time."""
        self._stop_deadline = self._now() + self._plan.stop_limit_s
        for child in self._children:
            child.due = None
            child.send(signal.SIGTERM)

    def _kill(self, why: str) -> None:
        self._killed = True
        for child in self._children:
            if child.pid is not None:
                self._log.say(
                    "error",
                    f"{self._plan.kind} killed",
                    **self._named(child),
                    pid=child.pid,
                    why=why,
                )
                child.send(signal.SIGKILL)


def main() -> int:
    """Read the plan from the descriptor that the first argument names, and run it."""
    reserve_standard_descriptors()
    plan = read_plan(int(sys.argv[1]))
    file = None
    try:
        if plan.log_file is not None:
            file = LogFile(
                Path(plan.log_file), file_bytes=plan.log_file_bytes, kept_files=plan.kept_log_files
            )
    except ConfigError as error:
        os.write(2, f"{_COMPLAINT}{error}\n".encode())
        return _GIVEN_WRONG
    log = SharedLog(
        [member.name for member in plan.members],
        json_lines=plan.log_json,
        threshold=plan.log_threshold,
        kind=plan.kind,
        file=file,
    )
    return Supervisor(plan, log).run()


if __name__ == "__main__":
    sys.exit(main())
