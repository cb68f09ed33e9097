"""Test message traces: what clients write to the trace topic while they do something else."""

from __future__ import annotations

import threading

import pytest
from tests.integration.client_faces import BlockingFace, Face, Received
from tests.integration.transaction_faces import COMMIT
from tests.integration.transaction_faces import Face as TransactionFace
from tests.waits import WAIT_S, eventually

import cometmq
from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt, SendStatus
from cometmq.client.tracing.codec import (
    ContextCode,
    MessageType,
    TraceContext,
    TraceType,
    decode_traces,
)
from cometmq.errors import RouteNotFoundError
from cometmq.model.names import BENCHMARK_TOPIC
from cometmq.testing import Cluster

FIRST = ConsumeFromWhere.FIRST_OFFSET
TRACE = "RMQ_SYS_TRACE_TOPIC"


pytestmark = [
    pytest.mark.cluster(
        properties={"accessMessageInMemoryMaxRatio": "0", "recallMessageEnable": "true"}
    )
]


class Traces:
    """Collects all that is traced, as it comes."""

    def __init__(self, face: Face, name: str, topic: str = TRACE) -> None:
        self._received = Received()
        face.consumer(f"{name}-traces", topic, self._received.handle, consume_from=FIRST)

    def of(self, msg_id: str, count: int) -> list[TraceContext]:
        """Return the first `count` events that name the message."""

        def found() -> list[TraceContext]:
            events = [
                event
                for message in list(self._received.messages)
                for event in decode_traces(message.body.decode())
                if any(msg_id == bean.msg_id for bean in event.beans)
            ]
            return events if len(events) >= count else []

        events: list[TraceContext] = eventually(found)
        return events

    def messages_with(self, key: str) -> list[MessageExt]:
        return [m for m in list(self._received.messages) if key in m.keys]


def test_sending_and_consuming_are_traced(face: Face, name: str) -> None:
    producer = face.producer(name, enable_trace=True)
    message = Message(name, b"12345", tags="paid", keys=["O-1", "C-7"])
    result = producer.send(message)
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST, enable_trace=True)
    received.wait_for(1)
    producer.close()
    consumer.close()
    traces = Traces(face, name)
    by_type = {event.type: event for event in traces.of(result.msg_id, 3)}
    pub = by_type[TraceType.PUB]
    bean = pub.beans[0]
    assert (pub.group, pub.success, pub.region) == (name, True, "DefaultRegion")
    assert (bean.topic, bean.tags, bean.keys) == (name, "paid", "O-1 C-7")
    assert (bean.offset_msg_id, bean.body_length) == (result.offset_msg_id, 5)
    assert bean.message_type == MessageType.NORMAL
    before, after = by_type[TraceType.SUB_BEFORE], by_type[TraceType.SUB_AFTER]
    assert before.request_id == after.request_id
    assert (before.group, after.group) == (name, name)
    assert (after.success, after.context_code) == (True, ContextCode.SUCCESS)
    # Consoles look traces up by id and by key.
    assert traces.messages_with(result.msg_id)
    assert traces.messages_with("O-1")


def test_a_listener_that_fails_is_traced_as_that(face: Face, name: str) -> None:
    result = face.producer(name).send(Message(name, b"x"))

    failed = threading.Event()

    def fail(messages: list[MessageExt]) -> ConsumeResult:
        failed.set()
        raise ValueError("the listener's own error")

    consumer = face.consumer(name, name, fail, consume_from=FIRST, enable_trace=True)
    assert failed.wait(WAIT_S)
    consumer.close()  # writes what it has traced
    traces = Traces(face, name)
    events = traces.of(result.msg_id, 2)
    after = next(event for event in events if event.type is TraceType.SUB_AFTER)
    assert (after.success, after.context_code) == (False, ContextCode.EXCEPTION)


def test_traces_may_go_to_a_topic_of_ones_own(face: Face, name: str) -> None:
    topic = f"{name}-traces"
    producer = face.producer(name, enable_trace=True, trace_topic=topic, namespace="ns1")
    result = producer.send(Message(name, b"x"))
    batch = producer.send_batch([Message(name, b"%d" % i) for i in range(3)])
    producer.close()
    traces = Traces(face, name, topic)
    (pub,) = traces.of(result.msg_id, 1)
    assert (pub.group, pub.beans[0].topic) == (name, name)
    (together,) = traces.of(batch.msg_id, 1)
    assert together.beans[0].body_length == 3
    # All ids were one key, so that no message of the batch led to its trace.
    for one in batch.msg_id.split(","):
        assert traces.messages_with(one)


