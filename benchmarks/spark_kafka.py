"""Measure Spark's sources and sink beside its Kafka connector: one session, the same messages, by turns.

    make bench-spark-kafka                                  # the whole run; rewrites its table in README.md
    make bench-spark-kafka ARGS="--rows 50000 --rounds 1 --no-write"

Needs Java and Maven: Kafka and the connector are the published artifacts. The connector is not made for
the newest PySpark, so `.venv-spark-kafka` has an older one, put in front of the path.

Our broker is filled, a copy of its store is kept, and Spark writes the same messages into the same
partitions of Kafka. Then every row of the table has its turn in each round, of every second round in
the opposite order. The rows read are thrown away (format `noop`); a core's rate is rows by the processor
time of the JVM and its Python processes, planning included, without the brokers', which has a column of
its own. The first rounds only warm up. Before them and after the last one all readings are checked, by
counts and sums of checksums of what was sent, and the topics that were written to are checked at the end.
The exit status is 1 where something was missing.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.sql import functions as F
from rich.console import Console

from benchmarks import report
from benchmarks.counted_python import counted_python, processor_seconds
from benchmarks.frames import BenchmarkError
from benchmarks.kafka import SPARK_VERSION, Kafka, connector_jars
from benchmarks.peers import CometPeer
from benchmarks.report import Cells
from benchmarks.room import check_room
from cometmq import AdminClient, Message, Producer
from cometmq.spark.jvm import jar_path
from cometmq.spark.session import spark_session

TOPIC: Final = "bench"
SUNK: Final = "bench-sunk"
QUEUES: Final = 4
BATCH: Final = 100
TAG: Final = "paid"
DEFAULT, TWO, COUNT = "default columns", "two columns", "`count()`"
STREAM, SINK = "stream, default columns", "sink"
LIVE, KAFKA, PARQUET = "`rocketmq`", "`kafka`", "Parquet"
BEGIN = "<!-- spark-kafka:begin (written by `python -m benchmarks.spark_kafka`) -->"
END = "<!-- spark-kafka:end -->"
_HEAP_MIB = 1024
# Other measurements on this machine may stop all these processes meanwhile.
_PATIENCE_MS = 3_600_000
# A message with its properties, in a log and in a record of Kafka's.
_MORE_BYTES = 400


@dataclass(frozen=True, slots=True)
class Sums:
    """The messages that were sent, or that a reading found: their number, and sums of their checksums."""

    rows: int
    bodies: int
    keys_and_bodies: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A piece of work that has its turn in each round. `found` says how many rows and checksums there are, not timed."""

    what: str
    who: str
    run: Callable[[], None]
    found: Callable[[], str] | None = None
    expected: str = ""


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one turn of one round. Processor time is in microseconds of a row."""

    rows_per_second: float
    rows_per_core: float
    broker_cpu_us: float | None


class Bench:
    """Makes all turns: readings, streams and writes of one session, of two brokers and of files."""

    def __init__(
        self, spark: Any, directory: Path, ours: CometPeer, kafka: Kafka, sent: Sums
    ) -> None:
        self._spark = spark
        self._directory = directory
        self._namesrv = ":".join(map(str, ours.name_server))
        self._kafka = kafka.address
        self._sent = sent
        self._streams = 0
        self._jvm: int = spark.sparkContext._gateway.proc.pid  # noqa: SLF001 - there is no other way to it
        self._brokers = {LIVE: ours.pid, KAFKA: kafka.pid}

    def fill(self) -> None:
        """Write what our broker has into Kafka, partition by partition, and into files."""
        rows = self._live("topic,queue_id,keys,tags,body").load()
        self._to_kafka(self._as_records(rows, F.col("queue_id").alias("partition")), TOPIC)
        self._live("default").load().write.parquet(self._path("default"))
        self._as_records(rows).write.parquet(self._path("records"))

    @property
    def store(self) -> str:
        return self._path("store")

    def turns(self) -> list[Turn]:
        live = {"default": self._live("default").load(), "two": self._live("body,tags").load()}
        readings = {LIVE: (live["default"], live["two"])}
        for reader in ("python", "jvm") if jar_path() else ("python",):
            place = "Python" if reader == "python" else "the JVM"
            source = self._spark.read.format("rocketmq-store").options(
                subscribe=TOPIC, reader=reader
            )
            # The two share their options.
            default = source.option("columns", "default").load(self.store)
            two = source.option("columns", "body,tags").load(self.store)
            readings[f"`rocketmq-store` in {place}"] = (default, two)
        records = self._records(self._spark.read, TOPIC).load()
        readings[KAFKA] = (records, records.select("value", "key"))
        files = self._spark.read.parquet(self._path("default"))
        readings[PARQUET] = (files, files.select("body", "tags"))
        headed = self._records(self._spark.read, TOPIC).option("includeHeaders", True).load()
        turns = [self._reading(DEFAULT, who, frames[0]) for who, frames in readings.items()]
        turns.insert(-1, self._reading(DEFAULT, f"{KAFKA} with headers", headed))
        turns += [self._reading(TWO, who, frames[1]) for who, frames in readings.items()]
        turns += [self._counting(who, frames[0]) for who, frames in readings.items()]
        turns += [self._streaming(LIVE), self._streaming(KAFKA)]
        messages = files.select("body", "tags", "keys")
        turns.append(Turn(SINK, LIVE, lambda: self._to_ours(messages)))
        records = self._spark.read.parquet(self._path("records"))
        turns.append(Turn(SINK, KAFKA, lambda: self._to_kafka(records, SUNK)))
        return turns

    def measure(self, turn: Turn) -> Round:
        broker = self._brokers.get(turn.who.split(" ")[0])
        served = 0.0 if broker is None else processor_seconds(broker)
        began, used = time.perf_counter(), processor_seconds(self._jvm)
        turn.run()
        wall, core = time.perf_counter() - began, processor_seconds(self._jvm) - used
        serving = None if broker is None else processor_seconds(broker) - served
        rows = self._sent.rows
        return Round(rows / wall, rows / core, None if serving is None else serving / rows * 1e6)

    def missing(self, turns: Sequence[Turn]) -> list[str]:
        """Read all again, and return what did not come out as it was sent."""
        return [
            f"{turn.what}, {turn.who}: {found} instead of {turn.expected}"
            for turn in turns
            if turn.found is not None and (found := turn.found()) != turn.expected
        ]

    def missing_of_sinks(self, writes: int) -> list[str]:
        """Return which of the two sinks' topics does not hold what was written to it so many times."""
        frames = {
            LIVE: self._live("default", SUNK).load(),
            KAFKA: self._records(self._spark.read, SUNK).load(),
        }
        sent = self._sent
        expected = _reported(sent.rows * writes, sent.keys_and_bodies * writes)
        found = {who: self._sums(frame) for who, frame in frames.items()}
        return [
            f"{SINK}, {who}: {sums} instead of {expected}"
            for who, sums in found.items()
            if sums != expected
        ]

    def _path(self, name: str) -> str:
        return str(self._directory / name)

    def _live(self, columns: str, topic: str = TOPIC) -> Any:
        reader = self._ours(self._spark.read)
        return reader.options(subscribe=topic, columns=columns)

    def _ours(self, reader_or_writer: Any) -> Any:
        here = reader_or_writer.format("rocketmq").option("namesrv", self._namesrv)
        return here.option("timeoutMs", _PATIENCE_MS)

    def _theirs(self, reader_or_writer: Any) -> Any:
        here = reader_or_writer.format("kafka").option("kafka.bootstrap.servers", self._kafka)
        here = here.option("kafka.delivery.timeout.ms", _PATIENCE_MS)
        return here.option("kafkaConsumer.pollTimeoutMs", _PATIENCE_MS)

    def _records(self, reader: Any, topic: str) -> Any:
        return self._theirs(reader).options(subscribe=topic, startingOffsets="earliest")

    def _as_records(self, rows: Any, *more: Any) -> Any:
        """Return messages as Kafka's sink takes them: the key, the body, and the tag as a header."""
        header = F.struct(F.lit("tags").alias("key"), F.encode("tags", "utf-8").alias("value"))
        key = F.encode(F.col("keys")[0], "utf-8").alias("key")
        return rows.select(
            key, F.col("body").alias("value"), F.array(header).alias("headers"), *more
        )

    def _to_kafka(self, rows: Any, topic: str) -> None:
        self._theirs(rows.write).option("topic", topic).save()

    def _to_ours(self, rows: Any) -> None:
        self._ours(rows.write).mode("append").option("topic", SUNK).save()

    def _sums(self, frame: Any, of_key: bool = True) -> str:
        is_kafka = "value" in frame.columns
        key = F.col("key") if is_kafka else F.encode(F.col("keys")[0], "utf-8")
        body = F.col("value" if is_kafka else "body")
        checksum = F.crc32(F.concat(key, body) if of_key else body)
        row = frame.agg(F.count(F.lit(1)), F.sum(checksum)).collect()[0]
        return _reported(row[0], row[1])

    def _reading(self, what: str, who: str, frame: Any) -> Turn:
        of_key = what == DEFAULT
        sent = self._sent
        return Turn(
            what,
            who,
            lambda: frame.write.format("noop").mode("overwrite").save(),
            lambda: self._sums(frame, of_key),
            _reported(sent.rows, sent.keys_and_bodies if of_key else sent.bodies),
        )

    def _counting(self, who: str, frame: Any) -> Turn:
        def count() -> None:
            if (rows := frame.count()) != self._sent.rows:
                raise BenchmarkError(f"{who} counts {rows} rows of {self._sent.rows}")

        return Turn(COUNT, who, count)

    def _streaming(self, who: str) -> Turn:
        def stream() -> Any:
            if who == KAFKA:
                return self._records(self._spark.readStream, TOPIC).load()
            reader = self._ours(self._spark.readStream)
            return reader.options(subscribe=TOPIC, startingOffsets="earliest").load()

        def run() -> None:
            rows = self._run_stream(stream().writeStream.format("noop"))
            if rows != self._sent.rows:
                raise BenchmarkError(f"a stream of {who} had {rows} rows of {self._sent.rows}")

        def found() -> str:
            rows = stream()
            body = F.col("value" if who == KAFKA else "body")
            sums = rows.agg(F.count(F.lit(1)), F.sum(F.crc32(body)))
            name = f"found_{self._streams}"
            self._run_stream(
                sums.writeStream.format("memory").queryName(name).outputMode("complete")
            )
            row = self._spark.table(name).collect()[0]
            return _reported(row[0], row[1])

        return Turn(STREAM, who, run, found, _reported(self._sent.rows, self._sent.bodies))

    def _run_stream(self, writer: Any) -> int:
        """Run a stream until it has all that is there now; return how many rows it had."""
        self._streams += 1
        checkpoint = self._path(f"checkpoint-{self._streams}")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress["numInputRows"] for progress in query.recentProgress)


