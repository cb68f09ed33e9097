"""The consumer that is asked for messages, by both faces against a real cluster."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.integration.client_faces import Face
from tests.waits import WAIT_S, eventually

from cometmq import (
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    PullStatus,
    aio,
)
from cometmq.errors import ClientStateError, IllegalArgumentError, RemoteError
from cometmq.payloads import Json

FIRST = ConsumeFromWhere.FIRST_OFFSET


pytestmark = [pytest.mark.cluster(properties={"accessMessageInMemoryMaxRatio": "0"})]


def queue_of(topic: str, queue_id: int = 0) -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def fill(face: Face, topic: str, count: int, queue_id: int = 0, **properties: Any) -> None:
    """Send `count` messages `0`, `1`, … to one queue of the topic."""
    producer = face.producer(f"{topic}-fill-{time.monotonic_ns()}")
    queue = queue_of(topic, queue_id)
    for i in range(count):
        result = producer.send(Message(topic, b"%d" % i, **properties), queue=queue)
    face.until_readable(result)
    producer.close()


def subscribed(face: Face, topic: str, **options: Any) -> Any:
    tags = options.pop("tags", "*")
    consumer = face.new_lite_pull_consumer(topic, consume_from=FIRST, **options)
    consumer.subscribe(topic, tags)
    return face.started(consumer)


def assigned(face: Face, topic: str, *queue_ids: int, **options: Any) -> Any:
    consumer = face.new_lite_pull_consumer(topic, consume_from=FIRST, **options)
    consumer.assign([queue_of(topic, i) for i in queue_ids])
    return face.started(consumer)


def poll_bodies(consumer: Any, count: int, wait_s: float = WAIT_S) -> list[bytes]:
    """Poll until `count` messages came."""
    bodies: list[bytes] = []
    deadline = time.monotonic() + wait_s
    while len(bodies) < count:
        assert time.monotonic() < deadline, f"{len(bodies)} of {count} came"
        bodies += [message.body for message in consumer.poll(500)]
    return bodies


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(start, count)]


def test_two_members_share_a_topic(face: Face, name: str) -> None:
    for queue_id in range(4):
        fill(face, name, 10, queue_id)
    members = [subscribed(face, name), subscribed(face, name)]
    eventually(lambda: [len(member.assigned_queues()) for member in members] == [2, 2])
    shares = [set(member.assigned_queues()) for member in members]
    assert shares[0] | shares[1] == {queue_of(name, i) for i in range(4)}
    fill(face, name, 5, 0)
    fill(face, name, 5, 3)
    seen: Counter[tuple[int, int]] = Counter()

    def complete() -> bool:
        for member in members:
            seen.update((m.queue_id, m.queue_offset) for m in member.poll(50))
        return len(seen) == 50

    eventually(complete)


def test_a_poll_without_messages_ends_in_time(face: Face, name: str) -> None:
    fill(face, name, 1)
    consumer = subscribed(face, name, poll_timeout_ms=50)
    assert poll_bodies(consumer, 1) == [b"0"]
    assert consumer.poll() == []
    assert consumer.poll(0) == []


def test_tags_select(face: Face, name: str) -> None:
    fill(face, name, 3, tags="no")
    fill(face, name, 2, tags="yes")
    consumer = subscribed(face, name, tags="yes || perhaps")
    got: list[MessageExt] = []

    def some_came() -> bool:
        got.extend(consumer.poll(2000))
        return len(got) >= 2

    eventually(some_came)
    assert [message.tags for message in got] == ["yes", "yes"]


def test_what_was_polled_is_committed_by_the_next_poll(face: Face, name: str) -> None:
    fill(face, name, 20)
    consumer = assigned(face, name, 0, pull_batch_size=5, auto_commit_interval_ms=1000)
    assert poll_bodies(consumer, 10) == numbers(10)
    consumer.close()  # no other poll followed the last five messages
    again = assigned(face, name, 0, pull_batch_size=5)
    assert poll_bodies(again, 15) == numbers(20, 5)


def test_without_auto_commit_only_a_commit_counts(face: Face, name: str) -> None:
    fill(face, name, 12)
    options = {"auto_commit": False, "pull_batch_size": 4}
    consumer = assigned(face, name, 0, **options)
    assert poll_bodies(consumer, 8) == numbers(8)
    consumer.poll(100)
    consumer.close()
    consumer = assigned(face, name, 0, **options)
    assert poll_bodies(consumer, 4) == numbers(4)
    consumer.commit()
    assert consumer.committed(queue_of(name)) == 4
    consumer.close()
    consumer = assigned(face, name, 0, **options)
    assert consumer.poll(30_000)[0].body == b"4"
    consumer.commit({queue_of(name): 10}, wait=False)
    consumer.close()
    consumer = assigned(face, name, 0, **options)
    assert poll_bodies(consumer, 2) == [b"10", b"11"]


def test_a_seek_moves_the_position(face: Face, name: str) -> None:
    fill(face, name, 30)
    queue = queue_of(name)
    consumer = assigned(face, name, 0)
    assert poll_bodies(consumer, 1)[0] == b"0"
    consumer.seek(queue, 20)
    assert poll_bodies(consumer, 10) == numbers(30, 20)
    consumer.seek_to_begin(queue)
    assert poll_bodies(consumer, 30) == numbers(30)
    consumer.seek(queue, 5)
    consumer.seek_to_end(queue)
    assert consumer.poll(200) == []
    fill(face, name, 1)
    assert poll_bodies(consumer, 1) == [b"0"]
    assert (consumer.min_offset(queue), consumer.max_offset(queue)) == (0, 31)
    with pytest.raises(IllegalArgumentError, match="the offset 32 is none of"):
        consumer.seek(queue, 32)
    with pytest.raises(ClientStateError, match="is not assigned"):
        consumer.seek(queue_of(name, 3), 0)


def test_an_offset_is_found_by_its_time(face: Face, name: str) -> None:
    fill(face, name, 5)
    time.sleep(0.05)
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.05)
    fill(face, name, 5)
    consumer = assigned(face, name, 0)
    queue = queue_of(name)
    assert consumer.offset_for_timestamp(queue, between_ms) == 5
    consumer.seek(queue, consumer.offset_for_timestamp(queue, between_ms))
    assert poll_bodies(consumer, 5) == numbers(5)


def test_a_paused_queue_brings_nothing_new(face: Face, name: str) -> None:
    fill(face, name, 3, 0)
    fill(face, name, 3, 1)
    consumer = assigned(face, name, 0, 1)
    poll_bodies(consumer, 6)
    consumer.pause([queue_of(name, 0)])
    assert consumer.paused_queues() == [queue_of(name, 0)]
    consumer.seek(queue_of(name, 0), 0)  # this begins a pull again, so no pull waits at the broker
    fill(face, name, 2, 1)
    assert poll_bodies(consumer, 2) == [b"0", b"1"]
    assert consumer.poll(200) == []
    consumer.resume([queue_of(name, 0)])
    assert poll_bodies(consumer, 3) == numbers(3)


@pytest.mark.parametrize("looks_first", [True, False])
def test_queues_are_assigned_after_the_start(face: Face, name: str, looks_first: bool) -> None:
    # As the example of Java's client does. Once nothing was consumed then, and nothing said so.
    fill(face, name, 3, 0)
    fill(face, name, 3, 1)
    consumer = face.started(face.new_lite_pull_consumer(name, consume_from=FIRST))
    queues = consumer.queues(name) if looks_first else [queue_of(name, i) for i in range(4)]
    consumer.assign(queues[:1])
    assert poll_bodies(consumer, 3) == numbers(3)
    consumer.assign(queues[1:2])
    assert poll_bodies(consumer, 3) == numbers(3)
    assert consumer.assigned_queues() == [queue_of(name, 1)]
    with pytest.raises(ClientStateError, match="has assigned queues"):
        consumer.subscribe(name)


def test_an_assignment_is_replaced(face: Face, name: str) -> None:
    fill(face, name, 3, 0)
    fill(face, name, 3, 1)
    consumer = assigned(face, name, 0)
    assert poll_bodies(consumer, 3) == numbers(3)
    consumer.assign([queue_of(name, 1)])
    assert consumer.assigned_queues() == [queue_of(name, 1)]
    assert poll_bodies(consumer, 3) == numbers(3)
    assert consumer.queues(name) == [queue_of(name, i) for i in range(4)]


def test_all_limits_bound_what_waits_and_everything_comes(face: Face, name: str) -> None:
    for queue_id in range(4):
        fill(face, name, 60, queue_id)
    limits = {"pull_threshold_for_all": 5, "pull_threshold_for_queue": 3, "pull_batch_size": 4}
    consumer = subscribed(face, name, **limits)
    assert Counter(poll_bodies(consumer, 240)) == Counter(numbers(60) * 4)


def test_broadcasting_keeps_its_offsets_in_a_file(face: Face, name: str, tmp_path: Path) -> None:
    fill(face, name, 6)
    options = {
        "message_model": MessageModel.BROADCASTING,
        "local_offset_dir": tmp_path,
        "instance_name": name,
    }
    consumer = subscribed(face, name, **options)
    assert poll_bodies(consumer, 6) == numbers(6)
    assert len(consumer.assigned_queues()) == 4
    consumer.commit()
    consumer.close()
    fill(face, name, 2)
    assert poll_bodies(subscribed(face, name, **options), 2) == numbers(2)


def test_a_plain_pull_reads_anywhere(face: Face, name: str) -> None:
    fill(face, name, 6, tags="t")
    consumer = assigned(face, name, 3)
    queue = queue_of(name)
    result = consumer.pull(queue, 2, 3)
    assert result.status is PullStatus.FOUND
    assert [message.body for message in result.messages] == [b"2", b"3", b"4"]
    assert (result.next_begin_offset, result.min_offset, result.max_offset) == (5, 0, 6)
    assert consumer.pull(queue, 6).status is PullStatus.NO_NEW_MSG
    assert consumer.pull(queue, 99).status is PullStatus.OFFSET_ILLEGAL
    assert consumer.pull(queue, 0, tags="other").status is PullStatus.NO_MATCHED_MSG
    began = time.monotonic()
    assert consumer.pull(queue, 6, suspend_ms=300).status is PullStatus.NO_NEW_MSG
    assert time.monotonic() - began >= 0.25
    with pytest.raises(RemoteError):
        consumer.pull(queue_of(name, 99), 0)
    with pytest.raises(IllegalArgumentError, match="offset is -1"):
        consumer.pull(queue, -1)


def test_wrong_use_is_told(face: Face, name: str) -> None:
    fill(face, name, 1)
    consumer = face.new_lite_pull_consumer(name)
    with pytest.raises(ClientStateError, match="is not started"):
        consumer.poll()
    with pytest.raises(IllegalArgumentError, match="no queue is given"):
        consumer.assign([])
    with pytest.raises(IllegalArgumentError, match="names no tag"):
        consumer.subscribe(name, "||")
    consumer.subscribe(name)
    with pytest.raises(ClientStateError, match="has subscriptions"):
        consumer.assign([queue_of(name)])
    face.started(consumer)
    with pytest.raises(IllegalArgumentError, match="timeout_ms is -1"):
        consumer.poll(-1)
    subscribed(face, name, instance_name=name)
    with pytest.raises(ClientStateError, match="has a consumer of group"):
        subscribed(face, name, instance_name=name)
    consumer.close()
    with pytest.raises(ClientStateError, match="is closed"):
        consumer.poll()
    with pytest.raises(IllegalArgumentError, match="auto_commit_interval_ms is 1"):
        face.new_lite_pull_consumer(name, auto_commit_interval_ms=1)


def follow(face: Face, consumer: Any, count: int) -> list[Any]:
    """Return the next `count` messages of an iteration, none of them acknowledged."""
    return list(islice(face.following(consumer), count))


def test_an_iteration_commits_below_the_lowest_message_that_is_not_acknowledged(
    face: Face, name: str
) -> None:
    fill(face, name, 6)
    consumer = assigned(face, name, 0)
    messages = follow(face, consumer, 5)
    assert [message.body for message in messages] == numbers(5)
    for index in (1, 2, 4):
        messages[index].ack()
    assert consumer.committed(queue_of(name)) in (None, 0)
    messages[0].ack()
    assert consumer.committed(queue_of(name)) == 3
    with pytest.raises(ClientStateError, match=r"was (acknowledged|given back); it cannot be"):
        messages[0].nack()
    consumer.close()
    again = assigned(face, name, 0)
    assert [message.body for message in follow(face, again, 3)] == numbers(6, 3)


def test_an_iteration_without_auto_commit_commits_what_was_acknowledged(
    face: Face, name: str
) -> None:
    fill(face, name, 4)
    consumer = assigned(face, name, 0, auto_commit=False)
    for message in follow(face, consumer, 2):
        message.ack()
    assert consumer.committed(queue_of(name)) in (None, 0)
    consumer.commit()
    assert consumer.committed(queue_of(name)) == 2


def test_a_message_whose_block_raises_comes_again_by_the_retry_topic(face: Face, name: str) -> None:
    fill(face, name, 2)
    consumer = subscribed(face, name)
    following = face.following(consumer)
    first = next(following)
    first.nack(1000)
    second = next(following)
    with pytest.raises(ConnectionError), second:
        raise ConnectionError("the bank does not answer")
    eventually(lambda: consumer.committed(queue_of(name)) == 2)
    # Brokers may hand over retries of the same second in any order.
    again, other = sorted(
        (next(following), next(following)), key=lambda message: bytes(message.body)
    )
    assert (again.body, again.topic, again.reconsume_times) == (first.body, name, 1)
    assert (other.body, other.reconsume_times) == (second.body, 1)
    with again, other:
        pass
    with pytest.raises(ClientStateError, match=r"was (acknowledged|given back); it cannot be"):
        again.ack()


def test_a_message_given_back_by_a_consumer_with_assigned_queues_holds_its_offset(
    face: Face, name: str
) -> None:
    fill(face, name, 2)
    consumer = assigned(face, name, 0)
    following = face.following(consumer)
    next(following).nack(10)
    seen = [next(following), next(following)]
    again = next(message for message in seen if message.body == b"0")
    (other,) = (message for message in seen if message.body == b"1")
    other.ack()
    assert again.reconsume_times == 1
    assert consumer.committed(queue_of(name)) in (None, 0)
    again.ack()
    assert consumer.committed(queue_of(name)) == 2


def test_messages_that_are_not_acknowledged_hold_up_the_pulls(face: Face, name: str) -> None:
    fill(face, name, 40)
    consumer = assigned(face, name, 0, pull_threshold_for_queue=10, pull_batch_size=10)
    following = face.following(consumer)
    messages = [next(following) for _ in range(11)]
    held = consumer.load().cached[name].messages
    assert 11 <= held <= 20
    messages += [next(following) for _ in range(held - 11)]
    assert consumer.load().cached[name].messages == held
    for message in messages:
        message.ack()
    for number in range(held, 40):
        message = next(following)
        assert message.body == b"%d" % number
        message.ack()


def test_an_acknowledgement_after_a_seek_changes_no_offset(face: Face, name: str) -> None:
    fill(face, name, 4)
    consumer = assigned(face, name, 0)
    messages = follow(face, consumer, 3)
    consumer.seek(queue_of(name), 0)
    for message in messages:
        message.ack()
    assert consumer.committed(queue_of(name)) in (None, 0)
    assert [message.body for message in follow(face, consumer, 4)] == numbers(4)


def test_an_iteration_that_is_left_and_begun_again_returns_each_message_once(
    face: Face, name: str
) -> None:
    fill(face, name, 100)
    consumer = assigned(face, name, 0)
    seen: list[bytes] = []
    for count in (1, 30, 0, 5, 64):
        for message in follow(face, consumer, count):
            seen.append(message.body)
            message.ack()
    assert seen == numbers(100)
    assert consumer.committed(queue_of(name)) == 100


def test_a_seek_takes_effect_at_the_next_message_of_an_iteration(face: Face, name: str) -> None:
    fill(face, name, 30)
    consumer = assigned(face, name, 0)
    following = face.following(consumer)
    assert [next(following).body for _ in range(3)] == numbers(3)
    eventually(lambda: consumer.load().cached[name].messages == 30)
    consumer.seek(queue_of(name), 20)
    assert [next(following).body for _ in range(10)] == numbers(30, 20)


def test_an_iteration_returns_nothing_of_a_queue_that_another_member_has(
    face: Face, name: str
) -> None:
    for queue_id in range(4):
        fill(face, name, 10, queue_id)
    first = subscribed(face, name, instance_name="first")
    following = face.following(first)
    next(following).ack()
    second = subscribed(face, name, instance_name="second")
    eventually(lambda: len([q for q in second.assigned_queues() if q.topic == name]) == 2)
    eventually(lambda: len([q for q in first.assigned_queues() if q.topic == name]) == 2)
    own = {q.queue_id for q in first.assigned_queues() if q.topic == name}
    others = {q.queue_id for q in second.assigned_queues() if q.topic == name}
    eventually(lambda: others.isdisjoint(own))
    rest = first.load().cached[name].messages
    assert {next(following).queue_id for _ in range(rest)} <= own


def test_one_of_several_threads_settles_a_message(face: Face, name: str) -> None:
    fill(face, name, 1)
    consumer = assigned(face, name, 0)
    (message,) = follow(face, consumer, 1)
    refused: list[ClientStateError] = []

    def ack() -> None:
        try:
            message.ack()
        except ClientStateError as error:
            refused.append(error)

    threads = [threading.Thread(target=ack) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(refused) == 7
    assert consumer.committed(queue_of(name)) == 1
    copied = message.copy()
    assert (copied.body, copied.topic) == (b"0", name)


def test_a_message_whose_wait_was_cancelled_while_it_was_judged_comes_again(
    face: Face, name: str
) -> None:
    fill(face, name, 2)

    async def scenario() -> list[bytes]:
        may_end = asyncio.Event()
        judged: asyncio.Queue[bytes] = asyncio.Queue()

        async def judge(message: MessageExt, _error: object) -> None:
            judged.put_nowait(message.body)
            await may_end.wait()

        consumer = aio.LitePullConsumer(
            f"{name}-g",
            namesrv=face.namesrv,
            consume_from=FIRST,
            codecs={name: Json(dict)},
            on_undecodable=judge,
        )
        consumer.assign([queue_of(name)])
        seen: list[bytes] = []
        async with consumer:
            messages = aiter(consumer)
            for count in (1, 2):
                waiting = asyncio.ensure_future(anext(messages))
                for _ in range(count):
                    seen.append(await asyncio.wait_for(judged.get(), WAIT_S))
                waiting.cancel()
                await asyncio.wait([waiting])
                may_end.set()
        return seen

    assert asyncio.run(scenario()) == [b"0", b"0", b"1"]


def test_two_iterations_share_the_messages_that_are_there(face: Face, name: str) -> None:
    fill(face, name, 20)
    consumer = assigned(face, name, 0)
    eventually(lambda: consumer.load().cached[name].messages == 20)
    first, second = face.following(consumer), face.following(consumer)
    assert next(first).body == b"0"
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(next(second).body), daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert len(got) == 1


def test_a_closed_consumer_does_not_call_a_message_acknowledged(face: Face, name: str) -> None:
    fill(face, name, 1)
    consumer = LitePullConsumer(f"{name}-g", namesrv=face.namesrv)
    consumer.assign([queue_of(name)])
    consumer.start()
    consumer.seek_to_begin(queue_of(name))
    message = next(iter(consumer))
    consumer.close()
    for _ in range(2):
        with pytest.raises(ClientStateError, match="is closed"):
            message.ack()


def test_an_iteration_that_was_left_in_the_loop_ends_after_the_close(face: Face, name: str) -> None:
    fill(face, name, 20)
    consumer = assigned(face, name, 0)
    seen = []
    for message in face.following(consumer):
        seen.append(message.body)
        message.ack()
        if len(seen) == 5:
            consumer.close()
    assert seen == numbers(5)


def test_the_lag_of_a_watched_consumer_counts_what_it_has_not_consumed(
    face: Face, name: str
) -> None:
    fill(face, name, 40)
    consumer = assigned(face, name, 0)
    messages = follow(face, consumer, 10)
    assert consumer.load().lag == {name: 40}
    for message in messages:
        message.ack()
    consumer.committed(queue_of(name))
    assert consumer.load().lag == {name: 30}


def test_an_iteration_ends_when_the_consumer_is_closed(face: Face, name: str) -> None:
    fill(face, name, 1)
    consumer = assigned(face, name, 0)
    following = face.following(consumer)
    next(following).ack()
    rest: list[Any] = []
    thread = threading.Thread(target=lambda: rest.extend(following))
    thread.start()
    consumer.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert rest == []
