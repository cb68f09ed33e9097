"""Kill processes, send messages meanwhile, and check the results."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from tests.spark.processes import QUICK_JAVA, Process, below, kill
from tests.spark.standalone import HOST, ROOT, StandaloneCluster
from tests.waits import JVM_WAIT_S

from cometmq import LitePullConsumer, Message, MessageQueue, Producer, PullStatus
from cometmq.errors import CometMQError
from cometmq.testing.ports import HeldPort

BROKER = "broker-a"
SENDS_PER_S = 100
SLOWLY_S = 0.3
# What Spark's driver asks in Python: about offsets all the time, and in passing about the reading of a
# batch and the commit of one.
PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
HELPERS = (
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
)
CONFIG = {
    "spark.ui.enabled": "false",
    "spark.driver.host": HOST,
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.task.maxFailures": "100000",
    "spark.excludeOnFailure.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}

Place = tuple[str, int, int]


class BrokerProcess:
    """A broker that is killed and comes back, on its port and store."""

    def __init__(self, directory: Path, namesrv: str, name: str = BROKER, more: str = "") -> None:
        """more: lines of configuration, which override those of this class."""
        self.store = directory / name
        self._conf = directory / f"{name}.conf"
        self._log = directory / f"{name}.log"
        self._port = HeldPort()
        self._conf.write_text(
            f"brokerName={name}\nbrokerIP1={HOST}\nbindAddress={HOST}\nlistenPort={self._port.port}\n"
            f"namesrvAddr={namesrv}\nstorePathRootDir={self.store}\nvipChannelEnable=false\n"
            "mappedFileSizeCommitLog=16777216\nmappedFileSizeConsumeQueue=200000\n"
            "maxHashSlotNum=5000\nmaxIndexNum=20000\ndefaultTopicQueueNums=4\n"
            # A busy disk blocks flushes for seconds; that is not what is tested here.
            "osPageCacheBusyTimeOutMills=60000\n"
            # Nor does a disk that is nearly full delete messages.
            "diskMaxUsedSpaceRatio=95\ncleanFileForciblyEnable=false\n" + more
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "cometmq", "broker", "-c", str(self._conf)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--log-level", "warning"],
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
            )
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + JVM_WAIT_S
        while time.monotonic() < deadline:
            if not select.select([stdout], [], [], 0.1)[0]:
                continue
            line = stdout.readline()
            assert line, self._log.read_text()[-2000:]
            if b"boot success" in line:
                return
        raise AssertionError("the broker did not start")

    def kill(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(JVM_WAIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def close(self) -> None:
        self.kill()
        self._port.close()


class Driver:
    """The program of `kill_driver`, as often as it has to be started."""

    def __init__(self, plan: Path, log: Path) -> None:
        self._plan = plan
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOST}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.kill_driver", str(self._plan)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=ROOT,
            )

    @property
    def ended(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def processes(self) -> list[Process]:
        return below({self._process.pid}) if self._process is not None else []

    def planners(self) -> list[int]:
        return [one.pid for one in self.processes() if PLANNER in one.line]

    def helpers(self) -> list[int]:
        return [
            one.pid for one in self.processes() if any(module in one.line for module in HELPERS)
        ]

    def kill(self) -> None:
        """Everything of it at once, Java first: that is Spark's driver."""
        if self._process is None:
            return
        below_it = self.processes()
        for one in sorted(below_it, key=lambda one: "java" not in one.line):
            kill(one.pid)
        self._process.kill()
        self._process.wait(JVM_WAIT_S)
        self._process = None


