"""A streaming query from topic to topic in a process of its own, to be killed and started again.

    query = SinkQuery(tmp_path, source={"namesrv": …, "subscribe": "a"}, sink={"namesrv": …, "topic": "b"})
    query.start(); query.kill(); query.run()

`sink` takes all options of the sink; the checkpoint, and in it the outbox, lie in the directory. The
query stops by itself when it has read what there was when it started.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.spark.processes import QUICK_JAVA, QUICK_QUERIES, below, kill
from tests.waits import JVM_WAIT_S

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[2]


def tries() -> Iterator[int]:
    """Numbers of the starts of a query that Spark gives up because it is starved; see `is_starved`."""
    deadline = time.monotonic() + JVM_WAIT_S
    for number in itertools.count():
        if time.monotonic() > deadline:
            return
        yield number


def is_starved(failure: str) -> bool:
    """Whether a Python worker came up later than Spark waits for it: 10 s, which cannot be set."""
    return "failed to connect back" in failure or "CANNOT_OPEN_SOCKET" in failure


def run_to_end(start: Callable[[], Any], meanwhile: Callable[[Any], None] = lambda _: None) -> Any:
    """Start a query, call `meanwhile` with it and wait for its end; again when Spark gives it up
    because it is starved.
    """
    for _ in tries():
        query = start()
        try:
            meanwhile(query)
            assert query.awaitTermination(JVM_WAIT_S)
        except Exception as error:
            if not is_starved(str(error)):
                raise
        else:
            return query
        finally:
            query.stop()
    raise AssertionError("Spark's workers do not come up in time, whatever is tried")


class SinkQuery:
    """One query; `extra` are settings of Spark."""

    def __init__(
        self,
        directory: Path,
        *,
        source: dict[str, Any],
        sink: dict[str, Any],
        master: str = "local[2]",
        extra: dict[str, str] | None = None,
    ) -> None:
        self.checkpoint = directory / "checkpoint"
        self.outbox = self.checkpoint / "rocketmq-sink"
        self._log = directory / "query.log"
        self._given = {
            "master": master,
            "config": extra or {},
            "source": {name: str(value) for name, value in source.items()},
            "sink": {name: str(value) for name, value in sink.items()},
            "checkpoint": str(self.checkpoint),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.sink_query", json.dumps(self._given)],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def run(self, timeout_s: float = 600) -> None:
        """From start to end. Fails with the end of the query's log unless that is a good one."""
        for _ in tries():
            before = len(self.log()) if self._log.exists() else 0
            self.start()
            assert self._process is not None, "just started"
            try:
                code = self._process.wait(timeout_s)
            finally:
                self.kill()
            if code == 0:
                return
            failure = self.log()[before:]
            assert is_starved(failure), failure[-4000:]
        raise AssertionError("Spark's workers do not come up in time, whatever is tried")

    def kill(self) -> None:
        """kill -9 of the driver and all it has started: JVM, Python daemons, workers."""
        if self._process is None:
            return
        for victim in (self._process.pid, *self.processes()):
            kill(victim)
        self._process.wait()
        self._process = None

    def processes(self, words: str = "") -> list[int]:
        """The processes below the driver whose command line has `words`."""
        assert self._process is not None, "started"
        return [found.pid for found in below([self._process.pid]) if words in found.line]

    def log(self) -> str:
        return self._log.read_text(errors="replace")


def main(text: str) -> None:
    from pyspark.sql import SparkSession

    given = json.loads(text)
    config = {
        "spark.ui.enabled": "false",
        "spark.driver.host": HOST,
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        **QUICK_QUERIES,
        "spark.python.authenticate.socketTimeout": "600s",
        **given["config"],
    }
    builder = SparkSession.builder.master(given["master"])
    for name, value in config.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    source = spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
    rows = source.options(**given["source"]).load()
    query = (
        rows.writeStream.format("rocketmq")
        .options(**given["sink"])
        .option("checkpointLocation", given["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
