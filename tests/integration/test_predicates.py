"""Test selection by functions of the broker: what became of Java's class-filter mode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.integration import filter_functions
from tests.integration.client_faces import Face, Received, open_face
from tests.integration.raw_client import RawClient, pull_ext
from tests.waits import eventually

from cometmq import CompressionType, ConsumeFromWhere, Message
from cometmq.broker.filters.predicates import FilterPredicate
from cometmq.errors import ConfigError, IllegalArgumentError, RemoteError
from cometmq.testing import Cluster

FIRST = ConsumeFromWhere.FIRST_OFFSET
HERE = "tests.integration.filter_functions"
GET_ROUTE, HEART_BEAT, PULL, GET_RUNTIME_INFO = 105, 34, 11, 28
CLASS_FILTER = 8


pytestmark = [
    pytest.mark.cluster(
        properties={
            "accessMessageInMemoryMaxRatio": "0",
            "filterPredicateModules": f"{HERE}:is_paid, fails={HERE}:fails,{HERE}:dawdles,"
            f"com.shop.PaidFilter={HERE}:is_paid",
            "filterPredicateTimeLimit": "200",
        }
    )
]


def send(producer: Any, topic: str, body: bytes, tags: str = "paid") -> None:
    producer.send(Message(topic, body, tags=tags))


def consume(face: Face, topic: str, received: Received, predicate: str, **options: Any) -> Any:
    consumer = face.new_consumer(
        topic, face.listener(received.handle), consume_from=FIRST, **options
    )
    consumer.subscribe(topic, predicate=predicate)
    return face.started(consumer)


def known(cluster: Cluster, name: str) -> FilterPredicate:
    return cluster.brokers[0].predicates.find(name)


def make_topic(cluster: Cluster, face: Face, topic: str) -> Any:
    """Have the broker create the topic; return a producer when the name server knows the topic."""
    producer = face.producer(f"{topic}-make")
    send(producer, topic, b"made")
    with RawClient(cluster.namesrv) as client:
        eventually(lambda: client.ask(GET_ROUTE, {"topic": topic}).code == 0)
    return producer


def test_a_predicate_selects(face: Face, name: str) -> None:
    producer = face.producer(name, compress_over_bytes=100, compression=CompressionType.ZSTD)
    send(producer, name, b"order 1")
    send(producer, name, b"order 2", tags="open")
    send(producer, name, b"refund 3")
    received = Received()
    consume(face, name, received, "is_paid")
    received.wait_for(1)
    send(producer, name, b"refund 4")  # these find it waiting
    send(producer, name, b"order 5" * 100)
    received.wait_for(2)
    assert received.bodies == [b"order 1", b"order 5" * 100]


def test_a_lite_pull_consumer_selects_too(face: Face, name: str) -> None:
    producer = face.producer(name)
    send(producer, name, b"refund 1")
    send(producer, name, b"order 2")
    lite = face.new_lite_pull_consumer(name, consume_from=FIRST)
    lite.subscribe(name, predicate="is_paid")
    face.started(lite)
    polled = eventually(lambda: lite.poll(1000))
    assert [message.body for message in polled] == [b"order 2"]
    queue = next(queue for queue in lite.queues(name) if lite.max_offset(queue))
    assert lite.pull(queue, 0, predicate="is_paid").next_begin_offset > 0


def test_what_a_predicate_raises_is_counted_and_stops_nobody(
    cluster: Cluster, face: Face, name: str
) -> None:
    errors = known(cluster, "fails").errors
    producer = face.producer(name)
    for i in range(5):
        send(producer, name, b"%d" % i)
    failing, other = Received(), Received()
    consume(face, name, failing, "fails")
    face.consumer(f"{name}-other", name, other.handle, consume_from=FIRST)
    # A listener can refuse a message too many, but nobody can get back a message too few.
    failing.wait_for(5)
    other.wait_for(5)
    counted = known(cluster, "fails").errors
    assert counted >= errors + 5
    with RawClient(cluster.brokers[0].address) as client:
        table = json.loads(client.ask(GET_RUNTIME_INFO).body)["table"]
    assert int(table["filterPredicate_fails_errors"]) >= counted


def test_a_slow_predicate_rests_and_its_pulls_are_refused(cluster: Cluster, name: str) -> None:
    with open_face("blocking", cluster.namesrv) as face:
        producer = make_topic(cluster, face, name)
        for _ in range(40):
            send(producer, name, b"x")
        filter_functions.slow.set()
        try:
            lite = face.started(face.new_lite_pull_consumer(name))
            queues = lite.queues(name)
            queue = eventually(
                lambda: next((queue for queue in queues if lite.max_offset(queue) >= 3), None)
            )
            # A message takes all the work that filters may do in a turn, so each pull returns one.
            for offset in range(3):
                assert lite.pull(queue, offset, predicate="dawdles").next_begin_offset == offset + 1
            with pytest.raises(RemoteError, match=r"filterPredicateTimeLimit .200 ms. for 3 mess"):
                lite.pull(queue, 0, predicate="dawdles")
        finally:
            filter_functions.slow.clear()
        assert known(cluster, "dawdles").overruns >= 3
        assert lite.pull(queue, 0, predicate="is_paid").next_begin_offset > 0


@pytest.mark.parametrize("kind", ["new_consumer", "new_lite_pull_consumer"])
def test_a_name_that_the_broker_does_not_have_fails_the_start(
    cluster: Cluster, face: Face, name: str, kind: str
) -> None:
    make_topic(cluster, face, name)
    consumer = getattr(face, kind)(name)
    if kind == "new_consumer":
        consumer.listen(face.listener(Received().handle))
    consumer.subscribe(name, predicate="is_payed")
    with pytest.raises(RemoteError, match=r"'is_payed' \(known: com.shop.PaidFilter, dawdles,"):
        consumer.start()
    with pytest.raises(IllegalArgumentError, match="not by both"):
        consumer.subscribe(name, "TagA", predicate="is_paid")


def test_a_class_filter_of_java_reaches_the_predicate_of_its_name(
    cluster: Cluster, face: Face, name: str
) -> None:
    producer = make_topic(cluster, face, name)
    face.until_readable(producer.send(Message(name, b"order 1", tags="paid")))
    broker = cluster.brokers[0].address
    with RawClient(cluster.namesrv) as client:
        route = json.loads(client.ask(GET_ROUTE, {"topic": name}).body)
    assert route["filterServerTable"] == {broker: [broker]}
    subscription = {
        "classFilterMode": True,
        "codeSet": [],
        "expressionType": "TAG",
        "subString": "com.shop.PaidFilter",
        "subVersion": 7,
        "tagsSet": [],
        "topic": name,
    }
    consumer = {
        "groupName": name,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    heartbeat = {"clientID": "java@1", "consumerDataSet": [consumer], "producerDataSet": []}
    with RawClient(broker) as client:
        assert client.ask(HEART_BEAT, body=json.dumps(heartbeat).encode()).code == 0
        bodies = b""
        for queue_id in range(4):
            ext = pull_ext(
                name,
                consumerGroup=name,
                queueId=queue_id,
                sysFlag=CLASS_FILTER,
                subscription=None,
                subVersion=7,
            )
            bodies += client.ask(PULL, ext).body
    assert b"order 1" in bodies
    assert b"made" not in bodies


@pytest.mark.parametrize(
    ("code", "reason"),
    [(302, "runs no source that clients upload"), (301, "filter servers are not served")],
)
def test_uploaded_source_is_refused_with_an_explanation(
    cluster: Cluster, code: int, reason: str
) -> None:
    ext = {
        "consumerGroup": "g",
        "topic": "t",
        "className": "com.shop.PaidFilter",
        "classCRC": 1,
        "filterServerAddr": "127.0.0.1:1",
    }
    with RawClient(cluster.brokers[0].address) as client:
        answer = client.ask(code, ext, b"public class PaidFilter {}")
    assert answer.code == 16
    assert reason in str(answer.remark)
    assert "filterPredicateModules" in str(answer.remark)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("is_paid", "must be name=package.module:function"),
        ("=:", "must be name=package.module:function"),
        ("no.such.module:x", "ModuleNotFoundError"),
        (f"{HERE}:missing", "AttributeError"),
        (f"{HERE}:NOTHING", "is no plain function"),
        (f"{HERE}:waits", "is no plain function"),
        (f"{HERE}:fails,fails={HERE}:is_paid", "names fails twice"),
    ],
)
async def test_a_configuration_that_names_no_function_is_refused(entry: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        async with Cluster(properties={"filterPredicateModules": entry}):
            pass
