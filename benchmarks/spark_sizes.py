"""Measure whether Spark's work takes more memory with more messages, queues and micro-batches.

    python -m benchmarks.spark_sizes messages 1000000 10000000   # stores of so many, read and archived
    python -m benchmarks.spark_sizes queues 10000                # as many queues, of 20 messages each
    python -m benchmarks.spark_sizes tasks 100                   # what a task costs before its rows
    python -m benchmarks.spark_sizes batches 1000                # micro-batches of one stream
    python -m benchmarks.spark_sizes pipelines 1000000           # archive and audit, several times in a JVM
    python -m benchmarks.spark_sizes rounds 100                  # of an audit that goes on
    python -m benchmarks.spark_sizes archives 1000               # batches of an archive that goes on
    python -m benchmarks.spark_sizes compaction 1000000          # many small files into few large ones

Needs the extra `spark` and a Java for it. Stores are written here, record after record of 200 bytes, as
a broker would leave them. Each line says the time, the processor time of the JVM and its Python
processes, and the most memory: of the JVM, what its heap holds after a collection, of the largest Python
process and of all of them together, and of the driver's Python what no file backs; and how much of the processor time the JVM's compilers, garbage
collectors and executors took, as far as their threads are still there.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.counted_python import counted_python, processor_seconds, stats_below
from benchmarks.frames import BROKER_NAME
from benchmarks.peers import CometPeer
from benchmarks.spark_tables import thrown_away
from cometmq import AdminClient, Message, Producer
from cometmq.model.queue import MessageQueue
from cometmq.pipelines import archive, audit, replay
from cometmq.pipelines.configuration import ClusterConfig
from cometmq.pipelines.context import Context
from cometmq.pipelines.progress import Progress
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.record import MAGIC_BLANK, encode_record
from cometmq.protocol.messages.record_layout import HEAD
from cometmq.spark.jvm import jar_path
from cometmq.spark.session import spark_session
from cometmq.store.reading.units import UNIT_DTYPE
from cometmq.testing.cluster import Cluster

FILE_BYTES = 1 << 28
QUEUE_BYTES = 6_000_000
QUEUES_OF_A_TOPIC = 1000
# Three hours, so that an archive has directories to choose from.
_HOURS_MS = 3 * 3600 * 1000
_BODY_BYTES = 32
_TAG = b"a"
_TARGET = "bench-again"
_FILES = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(QUEUE_BYTES),
    "brokerIP1": "127.0.0.1",
}
# The disk of this machine may be fuller than a broker allows: that is not measured here.
_ON_A_FULL_DISK = {"diskSpaceCleanForciblyRatio": "97", "diskSpaceWarningLevelRatio": "98"}
# By the beginnings of their names, as the kernel has them.
_THREADS = {
    "C1 Comp": "compilers",
    "C2 Comp": "compilers",
    "GC Thread": "collectors",
    "G1 ": "collectors",
    "VM Thread": "collectors",
    "Executor task": "executors",
}
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MEGABYTE = 1 << 20
_HEX = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)


def topic_of(at: int) -> str:
    return f"bench-{at:03d}"


def in_hex(numbers: Any) -> Any:
    """Return the 16 hexadecimal digits of each number."""
    digits = _HEX[numbers.astype(">i8").view(np.uint8)].view(np.uint8)
    return digits.reshape(len(numbers), 16)


def write_store(
    root: Path,
    messages: int,
    queues: int,
    body_bytes: int = _BODY_BYTES,
    *,
    scrambled: bool = False,
    java_batches: int = 0,
) -> list[str]:
    """Write a store of messages that went to its queues in turn; return the topics.

    scrambled: bodies are random bytes, which nothing makes smaller. Else all are alike.
    java_batches: this many neighbours in a queue are a batch that a Java broker stored: each message also has
        the batch's id (docs/internals/message-ids.md). 0: no batches.
    """
    bodies = np.random.default_rng(1)
    host = pack_host("127.0.0.1", 10911)
    key, batch_key = b"0" * 32, b"1" * 32
    of_batch = b"\x02UNIQ_KEY\x01" + batch_key if java_batches else b""
    template = encode_record(
        topic=topic_of(0).encode(), body=b"x" * body_bytes, properties=b"UNIQ_KEY\x01" + key + b"\x02TAGS\x01" + _TAG + of_batch,
        queue_id=0, queue_offset=0, physical_offset=0, sys_flag=0, born_timestamp=0, born_host=host,
        store_timestamp=0, store_host=host,
    )  # fmt: skip
    size = len(template)
    key_at, topic_at = template.index(key), template.index(topic_of(0).encode())
    body_at = template.index(b"x" * body_bytes)
    per_file = (FILE_BYTES - HEAD.size) // size
    now_ms = int(time.time() * 1000) - _HOURS_MS
    (root / "commitlog").mkdir(parents=True)
    places = np.zeros(messages, np.int64)
    for base in range(0, messages, per_file):
        log_offset = base // per_file * FILE_BYTES
        with (root / "commitlog" / f"{log_offset:020d}").open("wb") as file:
            for start in range(base, min(messages, base + per_file), 100_000):
                end = min(messages, base + per_file, start + 100_000)
                at = np.arange(start, end)
                places[start:end] = log_offset + (at - base) * size
                rows = np.tile(np.frombuffer(template, np.uint8), (end - start, 1))
                queue = at % queues
                times = now_ms + at * _HOURS_MS // messages
                for place, values, kind in (
                    (12, queue % QUEUES_OF_A_TOPIC, ">i4"), (20, at // queues, ">i8"),
                    (28, places[start:end], ">i8"), (40, times, ">i8"), (56, times, ">i8"),
                ):  # fmt: skip
                    data = values.astype(kind).view(np.uint8).reshape(len(at), -1)
                    rows[:, place : place + data.shape[1]] = data
                rows[:, key_at + 16 : key_at + 32] = in_hex(at)
                if java_batches:
                    batch = at // queues // java_batches * queues + queue
                    batch_at = template.index(batch_key) + 16
                    rows[:, batch_at : batch_at + 16] = in_hex(batch)
                for digit in range(3):
                    number = queue // QUEUES_OF_A_TOPIC // 10 ** (2 - digit) % 10
                    rows[:, topic_at + 6 + digit] = ord("0") + number
                if scrambled:
                    random = bodies.integers(0, 256, (end - start, body_bytes), np.uint8)
                    rows[:, body_at : body_at + body_bytes] = random
                file.write(rows.tobytes())
            used = file.tell()
            file.truncate(FILE_BYTES)
            if messages > base + per_file:
                file.seek(used)
                file.write(HEAD.pack(FILE_BYTES - used, MAGIC_BLANK))
    for number in range(queues):
        units = np.zeros(len(places[number::queues]), UNIT_DTYPE)
        units["physical_offset"] = places[number::queues]
        units["size"], units["tags_code"] = size, _TAG[0]
        topic = topic_of(number // QUEUES_OF_A_TOPIC)
        directory = root / "consumequeue" / topic / str(number % QUEUES_OF_A_TOPIC)
        directory.mkdir(parents=True)
        for first in range(0, len(units), QUEUE_BYTES // UNIT_DTYPE.itemsize):
            offset = first * UNIT_DTYPE.itemsize
            with (directory / f"{offset:020d}").open("wb") as file:
                units[first : first + QUEUE_BYTES // UNIT_DTYPE.itemsize].tofile(file)
                file.truncate(QUEUE_BYTES)
    return [topic_of(at) for at in range(-(-queues // QUEUES_OF_A_TOPIC))]


def made(directory: Path, topics: list[str], queues: int) -> None:
    """Have a broker make topics, and leave a directory in which a store can be written for it."""
    with (
        Cluster(directory=directory, properties=_FILES) as cluster,
        AdminClient(namesrv=cluster.namesrv) as admin,
    ):
        for topic in topics:
            admin.topics.create(topic, read_queues=queues, write_queues=queues)
    root = directory / "broker-a"
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("checkpoint", "abort"):
        (root / name).unlink(missing_ok=True)


class Memory:
    """Watches the memory of a JVM and of the Python processes below it."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self.jvm = spark.sparkContext._gateway.proc.pid  # noqa: SLF001 - there is no other way to it
        self._most = [0, 0, 0, 0]
        self._stopped = threading.Event()
        self._objects: Counter[str] = Counter()

    def heap(self) -> int:
        """Return what the heap holds after a collection."""
        gc.collect()  # what Python still names in the JVM stays there
        runtime = self._spark._jvm.java.lang.Runtime.getRuntime()  # noqa: SLF001 - as above
        self._spark._jvm.java.lang.System.gc()  # noqa: SLF001 - as above
        return int(runtime.totalMemory() - runtime.freeMemory())

    def processes(self) -> dict[int, int]:
        """Return the resident bytes of the JVM and all below it."""
        return {
            process: int(fields[21]) * _PAGE for process, fields in stats_below(self.jvm).items()
        }

    def threads(self) -> dict[str, float]:
        """Return the processor seconds of the JVM's compilers, collectors and executors so far."""
        seconds = dict.fromkeys(_THREADS.values(), 0.0)
        for path in Path(f"/proc/{self.jvm}/task").iterdir():
            try:
                name, _, rest = (path / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            for prefix, kind in _THREADS.items():
                if name.startswith(prefix):
                    used = sum(map(int, rest.split()[11:13]))
                    seconds[kind] += used / os.sysconf("SC_CLK_TCK")
        return seconds

    def note(self, done: int, what: str, found: str) -> None:
        """Print what JVM and driver hold, and which objects have become more since the last time."""
        heap = self.heap()
        before, self._objects = self._objects, Counter(type(o).__name__ for o in gc.get_objects())
        more = (self._objects - before).most_common(5) if before else []
        own, files = resident()
        sizes = sorted((size // _MEGABYTE for size in self.processes().values()), reverse=True)
        print(
            f"after {done:6,} {what}: heap {heap / _MEGABYTE:.1f} MB; driver's own "
            f"{own / _MEGABYTE:.2f} MB, files {files / _MEGABYTE:.2f} MB, "
            f"{threading.active_count()} threads, {len(list(Path('/proc/self/fd').iterdir()))} "
            f"descriptors, {self._objects.total():,} objects "
            f"({', '.join(f'{name} +{n}' for name, n in more)}); JVM and workers {sizes} MB; {found}",
            flush=True,
        )

    def _watch(self) -> None:
        while not self._stopped.wait(0.25):
            found = self.processes()
            jvm = found.pop(self.jvm, 0)
            own, _ = resident()
            now = (jvm, max(found.values(), default=0), sum(found.values()), own)
            self._most = [max(pair) for pair in zip(self._most, now, strict=True)]

    def show(self, name: str, work: Callable[[], Any], count: int) -> float:
        """Do the work, print what it took for each of `count`, and return the microseconds."""
        self._most = [0, 0, 0, 0]
        self._stopped.clear()
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        began, used = time.perf_counter(), processor_seconds(self.jvm) + time.process_time()
        threads = self.threads()
        try:
            work()
        finally:
            self._stopped.set()
            watcher.join()
        took = time.perf_counter() - began
        cpu = processor_seconds(self.jvm) + time.process_time() - used
        by_thread = ", ".join(
            f"{kind} {(now - threads[kind]) / max(1, count) * 1e6:.1f}"
            for kind, now in self.threads().items()
        )
        jvm, largest, together, own = (value // _MEGABYTE for value in self._most)
        print(
            f"{name:44} {took:8.1f} s  {cpu:8.1f} s cpu  {cpu / max(1, count) * 1e6:7.1f} µs each   "
            f"JVM {jvm:5} MB, heap {self.heap() // _MEGABYTE:4} MB; "
            f"Python {largest:4} MB, all {together:5} MB; driver's own {own:4} MB; "
            f"µs of the JVM's {by_thread}",
            flush=True,
        )
        return cpu / max(1, count) * 1e6


class Stages:
    """Prints the time that the tasks of Spark's stages took."""

    def __init__(self, spark: Any) -> None:
        self._sc = spark.sparkContext
        self._reported = -1

    def show(self, count: int) -> None:
        """Print the tasks' processor time for each of `count`, of each stage since the last call that
        took a microsecond of it.
        """
        self._sc._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - there is no other way to it
        no_quantiles = self._sc._gateway.new_array(self._sc._jvm.double, 0)  # noqa: SLF001 - as above
        store = self._sc._jsc.sc().statusStore()  # noqa: SLF001 - as above
        found = store.stageList(None, False, False, no_quantiles, None)
        stages = [found.apply(at) for at in range(found.size())]
        new = [stage for stage in stages if stage.stageId() > self._reported]
        for stage in sorted(new, key=lambda one: one.stageId()):
            each = stage.executorCpuTime() / 1e3 / max(1, count)
            if each >= 1:
                print(f"    {each:5.1f} µs each in {stage.numTasks()} tasks of: {stage.name()}")
            self._reported = max(self._reported, stage.stageId())
        sys.stdout.flush()


def session(java_options: str = "") -> Any:
    """Start Spark. `java_options` take the place of those that a session of ours has by itself."""
    config = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        # Spark remembers its work, by default 1,000 jobs, stages and queries. With these numbers its memory of
        # them is full before the first marks, and anything that grows from there on grows for good.
        "spark.ui.retainedJobs": "40",
        "spark.ui.retainedStages": "40",
        "spark.ui.retainedTasks": "400",
        "spark.sql.ui.retainedExecutions": "40",
        # On a machine that others use, too, Python workers come up slowly.
        "spark.python.authenticate.socketTimeout": "600s",
    }
    if java_options:
        config["spark.driver.extraJavaOptions"] = java_options
    spark = spark_session("local[2]", config=config)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def readers() -> tuple[str, ...]:
    return ("jvm", "python") if jar_path() else ("python",)


def messages(directory: Path, counts: list[int], *, reads: bool, pipelines: bool) -> None:
    for count in counts:
        one_store(directory / f"{count}", count, reads=reads, pipelines=pipelines)


def one_store(directory: Path, count: int, *, reads: bool, pipelines: bool) -> None:
    spark = session()
    memory = Memory(spark)
    root = directory / "store"
    (topic,) = write_store(root, count, 8)
    for reader in readers() if reads else ():
        source = spark.read.format("rocketmq-store").options(reader=reader)
        whole = source.load(str(root))
        memory.show(f"{count:,} messages, {reader}, by log", thrown_away(whole), count)
        rows = source.option("subscribe", topic).load(str(root))
        memory.show(f"{count:,} messages, {reader}, by queue", thrown_away(rows), count)
    if pipelines:
        context = Context(spark, ClusterConfig(), Progress())
        path = str(directory / "archive")
        kept = archive.Config(topics=[topic], path=path, store=str(root), broker="broker-a")
        memory.show(f"{count:,} messages, archive", lambda: archive.run(kept, context), count)
        asked = audit.Config(topics=[topic], stores={"broker-a": str(root)}, archive=path)
        memory.show(f"{count:,} messages, audit", lambda: audit.run(asked, context), count)
        replayed(directory, memory, spark, topic, path, count)
    spark.stop()
    shutil.rmtree(directory)


def replayed(
    directory: Path, memory: Memory, spark: Any, topic: str, path: str, count: int
) -> None:
    """Send an archive's messages again, to a broker that is a process of its own."""
    with CometPeer(directory / "target", conf=_ON_A_FULL_DISK) as peer:
        namesrv = "{}:{}".format(*peer.name_server)
        with AdminClient(namesrv=namesrv) as admin:
            admin.topics.create(_TARGET, read_queues=8, write_queues=8)
        context = Context(spark, ClusterConfig(namesrv=namesrv), Progress())
        asked = replay.Config(
            topics=[topic], archive=path, to=_TARGET, id="bench", state=str(directory / "ledgers")
        )
        reported: list[str] = []
        memory.show(
            f"{count:,} messages, replay",
            lambda: reported.append(replay.run(asked, context).summary),
            count,
        )
        with AdminClient(namesrv=namesrv) as admin:
            there = admin.topics.stats(_TARGET).messages
        print(f"{reported[0]}; {there:,} in the broker", flush=True)


def queues(directory: Path, count: int) -> None:
    each = 20
    root = directory / "broker-a"
    topics = [topic_of(at) for at in range(-(-count // QUEUES_OF_A_TOPIC))]
    made(directory, topics, min(count, QUEUES_OF_A_TOPIC))
    write_store(root, count * each, count)
    spark = session()
    memory = Memory(spark)
    chosen = ",".join(topics)
    for reader in readers():
        source = spark.read.format("rocketmq-store").options(reader=reader, subscribe=chosen)
        rows = source.load(str(root))
        memory.show(f"{count:,} queues, {reader}", thrown_away(rows), count * each)
    with Cluster(directory=directory, properties=_FILES) as cluster:
        live = (
            spark.read.format("rocketmq").options(namesrv=cluster.namesrv, subscribe=chosen).load()
        )
        memory.show(f"{count:,} queues, live", thrown_away(live), count * each)
    spark.stop()


def tasks(directory: Path, count: int) -> None:
    """Read ten messages in each of many tasks, and beside it let a source in Python that gives one row
    cost what Spark's own part of a task does.
    """
    spark = session()
    memory = Memory(spark)
    spark.dataSource.register(OneRow)
    with filled(directory, count * 10) as namesrv:
        live = spark.read.format("rocketmq").options(
            namesrv=namesrv, subscribe=topic_of(0), minPartitions=count
        )
        own = spark.read.format("one-row").options(tasks=count)
        for name, frame in (("live", live.load()), ("Spark's own", own.load())) * 3:
            there = frame.rdd.getNumPartitions()
            memory.show(f"{there:,} tasks, {name}", thrown_away(frame), there)
    spark.stop()


@contextmanager
def filled(directory: Path, messages: int, queues: int = 4) -> Iterator[str]:
    """Start a broker of its own process with so many messages, and yield its name server."""
    message = Message(topic_of(0), b"x" * _BODY_BYTES, tags="a")
    with CometPeer(directory / "broker", conf={}) as peer:
        namesrv = "{}:{}".format(*peer.name_server)
        with AdminClient(namesrv=namesrv) as admin, Producer("filler", namesrv=namesrv) as producer:
            admin.topics.create(topic_of(0), read_queues=queues, write_queues=queues)
            for at in range(queues):
                queue = MessageQueue(topic_of(0), BROKER_NAME, at)
                left = messages // queues
                while left > 0:
                    producer.send_batch([message] * min(left, 100), queue=queue)
                    left -= 100
        yield namesrv


class OneRow(DataSource):
    """Gives a row in each of so many tasks."""

    @classmethod
    def name(cls) -> str:
        return "one-row"

    def schema(self) -> str:
        return "body binary"

    def reader(self, schema: Any) -> DataSourceReader:
        del schema
        return OneRowReader(int(self.options["tasks"]))


class OneRowReader(DataSourceReader):
    def __init__(self, count: int) -> None:
        self._count = count

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(at) for at in range(self._count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        del partition
        yield (b"x" * _BODY_BYTES,)


def batches(directory: Path, count: int) -> None:
    each = 40
    spark = session()
    memory = Memory(spark)
    checkpoint = directory / "checkpoint-of-stream"
    marks = marks_of(count)
    counts: Counter[int] = Counter()
    with filled(directory, count * each) as namesrv:
        source = spark.readStream.format("rocketmq").options(
            namesrv=namesrv, subscribe=topic_of(0), startingOffsets="earliest",
            maxMessagesPerTrigger=each,
        )  # fmt: skip

        def take(frame: Any, at: int) -> None:
            counts[frame.count()] += 1
            if at + 1 in marks:
                memory.note(at + 1, "batches", f"checkpoint {len(sizes_in(checkpoint))} files")

        query = (
            source.load().writeStream.foreachBatch(take)
            .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        )  # fmt: skip
        memory.show(f"{count:,} batches", lambda: query.start().awaitTermination(), count)
    read = sum(size * times for size, times in counts.items())
    print(f"{read:,} messages of {count * each:,}; batches by their messages: {dict(counts)}")
    spark.stop()


def pipelines(directory: Path, options: argparse.Namespace) -> None:
    """Archive and audit a store several times in one JVM: what it compiles at first is not the last
    run's.
    """
    (count,) = options.counts
    root = directory / "store"
    (topic,) = write_store(root, count, 8, options.body_bytes, java_batches=options.java_batches)
    spark = session(options.java_options)
    memory = Memory(spark)
    stages = Stages(spark)
    context = Context(spark, ClusterConfig(), Progress())
    costs: dict[str, list[float]] = {"archive": [], "audit": []}
    for at in range(options.rounds):
        path = str(directory / f"archive-{at}")
        kept = archive.Config(
            topics=[topic], path=path, store=str(root), broker="broker-a",
            max_messages=options.max_messages,
        )  # fmt: skip
        asked = audit.Config(topics=[topic], stores={"broker-a": str(root)}, archive=path)
        for name, work in (
            ("archive", lambda kept=kept: archive.run(kept, context)),
            ("audit", lambda asked=asked: audit.run(asked, context)),
        ):
            costs[name].append(
                memory.show(f"{count:,} messages, {name}, run {at + 1}", work, count)
            )
            stages.show(count)
        shutil.rmtree(path)
    for name, each in costs.items():
        later = each[1:] or each
        print(
            f"{name}: first {each[0]:.1f} µs of processor time a message, then "
            f"{statistics.median(later):.1f} ({min(later):.1f} to {max(later):.1f})",
            flush=True,
        )
    spark.stop()


def marks_of(count: int) -> frozenset[int]:
    """Return the rounds of `count` after which the growth is printed."""
    return frozenset({5, *(count * part // 8 for part in range(1, 9))})


@dataclass
class Going:
    """A pipeline that follows a broker, and the means to watch it.

    marks: the rounds after which the growth is printed.
    """

    spark: Any
    memory: Memory
    cluster: ClusterConfig
    send: Callable[[], None]
    marks: frozenset[int]
    stopped: threading.Event = field(default_factory=threading.Event)


@contextmanager
def going(directory: Path, count: int, each: int) -> Iterator[Going]:
    """Start Spark, and a broker of its own process with the first of `count` times `each` messages."""
    spark = session()
    with CometPeer(directory / "broker", conf={}) as peer:
        namesrv = "{}:{}".format(*peer.name_server)
        with Producer("filler", namesrv=namesrv) as producer:

            def send() -> None:
                for _ in range(each):
                    producer.send(Message(topic_of(0), b"x" * _BODY_BYTES, tags="a"))

            send()
            cluster = ClusterConfig(namesrv=namesrv)
            yield Going(spark, Memory(spark), cluster, send, marks_of(count))
    spark.stop()


def rounds(directory: Path, count: int) -> None:
    """Audit a topic and its archive as a stream, with new messages in front of each round."""
    state = directory / "state"
    with going(directory, count, each=200) as own:
        context = Context(own.spark, own.cluster, Progress())
        kept = archive.Config(topics=[topic_of(0)], path=str(directory / "archive"))

        def go_on(report: Any) -> None:
            if report.rounds in own.marks:
                frames = own.spark.sparkContext._jsc.getPersistentRDDs().size()  # noqa: SLF001 - there is no other way to it
                own.memory.note(
                    report.rounds,
                    "rounds",
                    f"state {len(list(state.iterdir()))} entries, {sum(sizes_in(state)):,} bytes, of "
                    f"which {(state / '_state.json').stat().st_size:,} in _state.json; "
                    f"{frames} frames kept",
                )
            if report.rounds == count:
                own.stopped.set()
            own.send()
            if report.rounds % 10 == 0:
                archive.run(kept, context)

        archive.run(kept, context)
        asked = audit.Config(
            topics=[topic_of(0)], archive=kept.path, mode="stream", state=str(state),
            interval_s=0.0, hold_s=20.0, settle_s=0.0,
        )  # fmt: skip
        watched = replace(context, publish=go_on)
        own.memory.show(f"{count:,} rounds", lambda: audit.run(asked, watched, own.stopped), count)


class Turns(Progress):
    """Calls `go_on` with the number of each batch of an archive's stream behind it."""

    def __init__(self, go_on: Callable[[int], None]) -> None:
        self._go_on = go_on
        self._batches = 0

    def advance(self, step: str, done: int, total: int | None) -> None:
        del done, total
        if step == "archive":
            self._batches += 1
            self._go_on(self._batches)


def archives(directory: Path, count: int) -> None:
    """Archive a topic as a stream, with new messages in front of each batch, and prove it and compact
    it beside them.
    """
    path = directory / "archive"
    with going(directory, count, each=20) as own:

        def go_on(at: int) -> None:
            if at in own.marks:
                files = {kind: sizes_in(path / kind) for kind in ("data", "_manifest", "_gaps")}
                reported = ", ".join(
                    f"{kind} {len(sizes)} files of {sum(sizes):,} bytes"
                    for kind, sizes in files.items()
                )
                own.memory.note(
                    at,
                    "batches",
                    f"{reported}; _state.json {(path / '_state.json').stat().st_size:,} bytes, "
                    f"_staging {len(list((path / '_staging').iterdir()))} entries",
                )
            if at == count:
                own.stopped.set()
            own.send()

        context = Context(own.spark, own.cluster, Turns(go_on))
        kept = archive.Config(
            topics=[topic_of(0)],
            path=str(path),
            mode="stream",
            interval_s=0.0,
            proof_interval_s=20.0,
        )
        own.memory.show(
            f"{count:,} batches", lambda: archive.run(kept, context, own.stopped), count
        )


def sizes_in(directory: Path) -> list[int]:
    return sorted(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def compaction(directory: Path, options: argparse.Namespace) -> None:
    """Archive a store in many batches, so that its hours have many small files, and compact them."""
    (count,) = options.counts
    root, path = directory / "store", directory / "archive"
    (topic,) = write_store(root, count, 8, options.body_bytes, scrambled=True)
    spark = session()
    memory = Memory(spark)
    context = Context(spark, ClusterConfig(), Progress())
    settings: dict[str, Any] = {
        "topics": [topic], "path": str(path), "store": str(root), "broker": "broker-a",
    }  # fmt: skip
    small = archive.Config(**settings, max_messages=max(1, count // 40), compact_files=0)
    memory.show(f"{count:,} messages in 40 batches", lambda: archive.run(small, context), count)
    show_files(path)
    large = archive.Config(**settings, target_file_mb=options.target_mb)
    memory.show(f"{count:,} messages compacted", lambda: archive.run(large, context), count)
    show_files(path)
    spark.stop()


def show_files(path: Path) -> None:
    """Print the sizes of an archive's files and row groups, and whether its rows are in order."""
    from pyarrow import parquet

    sizes, groups, in_order = [], [], True
    for file in sorted((path / "data").rglob("*.parquet")):
        read = parquet.ParquetFile(file)
        sizes.append(file.stat().st_size)
        groups += [read.metadata.row_group(at).total_byte_size for at in range(read.num_row_groups)]
        table = read.read(["queue_id", "queue_offset"])
        places = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        in_order &= places == sorted(places)
    print(
        f"{len(sizes):,} files of {min(sizes):,} to {max(sizes):,} bytes, median "
        f"{statistics.median(sizes):,.0f}; {len(groups):,} row groups of {min(groups):,} to "
        f"{max(groups):,} bytes uncompressed; ordered by queue and offset: {in_order}",
        flush=True,
    )


def resident() -> tuple[int, int]:
    """Return how much of the memory of this process, the driver's Python, is its own, and how much
    lies in files that it maps.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return int(sizes["RssAnon"][0]) << 10, int(sizes["RssFile"][0]) << 10


MODES = ("messages", "queues", "tasks", "batches", "pipelines", "rounds", "archives", "compaction")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("what", choices=MODES)
    parser.add_argument("counts", type=int, nargs="+")
    parser.add_argument(
        "--pipelines", action="store_true", help="archive, audit and replay the stores, too"
    )
    parser.add_argument("--pipelines-only", action="store_true", help="and nothing else")
    parser.add_argument("--rounds", type=int, default=4, help="of pipelines")
    parser.add_argument(
        "--java-options", default="", help="of pipelines, in place of those of spark_session()"
    )
    parser.add_argument(
        "--java-batches",
        type=int,
        default=0,
        help="messages in each Java batch of the store of pipelines; 0: no batches",
    )
    parser.add_argument("--body-bytes", type=int, default=_BODY_BYTES, help="of pipelines")
    parser.add_argument(
        "--max-messages", type=int, default=1_000_000, help="of an archive's batch, of pipelines"
    )
    parser.add_argument("--target-mb", type=int, default=128, help="of files, of compaction")
    given = parser.parse_args()
    print(f"Python {sys.version.split()[0]}", flush=True)
    with tempfile.TemporaryDirectory(prefix="cometmq-sizes-") as directory:
        os.environ["PYSPARK_PYTHON"] = counted_python(Path(directory))
        if given.what == "rounds":
            rounds(Path(directory), given.counts[0])
        elif given.what == "archives":
            archives(Path(directory), given.counts[0])
        elif given.what == "compaction":
            compaction(Path(directory), given)
        elif given.what == "pipelines":
            pipelines(Path(directory), given)
        elif given.what == "messages":
            also = given.pipelines or given.pipelines_only
            reads = not given.pipelines_only
            messages(Path(directory), given.counts, reads=reads, pipelines=also)
        elif given.what == "queues":
            queues(Path(directory), given.counts[0])
        elif given.what == "tasks":
            tasks(Path(directory), given.counts[0])
        else:
            batches(Path(directory), given.counts[0])


if __name__ == "__main__":
    main()
