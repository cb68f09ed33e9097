"""Test requests and replies through real brokers: both faces ask, both faces reply."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.integration.client_faces import AsyncFace, BlockingFace, Face
from tests.integration.test_client_scenarios import create_topic
from tests.waits import SEND_WAIT_MS, WAIT_S, eventually

from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
    create_reply_message,
)
from cometmq.errors import IllegalArgumentError, RequestTimeoutError

FIRST = ConsumeFromWhere.FIRST_OFFSET
# A request without a reply must have been sent by then: else another error is told.
SENT_BY_MS = 3000


# Two brokers: a reply may come by the one that knows the requester only because it asked there.
pytestmark = [pytest.mark.cluster(brokers=2, properties={"accessMessageInMemoryMaxRatio": "0"})]


@pytest.fixture
def replier(face: BlockingFace, name: str) -> list[MessageExt]:
    """Start a consumer that answers each request with its body in capitals; return the requests."""
    requests: list[MessageExt] = []

    def replies_to(messages: list[MessageExt]) -> list[Message]:
        requests.extend(messages)
        asked = [message for message in messages if message.body != b"silence"]
        return [create_reply_message(message, message.body.upper()) for message in asked]

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        for reply in replies_to(messages):
            producer.send(reply)
        return ConsumeResult.SUCCESS

    async def listen_on_loop(messages: list[MessageExt]) -> ConsumeResult:
        for reply in replies_to(messages):
            await producer.client.send(reply)
        return ConsumeResult.SUCCESS

    producer = face.producer(f"{name}-replies")
    listener = listen_on_loop if isinstance(face, AsyncFace) else listen
    consumer = face.new_consumer(f"{name}-repliers", listener, consume_from=FIRST)
    consumer.subscribe(name, "ask")
    face.started(consumer)
    return requests


def ask(name: str, body: bytes = b"hello") -> Message:
    return Message(name, body, tags="ask")


def test_a_request_gets_the_reply_to_it(face: Face, name: str, replier: list[MessageExt]) -> None:
    create_topic(face, name)
    producer = face.producer(name)
    for i in range(8):  # replies come by either broker
        message = ask(name, b"hello %d" % i)
        reply = producer.request(message, timeout_ms=SEND_WAIT_MS)
        assert reply.body == b"HELLO %d" % i
        assert reply.properties["MSG_TYPE"] == "reply"
        assert "CORRELATION_ID" not in message.properties
    asked = replier[0].properties
    assert asked["REPLY_TO_CLIENT"] == producer.client_id
    assert asked["TTL"] == str(SEND_WAIT_MS)
    assert len({m.properties["CORRELATION_ID"] for m in replier}) == 8


def test_a_request_to_a_topic_made_on_demand(
    face: Face, name: str, replier: list[MessageExt]
) -> None:
    producer = face.producer(name)
    assert producer.request(ask(name), timeout_ms=SEND_WAIT_MS).body == b"HELLO"
    assert len(replier) == 1


@pytest.mark.faces("virtual", "blocking")
def test_requests_in_the_background(face: Face, name: str, replier: list[MessageExt]) -> None:
    create_topic(face, name)
    producer = face.producer(name)
    reported: list[tuple[Any, Any]] = []

    def callback(reply: Any, error: Any) -> None:
        reported.append((reply, error))

    def outcome(future: Any) -> Any:
        return future.result(WAIT_S) if hasattr(future, "result") else future

    queue = MessageQueue(name, "broker-a", 2)
    reply = outcome(
        producer.request_async(ask(name), callback, timeout_ms=SEND_WAIT_MS, queue=queue)
    )
    assert reply.body == b"HELLO"
    assert (replier[0].broker_name, replier[0].queue_id) == ("broker-a", 2)
    with pytest.raises(RequestTimeoutError, match="no reply came within 3000 ms"):
        outcome(producer.request_async(ask(name, b"silence"), callback, timeout_ms=SENT_BY_MS))
    eventually(lambda: len(reported) == 2)
    assert reported[0] == (reply, None)
    assert isinstance(reported[1][1], RequestTimeoutError)


def test_many_at_a_time_are_told_apart(face: Face, name: str, replier: list[MessageExt]) -> None:
    create_topic(face, name)
    producer = face.producer(name)
    results: dict[int, bytes] = {}

    def one(i: int) -> None:
        results[i] = producer.request(ask(name, b"n%d" % i), timeout_ms=SEND_WAIT_MS).body

    threads = [threading.Thread(target=one, args=(i,)) for i in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: b"N%d" % i for i in range(30)}
    assert len(replier) == 30


@pytest.mark.faces("virtual")
def test_without_a_replier_the_request_times_out(face: Face, name: str) -> None:
    producer = face.producer(name)
    producer.send(Message(name, b"makes the topic, so that the request leaves at once"))
    with pytest.raises(RequestTimeoutError, match="was sent to"):
        producer.request(ask(name), timeout_ms=SENT_BY_MS)


def test_what_may_not_be_sent_may_not_be_asked(face: Face, name: str) -> None:
    producer = face.producer(name)
    with pytest.raises(IllegalArgumentError, match="is empty"):
        producer.request(Message(name, b""))
    with pytest.raises(IllegalArgumentError, match="no request"):
        create_reply_message(MessageExt(name, b"plain"), b"x")
