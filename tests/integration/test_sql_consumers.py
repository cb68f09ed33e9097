"""Test consumers that select by SQL92, in both faces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.integration.raw_client import RawClient
from tests.waits import WAIT_S, eventually

from cometmq import ConsumeFromWhere, Message
from cometmq.errors import IllegalArgumentError, RemoteError

FIRST = ConsumeFromWhere.FIRST_OFFSET
GET_ROUTE = 105


pytestmark = [
    pytest.mark.cluster(
        properties={"enablePropertyFilter": "true", "accessMessageInMemoryMaxRatio": "0"}
    )
]


def send(producer: Any, topic: str, body: bytes, **properties: str) -> None:
    producer.send(Message(topic, body, properties=properties))


def make_topic(namesrv: str, face: Face, topic: str) -> None:
    """Have the broker create the topic; return when the name server knows it, for a start."""
    send(face.producer(f"{topic}-make"), topic, b"made")
    with RawClient(namesrv) as client:
        eventually(lambda: client.ask(GET_ROUTE, {"topic": topic}).code == 0)


@pytest.fixture
def started(face: Face) -> Iterator[Callable[..., Any]]:
    """Return a function that starts a consumer of `topic` with SQL; close all at the end."""
    consumers = []

    def start(group: str, topic: str, received: Received, sql: str) -> Any:
        consumer = face.new_consumer(group, face.listener(received.handle), consume_from=FIRST)
        consumer.subscribe(topic, sql=sql)
        consumer.start()
        consumers.append(consumer)
        return consumer

    yield start
    for consumer in consumers:
        consumer.close()


def test_sql_selects(face: Face, name: str, started: Callable[..., Any]) -> None:
    producer = face.producer(name)
    for i in range(20):
        properties = {"a": str(i)} | ({"b": "x"} if i % 2 else {})
        send(producer, name, b"%d" % i, **properties)
    received = Received()
    started(name, name, received, "a > 5 AND b IS NOT NULL")
    received.wait_for(7)
    for i in (30, 31):  # these find it waiting
        send(producer, name, b"%d" % i, a=str(i), b="x")
    send(producer, name, b"no", a="31")
    received.wait_for(9)
    assert sorted(int(body) for body in received.bodies) == [7, 9, 11, 13, 15, 17, 19, 30, 31]


def test_an_expression_changes_while_running(
    face: Face, name: str, started: Callable[..., Any]
) -> None:
    producer = face.producer(name)
    send(producer, name, b"first", kind="a")
    received = Received()
    consumer = started(name, name, received, "kind = 'a'")
    received.wait_for(1)
    consumer.subscribe(name, sql="kind = 'b'")
    deadline = time.monotonic() + WAIT_S
    # Messages of kind b are passed over until the brokers have heard of the change.
    while len(received.bodies) < 2:
        assert time.monotonic() < deadline
        send(producer, name, b"later", kind="b")
        time.sleep(0.02)
    assert received.bodies[1] == b"later"


def test_a_bad_expression_fails_the_start(
    namesrv: str, face: Face, name: str, started: Callable[..., Any]
) -> None:
    make_topic(namesrv, face, name)
    with pytest.raises(
        RemoteError, match=r"at line 1, column 4|line 1, column 5: the expression ends"
    ) as caught:
        started(name, name, Received(), "a > ")
    assert caught.value.code == 23


def test_tags_and_sql_exclude_each_other(face: Face, name: str) -> None:
    consumer = face.new_consumer(name)
    with pytest.raises(IllegalArgumentError, match="not by both"):
        consumer.subscribe("t", "TagA", sql="a = 1")
    with pytest.raises(IllegalArgumentError, match="may not be empty"):
        consumer.subscribe("t", sql="")
