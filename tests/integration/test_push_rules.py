"""Test the push consumer's rules through its public face: pools, limits, models, listeners."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.waits import CLOCK, WAIT_S, eventually

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt, MessageModel, MessageQueue

FIRST = ConsumeFromWhere.FIRST_OFFSET
ROOT = Path(__file__).parents[2]
_NUMBERS = itertools.count()
# How long a test watches that nothing comes.
QUIET_S = 0.3


# With short delay levels a message that is sent back comes soon.
pytestmark = [
    pytest.mark.cluster(
        properties={"accessMessageInMemoryMaxRatio": "0", "messageDelayLevel": "1s 1s 1s 1s 1s"}
    )
]


def fill(face: Face, topic: str, count: int, body: bytes = b"") -> MessageQueue:
    """Send `count` messages to one queue of the topic; return the queue."""
    producer = face.producer(f"{topic}-fill-{next(_NUMBERS)}")
    queue = MessageQueue(topic, "broker-a", 0)
    for i in range(count):
        producer.send(Message(topic, body or b"%d" % i), queue=queue)
    return queue


class Gate:
    """Holds every list, as a listener, until it is opened, and counts the calls that are inside."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.heard: list[bytes] = []
        self._lock = threading.Lock()
        self._open = threading.Event()

    def enter(self, messages: list[MessageExt]) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.heard += [message.body for message in messages]

    def leave(self) -> ConsumeResult:
        with self._lock:
            self.inside -= 1
        return ConsumeResult.SUCCESS

    def function(self, messages: list[MessageExt]) -> ConsumeResult:
        self.enter(messages)
        assert self._open.wait(WAIT_S)
        return self.leave()

    async def coroutine(self, messages: list[MessageExt]) -> ConsumeResult:
        self.enter(messages)
        async with asyncio.timeout(WAIT_S):
            while not self._open.is_set():  # noqa: ASYNC110 - another thread may open it
                await asyncio.sleep(0.005)
        return self.leave()

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def gated(face: Face, topic: str, gate: Gate, kind: str, **options: Any) -> Any:
    consumer = face.new_consumer(topic, getattr(gate, kind), consume_from=FIRST, **options)
    consumer.subscribe(topic)
    return face.started(consumer)


KINDS = pytest.mark.parametrize("kind", ["function", "coroutine"])


# Pools


@KINDS
@pytest.mark.parametrize("orderly", [False, True])
def test_no_more_listeners_run_than_the_pool_has(
    face: Face, name: str, gate: Gate, kind: str, orderly: bool
) -> None:
    for queue_id in range(4):
        producer = face.producer(f"{name}-{queue_id}")
        for i in range(5):
            queue = MessageQueue(name, "broker-a", queue_id)
            producer.send(Message(name, b"%d" % i), queue=queue)
    consumer = gated(face, name, gate, kind, orderly=orderly, concurrency=3)
    eventually(lambda: gate.inside == 3)
    CLOCK.sleep(QUIET_S)
    assert gate.inside == 3
    consumer.set_concurrency(4)
    gate.open()
    eventually(lambda: len(gate.heard) == 20)
    assert gate.most <= 4


# Limits


@pytest.mark.parametrize(
    ("options", "low", "high"),
    [
        # Messages of 1,000 bytes in one queue, pulled up to eight at a time. A consumer that is
        # just at a limit pulls once more; at a span of 25 there are 26 messages.
        ({"pull_threshold_for_queue": 25}, 26, 33),
        ({"pull_threshold_size_for_queue_bytes": 25_000}, 26, 33),
        ({"consume_max_span": 25}, 26, 34),
        # A quarter of these counts for each of the topic's four queues.
        ({"pull_threshold_for_topic": 100}, 26, 33),
        ({"pull_threshold_size_for_topic_bytes": 100_000}, 26, 33),
    ],
    ids=["messages", "bytes", "span", "messages-of-topic", "bytes-of-topic"],
)
def test_a_limit_bounds_what_is_pulled_ahead(
    face: Face,
    face_name: str,
    name: str,
    gate: Gate,
    options: dict[str, int],
    low: int,
    high: int,
) -> None:
    # What is pulled does not depend on what listens.
    kind = "function" if face_name == "blocking" else "coroutine"
    producer = face.producer(f"{name}-fill")
    producer.send(Message(name, b"made"), queue=MessageQueue(name, "broker-a", 1))
    consumer = gated(face, name, gate, kind, concurrency=1000, pull_batch_size=8, **options)
    # A topic's limits are divided among the queues that are assigned by then.
    eventually(lambda: owns(consumer, name, 4))
    body = b"x" * 1000
    queue = MessageQueue(name, "broker-a", 0)
    producer.send_batch([Message(name, body) for _ in range(80)], queue=queue)
    eventually(lambda: gate.heard.count(body) >= low)
    CLOCK.sleep(QUIET_S)
    assert low <= gate.heard.count(body) <= high
    gate.open()
    eventually(lambda: gate.heard.count(body) == 80)


