"""Use sources and sink with whichever PySpark is first on the path, classic or Connect.

Run by tests/spark/test_versions.py, each time by a Python of another PySpark. Every line that it
prints is one thing that was tried and held; a fault ends it.

    python -m tests.spark.smoke DIRECTORY [connect]
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.spark.processes import PLAIN_QUICK_JAVA
from tests.waits import SEND_WAIT_MS, eventually

from cometmq import AdminClient, Message, Producer
from cometmq.spark.jvm import jar_path, with_jar
from cometmq.spark.lag import LagListener
from cometmq.spark.versions import HAS_ADMISSION, HAS_FILTERS
from cometmq.testing.cluster import Cluster

COUNT = 60


def session(connect: bool) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    builder = builder.remote("local[2]") if connect else builder.master("local[2]")
    if not connect and (jars := with_jar(None)):
        builder = builder.config("spark.jars", jars)
    return (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.extraJavaOptions", PLAIN_QUICK_JAVA)
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", str(HAS_FILTERS).lower())
        .config("spark.python.authenticate.socketTimeout", "600s")
        .getOrCreate()
    )


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def refusal(tried: Any) -> str:
    try:
        tried()
    except Exception as error:  # noqa: BLE001 - Spark's own, of several kinds, with ours inside
        return str(error)
    raise AssertionError("it was not refused")


class Watched(LagListener):
    """Keeps what Prometheus would have read after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[str]] = []

    def onQueryProgress(self, event: Any) -> None:
        super().onQueryProgress(event)
        self.seen.append(self.lines().splitlines())


class Smoke:
    def __init__(self, spark: Any, namesrv: str, directory: Path) -> None:
        self.spark = spark
        self.namesrv = namesrv
        self.directory = directory

    def topic(self, topic: str) -> Any:
        return (
            self.spark.read.format("rocketmq")
            .option("namesrv", self.namesrv)
            .option("subscribe", topic)
            .load()
        )

    def bodies(self, topic: str) -> Counter[bytes]:
        return Counter(bytes(row.body) for row in self.topic(topic).select("body").collect())

    def batch(self) -> None:
        rows = self.topic("orders")
        assert rows.count() == COUNT
        chosen = rows.filter("tags = 't1' and queue_id in (0, 1)")
        assert chosen.count() == COUNT // 2
        (place,) = rows.filter("queue_id = 0").selectExpr("min(queue_offset)").collect()
        assert place[0] == 0

    def sink(self) -> None:
        rows = self.topic("orders").select("body", "tags", "keys", "properties")
        writer = rows.write.format("rocketmq").mode("append").option("namesrv", self.namesrv)
        writer.option("topic", "copied").save()
        once = rows.write.format("rocketmq").mode("append").option("namesrv", self.namesrv)
        once = once.option("topic", "copied-once").option("delivery", "exactly-once")
        once = once.option("outbox", str(self.directory / "outbox")).option("transactionId", "one")
        once.save()
        once.save()
        assert self.bodies("copied") == self.bodies("copied-once") == self.bodies("orders")

    def stream_sink(self) -> None:
        """Send by the sink what Spark's own sources stream, at least and exactly once."""
        kept = str(self.directory / "kept")
        self.topic("orders").select("body", "tags").write.parquet(kept)
        streamed = self.spark.readStream.schema("body binary, tags string").parquet(kept)
        for topic, delivery in (("least", "at-least-once"), ("exact", "exactly-once")):
            query = (
                streamed.writeStream.format("rocketmq")
                .option("namesrv", self.namesrv)
                .option("topic", topic)
                .option("delivery", delivery)
                .option("checkpointLocation", str(self.directory / topic))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            assert self.bodies(topic) == self.bodies("orders"), topic

    def stream(self) -> None:
        done = {
            'cometmq_spark_lag_messages{broker="broker-a",query="smoke",'
            f'queue="{queue_id}",topic="orders"}} 0.0'
            for queue_id in range(2)
        }
        stream = (
            self.spark.readStream.format("rocketmq")
            .option("namesrv", self.namesrv)
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .option("maxMessagesPerTrigger", 25)
            .load()
        )

        def run() -> None:
            query = (
                stream.writeStream.format("parquet")
                .queryName("smoke")
                .option("checkpointLocation", str(self.directory / "streamed-checkpoint"))
                .trigger(availableNow=True)
                .start(str(self.directory / "streamed"))
            )
            query.awaitTermination()

        if HAS_ADMISSION:
            lag = Watched()
            self.spark.streams.addListener(lag)
            run()
            eventually(lambda: any(done <= set(lines) for lines in lag.seen))
            rows = self.spark.read.parquet(str(self.directory / "streamed")).select("body")
            assert Counter(bytes(row.body) for row in rows.collect()) == self.bodies("orders")
        else:
            said = refusal(run)
            assert "streams of the source rocketmq need PySpark 4.2 or newer" in said, said

    def words(self) -> None:
        said = refusal(
            lambda: self.spark.read.format("rocketmq").option("subscrib", "orders").load()
        )
        assert "did you mean subscribe" in said, said

    def store(self, path: str) -> None:
        reader = self.spark.read.format("rocketmq-store").option("subscribe", "orders")
        assert reader.load(path).filter("queue_id >= 0").count() == COUNT
        in_python = reader.option("reader", "python").load(path)
        assert in_python.filter("queue_id >= 0").count() == COUNT

    def store_in_the_jvm(self, path: str) -> None:
        """Read all columns by the jar, which was compiled against the newest PySpark."""
        reader = self.spark.read.format("rocketmq-store").options(subscribe="orders", columns="all")
        texts = [
            sorted(map(str, reader.option("reader", name).load(path).collect()))
            for name in ("jvm", "python")
        ]
        assert texts[0] == texts[1]
        assert len(texts[0]) == COUNT


def main(directory: Path, connect: bool) -> None:
    import pyspark

    spark = session(connect)
    with Cluster(directory=directory / "cluster") as cluster:
        with AdminClient(namesrv=cluster.namesrv) as admin:
            for topic in ("orders", "copied", "copied-once", "least", "exact"):
                queues = 2 if topic == "orders" else 1
                admin.topics.create(topic, read_queues=queues, write_queues=queues)
        with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
            for at in range(COUNT):
                producer.send(Message("orders", b"%d" % at, tags=f"t{at % 2}", keys=[f"k{at}"]))
        smoke = Smoke(spark, cluster.namesrv, directory)
        for tried in (smoke.batch, smoke.sink, smoke.stream_sink, smoke.stream, smoke.words):
            tried()
            tell(f"held: {tried.__name__}")
        (path,) = (place.parent for place in (directory / "cluster").rglob("commitlog"))
    smoke.store(str(path))
    tell("held: store")
    if not connect and jar_path():
        smoke.store_in_the_jvm(str(path))
        tell("held: store_in_the_jvm")
    tell(f"all held with PySpark {pyspark.__version__}")
    with contextlib.suppress(Exception):  # a Connect server may be gone before it answers
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), "connect" in sys.argv[2:])
    # With Connect, PySpark's thread for listeners would keep the program from ending, and 4.3's
    # removeListener waits for it for ever.
    sys.stdout.flush()
    os._exit(0)
