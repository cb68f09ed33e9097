"""Forks servers from a process that has imported what they run, to be killed again and again.

Python's start and its imports take more of a processor than a life of a tenth of a second: 0.7 s, most of
what a kill costs. From its command line on a forked server does what one of `python -m cometmq` does.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from tests.crash.storm_member import fork
from tests.waits import WAIT_S, eventually

DEADLINE_S: Final = 2 * WAIT_S
# A broker and a proxy log these lines when they serve.
_READY: Final = re.compile(r"127\.0\.0\.1:(\d+)\] boot success|serves gRPC at 127\.0\.0\.1:(\d+)")


class Nursery:
    """The process that forks. A context manager; its servers must have been killed at its end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # Threads may ask for servers at a time.
        self._asking = threading.Lock()

    def broker(self, conf: Path, options: str = "") -> ForkedServer:
        """Fork a broker with this configuration file; return it once it serves."""
        return self.server(
            conf.with_suffix(".log"), f"broker -c {conf} --log-level error {options}"
        )

    def server(self, log: Path, command: str) -> ForkedServer:
        """Fork a server with the arguments of `cometmq`; return it once it serves."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        log.write_bytes(b"")
        with self._asking:
            stdin.write(f"{log} {command}\n")
            stdin.flush()
            pid = int(stdout.readline())
        return ForkedServer(pid, log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=DEADLINE_S)


class ForkedServer:
    """The server, from its start until it is killed."""

    def __init__(self, pid: int, log: Path) -> None:
        # Not the pid, which another process may have once this one has ended.
        self._process = os.pidfd_open(pid)
        self._killed = False
        self._log = log
        try:
            self.port: int = eventually(self._port, wait_s=DEADLINE_S)
        except BaseException:
            self.kill()
            raise

    def _port(self) -> int | None:
        said = self._log.read_text()
        assert not self._has_ended(0), said
        found = _READY.search(said)
        return int(found[1] or found[2]) if found else None

    def kill(self) -> None:
        if self._killed:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        assert self._has_ended(DEADLINE_S)
        os.close(self._process)
        self._killed = True

    def _has_ended(self, wait_s: float) -> bool:
        return bool(select.select([self._process], [], [], wait_s)[0])


def main() -> None:
    import cometmq.cli.servers.broker
    import cometmq.cli.servers.proxy
    import cometmq.proxy.server
    import cometmq.testing.cluster  # noqa: F401 - with what a broker imports when it starts
    from cometmq.cli.main import main as cometmq_main

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    for line in sys.stdin:
        log, *arguments = line.split()

        def run(log: str = log, arguments: list[str] = arguments) -> None:
            with Path(log).open("wb") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            sys.argv = ["cometmq", *arguments]
            cometmq_main()

        sys.stdout.write(f"{fork(run)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