class Load:
    """Sends all the time, in a thread; remembers what brokers have acknowledged."""

    def __init__(self, namesrv: str, topic: str, seed: int, most: int) -> None:
        """Behind `most` messages there come few: what waits has to be read in the end."""
        self._most = most
        self._namesrv = namesrv
        self._topic = topic
        self._rng = random.Random(seed)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.acknowledged: dict[Place, bytes] = {}
        self.failed = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        with Producer("load", namesrv=self._namesrv, retry_times=0) as producer:
            while not self._done.wait(1 / SENDS_PER_S if number < self._most else SLOWLY_S):
                number += 1
                body = b"%d %s" % (
                    number,
                    self._rng.randbytes(self._rng.randrange(300)).hex().encode(),
                )
                try:
                    result = producer.send(Message(self._topic, body, keys=[f"k{number % 7}"]))
                except CometMQError:
                    self.failed += 1
                    continue
                queue = result.queue
                place = (queue.broker_name, queue.queue_id, result.queue_offset)
                self.acknowledged[place] = body


class Victims:
    """Kills one process of a kind, and says whether there was one."""

    def __init__(
        self, cluster: StandaloneCluster, driver: Driver, broker: BrokerProcess, rng: random.Random
    ) -> None:
        self._cluster = cluster
        self._driver = driver
        self._broker = broker
        self._rng = rng
        # What is done with the store of a killed broker before it comes back.
        self.with_store: Callable[[Path], None] | None = None

    def kill(self, kind: str) -> bool:
        killed: bool = getattr(self, f"_kill_{kind}")()
        return killed

    def _one_of(self, pids: list[int]) -> bool:
        return bool(pids) and kill(self._rng.choice(pids))

    def _kill_worker(self) -> bool:
        """A Python worker of a task."""
        return self._one_of(self._cluster.forked("pyspark.daemon"))

    def _kill_executor(self) -> bool:
        return self._one_of(self._cluster.victims("CoarseGrainedExecutorBackend"))

    def _kill_planner(self) -> bool:
        if self._rng.random() < 0.3 and self._one_of(self._driver.helpers()):
            return True
        return self._one_of(self._driver.planners())

    def _kill_broker(self) -> bool:
        self._broker.kill()
        time.sleep(self._rng.uniform(0, 1))  # a while without one
        if self.with_store is not None:
            self.with_store(self._broker.store)
        self._broker.start()
        return True

    def _kill_driver(self) -> bool:
        self._driver.kill()
        self._driver.start()
        return True


# What came out, looked at without Spark and without the source


class Stored(NamedTuple):
    place: Place
    body: bytes
    properties: dict[str, str]


def stored(namesrv: str, topic: str) -> Iterator[Stored]:
    """All that brokers have of a topic, message by message."""
    with LitePullConsumer("checker", namesrv=namesrv) as consumer:
        for queue in sorted(consumer.queues(topic)):
            yield from _of_queue(consumer, queue)


def _of_queue(consumer: LitePullConsumer, queue: MessageQueue) -> Iterator[Stored]:
    offset = 0
    while True:
        answer = consumer.pull(queue, offset, 1024)
        if answer.status is PullStatus.NO_NEW_MSG:
            return
        for message in answer.messages:
            place = (queue.broker_name, queue.queue_id, message.queue_offset)
            yield Stored(place, message.body, dict(message.properties))
        offset = answer.next_begin_offset


def read_from_stores(output: Path) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The number of the store and the rows of each read that came to its end, in their order."""
    ended = [path.parent for path in output.glob("*/_SUCCESS")]
    for directory in sorted(ended, key=lambda path: int(path.name.split("-")[0])):
        yield int(directory.name.split("-")[-1]), pq.read_table(directory).to_pylist()


def written(output: Path) -> list[dict[str, Any]]:
    """The rows of the Parquet files that count: those named in the log of Spark's file sink."""
    log = output / "_spark_metadata"
    entries = {path.name: path for path in log.iterdir() if not path.name.startswith(".")}
    numbers = {int(name.removesuffix(".compact")): path for name, path in entries.items()}
    compacted = [number for number, path in numbers.items() if path.name.endswith(".compact")]
    first = max(compacted, default=0)
    rows: list[dict[str, Any]] = []
    for number in sorted(numbers):
        if number < first:
            continue
        for line in numbers[number].read_text().splitlines()[1:]:
            entry = json.loads(line)
            assert entry["action"] == "add"
            rows += pq.ParquetFile(entry["path"].removeprefix("file://")).read().to_pylist()
    return rows
