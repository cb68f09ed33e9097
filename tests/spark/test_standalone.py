"""Both sources on a cluster of Spark's own, and with what runs there being killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.spark.processes import QUICK_JAVA, QUICK_QUERIES
from tests.spark.rows import pulled_rows
from tests.spark.standalone import HOME, HOST, Job, StandaloneCluster
from tests.waits import SEND_WAIT_MS

from cometmq import Message, MessageQueue, Producer
from cometmq.testing.cluster import Cluster

COUNT = 3000
SMALL_SPARK = {
    "spark.ui.enabled": "false",
    "spark.driver.host": HOST,
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    **QUICK_QUERIES,
}
Place = tuple[str, int, int]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("standalone")


@pytest.fixture(scope="module")
def spark_cluster(directory: Path) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(directory) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def brokers(directory: Path) -> Iterator[Cluster]:
    with Cluster(directory=directory / "stores") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def sent(brokers: Cluster) -> list[Place]:
    places = []
    with Producer("filler", namesrv=brokers.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in range(COUNT):
            result = producer.send(Message("orders", b"%d" % at))
            places.append(("orders", result.queue.queue_id, result.queue_offset))
    return sorted(places)


def test_a_topic_is_read_by_all_workers(
    spark_cluster: StandaloneCluster, brokers: Cluster, sent: list[Place]
) -> None:
    job = Job(
        spark_cluster, "rocketmq", namesrv=brokers.namesrv, subscribe="orders", minPartitions=8
    )
    assert job.places() == sent


def test_kills_of_tasks_and_executors_cost_no_row_and_double_none(
    spark_cluster: StandaloneCluster, brokers: Cluster, sent: list[Place]
) -> None:
    rng = random.Random(3)
    job = Job(
        spark_cluster, "rocketmq", namesrv=brokers.namesrv, subscribe="orders", minPartitions=80
    )
    kills = 0
    try:
        while job.running and kills < 6:
            kind = rng.choice(("pyspark.daemon", "pyspark.daemon", "CoarseGrainedExecutorBackend"))
            victims = spark_cluster.victims(kind)
            if victims:
                with suppress(ProcessLookupError):  # it ended by itself
                    os.kill(rng.choice(victims), signal.SIGKILL)
                    kills += 1
            time.sleep(rng.uniform(0.3, 1.5))
        assert job.places() == sent
    finally:
        job.stop()
    assert kills


# Two drivers, and what they start.
@pytest.mark.timeout(1800)
def test_an_archive_and_its_replay_run_on_the_workers(
    spark_cluster: StandaloneCluster, brokers: Cluster, sent: list[Place], directory: Path
) -> None:
    """The first by spark-submit, which says the master, the second by a master in the file."""
    properties = "\n".join(f'"{name}" = "{value}"' for name, value in SMALL_SPARK.items())
    cluster = f'[cluster]\nnamesrv = "{brokers.namesrv}"\n[spark.config]\n{properties}\n'
    file = directory / "pipeline.toml"
    file.write_text(
        f"""{cluster}
        [archive]
        topics = ["orders"]
        path = "{directory}/archive"
        min_partitions = 8
        """
    )
    script = subprocess.run(
        [sys.executable, "-m", "cometmq", "pipeline", "--script"],
        capture_output=True,
        text=True,
        check=True,
    )
    submit = [str(HOME / "bin" / "spark-submit"), "--master", spark_cluster.url]
    before = executors(directory)
    assert run_pipeline([*submit, script.stdout.strip()], "archive", file)["holds"]
    assert {worker for worker, _ in executors(directory) - before} == {"work-0", "work-1"}

    file.write_text(
        f"""{cluster}
        [spark]
        master = "{spark_cluster.url}"
        [replay]
        archive = "{directory}/archive"
        topics = ["orders"]
        to = "orders-again"
        id = "again"
        state = "{directory}/replay-state"
        """
    )
    with Producer("filler", namesrv=brokers.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        producer.send(Message("orders-again", b"makes the topic"))
    before = executors(directory)
    assert run_pipeline([sys.executable, "-m", "cometmq", "pipeline"], "replay", file)["holds"]
    assert {worker for worker, _ in executors(directory) - before} == {"work-0", "work-1"}
    queues = [MessageQueue("orders-again", "broker-a", queue_id) for queue_id in range(4)]
    again = [row["body"] for queue in queues for row in pulled_rows(brokers.namesrv, queue)]
    replayed = sorted(body for body in again if body != b"makes the topic")
    assert replayed == sorted(b"%d" % at for at in range(COUNT))


def executors(directory: Path) -> set[tuple[str, str]]:
    """Which applications had an executor on which worker."""
    return {(path.parent.name, path.name) for path in directory.glob("work-*/app-*")}


def run_pipeline(command: list[str], name: str, file: Path) -> dict[str, Any]:
    """Its report."""
    reports = file.parent / "reports"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
    ended = subprocess.run(
        [*command, name, "-c", str(file), "--reports", str(reports)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (reports / f"{name}.html").read_text().count("<svg")
    found: dict[str, Any] = json.loads((reports / f"{name}.json").read_text())
    return found


def test_a_store_is_read_by_all_workers(
    spark_cluster: StandaloneCluster, brokers: Cluster, sent: list[Place], directory: Path
) -> None:
    brokers.call("stop_broker", 0)
    try:
        job = Job(
            spark_cluster,
            "rocketmq-store",
            path=directory / "stores" / "broker-a",
            subscribe="orders",
            minPartitions=8,
        )
        assert job.places() == sent
    finally:
        brokers.call("start_broker", 0)  # for the tests that come behind this one
