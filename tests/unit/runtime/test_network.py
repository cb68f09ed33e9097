"""Connections to names that have several addresses, of which some lead nowhere."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.remoting.client import RemotingClient
from cometmq.runtime.sockets.network import TCP_NETWORK

GOOD, OTHER = "127.0.0.1", "127.0.0.2"


class Peer(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost.set()


@asynccontextmanager
async def listening() -> AsyncIterator[int]:
    listener = await TCP_NETWORK.listen(Peer, GOOD, 0, backlog=8)
    await listener.start()
    try:
        yield listener.port
    finally:
        listener.close()
        await listener.wait_closed()


@pytest.fixture
def silent() -> Iterator[int]:
    """A port of OTHER that answers no attempt to connect: its queue is full."""
    with socket.socket() as full:
        full.bind((OTHER, 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = []
        for _ in range(4):
            each = socket.socket()
            each.setblocking(False)
            each.connect_ex((OTHER, port))
            waiting.append(each)
        yield port
        for each in waiting:
            each.close()


def means(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Have each name mean these addresses, in this order."""

    async def look_up(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, 0)) for each in addresses]

    monkeypatch.setattr("cometmq.runtime.sockets.network._look_up", look_up)


async def connected(port: int) -> str:
    peer = await TCP_NETWORK.connect(Peer, "broker.example", port, tls=None)
    name: str = peer.transport.get_extra_info("peername")[0]
    peer.transport.close()
    await peer.is_lost.wait()
    return name


async def test_the_next_address_is_tried_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    means(monkeypatch, OTHER, GOOD)
    async with listening() as port:
        assert await connected(port) == GOOD


async def test_the_next_address_is_tried_while_one_is_silent(
    monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    means(monkeypatch, OTHER, GOOD)
    listener = await TCP_NETWORK.listen(Peer, GOOD, silent, backlog=8)
    await listener.start()
    assert await connected(silent) == GOOD
    listener.close()
    await listener.wait_closed()


async def test_a_name_without_a_living_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    means(monkeypatch, OTHER, GOOD)
    async with listening() as port:
        pass
    with pytest.raises(ConnectionRefusedError):
        await connected(port)


async def test_a_client_reaches_a_name_with_several_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    means(monkeypatch, OTHER, GOOD)
    async with listening() as port:
        client = RemotingClient()
        assert (await client.connection(f"broker.example:{port}")).peer_ip == GOOD
        await client.close()


async def test_a_name_that_cannot_be_one_is_an_error_of_the_system() -> None:
    with pytest.raises(OSError, match=r"'a\.\.b' is not a host name"):
        await TCP_NETWORK.connect(Peer, "a..b", 80, tls=None)
