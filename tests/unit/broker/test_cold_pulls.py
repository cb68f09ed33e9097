"""Pulls of messages that are not in memory wait for a thread, and others are served meanwhile."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import pull_ext, send_ext
from tests.unit.broker.broker_box import GROUP, Client, new_broker, records, turns
from tests.unit.store.cold_disk import ColdDisk
from tests.waits import until

from cometmq.broker.pulls import waiting
from cometmq.broker.server import Broker
from cometmq.errors import StoreError
from cometmq.protocol.codes import ResponseCode
from cometmq.store.files.disk import DiskUsage

SEND, PULL, QUERY_OFFSET = 10, 11, 14
COMMIT, STATED = 1, 4


class RoomyColdDisk(ColdDisk):
    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(100 << 30, 50 << 30)


@asynccontextmanager
async def with_old_messages(
    directory: Path, count: int = 8, queues: int = 1
) -> AsyncIterator[tuple[Broker, RoomyColdDisk]]:
    """Run a broker that has found these messages at its start."""
    disk = RoomyColdDisk()
    first = new_broker(directory, disk=disk)
    await first.start()
    client = Client(first)
    for number in range(count):
        ext = send_ext("orders", queueId=number % queues)
        assert (await client.ask(SEND, ext, b"%d" % number * 3_000)).code == 0
    await first.close()
    broker = new_broker(directory, disk=disk)
    await broker.start()
    try:
        yield broker, disk
    finally:
        disk.lets_read.set()
        await broker.close()


def pull(**fields: Any) -> dict[str, str]:
    return pull_ext("orders", **fields)


async def test_others_are_served_while_a_thread_reads(tmp_path: Path) -> None:
    async with with_old_messages(tmp_path) as (broker, disk):
        disk.lets_read.clear()
        slow, quick = Client(broker), Client(broker, 2)
        opaque = slow.send(PULL, pull())
        await until(lambda: bool(disk.readers))
        assert all(name.startswith("cold-reads") for name in disk.readers)
        for number in range(3):
            ext = send_ext("orders", queueId=3)
            assert (await quick.ask(SEND, ext, b"new %d" % number)).code == 0
        found = records(await quick.ask(PULL, pull(queueId=3)))
        assert [record.body for record in found] == [b"new 0", b"new 1", b"new 2"]
        assert opaque not in slow.answers()
        disk.lets_read.set()
        old = records(await slow.answer(opaque))
        assert [record.queue_offset for record in old] == list(range(8))


async def test_an_offset_that_a_cold_pull_brings_is_committed_once(tmp_path: Path) -> None:
    async with with_old_messages(tmp_path) as (broker, disk):
        client = Client(broker)
        disk.lets_read.clear()
        ext = pull(sysFlag=COMMIT | STATED, queueOffset=4, commitOffset=4, consumerGroup=GROUP)
        opaque = client.send(PULL, ext)
        asks = {"consumerGroup": GROUP, "topic": "orders", "queueId": 0}
        assert (await client.ask(QUERY_OFFSET, asks)).ext["offset"] == "4"
        # Committed by a later request; the older offset must not come back with the answer.
        await client.ask(15, {**asks, "commitOffset": "6"})
        disk.lets_read.set()
        assert (await client.answer(opaque)).code == 0
        assert (await client.ask(QUERY_OFFSET, asks)).ext["offset"] == "6"


async def test_a_pull_does_not_wait_for_ever_where_memory_is_short(tmp_path: Path) -> None:
    async with with_old_messages(tmp_path) as (broker, disk):
        disk.forgets = True
        assert len(records(await Client(broker).ask(PULL, pull()))) == 8
        assert 0 < len(disk.brought) <= 3


async def test_a_disk_that_fails_is_told_to_the_client(tmp_path: Path) -> None:
    async with with_old_messages(tmp_path) as (broker, disk):
        disk.fault = StoreError("/store/0: Input/output error")
        answer = await Client(broker).ask(PULL, pull())
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "/store/0: Input/output error",
        )
        disk.fault = None
        assert (await Client(broker).ask(PULL, pull())).code == 0


async def test_connections_take_turns_at_the_disk(tmp_path: Path) -> None:
    async with with_old_messages(tmp_path, queues=4) as (broker, disk):
        disk.lets_read.clear()
        disk.forgets = True
        greedy, modest = Client(broker), Client(broker, 2)
        for _ in range(40):
            greedy.send(PULL, pull())
        opaque = modest.send(PULL, pull(queueId=1))
        disk.lets_read.set()
        assert (await modest.answer(opaque)).code == 0
        await until(lambda: len(greedy.answers()) == 40)
        # It was next but one, and not behind all of the other's. How far the other readers come until
        # its thread has the processor depends on the machine.
        read_for = [directory for directory, _, _ in disk.brought]
        assert read_for.index("1") < len(read_for) / 2


async def test_a_client_that_goes_is_read_for_no_more(tmp_path: Path) -> None:
    async with with_old_messages(tmp_path) as (broker, disk):
        disk.lets_read.clear()
        gone, other = Client(broker), Client(broker, 2)
        for _ in range(20):
            gone.send(PULL, pull())
        await until(lambda: bool(disk.readers))
        gone.line.connection.abort()
        gone.line.connection.connection_lost(None)
        disk.lets_read.set()
        assert (await other.ask(PULL, pull())).code == 0
        assert len(disk.brought) <= waiting.READERS + 2


async def test_a_peer_that_reads_nothing_waits_until_it_does(tmp_path: Path) -> None:
    async with with_old_messages(tmp_path) as (broker, disk):
        client = Client(broker)
        disk.lets_read.clear()
        opaque = client.send(PULL, pull())
        await until(lambda: bool(disk.readers))
        client.line.connection.pause_writing()
        disk.lets_read.set()
        await until(lambda: bool(disk.brought))
        await turns()
        assert opaque not in client.answers()
        client.line.connection.resume_writing()
        assert (await client.answer(opaque)).code == 0


async def test_a_stop_leaves_no_reader_behind(tmp_path: Path) -> None:
    async with with_old_messages(tmp_path) as (broker, disk):
        disk.lets_read.clear()
        for port in range(1, 9):
            Client(broker, port).send(PULL, pull())
        await until(lambda: bool(disk.readers))
        disk.lets_read.set()
        await broker.close()
        names = {thread.name for thread in threading.enumerate()}
        assert not any(name.startswith("cold-reads") for name in names)
        read = len(disk.brought)
        await turns()
        assert len(disk.brought) == read


async def test_pulls_beyond_the_limit_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_COLD_PULLS_OF_CONNECTION", 2)
    monkeypatch.setattr(waiting, "MAX_COLD_PULLS", 3)
    async with with_old_messages(tmp_path) as (broker, disk):
        disk.lets_read.clear()
        first, second = Client(broker), Client(broker, 2)
        waits = [first.send(PULL, pull()) for _ in range(2)]
        refused = await first.ask(PULL, pull())
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "MAX_COLD_PULLS_OF_CONNECTION is 2" in str(refused.remark)
        waits_too = second.send(PULL, pull())
        assert "MAX_COLD_PULLS is 3" in str((await second.ask(PULL, pull())).remark)
        disk.lets_read.set()
        for opaque in waits:
            assert (await first.answer(opaque)).code == 0
        assert (await second.answer(waits_too)).code == 0
