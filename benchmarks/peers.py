"""Start the servers that a benchmark loads: our broker, the Java broker, the bare ack server.

All have the same methods (`Peer`): `start` spawns the processes and returns when a first send was
accepted, `address` and `pid` name the server's address and process, `settings` its settings, and
`stop` ends the server.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from tests.interop.peers import (
    HOST,
    JavaBroker,
    JavaNamesrv,
    free_broker_port,
    free_port,
    java_classpath,
)

from benchmarks.door import OPEN, Door
from benchmarks.frames import BROKER_NAME, SUCCESS, BenchmarkError, ControlConnection
from cometmq import _compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]
START_LIMIT_SECONDS = 60.0
STOP_LIMIT_SECONDS = 30.0
PROBE_INTERVAL_SECONDS = 0.002
PROBE_TOPIC = "startup_probe"
COMMIT_LOG_FILE_BYTES = 1 << 30

STOCK_GC_FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:MaxDirectMemorySize=15g",
    "-XX:-UseLargePages",
)
"""The options of Java's own bin/runbroker.sh, except for the heap (a parameter here) and AlwaysPreTouch."""

STOCK_JAVA_CONF = {
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
    "timerWheelEnable": "true",
    "brokerFastFailureEnable": "true",
    "transactionMetricFlushInterval": "10000",
    "transactionOpBatchInterval": "3000",
    "transactionOpMsgMaxSize": "4096",
    "timerFlushIntervalMs": "1000",
    "timerGetMessageThreadNum": "3",
    "timerPutMessageThreadNum": "3",
}
"""The broker's own defaults again: the interop suite's JavaBroker makes these small."""


class Peer(ABC):
    """Keeps a server under test, with its files in `directory`. A context manager; use it once."""

    label: str
    # How its first send gets in.
    door = OPEN
    warmup_limit_seconds = 3.0
    """Longer warm-up per row changes nothing where no compiler works in the background."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.startup_seconds = 0.0
        self._spawn_failure: str | None = None
        directory.mkdir(parents=True)

    @property
    @abstractmethod
    def address(self) -> tuple[str, int]: ...

    @property
    @abstractmethod
    def pid(self) -> int:
        """Return the process whose memory and CPU time count: the broker, not the name server."""

    @abstractmethod
    def settings(self) -> dict[str, str]: ...

    @abstractmethod
    def stop(self) -> None: ...

    @abstractmethod
    def _prepare(self) -> None:
        """Do what must not count as start-up: builds, configuration files, the name server."""

    @abstractmethod
    def _spawn(self) -> None: ...

    def _death(self) -> str | None:
        """Return why the spawned broker will never answer, or None while it may."""
        return self._spawn_failure

    def start(self) -> None:
        """Start everything. `startup_seconds` ends with the broker's first accepted send."""
        self._prepare()
        with ThreadPoolExecutor(1, "first-send") as pool:
            began = time.perf_counter()
            first_send = pool.submit(
                first_accepted_send, self.address, began, self._death, self.door
            )
            try:
                self._spawn()
            except BaseException as error:
                self._spawn_failure = str(error)  # lets the sending thread end
                raise
            self.startup_seconds = first_send.result() - began

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class JavaPeer(Peer):
    """Runs the Java broker and name server from the published artifacts."""

    label = "Java"
    broker_class: type[JavaBroker] = JavaBroker
    warmup_limit_seconds = float("inf")

    def __init__(self, directory: Path, *, heap_mib: int, conf: Mapping[str, str]) -> None:
        super().__init__(directory)
        self._jvm_flags = [f"-Xms{heap_mib}m", *STOCK_GC_FLAGS]
        self._heap_mib = heap_mib
        self._conf = {**STOCK_JAVA_CONF, **conf}
        self._namesrv = JavaNamesrv(directory=_made(directory / "namesrv"), jvm_flags=())
        self._broker = self.broker_class(
            self._namesrv.address,
            broker_name=BROKER_NAME,
            directory=_made(directory / "broker"),
            commit_log_file_bytes=COMMIT_LOG_FILE_BYTES,
            heap_mib=heap_mib,
            conf=self._conf,
            jvm_flags=self._jvm_flags,
        )

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self._broker.port

    @property
    def name_server(self) -> str:
        return self._namesrv.address

    @property
    def pid(self) -> int:
        return self._broker.pid

    def settings(self) -> dict[str, str]:
        version = re.search(
            r"rocketmq-broker-([\w.-]+)\.jar", java_classpath(self.broker_class.module)
        )
        runtime = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
        return {
            "broker": f"Apache RocketMQ {version.group(1) if version else '?'}",
            "runtime": runtime.stderr.splitlines()[0],
            "JVM flags": " ".join([f"-Xmx{self._heap_mib}m", *self._jvm_flags]),
            "broker.conf": _one_line(self._broker.config()),
        }

    def stop(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._namesrv.stop)
            stack.callback(self._broker.stop)

    def _prepare(self) -> None:
        java_classpath(self.broker_class.module)
        self._namesrv.start()

    def _spawn(self) -> None:
        self._broker.start()


