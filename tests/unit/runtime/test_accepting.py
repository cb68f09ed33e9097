"""A newcomer at a port does not wait for as many turns of the loop as others came before it."""

from __future__ import annotations

import asyncio
import socket
import time

from cometmq.runtime.loop import new_event_loop
from cometmq.runtime.network import TcpNetwork

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
