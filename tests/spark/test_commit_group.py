"""A stream's `commitGroup`, as Spark drives the source, without its JVM; and tables of the catalog."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from tests.spark.micro_batches import MicroBatches
from tests.waits import SEND_WAIT_MS, eventually

from cometmq import Message, Producer
from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import ConnectionLostError, IllegalArgumentError
from cometmq.model.queue import MessageQueue
from cometmq.spark.live.source import RocketMQSource
from cometmq.testing.cluster import Cluster

QUEUE = MessageQueue("orders", "broker-a", 0)


def query_of(cluster: Cluster, group: str) -> MicroBatches:
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for _ in range(5):
            producer.send(Message(QUEUE.topic, b"x"), queue=QUEUE)
    query = MicroBatches(random.Random(0), lambda: None, failures=0)
    query.start(
        {
            "namesrv": cluster.namesrv,
            "subscribe": QUEUE.topic,
            "startingOffsets": "earliest",
            "commitGroup": group,
        }
    )
    return query


def test_an_idle_query_commits_its_last_batch_for_its_group() -> None:
    with Cluster() as cluster, BlockingRangeReader(namesrv=cluster.namesrv) as reader:
        query = query_of(cluster, "TOOLS_CONSUMER")
        assert query.trigger()
        assert query.trigger()
        assert not query.trigger()
        query.stop()
        assert reader.committed("TOOLS_CONSUMER", [QUEUE]) == {QUEUE: 5}


def test_an_idle_query_repeats_a_commit_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's lag stayed above zero until another message came."""
    commit = BlockingRangeReader.commit
    failures: list[Mapping[MessageQueue, int]] = []

    def failing_once(
        self: BlockingRangeReader, group: str, offsets: Mapping[MessageQueue, int]
    ) -> None:
        if not failures and offsets == {QUEUE: 5}:
            failures.append(offsets)
            raise ConnectionLostError("the broker was killed")
        commit(self, group, offsets)

    monkeypatch.setattr(BlockingRangeReader, "commit", failing_once)
    with Cluster() as cluster, BlockingRangeReader(namesrv=cluster.namesrv) as reader:
        query = query_of(cluster, "TOOLS_CONSUMER")
        assert query.trigger()
        assert query.trigger()

        def is_committed() -> bool:
            assert not query.trigger()
            return reader.committed("TOOLS_CONSUMER", [QUEUE]) == {QUEUE: 5}

        eventually(is_committed)
        assert failures
        query.stop()


def test_a_commit_group_that_does_not_exist_is_refused_with_how_to_make_it() -> None:
    with Cluster() as cluster:
        query = query_of(cluster, "nobody")
        with pytest.raises(
            IllegalArgumentError, match=r"commitGroup names the group nobody, .*updateSubGroup"
        ):
            query.trigger()
        query.stop()


def test_a_table_of_the_catalog_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(IllegalArgumentError, match="CREATE TEMPORARY VIEW"):
        RocketMQSource({"provider": "rocketmq", "namesrv": "127.0.0.1:9876", "subscribe": "orders"})
