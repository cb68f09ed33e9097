"""The consumer that receives messages and acknowledges each, by both faces against a real broker."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.integration.client_faces import Face
from tests.waits import WAIT_S, eventually

from cometmq import Message, MessageQueue
from cometmq.errors import ClientStateError

# As long as a message may stay hidden that is not to come again within a test.
LONG_MS = 600_000


def fill(face: Face, topic: str, *bodies: bytes, **properties: Any) -> None:
    producer = face.producer(f"{topic}-fill-{time.monotonic_ns()}")
    queue = MessageQueue(topic, "broker-a", 0)
    for body in bodies:
        result = producer.send(Message(topic, body, **properties), queue=queue)
    face.until_readable(result)
    producer.close()


def consumer_of(face: Face, topic: str, tags: str = "*", **options: Any) -> Any:
    consumer = face.new_simple_consumer(topic, **{"invisible_ms": LONG_MS, **options})
    consumer.subscribe(topic, tags)
    return face.started(consumer)


def receive(face: Face, consumer: Any, count: int, **options: Any) -> list[Any]:
    """Receive until there are `count` messages."""
    deadline = time.monotonic() + WAIT_S
    messages: list[Any] = []
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} came"
        messages += face.received(consumer.receive(count, **{"wait_ms": 2_000, **options}))
    return messages


def test_what_is_acknowledged_is_done_and_what_is_given_back_comes_again(
    face: Face, name: str
) -> None:
    fill(face, name, b"0", b"1", b"2", b"3")
    consumer = consumer_of(face, name)
    messages = receive(face, consumer, 4)
    assert [message.body for message in messages] == [b"0", b"1", b"2", b"3"]
    assert {message.topic for message in messages} == {name}
    assert {message.reconsume_times for message in messages} == {0}
    for message in messages[:3]:
        message.ack()
    with pytest.raises(ClientStateError, match=r"was (acknowledged|given back); it cannot be"):
        messages[0].nack()
    messages[3].nack()
    (again,) = receive(face, consumer, 1)
    assert (again.body, again.topic, again.reconsume_times) == (b"3", name, 1)
    again.ack()
    assert consumer.receive(wait_ms=500) == []


def test_a_message_comes_again_when_its_time_is_over_unless_it_is_extended(
    face: Face, name: str
) -> None:
    fill(face, name, b"0", b"1")
    consumer = consumer_of(face, name)
    (first, second) = receive(face, consumer, 2, invisible_ms=10_000)
    first.extend(LONG_MS)
    (again,) = receive(face, consumer, 1)
    assert (again.body, again.reconsume_times) == (second.body, 1)
    again.ack()
    first.ack()
    assert consumer.receive(wait_ms=500) == []


def test_a_message_is_made_a_dead_letter_at_once(face: Face, name: str) -> None:
    fill(face, name, b"0", b"1")
    consumer = consumer_of(face, name)
    good, bad = receive(face, consumer, 2)
    good.ack()
    bad.dead_letter("no such article")
    assert consumer.receive(wait_ms=500) == []
    letters = face.new_simple_consumer(f"{name}-letters", invisible_ms=LONG_MS)
    letters.subscribe(f"%DLQ%{name}")
    (letter,) = receive(face, face.started(letters), 1)
    assert (letter.body, letter.origin_topic) == (b"1", name)
    letter.ack()


def test_a_batch_in_order_blocks_its_queue_until_it_is_acknowledged(face: Face, name: str) -> None:
    fill(face, name, b"0", b"1", b"2", b"3")
    consumer = consumer_of(face, name, ordered=True)
    first = receive(face, consumer, 2)
    assert [message.body for message in first] == [b"0", b"1"]
    first[0].ack()
    assert consumer.receive(wait_ms=500) == []
    first[1].ack()
    rest = receive(face, consumer, 2)
    assert [message.body for message in rest] == [b"2", b"3"]
    for message in rest:
        message.ack()


def test_only_messages_of_the_tag_come(face: Face, name: str) -> None:
    fill(face, name, b"0", tags="new")
    fill(face, name, b"1", tags="paid")
    consumer = consumer_of(face, name, "paid")
    (message,) = receive(face, consumer, 1)
    assert (message.body, message.tags) == (b"1", "paid")
    message.ack()
    assert consumer.receive(wait_ms=500) == []


def test_an_iteration_ends_each_message_by_its_block(face: Face, name: str) -> None:
    fill(face, name, *(b"%d" % number for number in range(5)))
    # A Java broker that is silent under load may have popped messages whose answer is lost: they come later.
    consumer = consumer_of(face, name, max_messages=2, invisible_ms=60_000)
    following = face.following(consumer)
    seen: list[tuple[bytes, int]] = []
    for message in following:
        with contextlib.suppress(KeyError), message:
            seen.append((message.body, message.reconsume_times))
            if [body for body, _ in seen].count(b"3") == 1 and message.body == b"3":
                raise KeyError("price")
        if len(seen) == 6:
            break
    assert sorted(body for body, _ in seen) == [b"0", b"1", b"2", b"3", b"3", b"4"]
    first, again = (times for body, times in seen if body == b"3")
    assert again == first + 1
    assert consumer.receive(wait_ms=500) == []


def test_an_iteration_takes_no_more_than_max_messages(face: Face, name: str) -> None:
    fill(face, name, b"0", b"1", b"2", b"3")
    one, other = consumer_of(face, name, max_messages=2), consumer_of(face, name)
    first = next(face.following(one))
    rest = receive(face, other, 2)
    assert [first.body, *(message.body for message in rest)] == [b"0", b"2", b"3"]
    for message in (first, *rest):
        message.ack()


def test_an_iteration_ends_when_the_consumer_is_closed(face: Face, name: str) -> None:
    fill(face, name, b"0", b"1", b"2")
    consumer = consumer_of(face, name, wait_ms=LONG_MS)
    following = face.following(consumer)
    with next(following):  # an acknowledgement waits until the broker has answered
        pass
    left = next(following)
    with ThreadPoolExecutor(1) as pool:
        bodies = pool.submit(lambda: [message.body for message in following])
        eventually(lambda: bodies.done() or bodies.running())
        consumer.close()
        assert bodies.result(WAIT_S) in ([], [b"2"])
    with pytest.raises(ClientStateError, match="is closed"):
        left.ack()
