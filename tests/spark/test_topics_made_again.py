"""A stream whose topic was deleted and made again behind its checkpoint: as Spark drives it, without
its JVM (see `tests.spark.micro_batches`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.spark.changing_cluster import ChangingCluster
from tests.spark.micro_batches import MicroBatches, Place
from tests.waits import SEND_WAIT_MS

from cometmq import Message, Producer
from cometmq.admin import AdminClient
from cometmq.errors import DataLossError
from cometmq.model.queue import MessageQueue
from cometmq.spark.live import queues as live_queues
from cometmq.spark.live.options import MARKS

TOPIC = "orders"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChangingCluster]:
    monkeypatch.setattr(live_queues, "LOOK_EVERY_S", 0.0)
    with ChangingCluster() as cluster:
        yield cluster


def options_of(cluster: ChangingCluster, **more: str) -> dict[str, str]:
    # Longer than the test: nothing is to wait for a queue that is another one.
    patience = {"timeoutMs": "600000"}
    return {
        "namesrv": cluster.namesrv,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        **patience,
        **more,
    }


def fill(cluster: ChangingCluster, count: int, topic: str = TOPIC) -> list[Place]:
    places = []
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for _ in range(count):
            result = producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", 0))
            places.append((*result.queue, result.queue_offset))
    return places


def make_again(cluster: ChangingCluster, topic: str = TOPIC) -> None:
    delete(cluster, topic)
    cluster.call("set_queues", 0, topic, 1)


def delete(cluster: ChangingCluster, topic: str) -> None:
    async def delete_topic() -> None:
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            await admin.topics.delete(topic)

    cluster.run(delete_topic())


def checkpoint_of(cluster: ChangingCluster, **more: str) -> MicroBatches:
    """A query that has read all there was, and is stopped."""
    query = MicroBatches(random.Random(0), lambda: None, failures=0)
    query.start(options_of(cluster, **more))
    query.trigger()
    query.trigger()
    query.stop()
    return query


@pytest.mark.parametrize("again", [60, 49, 12], ids=["longer", "equally long", "shorter"])
def test_a_topic_made_again_behind_a_checkpoint_is_data_loss_by_name(
    cluster: ChangingCluster, again: int
) -> None:
    fill(cluster, 49)
    query = checkpoint_of(cluster)
    make_again(cluster)
    fill(cluster, again)
    query.start(options_of(cluster))
    with pytest.raises(DataLossError, match=f"topic {TOPIC} was deleted and made again"):
        query.trigger()
    query.stop()


@pytest.mark.parametrize("again", [60, 49, 12], ids=["longer", "equally long", "shorter"])
def test_a_topic_made_again_is_read_from_its_first_message_where_gaps_are_allowed(
    cluster: ChangingCluster, tmp_path: Path, again: int
) -> None:
    old = fill(cluster, 49)
    gaps = {"failOnDataLoss": "false", "gapLog": str(tmp_path)}
    query = checkpoint_of(cluster, **gaps)
    make_again(cluster)
    new = fill(cluster, again)
    query.start(options_of(cluster, **gaps))
    while query.trigger():
        pass
    query.stop()
    assert sorted(place for places in query.output.values() for place in places) == sorted(
        old + new
    )
    (noted,) = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert noted["cause"] == "topic made again"
    assert (noted["topic"], noted["start"], noted["count"]) == (TOPIC, 49, 0)


def test_a_topic_made_again_behind_a_query_of_one_batch_is_data_loss_by_name(
    cluster: ChangingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its only batch was planned within the seconds for which marks stay as they are."""
    monkeypatch.setattr(live_queues, "LOOK_EVERY_S", 600.0)
    fill(cluster, 49)
    query = checkpoint_of(cluster)
    assert json.loads(query.offset_log[-1])[MARKS][TOPIC]["broker-a"]["0"][0] == 48
    make_again(cluster)
    fill(cluster, 60)
    query.start(options_of(cluster))
    with pytest.raises(DataLossError, match=f"topic {TOPIC} was deleted and made again"):
        query.trigger()
    query.stop()


def test_a_topic_made_again_and_empty_at_the_next_look_is_data_loss_by_name(
    cluster: ChangingCluster,
) -> None:
    fill(cluster, 49)
    query = checkpoint_of(cluster)
    make_again(cluster)
    # Nothing is there to compare with, so a shorter queue is waited for.
    query.start(options_of(cluster, timeoutMs="1000"))
    with pytest.raises(DataLossError, match=rf"offsets 0 to 48 of {TOPIC}@broker-a:0 \(beyond"):
        query.trigger()
    fill(cluster, 60)
    query.start(options_of(cluster))
    with pytest.raises(DataLossError, match=f"topic {TOPIC} was deleted and made again"):
        query.trigger()
    query.stop()


def test_a_topic_made_again_and_empty_is_read_from_its_first_message_where_gaps_are_allowed(
    cluster: ChangingCluster, tmp_path: Path
) -> None:
    old = fill(cluster, 49)
    gaps = {"failOnDataLoss": "false", "gapLog": str(tmp_path)}
    query = checkpoint_of(cluster, **gaps)
    make_again(cluster)
    query.start(options_of(cluster, **gaps, timeoutMs="1000"))
    assert query.trigger()
    assert not query.trigger()
    new = fill(cluster, 60)
    while query.trigger():
        pass
    query.stop()
    assert sorted(place for places in query.output.values() for place in places) == sorted(
        old + new
    )
    (noted,) = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert (noted["cause"], noted["start"], noted["end"]) == ("beyond the end", 0, 49)


def test_a_topic_made_again_while_the_query_runs_is_data_loss_by_name(
    cluster: ChangingCluster,
) -> None:
    fill(cluster, 49)
    query = checkpoint_of(cluster)
    query.start(options_of(cluster))
    assert not query.trigger()
    make_again(cluster)
    fill(cluster, 60)
    with pytest.raises(DataLossError, match=f"topic {TOPIC} was deleted and made again"):
        query.trigger()
    query.stop()


def test_a_checkpoint_without_marks_opens_and_gets_marks_with_its_next_batch(
    cluster: ChangingCluster,
) -> None:
    """As an earlier version wrote it."""
    sent = fill(cluster, 49)
    query = checkpoint_of(cluster)
    tables: list[dict[str, Any]] = [json.loads(text) for text in query.offset_log]
    assert all(table.pop(MARKS, None) for table in tables[1:])
    query.offset_log = [json.dumps(table) for table in tables]
    query.start(options_of(cluster))
    assert not query.trigger()
    sent += fill(cluster, 3)
    assert query.trigger()
    assert json.loads(query.offset_log[-1])[MARKS][TOPIC]["broker-a"]["0"][0] == 51
    assert not query.trigger()
    query.stop()
    assert sorted(place for places in query.output.values() for place in places) == sorted(sent)


def test_topics_deleted_under_a_pattern_are_reported_once(cluster: ChangingCluster) -> None:
    fill(cluster, 5, "orders-a")
    fill(cluster, 5, "orders-b")
    options = options_of(cluster, subscribePattern="orders-.*")
    del options["subscribe"]
    query = MicroBatches(random.Random(0), lambda: None, failures=0)
    query.start(options)
    while query.trigger():
        pass
    delete(cluster, "orders-b")
    with capture_logs() as lines:
        for _ in range(3):
            query.trigger()
    query.stop()
    gone = [line for line in lines if "are gone" in line["event"]]
    assert [line["topics"] for line in gone] == ["orders-b"]
