"""Any sequence of triggers, restarts and misfortunes reads every offset once.

Sequences are drawn from a seed: COMETMQ_SPARK_SEQUENCES says how many (default 20),
COMETMQ_SPARK_SEED the first of them. Reader objects are real, and so are brokers; only Spark's JVM is a
model, `tests.spark.micro_batches`.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.seeds import seed_of
from tests.spark.changing_cluster import ChangingCluster
from tests.spark.micro_batches import CrashError, MicroBatches, Place
from tests.waits import SEND_WAIT_MS

from cometmq import Message, Producer
from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.model.queue import MessageQueue
from cometmq.spark.live import queues as live_queues
from cometmq.spark.live.options import offsets_of

SEQUENCES = int(os.environ.get("COMETMQ_SPARK_SEQUENCES", "20"))
SEED = seed_of("COMETMQ_SPARK_SEED", 0)
BROKERS = 2
LOG_FILE_BYTES = 32 * 1024


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChangingCluster]:
    properties = {"mappedFileSizeCommitLog": str(LOG_FILE_BYTES)}
    directory = tmp_path_factory.mktemp("stores")
    with ChangingCluster(brokers=BROKERS, properties=properties, directory=directory) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def producer(cluster: ChangingCluster) -> Iterator[Producer]:
    with Producer(
        "filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS, retry_times=20
    ) as producer:
        yield producer


class Sequence:
    """One life of a query, with what happens around it."""

    def __init__(self, seed: int, cluster: ChangingCluster, producer: Producer, gaps: Path) -> None:
        self.rng = random.Random(seed)
        self.name = f"s{seed}"
        self.cluster = cluster
        self.producer = producer
        self.gaps = gaps
        self.expires = self.rng.random() < 0.5
        self.first = self.rng.choice(("earliest", "earliest", "latest"))
        self.calm = False
        self.queues: Counter[tuple[int, str]] = Counter()
        self.query = MicroBatches(self.rng, self.between)

    def run(self) -> None:
        self.add_queues()
        self.append()
        steps: list[Callable[[], None]] = [self.append, self.append, self.trigger, self.trigger]
        steps += [self.trigger, self.restart, self.add_queues, self.misfortune]
        self.restart()
        try:
            for _ in range(self.rng.randrange(5, 40)):
                self.rng.choice(steps)()
            self.calm = True
            self.query.drain(self.options())
        finally:
            self.query.stop()

    # What happens

    def append(self) -> None:
        index, topic = self.rng.choice(sorted(self.queues))
        for _ in range(self.rng.choice((1, 3, 40))):
            queue_id = self.rng.randrange(self.queues[index, topic])
            queue = MessageQueue(topic, self.cluster.brokers[index].config.broker_name, queue_id)
            self.producer.send(Message(topic, self.rng.randbytes(200)), queue=queue)

    def add_queues(self) -> None:
        """A new topic, or more queues for one, on one of the brokers."""
        index = self.rng.randrange(BROKERS)
        topic = f"{self.name}-{self.rng.choice('abc')}"
        self.queues[index, topic] += self.rng.randrange(1, 4)
        self.cluster.call("set_queues", index, topic, self.queues[index, topic])

    def misfortune(self) -> None:
        index = self.rng.randrange(BROKERS)
        if self.expires:
            self.cluster.call("expire", index)
        elif self.rng.random() < 0.5:
            self.cluster.call("restart_broker", index)
        else:
            self.cluster.call("forget_routes")

    def between(self) -> None:
        if self.calm:
            return
        if self.rng.random() < 0.2:
            self.append()
        if self.rng.random() < 0.03:
            self.misfortune()

    def trigger(self) -> None:
        crash = self.rng.choice((None, None, None, "planned", "logged", "run"))
        try:
            self.query.trigger(crash)
        except CrashError:
            self.restart()

    def restart(self) -> None:
        self.query.start(self.options(), available_now=self.rng.random() < 0.3)

    def options(self) -> dict[str, str]:
        limits: list[dict[str, str]] = [
            {},
            {"maxMessagesPerTrigger": str(self.rng.choice((1, 7, 50)))},
            {"maxBytesPerTrigger": str(self.rng.choice((100, 5000)))},
        ]
        options = {
            "namesrv": self.cluster.namesrv,
            "subscribePattern": f"{self.name}-.*",
            "startingOffsets": self.first,
            "minPartitions": str(self.rng.choice((1, 20))),
            **self.rng.choice(limits),
        }
        if self.expires:
            options |= {"failOnDataLoss": "false", "gapLog": str(self.gaps)}
        return options

    # What must hold

    def begins(self) -> dict[MessageQueue, int]:
        """Where each queue entered the query."""
        begins: dict[MessageQueue, int] = {}
        for table in (self.query.first, *map(json.loads, self.query.offset_log)):
            begins = offsets_of(table) | begins
        return begins

    def noted(self) -> list[Place]:
        places: list[Place] = []
        for path in self.gaps.glob("*.json"):
            for line in path.read_text().splitlines():
                gap: dict[str, Any] = json.loads(line)
                assert gap["cause"] == "retention"
                assert gap["count"] == gap["end"] - gap["start"] > 0
                where = gap["topic"], gap["broker"], gap["queue_id"]
                places += [(*where, offset) for offset in range(gap["start"], gap["end"])]
        return places

    def verify(self, reader: BlockingRangeReader) -> None:
        read = [place for places in self.query.output.values() for place in places]
        begins = self.begins()
        topics = {topic for _, topic in self.queues}
        bounds = reader.offsets([queue for topic in topics for queue in reader.queues(topic)])
        assert begins.keys() == bounds.keys()
        if self.first == "earliest" and not self.expires:
            assert set(begins.values()) == {0}
        wanted = {
            (*queue, offset)
            for queue, (_, high) in bounds.items()
            for offset in range(begins[queue], high)
        }
        noted = self.noted()
        assert len(read) == len(set(read)), "an offset was read twice"
        assert len(noted) == len(set(noted)), "a gap was counted twice"
        assert not set(read) & set(noted), "what was noted as gone was read"
        assert set(read) | set(noted) == wanted


@pytest.mark.parametrize("seed", range(SEED, SEED + SEQUENCES))
def test_any_sequence_of_triggers_and_restarts_reads_every_offset_once(
    cluster: ChangingCluster,
    producer: Producer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    seed: int,
) -> None:
    monkeypatch.setattr(live_queues, "LOOK_EVERY_S", 0.0)
    sequence = Sequence(seed, cluster, producer, tmp_path / "gaps")
    sequence.run()
    with BlockingRangeReader(namesrv=cluster.namesrv) as reader:
        sequence.verify(reader)
