"""Ranges read by many pulls, from a broker that may answer in any way the protocol allows."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seeds import examples
from tests.unit.bulk.fake_broker import QUEUE, FakeBroker, offsets_in

from cometmq.bulk.range_pulls import Chunk, Missing, RangePulls
from cometmq.errors import (
    ConnectError,
    ConnectionLostError,
    RemoteError,
    RouteNotFoundError,
)
from cometmq.filtering.tags import build_subscription


async def read(broker: Any, start: int, end: int, patience_s: float = 0.0) -> list[Chunk]:
    subscription = build_subscription("orders", "*")
    pulls = RangePulls(broker, "group", QUEUE, start, end, subscription, patience_s)
    try:
        chunks = []
        while (chunk := await pulls.next_chunk()) is not None:
            chunks.append(chunk)
        return chunks
    finally:
        await pulls.close()


@settings(max_examples=examples(200), deadline=None)
@given(
    low=st.integers(0, 100),
    length=st.integers(0, 2500),
    start=st.integers(0, 200),
    span=st.integers(0, 2500),
    holes=st.sets(st.integers(0, 2700), max_size=40) | st.just(set(range(50, 400))),
    seed=st.integers(0, 2**32),
)
async def test_whatever_the_answers_are_each_message_comes_once_and_in_order(
    low: int, length: int, start: int, span: int, holes: set[int], seed: int
) -> None:
    high = low + length
    broker = FakeBroker(low, high, holes, random.Random(seed))
    chunks = await read(broker, start, start + span)
    wanted = [at for at in range(max(start, low), min(start + span, high)) if at not in holes]
    # The last answer may reach behind the end.
    assert [at for at in offsets_in(chunks) if at < start + span] == wanted
    missing = {
        at
        for chunk in chunks
        for entry in chunk.missing
        for at in range(entry.start, min(entry.end, start + span))
    }
    assert missing >= set(range(start, min(low, start + span)))
    assert missing >= set(range(max(start, high), start + span))
    assert missing.isdisjoint(wanted)
    if chunks:
        assert (chunks[0].start, chunks[-1].end) == (start, start + span)


async def test_failures_are_tried_again() -> None:
    broker = FakeBroker(0, 500, set(), random.Random(1))
    broker.fails = 0.3
    assert offsets_in(await read(broker, 0, 500, patience_s=30)) == list(range(500))
    assert broker.most_at_once > 4


async def test_a_broker_that_fails_for_too_long_fails_the_read() -> None:
    broker = FakeBroker(0, 500, set(), random.Random(1))
    broker.fails = 1.0
    with pytest.raises((ConnectionLostError, RemoteError)):
        await read(broker, 0, 500)


async def test_the_end_of_the_queue_is_found_at_once_for_all_that_is_behind_it() -> None:
    broker = FakeBroker(0, 10, set(), random.Random(1))
    chunks = await read(broker, 0, 10**12)
    (missing,) = (entry for chunk in chunks for entry in chunk.missing)
    assert missing == (10, 10**12, Missing.BEYOND_THE_END)


async def test_a_slave_is_read_while_the_master_is_down() -> None:
    broker = FakeBroker(0, 500, set(), random.Random(1))
    broker.addresses = ["master:1", "slave:1"]
    broker.down.add("master:1")
    assert offsets_in(await read(broker, 0, 500, patience_s=30)) == list(range(500))


async def test_what_a_slave_lacks_is_not_taken_for_missing() -> None:
    broker = FakeBroker(0, 500, set(), random.Random(1))
    broker.addresses = ["master:1", "slave:1"]
    broker.slaves_end = 300
    broker.down.add("master:1")
    with pytest.raises((RouteNotFoundError, ConnectError)):
        await read(broker, 0, 500)
    broker.down.clear()
    assert offsets_in(await read(broker, 0, 500, patience_s=30)) == list(range(500))
