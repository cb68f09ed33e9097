"""Leftovers of a broker that stops, or cannot start."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from tests.integration.raw_client import pull_ext, send_ext
from tests.unit.broker.broker_box import HOST, Client, new_broker, records, running

from cometmq.errors import CometMQError, ConfigError
from cometmq.testing.ports import HeldPort

SEND, PULL, UPDATE_OFFSET = 10, 11, 15


async def test_a_second_broker_on_the_same_store_starts_not_and_holds_nothing(
    tmp_path: Path,
) -> None:
    # Held, or somebody else may listen there when the second broker does not.
    with HeldPort() as held:
        async with running(tmp_path) as broker:
            second = new_broker(tmp_path, listen_port=held.port)
            with pytest.raises(CometMQError, match=str(tmp_path)):
                await second.start()
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((HOST, second.port))
            # The first has not noticed.
            assert (await Client(broker).ask(SEND, send_ext("orders"), b"x")).code == 0
    async with running(tmp_path) as broker:
        assert len(records(await Client(broker).ask(PULL, pull_ext("orders")))) == 1


async def test_a_broker_whose_port_is_taken_leaves_its_store_free(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        broker = new_broker(tmp_path, listen_port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match=str(taken.getsockname()[1])):
            await broker.start()
    async with running(tmp_path):
        pass


async def test_a_stop_keeps_what_was_acknowledged_and_committed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        for topic in ("orders", "made-by-a-send"):
            assert (await client.ask(SEND, send_ext(topic), b"kept")).code == 0
        place = {"consumerGroup": "g", "topic": "orders", "queueId": 0, "commitOffset": 1}
        assert (await client.ask(UPDATE_OFFSET, place)).code == 0
    async with running(tmp_path) as broker:
        assert broker.offsets.query("g", "orders", 0) == 1
        for topic in ("orders", "made-by-a-send"):
            (record,) = records(await Client(broker).ask(PULL, pull_ext(topic)))
            assert record.body == b"kept"


async def test_stopping_twice_is_stopping_once(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.close()
        await broker.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert tasks == []


async def test_a_master_whose_port_for_slaves_is_a_strangers_tells_no_slave_of_it(
    tmp_path: Path,
) -> None:
    # The stranger may be another master, and a slave would copy that one's log.
    with HeldPort((1,)) as held, socket.create_server((HOST, held.port + 1)):
        async with running(tmp_path, listen_port=held.port, vip_channel_enable=False) as broker:
            assert broker.ha_address == ""
            assert (await Client(broker).ask(SEND, send_ext("orders"), b"x")).code == 0
    async with running(tmp_path) as broker:
        assert broker.ha_address == f"{HOST}:{broker.ha_port}"