def _reported(rows: int, checksum: int) -> str:
    return f"{rows:,} rows with checksum {checksum}"


def fill(namesrv: str, rows: int, body_bytes: int) -> Sums:
    """Send the messages, each with a body of its own, to a topic of `QUEUES` queues; make the sink's."""
    with AdminClient(namesrv=namesrv) as admin:
        for topic in (TOPIC, SUNK):
            admin.topics.create(topic, read_queues=QUEUES, write_queues=QUEUES)
    filling = os.urandom(body_bytes // 2).hex().encode()
    bodies = keys_and_bodies = 0
    with Producer("filler", namesrv=namesrv) as producer:
        for start in range(0, rows, BATCH):
            messages = []
            for at in range(start, min(rows, start + BATCH)):
                key, body = f"O-{at}", b"%012d" % at + filling[12:]
                bodies += zlib.crc32(body)
                keys_and_bodies += zlib.crc32(key.encode() + body)
                messages.append(Message(TOPIC, body, tags=TAG, keys=[key]))
            producer.send_batch(messages)
    return Sums(rows, bodies, keys_and_bodies)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    if pyspark.__version__ != SPARK_VERSION:
        console.print(
            f"the connector is PySpark {SPARK_VERSION}'s and this is {pyspark.__version__}: "
            "run it by `make bench-spark-kafka`"
        )
        return 1
    rounds: dict[str, dict[str, list[Round]]] = {}
    settings = {**report.machine(), "rows": f"{options.rows:,}"}
    try:
        with tempfile.TemporaryDirectory(
            prefix="bench-spark-kafka-", dir=options.directory
        ) as directory:
            missing = run(Path(directory), options, console, rounds, settings)
    except BenchmarkError as error:
        console.print(f"[red]benchmark failed:[/red] {error}")
        return 1
    tables = [cells(rounds), [["setting", "value"], *map(list, settings.items())]]
    report.show_tables(tables, console)
    for one in missing:
        console.print(f"[red]{one}[/red]")
    if not (options.no_write or missing):
        report.write_rounds("spark-kafka", (BEGIN, END), rounds, settings, tables)
    return 1 if missing else 0


def run(
    directory: Path,
    options: argparse.Namespace,
    console: Console,
    rounds: dict[str, dict[str, list[Round]]],
    settings: dict[str, str],
) -> list[str]:
    """Measure into `rounds` and `settings`; return what was missing."""
    message_bytes = options.body_bytes + _MORE_BYTES
    # Filled twice, copied, kept as Parquet twice, and written by both sinks in each round.
    check_room(
        directory, options.rows * message_bytes * (5 + 2 * (options.rounds + options.warm_up))
    )
    broker = CometPeer(directory / "ours", conf={"flushDiskType": "ASYNC_FLUSH"})
    with broker as ours, Kafka(directory / "kafka", partitions=QUEUES, heap_mib=_HEAP_MIB) as kafka:
        sent = fill(":".join(map(str, ours.name_server)), options.rows, options.body_bytes)
        # A store that a broker runs on cannot be read, so what is read is a copy.
        ours.stop()
        copied = ["cp", "-r", "--sparse=always", str(directory / "ours" / "store")]
        subprocess.run([*copied, str(directory / "store")], check=True)
        ours.start()
        session = spark(directory, options.cores)
        try:
            bench = Bench(session, directory, ours, kafka, sent)
            bench.fill()
            console.print("both brokers are filled")
            turns = bench.turns()
            missing = bench.missing(turns)
            console.print("all readings were looked at")
            for number in range(-options.warm_up, options.rounds):
                for turn in turns if number % 2 == 0 else reversed(turns):
                    found = bench.measure(turn)
                    console.print(
                        f"round {number + 1} {turn.what}, {turn.who}: "
                        f"{found.rows_per_core:,.0f} rows/s per core, load {os.getloadavg()[0]:.1f}"
                    )
                    if number >= 0:
                        rounds.setdefault(turn.what, {}).setdefault(turn.who, []).append(found)
            missing += bench.missing(turns)
            missing += bench.missing_of_sinks(options.rounds + options.warm_up)
            settings |= dict(reported_settings(options, session, ours, kafka))
        finally:
            session.stop()
    # In the order of the table, whoever came first.
    ordered = {what: rounds[what] for what in (DEFAULT, TWO, COUNT, STREAM, SINK)}
    rounds.clear()
    rounds |= ordered
    return missing


def spark(directory: Path, cores: int) -> Any:
    os.environ["PYSPARK_PYTHON"] = counted_python(directory)
    os.environ.pop("SPARK_HOME", None)
    config = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{_HEAP_MIB}m",
        "spark.jars": ",".join(connector_jars()),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        # On a machine that others use, too, Python workers come up slowly, and heartbeats are missed.
        "spark.python.authenticate.socketTimeout": "600s",
        "spark.network.timeout": f"{_PATIENCE_MS}ms",
        "spark.executor.heartbeatInterval": "600s",
    }
    session = spark_session(f"local[{cores}]", config=config)
    session.sparkContext.setLogLevel("ERROR")
    return session


