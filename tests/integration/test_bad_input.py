"""Test what callers get wrong: each gives one error of our tree that names the value and the rule.

This holds for both faces, for the producer, the push consumer and the lite pull consumer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.waits import WAIT_S

from cometmq import Message, MessageModel, MessageQueue, select_by_hash, split_batches
from cometmq.errors import (
    ClientStateError,
    CometMQError,
    IllegalArgumentError,
    UnknownOptionError,
)

KINDS = ("producer", "push", "lite")
QUEUE = MessageQueue("t", "broker-a", 0)
FOREIGN = MessageQueue("elsewhere", "broker-a", 0)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return "".join(c if c.isalnum() else "-" for c in request.node.originalname)[:60]


def new(face: Face, kind: str, group: Any = "g", **options: Any) -> Any:
    """Return a client that is ready to be started."""
    if kind == "producer":
        return face.new_producer(group, **options)
    if kind == "lite":
        client = face.new_lite_pull_consumer(group, **options)
    else:
        client = face.new_consumer(group, face.listener(Received().handle), **options)
    client.subscribe("t")
    return client


@dataclass(frozen=True)
class Fault:
    """Describes something that must not work; the pattern `says` has value and rule in it."""

    kinds: tuple[str, ...]
    do: Callable[[Face, str, str], object]
    says: str
    error: type[CometMQError] = IllegalArgumentError


def option(name: str, value: Any, says: str, *kinds: str) -> Fault:
    return Fault(kinds or KINDS, lambda face, kind, _: new(face, kind, **{name: value}), says)


def group(value: Any, says: str) -> Fault:
    return Fault(KINDS, lambda face, kind, _: new(face, kind, value), says)


def subscription(*args: Any, says: str, **kwargs: Any) -> Fault:
    return Fault(
        ("push", "lite"), lambda face, kind, _: new(face, kind).subscribe(*args, **kwargs), says
    )


def sending(message: Any, says: str, **options: Any) -> Fault:
    def do(face: Face, kind: str, name: str) -> None:
        face.started(new(face, kind, name)).send(message, **options)

    return Fault(("producer",), do, says)


def running(kind: str, says: str, call: Callable[[Any], object], **options: Any) -> Fault:
    error = options.pop("error", IllegalArgumentError)

    def do(face: Face, kind: str, name: str) -> None:
        call(face.started(new(face, kind, name, **options)))

    return Fault((kind,), do, says, error)


def start_twice(face: Face, kind: str, name: str) -> None:
    face.started(new(face, kind, name)).start()


def closed(face: Face, kind: str, name: str) -> Any:
    client = new(face, kind, name)
    client.start()
    client.close()
    client.close()  # may be done again
    return client


def use_closed(face: Face, kind: str, name: str) -> None:
    client = closed(face, kind, name)
    if kind == "producer":
        client.send(Message("t", b"x"))
    elif kind == "push":
        client.assigned_queues()
    else:
        client.poll(0)


def use_unstarted(face: Face, kind: str, name: str) -> None:
    client = new(face, kind, name)
    if kind == "producer":
        client.send(Message("t", b"x"))
    elif kind == "push":
        client.pause()
    else:
        client.poll(0)


def reuse_group(face: Face, kind: str, name: str) -> None:
    face.started(new(face, kind, name, instance_name=name))
    face.started(new(face, kind, name, instance_name=name))


def subscribe_and_assign(face: Face, kind: str, _name: str) -> None:
    new(face, kind).assign([QUEUE])


def listen_late(face: Face, kind: str, name: str) -> None:
    face.started(new(face, kind, name)).listen(face.listener(Received().handle))


FAULTS: dict[str, Fault] = {
    # Groups
    "illegal group": group("no group!", r"'no group!' has characters outside"),
    "empty group": group("", r"the group name is blank; give 1 to 120"),
    "blank group": group(" \t", r"the group name is blank"),
    "long group": group("g" * 121, r"121 characters, the limit is 120"),
    "group that is no text": group(7, r"group name 7 is a int; give text"),
    "group that is nothing": group(None, r"group name None is a NoneType; give text"),
    "reserved group": group("DEFAULT_PRODUCER", r"DEFAULT_PRODUCER is reserved"),
    # Where to
    "no name server": option("namesrv", "", r"no name-server address given; pass namesrv="),
    "name server without a port": option("namesrv", "host", r"'host' is no name-server address"),
    "name server with a bad port": option("namesrv", "h:99999", r"'h:99999' is no name-server"),
    "name server that is no text": option("namesrv", [7], r"7 is a int, no name-server address"),
    "name servers that are none": option("namesrv", 7, r"namesrv is 7, a int; pass namesrv="),
    "many name servers": option(
        "namesrv", [f"h:{i}" for i in range(1, 66)], r"65 name servers, the limit is 64"
    ),
    "empty instance name": option("instance_name", "", r"instance_name is ''; it must have 1 to"),
    "blank in the instance name": option("instance_name", "a b", r"instance_name is 'a b'.*no bla"),
    "unit name that is no text": option("unit_name", 7, r"unit_name is 7, a int; pass text"),
    "namespace that is no text": option("namespace", 7, r"namespace is 7, a int; pass text"),
    # Options
    "unknown option": Fault(
        KINDS,
        lambda face, kind, _: new(face, kind, instance_nam="x"),
        r"no option 'instance_nam' \(given: 'x'\); did you mean instance_name\. Options are .*unit_",
        UnknownOptionError,
    ),
    "option of another kind": option(
        "consume_from", "LAST", r"consume_from is 'LAST', it must be one of .*FIRST", "push", "lite"
    ),
    "message model": option(
        "message_model", 3, r"message_model is 3, it must be one of MessageModel", "push", "lite"
    ),
    "allocation": option(
        "allocation", "averagely", r"allocation is 'averagely', which cannot be", "push", "lite"
    ),
    "timestamp": option(
        "consume_timestamp_ms", -1, r"consume_timestamp_ms is -1, it must lie in", "push", "lite"
    ),
    "pull batch": option(
        "pull_batch_size", 1025, r"pull_batch_size is 1025, it must lie in 1..1024", "push", "lite"
    ),
    "text for a number": option(
        "pull_batch_size", "32", r"pull_batch_size is '32', a str; .* number in", "push", "lite"
    ),
    "threshold": option(
        "pull_threshold_for_queue", 0, r"pull_threshold_for_queue is 0, it must", "push", "lite"
    ),
    "concurrency": option("concurrency", 0, r"concurrency is 0, it must lie in 1..1000", "push"),
    "true for a number": option("concurrency", True, r"concurrency is True, a bool", "push"),
    "batch": option("consume_message_batch_max_size", 0, r"_batch_max_size is 0, it must", "push"),
    "interval": option("pull_interval_ms", -1, r"pull_interval_ms is -1, it must lie in", "push"),
    "reconsume times": option("max_reconsume_times", -2, r"max_reconsume_times is -2", "push"),
    "consume timeout": option("consume_timeout_ms", 0, r"consume_timeout_ms is 0", "push"),
    "suspension": option(
        "suspend_current_queue_time_ms", 9, r"time_ms is 9, it must lie in 10..30000", "push"
    ),
    "auto commit": option("auto_commit_interval_ms", 999, r"999, it must lie in 1000..", "lite"),
    "text for a switch of traces": option(
        "enable_trace", "false", r"enable_trace is 'false', a str; it must be True or False"
    ),
    "text for the order": option("orderly", "no", r"orderly is 'no', a str; it must be", "push"),
    "text for auto commit": option("auto_commit", "no", r"auto_commit is 'no', a str", "lite"),
    "text for the VIP channel": option(
        "vip_channel_enabled", "no", r"vip_channel_enabled is 'no', a str", "producer"
    ),
    "latency tables": option(
        "latency_tables", 5, r"latency_tables is 5; pass LatencyTables\(", "producer"
    ),
    "directory of offsets": option(
        "local_offset_dir", 5, r"local_offset_dir is 5, a int; pass a path", "push", "lite"
    ),
    "timeout": option("send_timeout_ms", 0, r"send_timeout_ms is 0, it must lie in", "producer"),
    "retries": option("retry_times", -1, r"retry_times is -1, it must lie in 0..100", "producer"),
    "compression": option(
        "compression", "gzip", r"compression is 'gzip', it must be one of Compr", "producer"
    ),
    "size limit": option(
        "max_message_size_bytes", 0, r"max_message_size_bytes is 0, it must lie in 1..", "producer"
    ),
    "size limit that is text": option(
        "max_message_size_bytes", "x", r"max_message_size_bytes is 'x', a str", "producer"
    ),
    # Topics and what is sent to them
    "illegal topic": sending(Message("no topic!", b"x"), r"'no topic!' has characters outside"),
    "empty topic": sending(Message("", b"x"), r"the topic name is blank; give 1 to 127"),
    "long topic": sending(Message("t" * 128, b"x"), r"128 characters, the limit is 127"),
    "topic that is no text": sending(Message(7, b"x"), r"topic name 7 is a int"),  # type: ignore[arg-type]  # the wrong type is the test
    "topic of the broker": sending(
        Message("SCHEDULE_TOPIC_XXXX", b"x"), r"SCHEDULE_TOPIC_XXXX is the broker's own"
    ),
    "empty body": sending(Message("t", b""), r"body of a message to t is empty; .* one byte"),
    "body that is text": sending(
        Message("t", "x"),  # type: ignore[arg-type]  # the wrong type is the test
        r"body of a message to t is a str; pass bytes, for text text.encode\(\)",
    ),
    "body that is too large": sending(
        Message("t", b"x" * (4 * 1024 * 1024 + 1)),
        r"has 4194305 bytes, the limit max_message_size_bytes is 4194304; send a smaller body",
    ),
    "what is no message": sending("hello", r"'hello' is a str; send a Message\(topic, body\)"),
    "property of the broker": sending(
        Message("t", b"x", properties={"REAL_TOPIC": "u"}), r"REAL_TOPIC belong to brokers"
    ),
    "properties that are too large": sending(
        Message("t", b"x", properties={"p": "x" * 33_000}), r"properties .* the limit is 32767"
    ),
    "property that is no text": sending(
        Message("t", b"x", properties={"p": 1}),  # type: ignore[dict-item]  # the wrong type is the test
        r"the property 'p' has the value 1; names and values are text",
    ),
    "tags that are a list": sending(
        Message("t", b"x", tags=["a"]),  # type: ignore[arg-type]  # the wrong type is the test
        r"the property 'TAGS' has the value \['a'\]; names and values are text",
    ),
    "property that would vanish": sending(
        Message("t", b"x", properties={"p": ""}), r"the property 'p' has the value ''; neither may"
    ),
    "property without a name": sending(
        Message("t", b"x", properties={"": "v"}), r"the property '' has the value 'v'; neither may"
    ),
    "property that is no UTF-8": sending(
        Message("t", b"x", properties={"p": "\ud800"}), r"to t have the character '\\ud800'"
    ),
    "flag that is no number": sending(Message("t", b"x", flag="z"), r"flag is 'z', a str"),  # type: ignore[arg-type]  # the wrong type is the test
    "flag out of range": sending(Message("t", b"x", flag=2**31), r"flag is 2147483648, it must"),
    "keys that are none": Fault(
        ("producer",),
        lambda *_: Message("t", b"x", keys=5),  # type: ignore[arg-type]  # the wrong type is the test
        r"keys are 5; pass text or a list of it",
    ),
    "send timeout": sending(Message("t", b"x"), r"timeout_ms is -1, it must lie", timeout_ms=-1),
    "two ways to choose a queue": sending(
        Message("t", b"x"),
        r"queue .* or to one chosen by the selector .*, not by both",
        queue=QUEUE,
        selector=select_by_hash,
    ),
    "queue that is none": sending(Message("t", b"x"), r"the queue 't' is a str; pass", queue="t"),
    "selector that is none": sending(
        Message("t", b"x"), r"selector is 3, which cannot be called; pass a fun", selector=3
    ),
    "callback that is none": running(
        "producer",
        r"the callback is 5, which cannot be called; pass a function of \(result, error\)",
        lambda p: p.send_async(Message("t", b"x"), 5).result(WAIT_S),
    ),
    "what is no message, in the background": running(
        "producer", r"b'x' is a bytes; send a", lambda p: p.send_async(b"x").result(WAIT_S)
    ),
    "recall of nothing": running(
        "producer",
        r"the recall handle is None; pass the recall_handle of the SendResult",
        lambda p: p.recall("t", None),
    ),
    "batch of one": running(
        "producer",
        r"a batch is a list of messages, not Message\(.*; send one message with send",
        lambda p: p.send_batch(Message("t", b"x")),
    ),
    "batch of what is no message": running(
        "producer", r"b'x' is a bytes; send a Message\(", lambda p: p.send_batch([b"x"])
    ),
    "batches of what is no message": Fault(
        ("producer",),
        lambda *_: split_batches(["x"]),  # type: ignore[list-item]  # the wrong type is the test
        r"'x' is a str; a batch holds Messages",
    ),
    "empty batch": running("producer", "a batch needs at least", lambda p: p.send_batch([])),
    "batch of two topics": running(
        "producer",
        r"goes to one topic, this one names t and u",
        lambda p: p.send_batch([Message("t", b"x"), Message("u", b"x")]),
    ),
    "queues of an illegal topic": running(
        "producer", r"'a b' has characters outside", lambda p: p.queues("a b")
    ),
    # Subscriptions
    "subscription to an illegal topic": subscription("a b", says=r"'a b' has characters outside"),
    "subscription to nothing": subscription("", says=r"the topic name is blank"),
    "subscription to a number": subscription(7, says=r"topic name 7 is a int; give text"),
    "tags that are none": subscription("t", "||", says=r"'\|\|' names no tag; use '\*' for all"),
    "tags that are no text": subscription("t", ["a"], says=r"tags is \['a'\], a list; pass text"),
    "empty sql": subscription("t", sql="", says=r"type SQL92 may not be empty"),
    "tags and sql": subscription("t", "a", sql="b = 1", says=r"tags \('a'\) or sql \('b = 1'\)"),
    "predicate as a function": subscription(
        "t", predicate=len, says=r"predicate is <built-in function len>.*name under which"
    ),
    # Lives
    "start twice": Fault(
        KINDS, start_twice, r"is running; it can be started once", ClientStateError
    ),
    "use after close": Fault(KINDS, use_closed, r"is closed; create a new one", ClientStateError),
    "start after close": Fault(
        KINDS,
        lambda face, kind, name: closed(face, kind, name).start(),
        r"is closed; create a new one; it can be started once",
        ClientStateError,
    ),
    "use before start": Fault(
        KINDS, use_unstarted, r"is not started; call start", ClientStateError
    ),
    "reused group": Fault(
        KINDS,
        reuse_group,
        r"has a (producer|consumer) of group \S+ already; use another group or another instance_",
        ClientStateError,
    ),
    "listener missing": Fault(
        ("push",),
        lambda face, _kind, _name: face.started(face.new_consumer("g")),
        r"PushConsumer\('g'\) has no listener; pass one to the constructor or to listen",
        ClientStateError,
    ),
    "listener that is none": Fault(
        ("push",),
        lambda face, _kind, _name: face.new_consumer("g", "print"),
        r"the listener 'print' cannot be called; pass a function",
    ),
    "listener set late": Fault(("push",), listen_late, r"has started; set the", ClientStateError),
    "subscribed and assigned": Fault(
        ("lite",), subscribe_and_assign, r"has subscriptions; it cannot be", ClientStateError
    ),
    "nothing to assign": Fault(
        ("lite",),
        lambda face, _kind, _name: face.new_lite_pull_consumer("g").assign([]),
        r"no queue is given to assign",
    ),
    "assignment of text": Fault(
        ("lite",),
        lambda face, _kind, _name: face.new_lite_pull_consumer("g").assign("ab"),
        r"the queue 'a' is a str; pass a MessageQueue\(topic, broker_name, queue_id\)",
    ),
    "assignment of one queue": Fault(
        ("lite",),
        lambda face, _kind, _name: face.new_lite_pull_consumer("g").assign(QUEUE),
        r"the queues MessageQueue\(.*\) are a MessageQueue; pass a list of MessageQueues",
    ),
    "seek to text": running("lite", r"offset is 'a', a str", lambda c: c.seek(QUEUE, "a")),
    "seek in text": running("lite", r"the queue 'q' is a str", lambda c: c.seek("q", 0)),
    "time that is text": running(
        "lite", r"timestamp_ms is 'x', a str", lambda c: c.offset_for_timestamp(QUEUE, "x")
    ),
    "commit of text": running("lite", r"offset is 'a', a str", lambda c: c.commit({QUEUE: "a"})),
    "commit below 0": running(
        "lite", r"offset is -5, it must lie", lambda c: c.commit({QUEUE: -5})
    ),
    "commit without offsets": running(
        "lite", r"the offsets \[Mess.*\] are a list; pass a dict", lambda c: c.commit([QUEUE])
    ),
    "pull of text": running("lite", r"the queue 'q' is a str; pass", lambda c: c.pull("q", 0)),
    "poll timeout": running("lite", r"timeout_ms is -1, it must", lambda c: c.poll(-1)),
    "seek in a foreign queue": running(
        "lite", r"is not assigned", lambda c: c.seek(FOREIGN, 0), error=ClientStateError
    ),
    "commit of a foreign queue": running(
        "lite", r"is not assigned", lambda c: c.commit({FOREIGN: 1}), error=ClientStateError
    ),
    "pull of too many": running(
        "lite", r"max_messages is 0, it must lie in", lambda c: c.pull(QUEUE, 0, 0)
    ),
    "broadcasting by a client id that is no file name": running(
        "push",
        r"'127.0.0.1@a/b' cannot name a directory",
        lambda _: None,
        instance_name="a/b",
        message_model=MessageModel.BROADCASTING,
    ),
}
CASES = [(what, kind) for what, fault in FAULTS.items() for kind in fault.kinds]


@pytest.mark.parametrize(("what", "kind"), CASES, ids=[f"{kind}: {what}" for what, kind in CASES])
def test_a_fault_is_named(face: Face, name: str, what: str, kind: str) -> None:
    fault = FAULTS[what]
    with pytest.raises(CometMQError) as caught:
        fault.do(face, kind, f"{name}-{kind}")
    assert isinstance(caught.value, fault.error), repr(caught.value)
    assert re.search(fault.says, str(caught.value), re.DOTALL), str(caught.value)


def test_what_was_refused_leaves_a_client_that_works(face: Face, name: str) -> None:
    producer = face.producer(name)
    for body in (b"", "text"):
        with pytest.raises(IllegalArgumentError):
            producer.send(Message(name, body))  # type: ignore[arg-type]  # the wrong type is the test
    assert producer.send(Message(name, b"x")).msg_id
