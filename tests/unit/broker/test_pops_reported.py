"""Bugs that were reported of Java's brokers that serve pops, by the numbers of their issues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.own_broker import SetClock, SetDisk
from tests.integration.pop_peer import BATCH_ACK, CHANGE, Popped
from tests.unit.broker.broker_box import GROUP, Client, running, turns
from tests.unit.broker.pop_calls import LONG, RETRY, SHORT, ack, again, fill, pop, seen
from tests.waits import until

from cometmq.broker.pop import revival
from cometmq.errors import StoreError, StoreFullError
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.pop.bodies import BatchAck, BatchAckMessageRequestBody, encode_bits
from cometmq.store.get import GetResult
from cometmq.store.queues.consume_queue import ConsumeQueue

KEY = (GROUP, "orders", 0)
MINUTE_MS = 60_000


async def test_7724_the_messages_that_were_selected_come_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        for number in range(6):
            await fill(
                client, 1, queueId=0, properties=f"TAGS\x01{number % 2}\x02KEYS\x01{number}\x02"
            )
        assert len(await pop(client, exp="1", invisibleTime=SHORT)) == 3
        await until(lambda: broker.pops.revival.revived_count == 3)
        found = [decode_properties(each.record.properties)["KEYS"] for each in await pop(client)]
        assert found == ["1", "3", "5"]


async def test_10985_what_cannot_be_read_now_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 1, queueId=0)
        monkeypatch.setattr(revival, "_PAUSE_MS", 1)
        get, faults = broker.store.get, 3

        def fails(topic: str, *args: Any, **more: Any) -> GetResult:
            nonlocal faults
            if args[2:] == (1,) and faults:
                faults -= 1
                raise StoreError("Input/output error")
            return get(topic, *args, **more)

        monkeypatch.setattr(broker.store, "get", fails)
        assert len(await pop(client, invisibleTime=SHORT)) == 1
        await until(lambda: broker.pops.revival.revived_count == 1)
        assert faults == 0
        assert [each.body for each in await pop(client)] == [b"0"]


async def test_10736_an_acknowledgement_amid_the_reading_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a thread reads messages that are not in memory, the loop takes acknowledgements."""
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 2, queueId=0)
        read, is_popped = broker.pops.revival._read, asyncio.Event()
        state = broker.pops.state

        async def acknowledged(*args: Any) -> Any:
            records = await read(*args)
            await is_popped.wait()  # on a busy machine `messages` may not be set yet
            assert (await ack(client, messages[0])).code == 0
            return records

        monkeypatch.setattr(broker.pops.revival, "_read", acknowledged)
        messages = await pop(client, invisibleTime=SHORT)
        is_popped.set()
        await until(lambda: broker.pops.revival.revived_count == 1)
        assert [each.body for each in await pop(client)] == [b"1"]
        assert state.table.states[GROUP, "orders", 0].committed == 2


async def test_3787_a_renewal_that_comes_too_late_is_refused(tmp_path: Path) -> None:
    """Java answers with a new handle, by which nothing can be acknowledged."""
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 1)
        (message,) = await pop(client, invisibleTime=SHORT)
        await until(lambda: broker.pops.revival.revived_count == 1)
        assert (await client.ask(CHANGE, message.ext(invisibleTime=LONG))).code == 208
        (again_popped,) = await pop(client)
        assert (await ack(client, again_popped)).code == 0
        assert broker.pops.state.table.count == 0


async def test_5408_acknowledgements_of_what_was_not_popped_stop_no_offset(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 4, queueId=0)
        messages = await pop(client, maxMsgNums=2)
        popped_ms = messages[0].handle.pop_time
        entry = BatchAck(GROUP, "orders", "0", 0, 0, 0, popped_ms, LONG, encode_bits(0, range(4)))
        body = encode_body(BatchAckMessageRequestBody("b", [entry, entry]))
        assert (await client.ask(BATCH_ACK, {}, body)).code == 0
        assert broker.pops.state.table.states[GROUP, "orders", 0].committed == 2
        assert [each.record.queue_offset for each in await pop(client)] == [2, 3]


@pytest.mark.parametrize("amid", ["the reading", "the writing of the retry topic"])
async def test_7914_a_renewal_amid_the_revival_keeps_the_message_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amid: str
) -> None:
    """A slow consumer renewed in time, and got a copy besides."""
    monkeypatch.setattr(revival, "_LONGEST_SLEEP_MS", 1)
    clock = SetClock()
    async with running(tmp_path, clock=clock) as broker:
        client = Client(broker)
        await fill(client, 2, queueId=0)
        messages = await pop(client, invisibleTime=LONG)
        renewed: list[int] = []

        async def renew() -> None:
            if not renewed:
                answer = await client.ask(CHANGE, messages[0].ext(invisibleTime=LONG))
                assert answer.code == 0, answer.remark
                renewed.append(int(answer.ext["popTime"]))

        if amid == "the reading":
            after(monkeypatch, broker.pops.revival, "_read", renew)
        else:
            after(monkeypatch, broker.topics, "written", renew)
        clock.ahead_ms += LONG
        await until(lambda: broker.pops.revival.revived_count)
        assert [each.body for each in await pop(client)] == [b"1"]
        hidden = broker.pops.state.table.states[KEY].hidden
        assert [(each.offset, each.popped_ms) for each in hidden] == [(0, renewed[0])]
        messages[0].handle = messages[0].handle._replace(pop_time=renewed[0])
        assert (await ack(client, messages[0])).code == 0
        assert broker.pops.state.table.states[KEY].committed == 2
        assert broker.store.max_offset(RETRY, 0) == 1


