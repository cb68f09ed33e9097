"""Long answers by queue are made in slices, and refused when they are too long for any client."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.integration.pop_peer import POP, pop_ext
from tests.unit.broker.broker_box import GROUP, Client, turns
from tests.waits import WAIT_S

from cometmq.broker import long_answer
from cometmq.broker.long_answer import MAX_LONG_ANSWERS_OF_CONNECTION, LongAnswer
from cometmq.broker.refusal import Refused
from cometmq.broker.server import Broker
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.inspection import OffsetWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson.queue_table import with_text_keys
from cometmq.remoting.connection import Connection
from cometmq.runtime.slices import SLICE_S

STATS, CONSUME_STATS, TIME_SPAN, ALL_CONSUME_STATS = 202, 208, 303, 317


class Clock:
    """A clock that advances by a fifth of a slice at each reading."""

    value = 0

    def now_ms(self) -> int:
        return self.value

    def monotonic(self) -> float:
        self.value += 1
        return self.value * SLICE_S / 5


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

    async def write_two() -> bytes:
        await writer.add('b"\\', OffsetWrapper(1, 0))
        await writer.add("é", {"x": [True]})
        return await writer.body(b'{"table":{', b"}}")

    table = json.loads(asyncio.run(write_two()))["table"]
    assert list(table) == ['b"\\', "é"]
    assert table['b"\\']["brokerOffset"] == 1
    assert table["é"] == {"x": [True]}


@pytest.mark.parametrize("count", [0, 1, 3, 60, 500])
def test_a_long_body_is_put_together_in_slices(count: int) -> None:
    """A body of 15 MB was joined, and joined again with what stands around it: 20 ms of the loop."""
    clock = Clock()
    writer = LongAnswer(clock, 1 << 24, "")
    pieces = [bytes([65 + n % 26]) * 30_000 for n in range(count)]

    async def write() -> tuple[bytes, int]:
        for piece in pieces:
            await writer.write(piece)
        began = clock.value
        return await writer.body(b"[", b"]"), clock.value - began

    body, looks = asyncio.run(write())
    assert body == b"[%b]" % b"".join(pieces)
    assert looks >= count // 3, "a look at the clock for each chunk"


def test_offsets_of_many_queues_are_encoded_in_slices() -> None:
    clock = Clock()
    writer = LongAnswer(clock, 1 << 24, "")
    offsets = {queue_id: queue_id * 3 for queue_id in range(50_000)}

    async def write() -> tuple[bytes, int]:
        await writer.add_offsets("t@none", {})
        began = clock.value
        await writer.add_offsets("t@g", offsets)
        return await writer.body(b"{", b"}"), clock.value - began

    body, looks = asyncio.run(write())
    whole = {"t@none": {}, "t@g": offsets}
    assert body == json.dumps(whole, separators=(",", ":")).encode()
    assert looks > 10


async def test_long_answers_are_made_one_at_a_time_and_connections_take_turns(
    client: Client, broker: Broker
) -> None:
    # A thousand of them together gave each turn of the loop a slice of each: two seconds of it.
    made: list[str] = []

    async def make(connection: Connection, name: str) -> None:
        async with broker.parts.long_answers.turn(connection):
            made.append(f"{name} begins")
            await asyncio.sleep(0)
            made.append(f"{name} ends")

    mine, other = client.line.connection, Client(broker, 4712).line.connection
    await asyncio.gather(
        *(make(mine, f"mine {number}") for number in range(3)),
        *(make(other, f"other {number}") for number in range(2)),
    )
    order = ["mine 0", "mine 1", "other 0", "mine 2", "other 1"]
    assert made == [f"{name} {what}" for name in order for what in ("begins", "ends")]


async def test_who_asks_for_too_many_long_answers_is_refused_and_nobody_else(
    client: Client, broker: Broker
) -> None:
    other = Client(broker, 4712)
    async with broker.parts.long_answers.turn(other.line.connection):
        opaques = [
            client.send(STATS, {"topic": "orders"})
            for _ in range(MAX_LONG_ANSWERS_OF_CONNECTION + 5)
        ]
        refused = [await client.answer(opaque) for opaque in opaques[-5:]]
        asked = other.send(STATS, {"topic": "orders"})
        await turns()
        assert len(client.answers()) == 5
        # What waits for a connection that is gone is dropped.
        gone = Client(broker, 4713)
        gone.send(STATS, {"topic": "orders"})
        await turns()
        gone.line.connection.abort()
    assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}
    assert "MAX_LONG_ANSWERS_OF_CONNECTION is 1000" in str(refused[0].remark)
    assert (await other.answer(asked)).code == 0
    assert (await client.answer(opaques[-6])).code == 0
    assert len(client.answers()) == len(opaques)
    assert (await client.ask(STATS, {"topic": "orders"})).code == 0


async def test_a_turn_that_is_given_up_goes_to_the_next(client: Client, broker: Broker) -> None:
    long_answers, connection = broker.parts.long_answers, client.line.connection

    async def wait() -> None:
        async with long_answers.turn(connection):
            pass

    async with long_answers.turn(connection):
        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await turns()
        tasks[0].cancel()
    # The turn has come to the first one, which is cancelled.
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [True, True, False]
    async with asyncio.timeout(WAIT_S), long_answers.turn(connection):
        pass


@pytest.mark.parametrize(
    ("code", "ext", "pieces"),
    [
        (STATS, {"topic": "wide"}, 300),
        (CONSUME_STATS, {"consumerGroup": GROUP, "topic": "wide"}, 300),
        (TIME_SPAN, {"topic": "wide", "group": GROUP}, 300),
        (ALL_CONSUME_STATS, {"isOrder": "false"}, 300),
        # Topics that are not told take time, too.
        (ALL_CONSUME_STATS, {"isOrder": "true"}, 50),
    ],
)
async def test_an_answer_about_many_queues_lets_others_have_the_loop_at_each(
    client: Client,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    ext: dict[str, str],
    pieces: int,
) -> None:
    monkeypatch.setattr(long_answer, "SLICE_S", 0)
    parts = broker.parts
    parts.topics.put(TopicConfig(topic_name="wide", read_queue_nums=300, write_queue_nums=300))
    for i in range(50):
        parts.topics.put(TopicConfig(topic_name=f"t{i}", read_queue_nums=1, write_queue_nums=1))
        parts.offsets.commit(GROUP, f"t{i}", 0, 0)
    parts.offsets.commit(GROUP, "wide", 0, 0)
    opaque = client.send(code, ext)
    count = 0
    while opaque not in client.answers():
        await asyncio.sleep(0)
        count += 1
    answer = client.answers()[opaque]
    assert answer.code == 0, answer.remark
    json.loads(with_text_keys(bytes(answer.body)))
    assert count > pieces


async def test_what_a_group_selects_that_pops_without_heartbeats_is_known(
    client: Client,
) -> None:
    question = {"group": GROUP, "topic": "orders"}
    assert "subscriptionData" not in json.loads(bytes((await client.ask(345, question)).body))
    await client.ask(POP, pop_ext(expType="TAG", exp="paid || sent"))
    answer = json.loads(bytes((await client.ask(345, question)).body))["subscriptionData"]
    assert (answer["subString"], sorted(answer["tagsSet"])) == ("paid || sent", ["paid", "sent"])
    await client.ask(POP, pop_ext())
    answer = json.loads(bytes((await client.ask(345, question)).body))["subscriptionData"]
    assert answer["subString"] == "*"
