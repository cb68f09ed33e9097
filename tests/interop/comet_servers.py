"""CometMQ's servers as processes, started like the Java ones: same properties file, same flags."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.interop.peers import JavaBroker, JavaNamesrv

if TYPE_CHECKING:
    from pathlib import Path


class CometNamesrv(JavaNamesrv):
    """`cometmq namesrv -c FILE`."""

    name = "cometmq-namesrv"

    def command(self, home: Path, logback: Path, conf: Path) -> list[str]:
        """The command line, by the interpreter that runs the tests."""
        return [sys.executable, "-m", "cometmq", "namesrv", "-c", str(conf)]

    def leave(self) -> None:
        """Stop cleanly; a server that hangs or fails at its stop fails the test."""
        self.stop()


class CometBroker(JavaBroker):
    """`cometmq broker -c FILE`."""

    name = "cometmq-broker"

    def command(self, home: Path, logback: Path, conf: Path) -> list[str]:
        """The command line, by the interpreter that runs the tests."""
        return [sys.executable, "-m", "cometmq", "broker", "-c", str(conf)]

    def leave(self) -> None:
        """Stop cleanly; a server that hangs or fails at its stop fails the test."""
        self.stop()
