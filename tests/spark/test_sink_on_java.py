"""The sink against the Java broker, and what a Java client gets of it."""

from __future__ import annotations

import binascii
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.interop.clients import JavaClient
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker, free_broker_port
from tests.spark.outbox_query import OutboxQuery
from tests.spark.rows import row_of
from tests.spark.sink_rows import awaited_messages, make_topic, messages_of, wait_for

from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.tasks import send_rows
from cometmq.testing.cluster import Cluster

pytestmark = pytest.mark.interop

BODIES = [b"one", b"\0\xff", b"z" * 5000, *(b"%d" % at for at in range(200))]


def batch() -> Any:
    count = len(BODIES)
    properties = [[("color", "röt"), ("at", str(at))] for at in range(count)]
    return pa.record_batch(
        {
            "body": pa.array(BODIES, pa.binary()),
            "tags": pa.array([("paid", None)[at % 2] for at in range(count)]),
            "keys": pa.array([[f"O-{at}", "all"] for at in range(count)]),
            "properties": pa.array(properties, pa.map_(pa.string(), pa.string())),
            "sharding_key": pa.array([(None, "S-1", "S-2")[at % 3] for at in range(count)]),
            "flag": pa.array([at % 5 for at in range(count)], pa.int32()),
            "delay_level": pa.array([None if at % 50 else 1 for at in range(count)], pa.int32()),
        }
    )


def send(namesrv: str, topic: str) -> None:
    make_topic(namesrv, topic)
    given = {"namesrv": namesrv, "topic": topic, "batchBytes": "3000", "compression": "zstd"}
    assert send_rows(SinkOptions(given, streaming=False), iter([batch()])).rows == len(BODIES)


def test_a_java_client_gets_what_the_sink_has_sent() -> None:
    need("java", "mvn")
    with Cluster() as cluster:
        send(cluster.namesrv, "orders")
        ours = [row_of(m) for m in awaited_messages(cluster.namesrv, "orders", len(BODIES))]
        theirs = JavaClient(5).pull(namesrv=cluster.namesrv, topic="orders")
    by_id = {event["msgId"]: event for event in theirs}
    assert len(ours) == len(BODIES)
    for row in ours:
        event = by_id[row["msg_id"]]
        assert event["crc32"] == binascii.crc32(row["body"])
        assert (event["tags"], event["keys"]) == (row["tags"], " ".join(row["keys"]))
        assert (event["queueId"], event["flag"]) == (row["queue_id"], row["flag"])
        assert event["properties"]["color"] == "röt"


def test_a_java_broker_gets_all_of_it_and_once(tmp_path: Path) -> None:
    need("java", "mvn")
    port = free_broker_port()
    conf = {"brokerName": "broker-a", "fileReservedTime": "1"}
    with Cluster(brokers=0) as cluster:
        namesrv = cluster.namesrv
        with JavaBroker(namesrv, port=port, store=tmp_path / "store", conf=conf) as broker:
            send(namesrv, "orders")
            found = {bytes(m.body): m for m in awaited_messages(namesrv, "orders", len(BODIES))}
            assert found.keys() == set(BODIES)
            for at, body in enumerate(BODIES):
                message = found[body]
                assert message.properties["at"] == str(at)
                assert (message.flag, list(message.keys)) == (at % 5, [f"O-{at}", "all"])
            for key in ("S-1", "S-2"):
                places = {
                    m.queue_id for m in found.values() if m.properties.get("__SHARDINGKEY") == key
                }
                assert len(places) == 1

            query = OutboxQuery(namesrv, tmp_path, "once", ("broker-a",), batchBytes=120)
            query.die_behind(0, query.tasks(0, 300), 20)
            query.commit(0, query.tasks(0, 300))
            query.check((0, 300))
            parts = query.tasks(1, 4000)
            sender = threading.Thread(target=query.commit, args=(1, parts))
            sender.start()
            wait_for(namesrv, "once", 800)
            broker.kill()
        with JavaBroker(namesrv, port=port, store=tmp_path / "store", conf=conf) as broker:
            sender.join()
            query.check((0, 300), (1, 4000))
            assert len(messages_of(namesrv, "once")) == 4300
            broker.kill()  # a clean stop takes ten seconds, and nothing is read from this store
