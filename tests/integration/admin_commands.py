"""Run commands of `cometmq admin` in this process, and keep what they print."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import structlog
from tests.waits import WAIT_S

from cometmq.cli.main import main


@dataclass(frozen=True)
class Printed:
    """A command's standard output and error."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def csv(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.out)))


class Commands:
    """Runs commands against the servers that a name server knows, with time for busy machines.

    All of them get `options`, too.
    """

    def __init__(
        self, namesrv: str, capture: pytest.CaptureFixture[str], options: tuple[str, ...] = ()
    ) -> None:
        self._namesrv = namesrv
        self._capture = capture
        self._options = options

    def run(self, *arguments: str, status: int = 0) -> Printed:
        """Run a command to its end, which must have this exit status."""
        wait = ("--timeoutMillis", str(int(WAIT_S * 1000)))
        argv = ["cometmq", "admin", *arguments, "-n", self._namesrv, *wait, *self._options]
        self._capture.readouterr()
        with mock.patch.object(sys, "argv", argv), pytest.raises(SystemExit) as ended:
            main()
        printed = Printed(*self._capture.readouterr())
        assert ended.value.code in (status, None if status == 0 else status), printed
        return printed

    def json(self, *arguments: str, status: int = 0) -> Any:
        """Run a command, and return what it printed as JSON."""
        return self.run(*arguments, "--output", "json", status=status).json

    def refused(self, *arguments: str, status: int = 1) -> str:
        """Run a command that fails, prints no result, and says why in a sentence."""
        printed = self.run(*arguments, status=status)
        assert printed.out == ""
        assert "Traceback" not in printed.err
        # As long as a terminal is wide, with a frame around it, or in one line.
        return " ".join(printed.err.replace("│", " ").split())


@pytest.fixture(scope="module", autouse=True)
def no_log_lines() -> Iterator[None]:
    """Keep the lines of servers in this process from what commands print."""

    def drop(*_: object) -> Any:
        raise structlog.DropEvent

    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(processors=[drop])
    yield
    if before is None:
        structlog.reset_defaults()
    else:
        structlog.configure(**before)


@pytest.fixture
def commands(namesrv: str, capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(namesrv, capfd)
