"""A writer's refusals on the driver, and how a task sends its rows, without a Spark."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from tests.spark.sink_rows import by_key, make_topic, messages_of, wait_for

from cometmq.errors import IllegalArgumentError, RouteNotFoundError
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.tasks import send_rows
from cometmq.spark.sink.writer import SinkStreamWriter, SinkWriter
from cometmq.testing.cluster import Cluster

KEYS = 5
TYPES = {"string": t.StringType(), "int": t.IntegerType(), "bigint": t.LongType()}


pytestmark = pytest.mark.cluster(brokers=2)


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    make_topic(cluster.namesrv, "orders", ("broker-a", "broker-b"))
    return cluster


def schema_of(columns: str) -> t.StructType:
    pairs = [column.split() for column in columns.split(", ")]
    return t.StructType([t.StructField(name, TYPES[kind]) for name, kind in pairs])


ONCE = {"delivery": "exactly-once"}
BODY = "body string"


@pytest.mark.parametrize(
    ("options", "columns", "words"),
    [
        ({"colour": "red"}, BODY, r"the sink rocketmq has no option colour"),
        ({"sendsInflite": "3"}, BODY, r"did you mean sendsInFlight"),
        ({}, "tags string", r"has no column body"),
        ({}, "body string, tags int", r"the column tags is int.*cast it"),
        ({}, "body string, amount int", r"does not know the column amount.*drop"),
        ({"topic": ""}, BODY, r"topic .* is empty"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, BODY, r"the broker's own"),
        ({"delivery": "twice"}, BODY, r"must be at-least-once or exactly-once"),
        (ONCE, BODY, r"so give outbox, a directory"),
        ({**ONCE, "outbox": "/o"}, BODY, r"so give transactionId"),
        ({**ONCE, "outbox": "/o", "transactionId": "a/b"}, BODY, r"letters, digits"),
        ({"outbox": "/o"}, BODY, r"outbox .* is for delivery=exactly-once"),
        (
            {**ONCE, "outbox": "/o", "transactionId": "t"},
            "body string, delay_level int",
            r"does not go with .* delay_level.*at-least-once",
        ),
        ({"badRows": "skip"}, BODY, r"badRows .* must be fail or deadLetter"),
        ({"badRows": "deadLetter"}, BODY, r"so give deadLetterTopic"),
        ({"deadLetterTopic": "bad"}, BODY, r"deadLetterTopic .* is for badRows=deadLetter"),
        (
            {"badRows": "deadLetter", "deadLetterTopic": "orders"},
            BODY,
            r"deadLetterTopic .* is orders, where the good rows go",
        ),
        ({"compression": "rar"}, BODY, r"must be one of none, lz4, zstd, zlib"),
        ({"batchBytes": "5000000"}, BODY, r"batchBytes .* 1\.\.4194304"),
        ({"secretKey": "s3cr3t"}, BODY, r"the option secretKey of the sink .* holds a secret"),
        ({"keepOrigin": "true"}, BODY, r"has none of the columns"),
        ({"checkpointLocation": "/c"}, BODY, r"is for a stream, not a batch"),
        ({"namesrv": "nowhere"}, BODY, r"no name-server address"),
    ],
)
def test_what_a_job_is_refused_for(options: dict[str, str], columns: str, words: str) -> None:
    given = {"namesrv": "127.0.0.1:9", "topic": "orders", **options}
    with pytest.raises(IllegalArgumentError, match=words) as caught:
        SinkWriter(given, schema_of(columns), overwrite=False)
    assert "s3cr3t" not in str(caught.value)


def test_servers_are_asked_before_a_job_starts(cluster: Cluster, tmp_path: Path) -> None:
    given = {"namesrv": cluster.namesrv, "topic": "nowhere", "timeoutMs": "0"}
    for writer in (SinkWriter, SinkStreamWriter):
        with pytest.raises(RouteNotFoundError, match=r"topic nowhere cannot be .* make it first"):
            writer(given, schema_of(BODY), overwrite=False)
        with pytest.raises(Exception, match=r"of 127\.0\.0\.1:1 answers.* option namesrv"):
            writer({**given, "namesrv": "127.0.0.1:1"}, schema_of(BODY), overwrite=False)
        with pytest.raises(IllegalArgumentError, match="cannot overwrite what is there"):
            writer(given, schema_of(BODY), overwrite=True)
        writer({**given, "topic": "orders"}, schema_of(BODY), overwrite=False)
        bad = {"topic": "orders", "badRows": "deadLetter", "deadLetterTopic": "no-letters"}
        with pytest.raises(RouteNotFoundError, match=r"topic no-letters cannot be .* make it"):
            writer({**given, **bad}, schema_of(BODY), overwrite=False)
        without = {name: value for name, value in given.items() if name != "topic"}
        writer(without, schema_of("body string, topic string, queue_id int"), overwrite=False)
        with pytest.raises(IllegalArgumentError, match="needs a topic"):
            writer(without, schema_of(BODY), overwrite=False)
    stream = {**given, "topic": "orders", **ONCE}
    with pytest.raises(IllegalArgumentError, match=r"checkpointLocation as an option .* or outbox"):
        SinkStreamWriter(stream, schema_of(BODY), overwrite=False)
    with pytest.raises(IllegalArgumentError, match="is for a batch, not a stream"):
        SinkStreamWriter({**stream, "transactionId": "t"}, schema_of(BODY), overwrite=False)
    checkpoint = {"checkpointLocation": f"file:{tmp_path}/checkpoint", "queryName": "q"}
    SinkStreamWriter({**stream, **checkpoint}, schema_of(BODY), overwrite=False)
    assert (tmp_path / "checkpoint" / "rocketmq-sink").is_dir()


def rows(count: int, *, keyed: bool) -> Any:
    columns = {"body": pa.array([str(at) for at in range(count)])}
    if keyed:
        columns["sharding_key"] = pa.array([f"K-{at % KEYS}" for at in range(count)])
    return iter([pa.record_batch(columns)])


def test_rows_without_a_key_are_spread_over_the_queues(cluster: Cluster) -> None:
    make_topic(cluster.namesrv, "spread", ("broker-a", "broker-b"))
    given = {"namesrv": cluster.namesrv, "topic": "spread", "batchBytes": "2000"}
    assert send_rows(SinkOptions(given, streaming=False), rows(1000, keyed=False)).rows == 1000
    messages = messages_of(cluster.namesrv, "spread")
    assert Counter(m.body for m in messages) == Counter(b"%d" % at for at in range(1000))
    assert len({(m.broker_name, m.queue_id) for m in messages}) == 8


@pytest.mark.parametrize("keyed", [True, False])
def test_brokers_restart_while_rows_are_sent(cluster: Cluster, keyed: bool) -> None:
    topic, count = f"restart-{keyed}", 4000
    make_topic(cluster.namesrv, topic, ("broker-a", "broker-b"))
    given = {"namesrv": cluster.namesrv, "topic": topic, "batchBytes": "200", "sendsInFlight": "4"}
    options = SinkOptions(given, streaming=False)
    sent: list[int] = []
    sender = threading.Thread(
        target=lambda: sent.append(send_rows(options, rows(count, keyed=keyed)).rows)
    )
    sender.start()
    for broker in (0, 1):
        wait_for(cluster.namesrv, topic, (broker + 1) * 500, lambda: bool(sent))
        cluster.call("restart_broker", broker)
    sender.join()
    assert sent == [count]
    messages = messages_of(cluster.namesrv, topic)
    assert {int(m.body) for m in messages} == set(range(count))
    if keyed:
        # What is doubled comes again; what came first came in order.
        found = by_key(messages, lambda m: m.properties["__SHARDINGKEY"])
        first = {key: list(dict.fromkeys(bodies)) for key, bodies in found.items()}
        assert first == {f"K-{at}": [str(n) for n in range(at, count, KEYS)] for at in range(KEYS)}
