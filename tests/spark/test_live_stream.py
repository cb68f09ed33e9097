"""The source `rocketmq` as a stream: each offset once, whatever happens between the batches."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS

from cometmq import LitePullConsumer, Message, MessageQueue, Producer
from cometmq.model.queue import MessageQueue as Queue
from cometmq.spark.live.admission import shared
from cometmq.spark.live.options import offsets_of, table_of
from cometmq.testing.cluster import Cluster

pytestmark = pytest.mark.cluster(brokers=2, properties={"autoCreateSubscriptionGroup": "true"})


@pytest.fixture(scope="module")
def producer(cluster: Cluster) -> Iterator[Producer]:
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        yield producer


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(c if c.isalnum() else "-" for c in request.node.name)


Place = tuple[str, str, int, int]
PLANNER_LATE = "Python worker failed to connect back"


class Query:
    """A stream of topics into Parquet, run from its checkpoint as often as one wants."""

    def __init__(self, spark: Any, namesrv: str, directory: Path, **options: Any) -> None:
        self._spark = spark
        self._output = str(directory / "output")
        self._checkpoint = str(directory / "checkpoint")
        self._options = {
            "namesrv": namesrv,
            "startingOffsets": "earliest",
            "columns": "all",
            **options,
        }
        self.batches: list[Any] = []

    def start(self, trigger: dict[str, Any] | None = None, **options: Any) -> Any:
        """One batch after the other, until it is stopped."""
        stream = self._spark.readStream.format("rocketmq").options(**self._options | options)
        writer = stream.load().writeStream.format("parquet")
        writer = writer.trigger(**trigger or {"processingTime": "0 seconds"})
        return writer.option("checkpointLocation", self._checkpoint).start(self._output)

    def run(self, **options: Any) -> None:
        """All that is there now. Spark gives its planner ten seconds to start, in which a busy machine
        may not succeed at once.
        """
        deadline = time.monotonic() + JVM_WAIT_S
        while True:
            query = self.start({"availableNow": True}, **options)
            try:
                assert query.awaitTermination(JVM_WAIT_S)
            except Exception as error:
                if PLANNER_LATE not in str(error) or time.monotonic() > deadline:
                    raise
                continue
            finally:
                query.stop()
                self.batches += query.recentProgress
            return

    def places(self) -> list[Place]:
        rows = self._spark.read.parquet(self._output)
        return sorted(
            tuple(row)
            for row in rows.select("topic", "broker", "queue_id", "queue_offset").collect()
        )


def send(producer: Producer, topic: str, count: int) -> list[Place]:
    sent = []
    for at in range(count):
        result = producer.send(Message(topic, b"%d" % at))
        queue = result.queue
        sent.append((topic, queue.broker_name, queue.queue_id, result.queue_offset))
    return sent


@pytest.mark.parametrize("seed", range(1))
def test_any_sequence_of_triggers_and_restarts_reads_every_offset_once(
    spark: Any, cluster: Cluster, producer: Producer, topic: str, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    query = Query(spark, cluster.namesrv, tmp_path, subscribe=topic)
    sent = send(producer, topic, 1)
    for _ in range(3):
        sent += send(producer, topic, rng.randrange(120))
        limits: Any = ({}, {"maxMessagesPerTrigger": 40}, {"maxBytesPerTrigger": 8000})
        query.run(minPartitions=rng.choice((1, 11)), **rng.choice(limits))
    assert query.places() == sorted(sent)


def test_a_query_that_is_stopped_anywhere_goes_on_where_it_was(
    spark: Any, cluster: Cluster, producer: Producer, topic: str, tmp_path: Path
) -> None:
    rng = random.Random(7)
    query = Query(spark, cluster.namesrv, tmp_path, subscribe=topic)
    sent = send(producer, topic, 30)
    for _ in range(4):
        running = query.start(maxMessagesPerTrigger=15)
        end = time.monotonic() + rng.uniform(0.2, 2.5)
        while time.monotonic() < end and running.isActive:
            sent += send(producer, topic, 5)
            time.sleep(0.05)
        running.stop()
    query.run()
    assert query.places() == sorted(sent)


def test_a_batch_takes_no_more_than_its_limit(
    spark: Any, cluster: Cluster, producer: Producer, topic: str, tmp_path: Path
) -> None:
    sent = send(producer, topic, 100)
    query = Query(spark, cluster.namesrv, tmp_path, subscribe=topic, maxMessagesPerTrigger=30)
    query.run()
    counts = [batch["numInputRows"] for batch in query.batches]
    assert max(counts) <= 30
    assert sum(counts) == 100
    assert query.places() == sorted(sent)


def test_topics_and_queues_that_appear_are_read_from_their_beginning(
    spark: Any, cluster: Cluster, producer: Producer, topic: str, tmp_path: Path
) -> None:
    query = Query(
        spark, cluster.namesrv, tmp_path, subscribePattern=f"{topic}.*", startingOffsets="latest"
    )
    send(producer, topic, 5)
    query.run()
    sent = send(producer, topic, 7) + send(producer, f"{topic}-new", 9)
    query.run()
    assert query.places() == sorted(sent)


def test_finished_batches_are_committed_to_a_group(
    spark: Any, cluster: Cluster, producer: Producer, topic: str, tmp_path: Path
) -> None:
    sent = send(producer, topic, 40)
    with LitePullConsumer("lagged", namesrv=cluster.namesrv) as consumer:
        for broker in {place[1] for place in sent}:
            consumer.pull(MessageQueue(topic, broker, 0), 0)  # which makes the group
    query = Query(spark, cluster.namesrv, tmp_path, subscribe=topic, commitGroup="lagged")
    # Spark tells a source of a finished batch when it plans the next one; a query that starts tells
    # the group where it stands.
    query.run(maxMessagesPerTrigger=20)
    query.run()
    ends = Counter((broker, queue_id) for _, broker, queue_id, _ in sent)
    with LitePullConsumer("lagged", namesrv=cluster.namesrv) as consumer:
        queues = [MessageQueue(topic, broker, queue_id) for broker, queue_id in ends]
        consumer.assign(queues)
        committed = {queue: consumer.committed(queue) for queue in queues}
    assert committed == {queue: ends[queue.broker_name, queue.queue_id] for queue in queues}


def test_the_checkpoint_holds_offsets_by_topic_broker_and_queue(
    spark: Any, cluster: Cluster, producer: Producer, topic: str, tmp_path: Path
) -> None:
    sent = send(producer, topic, 20)
    query = Query(spark, cluster.namesrv, tmp_path, subscribe=topic)
    query.run()
    last = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
    offsets = offsets_of(json.loads(last.read_text().splitlines()[-1]))
    ends = Counter(Queue(*place[:3]) for place in sent)
    assert {queue: offset for queue, offset in offsets.items() if offset} == ends


def test_retention_that_overtakes_a_query_fails_it_or_is_noted(spark: Any, tmp_path: Path) -> None:
    properties = {"mappedFileSizeCommitLog": str(64 * 1024)}
    stores = tmp_path / "stores"
    with (
        Cluster(directory=stores, properties=properties) as own,
        Producer("filler", namesrv=own.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer,
    ):
        sent = [producer.send(Message("orders", b"x" * 1000)) for _ in range(10)]
        query = Query(spark, own.namesrv, tmp_path, subscribe="orders")
        with pytest.raises(Exception, match=r"group \[nobody\] does not exist"):
            query.run(commitGroup="nobody")
        query.run()
        sent += [producer.send(Message("orders", b"x" * 1000)) for _ in range(190)]
        own.call("stop_broker", 0)
        for name in (f"{at * 64 * 1024:020d}" for at in range(2)):
            (stores / "broker-a" / "commitlog" / name).unlink()
        own.call("start_broker", 0)
        with pytest.raises(Exception, match=r"retention\) are gone"):
            query.run()
        query.run(failOnDataLoss="false", gapLog=str(tmp_path / "gaps"))
    gaps = spark.read.json(str(tmp_path / "gaps")).collect()
    assert {gap.cause for gap in gaps} == {"retention"}
    places = query.places()
    assert len(set(places)) == len(places)
    assert len(places) + sum(gap["count"] for gap in gaps) == len(sent)


def test_what_is_for_batches_is_refused(spark: Any, cluster: Cluster, tmp_path: Path) -> None:
    query = Query(spark, cluster.namesrv, tmp_path, subscribe="orders", endingOffsets="latest")
    with pytest.raises(Exception, match=r"endingOffsets .* is for a batch, not a stream") as caught:
        query.run()
    # Spark falls over errors that are raised while a reader is made.
    assert "UnboundLocalError" not in str(caught.value)


def test_a_limit_is_shared_by_what_waits() -> None:
    queues = [Queue("t", "b", at) for at in range(4)]
    lags = dict(zip(queues, (0, 1, 10, 1000), strict=True))
    for limit in range(1, 1020):
        counts = shared(lags, limit)
        assert sum(counts.values()) == min(limit, 1011)
        assert all(counts[queue] <= lags[queue] for queue in queues)


def test_offsets_survive_their_json() -> None:
    offsets = {Queue("a", "x", 0): 5, Queue("a", "y", 10): 0, Queue("%RETRY%g", "x", 3): 2**62}
    assert offsets_of(json.loads(json.dumps(table_of(offsets)))) == offsets
