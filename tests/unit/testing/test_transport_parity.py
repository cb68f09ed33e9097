"""A connection in memory behaves as one of asyncio over the machine's loopback does.

Each test runs over both.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.unit.testing.network_ends import Remembers, StaysOpen, ends, listen
from tests.waits import until

from cometmq.runtime.randomness import Randomness
from cometmq.runtime.sockets.network import TCP_NETWORK, Network
from cometmq.testing.virtual.loop import VirtualLoop
from cometmq.testing.virtual.wire.network import VirtualNetwork

MIB = 1024 * 1024


class Surface:
    """Runs a coroutine function with a network and an address of it."""

    def __init__(self, *, is_virtual: bool) -> None:
        self._is_virtual = is_virtual

    def __call__(self, main: Callable[[Network, str], Coroutine[Any, Any, None]]) -> None:
        if not self._is_virtual:
            asyncio.run(main(TCP_NETWORK, "127.0.0.1"))
            return
        network = VirtualNetwork(Randomness(3)).of("10.0.0.1")
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(main(network, "127.0.0.1"))


@pytest.fixture(params=["tcp", "virtual"])
def over(request: pytest.FixtureRequest) -> Surface:
    return Surface(is_virtual=request.param == "virtual")


async def joined(
    network: Network,
    host: str,
    new_near: Callable[[], Remembers] = Remembers,
    new_far: Callable[[], Remembers] = Remembers,
) -> tuple[Remembers, Remembers]:
    return await ends(network, network, host, new_near=new_near, new_far=new_far)


def test_bytes_arrive_whole_and_in_order(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host)
        draw, sent = random.Random(5), bytearray()
        for _ in range(300):
            piece = draw.randbytes(draw.choice((1, 2, 100, 5000)))
            sent += piece
            near.transport.write(piece)
            if draw.random() < 0.2:
                await asyncio.sleep(0)
        near.transport.writelines([b"last", bytearray(b" "), memoryview(b"words")])
        near.transport.close()
        await until(lambda: far.is_lost)
        assert far.data == bytes(sent) + b"last words"
        assert (near.error, far.error) == (None, None)

    over(main)


def test_both_ends_know_each_others_names(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host)
        for here, there in ((near, far), (far, near)):
            own = here.transport.get_extra_info("sockname")
            assert own == there.transport.get_extra_info("peername")
            assert own[0] == host
        near.transport.close()
        await until(lambda: far.is_lost)

    over(main)


def test_a_writer_is_paused_while_its_peer_does_not_read(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host)
        far.transport.pause_reading()
        near.transport.set_write_buffer_limits(high=100_000, low=20_000)
        near.transport.write(bytes(16 * MIB))
        assert near.said == ["made", "pause"]
        assert near.transport.get_write_buffer_size() > 100_000
        while near.said[-1] == "pause":
            before = near.transport.get_write_buffer_size()
            read = len(far.data)
            far.transport.resume_reading()
            await until(lambda read=read: len(far.data) > read)  # type: ignore[misc]  # of any
            far.transport.pause_reading()
            await asyncio.sleep(0.01)
            assert near.transport.get_write_buffer_size() <= before
        assert near.said == ["made", "pause", "resume"]
        assert near.transport.get_write_buffer_size() <= 20_000
        far.transport.resume_reading()
        await until(lambda: len(far.data) == 16 * MIB)
        near.transport.close()
        await until(lambda: far.is_lost)

    over(main)


def test_a_write_below_the_limit_pauses_nobody(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host)
        near.transport.set_write_buffer_limits(high=64 * MIB)
        near.transport.write(bytes(16 * MIB))
        await until(lambda: len(far.data) == 16 * MIB)
        assert near.said == ["made"]
        assert near.transport.get_write_buffer_size() == 0
        near.transport.close()
        await until(lambda: far.is_lost)

    over(main)


def test_a_closed_writer_still_delivers_what_waits(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host)
        far.transport.pause_reading()
        near.transport.write(bytes(16 * MIB))
        near.transport.close()
        assert near.transport.is_closing()
        await asyncio.sleep(0.05)
        assert not near.is_lost, "it has not written all"
        far.transport.resume_reading()
        await until(lambda: far.is_lost and near.is_lost)
        assert len(far.data) == 16 * MIB
        assert (near.error, far.error) == (None, None)

    over(main)


def test_an_abort_loses_what_waits(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host)
        far.transport.pause_reading()
        near.transport.write(bytes(16 * MIB))
        near.transport.abort()
        assert not near.is_lost, "it is told in a later turn"
        await until(lambda: near.is_lost)
        assert near.error is None
        far.transport.resume_reading()
        await until(lambda: far.is_lost)
        assert len(far.data) < 16 * MIB

    over(main)


def test_a_half_closed_connection_still_carries_the_answer(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host, Remembers, StaysOpen)
        near.transport.write(b"question")
        near.transport.write_eof()
        await until(lambda: "eof" in far.said)
        assert far.data == b"question"
        await asyncio.sleep(0.01)
        assert not near.is_lost
        assert not far.is_lost
        far.transport.write(b"answer")
        far.transport.close()
        await until(lambda: near.is_lost)
        assert near.data == b"answer"
        assert (near.error, far.error) == (None, None)

    over(main)


def test_a_peer_that_wants_nothing_of_half_closed_connections_closes(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host)
        near.transport.write_eof()
        await until(lambda: near.is_lost)
        assert (near.said, far.said) == (["made", "eof", "lost"], ["made", "eof", "lost"])

    over(main)


def test_who_closes_with_bytes_unread_resets_the_connection(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host)
        near.transport.pause_reading()
        far.transport.write(b"nobody reads this")
        await asyncio.sleep(0.05)
        near.transport.close()
        await until(lambda: far.is_lost)
        assert isinstance(far.error, ConnectionResetError)
        assert far.error.errno == errno.ECONNRESET

    over(main)


def test_who_writes_to_a_closed_peer_loses_the_connection(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host, Remembers, StaysOpen)
        near.transport.close()
        await until(lambda: "eof" in far.said)
        far.transport.write(b"x")
        await asyncio.sleep(0.05)
        far.transport.write(b"y")
        await until(lambda: far.is_lost)
        assert isinstance(far.error, ConnectionError)

    over(main)


def test_an_error_of_the_protocol_ends_its_connection(over: Surface) -> None:
    class Fails(Remembers):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError

    async def main(network: Network, host: str) -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
        near, far = await joined(network, host, Remembers, Fails)
        near.transport.write(b"x")
        await until(lambda: far.is_lost and near.is_lost)
        assert isinstance(far.error, ZeroDivisionError)
        assert [what["message"] for what in reported] == [
            "Fatal error: protocol.data_received() call failed."
        ]

    over(main)


def test_what_cannot_be_written_is_refused(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host, Remembers, StaysOpen)
        with pytest.raises(TypeError, match="bytes-like"):
            near.transport.write("text")  # type: ignore[arg-type]  # that is the point
        with pytest.raises(ValueError, match="must be >="):
            near.transport.set_write_buffer_limits(high=1, low=2)
        near.transport.write_eof()
        with pytest.raises(RuntimeError, match="write_eof"):
            near.transport.write(b"x")
        far.transport.close()
        await until(lambda: near.is_lost)
        near.transport.close()
        near.transport.write_eof()
        near.transport.abort()
        assert near.said.count("lost") == 1

    over(main)


def test_a_write_after_the_end_is_dropped(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host)
        near.transport.close()
        near.transport.write(b"late")
        await until(lambda: far.is_lost and near.is_lost)
        near.transport.write(b"later")
        assert far.data == b""

    over(main)


def test_a_port_is_refused_until_it_listens_and_after(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        listener = await network.listen(Remembers, host, 0, backlog=1)

        async def refused() -> None:
            with pytest.raises(ConnectionRefusedError) as caught:
                await network.connect(Remembers, host, listener.port, tls=None)
            assert caught.value.errno == errno.ECONNREFUSED

        await refused()
        await listener.start()
        near = await network.connect(Remembers, host, listener.port, tls=None)
        listener.close()
        await listener.wait_closed()
        listener.close()
        await refused()
        near.transport.close()
        await until(lambda: near.is_lost)

    over(main)


def test_who_is_accepted_stays_when_the_listener_closes(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        near, far = await joined(network, host)
        near.transport.write(b"still here")
        await until(lambda: far.data == b"still here")
        near.transport.close()
        await until(lambda: far.is_lost)

    over(main)


def test_a_port_is_taken_once(over: Surface) -> None:
    async def main(network: Network, host: str) -> None:
        first = await listen(network, Remembers, host)
        other = await listen(network, Remembers, host)
        assert first.port != other.port
        with pytest.raises(OSError, match=r"(?i)address already in use") as caught:
            await listen(network, Remembers, host, first.port)
        assert caught.value.errno == errno.EADDRINUSE
        first.close()
        await first.wait_closed()
        again = await listen(network, Remembers, host, first.port)
        assert again.port == first.port
        again.close()
        other.close()

    over(main)


def test_an_address_of_another_machine_cannot_be_bound(over: Surface) -> None:
    async def main(network: Network, _host: str) -> None:
        with pytest.raises(OSError, match=r"(?i)cannot assign requested address") as caught:
            await listen(network, Remembers, "192.0.2.1")
        assert caught.value.errno == errno.EADDRNOTAVAIL

    over(main)
