"""A name server with its clients in one process, on a simulated clock and without a socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.simulated import EPOCH_MS, LoopClock, MemoryNetwork
from tests.simulated_cluster import name_server, register

from cometmq.admin import AdminClient
from cometmq.errors import ConnectError, RequestTimeoutError, RouteNotFoundError
from cometmq.protocol import headers, requests
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import request
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.connection import AnyRequest, Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.server import RemotingServer
from cometmq.testing import virtual


async def has_route(client: RemotingClient, address: str) -> bool:
    header = headers.GetRouteInfoRequestHeader(topic="orders")
    command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
    return (await client.call(address, command, 3.0)).code == ResponseCode.SUCCESS


async def history_of_a_silent_broker(directory: Path) -> list[tuple[float, str]]:
    """The answers to a client that asks every ten seconds; the broker registers once and is silent."""
    network, loop, history = MemoryNetwork(), asyncio.get_running_loop(), []
    async with name_server(directory, network) as address:
        broker, client = RemotingClient(network=network), RemotingClient(network=network)
        await register(broker, address)
        for _ in range(15):
            # The broker's connection is kept busy, so that it is not its idleness that counts.
            assert await has_route(broker, address) == await has_route(client, address)
            history.append((loop.time(), "there" if await has_route(client, address) else "gone"))
            await asyncio.sleep(10)
        await broker.close()
        await client.close()
    return history


def test_a_silent_broker_is_forgotten_after_two_simulated_minutes(tmp_path: Path) -> None:
    history = virtual.run(history_of_a_silent_broker(tmp_path))
    there = [time_s for time_s, seen in history if seen == "there"]
    gone = [time_s for time_s, seen in history if seen == "gone"]
    assert 110 <= there[-1] <= 125
    assert there[-1] < gone[0] == pytest.approx(there[-1] + 10)


def test_two_runs_have_the_same_history(tmp_path: Path) -> None:
    first = virtual.run(history_of_a_silent_broker(tmp_path / "first"))
    assert first == virtual.run(history_of_a_silent_broker(tmp_path / "second"))


def test_an_idle_connection_is_closed_in_simulated_time(tmp_path: Path) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        async with name_server(tmp_path, network) as address:
            client = RemotingClient(network=network)
            connection = await client.connection(address)
            assert not await has_route(client, address)
            await connection.lost
            assert 120 <= asyncio.get_running_loop().time() <= 132
            assert not await has_route(client, address)  # over a new one
            await client.close()

    virtual.run(main())


def test_an_answer_that_does_not_come_is_missed_in_simulated_time() -> None:
    def silent(_connection: Connection, _request: AnyRequest) -> None:
        """Answer never."""

    async def main() -> None:
        network, handlers = MemoryNetwork(), Handlers()
        handlers.register(requests.GET_BROKER_CONFIG, silent)
        server = RemotingServer("127.0.0.1", 10911, handlers, network=network)
        await server.start()
        client = RemotingClient(network=network)
        with pytest.raises(RequestTimeoutError, match="100000 ms"):
            await client.call("127.0.0.1:10911", request(RequestCode.GET_BROKER_CONFIG), 100.0)
        assert LoopClock().now_ms() - EPOCH_MS == pytest.approx(100_000, abs=1000)
        await client.close()
        await server.close()

    virtual.run(main())


def test_an_admin_asks_over_the_network_that_it_is_given(tmp_path: Path) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        surroundings: dict[str, Any] = {"network": network}
        async with (
            name_server(tmp_path, network) as address,
            AdminClient(address, **surroundings) as admin,
        ):
            with pytest.raises(RouteNotFoundError, match=f"{address} knows no route"):
                await admin.offsets.of_topic("orders")
        async with AdminClient(address, **surroundings) as admin:
            with pytest.raises(ConnectError, match="nobody listens on"):
                await admin.offsets.of_topic("orders")

    virtual.run(main())
