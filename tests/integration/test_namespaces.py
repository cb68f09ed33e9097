"""Test clients in a namespace: users see their own names, brokers see the names on the wire."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.waits import SEND_WAIT_MS, WAIT_S, eventually

from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    create_reply_message,
)
from cometmq.errors import CometMQError, IllegalArgumentError

FIRST = ConsumeFromWhere.FIRST_OFFSET


pytestmark = [
    pytest.mark.cluster(
        properties={"accessMessageInMemoryMaxRatio": "0", "messageDelayLevel": "1s 1s 1s"}
    )
]


def test_names_on_the_wire_have_the_namespace_and_users_names_have_not(
    face: Face, name: str
) -> None:
    producer = face.producer(name, namespace="ns1")
    assert producer.group == name
    message = Message(name, b"inside")
    result = producer.send(message)
    assert (result.queue.topic, message.topic) == (name, name)
    queues = eventually(lambda: producer.queues(name))
    assert {queue.topic for queue in queues} == {name}
    assert producer.send(Message(name, b"to a queue"), queue=queues[1]).queue == queues[1]
    key = producer.send(Message(name, b"by key"), key="k").queue
    assert key in queues
    producer.send_oneway(Message(name, b"one way"))
    producer.send_batch([Message(name, b"batch")])
    inside, outside = Received(), Received()
    consumer = face.consumer(name, name, inside.handle, consume_from=FIRST, namespace="ns1")
    got = inside.wait_for(5)
    assert {m.topic for m in got} == {name}
    assert next(m for m in got if m.body == b"inside").properties["INSTANCE_ID"] == "ns1"
    assert consumer.group == name
    both = {name, f"%RETRY%{name}"}
    eventually(lambda: {queue.topic for queue in consumer.assigned_queues()} == both)
    # A consumer of the same topic without a namespace, by the names on the wire.
    wire = f"ns1%{name}"
    face.consumer(f"{name}-wire", wire, outside.handle, consume_from=FIRST)
    assert {m.topic for m in outside.wait_for(5)} == {wire}


def test_namespaces_keep_apart_what_has_the_same_name(face: Face, name: str) -> None:
    received = {space: Received() for space in ("ns1", "ns2", None)}
    for space, got in received.items():
        face.producer(name, namespace=space).send(Message(name, repr(space).encode()))
        face.consumer(name, name, got.handle, consume_from=FIRST, namespace=space)
    for space, got in received.items():
        (message,) = got.wait_for(1)
        assert message.body == repr(space).encode()


def test_retried_messages_come_under_the_users_topic(face: Face, name: str) -> None:
    times: list[tuple[str, int]] = []
    done = threading.Event()

    def fail_once(messages: list[MessageExt]) -> ConsumeResult:
        (message,) = messages
        times.append((message.topic, message.reconsume_times))
        if message.reconsume_times == 0:
            return ConsumeResult.RECONSUME_LATER
        done.set()
        return ConsumeResult.SUCCESS

    face.producer(name, namespace="ns1").send(Message(name, b"x"))
    face.consumer(name, name, fail_once, consume_from=FIRST, namespace="ns1")
    assert done.wait(WAIT_S)
    assert times == [(name, 0), (name, 1)]


def test_dead_letters_lie_in_the_namespace(face: Face, name: str) -> None:
    face.producer(name, namespace="ns1").send(Message(name, b"dead"))
    face.consumer(
        name,
        name,
        lambda _: ConsumeResult.RECONSUME_LATER,
        consume_from=FIRST,
        namespace="ns1",
        max_reconsume_times=0,
    )
    consumer = face.new_lite_pull_consumer(f"{name}-dead", consume_from=FIRST, namespace="ns1")
    face.started(consumer)
    topic = f"%DLQ%{name}"
    queue = MessageQueue(topic, "broker-a", 0)

    def pulled() -> list[MessageExt]:
        try:
            messages: list[MessageExt] = consumer.pull(queue, 0).messages
        except CometMQError:
            return []  # the topic is not there yet
        return messages

    (message,) = eventually(pulled)
    assert (message.topic, message.body) == (topic, b"dead")


def test_a_lite_pull_consumer_in_a_namespace(face: Face, name: str) -> None:
    producer = face.producer(name, namespace="ns1")
    for i in range(8):
        producer.send(Message(name, b"%d" % i))
    consumer = face.new_lite_pull_consumer(name, consume_from=FIRST, namespace="ns1")
    consumer.subscribe(name)
    face.started(consumer)
    got: list[MessageExt] = []

    def all_came() -> bool:
        got.extend(consumer.poll(200))
        return len(got) >= 8

    eventually(all_came)
    assert {m.topic for m in got} == {name}
    queues = consumer.assigned_queues()
    assert queues == consumer.queues(name)
    assert {queue.topic for queue in queues} == {name}
    offsets = {queue: consumer.max_offset(queue) for queue in queues}
    assert sum(offsets.values()) == 8
    consumer.commit(offsets)
    assert {queue: consumer.committed(queue) for queue in queues} == offsets
    consumer.pause(queues[:1])
    assert consumer.paused_queues() == queues[:1]
    consumer.resume(queues[:1])
    consumer.seek_to_begin(queues[0])
    eventually(lambda: len(consumer.poll(200)) == offsets[queues[0]])


def test_broadcasting_in_a_namespace(face: Face, name: str, tmp_path: Any) -> None:
    producer = face.producer(name, namespace="ns1")
    producer.send(Message(name, b"all"))
    received = [Received(), Received()]
    for i, got in enumerate(received):
        face.consumer(
            name,
            name,
            got.handle,
            consume_from=FIRST,
            namespace="ns1",
            instance_name=f"{name}-{i}",
            message_model=MessageModel.BROADCASTING,
            local_offset_dir=tmp_path,
        )
    for got in received:
        assert [m.topic for m in got.wait_for(1)] == [name]


def test_a_request_in_a_namespace(face: Face, name: str) -> None:
    replies = face.producer(f"{name}-replies", namespace="ns1")
    producer = face.producer(name, namespace="ns1")
    answers: list[threading.Thread] = []

    def reply(messages: list[MessageExt]) -> ConsumeResult:
        for message in messages:
            answer = create_reply_message(message, b"yes")
            # From a thread: in the asyncio face the listener runs on the loop that would have to
            # send.
            answers.append(threading.Thread(target=replies.send, args=(answer,)))
            answers[-1].start()
        return ConsumeResult.SUCCESS

    face.consumer(f"{name}-repliers", name, reply, consume_from=FIRST, namespace="ns1")
    assert producer.request(Message(name, b"?"), timeout_ms=SEND_WAIT_MS).body == b"yes"
    for thread in answers:
        thread.join()


def test_what_is_no_namespace_is_refused(face: Face, name: str) -> None:
    with pytest.raises(IllegalArgumentError, match="the namespace 'a b'"):
        face.new_producer(name, namespace="a b")
