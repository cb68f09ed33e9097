"""Pauses, seeks and lag, for consumers that listen and consumers that are polled."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.waits import CLOCK, eventually

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt, MessageQueue, QueueLag
from cometmq.errors import ClientStateError, IllegalArgumentError
from cometmq.model.names import retry_topic

FIRST = ConsumeFromWhere.FIRST_OFFSET
pytestmark = [
    pytest.mark.faces("virtual", "blocking"),
    pytest.mark.cluster(properties={"accessMessageInMemoryMaxRatio": "0"}),
]


def queue_of(topic: str, queue_id: int = 0) -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def fill(face: Face, topic: str, *bodies: bytes, queue_id: int = 0) -> None:
    producer = face.producer(f"{topic}-fill-{len(bodies)}-{bodies[0].decode()}")
    for body in bodies:
        result = producer.send(Message(topic, body), queue=queue_of(topic, queue_id))
    face.until_readable(result)
    producer.close()


@pytest.mark.parametrize("mode", ["pull", "pop"])
def test_a_paused_topic_rests_while_the_others_go_on(face: Face, name: str, mode: str) -> None:
    other = f"{name}-other"
    fill(face, name, b"0")
    fill(face, other, b"0")
    received = Received()
    consumer = face.new_consumer(
        name, face.listener(received.handle), consume_from=FIRST, mode=mode
    )
    consumer.subscribe(name)
    consumer.subscribe(other)
    face.started(consumer)
    received.wait_for(2)
    consumer.pause(name)
    assert not consumer.paused
    assert {queue.topic for queue in consumer.paused_queues()} == {name}
    # A pull or pop that waits at the broker may still bring the next message.
    fill(face, name, b"1")
    fill(face, name, b"2")
    fill(face, other, b"1", b"2", b"3")
    eventually(lambda: sum(m.topic == other for m in received.wait_for(1)) == 4)
    assert (name, b"2") not in {(m.topic, m.body) for m in received.wait_for(5)}
    consumer.resume(name)
    assert consumer.paused_queues() == []
    received.wait_for(7)


def test_a_queue_goes_on_when_no_pause_covers_it(face: Face, name: str) -> None:
    fill(face, name, b"0")
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST)
    received.wait_for(1)
    queue = queue_of(name)
    consumer.pause()
    consumer.pause([queue])
    assert consumer.paused
    assert queue_of(name, 1) in consumer.paused_queues()
    consumer.resume(name)  # was not paused
    assert consumer.paused
    consumer.resume([queue])
    assert queue in consumer.paused_queues()
    consumer.resume()
    assert (consumer.paused, consumer.paused_queues()) == (False, [])


@pytest.mark.parametrize("orderly", [False, True])
def test_a_listening_consumer_seeks(face: Face, name: str, *, orderly: bool) -> None:
    fill(face, name, b"0", b"1")
    middle = datetime.fromtimestamp(CLOCK.now_ms() / 1000, UTC) + timedelta(seconds=0.2)
    CLOCK.sleep(0.4)
    fill(face, name, b"2", b"3")
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST, orderly=orderly)
    received.wait_for(4)
    consumer.seek_to_begin(name)
    assert received.wait_for(8)[4].body == b"0"
    consumer.seek_to_time(name, middle)
    assert [m.body for m in received.wait_for(10)[8:]] == [b"2", b"3"]
    consumer.seek(queue_of(name), 3)
    assert [m.body for m in received.wait_for(11)[10:]] == [b"3"]
    consumer.seek_to_end(queue_of(name))
    fill(face, name, b"4")
    assert [m.body for m in received.wait_for(12)[11:]] == [b"4"]
    eventually(lambda: consumer.committed(queue_of(name)) == 5)
    consumer.close()
    again = Received()
    face.consumer(name, name, again.handle, orderly=orderly)
    fill(face, name, b"5")
    assert [m.body for m in again.wait_for(1)] == [b"5"]


def test_a_polled_consumer_seeks_by_time_and_by_topic(face: Face, name: str) -> None:
    fill(face, name, b"0")
    at_ms = CLOCK.now_ms() + 200
    CLOCK.sleep(0.4)
    fill(face, name, b"1")
    fill(face, name, b"other", queue_id=1)
    consumer = face.new_lite_pull_consumer(name, consume_from=FIRST)
    consumer.subscribe(name)
    face.started(consumer)
    eventually(lambda: queue_of(name) in consumer.assigned_queues())
    consumer.seek_to_time(name, at_ms)
    assert sorted(polled(consumer, 2)) == [b"1", b"other"]
    consumer.seek_to_begin(name)
    assert sorted(polled(consumer, 3)) == [b"0", b"1", b"other"]
    consumer.pause(name)
    assert set(consumer.paused_queues()) == {
        q for q in consumer.assigned_queues() if q.topic == name
    }


def polled(consumer: Any, count: int) -> list[bytes]:
    bodies: list[bytes] = []

    def all_came() -> bool:
        bodies.extend(message.body for message in consumer.poll(500))
        return len(bodies) >= count

    eventually(all_came)
    return bodies


def test_lag_is_what_was_not_consumed_and_unknown_where_nothing_was(face: Face, name: str) -> None:
    fill(face, name, b"0", b"1", b"2")
    held = []
    over = threading.Event()

    def refuse_the_last(messages: list[MessageExt]) -> Any:
        held.append(messages[0].body)
        while messages[0].body == b"2" and not over.is_set():
            yield 0.05
        return ConsumeResult.SUCCESS

    consumer = face.consumer(name, name, refuse_the_last, consume_from=FIRST, close_timeout_ms=0)
    eventually(lambda: len(held) == 3 and consumer.lag()[queue_of(name)].messages == 1)
    assert consumer.lag()[queue_of(name)] == QueueLag(max_offset=3, committed=2)
    # The group's own retries are assigned when their route is known.
    retry_queue = queue_of(retry_topic(name))
    retries = eventually(lambda: consumer.lag().get(retry_queue))
    assert retries.messages in (None, 0)
    assert retries.messages == 0 or retries.unknown
    over.set()


@pytest.mark.faces("virtual")
def test_lag_at_a_broker_that_does_not_answer_is_unknown(
    cluster: Any, face: Face, name: str
) -> None:
    fill(face, name, b"0")
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST)
    received.wait_for(1)
    eventually(lambda: consumer.lag()[queue_of(name)].messages == 0)
    cluster.kill("broker-a")
    lag = consumer.lag()[queue_of(name)]
    assert (lag.messages, lag.max_offset) == (None, None)
    assert lag.unknown


def test_consumers_that_pop_have_the_lag_of_all_queues(face: Face, name: str) -> None:
    fill(face, name, b"0", b"1")
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST, mode="pop")
    received.wait_for(2)
    assert {q for q in consumer.lag() if q.topic == name} == {queue_of(name, i) for i in range(4)}
    simple = face.new_simple_consumer(f"{name}-simple")
    simple.subscribe(name)
    face.started(simple)
    simple.receive()
    assert {q for q in simple.lag() if q.topic == name} == {queue_of(name, i) for i in range(4)}


def test_what_a_consumer_has_not_is_refused_by_name(face: Face, name: str) -> None:
    fill(face, name, b"0")
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST)
    received.wait_for(1)
    with pytest.raises(ClientStateError, match=r"no queue of topic absent is assigned.*another"):
        consumer.seek_to_begin("absent")
    with pytest.raises(ClientStateError, match="not assigned to this consumer"):
        consumer.seek(queue_of(name, 99), 0)
    with pytest.raises(
        IllegalArgumentError, match=r"the offset 9 is none of .*, which holds 0 to 1"
    ):
        consumer.seek(queue_of(name), 9)
    with pytest.raises(IllegalArgumentError, match="pass a list of MessageQueues"):
        consumer.pause(queue_of(name))
    with pytest.raises(IllegalArgumentError, match="time zone"):
        consumer.seek_to_time(name, datetime(2026, 11, 29))  # noqa: DTZ001 - that is the mistake
    pops = face.consumer(f"{name}-pops", name, received.handle, mode="pop")
    refused = r"pops: no queue is its own.*resetOffsetByTime"
    with pytest.raises(ClientStateError, match=refused):
        pops.seek_to_begin(name)
    with pytest.raises(ClientStateError, match=refused):
        pops.pause([queue_of(name)])