class CometPeer(Peer):
    """Runs our broker and name server, started through the command line as by a user."""

    label = "CometMQ"

    def __init__(self, directory: Path, *, conf: Mapping[str, str]) -> None:
        super().__init__(directory)
        self._namesrv_port = free_port()
        self._broker_port = free_broker_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._conf = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": BROKER_NAME,
            "brokerId": "0",
            "brokerIP1": HOST,
            "listenPort": str(self._broker_port),
            "namesrvAddr": f"{HOST}:{self._namesrv_port}",
            "storePathRootDir": str(directory / "store"),
            "storePathCommitLog": str(directory / "store" / "commitlog"),
            "mappedFileSizeCommitLog": str(COMMIT_LOG_FILE_BYTES),
            # As for Java's: a long run fills the disk, and a broker that deletes has nothing to pull.
            "diskMaxUsedSpaceRatio": "95",
            "cleanFileForciblyEnable": "false",
            **conf,
        }

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self._broker_port

    @property
    def name_server(self) -> tuple[str, int]:
        return HOST, self._namesrv_port

    @property
    def pid(self) -> int:
        return self._processes[-1].pid

    def settings(self) -> dict[str, str]:
        return {
            "broker": f"CometMQ {_package_version('cometmq')} at {_commit()}",
            "runtime": f"Python {sys.version.split()[0]}, uvloop {_package_version('uvloop')}",
            "hot modules": _compiled.state() or "compiled",
            "broker.conf": _one_line(self._conf),
        }

    def stop(self) -> None:
        while self._processes:
            _end(self._processes.pop())

    def _prepare(self) -> None:
        conf = self.directory / "namesrv.conf"
        kv_path = self.directory / "kvConfig.json"
        conf.write_text(f"listenPort={self._namesrv_port}\nkvConfigPath={kv_path}\n")
        self._run("namesrv", "-c", str(conf))
        _wait_listening((HOST, self._namesrv_port))
        (self.directory / "broker.conf").write_text(
            "".join(f"{key}={value}\n" for key, value in self._conf.items())
        )

    def _spawn(self) -> None:
        self._run("broker", "-c", str(self.directory / "broker.conf"))

    def _death(self) -> str | None:
        broker = self._processes[-1]
        if broker.poll() is None:
            return super()._death()
        log = (self.directory / "broker.log").read_text(errors="replace")
        return f"our broker ended with {broker.returncode}:\n{log[-2000:]}"

    def _run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "cometmq", *arguments]
        with (self.directory / f"{arguments[0]}.log").open("wb") as log:
            self._processes.append(_popen(command, log))


class AckPeer(Peer):
    """Runs the bare ack server, which shows the load generator's ceiling."""

    label = "ack server"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self._port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def settings(self) -> dict[str, str]:
        return {}

    def stop(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None

    def _prepare(self) -> None:
        return

    def _spawn(self) -> None:
        command = [sys.executable, "-m", "benchmarks.ack_server", "--port", str(self._port)]
        with (self.directory / "ack_server.log").open("wb") as log:
            self._process = _popen(command, log)


def first_accepted_send(
    address: tuple[str, int],
    began: float,
    death: Callable[[], str | None],
    door: Door = OPEN,
) -> float:
    """Send until a send is accepted; return the `perf_counter` moment of that answer."""
    trouble = "never connected"
    while time.perf_counter() - began < START_LIMIT_SECONDS:
        try:
            with ControlConnection(address, door=door) as connection:
                response = connection.send(PROBE_TOPIC, 0, 16)
                if response.code == SUCCESS:
                    return time.perf_counter()
                trouble = f"code {response.code}, {response.remark}"
        except OSError as error:
            trouble = str(error)
        if (reason := death()) is not None:
            raise BenchmarkError(reason)
        time.sleep(PROBE_INTERVAL_SECONDS)
    raise BenchmarkError(
        f"{address[0]}:{address[1]} accepted no send in {START_LIMIT_SECONDS:.0f} s: {trouble}"
    )


def _wait_listening(address: tuple[str, int]) -> None:
    deadline = time.monotonic() + START_LIMIT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), ControlConnection(address):
            return
        time.sleep(0.01)
    raise BenchmarkError(f"nothing listens on {address[0]}:{address[1]}")


def _popen(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _one_line(conf: Mapping[str, str]) -> str:
    """Return the keys that say something about speed; paths, ports and names do not."""
    hidden = re.compile(r"port|path|addr|ip\d|brokername|brokerid|cluster", re.IGNORECASE)
    return " ".join(f"{key}={value}" for key, value in conf.items() if not hidden.search(key))


def _package_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _commit() -> str:
    """Return the short commit of the checkout, with `+` when files differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "no commit"
