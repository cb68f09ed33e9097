"""A streaming query from topic to topic in a process of its own, to be killed and started again.

    query = SinkQuery(tmp_path, source={"namesrv": …, "subscribe": "a"}, sink={"namesrv": …, "topic": "b"})
    query.start(); query.kill(); query.run()

`sink` takes all options of the sink; the checkpoint, and in it the outbox, lie in the directory. The
query stops by itself when it has read what there was when it started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
# Words in the command lines of Spark's Python processes, for `processes`: those of tasks, the one that
# makes a batch's writer, and the one that commits or aborts it.
TASKS = "pyspark.daemon pyspark.worker"
PLANNING = "write_into_data_source"
COMMITTING = "python_streaming_sink_runner"
JVM = "org.apache.spark.deploy.SparkSubmit"
# How often a query is started that Spark gives up because it is starved; see `is_starved`.
TRIES = 5


def is_starved(failure: str) -> bool:
    """Whether a Python worker came up later than Spark waits for it: 10 s, which cannot be set."""
    return "failed to connect back" in failure or "CANNOT_OPEN_SOCKET" in failure


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
                [sys.executable, __file__, json.dumps(self._given)],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def run(self, timeout_s: float = 600) -> None:
        """From start to end. Fails with the end of the query's log unless that is a good one."""
        for _ in range(TRIES):
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
        victims = [self._process.pid, *self.processes()]
        for victim in victims:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        self._process = None

    def processes(self, words: str = "") -> list[int]:
        """The processes below the driver whose command line has `words`."""
        assert self._process is not None, "started"
        parents: dict[int, int] = {}
        lines: dict[int, str] = {}
        for path in Path("/proc").iterdir():
            if path.name.isdecimal():
                try:
                    fields = (path / "stat").read_text().rpartition(")")[2].split()
                    lines[int(path.name)] = (path / "cmdline").read_text().replace("\0", " ")
                except OSError:
                    continue
                parents[int(path.name)] = int(fields[1])

        def is_below(process: int) -> bool:
            while process in parents:
                process = parents[process]
                if self._process is not None and process == self._process.pid:
                    return True
            return False

        return [process for process, line in lines.items() if words in line and is_below(process)]

    def log(self) -> str:
        return self._log.read_text(errors="replace")


def main(text: str) -> None:
    from pyspark.sql import SparkSession

    given = json.loads(text)
    config = {
        "spark.ui.enabled": "false",
        "spark.driver.host": HOST,
        "spark.driver.memory": "512m",
        # As a JVM that lives for a moment starts fastest.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "2",
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
    rows = rows.drop("delay_level", "deliver_time")  # exactly-once refuses delays
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