@pytest.mark.parametrize("acknowledged", [[], [1], [0, 1, 2]])
async def test_9318_a_queue_that_was_idle_keeps_its_position(
    tmp_path: Path, acknowledged: list[int]
) -> None:
    """Java forgets a queue from which nothing was popped for ten minutes."""
    clock = SetClock()
    async with running(tmp_path, clock=clock) as broker:
        client = Client(broker)
        await fill(client, 6, queueId=0)
        messages = await pop(client, maxMsgNums=3, invisibleTime=120 * MINUTE_MS)
        for number in acknowledged:
            assert (await ack(client, messages[number])).code == 0
        clock.ahead_ms += 11 * MINUTE_MS
        assert offsets(await pop(client, maxMsgNums=1, invisibleTime=120 * MINUTE_MS)) == [3]
        clock.ahead_ms += 11 * MINUTE_MS
        while broker.pops.state.log.step():
            pass
        before = seen(broker)
    async with running(tmp_path, clock=clock) as broker:
        assert broker.pops.state.log.start > 0
        assert seen(broker) == before
        client = Client(broker)
        clock.ahead_ms += 11 * MINUTE_MS
        assert offsets(await pop(client)) == [4, 5]
        assert broker.store.max_offset(RETRY, 0) == 0


async def test_10256_two_batches_at_once_acknowledge_the_messages_of_both(tmp_path: Path) -> None:
    """Java's second batch changed the list that the writer of the first one still read."""
    disk = SetDisk()
    store = {"flush_disk_type": "SYNC_FLUSH"}
    async with running(tmp_path, store=store, disk=disk) as broker:
        clients = Client(broker), Client(broker, 4712)
        await fill(clients[0], 9, queueId=0)
        messages = await pop(clients[0])
        disk.may_sync.clear()
        try:
            asked = [
                (client, client.send(BATCH_ACK, {}, batch(messages[0], numbers)))
                for client, numbers in zip(
                    2 * clients, ([0, 2], [1, 3], [4, 6], [5, 7]), strict=True
                )
            ]
            await turns()
            assert not any(opaque in client.answers() for client, opaque in asked)
        finally:
            disk.may_sync.set()
        assert [(await client.answer(opaque)).code for client, opaque in asked] == [0] * 4
        before = seen(broker)
        committed, hidden, _ = before[KEY]
        assert (committed, [each.offset for each in hidden]) == (8, [8])
    # The log has all of them, too.
    async with running(tmp_path, store=store) as broker:
        assert seen(broker) == before


async def test_10667_an_acknowledgement_amid_a_revival_that_cannot_read_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revival, "_LONGEST_SLEEP_MS", 1)
    monkeypatch.setattr(revival, "_PAUSE_MS", 1)
    clock = SetClock()
    async with running(tmp_path, clock=clock) as broker:
        client = Client(broker)
        await fill(client, 2, queueId=0)
        messages = await pop(client, invisibleTime=LONG)
        failed: list[str] = []

        async def acknowledge_and_fail() -> None:
            if not failed:
                failed.append("once")
                assert (await ack(client, messages[0])).code == 0
                raise StoreError("Input/output error")

        after(monkeypatch, broker.pops.revival, "_read", acknowledge_and_fail)
        clock.ahead_ms += LONG
        await until(lambda: broker.pops.revival.revived_count)
        assert [each.body for each in await pop(client)] == [b"1"]
        assert broker.pops.state.table.states[KEY].committed == 2
        assert broker.store.max_offset(RETRY, 0) == 1


async def test_10667_an_acknowledgement_after_a_revival_that_could_not_write_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log announces copies of both messages, then it has an acknowledgement and no copy."""
    monkeypatch.setattr(revival, "_LONGEST_SLEEP_MS", 1)
    clock = SetClock()
    async with running(tmp_path, clock=clock) as broker:
        client = Client(broker)
        await fill(client, 2, queueId=0)
        messages = await pop(client, invisibleTime=LONG)
        append, failed = broker.store.append, list[str]()

        def full(queue: ConsumeQueue, *args: Any, **more: Any) -> tuple[int, int]:
            if queue.topic == RETRY:
                failed.append(queue.topic)
                raise StoreFullError("the disk is full")
            return append(queue, *args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(revival, "_PAUSE_MS", LONG)
            patch.setattr(broker.store, "append", full)
            clock.ahead_ms += LONG
            await until(lambda: failed)
            assert (await ack(client, messages[0])).code == 0
        assert [each.offset for each in broker.pops.state.table.states[KEY].hidden] == [1]
    async with running(tmp_path, clock=clock) as broker:
        (message,) = await again(Client(broker))
        assert (message.body, message.record.reconsume_times) == (b"1", 1)
        assert broker.pops.state.table.states[KEY].committed == 2
        assert broker.store.max_offset(RETRY, 0) == 1


def after(
    monkeypatch: pytest.MonkeyPatch, target: Any, name: str, action: Callable[[], Awaitable[None]]
) -> None:
    """Run `action` whenever a coroutine of `target` is done."""
    original = getattr(target, name)

    async def wrapped(*args: Any) -> Any:
        result = await original(*args)
        await action()
        return result

    monkeypatch.setattr(target, name, wrapped)


def offsets(messages: list[Popped]) -> list[int]:
    return [each.record.queue_offset for each in messages]


def batch(first: Popped, numbers: list[int]) -> bytes:
    """Return the body of a request that acknowledges messages of the pop that gave `first`."""
    entry = BatchAck(
        GROUP, "orders", "0", 0, 0, 0, first.handle.pop_time, LONG, encode_bits(0, numbers)
    )
    return encode_body(BatchAckMessageRequestBody("b", [entry]))
