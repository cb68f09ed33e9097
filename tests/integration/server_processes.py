"""Run brokers and name servers as processes with any standard streams, on ports held for them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.integration.raw_client import Command, RawClient, send_ext
from tests.waits import PROCESS_WAIT_S

from cometmq.testing.ports import HeldPort

DEADLINE_S = PROCESS_WAIT_S
UNSUPPORTED = 9_999
SEND = 10


class ServerProcess:
    """Runs a server process; `port` is served once `wait_until_served` has returned."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def wait_until_served(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert self.process.poll() is None, f"ended with {self.process.returncode}"
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
            except OSError:
                assert time.monotonic() < deadline, "it does not listen"
                time.sleep(0.05)
            else:
                return

    def refuses(self, times: int = 1) -> None:
        """Send requests of an unknown code, each of which is worth a line in the log."""
        with RawClient(self.address) as client:
            for _ in range(times):
                assert client.ask(UNSUPPORTED).code == 3

    def send(self, topic: str = "t", body: bytes = b"x", **fields: Any) -> Command:
        with RawClient(self.address) as client:
            return client.ask(SEND, send_ext(topic, **fields), body)

    def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


def arguments(kind: str, port: int, directory: Path, settings: Mapping[str, Any]) -> list[str]:
    """Return the command line of a `broker`, `namesrv` or `dev` on `port` with keys of its file."""
    if kind == "dev":
        return ["dev", "--port", "0", "--broker-port", str(port), "--store", str(directory / "s")]
    own: dict[str, dict[str, Any]] = {
        "broker": {
            "brokerIP1": "127.0.0.1",
            "vipChannelEnable": "false",
            "storePathRootDir": directory / "store",
            "mappedFileSizeCommitLog": 1 << 20,
            "mappedFileSizeConsumeQueue": 20_000,
            # Sends are not refused because another process keeps the disk busy.
            "osPageCacheBusyTimeOutMills": 60_000,
            # Nor are messages deleted because the machine's disk is nearly full.
            "diskMaxUsedSpaceRatio": 95,
            "cleanFileForciblyEnable": "false",
        },
        "namesrv": {"kvConfigPath": directory / "kvConfig.json"},
    }
    keys = {"listenPort": port, "bindAddress": "127.0.0.1", **own[kind], **settings}
    conf = directory / f"{kind}.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    return [kind, "-c", str(conf)]


@contextmanager
def server_process(
    kind: str,
    directory: Path,
    *,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    before: Callable[[], None] | None = None,
    settings: Mapping[str, Any] | None = None,
    options: Sequence[str] = (),
) -> Iterator[ServerProcess]:
    """Run a server within the context. `settings` are keys of its configuration file; `before` runs
    in the child, before the server's program does; `options` are added to its command line.
    """
    with HeldPort() as held:
        inherited = {k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"}
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "cometmq",
                *arguments(kind, held.port, directory, settings or {}),
                *options,
            ],
            env=inherited,
            stdout=stdout,
            stderr=stderr,
            preexec_fn=before,  # noqa: PLW1509 - no threads here, and only system calls there
        ) as process:
            server = ServerProcess(process, held.port)
            try:
                server.wait_until_served()
                yield server
            finally:
                if process.poll() is None:
                    process.kill()
