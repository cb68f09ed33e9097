"""The streams of both sources on Spark itself: restarts, progress and its metrics."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.waits import SEND_WAIT_MS, eventually

from cometmq import Message, Producer
from cometmq.spark.jvm import reads_in_jvm
from cometmq.spark.lag import LagListener
from cometmq.testing.cluster import Cluster

PROPERTIES = {"mappedFileSizeCommitLog": str(64 * 1024)}


def send(cluster: Cluster, start: int, end: int) -> None:
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in range(start, end):
            producer.send(Message(("orders", "bills")[at % 2], b"%d " % at * 50, keys=[str(at)]))


def run(frame: Any, directory: Path, **trigger: Any) -> Any:
    """A query that writes files, exactly once, from its checkpoint on."""
    writer = frame.writeStream.format("parquet").option(
        "checkpointLocation", str(directory / "done")
    )
    return writer.trigger(**trigger).start(str(directory / "rows"))


def keys(spark: Any, directory: Path) -> Counter[int]:
    rows = spark.read.parquet(str(directory / "rows")).select("keys").collect()
    return Counter(int(row.keys[0]) for row in rows)


def metrics_of(query: Any) -> list[dict[str, str]]:
    return [dict(progress.sources[0].metrics) for progress in query.recentProgress]


def test_a_store_is_followed_over_restarts_while_its_broker_writes(
    spark: Any, tmp_path: Path
) -> None:
    lag = LagListener()
    spark.streams.addListener(lag)
    try:
        with Cluster(directory=tmp_path / "stores", properties=PROPERTIES) as cluster:
            send(cluster, 0, 300)
            frame = (
                spark.readStream.format("rocketmq-store")
                .option("subscribe", "orders,bills")
                .option("maxBytesPerTrigger", 64 * 1024)
                .load(str(tmp_path / "stores" / "broker-a"))
            )
            first = run(frame, tmp_path, availableNow=True)
            assert first.awaitTermination(300)
            assert keys(spark, tmp_path) == Counter(range(300))
            behind = [int(found["bytesBehindLatest"]) for found in metrics_of(first) if found]
            if reads_in_jvm(spark):
                assert behind[0] > behind[-2] > 0
                assert behind[-1] < 8192
            second = run(frame, tmp_path, processingTime="0 seconds")
            try:
                send(cluster, 300, 400)
                eventually(lambda: len(keys(spark, tmp_path)) == 400, wait_s=120)
                position = second.lastProgress.sources[0].endOffset
                eventually(lambda: [found.position for found in lag.stores()])
            finally:
                second.stop()
            assert "commitLog" in position
        # The store of a broker that was stopped.
        third = run(frame, tmp_path, availableNow=True)
        assert third.awaitTermination(300)
        assert keys(spark, tmp_path) == Counter(range(400))
    finally:
        spark.streams.removeListener(lag)


def test_the_progress_of_a_topics_stream_has_the_lag_by_topic(spark: Any, tmp_path: Path) -> None:
    if not reads_in_jvm(spark):
        pytest.skip("metrics in the progress need the jar, and there is no JDK to make it")
    with Cluster() as cluster:
        send(cluster, 0, 60)
        frame = (
            spark.readStream.format("rocketmq")
            .options(namesrv=cluster.namesrv, subscribe="orders,bills")
            .options(startingOffsets="earliest", maxMessagesPerTrigger=20)
            .load()
        )
        query = run(frame, tmp_path, availableNow=True)
        assert query.awaitTermination(300)
        assert keys(spark, tmp_path) == Counter(range(60))
        found = metrics_of(query)
        assert [one["messagesBehindLatest"] for one in found] == ["60", "40", "20", "0"]
        first = found[0]
        assert (first["messagesBehindLatest.orders"], first["messagesBehindLatest.bills"]) == (
            "30",
            "30",
        )
        assert float(first["avgOffsetsBehindLatest"]) == 60 / 8
        ends = json.loads(query.recentProgress[0].sources[0].latestOffset)
        of_queues = [end for topic in ends.values() for end in topic["broker-a"].values()]
        assert int(first["minOffsetsBehindLatest"]) == min(of_queues)
        assert int(first["maxOffsetsBehindLatest"]) == max(of_queues)
        # The same source reads batches and writes, as without the jar.
        rows = (
            spark.read.format("rocketmq")
            .options(namesrv=cluster.namesrv, subscribe="orders")
            .load()
        )
        assert rows.count() == 30
        out = rows.selectExpr("body").write.format("rocketmq").mode("append")
        out.options(namesrv=cluster.namesrv, topic="bills").save()
        bills = (
            spark.read.format("rocketmq").options(namesrv=cluster.namesrv, subscribe="bills").load()
        )
        assert bills.count() == 60
