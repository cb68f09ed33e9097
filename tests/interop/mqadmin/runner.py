"""Runs Apache's `mqadmin` of 4.9 and the newest: many commands in one JVM, as a start takes seconds."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple, Self

from tests.interop.peers import QUICK_JAVA, PeerError, clean_environment, java_command

from cometmq import Credentials


class Printed(NamedTuple):
    """One command's standard output and error."""

    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line that is no heading."""
        lines = (line for line in self.out.splitlines() if line.strip())
        return [line.split() for line in lines if not line.startswith("#")]


class MqAdmin:
    """`mqadmin` of one release line (4 or 5, the newest), with the keys of `credentials` in its tools.yml; with
    `tls` it talks TLS, and trusts any certificate. A context manager.
    """

    def __init__(
        self, line: int, credentials: Credentials | None = None, *, tls: bool = False
    ) -> None:
        assert line in (4, 5), line
        self.line = line
        self.home = Path(tempfile.mkdtemp(prefix="mqadmin-"))
        self._errors = (self.home / "stderr").open("w+b")
        flags = [*QUICK_JAVA, "-Xmx256m"]
        flags += [f"-Duser.home={self.home}", f"-Djava.io.tmpdir={self.home}"]
        if tls:
            flags.append("-Dtls.enable=true")
        flags.append("-Dcom.rocketmq.remoting.client.connect.timeout=60000")
        _write_logback(self.home)
        if credentials is not None:
            keys = f"accessKey: {credentials.access_key}\nsecretKey: {credentials.secret_key}\n"
            (self.home / "conf" / "tools.yml").write_text(keys)
        environment = {
            **clean_environment(),
            "HOME": str(self.home),
            "ROCKETMQ_HOME": str(self.home),
        }
        self._process = subprocess.Popen(
            java_command(f"tools{line}", "cometmq.interop.Admin", flags),
            cwd=self.home,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def run(self, namesrv: str, command: str, *args: str, stop_after_lines: int = 0) -> Printed:
        """Run one command with `-n` set to its end, or until it has printed so many lines."""
        return self._ask("\t".join((str(stop_after_lines), command, *args, "-n", namesrv)))

    def commands(self) -> list[str]:
        """Return the names of all commands that the release has, as its start-up class lists them."""
        return self._ask("commands").out.split()

    def _ask(self, line: str) -> Printed:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        return Printed(self._frame("#out"), self._frame("#err"))

    def _frame(self, name: str) -> str:
        assert self._process.stdout is not None
        head = self._process.stdout.readline().split()
        if len(head) != 2 or head[0] != name.encode():
            self._errors.seek(0)
            raise PeerError(f"mqadmin {self.line}: {head}\n{self._errors.read().decode()[-3000:]}")
        text = self._process.stdout.read(int(head[1]) + 1)
        return text[:-1].decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()
        shutil.rmtree(self.home, ignore_errors=True)


def _write_logback(home: Path) -> None:
    """4.9 does not start a command without this file."""
    (home / "conf").mkdir()
    (home / "conf" / "logback_tools.xml").write_text("<configuration/>")