def test_a_poll_is_traced(face: Face, name: str) -> None:
    result = face.producer(name).send(Message(name, b"x"))
    consumer = face.new_lite_pull_consumer(name, consume_from=FIRST, enable_trace=True)
    consumer.subscribe(name)
    face.started(consumer)
    assert eventually(lambda: consumer.poll(500))
    consumer.close()
    kinds = {event.type for event in Traces(face, name).of(result.msg_id, 2)}
    assert kinds == {TraceType.SUB_BEFORE, TraceType.SUB_AFTER}


def test_what_a_simple_consumer_receives_is_traced(face: Face, name: str) -> None:
    result = face.producer(name).send(Message(name, b"x"))
    consumer = face.new_simple_consumer(name, enable_trace=True)
    consumer.subscribe(name)
    face.started(consumer)
    (message,) = face.received(eventually(consumer.receive, passing=(RouteNotFoundError,)))
    with message:
        pass
    consumer.close()
    events = Traces(face, name).of(result.msg_id, 2)
    assert [event.type for event in events] == [TraceType.SUB_BEFORE, TraceType.SUB_AFTER]


def test_each_delivery_to_a_push_consumer_that_pops_is_traced(face: Face, name: str) -> None:
    result = face.producer(name).send(Message(name, b"x"))
    deliveries: list[int] = []

    def refuse_once(messages: list[MessageExt]) -> ConsumeResult:
        deliveries.append(messages[0].reconsume_times)
        # The message comes again after ten seconds.
        return ConsumeResult.RECONSUME_LATER if len(deliveries) == 1 else ConsumeResult.SUCCESS

    consumer = face.consumer(
        name, name, refuse_once, mode="pop", consume_from=FIRST, enable_trace=True
    )
    eventually(lambda: len(deliveries) == 2)
    consumer.close()
    events = Traces(face, name).of(result.msg_id, 4)
    begun = {e.beans[0].retry_times: e for e in events if e.type is TraceType.SUB_BEFORE}
    ended = {e.request_id: e for e in events if e.type is TraceType.SUB_AFTER}
    assert sorted(begun) == deliveries == [0, 1]
    refused, consumed = (ended[begun[count].request_id] for count in deliveries)
    assert (refused.success, refused.context_code) == (False, ContextCode.FAILED)
    assert (consumed.success, consumed.context_code) == (True, ContextCode.SUCCESS)
    assert {event.group for event in events} == {name}


def test_the_end_of_a_transaction_is_traced(face: BlockingFace, name: str) -> None:
    transactional = TransactionFace(face)
    listener = transactional.listener(COMMIT)
    producer = transactional.producer(name, listener, enable_trace=True)
    # A broker that has no verdict after a moment asks for one, and that would be traced, too.
    patient = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"}
    result = producer.send_in_transaction(Message(name, b"x", keys=["k"], properties=patient))
    producer.close()
    events = {event.type: event for event in Traces(face, name).of(result.msg_id, 2)}
    half, end = events[TraceType.PUB].beans[0], events[TraceType.END_TRANSACTION].beans[0]
    assert half.message_type == MessageType.TRANSACTION_HALF
    assert (end.transaction_state, end.from_check) == ("COMMIT_MESSAGE", False)
    assert (end.transaction_id, end.keys) == (result.transaction_id, "k")


def test_a_recall_is_traced(face: Face, name: str) -> None:
    producer = face.producer(name, enable_trace=True)
    result = producer.send(Message(name, b"x", delay_ms=3_600_000))
    assert producer.recall(name, result.recall_handle) == result.msg_id
    producer.close()
    events = {event.type: event for event in Traces(face, name).of(result.msg_id, 2)}
    assert events[TraceType.PUB].beans[0].message_type == MessageType.DELAY
    recall = events[TraceType.RECALL]
    assert (recall.group, recall.success, recall.beans[0].topic) == (name, True, name)


def test_untraced_clients_trace_nothing_and_traced_ones_do_not_trace_traces(
    face: Face, name: str
) -> None:
    untraced = face.producer(name).send(Message(name, b"x"))
    producer = face.producer(f"{name}-2", enable_trace=True)
    marks = [producer.send(Message(name, b"%d" % i)).msg_id for i in range(30)]
    producer.close()
    traces = Traces(face, name)
    traces.of(marks[-1], 1)
    assert not traces.messages_with(untraced.msg_id)
    events = [traces.of(mark, 1) for mark in marks]
    assert all(len(of_mark) == 1 for of_mark in events)


def test_traces_that_cannot_be_written_hold_up_nobody(name: str) -> None:
    with (
        Cluster(properties={"autoCreateTopicEnable": "false"}) as cluster,
        cometmq.Producer(name, namesrv=cluster.namesrv, enable_trace=True) as producer,
    ):
        # Every broker has this topic, but the topic of the traces does not exist here.
        results = [producer.send(Message(BENCHMARK_TOPIC, b"%d" % i)) for i in range(50)]
    assert all(result.status is SendStatus.SEND_OK for result in results)
