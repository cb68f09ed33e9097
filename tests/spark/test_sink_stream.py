"""The sink `rocketmq` of a stream: what brokers and drivers that go away do to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.sink_query import SinkQuery
from tests.spark.sink_rows import by_key, make_topic, messages_of, wait_for

from cometmq import Message, Producer
from cometmq.testing.cluster import Cluster

KEYS = 5

# A JVM takes its time to start, on a busy machine more than anything here.
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def fill(namesrv: str, topic: str, count: int, first: int = 0) -> None:
    with Producer("filler", namesrv=namesrv) as producer:
        for at in range(first, first + count):
            key = f"K-{at % KEYS}"
            message = Message(topic, b"%d" % at, keys=[key], properties={"__SHARDINGKEY": key})
            producer.send(message, key=key)


def rows_of_keys(namesrv: str, topic: str) -> dict[str, list[str]]:
    return by_key(messages_of(namesrv, topic), lambda m: m.properties.get("__SHARDINGKEY"))


def expected(count: int) -> dict[str, list[str]]:
    return {f"K-{at}": [str(n) for n in range(at, count, KEYS)] for at in range(KEYS)}


def stream(spark: Any, namesrv: str, source: str, target: str, directory: Path, **o: Any) -> Any:
    reader = spark.readStream.format("rocketmq").option("namesrv", namesrv)
    rows = reader.option("startingOffsets", "earliest").option("subscribe", source).load()
    rows = rows.where("size(keys) > 0").drop("delay_level", "deliver_time")
    writer = rows.writeStream.format("rocketmq")
    writer = writer.option("namesrv", namesrv).option("topic", target)
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    writer = writer.options(**{name: str(value) for name, value in o.items()})
    return writer.trigger(availableNow=True).start()


def test_at_least_once_while_the_broker_restarts(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    count = 2000
    for topic in ("from-a", "to-a"):
        make_topic(cluster.namesrv, topic)
    fill(cluster.namesrv, "from-a", count)
    query = stream(
        spark, cluster.namesrv, "from-a", "to-a", tmp_path, batchBytes=200, sendsInFlight=4
    )
    try:
        wait_for(cluster.namesrv, "to-a", 100, lambda: not query.isActive)
        cluster.call("restart_broker", 0)
        assert query.awaitTermination(600)
        assert query.exception() is None
    finally:
        query.stop()
    first = {
        key: list(dict.fromkeys(b)) for key, b in rows_of_keys(cluster.namesrv, "to-a").items()
    }
    assert first == expected(count)


def test_exactly_once_when_spark_runs_a_batch_again(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    for topic in ("from-e", "to-e"):
        make_topic(cluster.namesrv, topic)
    options = {"delivery": "exactly-once"}
    for count in (300, 400):
        fill(
            cluster.namesrv,
            "from-e",
            100 if count == 400 else 300,
            count - 100 if count == 400 else 0,
        )
        query = stream(spark, cluster.namesrv, "from-e", "to-e", tmp_path, **options)
        assert query.awaitTermination(600)
        assert query.exception() is None
        assert rows_of_keys(cluster.namesrv, "to-e") == expected(count)
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    # As if the driver had died behind the sink's commit and in front of its own.
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink()
    query = stream(spark, cluster.namesrv, "from-e", "to-e", tmp_path, **options)
    assert query.awaitTermination(600)
    assert rows_of_keys(cluster.namesrv, "to-e") == expected(400)
    (tmp_path / "other").mkdir()
    outbox = str(tmp_path / "checkpoint" / "rocketmq-sink")
    foreign = stream(
        spark, cluster.namesrv, "from-e", "to-e", tmp_path / "other", outbox=outbox, **options
    )
    with pytest.raises(Exception, match=r"(?s)holds batch .* give each query an outbox of its own"):
        foreign.awaitTermination(600)
    assert rows_of_keys(cluster.namesrv, "to-e") == expected(400)


def test_exactly_once_when_the_driver_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    count = 1500
    for topic in ("from-k", "to-k"):
        make_topic(cluster.namesrv, topic)
    fill(cluster.namesrv, "from-k", count)
    query = SinkQuery(
        tmp_path,
        source={"namesrv": cluster.namesrv, "subscribe": "from-k"},
        sink={
            "namesrv": cluster.namesrv,
            "topic": "to-k",
            "delivery": "exactly-once",
            "batchBytes": 200,
            "sendsInFlight": 1,
        },
    )
    try:
        query.start()
        wait_for(cluster.namesrv, "to-k", 50, lambda: not query.running)
        query.kill()
        decided = list(query.outbox.glob("batch-*/decided.json"))
        assert decided, query.log()[-4000:]
        query.run()
    finally:
        query.kill()
    assert rows_of_keys(cluster.namesrv, "to-k") == expected(count)
