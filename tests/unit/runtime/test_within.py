"""Test connections within the process against what protocols expect of a transport."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.runtime.sockets.network import TCP_NETWORK
from cometmq.runtime.sockets.within import NetworkWithin, TransportWithin, connect_within


class Recorder(asyncio.Protocol):
    def __init__(self) -> None:
        self.events: list[str] = []
        self.received = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if data == b"raise":
            raise ValueError("a fault of the protocol")

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost" if exc is None else "reset")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


async def _turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def ends() -> tuple[Recorder, Recorder]:
    one, other = Recorder(), Recorder()
    connect_within(one, other)
    return one, other


async def test_what_one_end_writes_reaches_the_other_in_a_later_turn(
    ends: tuple[Recorder, Recorder],
) -> None:
    one, other = ends
    memory = bytearray(b"abc")
    one.transport.write(memory)
    one.transport.writelines([b"de", memoryview(b"f")])
    assert other.received == b""
    memory[:] = b"xyz"  # as a store does with its files
    await _turns()
    assert other.received == b"abcdef"
    assert one.received == b""


async def test_much_comes_in_parts_so_that_others_have_their_turn(
    ends: tuple[Recorder, Recorder],
) -> None:
    one, other = ends
    one.transport.write(bytes(600 * 1024))
    await _turns(1)
    assert len(other.received) == 256 * 1024
    await _turns()
    assert len(other.received) == 600 * 1024


async def test_a_writer_pauses_while_its_peer_does_not_read(
    ends: tuple[Recorder, Recorder],
) -> None:
    one, other = ends
    one.transport.set_write_buffer_limits(high=100)
    other.transport.pause_reading()
    one.transport.write(bytes(100))
    assert one.events == []
    one.transport.write(bytes(1))
    assert one.events == ["pause"]
    assert one.transport.get_write_buffer_size() == 101
    await _turns()
    assert other.received == b""
    other.transport.resume_reading()
    await _turns()
    assert len(other.received) == 101
    assert one.events == ["pause", "resume"]


async def test_a_close_lets_the_peer_read_first_and_ends_both(
    ends: tuple[Recorder, Recorder],
) -> None:
    one, other = ends
    one.transport.write(b"last words")
    one.transport.close()
    one.transport.write(b"too late")
    await _turns()
    assert other.received == b"last words"
    assert one.events == ["lost"]
    assert other.events == ["eof", "lost"]


async def test_an_abort_drops_what_was_not_read(ends: tuple[Recorder, Recorder]) -> None:
    one, other = ends
    one.transport.write(b"dropped")
    one.transport.abort()
    await _turns()
    assert other.received == b""
    assert one.events == ["lost"]
    assert other.events == ["reset"]


async def test_a_paused_writer_learns_that_its_peer_has_closed(
    ends: tuple[Recorder, Recorder],
) -> None:
    one, other = ends
    one.transport.set_write_buffer_limits(high=1)
    other.transport.pause_reading()
    one.transport.write(b"more than one")
    other.transport.close()
    await _turns()
    assert one.events == ["pause", "resume", "eof", "lost"]
    assert one.transport.get_write_buffer_size() == 0


async def test_a_fault_of_a_protocol_ends_its_connection_only(
    ends: tuple[Recorder, Recorder],
) -> None:
    one, other = ends
    faults: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: faults.append(context["exception"]))
    one.transport.write(b"raise")
    await _turns()
    assert [type(fault) for fault in faults] == [ValueError]
    assert other.events == ["lost"]
    assert one.events == ["reset"]


async def test_only_the_own_address_is_served_within() -> None:
    served: list[Recorder] = []

    def serve() -> Recorder:
        served.append(Recorder())
        return served[-1]

    network = NetworkWithin(TCP_NETWORK, lambda host, port: (host, port) == ("own", 1), serve)
    client = await network.connect(Recorder, "own", 1, tls=None)
    assert isinstance(client.transport, TransportWithin)
    assert len(served) == 1
    listener = await network.listen(Recorder, "127.0.0.1", 0, backlog=1)
    await listener.start()
    other = await network.connect(Recorder, "127.0.0.1", listener.port, tls=None)
    assert not isinstance(other.transport, TransportWithin)
    other.transport.close()
    listener.close()
    await listener.wait_closed()
    assert len(served) == 1
