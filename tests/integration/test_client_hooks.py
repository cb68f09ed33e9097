"""Hooks of producers and consumers of both faces, over a real broker."""

from __future__ import annotations

import threading

import pytest
from tests.integration.client_faces import Face, Received
from tests.waits import WAIT_S, eventually

from cometmq import (
    CheckForbiddenHook,
    ConsumeFromWhere,
    ConsumeMessageHook,
    ConsumeResult,
    FilterMessageHook,
    Message,
    MessageExt,
    RpcHook,
    SendMessageHook,
)
from cometmq.client.hooks import ConsumeContext, FilterContext, SendContext
from cometmq.errors import RpcHookError, SendForbiddenError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand

FIRST = ConsumeFromWhere.FIRST_OFFSET


pytestmark = [pytest.mark.cluster(properties={"accessMessageInMemoryMaxRatio": "0"})]


class Stamps(SendMessageHook):
    """Adds a property to messages, and notes what became of it."""

    def __init__(self) -> None:
        self.modes: list[str] = []
        self.outcomes: list[object] = []

    def before_send(self, context: SendContext) -> None:
        context.message.properties["stamp"] = context.mode.value
        self.modes.append(context.mode.value)

    def after_send(self, context: SendContext) -> None:
        self.outcomes.append(context.error or context.result)
        raise RuntimeError("of no consequence")


class NoSecrets(CheckForbiddenHook):
    def check_forbidden(self, context: SendContext) -> None:
        if b"secret" in context.message.body:
            raise PermissionError("secrets stay here")


def test_send_hooks_in_every_mode(face: Face, name: str) -> None:
    hook = Stamps()
    producer = face.new_producer(name)
    producer.add_hook(hook)
    face.started(producer)
    result = producer.send(Message(name, b"sync"))
    future = producer.send_async(Message(name, b"async"))
    other = future.result(WAIT_S) if hasattr(future, "result") else future
    producer.send_oneway(Message(name, b"oneway"))
    assert hook.modes == ["SYNC", "ASYNC", "ONEWAY"]
    assert hook.outcomes == [result, other, None]
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST)
    stamps = {m.body: m.properties["stamp"] for m in received.wait_for(3)}
    assert stamps == {b"sync": "SYNC", b"async": "ASYNC", b"oneway": "ONEWAY"}


def test_a_message_is_forbidden_while_the_producer_runs(face: Face, name: str) -> None:
    producer = face.producer(name)
    producer.send(Message(name, b"a secret"))
    producer.add_hook(NoSecrets())
    with pytest.raises(SendForbiddenError, match="secrets stay here"):
        producer.send(Message(name, b"a secret"))
    with pytest.raises(SendForbiddenError):
        producer.send_oneway(Message(name, b"a secret"))
    producer.send(Message(name, b"harmless"))


class Around(ConsumeMessageHook):
    def __init__(self) -> None:
        self.reported: list[tuple[str, str, bool, list[bytes]]] = []
        self.called = threading.Event()

    def before_consume(self, context: ConsumeContext) -> None:
        context.state["threads"] = threading.current_thread().name
        raise RuntimeError("of no consequence")

    def after_consume(self, context: ConsumeContext) -> None:
        assert context.state["threads"] == threading.current_thread().name
        bodies = [message.body for message in context.messages]
        self.reported.append((context.queue.topic, context.status, context.success, bodies))
        self.called.set()


class Drops(FilterMessageHook):
    def filter_messages(self, context: FilterContext) -> None:
        context.messages[:] = [m for m in context.messages if m.body != b"filtered"]


@pytest.mark.parametrize("orderly", [False, True])
def test_consume_and_filter_hooks(face: Face, name: str, orderly: bool) -> None:
    producer = face.producer(name)
    for body in (b"one", b"filtered", b"two", b"filtered"):
        producer.send(Message(name, body))
    around, received = Around(), Received()
    consumer = face.new_consumer(
        name, face.listener(received.handle), consume_from=FIRST, orderly=orderly
    )
    consumer.subscribe(name)
    consumer.add_hook(around)
    consumer.add_hook(Drops())
    face.started(consumer)
    received.wait_for(2)
    eventually(lambda: len(around.reported) == 2)
    assert sorted(around.reported) == [
        (name, "SUCCESS", True, [b"one"]),
        (name, "SUCCESS", True, [b"two"]),
    ]


def test_a_failing_listener_is_told_to_hooks(face: Face, name: str) -> None:
    face.producer(name).send(Message(name, b"x"))
    around = Around()

    def fail(messages: list[MessageExt]) -> ConsumeResult:
        raise ValueError("the listener's own error")

    consumer = face.new_consumer(name, face.listener(fail), consume_from=FIRST)
    consumer.subscribe(name)
    consumer.add_hook(around)
    face.started(consumer)
    assert around.called.wait(WAIT_S)
    assert around.reported[0] == (name, "EXCEPTION", False, [b"x"])


def test_hooks_of_a_lite_pull_consumer(face: Face, name: str) -> None:
    producer = face.producer(name)
    for body in (b"one", b"filtered"):
        producer.send(Message(name, body))
    around = Around()
    consumer = face.new_lite_pull_consumer(name, consume_from=FIRST)
    consumer.subscribe(name)
    consumer.add_hook(around)
    consumer.add_hook(Drops())
    face.started(consumer)
    got: list[MessageExt] = []

    def some_came() -> bool:
        got.extend(consumer.poll(200))
        return bool(got)

    eventually(some_came)
    assert [message.body for message in got] == [b"one"]
    assert around.reported == [(name, "SUCCESS", True, [b"one"])]
    queue = next(q for q in consumer.queues(name) if consumer.max_offset(q) and q.queue_id >= 0)
    assert all(m.body != b"filtered" for m in consumer.pull(queue, 0).messages)


class Signs(RpcHook):
    def __init__(self) -> None:
        self.codes: list[int] = []
        self.refuse = False

    def before_request(self, address: str, command: RemotingCommand) -> None:
        self.codes.append(command.code)
        if self.refuse and command.code == RequestCode.SEND_MESSAGE_V2:
            raise KeyError("no key to sign with")


def test_rpc_hooks_see_all_calls_and_leave_with_their_client(face: Face, name: str) -> None:
    hook = Signs()
    producer = face.new_producer(name, instance_name=name)
    producer.add_hook(hook)
    face.started(producer)
    other = face.producer(f"{name}-2", instance_name=name)  # shares the instance, so the hook
    other.send(Message(name, b"x"))
    eventually(lambda: RequestCode.HEART_BEAT in hook.codes)
    assert {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.SEND_MESSAGE_V2} <= set(hook.codes)
    hook.refuse = True
    with pytest.raises(RpcHookError, match="no key to sign with"):
        producer.send(Message(name, b"x"))
    producer.close()
    other.send(Message(name, b"x"))


class RefusesPulls(RpcHook):
    def __init__(self) -> None:
        self.refused = 0

    def before_request(self, address: str, command: RemotingCommand) -> None:
        if command.code == RequestCode.PULL_MESSAGE and self.refused < 8:
            self.refused += 1
            raise KeyError("no key to sign with")


def test_a_consumer_survives_an_rpc_hook_that_fails(face: Face, name: str) -> None:
    face.producer(name).send(Message(name, b"x"))
    hook, received = RefusesPulls(), Received()
    consumer = face.new_consumer(name, face.listener(received.handle), consume_from=FIRST)
    consumer.subscribe(name)
    consumer.add_hook(hook)
    face.started(consumer)
    assert [message.body for message in received.wait_for(1)] == [b"x"]
    assert hook.refused == 8
