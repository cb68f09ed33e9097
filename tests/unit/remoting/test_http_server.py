"""The small HTTP server for metrics and health, and what a bad peer can do to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.waits import WAIT_S, until

from cometmq.errors import ConfigError
from cometmq.remoting.http.http_server import (
    MAX_HEAD_BYTES,
    HttpAnswer,
    HttpRequest,
    HttpServer,
    json_answer,
    text,
)

HOST = "127.0.0.1"
SOON_S = 0.2


class Served(HttpServer):
    """A server with a page that answers when it may."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.may_answer = asyncio.Event()
        self.waiting_count = 0


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Served]:
    server = Served(HOST, 0, port_key="thePort", **options)

    async def hello(request: HttpRequest) -> HttpAnswer:
        return text(f"hello {request.rest} {request.query.get('topic', '')}".strip())

    async def large(_request: HttpRequest) -> HttpAnswer:
        return HttpAnswer(HTTPStatus.OK, b"x" * (64 << 20))

    async def broken(_request: HttpRequest) -> HttpAnswer:
        raise ValueError("a mistake")

    async def waits(_request: HttpRequest) -> HttpAnswer:
        server.waiting_count += 1
        await server.may_answer.wait()
        return text("at last")

    async def table(_request: HttpRequest) -> HttpAnswer:
        return json_answer({"lag": 3})

    server.add("/hello", hello)
    server.add("/hello/", hello)
    server.add("/large", large)
    server.add("/broken", broken)
    server.add("/waits", waits)
    server.add("/table", table)
    await server.start()
    try:
        yield server
    finally:
        while Peer.open:
            Peer.open.pop().close()
        await server.close()
        await asyncio.sleep(0)  # the transports of the peers close in the next turn


class Peer:
    """A client that sends given bytes and reads answers."""

    open: ClassVar[list[Peer]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.append(self)
        self._reader = reader
        self.writer = writer

    @classmethod
    async def of(cls, server: HttpServer) -> Peer:
        return cls(*await asyncio.open_connection(HOST, server.port, limit=1 << 20))

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(data)
        return await self.answer(is_head=data.startswith(b"HEAD"))

    async def answer(self, *, is_head: bool = False) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(WAIT_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            headers = {}
            for line in filter(None, lines):
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            length = 0 if is_head else int(headers["content-length"])
            body = await self._reader.readexactly(length)
        return int(first.split()[1]), headers, body

    async def is_closed(self) -> bool:
        async with asyncio.timeout(WAIT_S):
            try:
                return await self._reader.read() == b""
            except ConnectionResetError:
                return True

    async def rest(self) -> bytes:
        return await self._reader.read()

    def close(self) -> None:
        self.writer.transport.abort()


def request(target: str = "/hello", method: str = "GET", headers: str = "") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode()


async def ask(server: HttpServer, data: bytes) -> tuple[int, dict[str, str], bytes]:
    peer = await Peer.of(server)
    try:
        return await peer.ask(data)
    finally:
        peer.close()


async def test_a_connection_is_served_once_and_closed() -> None:
    async with serving() as server:
        assert (await ask(server, request()))[2] == b"hello\n"
        assert (await ask(server, request("/hello/a%25b?topic=t")))[2] == b"hello a%b t\n"
        status, headers, body = await ask(server, request("/table"))
        assert (status, headers["content-type"], body) == (200, "application/json", b'{"lag": 3}\n')
        status, headers, body = await ask(server, request(method="HEAD"))
        assert (status, headers["content-length"], body) == (200, "6", b"")
        peer = await Peer.of(server)
        status, headers, _ = await peer.ask(request(headers="Connection: keep-alive\r\n"))
        assert (status, headers["connection"]) == (200, "close")
        assert await peer.is_closed()


@pytest.mark.parametrize(
    ("data", "status", "sentence"),
    [
        (request("/nothing"), 404, "there is no such page; there are /hello, /hello/, /large"),
        (request("/../../etc/passwd"), 404, "no such page"),
        (request("/hello/%ff"), 400, "the path cannot be read"),
        (request("/hello?" + "&".join(["a=1"] * 99)), 400, "the path cannot be read"),
        (request(method="POST"), 405, "POST is not accepted"),
        (request(method="DELETE"), 405, "use GET or HEAD"),
        (request(headers="Content-Length: 5\r\n") + b"abcde", 413, "has a body; send none"),
        (request(headers="Content-Length: 5\r\n"), 413, "has a body; send none"),
        (request(headers="Transfer-Encoding: chunked\r\n"), 413, "has a body; send none"),
        (request(headers="X: " + "y" * 2 * MAX_HEAD_BYTES + "\r\n"), 431, "MAX_HEAD_BYTES is 8192"),
        (request("/" + "y" * (2 << 20)), 431, "MAX_HEAD_BYTES is 8192"),
        (b"\x00\x00\x00\x10\x00\x00\x00\x08{}\r\n\r\n", 400, "not an HTTP/1.1 request"),
        (b"GET /hello\x00 HTTP/1.1\r\n\r\n", 400, "not an HTTP/1.1 request"),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, "HTTP/1.1"),
        (request("/broken"), 500, "its log says why"),
    ],
)
async def test_bad_requests_get_a_status_and_a_sentence(
    data: bytes, status: int, sentence: str
) -> None:
    async with serving() as server:
        found, headers, body = await ask(server, data)
        assert (found, sentence in body.decode()) == (status, True), body
        assert ("allow" in headers) == (status == 405)
        # Whatever came, the next one is served.
        assert (await ask(server, request()))[0] == 200


async def test_a_request_that_comes_byte_by_byte_is_cut_after_its_time() -> None:
    async with serving(request_timeout_s=SOON_S) as server:
        peer = await Peer.of(server)
        async with asyncio.timeout(WAIT_S):
            answer = asyncio.ensure_future(peer.answer())
            for byte in request(headers="X: y\r\n" * 200):
                if answer.done():
                    break
                peer.writer.write(bytes([byte]))
                await asyncio.sleep(0.005)
            status, _, body = await answer
        assert (status, b"did not arrive within 0.2 s" in body) == (408, True)


async def test_a_silent_connection_is_closed_after_its_time() -> None:
    async with serving(request_timeout_s=SOON_S) as server:
        assert (await (await Peer.of(server)).answer())[0] == 408


async def test_a_peer_that_does_not_read_its_answer_is_cut() -> None:
    async with serving(answer_timeout_s=SOON_S) as server:
        peer = await Peer.of(server)
        cast("asyncio.Transport", peer.writer.transport).pause_reading()
        peer.writer.write(request("/large"))
        async with asyncio.timeout(WAIT_S):
            while server.connection_count:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)
        peer.close()


