"""Spark's own standalone cluster, as the pyspark package brings it: a master and some workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import pyspark
from tests.spark.processes import QUICK_JAVA, QUICK_QUERIES, Process, below
from tests.waits import JVM_WAIT_S

HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
STOP_S = 20.0


class StandaloneCluster:
    """`workers` of one core each, ready when it is entered, with ports that Spark chooses; `directory`
    keeps logs and work.
    """

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self._directory = directory
        self._count = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start(
                "master.Master", "master", "--host", HOST, "--port", "0", "--webui-port", "0"
            )
            self.url = self._wait_for("master", rf"Starting Spark master at (spark://{HOST}:\d+)\s")
            self._wait_for("master", "I have been elected leader")
            for at in range(self._count):
                self._start(
                    "worker.Worker", f"worker-{at}", "--host", HOST, "--cores", "1",
                    "--memory", "1g", "--webui-port", "0",
                    "--work-dir", str(self._directory / f"work-{at}"), self.url,
                )  # fmt: skip
            for at in range(self._count):
                self._wait_for(f"worker-{at}", "Successfully registered with master")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def victims(self, words: str) -> list[int]:
        """Processes below the workers whose command line has `words`."""
        return [one.pid for one in self._below() if words in one.line]

    def forked(self, words: str) -> list[int]:
        """Those among them that were forked from one like them: the daemon's Python workers."""
        ours = self._below()
        daemons = {one.pid for one in ours if words in one.line}
        return [one.pid for one in ours if words in one.line and one.parent in daemons]

    def _below(self) -> list[Process]:
        return below({process.pid for process in self._processes})

    def _start(self, name: str, log: str, *arguments: str) -> None:
        environment = {
            **os.environ,
            "SPARK_HOME": str(HOME),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
            "SPARK_LOCAL_IP": HOST,
            "PYSPARK_PYTHON": sys.executable,
            # However often executors are killed.
            "SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1",
        }
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
        with (self._directory / f"{log}.log").open("wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [*command, *arguments],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                )
            )

    def _wait_for(self, log: str, pattern: str) -> str:
        """The last group of the pattern, or all of it, as the log has it."""
        deadline = time.monotonic() + JVM_WAIT_S
        path = self._directory / f"{log}.log"
        while (found := re.search(pattern, path.read_text(errors="replace"))) is None:
            assert time.monotonic() < deadline, path.read_text(errors="replace")[-2000:]
            time.sleep(0.1)
        return found[found.lastindex or 0]


class Job:
    """A program of its own that reads a source on the cluster; `places` are what it found."""

    def __init__(self, cluster: StandaloneCluster, source: str, **options: Any) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
        arguments = [cluster.url, source, json.dumps({k: str(v) for k, v in options.items()})]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.standalone", *arguments],
            stdout=subprocess.PIPE,
            env=environment,
            cwd=ROOT,
        )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def places(self) -> list[tuple[Any, ...]]:
        output, _ = self.process.communicate()
        assert self.process.returncode == 0
        return sorted(map(tuple, json.loads(output.splitlines()[-1])))

    def stop(self) -> None:
        if self.running:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(STOP_S)


def slowly(rows: Any) -> Any:
    """Leaves time for kills."""
    time.sleep(0.2)
    return rows


def main(master: str, source: str, options: str) -> None:
    from cometmq.spark.session import spark_session

    spark = spark_session(
        master,
        config={
            "spark.ui.enabled": "false",
            "spark.driver.host": HOST,
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": QUICK_JAVA,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK_JAVA,
            "spark.task.maxFailures": "100",
            "spark.excludeOnFailure.enabled": "false",
            **QUICK_QUERIES,
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.read.format(source).options(**json.loads(options)).load()
    chosen = frame.select("topic", "queue_id", "queue_offset")
    rows = chosen.rdd.mapPartitions(slowly).collect()
    spark.stop()
    print(json.dumps([list(row) for row in rows]))  # noqa: T201 - the answer


if __name__ == "__main__":
    main(*sys.argv[1:])
