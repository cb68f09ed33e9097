"""Newcomers at a port: none waits for as many turns of the loop as others came before it, and none
stays when the port is closed.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest
from tests.waits import WAIT_S

from cometmq.remoting.http.http_server import HttpServer
from cometmq.runtime.loop import new_event_loop
from cometmq.runtime.sockets.network import TcpNetwork

NEWCOMERS = 200
TURN_S = 0.005


class Guest(asyncio.Protocol):
    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Guest.made += 1


async def turns_until_all_are_in() -> int:
    """Count the turns of a loop each of which takes TURN_S, until all newcomers are connected."""
    listener = await TcpNetwork().listen(Guest, "127.0.0.1", 0, backlog=NEWCOMERS)
    await listener.start()
    Guest.made = 0
    peers = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(NEWCOMERS)]
    turns = 0
    while Guest.made < NEWCOMERS and turns < 10 * NEWCOMERS:
        time.sleep(TURN_S)  # noqa: ASYNC251 - this turn is long
        await asyncio.sleep(0)
        turns += 1
    listener.close()
    for peer in peers:
        peer.close()
    return turns


def test_many_newcomers_are_accepted_in_a_turn_of_the_loop() -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        turns = runner.run(turns_until_all_are_in())
    # uvloop by itself accepts one of them in a turn.
    assert turns < NEWCOMERS / 4


LOOPS = pytest.mark.parametrize("new_loop", [new_event_loop, asyncio.new_event_loop])
TURNS = pytest.mark.parametrize("turns", range(4))


async def stays_after_close(turns: int) -> bool:
    """Close a server so many turns after somebody connects; return whether that connection stays."""
    server = HttpServer("127.0.0.1", 0, port_key="port")
    await server.start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as peer:
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            await server.close()
        for _ in range(3):
            await asyncio.sleep(0)
        peer.settimeout(0.2)
        try:
            return peer.recv(1) != b""
        except ConnectionResetError:
            return False
        except TimeoutError:
            return True


@LOOPS
@TURNS
def test_who_is_accepted_when_a_server_closes_does_not_stay(
    new_loop: Callable[[], asyncio.AbstractEventLoop], turns: int
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert not runner.run(stays_after_close(turns))
