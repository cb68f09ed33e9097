"""The calling side over loopback: one connection per address, made when needed, lost and remade."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import structlog
from tests.unit.remoting.line import ECHO, ECHO_REQUEST, EchoHeader
from tests.waits import WAIT_S, until

from cometmq.errors import (
    ClientStateError,
    ConnectError,
    ConnectionLostError,
    RemoteError,
    RemotingError,
    RequestTimeoutError,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, request, response
from cometmq.remoting.client import RemotingClient, split_address
from cometmq.remoting.connection import Connection, ConnectionLimits
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.server import RemotingServer
from cometmq.runtime.sockets.network import TcpNetwork
from cometmq.testing.ports import HeldPort

# A process that stands still for a second takes its peer for a silent one.
PATIENT = ConnectionLimits(silence_s=WAIT_S)


class Far:
    """A server that counts its connections, and does not answer requests below zero."""

    def __init__(self) -> None:
        self.accepted: list[Connection] = []
        self.asked: list[int] = []
        self._held = HeldPort()
        self.port = self._held.port
        self._server: RemotingServer | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        handlers = Handlers()
        handlers.register(ECHO_REQUEST, self._serve)
        self._server = RemotingServer(
            "127.0.0.1", self.port, handlers, on_connect=self.accepted.append
        )
        await self._server.start()

    async def stop(self) -> None:
        """Stop; the server may be started again on its port."""
        assert self._server is not None
        await self._server.close()

    async def close(self) -> None:
        await self.stop()
        self._held.close()

    def _serve(self, _connection: Connection, call: Request[EchoHeader]) -> RemotingCommand | None:
        self.asked.append(call.header.number)
        number = call.header.number
        if number < 0:
            return None
        code = number if call.header.word == "refuse" else 0
        return response(code, str(number), header=call.header, body=call.body)


@asynccontextmanager
async def far_and_client() -> AsyncIterator[tuple[Far, RemotingClient]]:
    far, client = Far(), RemotingClient(connect_timeout_s=WAIT_S, limits=PATIENT)
    await far.start()
    try:
        yield far, client
    finally:
        async with asyncio.timeout(WAIT_S):
            await client.close()
            await far.close()


def call(number: int = 1) -> RemotingCommand:
    return request(ECHO, EchoHeader(number=number))


async def test_concurrent_first_calls_share_one_connection() -> None:
    async with far_and_client() as (far, client):
        answers = await asyncio.gather(
            *(client.call(far.address, call(number), WAIT_S) for number in range(20))
        )
        assert [answer.remark for answer in answers] == [str(number) for number in range(20)]
        assert len(far.accepted) == 1


async def test_a_connection_that_was_lost_is_made_again() -> None:
    async with far_and_client() as (far, client):
        await client.call(far.address, call(), WAIT_S)
        await far.stop()
        await until(lambda: client.connected(far.address) is None)
        with pytest.raises(ConnectError, match=far.address) as raised:
            await client.call(far.address, call(), WAIT_S)
        assert raised.value.address == far.address
        await far.start()
        await client.call(far.address, call(), WAIT_S)
        assert len(far.accepted) == 2


class _Late(TcpNetwork):
    """Gives a connection only once its peer has left."""

    async def connect(
        self, new_protocol: Callable[[], Any], host: str, port: int, *, tls: ssl.SSLContext | None
    ) -> Any:
        connection = await super().connect(new_protocol, host, port, tls=tls)
        await connection.lost
        return connection


async def test_a_connection_whose_peer_leaves_at_once_is_not_kept() -> None:
    """It had ended before anybody registered a callback for that, and stayed in the table for ever."""
    met: list[str] = []
    peer = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with peer:
        address = f"127.0.0.1:{peer.sockets[0].getsockname()[1]}"
        client = RemotingClient(network=_Late(), on_connect=lambda name, _: met.append(name))
        with pytest.raises(ConnectionLostError, match="closed before the request was sent"):
            await client.call(address, call(), WAIT_S)
        assert client.addresses() == frozenset()
        assert met == []
        await client.close()


async def test_calls_under_way_fail_when_the_connection_is_lost() -> None:
    async with far_and_client() as (far, client):
        pending = asyncio.ensure_future(client.call(far.address, call(-1), WAIT_S))
        await until(lambda: far.asked == [-1])
        far.accepted[0].abort()
        with pytest.raises(ConnectionLostError):
            await pending


async def test_a_connection_may_be_dropped_on_purpose() -> None:
    async with far_and_client() as (far, client):
        await client.call(far.address, call(), WAIT_S)
        client.close_connection(far.address)
        client.close_connection(far.address)
        await client.call(far.address, call(), WAIT_S)
        assert len(far.accepted) == 2


async def test_a_caller_that_gives_up_does_not_fail_the_others() -> None:
    async with far_and_client() as (far, client):
        first = asyncio.ensure_future(client.call(far.address, call(1), WAIT_S))
        second = asyncio.ensure_future(client.call(far.address, call(2), WAIT_S))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).remark == "2"
        assert first.cancelled()
        assert len(far.accepted) == 1


async def test_a_call_that_times_out_leaves_the_connection_to_others() -> None:
    async with far_and_client() as (far, client):
        await client.connection(far.address)  # which may take all of the call's time
        with pytest.raises(RequestTimeoutError):
            await client.call(far.address, call(-1), 0.05)
        await client.call(far.address, call(), WAIT_S)
        assert len(far.accepted) == 1


async def test_a_peer_that_stays_silent_is_given_up_with_its_connection() -> None:
    async with far_and_client() as (far, _):
        client = RemotingClient(limits=ConnectionLimits(silence_s=0.05))
        await client.connection(far.address)  # which may take a part of the call's time
        with pytest.raises(RequestTimeoutError):
            await client.call(far.address, call(-1), 0.06)
        assert client.connected(far.address) is None
        await client.call(far.address, call(), WAIT_S)
        assert len(far.accepted) == 2
        await client.close()


async def test_a_lost_connection_is_logged_once_however_many_calls_waited_on_it() -> None:
    async with far_and_client() as (far, _):
        client = RemotingClient(limits=ConnectionLimits(silence_s=0.05))
        connection = await client.connection(far.address)
        with structlog.testing.capture_logs() as lines:
            calls = [connection.call_nowait(call(-1), 0.06) for _ in range(40)]
            failures = await asyncio.gather(*calls, return_exceptions=True)
            await until(lambda: client.connected(far.address) is None)
        assert all(isinstance(failure, RemotingError) for failure in failures)
        (line,) = (line for line in lines if "silent" in line["event"])
        assert (line["peer"], line["calls"]) == (far.address, 40)
        assert "enough CPU" in line["remedy"]
        await client.close()


@contextmanager
def far_in_a_thread() -> Iterator[tuple[Far, asyncio.AbstractEventLoop]]:
    """Give a server that answers although the test holds its own loop, and the server's loop."""
    loop, far = asyncio.new_event_loop(), Far()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(far.start(), loop).result(WAIT_S)
        yield far, loop
        asyncio.run_coroutine_threadsafe(far.close(), loop).result(WAIT_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()


async def test_a_peer_is_not_silent_because_our_own_loop_was_held() -> None:
    with far_in_a_thread() as (far, far_loop):
        client = RemotingClient(limits=ConnectionLimits(silence_s=0.1))
        connection = await client.connection(far.address)
        calls = [connection.call_nowait(call(number), 0.1) for number in range(3)]
        await asyncio.sleep(0)  # they are written
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline + WAIT_S:
            if len(far.asked) == 3 and time.monotonic() > deadline:
                break
            time.sleep(0.01)  # noqa: ASYNC251 - holds the loop on purpose
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), far_loop).result(WAIT_S)
        assert [answer.remark for answer in await asyncio.gather(*calls)] == ["0", "1", "2"]
        assert client.connected(far.address) is connection
        await client.close()


