"""Run the stores under test, each in a process that obeys lines (see store_subject.py)."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.interop.peers import java_classpath

from benchmarks.frames import BenchmarkError
from cometmq import _compiled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]
JAVA_SOURCE = Path(__file__).parent / "java" / "StoreSubject.java"
STOP_LIMIT_SECONDS = 30.0
LOGBACK = """<configuration>
  <appender name="err" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target><encoder><pattern>%d %p %c - %m%n</pattern></encoder>
  </appender>
  <root level="ERROR"><appender-ref ref="err"/></root>
</configuration>
"""


@dataclass(frozen=True, slots=True)
class Answer:
    seconds: float
    count: int


class StoreProcess:
    """Runs a process with one store. A context manager; leaving it without `close` is a kill."""

    def __init__(self, label: str, command: Sequence[str], log: Path) -> None:
        self._label = label
        self._log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def ask(self, *words: object) -> Answer:
        """Ask for a command. Raises BenchmarkError when that fails or the process ends."""
        line = " ".join(map(str, words))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the missing answer shows that the process ended
        answer = self._process.stdout.readline()
        if not answer:
            tail = self._log.read_text(errors="replace")[-2000:]
            raise BenchmarkError(f"the process of {self._label} ended at `{line}`:\n{tail}")
        fields = json.loads(answer)
        if "error" in fields:
            raise BenchmarkError(f"{self._label} at `{line}`: {fields['error']}")
        return Answer(fields["seconds"], fields["count"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate(timeout=STOP_LIMIT_SECONDS)


class StorePeer(ABC):
    """Starts processes of one store implementation; `directory` is where its files and log go."""

    label: str
    warms_up: bool

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)

    def process(self) -> StoreProcess:
        return StoreProcess(self.label, self._command(), self.directory / "stderr.log")

    @abstractmethod
    def settings(self) -> dict[str, str]: ...

    @abstractmethod
    def _command(self) -> list[str]: ...


class JavaStorePeer(StorePeer):
    """Starts DefaultMessageStore of the published artifact, at its own defaults."""

    label = "Java"
    warms_up = True

    def __init__(self, directory: Path, *, heap_mib: int) -> None:
        super().__init__(directory)
        classpath = java_classpath("server")
        self._version = re.search(r"rocketmq-store-([\w.-]+)\.jar", classpath)
        classes = directory / "classes"
        done = subprocess.run(
            ["javac", "-cp", classpath, "-d", str(classes), str(JAVA_SOURCE)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BenchmarkError(f"javac refuses {JAVA_SOURCE}:\n{done.stderr[-2000:]}")
        self._classpath = f"{classes}:{classpath}"
        self._flags = [f"-Xms{heap_mib}m", f"-Xmx{heap_mib}m", "-server", "-XX:+UseG1GC"]
        (directory / "logback.xml").write_text(LOGBACK)

    def settings(self) -> dict[str, str]:
        runtime = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
        return {
            "store": f"rocketmq-store {self._version.group(1) if self._version else '?'}",
            "runtime": runtime.stderr.splitlines()[0],
            "JVM flags": " ".join(self._flags),
        }

    def _command(self) -> list[str]:
        return [
            "java",
            *self._flags,
            f"-Duser.home={self.directory}",
            f"-Drmq.logback.configurationFile={self.directory / 'logback.xml'}",
            "-cp",
            self._classpath,
            "StoreSubject",
        ]


class CometStorePeer(StorePeer):
    """Starts our MessageStore."""

    label = "CometMQ"
    warms_up = False

    def settings(self) -> dict[str, str]:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        version = importlib.metadata.version("cometmq")
        numpy = importlib.metadata.version("numpy")
        return {
            "store": f"CometMQ {version} at {described.stdout.strip() or 'no commit'}",
            "runtime": f"Python {sys.version.split()[0]}, numpy {numpy}",
            "hot modules": _compiled.state() or "compiled",
        }

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.store_subject"]
