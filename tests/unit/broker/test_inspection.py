"""Long answers by queue are made in slices, and refused when they are too long for any client."""

from __future__ import annotations

import asyncio
import json

import pytest

from cometmq.broker.inspection import QueueTableWriter
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


async def write(writer: QueueTableWriter, count: int) -> int:
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
            await writer.add(f"t{i}", 0, OffsetWrapper(i, i))
    finally:
        task.cancel()
    return turns


@pytest.mark.parametrize("count", [100, 1000])
def test_a_long_answer_lets_others_have_the_loop(count: int) -> None:
    writer = QueueTableWriter(Clock(), "b", 1 << 20, "ask for less")
    turns = asyncio.run(write(writer, count))
    # One look for an entry, five in a slice, and one for its end.
    assert count // 7 <= turns <= count // 4


def test_an_answer_longer_than_a_frame_is_refused_before_it_is_made() -> None:
    writer = QueueTableWriter(Clock(), "b", 1000, "name a topic")
    with pytest.raises(Refused, match=r"longer than 1000 bytes.*frameMaxLength.*name a topic"):
        asyncio.run(write(writer, 1_000_000))


def test_the_table_is_json_with_a_queue_as_each_key() -> None:
    writer = QueueTableWriter(Clock(), 'b"\\', 1 << 20, "")
    asyncio.run(write(writer, 2))
    body = json.loads(writer.body("consumeTps", 1.5))
    assert body["consumeTps"] == 1.5
    assert [json.loads(key) for key in body["offsetTable"]] == [
        {"brokerName": 'b"\\', "queueId": 0, "topic": f"t{i}"} for i in range(2)
    ]
    assert [value["brokerOffset"] for value in body["offsetTable"].values()] == [0, 1]