def test_a_peer_is_not_silent_because_our_own_loop_was_held_until_the_timeout() -> None:
    """Hold the loop until a moment behind the timeout, whose timer is not late then. Only uvloop
    serves timers before it reads.
    """
    uvloop = pytest.importorskip("uvloop")

    async def story(far: Far, far_loop: asyncio.AbstractEventLoop) -> None:
        client = RemotingClient(limits=ConnectionLimits(silence_s=0.1))
        connection = await client.connection(far.address)
        for number in range(10):
            answer = connection.call_nowait(call(number), 0.15)
            await asyncio.sleep(0)  # it is written
            time.sleep(0.155)  # noqa: ASYNC251 - holds the loop on purpose
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), far_loop).result(WAIT_S)
            assert (await answer).remark == str(number)
        assert client.connected(far.address) is connection
        await client.close()

    with (
        far_in_a_thread() as (far, far_loop),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(story(far, far_loop))


async def test_a_oneway_request_arrives() -> None:
    async with far_and_client() as (far, client):
        await client.send_oneway(far.address, call(5))
        await until(lambda: far.asked == [5])


async def test_whoever_connects_is_told_of_the_connection() -> None:
    met: list[tuple[str, Connection]] = []
    async with far_and_client() as (far, _):
        client = RemotingClient(on_connect=lambda *what: met.append(what))
        await client.call(far.address, call(), WAIT_S)
        assert met == [(far.address, client.connected(far.address))]
        await client.close()


async def test_close_is_prompt_though_the_peer_is_frozen() -> None:
    loop = asyncio.get_running_loop()
    accepted = []
    # It accepts and then neither reads nor writes nor closes.
    server = await asyncio.start_server(lambda r, w: accepted.append((r, w)), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = RemotingClient()
    connection = await client.connection(f"127.0.0.1:{port}")
    await until(lambda: bool(accepted))
    accepted[0][1].transport.pause_reading()  # type: ignore[attr-defined]  # asyncio declares it for reading transports only
    connection.send_oneway(request(ECHO, body=b"x" * 8_000_000))
    pending = asyncio.ensure_future(connection.call(call(), WAIT_S))
    await asyncio.sleep(0.01)
    began = loop.time()
    await client.close()
    assert loop.time() - began < WAIT_S / 2
    with pytest.raises(ConnectionLostError):
        await pending
    accepted[0][1].transport.abort()
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0)  # uvloop lets go of the socket in the next turn


async def test_a_caller_that_waits_for_the_connection_learns_of_the_close() -> None:
    client = RemotingClient()
    # TEST-NET-1: either nobody answers or there is no route to it.
    pending = asyncio.ensure_future(client.call("192.0.2.1:9", call(), WAIT_S))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises((ClientStateError, ConnectError)):
        await pending


async def test_a_closed_client_says_so() -> None:
    client = RemotingClient()
    await client.close()
    await client.close()
    with pytest.raises(ClientStateError, match="closed"):
        await client.call("127.0.0.1:1", call(), WAIT_S)


async def test_a_peer_that_does_not_accept_in_time_is_named() -> None:
    client = RemotingClient(connect_timeout_s=0.05)
    with pytest.raises(ConnectError, match=r"192\.0\.2\.1:9"):
        await client.call("192.0.2.1:9", call(), WAIT_S)
    await client.close()


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("10.0.0.1:9876", ("10.0.0.1", 9876)),
        ("broker.example:1", ("broker.example", 1)),
        ("[::1]:10911", ("::1", 10911)),
        ("::1:10911", ("::1", 10911)),
    ],
)
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", "host", ":1", "host:", "host:port", "host:65536", "host:-1", "host:²"]
)
def test_what_is_no_address_is_named(address: str) -> None:
    with pytest.raises(ConnectError, match="host:port"):
        split_address(address)