def test_the_interval_lies_between_two_pulls(face: Face, name: str) -> None:
    fill(face, name, 6)
    received = Received()
    options = {"pull_interval_ms": 60_000, "pull_batch_size": 2, "consume_from": FIRST}
    face.consumer(name, name, received.handle, **options)
    received.wait_for(2)
    CLOCK.sleep(QUIET_S)
    assert sorted(received.bodies) == [b"0", b"1"]
    soon = Received()
    options |= {"pull_interval_ms": 10}
    face.consumer(f"{name}-soon", name, soon.handle, **options)
    soon.wait_for(6)


# Listeners that get lost


@pytest.mark.faces("virtual", "blocking")
@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    "failure", [SystemExit(1), asyncio.CancelledError(), GeneratorExit(), OSError("gone")], ids=repr
)
def test_a_listener_that_is_ended_has_its_message_come_again(
    face: Face, name: str, orderly: bool, failure: BaseException
) -> None:
    name = f"lost-{abs(hash(name))}"
    fill(face, name, 3)
    received = Received()

    def handle(messages: list[MessageExt]) -> ConsumeResult | None:
        received.handle(messages)
        if messages[0].body == b"1" and messages[0].reconsume_times == 0:
            raise failure
        return ConsumeResult.SUCCESS

    options = {"orderly": orderly, "suspend_current_queue_time_ms": 20, "concurrency": 1}
    face.consumer(name, name, handle, consume_from=FIRST, **options)
    received.wait_for(4)
    assert Counter(received.bodies) == {b"0": 1, b"1": 2, b"2": 1}


@pytest.mark.faces("virtual", "blocking")
@pytest.mark.parametrize("orderly", [False, True])
def test_what_a_listener_awaits_may_be_cancelled(face: Face, name: str, orderly: bool) -> None:
    fill(face, name, 2)
    seen: Counter[bytes] = Counter()

    async def handle(messages: list[MessageExt]) -> ConsumeResult:
        seen[messages[0].body] += 1
        if messages[0].reconsume_times == 0:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        return ConsumeResult.SUCCESS

    options = {"orderly": orderly, "suspend_current_queue_time_ms": 20}
    consumer = face.new_consumer(name, handle, consume_from=FIRST, **options)
    consumer.subscribe(name)
    face.started(consumer)
    eventually(lambda: seen == {b"0": 2, b"1": 2})


def test_what_a_function_brings_late_does_not_count(face: Face, name: str, gate: Gate) -> None:
    late_outcome(face, name, gate, "function")


@pytest.mark.faces("virtual", "blocking", seeds=3)
def test_what_a_coroutine_brings_late_does_not_count(face: Face, name: str, gate: Gate) -> None:
    late_outcome(face, name, gate, "coroutine")


def late_outcome(face: Face, name: str, gate: Gate, kind: str) -> None:
    """Have a listener of this kind end after its message was sent back: that changes nothing."""
    fill(face, name, 1)
    times: list[int] = []

    def note(messages: list[MessageExt]) -> bool:
        times.append(messages[0].reconsume_times)
        return len(times) == 1

    def function(messages: list[MessageExt]) -> ConsumeResult:
        return gate.function(messages) if note(messages) else ConsumeResult.SUCCESS

    async def coroutine(messages: list[MessageExt]) -> ConsumeResult:
        return await gate.coroutine(messages) if note(messages) else ConsumeResult.SUCCESS

    listener = function if kind == "function" else coroutine
    # All later calls return at once, and no pause of the process lasts longer than this timeout.
    consumer = face.new_consumer(name, listener, consume_from=FIRST, consume_timeout_ms=1500)
    consumer.subscribe(name)
    face.started(consumer)
    eventually(lambda: times == [0, 1])
    gate.open()
    fill(face, name, 1)
    eventually(lambda: times == [0, 1, 0])


