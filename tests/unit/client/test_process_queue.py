"""Bookkeeping of messages that are pulled and not yet consumed."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.waits import WAIT_S

from cometmq.client.pulling.process_queue import LAG_KNOWN_MS, FlowLimits, ProcessQueue
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue


def messages(*offsets: int, size: int = 1) -> list[MessageExt]:
    return [MessageExt("t", bytes(size), queue_offset=offset) for offset in offsets]


def new_queue() -> ProcessQueue:
    return ProcessQueue(MessageQueue("t", "b", 0))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.randoms())
def test_the_committed_offset_never_passes_a_message_that_is_held(
    gaps: list[int], random: Random
) -> None:
    offsets = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    queue = new_queue()
    queue.put(messages(*offsets))
    held = set(offsets)
    order = list(offsets)
    random.shuffle(order)
    for offset in order:
        below = queue.remove([offset])
        held.discard(offset)
        assert below == (min(held) if held else offsets[-1] + 1)
    assert (len(queue), queue.size_bytes, queue.span) == (0, 0, 0)


def test_nothing_held_ever_means_nothing_to_commit() -> None:
    assert new_queue().remove([3]) == -1


def test_a_message_removed_twice_counts_once() -> None:
    queue = new_queue()
    queue.put(messages(1, 2, size=10))
    assert queue.remove([1]) == 2
    assert queue.remove([1]) == 2
    assert queue.size_bytes == 10


def test_each_limit_stops_the_pulling_when_exceeded() -> None:
    queue = new_queue()
    queue.put(messages(0, 1, 2, size=10))
    assert queue.exceeded(FlowLimits(messages=3, size_bytes=30, span=2)) is None
    for limits, fault in (
        (FlowLimits(messages=2), "3 messages are held, the limit is 2"),
        (FlowLimits(size_bytes=29), "30 bytes are held, the limit is 29"),
        (FlowLimits(span=1), "the offsets held span 2, the limit is 1"),
    ):
        assert queue.exceeded(limits) == fault


async def test_a_waiting_puller_is_woken_when_messages_go() -> None:
    queue = new_queue()
    queue.put(messages(0, 1))
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        group.create_task(queue.wait_removed(10 * WAIT_S))
        await asyncio.sleep(0)
        queue.remove([0])


async def test_a_waiting_puller_looks_again_after_its_time() -> None:
    async with asyncio.timeout(WAIT_S):
        await new_queue().wait_removed(0.001)


def test_the_lag_is_unknown_before_an_answer_and_then_counts_what_is_not_removed() -> None:
    queue = new_queue()
    now_ms = 1_000
    assert queue.lag(now_ms) is None
    queue.learn(30, 10)
    queue.put(messages(10, 11, 12))
    now_ms = queue.last_pull_ms
    assert queue.lag(now_ms) == 20
    queue.remove([11])
    assert queue.lag(now_ms) == 20
    queue.remove([10])
    assert queue.lag(now_ms) == 18
    queue.learn(40, 30)  # while a message is held, the offset of the answer counts for nothing
    assert queue.lag(now_ms) == 28
    queue.remove([12])
    queue.learn(40, 40)
    assert queue.lag(queue.last_pull_ms) == 0


def test_an_old_answer_gives_a_lower_bound_and_never_says_that_nothing_waits() -> None:
    queue = new_queue()
    queue.learn(30, 30)
    late_ms = queue.last_pull_ms + LAG_KNOWN_MS
    assert queue.lag(late_ms) == 0
    assert queue.lag(late_ms + 1) is None
    queue.learn(31, 30)
    assert queue.lag(queue.last_pull_ms + 10 * LAG_KNOWN_MS) == 1
