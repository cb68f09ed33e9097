"""Both sources on a cluster of Spark's own, and with what runs there being killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.spark.standalone import Job, StandaloneCluster

from cometmq import Message, Producer
from cometmq.testing.cluster import Cluster

COUNT = 3000
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
    with Producer("filler", namesrv=brokers.namesrv) as producer:
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


def test_a_store_is_read_by_all_workers(
    spark_cluster: StandaloneCluster, brokers: Cluster, sent: list[Place], directory: Path
) -> None:
    brokers.call("stop_broker", 0)
    job = Job(
        spark_cluster,
        "rocketmq-store",
        path=directory / "stores" / "broker-a",
        subscribe="orders",
        minPartitions=8,
    )
    assert job.places() == sent
