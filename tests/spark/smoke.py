"""Use sources and sink with whichever PySpark is first on the path, classic or Connect.

Run by tests/spark/test_versions.py, each time by a Python of another PySpark. Every line that it
prints is one thing that was tried and held; a fault ends it.

    python -m tests.spark.smoke DIRECTORY [connect]
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.spark.processes import PLAIN_QUICK_JAVA
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import AdminClient, Message, Producer
from cometmq.spark.jvm import jar_path, with_jar
from cometmq.spark.lag import LagListener
from cometmq.spark.versions import HAS_ADMISSION, HAS_FILTERS
from cometmq.testing.cluster import Cluster
from cometmq.testing.ports import HeldPort

# After so long, all threads say where they are.
HANGS_S = JVM_WAIT_S

COUNT = 60
BODIES = [b"%d" % at for at in range(COUNT)]
SENT = Counter(BODIES)


# One task at a time takes half of the Python workers, whose start is most of what a read here costs.
MASTER = "local"
SETTINGS = {
    "spark.log.level": "WARN",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "700m",
    "spark.driver.extraJavaOptions": PLAIN_QUICK_JAVA,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": str(HAS_FILTERS).lower(),
    "spark.python.authenticate.socketTimeout": "600s",
}


@contextlib.contextmanager
def session(connect: bool) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    with contextlib.ExitStack() as stack:
        if connect:
            spark = builder.remote(stack.enter_context(connect_server())).getOrCreate()
        else:
            jars = with_jar(None)
            settings = {**SETTINGS, **({"spark.jars": jars} if jars else {})}
            spark = builder.master(MASTER).config(map=settings).getOrCreate()
        stack.callback(spark.stop)
        yield spark


@contextlib.contextmanager
def connect_server() -> Iterator[str]:
    """Run a server of Spark Connect in a process of its own; return its address."""
    import pyspark

    with HeldPort() as held:
        settings = {**SETTINGS, "spark.connect.grpc.binding.port": str(held.port)}
        home = Path(pyspark.__file__).parent
        program = [str(home / "bin" / "spark-submit"), "--master", MASTER]
        for name, value in settings.items():
            program += ["--conf", f"{name}={value}"]
        program += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        # It becomes the JVM, so this stops all of it. Until it listens, the client tries again.
        environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        server = subprocess.Popen([*program, "spark-internal"], env=environment)
        try:
            yield f"sc://127.0.0.1:{held.port}"
        finally:
            server.kill()
            server.wait()


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
        assert self.bodies("orders") == SENT
        chosen = "tags = 't1' and queue_id in (0, 1) and queue_offset >= 0"
        assert self.topic("orders").filter(chosen).count() == COUNT // 2

    def sink(self) -> None:
        rows = self.topic("orders").select("body", "tags", "keys", "properties")
        writer = rows.write.format("rocketmq").mode("append").option("namesrv", self.namesrv)
        writer.option("topic", "copied").save()
        once = rows.write.format("rocketmq").mode("append").option("namesrv", self.namesrv)
        once = once.option("topic", "copied-once").option("delivery", "exactly-once")
        once = once.option("outbox", str(self.directory / "outbox")).option("transactionId", "one")
        once.save()
        once.save()
        said = refusal(lambda: writer.option("topic", "copied").saveAsTable("copied_table"))
        assert "nothing is sent, because saveAsTable" in said, said
        assert not self.spark.catalog.tableExists("copied_table")
        assert self.bodies("copied") == self.bodies("copied-once") == SENT

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
            assert self.bodies(topic) == SENT, topic

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
            .option("maxMessagesPerTrigger", 40)
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
            # PySpark's thread for the listeners of Connect would keep the program from ending, even
            # after a fault; it is a daemon if the thread is that adds the first of them.
            adding = threading.Thread(
                target=self.spark.streams.addListener, args=(lag,), daemon=True
            )
            adding.start()
            adding.join()
            run()
            eventually(lambda: any(done <= set(lines) for lines in lag.seen))
            rows = self.spark.read.parquet(str(self.directory / "streamed")).select("body")
            assert Counter(bytes(row.body) for row in rows.collect()) == SENT
        else:
            # PySpark gives a stream's source 10 s to start, whatever is set. A busy machine takes longer.
            said = eventually(
                lambda: refusal(run), lambda said: "failed to connect back" not in said
            )
            assert "streams of the source rocketmq need PySpark 4.2 or newer" in said, said

    def words(self) -> None:
        said = refusal(
            # Connect asks the server about a source no sooner than something of it is needed.
            lambda: self.spark.read.format("rocketmq").option("subscrib", "orders").load().schema
        )
        assert "did you mean subscribe" in said, said

    def store(self, path: str) -> None:
        assert len(self.stored(path, "auto")) == COUNT

    def store_in_the_jvm(self, path: str) -> None:
        """Read all columns by the jar, which was compiled against the newest PySpark."""
        rows = self.stored(path, "jvm")
        assert rows == self.stored(path, "python")
        assert len(rows) == COUNT

    def stored(self, path: str, reader: str) -> list[str]:
        rows = (
            self.spark.read.format("rocketmq-store")
            .options(subscribe="orders", columns="all", reader=reader)
            .load(path)
            .filter("queue_id >= 0")
        )
        return sorted(map(str, rows.collect()))


def main(directory: Path, connect: bool) -> None:
    import pyspark

    with session(connect) as spark:
        try_all(spark, directory, connect)
    tell(f"all held with PySpark {pyspark.__version__}")


def try_all(spark: Any, directory: Path, connect: bool) -> None:
    with Cluster(directory=directory / "cluster") as cluster:
        with AdminClient(namesrv=cluster.namesrv) as admin:
            for topic in ("orders", "copied", "copied-once", "least", "exact"):
                queues = 2 if topic == "orders" else 1
                admin.topics.create(topic, read_queues=queues, write_queues=queues)
        with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
            for at, body in enumerate(BODIES):
                producer.send(Message("orders", body, tags=f"t{at % 2}", keys=[f"k{at}"]))
        smoke = Smoke(spark, cluster.namesrv, directory)
        for tried in (smoke.batch, smoke.sink, smoke.stream_sink, smoke.stream, smoke.words):
            tried()
            tell(f"held: {tried.__name__}")
        (path,) = (place.parent for place in (directory / "cluster").rglob("commitlog"))
    stored = smoke.store_in_the_jvm if not connect and jar_path() else smoke.store
    stored(str(path))
    tell(f"held: {stored.__name__}")


if __name__ == "__main__":
    faulthandler.dump_traceback_later(HANGS_S)
    main(Path(sys.argv[1]), "connect" in sys.argv[2:])
