"""Long answers by queue are made in slices, and refused when they are too long for any client."""

from __future__ import annotations

import asyncio
import json

import pytest

from cometmq.broker.long_answer import LongAnswer
from cometmq.broker.refusal import Refused
from cometmq.protocol.inspection_bodies import OffsetWrapper


class Clock:
    """A clock that advances by a millisecond at each reading."""

    value = 0

    def now_ms(self) -> int:
        return self.value

    def monotonic(self) -> float:
        self.value += 1
        return self.value / 1000


async def write(writer: LongAnswer, count: int) -> int:
    """Add `count` entries; return how often other tasks had the loop meanwhile."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    try:
        for i in range(count):
            await writer.add(f"t{i}", OffsetWrapper(i, i))
    finally:
        task.cancel()
    return turns


@pytest.mark.parametrize("count", [100, 1000])
def test_a_long_answer_lets_others_have_the_loop(count: int) -> None:
    writer = LongAnswer(Clock(), 1 << 20, "ask for less")
    turns = asyncio.run(write(writer, count))
    # One look for an entry, five in a slice, and one for its end.
    assert count // 7 <= turns <= count // 4


def test_an_answer_longer_than_a_frame_is_refused_before_it_is_made() -> None:
    writer = LongAnswer(Clock(), 65_536 + 1000, "name a topic")
    with pytest.raises(Refused, match=r"longer than 1000 bytes.*frameMaxLength.*name a topic"):
        asyncio.run(write(writer, 1_000_000))


def test_the_entries_are_a_json_object() -> None:
    writer = LongAnswer(Clock(), 1 << 20, "")

    async def write_two() -> None:
        await writer.add('b"\\', OffsetWrapper(1, 0))
        await writer.add("é", {"x": [True]})

    asyncio.run(write_two())
    table = json.loads(writer.entries())
    assert list(table) == ['b"\\', "é"]
    assert table['b"\\']["brokerOffset"] == 1
    assert table["é"] == {"x": [True]}
