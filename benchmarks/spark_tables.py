"""Count rows per second and core of Spark's sources and sink, beside Parquet and a reader by rows.

    python -m benchmarks.spark_tables                # 400,000 messages of 1 KiB, three rounds
    python -m benchmarks.spark_tables --rows 50000 --rounds 1

Needs the extra `spark` and a Java for it. A broker process is filled and read live. The same rows
are written as Parquet, and from there into a second topic by the sink. Then the broker is stopped,
and three things are read: its files, the Parquet, and the same files by a source that yields
tuples. The broker's files are read by both readers of stores if `scripts/store-jar` has made the jar
of the one in the JVM, and beside it by one that checks nothing (`java/BareStore.java`). Spark runs `local[1]` and throws away what it reads (format `noop`). The processor time is
that of the JVM and all Python processes, planning included, without the broker's. The sources give
their default columns unless a line says otherwise; Parquet has all.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import DataSource, DataSourceReader

from benchmarks.bare_store import FORMAT as BARE
from benchmarks.bare_store import bare_jar
from benchmarks.counted_python import counted_python, processor_seconds
from cometmq import Message, Producer
from cometmq.protocol.messages.record import MAGIC_V1, MAGIC_V2, decode_record
from cometmq.spark.jvm import jar_path
from cometmq.spark.rows.columns import COLUMNS
from cometmq.spark.session import spark_session
from cometmq.store.reading.files import StoreFiles, map_file
from cometmq.testing.cluster import Cluster

TOPIC = "bench"
SUNK = "bench-sunk"
BATCH = 100
_FILES = {"mappedFileSizeCommitLog": str(1 << 30), "mappedFileSizeConsumeQueue": "6000000"}
_MAGICS = (MAGIC_V1, MAGIC_V2)


def serve(directory: Path, rows: int, body_bytes: int, pipe: Connection) -> None:
    """Run a broker with `rows` messages in the queues of one topic, until the pipe says stop."""
    body = os.urandom(body_bytes // 2).hex().encode()
    with Cluster(directory=directory, properties=_FILES) as cluster:
        with Producer("filler", namesrv=cluster.namesrv) as producer:
            for start in range(0, rows, BATCH):
                # A batch makes no topic, but the first message does.
                messages = [
                    Message(TOPIC, body, tags="paid", keys=[f"O-{at}"])
                    for at in range(start, min(rows, start + BATCH))
                ]
                if start == 0:
                    producer.send(messages.pop())
                producer.send_batch(messages)
            producer.send(Message(SUNK, body))
        pipe.send(cluster.namesrv)
        pipe.recv()


class RowByRow(DataSource):
    """Yields the log record by record, as tuples: what one would write without columns."""

    @classmethod
    def name(cls) -> str:
        return "row-by-row"

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

    def reader(self, schema: Any) -> RowByRowReader:  # noqa: ARG002 - Spark's signature
        return RowByRowReader(self.options["path"], self.options["topic"])


class RowByRowReader(DataSourceReader):
    def __init__(self, path: str, topic: str) -> None:
        self._path = path
        self._topic = topic

    def read(self, partition: Any) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002 - Spark's signature
        from datetime import UTC, datetime

        for file in StoreFiles(self._path).log_files():
            view = memoryview(map_file(file.path))
            at = 0
            while at < file.size and int.from_bytes(view[at + 4 : at + 8], "big") in _MAGICS:
                record = decode_record(view, at)
                at += record.total_size
                if record.topic != self._topic:
                    continue
                message = record.to_message("broker-a")
                yield (
                    message.topic,
                    message.broker_name,
                    message.queue_id,
                    message.queue_offset,
                    message.commit_log_offset,
                    message.msg_id,
                    message.offset_msg_id,
                    message.batch_msg_id,
                    list(message.keys),
                    message.tags,
                    message.body,
                    message.properties,
                    datetime.fromtimestamp(message.born_timestamp_ms / 1000, UTC),
                    datetime.fromtimestamp(message.store_timestamp_ms / 1000, UTC),
                    message.born_host,
                    message.store_host,
                    message.reconsume_times,
                    message.flag,
                    message.sys_flag,
                    message.body_crc,
                    None,
                    None,
                    message.prepared_transaction_offset,
                    None,
                    None,
                )


def thrown_away(frame: Any) -> Callable[[], None]:
    return lambda: frame.write.format("noop").mode("overwrite").save()


def measure(
    spark: Any, name: str, work: Callable[[], None], rows: int, body_bytes: int, rounds: int
) -> None:
    jvm = spark.sparkContext._gateway.proc.pid  # noqa: SLF001 - there is no other way to it
    walls, cores = [], []
    for _ in range(rounds + 1):
        began, used = time.perf_counter(), processor_seconds(jvm)
        work()
        walls.append(rows / (time.perf_counter() - began))
        cores.append(rows / (processor_seconds(jvm) - used))
    # The first round only warms the JVM up.
    wall, core = statistics.median(walls[1:]), statistics.median(cores[1:])
    print(
        f"{name:38} {wall:>11,.0f} rows/s {core:>11,.0f} rows/s per core "
        f"{core * body_bytes / 1e6:>7,.0f} MB/s per core   "
        f"(per core {min(cores[1:]):,.0f} to {max(cores[1:]):,.0f})",
        flush=True,
    )


def sink(frame: Any, namesrv: str, outbox: Path | None = None) -> Callable[[], None]:
    """Return a function that sends the rows, exactly once where there is an outbox."""

    def work() -> None:
        writer = frame.write.format("rocketmq").mode("append").options(namesrv=namesrv, topic=SUNK)
        if outbox is not None:
            writer = writer.options(
                delivery="exactly-once", outbox=str(outbox), transactionId=uuid4().hex
            )
        writer.save()

    return work


def beside_the_bare(spark: Any, path: str, show: Callable[[str, Callable[[], None]], None]) -> None:
    """Measure the reader in the JVM and one that checks nothing, by turns, since the JVM goes on compiling."""
    stored = spark.read.format("rocketmq-store").options(reader="jvm", columns="body,tags")
    for _ in range(2):
        show("the same by the log", thrown_away(stored.load(path)))
        show("a reader that checks nothing", thrown_away(spark.read.format(BARE).load(path)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows, body_bytes, rounds = options.rows, options.body_bytes, options.rounds
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="cometmq-spark-") as directory:
        stores = Path(directory) / "stores"
        server = context.Process(target=serve, args=(stores, rows, body_bytes, theirs))
        server.start()
        namesrv = ours.recv()
        config = {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            # On a machine that others use, too, Python workers come up slowly.
            "spark.python.authenticate.socketTimeout": "600s",
        }
        if jar_path():
            config["spark.jars"] = str(bare_jar(Path(directory)))
        os.environ["PYSPARK_PYTHON"] = counted_python(Path(directory))
        spark = spark_session("local[1]", config=config)
        spark.sparkContext.setLogLevel("ERROR")
        print(f"Python {sys.version.split()[0]}, Spark {spark.version}, {rows:,} rows", flush=True)
        reader = spark.read.format("rocketmq").options(namesrv=namesrv, subscribe=TOPIC)
        live = reader.options(columns="all").load()

        def show(name: str, work: Callable[[], None], rounds: int = rounds) -> None:
            measure(spark, name, work, rows, body_bytes, rounds)

        show("rocketmq", thrown_away(reader.options(columns="default").load()))
        show("rocketmq, all columns", thrown_away(live))
        parquet = str(Path(directory) / "parquet")
        live.write.parquet(parquet)
        sunk = spark.read.parquet(parquet).select("body", "tags", "keys", "properties")
        show("sink, at least once", sink(sunk, namesrv))
        outbox = Path(directory) / "outbox"
        show("sink, exactly once", sink(sunk, namesrv, outbox))
        ours.send("stop")
        server.join()
        path = str(stores / "broker-a")
        for reader in ("python", "jvm") if jar_path() else ("python",):
            name = f"rocketmq-store in {'Python' if reader == 'python' else 'the JVM'}"

            def stored(columns: str, reader: str = reader) -> Any:
                source = spark.read.format("rocketmq-store").option("subscribe", TOPIC)
                return source.options(reader=reader, columns=columns).load(path)

            show(name, thrown_away(stored("default")))
            show(f"{name}, all columns", thrown_away(stored("all")))
            show(f"{name}, two columns", thrown_away(stored("tags,body")))
        if jar_path():
            beside_the_bare(spark, path, show)
        show("Parquet", thrown_away(spark.read.parquet(parquet)))
        show(
            "Parquet, two columns", thrown_away(spark.read.parquet(parquet).select("tags", "body"))
        )
        spark.dataSource.register(RowByRow)
        slow = spark.read.format("row-by-row").option("topic", TOPIC).load(path)
        show("row by row", thrown_away(slow), rounds=1)
        spark.stop()


if __name__ == "__main__":
    main()