@pytest.mark.parametrize("orderly", [False, True])
def test_a_killed_process_loses_nothing(face: Face, namesrv: str, name: str, orderly: bool) -> None:
    fill(face, name, 5)
    command = [sys.executable, "-m", "tests.integration.process_scripts", "consume", namesrv]
    process = subprocess.Popen(
        [*command, name, "orderly" if orderly else "concurrent"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    with process.stdout:
        lines = iter(process.stdout.readline, "")
        assert next(line for line in lines if line.startswith("heard")).split() == ["heard", "0"]
        process.send_signal(signal.SIGKILL)
        process.wait()
    # The dead member may still have the queue's lock, for 60 s. Another group need not wait for the
    # lock.
    group = f"{name}-2" if orderly else name
    received = Received()
    face.consumer(group, name, received.handle, consume_from=FIRST, orderly=orderly)
    received.wait_for(5)
    assert Counter(received.bodies) == dict.fromkeys([b"0", b"1", b"2", b"3", b"4"], 1)


# Models


def owns(consumer: Any, topic: str, count: int) -> bool:
    return [queue.topic for queue in consumer.assigned_queues()].count(topic) == count


def test_models_mix_in_one_process(face: Face, name: str, tmp_path: Path) -> None:
    """Members of both models share one client id, with a lite pull consumer beside them."""
    producer = face.producer(name, instance_name=f"{name}-0")
    producer.send(Message(name, b"0"))
    shared, everything = [Received(), Received()], [Received(), Received()]
    members = [
        face.consumer(
            name, name, received.handle, consume_from=FIRST, instance_name=f"{name}-{index}"
        )
        for index, received in enumerate(shared)
    ]
    # A member that has yet to hear of the other consumes all queues, and then some messages come
    # twice.
    for member in members:
        eventually(partial(owns, member, name, 2))
    eventually(lambda: shared[0].bodies or shared[1].bodies)
    for index, received in enumerate(everything):
        face.consumer(
            f"{name}-all",
            name,
            received.handle,
            consume_from=FIRST,
            instance_name=f"{name}-{index}",
            message_model=MessageModel.BROADCASTING,
            local_offset_dir=tmp_path,
        )
    lite = face.new_lite_pull_consumer(
        f"{name}-lite", consume_from=FIRST, instance_name=f"{name}-0"
    )
    lite.subscribe(name)
    face.started(lite)
    bodies = [b"%d" % i for i in range(60)]
    for body in bodies[1:]:
        producer.send(Message(name, body))
    for received in everything:
        received.wait_for(60)
        assert Counter(received.bodies) == Counter(bodies)
    eventually(lambda: set(bodies) <= {*shared[0].bodies, *shared[1].bodies})
    got = Counter(shared[0].bodies + shared[1].bodies)
    assert {body: count for body, count in got.items() if body != b"0"} == dict.fromkeys(
        bodies[1:], 1
    )
    polled: list[bytes] = []
    while len(polled) < 60:
        polled += [message.body for message in lite.poll(5000)]
    assert Counter(polled) == Counter(bodies)


# Subscriptions


# In virtual time, for what a listener has not returned from yet when its queue is left comes again.
@pytest.mark.faces("virtual", seeds=3)
def test_a_topic_that_was_left_is_gone_on_with_where_it_was_left(face: Face, name: str) -> None:
    fill(face, name, 3)
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST)
    received.wait_for(3)
    consumer.unsubscribe(name)
    eventually(lambda: all(queue.topic != name for queue in consumer.assigned_queues()))
    fill(face, name, 2, b"later")
    CLOCK.sleep(QUIET_S)
    assert len(received.bodies) == 3
    consumer.subscribe(name)
    received.wait_for(5)
    assert received.bodies[3:] == [b"later", b"later"]


def test_tags_change_while_running(face: Face, name: str) -> None:
    producer = face.producer(name)
    queue = MessageQueue(name, "broker-a", 0)
    producer.send(Message(name, b"a1", tags="a"), queue=queue)
    received = Received()
    consumer = face.consumer(name, name, received.handle, tags="a", consume_from=FIRST)
    received.wait_for(1)
    consumer.subscribe(name, "b")
    deadline = CLOCK.monotonic() + WAIT_S
    # Until the broker has heard of the change, it passes over messages with the new tag.
    while len(received.bodies) == 1:
        assert CLOCK.monotonic() < deadline
        producer.send(Message(name, b"b", tags="b"), queue=queue)
        CLOCK.sleep(0.02)
    producer.send(Message(name, b"a2", tags="a"), queue=queue)
    producer.send(Message(name, b"b-last", tags="b"), queue=queue)
    eventually(lambda: b"b-last" in received.bodies)
    assert b"a2" not in received.bodies


@pytest.mark.parametrize("orderly", [False, True])
def test_a_pause_holds_for_both_kinds(face: Face, name: str, orderly: bool) -> None:
    fill(face, name, 1)
    received = Received()
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST, orderly=orderly)
    received.wait_for(1)
    consumer.pause()
    fill(face, name, 1)  # for the pull that waited at that moment
    received.wait_for(2)
    fill(face, name, 3)
    CLOCK.sleep(QUIET_S)
    assert len(received.bodies) == 2
    consumer.resume()
    received.wait_for(5)


def test_no_reconsumption_at_all_leads_to_the_dead_letters(face: Face, name: str) -> None:
    fill(face, name, 1)
    received = Received(ConsumeResult.RECONSUME_LATER)
    face.consumer(name, name, received.handle, consume_from=FIRST, max_reconsume_times=0)
    dead = Received()
    face.consumer(f"{name}-dlq", f"%DLQ%{name}", dead.handle, consume_from=FIRST)
    assert dead.wait_for(1)[0].body == b"0"
    assert len(received.messages) == 1