async def test_beyond_the_limit_a_peer_that_never_asks_makes_room() -> None:
    """Peers that never ask kept a probe from its answer, and it had the broker restarted."""
    async with serving(max_connections=3, request_timeout_s=WAIT_S) as server:
        slow = [await Peer.of(server) for _ in range(3)]
        for peer in slow:
            peer.writer.write(b"GET /hel")
        probe = await Peer.of(server)
        assert (await probe.ask(request()))[0] == 200
        slow += [await Peer.of(server) for _ in range(50)]
        assert (await ask(server, request()))[0] == 200
        assert await slow[0].is_closed()
        assert server.connection_count <= 6  # some have been answered and are not closed yet


async def test_if_all_wait_for_answers_a_new_connection_is_refused() -> None:
    async with serving(max_connections=3) as server:
        served = [await Peer.of(server) for _ in range(3)]
        answers = [asyncio.ensure_future(peer.ask(request("/waits"))) for peer in served]
        await until(lambda: server.waiting_count == 3)
        refused = [await Peer.of(server) for _ in range(5)]
        status, _, body = await refused[0].answer()
        assert (status, b"3 connections" in body) == (503, True)
        # No more of them may read why than may be served.
        assert server.connection_count <= 6
        server.may_answer.set()
        assert [status for status, _, _ in await asyncio.gather(*answers)] == [200] * 3


async def test_a_peer_that_closes_its_side_gets_its_answer() -> None:
    async with serving() as server:
        peer = await Peer.of(server)
        peer.writer.write(request("/waits"))
        peer.writer.write_eof()
        await until(lambda: server.waiting_count == 1)
        server.may_answer.set()
        assert (await peer.answer())[2] == b"at last\n"
        assert await peer.is_closed()


async def test_requests_that_are_sent_ahead_are_not_kept() -> None:
    async with serving() as server:
        peer = await Peer.of(server)
        assert (await peer.ask(request() * 50))[0] == 200
        assert await peer.is_closed()
        assert (await ask(server, request()))[0] == 200


async def test_a_taken_port_is_refused_with_its_key() -> None:
    async with serving() as server:
        second = HttpServer(HOST, server.port, port_key="metricsPromExporterPort")
        with pytest.raises(ConfigError, match="set another metricsPromExporterPort, 0 takes"):
            await second.start()


@given(st.lists(st.binary(max_size=200) | st.sampled_from([b"GET / ", b"HTTP/1.1\r\n", b"\r\n"])))
def test_any_bytes_give_an_answer_or_a_closed_connection(pieces: list[bytes]) -> None:
    async def feed() -> None:
        async with serving() as server:
            peer = await Peer.of(server)
            for piece in pieces:
                peer.writer.write(piece)
            peer.writer.write_eof()
            async with asyncio.timeout(WAIT_S):
                answer = await peer.rest()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
            assert (await ask(server, request()))[0] == 200

    asyncio.run(feed())
