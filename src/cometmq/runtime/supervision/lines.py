"""Join the logs of several processes: whole lines, each with the name of its process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from cometmq.logs.file import LogFile
from cometmq.logs.line_writer import LineWriter

# A longer line is cut into several.
MAX_LINE_BYTES: Final = 256 * 1024
LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_STANDARD_ERROR: Final = 2
_LOGGER: Final = "cometmq.runtime.supervision"


class Lines:
    """Cuts the bytes of one stream into lines, none longer than MAX_LINE_BYTES."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines, without their ends, that `data` completes."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            whole.append(self._rest)
            self._rest = b""
        return [line.decode(errors="backslashreplace") for line in whole]

    def end(self) -> list[str]:
        """Return what came after the last end of a line."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="backslashreplace")] if rest else []


class SharedLog:
    """Writes the lines of all processes, and the supervisor's own, in the form of the processes.

    A line in JSON gets the member `kind` says, such as `broker`; before a line of text stands the process's name. It
    neither fails nor waits; see `LineWriter`.
    """

    def __init__(
        self,
        names: list[str],
        *,
        json_lines: bool,
        threshold: int,
        kind: str = "broker",
        file: LogFile | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._json = json_lines
        self._kind = kind
        self._threshold = threshold
        self._now = now
        self._width = max(map(len, [*names, "supervisor"]))

        def lost(count: int, why: str) -> str:
            return self._own("warning", "log lines lost", {"lines": count, "why": why})

        def more(_ending: bool) -> list[str] | None:
            if file is None:
                return None
            why = file.new_fault()
            fields = {"path": str(file.path), "why": why}
            return [self._own("warning", "full log file cannot be renamed", fields)] if why else []

        self._writer = LineWriter(
            _STANDARD_ERROR if file is None else file, describe_lost=lost, more=more
        )

    def relay(self, name: str, line: str) -> None:
        """Write a line of the process `name`."""
        if not self._json:
            self._writer.write(f"{name:<{self._width}}  {line}\n")
        elif line.startswith("{") and line.endswith("}") and len(line) > 2:
            # Processes name nobody but themselves by that key.
            named = "" if f'"{self._kind}": ' in line else f', "{self._kind}": {json.dumps(name)}'
            self._writer.write(f"{line[:-1]}{named}}}\n")
        else:  # what an interpreter or a library wrote to standard error
            self._writer.write(self._own("error", line, {self._kind: name}, logger="stderr"))

    def say(self, level: str, event: str, **fields: Any) -> None:
        """Write a line of the supervisor's own."""
        if LEVELS[level] >= self._threshold:
            self._writer.write(self._own(level, event, fields))

    def drain(self) -> None:
        """Wait until all is written, a second at most."""
        self._writer.drain()

    def _own(self, level: str, event: str, fields: Mapping[str, Any], logger: str = _LOGGER) -> str:
        now = self._now()
        if self._json:
            stamp = now.isoformat().replace("+00:00", "Z")
            head = {"timestamp": stamp, "level": level, "logger": logger, "event": event}
            return json.dumps(head | dict(fields)) + "\n"
        values = " ".join(f"{key}={value!r}" for key, value in fields.items())
        stamp = now.astimezone().replace(tzinfo=None).isoformat()
        return f"{'supervisor':<{self._width}}  {stamp} [{level:<9}] {event:<30} {values}\n"
