"""Test push consumers: pausing, partial acknowledgement, stuck listeners, limits; by both faces."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.waits import WAIT_S, eventually

from cometmq import (
    ConsumeFromWhere,
    ConsumeReport,
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
)
from cometmq.errors import IllegalArgumentError

FIRST = ConsumeFromWhere.FIRST_OFFSET


# With short delay levels a message that is sent back comes soon.
pytestmark = [
    pytest.mark.cluster(
        properties={"accessMessageInMemoryMaxRatio": "0", "messageDelayLevel": "1s 1s 1s 1s 1s"}
    )
]


# A coroutine that blocks would hold up its loop, not its message.
blocking_only = pytest.mark.faces("blocking")


def fill(face: Face, topic: str, count: int) -> MessageQueue:
    producer = face.producer(f"{topic}-fill-{time.monotonic_ns()}")
    queue = MessageQueue(topic, "broker-a", 0)
    for i in range(count):
        producer.send(Message(topic, b"%d" % i), queue=queue)
    return queue


def test_a_paused_consumer_gets_nothing_until_it_resumes(face: Face, name: str) -> None:
    fill(face, name, 3)
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST)
    received.wait_for(3)
    states = [consumer.paused]
    consumer.pause()
    states.append(consumer.paused)
    assert states == [False, True]
    # The pulls that waited at the broker at that moment still return the first message that comes.
    fill(face, name, 1)
    received.wait_for(4)
    fill(face, name, 5)
    time.sleep(0.3)
    assert len(received.messages) == 4
    consumer.resume()
    received.wait_for(9)


def test_what_is_not_acknowledged_comes_again(face: Face, name: str) -> None:
    fill(face, name, 8)
    seen: Counter[bytes] = Counter()
    lock = threading.Lock()

    def handle(messages: list[MessageExt]) -> Any:
        with lock:
            first = [message for message in messages if not message.reconsume_times]
            seen.update(message.body for message in messages)
        if not first:
            return ConsumeResult.SUCCESS
        return ConsumeReport(ack_index=0, delay_level=1)

    options = {"consume_message_batch_max_size": 4, "pull_batch_size": 4, "concurrency": 1}
    face.consumer(name, name, handle, consume_from=FIRST, **options)
    expected = {b"%d" % i: 1 if i in (0, 4) else 2 for i in range(8)}
    eventually(lambda: seen == expected)


@blocking_only
def test_a_stuck_listener_does_not_hold_its_message(face: Face, name: str) -> None:
    fill(face, name, 1)
    stuck = threading.Event()
    seen: list[int] = []

    def handle(messages: list[MessageExt]) -> ConsumeResult:
        seen.append(messages[0].reconsume_times)
        if messages[0].reconsume_times == 0:
            stuck.wait(WAIT_S)
        return ConsumeResult.SUCCESS

    face.consumer(name, name, handle, consume_from=FIRST, consume_timeout_ms=1500)
    try:
        eventually(lambda: seen == [0, 1])
    finally:
        stuck.set()


@blocking_only
def test_a_topics_limit_bounds_what_waits(face: Face, name: str) -> None:
    producer = face.producer(f"{name}-fill")
    producer.send(Message(name, b"made"), queue=MessageQueue(name, "broker-a", 1))
    go_on = threading.Event()
    seen: list[bytes] = []

    def handle(messages: list[MessageExt]) -> ConsumeResult:
        if messages[0].body != b"made":
            seen.append(messages[0].body)
        go_on.wait(WAIT_S)
        return ConsumeResult.SUCCESS

    options = {"pull_threshold_for_topic": 40, "pull_batch_size": 10, "concurrency": 1000}
    consumer = face.consumer(name, name, handle, consume_from=FIRST, **options)
    # The limit is divided among the queues that are assigned by then.
    eventually(lambda: [q.topic for q in consumer.assigned_queues()].count(name) == 4)
    queue = MessageQueue(name, "broker-a", 0)
    producer.send_batch([Message(name, b"%d" % i) for i in range(300)], queue=queue)
    eventually(lambda: len(seen) > 10)
    time.sleep(0.3)
    # The limit is 10 for each of the four queues, and a pull may exceed it.
    assert len(seen) <= 20
    go_on.set()
    eventually(lambda: len(seen) == 300)
    consumer.set_concurrency(2)


def test_options_out_of_range_are_refused(face: Face, name: str) -> None:
    for options in (
        {"suspend_current_queue_time_ms": 9},
        {"consume_timeout_ms": 0},
        {"pull_threshold_for_topic": 0},
        {"pull_threshold_size_for_topic_bytes": -2},
    ):
        (option,) = options
        with pytest.raises(IllegalArgumentError, match=f"{option} is"):
            face.new_consumer(name, **options)
