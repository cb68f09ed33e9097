"""Messages that are looked up by key and by place."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.raw_client import properties, send_ext
from tests.unit.broker.broker_box import Client, records, running

from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.frame import FrameDecoder
from cometmq.protocol.messages.ids import parse_offset_id

SEND, QUERY, VIEW = 10, 12, 33
ALL = {"beginTimestamp": 0, "endTimestamp": 1 << 60}


async def send(client: Client, body: bytes, key: str = "K") -> int:
    """Store a message; its commit-log offset."""
    ext = send_ext("orders", properties=properties({"KEYS": key}))
    answer = await client.ask(SEND, ext, body)
    assert answer.code == 0, answer.remark
    return parse_offset_id(answer.ext["msgId"]).commit_log_offset


async def found(client: Client, key: str = "K", limit: int = 64) -> list[bytes]:
    ext = {"topic": "orders", "key": key, "maxNum": limit, **ALL}
    return [record.body for record in records(await client.ask(QUERY, ext))]


async def test_a_key_finds_its_messages_in_the_order_of_the_log(client: Client) -> None:
    for number in range(5):
        await send(client, b"%d" % number)
        await send(client, b"other", "L")
    assert await found(client) == [b"0", b"1", b"2", b"3", b"4"]
    assert await found(client, limit=2) == [b"3", b"4"]
    nothing = {"topic": "orders", "key": "absent", "maxNum": 8, **ALL}
    assert (await client.ask(QUERY, nothing)).code == ResponseCode.QUERY_NOT_FOUND


async def test_an_answer_that_grows_too_large_for_a_frame_has_the_newest(tmp_path: Path) -> None:
    async with running(tmp_path, max_frame_length=1 << 20) as broker:
        client = Client(broker)
        for number in range(5):
            await send(client, b"%d" % number * 300_000)
        assert [body[:1] for body in await found(client)] == [b"2", b"3", b"4"]


async def test_an_answer_says_that_a_limit_ended_its_query(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        broker.store.index.max_records_looked_at = 3
        for key in ("Aa", "BB", "Aa", "BB"):
            await send(client, key.encode(), key)
        ext = {"topic": "orders", "key": "Aa", "maxNum": 64, **ALL}
        answer = await client.ask(QUERY, ext)
        assert [record.body for record in records(answer)] == [b"Aa"]
        assert "MAX_RECORDS_LOOKED_AT is 3" in str(answer.remark)
        answer = await client.ask(QUERY, ext | {"maxNum": 1})
        assert ([record.body for record in records(answer)], answer.remark) == ([b"Aa"], None)


async def test_a_place_where_no_message_begins_shows_none(client: Client) -> None:
    places = [await send(client, body) for body in (b"first", b"second")]
    assert [r.body for r in records(await client.ask(VIEW, {"offset": places[1]}))] == [b"second"]
    for place in (places[1] + 1, places[1] + 10_000, -1, 1 << 62):
        answer = await client.ask(VIEW, {"offset": place})
        assert (answer.code, str(place) in str(answer.remark)) == (1, True), place


class Noted(list[bytes]):
    """The writes of a transport; adds a name to `order` with each answer."""

    def __init__(self, order: list[str], name: str, writes: list[bytes]) -> None:
        super().__init__(writes)
        self._order, self._name = order, name

    def append(self, data: bytes) -> None:
        self._order.extend([self._name] * len(FrameDecoder().feed(data)))
        super().append(data)


async def test_queries_of_one_client_do_not_hold_up_those_of_another(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        busy, modest = Client(broker), Client(broker)
        await send(busy, b"body")
        order: list[str] = []
        for name, client in (("busy", busy), ("modest", modest)):
            client.line.transport.writes = Noted(order, name, client.line.transport.writes)
        asked = [found(busy) for _ in range(100)] + [found(modest)]
        assert await asyncio.gather(*asked) == [[b"body"]] * 101
        # What is written, not what a waiting task comes to see: those see it late on a busy machine.
        assert order.index("modest") <= 2
