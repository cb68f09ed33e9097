"""Both sources on what the Java broker serves and writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker
from tests.spark.rows import by_place, pulled_rows, rows_of
from tests.spark.sink_query import run_to_end
from tests.waits import SEND_WAIT_MS, eventually

from cometmq import Message, MessageQueue, Producer
from cometmq.testing.cluster import Cluster

pytestmark = pytest.mark.interop

TOPIC = "orders"
COUNT = 500


def fill(namesrv: str) -> None:
    with Producer("filler", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in range(COUNT):
            producer.send(
                Message(
                    TOPIC,
                    b"body %d " % at * (at % 9 * 100 + 1),
                    tags=("paid", "open")[at % 2],
                    keys=[f"O-{at}"],
                    properties={"amount": str(at), "color": "röt"},
                ),
            )


def test_the_rows_of_a_java_broker_and_of_its_store(spark: Any, tmp_path: Path) -> None:
    need("java", "mvn")
    store = tmp_path / "store"
    with (
        Cluster(brokers=0) as cluster,
        JavaBroker(
            cluster.namesrv,
            store=store,
            commit_log_file_bytes=256 * 1024,
            conf={"enablePropertyFilter": "true"},
        ) as broker,
    ):
        fill(cluster.namesrv)
        queues = [MessageQueue(TOPIC, broker.broker_name, queue_id) for queue_id in range(4)]
        # A Java broker puts messages into their queues behind the answers.
        rows = eventually(
            lambda: by_place(
                [row for queue in queues for row in pulled_rows(cluster.namesrv, queue)]
            ),
            lambda rows: len(rows) >= COUNT,
        )
        assert len(rows) == COUNT
        live = spark.read.format("rocketmq").option("namesrv", cluster.namesrv)
        live = live.option("subscribe", TOPIC).option("minPartitions", "7")
        assert by_place(rows_of(live.load().toArrow())) == rows
        tagged = live.option("tags", "paid").load()
        assert by_place(rows_of(tagged.toArrow())) == [r for r in rows if r["tags"] == "paid"]
        sql = live.options(sqlFilter="amount > 400").load()
        with pytest.raises(Exception, match="not several"):
            sql.count()
        stream = (
            spark.readStream.format("rocketmq")
            .option("namesrv", cluster.namesrv)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("maxMessagesPerTrigger", "200")
            .load()
        )
        writer = stream.writeStream.format("parquet").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_to_end(lambda: writer.start(str(tmp_path / "output")))
        streamed = spark.read.parquet(str(tmp_path / "output")).select(*rows[0])
        assert by_place(rows_of(streamed.toArrow())) == rows
        with pytest.raises(Exception, match="is being written by a broker that runs"):
            spark.read.format("rocketmq-store").load(str(store)).count()
        broker.stop()
    reader = spark.read.format("rocketmq-store").option("brokerName", broker.broker_name)
    by_queue = reader.option("checkCrc", "true").option("subscribe", TOPIC).load(str(store))
    assert by_place(rows_of(by_queue.toArrow())) == rows
    log = spark.read.format("rocketmq-store").option("brokerName", broker.broker_name)
    everything = rows_of(log.option("minPartitions", "5").load(str(store)).toArrow())
    assert by_place([row for row in everything if row["topic"] == TOPIC]) == rows
