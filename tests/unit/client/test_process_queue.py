"""Bookkeeping of messages that are pulled and not yet consumed."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from cometmq.client.process_queue import FlowLimits, ProcessQueue
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
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(queue.wait_removed(60))
        await asyncio.sleep(0)
        queue.remove([0])


async def test_a_waiting_puller_looks_again_after_its_time() -> None:
    async with asyncio.timeout(5):
        await new_queue().wait_removed(0.001)
