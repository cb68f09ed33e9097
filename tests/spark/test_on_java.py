"""Both sources on what a Java broker of 5.3 serves and writes, which stores the ids of batches."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import RawClient, batch_body, properties, send_ext
from tests.interop.conftest import need
from tests.interop.peers import Java53Broker
from tests.spark.rows import by_place, pulled_rows, rows_of
from tests.spark.sink_query import run_to_end
from tests.waits import SEND_WAIT_MS, eventually

from cometmq import Message, MessageQueue, Producer
from cometmq.testing.cluster import Cluster

pytestmark = pytest.mark.interop

TOPIC = "orders"
BATCHED = "batched"
COUNT = 500
OWN_IDS = [f"{at:032X}" for at in range(20)]
BATCH_IDS = ["B" * 32, "C" * 32]


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


def send_batches(address: str) -> None:
    """Send what Java's client sends as two batches: their ids are in the requests."""
    with RawClient(address) as client:
        for number, batch_id in enumerate(BATCH_IDS):
            body = batch_body(
                (one.encode(), properties({"KEYS": "k", "UNIQ_KEY": one, "WAIT": "true"}).encode())
                for one in OWN_IDS[number * 10 : number * 10 + 10]
            )
            text = properties({"WAIT": "true", "UNIQ_KEY": batch_id})
            ext = send_ext(BATCHED, letters=True, batch="true", properties=text)
            answer = eventually(
                partial(client.ask, 320, ext, body), lambda answer: answer.code == 0
            )
            assert len(answer.ext["msgId"].split(",")) == 10


def check_batches(frame: Any) -> None:
    """All messages of a batch had its id, and so most were dropped as doubles."""
    rows = rows_of(frame.dropDuplicates(["msg_id"]).orderBy("queue_offset").toArrow())
    assert [row["msg_id"] for row in rows] == OWN_IDS == [row["body"].decode() for row in rows]
    assert [row["batch_msg_id"] for row in rows] == [one for one in BATCH_IDS for _ in range(10)]
    assert {("UNIQ_KEY", row["msg_id"]) in row["properties"] for row in rows} == {True}


def test_the_rows_of_a_java_broker_and_of_its_store(spark: Any, tmp_path: Path) -> None:
    need("java", "mvn")
    store = tmp_path / "store"
    with (
        Cluster(brokers=0) as cluster,
        Java53Broker(
            cluster.namesrv,
            store=store,
            commit_log_file_bytes=256 * 1024,
            conf={"enablePropertyFilter": "true"},
        ) as broker,
    ):
        # Before the others: when those are in their queues, these are, too.
        send_batches(broker.address)
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
        live = live.options(subscribe=TOPIC, minPartitions="7", columns="all")
        assert by_place(rows_of(live.load().toArrow())) == rows
        tagged = live.option("tags", "paid").load()
        assert by_place(rows_of(tagged.toArrow())) == [r for r in rows if r["tags"] == "paid"]
        batched = spark.read.format("rocketmq").option("namesrv", cluster.namesrv)
        check_batches(batched.options(subscribe=BATCHED, columns="all").load())
        with pytest.raises(Exception, match="not several"):
            live.options(sqlFilter="amount > 400").load()
        stream = (
            spark.readStream.format("rocketmq")
            .option("namesrv", cluster.namesrv)
            .option("subscribe", TOPIC)
            .option("startingOffsets", "earliest")
            .option("maxMessagesPerTrigger", "200")
            .option("columns", "all")
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
    reader = spark.read.format("rocketmq-store").options(
        brokerName=broker.broker_name, columns="all"
    )
    by_queue = reader.options(checkCrc="true", subscribe=TOPIC).load(str(store))
    assert by_place(rows_of(by_queue.toArrow())) == rows
    log = spark.read.format("rocketmq-store").option("brokerName", broker.broker_name)
    log = log.options(minPartitions="5", columns="all")
    check_batches(log.load(str(store)).where(f"topic = '{BATCHED}'"))
    everything = rows_of(log.load(str(store)).toArrow())
    assert by_place([row for row in everything if row["topic"] == TOPIC]) == rows
