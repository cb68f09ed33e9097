"""Connecting takes its time out of the call's, over links that are lossy or long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from cometmq.errors import ConnectError, RequestTimeoutError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.server import RemotingServer
from cometmq.testing.virtual.wire.network import VirtualNetwork
from cometmq.testing.virtual.world import World

# The server refuses it, which is an answer as good as any.
CODE = 4711


def over_virtual_links(
    main: Callable[[RemotingClient, str, VirtualNetwork], Coroutine[None, None, None]],
) -> None:
    """Run `main` with a client on the node `app` and the address of a server on `broker`."""

    async def whole(world: World) -> None:
        app, broker = world.node("app"), world.node("broker")
        server = RemotingServer("", 10911, Handlers(), network=broker.surroundings.network)
        client = RemotingClient(network=app.surroundings.network)
        await broker.run_in(server.start())
        await app.run_in(main(client, f"{broker.host}:10911", world.network))
        world.network.heal_all()
        await app.run_in(client.close())
        await broker.run_in(server.close())

    with World(seed=1) as world:
        world.run(whole(world))


async def took_s(call: Coroutine[None, None, object], error: type[Exception]) -> float:
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(error):
        await call
    return asyncio.get_running_loop().time() - began_s


def test_a_call_takes_no_longer_than_its_timeout_though_nobody_answers_its_connecting() -> None:
    async def main(client: RemotingClient, address: str, network: VirtualNetwork) -> None:
        network.blackhole("app", "broker")
        call = client.call(address, RemotingCommand(CODE), 0.5)
        assert await took_s(call, ConnectError) == pytest.approx(0.5)
        oneway = client.send_oneway_bounded(address, RemotingCommand(CODE), 0.5)
        assert await took_s(oneway, ConnectError) == pytest.approx(0.5)
        # The limit for connecting stays: nobody waits longer than that for a connection.
        call = client.call(address, RemotingCommand(CODE), 60)
        assert await took_s(call, ConnectError) < 3.1

    over_virtual_links(main)


def test_the_time_that_connecting_took_is_missing_for_the_answer() -> None:
    async def main(client: RemotingClient, address: str, network: VirtualNetwork) -> None:
        network.delay("app", "broker", 1, 1)
        call = client.call(address, RemotingCommand(CODE), 3)
        assert await took_s(call, RequestTimeoutError) == pytest.approx(3)
        answer = await client.call(address, RemotingCommand(CODE), 3)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    over_virtual_links(main)


def test_one_callers_short_time_does_not_end_the_connecting_of_others() -> None:
    async def main(client: RemotingClient, address: str, network: VirtualNetwork) -> None:
        network.delay("app", "broker", 0.5, 0.5)
        patient = asyncio.gather(client.call(address, RemotingCommand(CODE), 3))
        call = client.call(address, RemotingCommand(CODE), 0.2)
        assert await took_s(call, ConnectError) == pytest.approx(0.2)
        (answer,) = await patient
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    over_virtual_links(main)
