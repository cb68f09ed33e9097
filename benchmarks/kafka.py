"""Run Kafka beside our broker: one node that is broker and controller, from the published artifacts.

Maven gets its jars, and those of Spark's connector, into `.cache/` once.
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import socket
import subprocess
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.interop.peers import HOST, free_port
from tests.maven_jars import Artifact, MavenError, get_jars

from benchmarks.frames import BenchmarkError
from benchmarks.peers import START_LIMIT_SECONDS, STOP_LIMIT_SECONDS

if TYPE_CHECKING:
    from types import TracebackType

VERSION: Final = "4.1.1"
# Of the connector, and of the PySpark that it is made for.
SPARK_VERSION: Final = "4.2.0"
_CACHE: Final = Path(__file__).parents[1] / ".cache"
_JVM_FLAGS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""The options of Kafka's own bin/kafka-run-class.sh, except for the heap."""
# Jars that PySpark brings itself.
_IN_PYSPARK: Final = (
    "org.apache.hadoop:*",
    "org.scala-lang:*",
    "org.scala-lang.modules:*",
    "org.apache.spark:spark-tags_2.13",
    "org.slf4j:*",
    "org.xerial.snappy:*",
    "at.yawk.lz4:*",
    "org.lz4:*",
    "com.google.code.findbugs:*",
)


def connector_jars() -> list[str]:
    """Return the jars that a session needs for `format("kafka")`."""
    name = "spark-sql-kafka-0-10_2.13"
    return _jars(Artifact("org.apache.spark", name, SPARK_VERSION, _IN_PYSPARK))


class Kafka:
    """Keeps the server, with its files in `directory`. A context manager; use it once."""

    label = "Kafka"

    def __init__(self, directory: Path, *, partitions: int, heap_mib: int) -> None:
        self._directory = directory
        self._flags = [f"-Xms{heap_mib}m", f"-Xmx{heap_mib}m", *_JVM_FLAGS]
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port()
        controller = free_port()
        # Not named here: Kafka's own, such as that the kernel decides when to write to the disk.
        self._properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"{HOST}:{controller}",
            "listeners": f"PLAINTEXT://{HOST}:{self._port},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self._port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(directory / "data"),
            "num.partitions": str(partitions),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }

    @property
    def address(self) -> str:
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def settings(self) -> dict[str, str]:
        return {"broker": f"Apache Kafka {VERSION}", "JVM flags": " ".join(self._flags)}

    def __enter__(self) -> Self:
        jars = _jars(Artifact("org.apache.kafka", "kafka_2.13", VERSION))
        java = ["java", *self._flags, "-cp", ":".join(jars)]
        self._directory.mkdir(parents=True)
        properties = self._directory / "server.properties"
        properties.write_text(
            "".join(f"{key}={value}\n" for key, value in self._properties.items())
        )
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatted = [*java, "kafka.tools.StorageTool", "format", "--standalone", "-t", cluster]
        try:
            with (self._directory / "kafka.log").open("wb") as log:
                subprocess.run(
                    [*formatted, "-c", str(properties)], check=True, timeout=START_LIMIT_SECONDS,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip
                self._process = subprocess.Popen(
                    [*java, "kafka.Kafka", str(properties)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip
            self._wait_listening()
        except BaseException as error:
            self.stop()
            if isinstance(error, subprocess.SubprocessError):
                raise BenchmarkError(f"Kafka's directory: {error}\n{self._said()}") from error
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_listening(self) -> None:
        deadline = time.monotonic() + START_LIMIT_SECONDS
        assert self._process is not None
        while time.monotonic() < deadline:
            if (ended := self._process.poll()) is not None:
                raise BenchmarkError(f"Kafka ended with {ended}:\n{self._said()}")
            with contextlib.suppress(OSError), socket.create_connection((HOST, self._port)):
                return
            time.sleep(0.05)
        raise BenchmarkError(f"Kafka did not listen on {self.address}:\n{self._said()}")

    def _said(self) -> str:
        return (self._directory / "kafka.log").read_text(errors="replace")[-2000:]


def _jars(artifact: Artifact) -> list[str]:
    try:
        return get_jars([artifact], _CACHE / f"{artifact.name}-{artifact.version}")
    except MavenError as error:
        raise BenchmarkError(f"no jars of {artifact.name}: {error}") from error
