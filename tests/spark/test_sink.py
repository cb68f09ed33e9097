"""The sink `rocketmq`: every column, order by key, and what is refused before a job starts."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.spark.rows import row_of
from tests.spark.sink_rows import awaited_messages, by_key, make_topic, messages_of
from tests.waits import SEND_WAIT_MS

from cometmq import Message, Producer
from cometmq.testing.cluster import Cluster

# A JVM takes its time to start, on a busy machine more than anything here.

BROKERS = ("broker-a", "broker-b")


pytestmark = [pytest.mark.timeout(1500), pytest.mark.cluster(brokers=2)]


@pytest.fixture
def topic(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:100]
    make_topic(cluster.namesrv, name, BROKERS)
    return name


def sink(frame: Any, cluster: Cluster, **options: Any) -> Any:
    writer = frame.write.format("rocketmq").mode("append").option("namesrv", cluster.namesrv)
    return writer.options(**{name: str(value) for name, value in options.items()})


def test_every_column_arrives(spark: Any, cluster: Cluster, topic: str) -> None:
    due = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    rows = [
        (b"one", topic, "paid", ["O-1", "C-7"], {"color": "röt", "UNIQ_KEY": "old"}, None, 7),
        (b"\0\xff", topic, None, [], {}, None, None),
        (b"late", topic, "open", None, None, due, None),
        (b"z" * 300_000, topic, "", None, {"size": "large"}, None, 0),
    ]
    frame = spark.createDataFrame(
        rows,
        "body binary, topic string, tags string, keys array<string>, "
        "properties map<string,string>, deliver_time timestamp, flag int",
    )
    sink(frame.coalesce(1), cluster, batchBytes=100_000, compression="zstd").save()
    found = {bytes(m.body): m for m in awaited_messages(cluster.namesrv, topic, 4)}
    one = found[b"one"]
    assert (one.tags, list(one.keys), one.flag) == ("paid", ["O-1", "C-7"], 7)
    assert one.properties["color"] == "röt"
    assert "old" not in one.properties.values()
    assert len({m.unique_id for m in found.values()}) == 4
    plain = found[b"\0\xff"]
    assert (plain.tags, list(plain.keys), plain.flag) == (None, [], 0)
    assert row_of(found[b"late"])["deliver_time"] == int(due.timestamp() * 1000)
    large = found[b"z" * 300_000]
    assert large.properties["size"] == "large"
    assert large.store_size < 200_000


def test_rows_of_the_source_go_into_a_topic_again(spark: Any, cluster: Cluster, topic: str) -> None:
    with Producer("origin", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for at in range(20):
            producer.send(
                Message(topic, b"%d" % at, tags="t", keys=[f"K-{at}"], properties={"at": str(at)}),
                key=f"C-{at % 3}",
            )
    target = f"{topic}-again"
    make_topic(cluster.namesrv, target, BROKERS)
    source = spark.read.format("rocketmq").option("namesrv", cluster.namesrv)
    rows = source.option("subscribe", topic).load().where("tags is not null")
    keyed = rows.selectExpr("*", "cast(queue_id as string) as sharding_key")
    sink(keyed, cluster, topic=target, keepOrigin="true").save()
    sent = {m.body: m for m in messages_of(cluster.namesrv, topic)}
    again = {m.body: m for m in awaited_messages(cluster.namesrv, target, 20)}
    assert again.keys() == sent.keys()
    for body, message in again.items():
        origin = sent[body]
        assert (message.tags, message.keys) == (origin.tags, origin.keys)
        properties = message.properties
        assert properties["at"] == origin.properties["at"]
        assert properties["ORIGIN_TOPIC"] == topic
        assert properties["ORIGIN_MSG_ID"] == origin.msg_id != message.msg_id
        assert properties["ORIGIN_QUEUE_ID"] == str(origin.queue_id)
        assert properties["ORIGIN_QUEUE_OFFSET"] == str(origin.queue_offset)
        assert properties["ORIGIN_STORE_TIME"] == str(origin.store_timestamp_ms)
        assert properties["ORIGIN_BORN_TIME"] == str(origin.born_timestamp_ms)


def test_rows_of_a_key_lie_in_one_queue_in_their_order(
    spark: Any, cluster: Cluster, topic: str
) -> None:
    count, keys = 5000, 23
    frame = spark.range(count).selectExpr(
        "cast(id as string) as body", f"concat('K-', id % {keys}) as sharding_key"
    )
    ordered = frame.repartition(2, "sharding_key").sortWithinPartitions(frame.body.cast("int"))
    sink(ordered, cluster, topic=topic, batchBytes=4096, sendsInFlight=8).save()
    messages = awaited_messages(cluster.namesrv, topic, count)
    found = by_key(messages, lambda m: m.properties.get("__SHARDINGKEY"))
    assert found == {f"K-{at}": [str(n) for n in range(at, count, keys)] for at in range(keys)}
    with Producer("same", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        result = producer.send(Message(topic, b"by hand"), key="K-5")
    places = {(m.broker_name, m.queue_id) for m in messages if m.body == b"5"}
    assert places == {(result.queue.broker_name, result.queue.queue_id)}


def test_what_is_wrong_fails_the_job(spark: Any, cluster: Cluster, topic: str) -> None:
    frame = spark.range(1).selectExpr("repeat('x', 4194305) as body")
    with pytest.raises(Exception, match=f"topic {topic}-none cannot be written to.*make it"):
        sink(frame, cluster, topic=f"{topic}-none").save()
    words = f"(?s)the body of a row for topic {topic} takes 4194305 bytes, the limit is 4194304"
    with pytest.raises(Exception, match=words):
        sink(frame, cluster, topic=topic).save()
    assert messages_of(cluster.namesrv, topic) == []


def test_a_job_with_an_id_is_sent_once(
    spark: Any, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    frame = spark.range(1000).selectExpr(
        "cast(id as string) as body", "concat('K-', id % 7) as sharding_key"
    )
    options = {"topic": topic, "delivery": "exactly-once", "outbox": tmp_path / "outbox"}
    for name in ("first", "first", "second"):
        sink(frame, cluster, transactionId=name, **options).save()
    messages = awaited_messages(cluster.namesrv, topic, 2000)
    assert Counter(m.body for m in messages) == Counter(2 * [b"%d" % at for at in range(1000)])
    assert list((tmp_path / "outbox").rglob("part-*")) == []


def test_a_job_that_fails_sends_nothing_and_can_be_run_again(
    spark: Any, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    frame = spark.range(1000).selectExpr("cast(id as string) as body")
    bad = frame.selectExpr("if(body = '999', null, body) as body")
    options = {"topic": topic, "delivery": "exactly-once", "outbox": tmp_path / "outbox"}
    with pytest.raises(Exception, match="has no body"):
        sink(bad.coalesce(1), cluster, transactionId="alone", **options).save()
    assert list((tmp_path / "outbox").glob("job-*")) == []
    # A task that still runs when another one fails may write its part after the job was given up.
    with pytest.raises(Exception, match="has no body"):
        sink(bad.repartition(4), cluster, transactionId="again", **options).save()
    assert messages_of(cluster.namesrv, topic) == []
    sink(frame, cluster, transactionId="again", **options).save()
    messages = awaited_messages(cluster.namesrv, topic, 1000)
    assert Counter(m.body for m in messages) == Counter(b"%d" % at for at in range(1000))
    assert list((tmp_path / "outbox").rglob("part-*")) == []
