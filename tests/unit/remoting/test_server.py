"""The listening side over loopback: limits, idle connections, slow readers, and the end."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import structlog
from tests.simulated import MemoryNetwork, in_simulated_time
from tests.unit.remoting.line import ECHO_REQUEST, EchoHeader, echo
from tests.waits import WAIT_S, until

from cometmq.errors import ConfigError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, decode_command, response
from cometmq.protocol.frame import FrameDecoder
from cometmq.remoting.calls import UNASKED
from cometmq.remoting.connection import Connection, ConnectionLimits
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.server import ConnectionCounts, RemotingServer
from cometmq.testing.ports import HeldPort

ANSWER_LENGTH = 100_000


class _Stream(asyncio.StreamReaderProtocol):
    """Keeps the transport of a stream."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        super().connection_made(transport)


class Peer:
    """A bare client, over TCP or over a network in memory."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, server: RemotingServer, network: MemoryNetwork | None = None) -> Peer:
        if network is None:
            return cls(*await asyncio.open_connection("127.0.0.1", server.port))
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        stream = await network.connect(lambda: _Stream(reader), "127.0.0.1", server.port, tls=None)
        return cls(reader, asyncio.StreamWriter(stream.transport, stream, reader, loop))

    async def ask(self, data: bytes) -> bytes:
        """Send a frame; return the frame that comes back."""
        self.writer.write(data)
        async with asyncio.timeout(WAIT_S):
            length = await self.reader.readexactly(4)
            return length + await self.reader.readexactly(int.from_bytes(length, "big"))

    async def closed_by_server(self, *, may_be_told: bool = False) -> bool:
        try:
            async with asyncio.timeout(WAIT_S):
                return not await self.reader.read() or may_be_told
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


def handlers(served: list[int] | None = None) -> Handlers:
    def answer(_connection: Connection, call: Request[EchoHeader]) -> RemotingCommand:
        if served is not None:
            served.append(call.header.number)
        return response(0, body=b"x" * (ANSWER_LENGTH if call.header.number < 0 else 1))

    table = Handlers()
    table.register(ECHO_REQUEST, answer)
    return table


@asynccontextmanager
async def running(table: Handlers | None = None, **settings: Any) -> AsyncIterator[RemotingServer]:
    server = RemotingServer("127.0.0.1", 0, table or handlers(), **settings)
    await server.start()
    try:
        yield server
    finally:
        async with asyncio.timeout(WAIT_S):
            await server.close()


async def test_connections_are_served_and_reported() -> None:
    came: list[str] = []
    went: list[str] = []
    async with running(
        on_connect=lambda c: came.append(c.peer), on_disconnect=lambda c: went.append(c.peer)
    ) as server:
        peer = await Peer.connect(server)
        await peer.ask(echo())
        host, port = peer.writer.get_extra_info("sockname")
        assert came == [f"{host}:{port}"]
        assert len(server.connections) == 1
        await peer.close()
        await until(lambda: went == came)
        assert not server.connections


async def test_nonsense_over_one_connection_harms_no_other() -> None:
    async with running(limits=ConnectionLimits(max_frame_length=5000)) as server:
        good = await Peer.connect(server)
        for nonsense in (
            struct.pack(">I", 5001),
            b"GET / HTTP/1.1\r\n\r\n",
            struct.pack(">II", 20, 1000) + b"x" * 20,
            bytes(64),
        ):
            bad = await Peer.connect(server)
            bad.writer.write(nonsense)
            assert await bad.closed_by_server(may_be_told=True)
            await bad.close()
            await good.ask(echo())
        await good.close()


async def test_a_peer_that_resets_at_once_is_no_trouble() -> None:
    loop = asyncio.get_running_loop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    async with running() as server:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port)) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer = await Peer.connect(server)
        await peer.ask(echo())
        await until(lambda: len(server.connections) == 1)
        await peer.close()
    assert faults == []


async def test_connections_above_the_limit_are_refused() -> None:
    async with running(counts=ConnectionCounts(2)) as server:
        served = [await Peer.connect(server) for _ in range(2)]
        for peer in served:
            await peer.ask(echo())
        with structlog.testing.capture_logs() as lines:
            refused = await Peer.connect(server)
            reported = decode_command(FrameDecoder().feed(await refused.ask(b""))[0])
            assert (reported.opaque, reported.code) == (UNASKED, ResponseCode.SYSTEM_BUSY)
            assert "the limit maxConnections is 2; " in str(reported.remark)
            assert await refused.closed_by_server()
        assert ["maxConnections is 2" in line["reason"] for line in lines] == [True]
        await served[0].close()
        await until(lambda: len(server.connections) == 1)
        late = await Peer.connect(server)
        await late.ask(echo())
        for peer in (served[1], late, refused):
            await peer.close()


# In simulated time: if a busy machine paused between two requests, the server would close `busy`, too.
@in_simulated_time
async def test_an_idle_connection_is_closed_and_a_busy_one_not() -> None:
    network = MemoryNetwork()
    async with running(idle_timeout_s=1.5, network=network) as server:
        idle, busy = await Peer.connect(server, network), await Peer.connect(server, network)
        closed = asyncio.ensure_future(idle.closed_by_server())
        while not closed.done():
            await busy.ask(echo())
            await asyncio.sleep(0.02)
        assert closed.result()
        await busy.ask(echo())
        await idle.close()
        await busy.close()


async def test_a_peer_that_does_not_read_is_read_no_further_until_it_does() -> None:
    served: list[int] = []
    limits = ConnectionLimits(write_buffer_high=ANSWER_LENGTH)
    async with running(handlers(served), limits=limits) as server:
        slow = await Peer.connect(server)
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]  # asyncio declares it for reading transports only
        total = 400
        for _ in range(total):  # more than one read can bring
            slow.writer.write(echo(-1, body=bytes(4000)))
        (connection,) = await until(lambda: list(server.connections))
        await until(lambda: connection.congested)
        assert 0 < len(served) < total
        quick = await Peer.connect(server)
        await quick.ask(echo(5))
        # What was on its way when it seemed to stand still may be served after that.
        assert 5 in served
        assert len(served) < total
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]  # asyncio declares it for reading transports only
        async with asyncio.timeout(WAIT_S):
            for _ in range(total):
                length = int.from_bytes(await slow.reader.readexactly(4), "big")
                await slow.reader.readexactly(length)
        assert len(served) == total + 1
        await slow.close()
        await quick.close()


async def test_a_peer_that_never_reads_is_cut_off_when_idle() -> None:
    came: list[Connection] = []
    async with running(idle_timeout_s=0.2, on_connect=came.append) as server:
        loop = asyncio.get_running_loop()
        with socket.socket() as frozen:
            frozen.setblocking(False)
            await loop.sock_connect(frozen, ("127.0.0.1", server.port))
            await loop.sock_sendall(frozen, echo(-1) * 200)
            await until(lambda: bool(came))
            await until(lambda: not server.connections)


async def test_close_does_not_wait_for_a_peer_that_does_not_read() -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as frozen:
        async with running() as server:
            frozen.setblocking(False)
            await loop.sock_connect(frozen, ("127.0.0.1", server.port))
            await loop.sock_sendall(frozen, echo(-1) * 200)
            await until(lambda: len(server.connections) == 1)
        assert not server.connections


async def test_close_ends_what_asynchronous_handlers_do() -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def forever(_connection: Connection, _call: Request[EchoHeader]) -> RemotingCommand:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("yes")
        raise AssertionError

    table = Handlers()
    table.register(ECHO_REQUEST, forever)
    async with running(table) as server:
        peer = await Peer.connect(server)
        peer.writer.write(echo())
        async with asyncio.timeout(WAIT_S):
            await begun.wait()
    assert ended == ["yes"]
    assert await peer.closed_by_server()
    await peer.close()


async def test_close_may_be_called_twice_and_frees_the_port() -> None:
    with HeldPort() as held:
        for _ in range(2):
            server = RemotingServer("127.0.0.1", held.port, handlers())
            await server.start()
            await server.close()
            await server.close()


async def test_a_port_that_is_taken_is_named() -> None:
    async with running() as server:
        other = RemotingServer("127.0.0.1", server.port, handlers())
        with pytest.raises(ConfigError, match=f"127.0.0.1:{server.port}.*listenPort"):
            await other.start()
        await other.close()


def test_the_addresses_of_one_ipv6_subscriber_share_their_places() -> None:
    counts = ConnectionCounts(max_per_address=2)
    for address in ("2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "10.0.0.1", "10.0.0.2"):
        counts.take(address)
    assert counts.of("2001:db8::3%eth0") == 2
    assert counts.of("2001:db8:0:1::2") == counts.of("10.0.0.1") == 1
    counts.free("2001:db8::1")
    counts.free("2001:db8::2")
    assert counts.of("2001:db8::1") == 0


async def test_a_server_that_ends_in_the_turn_in_which_a_client_arrives_does_end() -> None:
    closing: list[asyncio.Task[None]] = []
    server = RemotingServer(
        "127.0.0.1",
        0,
        handlers(),
        on_connect=lambda _: closing.append(asyncio.create_task(server.close())),
    )
    await server.start()
    with socket.create_connection(("127.0.0.1", server.port), WAIT_S):
        await until(lambda: closing)
        async with asyncio.timeout(WAIT_S):
            await closing[0]
    assert not server.connections