async def test_a_typed_call_gives_header_and_body_of_the_answer() -> None:
    async with far_and_client() as (far, client):
        answer = await client.ask(
            far.address,
            ECHO_REQUEST,
            EchoHeader(number=7, word="w"),
            b"body",
            what="the echo",
            timeout_s=WAIT_S,
        )
        assert (answer.code, answer.header, answer.body) == (0, EchoHeader(7, "w"), b"body")


async def test_a_typed_call_that_is_refused_says_what_and_by_whom() -> None:
    async with far_and_client() as (far, client):
        header = EchoHeader(number=ResponseCode.QUERY_NOT_FOUND, word="refuse")
        with pytest.raises(RemoteError, match=f"the echo was refused by {far.address}") as raised:
            await client.ask(far.address, ECHO_REQUEST, header, what="the echo", timeout_s=WAIT_S)
        assert (raised.value.code, raised.value.address) == (22, far.address)


async def test_a_code_that_is_an_answer_too_is_not_raised() -> None:
    async with far_and_client() as (far, client):
        header = EchoHeader(number=ResponseCode.QUERY_NOT_FOUND, word="refuse")
        also = (ResponseCode.QUERY_NOT_FOUND,)
        answer = await client.ask(
            far.address, ECHO_REQUEST, header, what="the echo", timeout_s=WAIT_S, also=also
        )
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
