"""Start a broker and a name server whose loops are watched, and read what was seen of them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.floods.kinds import make_topic
from tests.floods.watched import BEAT_S
from tests.integration.raw_client import RawClient
from tests.interop.peers import free_broker_port, free_port
from tests.waits import eventually

_STOP_S: Final = 60.0


@dataclass
class Loop:
    """Holds what was seen of a loop in a time: how late it was, in ms, and why.

    `work` is the longest time, in ms of the processor, that the loop served others between two beats.
    """

    late_p99: float = 0.0
    late_max: float = 0.0
    work_p99: float = 0.0
    work_max: float = 0.0
    cpu_share: float = 0.0
    stacks: dict[str, int] = field(default_factory=dict)


@dataclass
class Server:
    """Runs one process."""

    process: subprocess.Popen[bytes]
    address: str
    beats: Path
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def loop(self, began_s: float, ended_s: float) -> Loop:
        """Return what the beats of a time say."""
        late: list[float] = []
        work: list[float] = []
        stacks: Counter[str] = Counter()
        for line in self.beats.read_text().splitlines():
            with contextlib.suppress(ValueError):
                beats = json.loads(line)
                if began_s + 0.5 <= beats["at"] <= ended_s + 1.0:
                    late += beats["late"]
                    work += beats["cpu"]
                    stacks.update(beats["stacks"])
        if not late:  # it has not beaten at all
            return Loop(late_max=(ended_s - began_s) * 1000)
        share = sum(work) / (sum(late) + len(late) * BEAT_S * 1000)
        figures = (_p99(late), max(late), _p99(work), max(work), round(share, 2))
        return Loop(*figures, dict(stacks.most_common(5)))

    def limit_hits(self) -> dict[str, int]:
        """Return how often each limit has been hit since the start, as of a second ago at most."""
        for line in reversed(self.beats.read_text().splitlines()):
            with contextlib.suppress(ValueError):
                hits: dict[str, int] = json.loads(line)["limits"]
                return hits
        return {}

    def forget_peak(self) -> None:
        """Have the kernel count the peak of resident memory again."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def stop(self) -> float:
        """Stop in order; return how many seconds that took."""
        began_s = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return time.monotonic() - began_s


def _p99(values: list[float]) -> float:
    return sorted(values)[math.ceil(len(values) * 0.99) - 1]


@dataclass
class Servers:
    namesrv: Server
    broker: Server
    directory: Path
    settings: Mapping[str, Any]
    metrics: str

    def restart_cold(self) -> None:
        """Stop the broker, drop its files from the page cache, and start it."""
        self.broker.stop()
        for path in (self.directory / "store").rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
        self.broker = _start("broker", self.directory, self.settings, self.broker.address)


@contextlib.contextmanager
def running(directory: Path, settings: Mapping[str, Any], topic: str) -> Iterator[Servers]:
    """Run both servers, with the topic of the honest client."""
    port = free_port()
    namesrv = _start(
        "namesrv", directory, {"kvConfigPath": directory / "kv.json"}, f"127.0.0.1:{port}"
    )
    servers = None
    try:
        port = free_broker_port()
        given = {
            "brokerIP1": "127.0.0.1",
            "brokerName": "broker-a",
            "namesrvAddr": namesrv.address,
            "storePathRootDir": directory / "store",
            "vipChannelEnable": "false",
            "metricsPromExporterHost": "127.0.0.1",
            "metricsPromExporterPort": (metrics_port := free_port()),
            "haListenPort": port + 1,
            # Nothing is refused or deleted because others use the disk of this machine.
            "diskMaxUsedSpaceRatio": 95,
            "cleanFileForciblyEnable": "false",
            **settings,
        }
        broker = _start("broker", directory, given, f"127.0.0.1:{port}")
        servers = Servers(namesrv, broker, directory, given, f"127.0.0.1:{metrics_port}")
        make_topic(broker.address, topic)
        yield servers
    finally:
        if servers is not None:
            servers.broker.stop()
        namesrv.stop()


def _start(kind: str, directory: Path, settings: Mapping[str, Any], address: str) -> Server:
    port = int(address.rpartition(":")[2])
    keys = {"listenPort": port, "bindAddress": "127.0.0.1", **settings}
    conf = directory / f"{kind}.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    beats = directory / f"{kind}.beats"
    log = directory / f"{kind}.log"
    environment = {k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"}
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.floods.watched", str(beats), kind, "-c", str(conf)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
        )
    server = Server(process, address, beats, log)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            with RawClient(address) as client:
                return client.ask(9_999).code == 3
        except OSError:
            return False

    eventually(answers)
    return server
