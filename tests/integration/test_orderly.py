"""Orderly consumption by both faces against a real cluster."""

from __future__ import annotations

import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.waits import CLOCK, eventually

from cometmq import (
    ConsumeFromWhere,
    ConsumeReport,
    ConsumeResult,
    Message,
    MessageExt,
    MessageQueue,
)

FIRST = ConsumeFromWhere.FIRST_OFFSET
# A broker keeps a dead member's lock for 60 s, and the next member asks every 20 s. On a busy machine
# an answer to a lock comes too late, so that its member does not know that it has something to unlock.
LOCK_WAIT_S = 400.0
ORDERLY = {"orderly": True, "consume_from": FIRST, "suspend_current_queue_time_ms": 10}


pytestmark = [
    pytest.mark.faces("virtual"),
    pytest.mark.cluster(properties={"accessMessageInMemoryMaxRatio": "0"}),
]

# Threads take part here, and connections of the machine.
with_threads = pytest.mark.faces("virtual", "blocking", seeds=3)
with_seeds = pytest.mark.faces("virtual", seeds=3)


class Watch:
    """Watches what all members of a group consume.

    `overlaps` are moments with two listeners on one queue, `history` the offsets of each queue in
    the order in which they were consumed.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.overlaps: list[str] = []
        self.history: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._seconds = seconds
        self._inside: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def handle(self, messages: list[MessageExt]) -> Generator[float, None, ConsumeResult]:
        message = messages[0]
        queue = (message.broker_name, message.queue_id)
        with self._lock:
            if queue in self._inside:
                self.overlaps.append(f"{queue} at {message.queue_offset}")
            self._inside.add(queue)
            self.history[queue] += [m.queue_offset for m in messages]
        if self._seconds:
            yield self._seconds
        with self._lock:
            self._inside.discard(queue)
        return ConsumeResult.SUCCESS

    def done(self, offsets: dict[tuple[str, int], int]) -> bool:
        with self._lock:
            return all(
                set(range(count)) <= set(self.history[queue]) for queue, count in offsets.items()
            )

    def steps_back(self) -> list[tuple[tuple[str, int], int, int]]:
        """Return where a queue went back: (queue, from, to)."""
        return [
            (queue, before, after)
            for queue, offsets in self.history.items()
            for before, after in itertools.pairwise(offsets)
            if after <= before
        ]

    def gaps(self) -> list[tuple[tuple[str, int], int, int]]:
        """Return where a queue left something out: (queue, from, to)."""
        return [
            (queue, before, after)
            for queue, offsets in self.history.items()
            for before, after in itertools.pairwise(offsets)
            if after > before + 1
        ]


def fill(face: Face, topic: str, per_queue: int) -> dict[tuple[str, int], int]:
    """Send `per_queue` messages to each of the topic's four queues; return the counts by queue."""
    producer = face.producer(f"{topic}-fill")
    producer.send(Message(topic, b"0"), queue=MessageQueue(topic, "broker-a", 0))
    counts = {("broker-a", i): per_queue for i in range(4)}
    for i in range(4):
        queue = MessageQueue(topic, "broker-a", i)
        left = per_queue - (1 if i == 0 else 0)
        producer.send_batch([Message(topic, b"%d" % n) for n in range(left)], queue=queue)
    return counts


def owned(consumer: Any, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.assigned_queues())


@with_threads
def test_each_queue_is_consumed_in_order_by_one_listener_at_a_time(face: Face, name: str) -> None:
    counts = fill(face, name, 200)
    watch = Watch()
    face.consumer(name, name, watch.handle, **ORDERLY)
    eventually(lambda: watch.done(counts))
    assert watch.overlaps == []
    assert all(watch.history[queue] == list(range(200)) for queue in counts)


def test_a_suspended_queue_is_tried_again_in_place(face: Face, name: str) -> None:
    fill(face, name, 20)
    seen: dict[int, list[int]] = defaultdict(list)
    times: list[int] = []

    def handle(messages: list[MessageExt]) -> Any:
        (message,) = messages
        seen[message.queue_id].append(message.queue_offset)
        if message.queue_id == 2 and message.queue_offset == 7 and message.reconsume_times < 4:
            times.append(message.reconsume_times)
            if message.reconsume_times == 0:
                return "no verdict"
            if message.reconsume_times == 1:
                raise RuntimeError("not now")
            if message.reconsume_times == 2:
                return ConsumeResult.RECONSUME_LATER
            return ConsumeReport(ConsumeResult.SUSPEND, suspend_current_queue_time_ms=30)
        return ConsumeResult.SUCCESS

    face.consumer(name, name, handle, **ORDERLY)
    eventually(lambda: all(seen[i][-1:] == [19] for i in range(4)))
    assert seen[2] == [*range(7), 7, 7, 7, 7, *range(7, 20)]
    assert times == [0, 1, 2, 3]
    assert seen[1] == list(range(20))


