"""The sink `rocketmq` of a stream: what brokers and drivers that go away do to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.spark.sink_query import SinkQuery, is_starved, run_to_end, tries
from tests.spark.sink_rows import by_key, make_topic, messages_of, wait_for
from tests.waits import SEND_WAIT_MS

from cometmq import Message, Producer
from cometmq.testing.cluster import Cluster

KEYS = 5

# A JVM takes its time to start, on a busy machine more than anything here.
pytestmark = pytest.mark.timeout(1500)


def fill(namesrv: str, topic: str, count: int, first: int = 0) -> None:
    with Producer("filler", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in range(first, first + count):
            key = f"K-{at % KEYS}"
            message = Message(topic, b"%d" % at, keys=[key], properties={"__SHARDINGKEY": key})
            producer.send(message, key=key)


def rows_of_keys(namesrv: str, topic: str) -> dict[str, list[str]]:
    return by_key(messages_of(namesrv, topic), lambda m: m.properties.get("__SHARDINGKEY"))


def expected(count: int) -> dict[str, list[str]]:
    return {f"K-{at}": [str(n) for n in range(at, count, KEYS)] for at in range(KEYS)}


class Stream:
    """From one topic to another, in batches of what is there."""

    def __init__(
        self, spark: Any, namesrv: str, source: str, target: str, checkpoint: Path, **options: Any
    ) -> None:
        reader = spark.readStream.format("rocketmq").option("namesrv", namesrv)
        rows = reader.option("startingOffsets", "earliest").option("subscribe", source).load()
        rows = rows.where("size(keys) > 0")
        writer = rows.writeStream.format("rocketmq").option("namesrv", namesrv)
        writer = writer.option("topic", target).option("checkpointLocation", str(checkpoint))
        writer = writer.options(**{name: str(value) for name, value in options.items()})
        self._writer = writer.trigger(availableNow=True)

    def run(self, meanwhile: Callable[[Any], None] = lambda _: None) -> None:
        """To its end; `meanwhile` is called with the running query."""
        run_to_end(self._writer.start, meanwhile)


def test_at_least_once_while_the_broker_restarts(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    count = 2000
    for topic in ("from-a", "to-a"):
        make_topic(cluster.namesrv, topic)
    fill(cluster.namesrv, "from-a", count)
    options = {"batchBytes": 200, "sendsInFlight": 4}
    checkpoint = tmp_path / "checkpoint"
    stream = Stream(spark, cluster.namesrv, "from-a", "to-a", checkpoint, **options)

    def restart(query: Any) -> None:
        wait_for(cluster.namesrv, "to-a", 100, lambda: not query.isActive)
        cluster.call("restart_broker", 0)

    stream.run(restart)
    found = rows_of_keys(cluster.namesrv, "to-a")
    # What is doubled comes again; what came first came in order.
    assert {key: list(dict.fromkeys(bodies)) for key, bodies in found.items()} == expected(count)


def test_exactly_once_when_spark_runs_a_batch_again(
    spark: Any, cluster: Cluster, tmp_path: Path
) -> None:
    for topic in ("from-e", "to-e"):
        make_topic(cluster.namesrv, topic)
    places = (cluster.namesrv, "from-e", "to-e")
    options = {"delivery": "exactly-once"}
    checkpoint = tmp_path / "checkpoint"
    stream = Stream(spark, *places, checkpoint, **options)
    for first, count in ((0, 300), (300, 400)):
        fill(cluster.namesrv, "from-e", count - first, first)
        stream.run()
        assert rows_of_keys(cluster.namesrv, "to-e") == expected(count)
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    # As if the driver had died behind the sink's commit and in front of its own.
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink()
    stream.run()
    assert rows_of_keys(cluster.namesrv, "to-e") == expected(400)
    outbox = str(checkpoint / "rocketmq-sink")
    foreign = Stream(spark, *places, tmp_path / "other", outbox=outbox, **options)
    with pytest.raises(Exception, match=r"(?s)holds batch .* give each query an outbox of its own"):
        foreign.run()
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
        for _ in tries():
            query.start()
            wait_for(cluster.namesrv, "to-k", 50, lambda: not query.running)
            query.kill()
            if list(query.outbox.glob("batch-*/decided.json")):
                break
            assert is_starved(query.log()), query.log()[-4000:]
        query.run()
    finally:
        query.kill()
    assert rows_of_keys(cluster.namesrv, "to-k") == expected(count)