def reported_settings(
    options: argparse.Namespace, session: Any, ours: CometPeer, kafka: Kafka
) -> Iterator[tuple[str, str]]:
    yield "load average after", f"{os.getloadavg()[0]:.2f}"
    yield "bodies", f"{options.body_bytes:,} bytes, each another, with a key and a tag (a header)"
    yield "queues, partitions", str(QUEUES)
    yield "rounds", f"{options.rounds}, behind {options.warm_up} to warm up"
    master = session.sparkContext.master
    yield "Spark", f"{session.version}, `{master}`, -Xmx{_HEAP_MIB}m, -XX:+UseParallelGC"
    yield "Spark's Kafka connector", f"{SPARK_VERSION}, no options but topic, servers and timeouts"
    yield "Python", sys.version.split()[0]
    runtime = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    yield "Java", runtime.stderr.splitlines()[0]
    for peer, about in ((kafka.label, kafka.settings()), (ours.label, ours.settings())):
        for name, value in about.items():
            yield f"{peer} {name}", value


def cells(rounds: dict[str, dict[str, list[Round]]]) -> Cells:
    """Return a heading, then a line for each turn; `times` is beside Kafka's connector."""
    table = [[
        "", "source", "rows/s per core", "lowest–highest round", "times Kafka's", "rows/s",
        "lowest–highest round", "its broker's CPU, µs/row",
    ]]  # fmt: skip
    for what, by_who in rounds.items():
        base = statistics.median(one.rows_per_core for one in by_who[KAFKA])
        for who, each in by_who.items():
            cores = [one.rows_per_core for one in each]
            walls = [one.rows_per_second for one in each]
            served = [one.broker_cpu_us for one in each if one.broker_cpu_us is not None]
            core = statistics.median(cores)
            table.append(
                [
                    what,
                    who,
                    f"{core:,.0f}",
                    f"{min(cores):,.0f}–{max(cores):,.0f}",
                    f"{core / base:.2f}",
                    f"{statistics.median(walls):,.0f}",
                    f"{min(walls):,.0f}–{max(walls):,.0f}",
                    f"{statistics.median(served):.1f}" if served else "",
                ]
            )
    return table


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_kafka", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--body-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before those that count")
    parser.add_argument("--cores", type=int, default=1, help="of Spark's local master")
    parser.add_argument("--directory", type=Path, help="where the stores lie; default: temporary")
    parser.add_argument("--no-write", action="store_true", help="only print")
    return parser.parse_args(arguments)


def end(_number: int, _frame: object) -> None:
    """End as by an exception, so that servers and files go, too."""
    sys.exit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    os.environ.pop("NAMESRV_ADDR", None)
    sys.exit(main())