def test_a_message_that_had_its_chances_becomes_a_dead_letter(face: Face, name: str) -> None:
    fill(face, name, 6)
    seen: list[tuple[int, int]] = []

    def handle(messages: list[MessageExt]) -> ConsumeResult:
        (message,) = messages
        if message.queue_id == 1:
            seen.append((message.queue_offset, message.reconsume_times))
            if message.queue_offset == 2:
                return ConsumeResult.SUSPEND
        return ConsumeResult.SUCCESS

    face.consumer(name, name, handle, max_reconsume_times=2, **ORDERLY)
    eventually(lambda: seen and seen[-1][0] == 5)
    assert seen == [(0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (3, 0), (4, 0), (5, 0)]
    dead = Received()
    face.consumer(f"{name}-dead", f"%DLQ%{name}", dead.handle, consume_from=FIRST)
    (letter,) = dead.wait_for(1)
    assert letter.body == b"2"
    assert letter.properties["RETRY_TOPIC"] == name


def test_a_batch_keeps_its_order(face: Face, name: str) -> None:
    counts = fill(face, name, 50)
    watch = Watch()
    face.consumer(name, name, watch.handle, consume_message_batch_max_size=8, **ORDERLY)
    eventually(lambda: watch.done(counts))
    assert all(watch.history[queue] == list(range(50)) for queue in counts)


@with_threads
def test_members_that_come_and_go_never_share_a_queue(face: Face, name: str) -> None:
    counts = fill(face, name, 1000)
    watch = Watch(0.001)
    chance = random.Random(7)
    members = [face.consumer(name, name, watch.handle, **ORDERLY)]
    for _ in range(10):
        if len(members) > 1 and chance.random() < 0.5:
            members.pop(chance.randrange(len(members))).close()
        else:
            members.append(face.consumer(name, name, watch.handle, **ORDERLY))
        CLOCK.sleep(0.1)
    eventually(lambda: watch.done(counts), wait_s=LOCK_WAIT_S)
    assert watch.overlaps == []
    assert watch.gaps() == []
    # A member committed all that it had consumed before it gave the queue away.
    assert watch.steps_back() == []


@with_seeds
def test_two_members_share_queues_one_of_which_suspends(face: Face, name: str) -> None:
    counts = fill(face, name, 100)
    watch = Watch(0.002)
    refused: set[int] = set()

    def refuse_once(messages: list[MessageExt]) -> Generator[float, None, ConsumeResult]:
        (message,) = messages
        if message.body == b"50" and message.queue_id not in refused:
            refused.add(message.queue_id)
            return ConsumeResult.SUSPEND
        return (yield from watch.handle(messages))

    first = face.consumer(name, name, refuse_once, **ORDERLY)
    face.consumer(name, name, refuse_once, **ORDERLY)
    eventually(lambda: any(watch.history.values()))
    first.close()
    eventually(lambda: watch.done(counts), wait_s=LOCK_WAIT_S)
    assert watch.overlaps == []
    assert refused == {0, 1, 2, 3}
    assert all(watch.history[queue] == list(range(100)) for queue in counts)


@with_threads
def test_a_slow_listener_keeps_its_queue_until_it_is_done(face: Face, name: str) -> None:
    fill(face, name, 2)
    may_go_on = False
    begun: list[tuple[int, int]] = []
    watch = Watch()

    def slow(messages: list[MessageExt]) -> Generator[float, None, ConsumeResult]:
        (message,) = messages
        begun.append((message.queue_id, message.queue_offset))
        while not may_go_on:
            yield 0.01
        return (yield from watch.handle(messages))

    first = face.consumer(name, name, slow, **ORDERLY)
    eventually(lambda: len(begun) >= 4)
    second = face.consumer(name, name, watch.handle, **ORDERLY)
    eventually(lambda: owned(first, name) == 2)
    CLOCK.sleep(1.5)  # the second one asks meanwhile, and is refused
    assert owned(second, name) == 0
    assert watch.history == {}
    may_go_on = True
    eventually(lambda: owned(second, name) == 2)
    eventually(lambda: watch.done({("broker-a", i): 2 for i in range(4)}))
    assert watch.overlaps == []
    assert watch.steps_back() == []


@with_seeds
def test_a_closed_member_leaves_its_queues_unlocked(face: Face, name: str) -> None:
    counts = fill(face, name, 5)
    watch = Watch()
    first = face.consumer(name, name, watch.handle, **ORDERLY)
    eventually(lambda: watch.done(counts))
    first.close()
    second = face.consumer(name, name, watch.handle, **ORDERLY)
    # A lock that nobody returns expires after 60 s.
    eventually(lambda: owned(second, name) == 4, wait_s=LOCK_WAIT_S)
    face.producer(f"{name}-more").send(
        Message(name, b"more"), queue=MessageQueue(name, "broker-a", 3)
    )
    eventually(lambda: watch.history["broker-a", 3] == [0, 1, 2, 3, 4, 5])
