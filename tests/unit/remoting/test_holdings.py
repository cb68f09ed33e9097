"""The bytes that all connections of a server hold together, and the time that a frame may take."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog
from tests.simulated import MemoryNetwork, in_simulated_time
from tests.unit.remoting.line import ECHO_REQUEST, EchoHeader, Line, echo
from tests.unit.remoting.test_server import Peer, handlers, running
from tests.waits import WAIT_S, until

from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, decode_command, response
from cometmq.protocol.frame import FrameDecoder
from cometmq.remoting.connection import Connection, ConnectionLimits
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.holdings import Holdings
from cometmq.remoting.server import ConnectionCounts, RemotingServer

LIMIT = 1 << 20
LARGE = echo(body=bytes(300_000), opaque=77)
TOO_MANY = "connection closed: too many bytes in flight"
TOO_SLOW = "connection closed: its frame does not end"


async def answers(peer: Peer) -> list[RemotingCommand]:
    """Return what the server sent before it closed the connection."""
    data = b""
    try:
        async with asyncio.timeout(WAIT_S):
            while more := await peer.reader.read(1 << 16):
                data += more
    except ConnectionError:
        pass
    return list(map(decode_command, FrameDecoder().feed(data)))


async def test_unfinished_frames_of_many_connections_are_bounded_together() -> None:
    holdings = Holdings(LIMIT)
    async with running(holdings=holdings) as server:
        honest = await Peer.connect(server)
        stalled = []
        with structlog.testing.capture_logs() as lines:
            for _ in range(12):
                peer = await Peer.connect(server)
                stalled.append(peer)
                peer.writer.write(LARGE[:200_000])
                await honest.ask(echo(body=bytes(50_000)))
            await until(lambda: len(server.connections) < 12)
            assert 0 < holdings.total_bytes <= LIMIT
        cut = [line for line in lines if line["event"] == TOO_MANY]
        assert cut
        assert all(line["limit"] == f"maxBytesInFlight={LIMIT}" for line in cut)
        assert all(190_000 < line["held"] <= 200_000 for line in cut)
        assert all("raise the limit" in line["remedy"] for line in cut)
        # In the order in which they came, as all hold as much.
        (answer,) = await answers(stalled[0])
        assert (answer.code, answer.opaque) == (ResponseCode.SYSTEM_BUSY, 77)
        assert answer.remark is not None
        assert f"maxBytesInFlight is {LIMIT}" in answer.remark
        # Those that were not cut may still finish, and then nothing is held.
        last = stalled[-1]
        assert await last.ask(LARGE[200_000:])
        for peer in (honest, *stalled):
            await peer.close()
        await until(lambda: holdings.total_bytes == 0)
        assert holdings.received_bytes == 0


async def test_many_are_cut_in_several_turns_of_the_loop() -> None:
    """Sixty-four refusals and lines of the log in one turn kept everybody waiting for 7 ms."""
    holdings = Holdings(LIMIT)
    frame = echo(body=bytes(8_000))[:4_000]
    lines = [Line(server_side=True, holdings=holdings) for _ in range(LIMIT // len(frame) + 1)]
    for line in lines:
        line.feed(frame)
    turns = [sum(line.connection.closed for line in lines)]
    assert turns == [8]
    assert holdings.total_bytes <= LIMIT
    while holdings.total_bytes > LIMIT - LIMIT // 8:
        await asyncio.sleep(0)
        turns.append(sum(line.connection.closed for line in lines))
        assert turns[-1] - turns[-2] <= 8
        assert len(turns) < 10
    for line in lines[: turns[-1]]:
        assert line.connection.closed, "those whose frames began first"
    await asyncio.sleep(0)
    assert sum(line.connection.closed for line in lines) == turns[-1]


async def test_the_one_who_stalls_is_cut_and_not_the_one_who_sends_more() -> None:
    """A sender of a large frame must not be refused while the frame arrives at the speed of its
    link.
    """
    holdings = Holdings(LIMIT)
    async with running(holdings=holdings) as server:
        stalled = [await Peer.connect(server) for _ in range(9)]
        for peer in stalled:
            peer.writer.write(LARGE[:100_000])
        await until(lambda: holdings.received_bytes == 900_000)
        await asyncio.sleep(1)
        sender = await Peer.connect(server)
        large = echo(body=bytes(600_000))
        sender.writer.write(large[:500_000])
        await until(lambda: len(server.connections) < 10)
        await sender.ask(large[500_000:])
        for peer in (sender, *stalled):
            await peer.close()


async def test_answers_that_nobody_reads_are_bounded_together() -> None:
    holdings = Holdings(4 * LIMIT)
    limits = ConnectionLimits(write_buffer_high=LIMIT)
    async with running(holdings=holdings, limits=limits) as server:
        quick = await Peer.connect(server)
        asleep = []
        with structlog.testing.capture_logs() as lines:
            for _ in range(12):
                peer = await Peer.connect(server)
                asleep.append(peer)
                peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # asyncio declares it for reading transports only
                # The kernel takes megabytes of them before any waits here.
                for _ in range(200):
                    peer.writer.write(echo(-1))
                await quick.ask(echo(-1))
            await until(lambda: any(line["event"] == TOO_MANY for line in lines))
            await until(lambda: held(server) <= 4 * LIMIT)
        await quick.ask(echo(-1))
        for peer in (quick, *asleep):
            peer.writer.transport.abort()


def held(server: RemotingServer) -> int:
    return sum(connection.unsent_bytes for connection in server.connections)


async def test_requests_that_wait_for_their_peer_are_counted() -> None:
    holdings = Holdings()
    line = Line(handlers(), server_side=True, holdings=holdings)
    line.connection.pause_writing()
    line.feed(echo(1, body=bytes(10_000)) * 3)
    assert 30_000 < holdings.received_bytes < 31_000
    line.connection.resume_writing()
    assert len(await line.flushed()) == 3
    assert holdings.received_bytes == 0


async def test_a_header_that_comes_byte_by_byte_for_ever_ends_its_connection() -> None:
    limits = ConnectionLimits(unfinished_frame_s=0.5)
    async with running(limits=limits) as server:
        slow, silent = await Peer.connect(server), await Peer.connect(server)
        with structlog.testing.capture_logs() as lines:
            closed = asyncio.ensure_future(slow.closed_by_server())
            data = echo(body=bytes(10_000))
            for position in range(len(data)):
                if closed.done():
                    break
                slow.writer.write(data[position : position + 1])
                await asyncio.sleep(0.01)
            assert await closed
        (reported,) = [line for line in lines if line["event"] == TOO_SLOW]
        assert reported["limit"] == "unfinishedFrameTimeoutSeconds=0.5"
        # One that is between two frames, or before its first, has all the time.
        assert len(server.connections) == 1
        await silent.ask(echo())
        for peer in (slow, silent):
            await peer.close()


async def test_a_large_frame_over_a_slow_link_has_its_time() -> None:
    limits = ConnectionLimits(unfinished_frame_s=0.5)
    async with running(limits=limits) as server:
        honest = await Peer.connect(server)
        data = echo(body=bytes(1_000_000))
        for start in range(0, len(data) - 1000, 50_000):  # two seconds in all
            honest.writer.write(data[start : min(start + 50_000, len(data) - 1000)])
            await asyncio.sleep(0.1)
        await honest.ask(data[-1000:])
        await honest.close()


# In simulated time: if a busy machine paused before the first byte, the server would close `spoken`, too.
@in_simulated_time
async def test_a_connection_that_never_sends_a_byte_is_closed_before_others() -> None:
    network = MemoryNetwork()
    async with running(silent_timeout_s=1.5, idle_timeout_s=300.0, network=network) as server:
        silent, spoken = await Peer.connect(server, network), await Peer.connect(server, network)
        await spoken.ask(echo())
        assert await silent.closed_by_server()
        await spoken.ask(echo())
        for peer in (silent, spoken):
            await peer.close()


async def test_a_silent_connection_gives_its_place_to_a_new_one() -> None:
    async with running(counts=ConnectionCounts(2)) as server:
        spoken, silent = await Peer.connect(server), await Peer.connect(server)
        await spoken.ask(echo())
        await until(lambda: len(server.connections) == 2)
        while True:  # until the silent one has been so for a second
            late = await Peer.connect(server)
            late.writer.write(echo())
            with suppress(ConnectionError):
                async with asyncio.timeout(WAIT_S):
                    if b"maxConnections" not in await late.reader.read(1024):
                        break
            await late.close()
        assert await silent.closed_by_server()
        await spoken.ask(echo())
        for peer in (spoken, silent, late):
            await peer.close()


async def test_requests_that_are_answered_later_are_counted_until_they_are() -> None:
    """100,000 pulls may wait: with megabytes in each of them, that number bounded nothing."""
    holdings = Holdings()
    go_on = asyncio.Event()

    async def later(_connection: Connection, _call: Request[EchoHeader]) -> RemotingCommand:
        await go_on.wait()
        return response(0)

    table = Handlers()
    table.register(ECHO_REQUEST, later)
    line = Line(table, server_side=True, holdings=holdings)
    line.feed(echo(body=bytes(50_000)) * 2 + echo(body=bytes(100_000))[:70_000])
    assert 170_000 < holdings.received_bytes < 171_000
    go_on.set()
    await until(lambda: len(line.received()) == 2)
    assert holdings.received_bytes == 70_000
    line.transport.abort()
    await until(lambda: holdings.received_bytes == 0)


async def test_requests_of_a_lost_connection_are_counted_no_more() -> None:
    holdings = Holdings()
    go_on = asyncio.Event()

    async def later(_connection: Connection, _call: Request[EchoHeader]) -> RemotingCommand:
        await go_on.wait()
        return response(0)

    table = Handlers()
    table.register(ECHO_REQUEST, later)
    line = Line(table, server_side=True, holdings=holdings)
    line.feed(echo(body=bytes(50_000)))
    line.transport.abort()
    await until(lambda: line.connection.closed)
    assert holdings.received_bytes == 0
    go_on.set()
    await line.owner.close()
    assert holdings.received_bytes == 0
