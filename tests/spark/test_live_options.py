"""Options of the live source and sink that change what is read and sent, without a JVM."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as ds
from tests.spark.test_stream_outages import quiet_query
from tests.waits import CLOCKS_APART_MS, SEND_WAIT_MS, eventually

from cometmq import Message, Producer
from cometmq.protocol.messages.compression import CompressionType
from cometmq.spark.live.source import RocketMQSource
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.tasks import send_rows
from cometmq.testing.cluster import Cluster

PLACE = ("topic", "broker", "queue_id", "queue_offset")


def read(
    cluster: Cluster, topic: str, filters: list[Any] | None = None, **options: str
) -> list[dict[str, Any]]:
    source = RocketMQSource({"namesrv": cluster.namesrv, "subscribe": topic, **options})
    reader = source.reader(source.schema())
    if filters is not None:
        reader.pushFilters(filters)
    parts = reader.partitions()
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def send(cluster: Cluster, topic: str, bodies: list[str], **options: str) -> None:
    given = {"namesrv": cluster.namesrv, "topic": topic, **options}
    send_rows(SinkOptions(given, streaming=False), iter([pa.record_batch({"body": bodies})]))


def test_a_namespace_does_not_show_in_the_names_of_topics(cluster: Cluster) -> None:
    inside: dict[str, Any] = {"namespace": "shop"}
    for namespace, body in (("shop", b"inside"), (None, b"outside")):
        with Producer(
            "filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS, namespace=namespace
        ) as producer:
            producer.send(Message("named", body))
    send(cluster, "named", ["sent"], **inside)
    rows = read(cluster, "named", **inside)
    assert {row["body"] for row in rows} == {b"inside", b"sent"}
    assert {row["topic"] for row in rows} == {"named"}
    assert read(cluster, "named", [ds.EqualTo(("topic",), "named")], **inside) == rows
    assert [row["body"] for row in read(cluster, "named")] == [b"outside"]


def test_a_stream_from_a_moment_on(cluster: Cluster) -> None:
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for _ in range(10):
            producer.send(Message("momentary", b"before"))
        moment_ms = int(time.time() * 1000) + 2 * CLOCKS_APART_MS
        eventually(lambda: time.time() * 1000 > moment_ms + 2 * CLOCKS_APART_MS)
        for _ in range(7):
            producer.send(Message("momentary", b"behind"))
        options = {
            "namesrv": cluster.namesrv,
            "subscribePattern": "momentary.*",
            "startingTimestamp": str(moment_ms),
        }
        query = quiet_query()
        query.drain(options)
        producer.send(Message("momentary-too", b"later"))
        query.drain(options)
    places = sorted(place for batch in query.output.values() for place in batch)
    wanted = [
        row
        for topic in ("momentary", "momentary-too")
        for row in read(cluster, topic)
        if row["body"] != b"before"
    ]
    assert places == sorted(tuple(row[name] for name in PLACE) for row in wanted)
    assert len(places) == 8


def test_bodies_as_they_are_stored(cluster: Cluster) -> None:
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        producer.send(Message("packed", b"z" * 500))
    # Those of the sink, from so many bytes on.
    options = {"compression": "zstd", "compressOverBytes": "1000"}
    send(cluster, "packed", ["a" * 999, "b" * 1000], **options)
    plain = sorted(row["body"] for row in read(cluster, "packed"))
    assert plain == [b"a" * 999, b"b" * 1000, b"z" * 500]
    stored = {
        row["body"][:1]: row for row in read(cluster, "packed", decompress="false", columns="all")
    }
    packed = [row for row in stored.values() if row["sys_flag"]]
    assert [row["sys_flag"] for row in packed] == [CompressionType.ZSTD.sys_flag]
    assert len(packed[0]["body"]) < 100
    assert {len(row["body"]) for row in stored.values() if not row["sys_flag"]} == {999, 500}


# The first two have one hash.
TAGS = ("Aa", "BB", "a||b", "a|b", "*", " paid", "paid")


def test_tags_that_look_alike_to_brokers_are_told_apart(cluster: Cluster) -> None:
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for tag in TAGS:
            producer.send(Message("tagged", tag.encode(), tags=tag))
    assert [row["tags"] for row in read(cluster, "tagged", tags="Aa || none")] == ["Aa"]
    for tag in TAGS:
        # Spark applies the filter again: what it lets pass must be among the rows.
        for given in (ds.EqualTo(("tags",), tag), ds.In(("tags",), (tag, "none"))):
            assert tag in [row["tags"] for row in read(cluster, "tagged", [given])]
    everything = read(cluster, "tagged", [ds.In(("tags",), tuple(map(str, range(70))))])
    assert len(everything) == len(TAGS)


def test_a_pattern_leaves_the_topics_of_brokers_out(cluster: Cluster) -> None:
    with Producer("filler", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        producer.send(Message("waiting", b"x", delay_level=18))
        producer.send(Message("waiting", b"y"))
    for pattern, topics in ((".*", {"waiting"}), ("wait", set()), ("SCHED.*|wait.*", {"waiting"})):
        source = RocketMQSource({"namesrv": cluster.namesrv, "subscribePattern": pattern})
        reader = source.streamReader(source.schema())
        found = reader.initialOffset().keys()
        reader.stop()
        assert found & {"waiting", "SCHEDULE_TOPIC_XXXX"} == topics
