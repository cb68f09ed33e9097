"""Uses of the client, run for both faces against a real cluster."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received, member_of
from tests.waits import CLOCKS_APART_MS, SEND_WAIT_MS, WAIT_S, eventually

from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
    SendStatus,
    split_batches,
)
from cometmq.client.pulling import puller
from cometmq.errors import (
    ClientStateError,
    IllegalArgumentError,
    RemoteError,
)

FIRST = ConsumeFromWhere.FIRST_OFFSET
FACES = ("blocking", "asyncio")


# No queue ever counts as young (accessMessageInMemoryMaxRatio), so a new group itself chooses where
# to begin. What a listener refuses comes again soon.
pytestmark = [
    pytest.mark.cluster(
        properties={"accessMessageInMemoryMaxRatio": "0", "messageDelayLevel": "1s 1s 1s 1s"}
    )
]


@pytest.fixture
def new_groups_choose() -> bool:
    """Whether a group without offsets begins a young queue where its members say."""
    return True


def send_all(producer: Any, topic: str, count: int, **properties: Any) -> list[bytes]:
    bodies = [b"%s-%d" % (topic.encode(), i) for i in range(count)]
    for body in bodies:
        assert producer.send(Message(topic, body, **properties)).status is SendStatus.SEND_OK
    return bodies


def create_topic(face: Face, topic: str, brokers: tuple[str, ...] = ("broker-a",)) -> None:
    """Have brokers create the topic, each with a message `made`; return when all is known."""
    producer = face.producer(f"{topic}-make")
    for broker in brokers:
        producer.send(Message(topic, b"made"), queue=MessageQueue(topic, broker, 0))
    face.until_routed(topic, *brokers)


def test_a_message_arrives_with_all_it_was_sent_with(face: Face, name: str) -> None:
    received = Received()
    producer = face.producer(name)
    message = Message(
        name,
        "grün € 😀".encode(),
        tags="paid",
        keys=["O-1001", "C-7"],
        flag=42,
        properties={"note": "grün € 😀", "empty-looking": " "},
    )
    result = producer.send(message)
    face.consumer(name, name, received.handle, consume_from=FIRST)
    (got,) = received.wait_for(1)
    assert got.topic == name
    assert got.body == message.body
    assert (got.tags, got.keys, got.flag) == ("paid", ("O-1001", "C-7"), 42)
    assert got.properties["note"] == "grün € 😀"
    assert got.properties["empty-looking"] == " "
    assert got.msg_id == result.msg_id == message.unique_id
    assert got.offset_msg_id == result.offset_msg_id
    assert MessageQueue(got.topic, got.broker_name, got.queue_id) == result.queue
    assert got.queue_offset == result.queue_offset
    assert got.reconsume_times == 0
    assert abs(got.born_timestamp_ms - time.time() * 1000) < 60_000


def test_two_members_share_the_queues_and_every_message_comes_once(face: Face, name: str) -> None:
    producer = face.producer(name)
    create_topic(face, name)
    queues = producer.queues(name)
    received = [Received(), Received()]
    members = [face.consumer(name, name, r.handle, consume_from=FIRST) for r in received]

    def shares() -> list[set[MessageQueue]]:
        return [{q for q in m.assigned_queues() if q.topic == name} for m in members]

    eventually(lambda: [len(share) for share in shares()] == [2, 2])
    first, second = shares()
    assert first | second == set(queues)
    assert not first & second
    bodies = send_all(producer, name, 400)
    # `made` may have come to both members, while one had not heard of the other yet.
    eventually(lambda: set(bodies) <= {*received[0].bodies, *received[1].bodies})
    counts = Counter(received[0].bodies + received[1].bodies)
    assert [body for body in bodies if counts[body] != 1] == []
    assert all(len(r.messages) > 100 for r in received)


def test_a_leaving_member_hands_its_queues_over(face: Face, name: str) -> None:
    create_topic(face, name)
    producer = face.producer(name)
    stays, leaves = Received(), Received()
    member = face.consumer(name, name, stays.handle, consume_from=FIRST)
    other = face.consumer(name, name, leaves.handle, consume_from=FIRST)
    eventually(lambda: any(queue.topic == name for queue in other.assigned_queues()))
    other.close()
    eventually(lambda: len([q for q in member.assigned_queues() if q.topic == name]) == 4)
    bodies = send_all(producer, name, 40)
    eventually(lambda: set(bodies) <= set(stays.bodies))
    assert not set(bodies) & set(leaves.bodies)


def test_a_batch_arrives_whole_and_in_order(face: Face, name: str) -> None:
    received = Received()
    producer = face.producer(name)
    messages = [Message(name, b"%d" % i, tags=f"t{i}", keys=[f"k{i}"]) for i in range(20)]
    result = producer.send_batch(messages)
    assert result.msg_id.split(",") == [message.unique_id for message in messages]
    face.consumer(name, name, received.handle, consume_from=FIRST, concurrency=1)
    got = received.wait_for(20)
    assert [m.body for m in got] == [m.body for m in messages]
    assert [(m.tags, m.keys, m.msg_id) for m in got] == [
        (m.tags, m.keys, m.unique_id) for m in messages
    ]
    assert [m.queue_offset for m in got] == list(
        range(result.queue_offset, result.queue_offset + 20)
    )


def test_split_batches_fit_the_limit_and_lose_nothing(face: Face, name: str) -> None:
    received = Received()
    producer = face.producer(name)
    messages = [Message(name, os.urandom(1000)) for _ in range(200)]
    batches = split_batches(messages, max_bytes=50_000)
    assert len(batches) > 3
    for batch in batches:
        producer.send_batch(batch)
    face.consumer(name, name, received.handle, consume_from=FIRST)
    received.wait_for(200)
    assert Counter(received.bodies) == Counter(message.body for message in messages)


def test_oneway_messages_arrive(face: Face, name: str) -> None:
    received = Received()
    producer = face.producer(name)
    producer.send(Message(name, b"first"))  # creates the topic
    for i in range(20):
        producer.send_oneway(Message(name, b"%d" % i))
    face.consumer(name, name, received.handle, consume_from=FIRST)
    received.wait_for(21)
    assert Counter(received.bodies) == Counter([b"first", *(b"%d" % i for i in range(20))])


def test_send_async_tells_the_outcome_by_future_and_callback(face: Face, name: str) -> None:
    producer = face.producer(name)
    outcomes: list[tuple[Any, Any]] = []
    reported = threading.Event()

    def callback(result: Any, error: Any) -> None:
        outcomes.append((result, error))
        if len(outcomes) == 2:
            reported.set()

    result = outcome(lambda: producer.send_async(Message(name, b"good"), callback))
    with pytest.raises(IllegalArgumentError, match="is empty"):
        outcome(lambda: producer.send_async(Message(name, b""), callback))
    assert reported.wait(WAIT_S)
    assert outcomes[0] == (result, None)
    assert isinstance(outcomes[1][1], IllegalArgumentError)


def test_a_key_always_leads_to_the_same_queue_in_order(face: Face, name: str) -> None:
    received = Received()
    create_topic(face, name)
    producer = face.producer(name)
    queues: dict[str, set[MessageQueue]] = {}
    for i in range(60):
        key = f"order-{i % 6}"
        message = Message(name, b"%d" % i, properties={"order": key})
        queues.setdefault(key, set()).add(producer.send(message, key=key).queue)
    assert all(len(of_key) == 1 for of_key in queues.values())
    assert len(set.union(*queues.values())) > 1
    face.consumer(name, name, received.handle, consume_from=FIRST, concurrency=1)
    received.wait_for(61)
    by_key: dict[str, list[int]] = {}
    for message in received.messages[0:]:
        if "order" in message.properties:
            by_key.setdefault(message.properties["order"], []).append(int(message.body))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_a_selector_chooses_the_queue(face: Face, name: str) -> None:
    create_topic(face, name)
    producer = face.producer(name)
    chosen = producer.queues(name)[3]
    message = Message(name, b"x")
    result = producer.send(message, selector=lambda queues, _m, key: queues[key], key=3)
    assert result.queue == chosen
    assert producer.send(message, queue=chosen).queue_offset == result.queue_offset + 1
    with pytest.raises(IllegalArgumentError, match="none of the 4 queues"):
        producer.send(message, selector=lambda *_: MessageQueue(name, "nowhere", 0))


def test_large_bodies_travel_compressed(face: Face, name: str) -> None:
    received = Received()
    producer = face.producer(name)
    body = b"compressible " * 40_000
    producer.send(Message(name, body))
    noise = os.urandom(8192)
    producer.send(Message(name, noise))
    face.consumer(name, name, received.handle, consume_from=FIRST)
    got = {m.body: m.store_size for m in received.wait_for(2)}
    assert set(got) == {body, noise}
    assert got[body] < len(body) // 10


def test_tags_select(face: Face, name: str) -> None:
    wanted, everything = Received(), Received()
    producer = face.producer(name)
    for i in range(30):
        producer.send(Message(name, b"%d" % i, tags=("red", "green", "blue")[i % 3]))
    # "AaAa" and "BBBB" have one Java hash code: the broker lets both through, the client does not.
    producer.send(Message(name, b"collides", tags="BBBB"))
    producer.send(Message(name, b"untagged"))
    face.consumer(
        f"{name}-some", name, wanted.handle, tags="red || blue || AaAa", consume_from=FIRST
    )
    face.consumer(f"{name}-all", name, everything.handle, consume_from=FIRST)
    everything.wait_for(32)
    wanted.wait_for(20)
    assert sorted(int(body) for body in wanted.bodies) == [i for i in range(30) if i % 3 != 1]


def test_a_new_group_begins_where_it_says(face: Face, name: str, new_groups_choose: bool) -> None:
    create_topic(face, name)
    producer = face.producer(name)
    queues = producer.queues(name)
    old = send_all(producer, name, 8)
    # Store times are whole milliseconds of the broker's clock, which is not quite this one: keep
    # clear of the one in which the last message came, and of the one in which the next will come.
    between_ms = time.time_ns() // 1_000_000 + CLOCKS_APART_MS
    eventually(lambda: time.time_ns() // 1_000_000 > between_ms + CLOCKS_APART_MS)
    recent = [b"recent-%d" % i for i in range(4)]
    for body, queue in zip(recent, queues, strict=True):
        face.until_readable(producer.send(Message(name, body), queue=queue))
    received = {where: Received() for where in ConsumeFromWhere}
    consumers = [
        face.consumer(
            f"{name}-{where.name}",
            name,
            got.handle,
            consume_from=where,
            consume_timestamp_ms=between_ms,
        )
        for where, got in received.items()
    ]
    for consumer in consumers:
        eventually(partial(holds_all, consumer, name))
    last = [b"last-%d" % i for i in range(4)]
    for body, queue in zip(last, queues, strict=True):
        producer.send(Message(name, body), queue=queue)
    everything = [b"made", *old, *recent, *last]
    for where, bodies in (
        (ConsumeFromWhere.FIRST_OFFSET, everything),
        (ConsumeFromWhere.TIMESTAMP, recent + last if new_groups_choose else everything),
        (ConsumeFromWhere.LAST_OFFSET, last if new_groups_choose else everything),
    ):
        received[where].wait_for(len(bodies))
        assert Counter(received[where].bodies) == Counter(bodies), where


def test_offsets_survive_a_restart_of_the_consumer(face: Face, name: str) -> None:
    producer = face.producer(name)
    before = send_all(producer, name, 50)
    first = Received()
    consumer = face.consumer(name, name, first.handle, consume_from=FIRST)
    first.wait_for(50)
    consumer.close()
    after = [b"after-%d" % i for i in range(50)]
    for body in after:
        producer.send(Message(name, body))
    second = Received()
    face.consumer(name, name, second.handle, consume_from=FIRST)
    second.wait_for(50)
    assert Counter(first.bodies) == Counter(before)
    assert Counter(second.bodies) == Counter(after)


def test_a_message_whose_listener_fails_comes_again(face: Face, name: str) -> None:
    received = Received()

    def fail_once(messages: list[MessageExt]) -> ConsumeResult | None:
        received.handle(messages)
        failure = messages[0].tags if messages[0].reconsume_times == 0 else "none-now"
        if failure == "raises":
            raise ValueError("the listener's own error")
        return ConsumeResult.RECONSUME_LATER if failure == "later" else ConsumeResult.SUCCESS

    producer = face.producer(name)
    face.consumer(name, name, fail_once, consume_from=FIRST)
    failures = ["raises", "later"]
    for failure in [*failures, "good"]:
        producer.send(Message(name, failure.encode(), tags=failure, keys=["k"]))
    received.wait_for(5)
    times: dict[str | None, list[int]] = {}
    for message in received.messages:
        times.setdefault(message.tags, []).append(message.reconsume_times)
        assert (message.topic, message.keys) == (name, ("k",))
    assert times == {"good": [0], **{failure: [0, 1] for failure in failures}}


@pytest.mark.parametrize("orderly", [False, True])
def test_a_listener_that_returns_nothing_has_consumed_its_message(
    face: Face, name: str, orderly: bool
) -> None:
    received = Received(None)
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST, orderly=orderly)
    result = face.producer(name).send(Message(name, b"1"))
    received.wait_for(1)
    eventually(lambda: consumer.load().cached.get(name, (0, 0))[1] == 0)
    consumer.close()
    later = Received()
    face.consumer(name, name, later.handle, consume_from=FIRST)
    face.producer(f"{name}-2").send(Message(name, b"2"), queue=result.queue)
    assert [message.body for message in later.wait_for(1)] == [b"2"]
    assert received.bodies == [b"1"]


def test_the_old_meaning_of_none_is_there_for_the_asking_and_deprecated(
    face: Face, name: str
) -> None:
    times: list[int] = []

    def handle(messages: list[MessageExt]) -> ConsumeResult | None:
        times.append(messages[0].reconsume_times)
        return None if messages[0].reconsume_times == 0 else ConsumeResult.SUCCESS

    with pytest.warns(DeprecationWarning, match="raise an exception, or return ConsumeResult.REC"):
        face.consumer(
            name, name, handle, consume_from=FIRST, none_means=ConsumeResult.RECONSUME_LATER
        )
    face.producer(name).send(Message(name, b"1"))
    eventually(lambda: times == [0, 1])


def test_flow_control_bounds_what_one_queue_holds(face: Face, name: str) -> None:
    producer = face.producer(name)
    queue = eventually(lambda: producer.send(Message(name, b"0")).queue)
    producer.send_batch([Message(name, b"%d" % i) for i in range(1, 400)], queue=queue)
    release = threading.Event()
    started: list[int] = []

    def block(messages: list[MessageExt]) -> ConsumeResult:
        started.append(messages[0].queue_offset)
        assert release.wait(WAIT_S)
        return ConsumeResult.SUCCESS

    # A function listener in both faces: a function that blocks must not block a loop.
    consumer = face.new_consumer(
        name,
        block,
        consume_from=FIRST,
        concurrency=4,
        pull_threshold_for_queue=64,
        pull_batch_size=32,
    )
    consumer.subscribe(name)
    consumer.start()
    try:
        eventually(lambda: len(started) == 4)

        def held() -> int:
            return max(map(len, member_of(consumer).process_queues()))

        eventually(lambda: held() > 64)
        # More pulls than a broken limit would need, each 50 ms apart.
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            assert 64 < held() <= 64 + 32
            time.sleep(0.02)
        release.set()
        eventually(lambda: len(started) == 400)
    finally:
        release.set()
        consumer.close()


def test_messages_of_a_slow_listener_run_side_by_side(face: Face, name: str) -> None:
    producer = face.producer(name)
    queue = producer.send(Message(name, b"0")).queue
    producer.send_batch([Message(name, b"%d" % i) for i in range(1, 8)], queue=queue)
    meeting = threading.Barrier(8)
    met = Received()

    def meet(messages: list[MessageExt]) -> ConsumeResult | None:
        meeting.wait(WAIT_S)  # passes only when all eight are in the listener at once
        return met.handle(messages)

    consumer = face.new_consumer(name, meet, consume_from=FIRST, concurrency=8)
    consumer.subscribe(name)
    consumer.start()
    try:
        met.wait_for(8)
    finally:
        meeting.abort()
        consumer.close()


def test_a_listener_gets_as_many_messages_as_it_asked_for(face: Face, name: str) -> None:
    producer = face.producer(name)
    queue = producer.send(Message(name, b"0")).queue
    producer.send_batch([Message(name, b"%d" % i) for i in range(1, 60)], queue=queue)
    sizes: list[int] = []
    received = Received()

    def note(messages: list[MessageExt]) -> ConsumeResult | None:
        sizes.append(len(messages))
        return received.handle(messages)

    face.consumer(name, name, note, consume_from=FIRST, consume_message_batch_max_size=10)
    received.wait_for(60)
    assert max(sizes) <= 10
    assert len(sizes) < 30


def test_subscriptions_change_while_running(face: Face, name: str) -> None:
    received = Received()
    producer = face.producer(name)
    producer.send(Message(f"{name}-1", b"one"))
    producer.send(Message(f"{name}-2", b"two"))
    consumer = face.consumer(name, f"{name}-1", received.handle, consume_from=FIRST)
    received.wait_for(1)
    consumer.subscribe(f"{name}-2")
    received.wait_for(2)
    consumer.unsubscribe(f"{name}-1")
    eventually(lambda: all(q.topic != f"{name}-1" for q in consumer.assigned_queues()))
    assert received.bodies == [b"one", b"two"]


def test_a_topic_may_appear_after_its_consumer(face: Face, name: str) -> None:
    received = Received()
    producer = face.producer(name)
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST)
    producer.send(Message(name, b"x"))
    received.wait_for(1)
    assert consumer.assigned_queues()


def test_threads_share_a_producer(face: Face, name: str) -> None:
    producer = face.producer(name)

    def send(i: int) -> str:
        result = producer.send(Message(name, b"%d" % i))
        return str(result.msg_id)

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(send, range(200)))
    assert len(set(ids)) == 200


def test_close_is_prompt(face: Face, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else its pulls would be held for 15 s, which a close may take on a busy machine.
    monkeypatch.setattr(puller, "SUSPEND_MS", SEND_WAIT_MS)
    monkeypatch.setattr(puller, "PULL_TIMEOUT_S", 2 * WAIT_S)
    received = Received()
    producer = face.producer(name)
    producer.send(Message(name, b"x"))
    consumer = face.consumer(name, name, received.handle, consume_from=FIRST)
    received.wait_for(1)
    started = time.monotonic()
    consumer.close()
    producer.close()
    assert time.monotonic() - started < WAIT_S / 2
    consumer.close()
    producer.close()


def test_close_waits_for_running_listeners_and_commits_them(face: Face, name: str) -> None:
    producer = face.producer(name)
    producer.send(Message(name, b"slow"))
    entered, release = threading.Event(), threading.Event()

    def slow(_messages: list[MessageExt]) -> ConsumeResult:
        entered.set()
        assert release.wait(WAIT_S)
        return ConsumeResult.SUCCESS

    consumer = face.new_consumer(name, slow, consume_from=FIRST)
    consumer.subscribe(name)
    consumer.start()
    assert entered.wait(WAIT_S)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    release.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    again = Received()
    face.consumer(name, name, again.handle, consume_from=FIRST)
    producer.send(Message(name, b"next"))
    again.wait_for(1)
    assert again.bodies == [b"next"]


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (Message("bad topic!", b"x"), "characters outside"),
        (Message("", b"x"), "blank"),
        (Message("t" * 128, b"x"), "the limit is 127"),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), "the broker's own"),
        (Message("t", b""), "is empty"),
        (Message("t", bytes(4 * 1024 * 1024 + 1)), "the limit max_message_size_bytes is 4194304"),
        (Message("t", b"x", properties={"p": "v" * 32768}), "the limit is 32767"),
        (Message("t", b"x", properties={"p": "a\x01b"}), "0x01"),
        (Message("t", b"x", properties={"TRAN_MSG": "true"}), "TRAN_MSG"),
        (Message("t", "text"), "pass bytes"),  # type: ignore[arg-type]  # the wrong type is the test
    ],
)
def test_an_illegal_message_is_refused_before_it_is_sent(
    face: Face, name: str, message: Message, fault: str
) -> None:
    producer = face.producer("illegal-messages")
    with pytest.raises(IllegalArgumentError, match=fault):
        producer.send(message)
    with pytest.raises(IllegalArgumentError, match=fault):
        producer.send_oneway(message)
    with pytest.raises(IllegalArgumentError, match=fault):
        producer.send_batch([message])


def test_illegal_batches_are_refused(face: Face, name: str) -> None:
    producer = face.producer(name, max_message_size_bytes=1000)
    for messages, fault in (
        ([], "at least one"),
        ([Message("a", b"x"), Message("b", b"x")], "one topic"),
        ([Message("a", b"x"), Message("a", b"x", wait_store_ok=False)], "wait_store_ok"),
        ([Message("a", b"x", properties={"DELAY": "3"})], "DELAY"),
        ([Message("%RETRY%g", b"x")], "retry topic"),
        ([Message("a", b"x" * 400), Message("a", b"x" * 600)], "split_batches"),
    ):
        with pytest.raises(IllegalArgumentError, match=fault):
            producer.send_batch(messages)


def test_illegal_clients_are_refused(face: Face, name: str) -> None:
    for group, options, fault in (
        ("", {}, "blank"),
        ("g" * 121, {}, "the limit is 120"),
        ("DEFAULT_PRODUCER", {}, "reserved"),
        ("g", {"namesrv": "nowhere"}, "host:port"),
        ("g", {"namesrv": ""}, "no name-server address"),
        ("g", {"retry_times": -1}, "retry_times is -1"),
    ):
        with pytest.raises(IllegalArgumentError, match=fault):
            face.new_producer(group, **options)
    for options, fault in (
        ({"concurrency": 0}, "concurrency is 0"),
        ({"close_timeout_ms": -1}, "close_timeout_ms is -1"),
        ({"pull_batch_size": 1025}, "pull_batch_size is 1025"),
    ):
        with pytest.raises(IllegalArgumentError, match=fault):
            face.new_consumer(name, **options)
    consumer = face.new_consumer(name)
    with pytest.raises(IllegalArgumentError, match="names no tag"):
        consumer.subscribe(name, "||")
    with pytest.raises(IllegalArgumentError, match="characters outside"):
        consumer.subscribe("a b")
    with pytest.raises(IllegalArgumentError, match="cannot be called"):
        consumer.listen("no function")
    with pytest.raises(ClientStateError, match="no listener"):
        consumer.start()


def test_clients_say_in_which_state_they_are(face: Face, name: str) -> None:
    producer = face.new_producer(name)
    with pytest.raises(ClientStateError, match="is not started; call start"):
        producer.send(Message(name, b"x"))
    producer.start()
    with pytest.raises(ClientStateError, match="it can be started once"):
        producer.start()
    producer.close()
    with pytest.raises(ClientStateError, match="is closed; create a new one"):
        producer.send(Message(name, b"x"))
    with pytest.raises(ClientStateError, match="is closed"):
        producer.start()
    never_started = face.new_producer(name)
    never_started.close()


def test_a_group_is_used_once_in_an_instance(face: Face, name: str) -> None:
    face.producer(name, instance_name=name)
    with pytest.raises(ClientStateError, match="has a producer of group"):
        face.new_producer(name, instance_name=name).start()
    other = face.producer(f"{name}-2", instance_name=name)
    assert other.send(Message(name, b"x")).status is SendStatus.SEND_OK


def test_the_brokers_refusal_reaches_the_caller(face: Face, name: str) -> None:
    producer = face.producer(name)
    queue = producer.send(Message(name, b"x")).queue
    with pytest.raises(RemoteError, match="INVALID_PARAMETER") as refused:
        producer.send(Message(name, b"x"), queue=queue._replace(queue_id=99))
    assert refused.value.code == 29
    assert refused.value.address
    assert producer.send(Message(name, b"x")).status is SendStatus.SEND_OK


def holds_all(consumer: Any, topic: str) -> bool:
    return len([queue for queue in consumer.assigned_queues() if queue.topic == topic]) == 4


def outcome(send_async: Callable[[], Any]) -> Any:
    """Return the result of a future; that of the asyncio face has been awaited already."""
    future = send_async()
    return future.result(WAIT_S) if isinstance(future, Future) else future
