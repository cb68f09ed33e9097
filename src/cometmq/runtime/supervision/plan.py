"""Say what a supervisor runs, as text that survives an `exec`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Final, NoReturn

# Bytes that a pipe takes without a reader.
_MOST_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Member:
    """One process: its name in the log, and its command line."""

    name: str
    arguments: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The processes, and the log that they share. Times are in seconds, sizes in bytes.

    `kind` and `kinds` say in the log what a process is, and what several are.

    `ready_mark` is in the line that a process prints when it serves. Without `log_file` the log
    goes to standard error. `log_threshold` is the number of the least level (10 is debug) of the
    supervisor's own lines; the processes choose theirs.
    """

    members: list[Member]
    ready_mark: str
    kind: str = "broker"
    kinds: str = "brokers"
    log_file: str | None = None
    log_file_bytes: int = 0
    kept_log_files: int = 1
    log_json: bool = True
    log_threshold: int = 20
    stop_limit_s: float = 100.0
    first_pause_s: float = 0.5
    last_pause_s: float = 30.0
    steady_s: float = 60.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        fields = json.loads(text)
        fields["members"] = [Member(**member) for member in fields["members"]]
        return cls(**fields)


def become_supervisor(plan: Plan, shown: list[str]) -> NoReturn:
    """Replace this process by a supervisor of the plan; its number stays.

    `shown` is added to the command line, for people who look at a list of processes.
    """
    data = plan.to_json().encode()
    assert len(data) <= _MOST_BYTES, "a pipe holds the plan of as many processes as may be"
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    os.set_inheritable(reading, True)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # the parent may have closed it
            stream.flush()
    # -P: a module in the working directory must not take the place of one of Python's.
    command = [sys.executable, "-P", "-m", f"{__package__}.supervisor", str(reading), *shown]
    os.execv(sys.executable, command)  # noqa: S606 - our own interpreter and module


def read_plan(descriptor: int) -> Plan:
    """Read the plan that `become_supervisor` left, and close the descriptor."""
    with os.fdopen(descriptor, "rb") as file:
        return Plan.from_json(file.read().decode())
