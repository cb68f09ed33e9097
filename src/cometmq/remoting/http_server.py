"""Serve a few read-only pages over HTTP/1.1, on the server's own loop: metrics, health, lag.

h11 reads and writes the protocol; this module bounds what a peer can make it do. A request has no
body and is GET or HEAD; its line and at most MAX_HEADERS headers take at most MAX_HEAD_BYTES and arrive
within REQUEST_TIMEOUT_S; an answer must be read within ANSWER_TIMEOUT_S; a connection may rest for
IDLE_TIMEOUT_S between two requests. Of more than MAX_HTTP_CONNECTIONS, the one that has rested for
longest is closed, or else the one whose request has been on its way for longest, so that peers that
never ask do not keep out those that do; if all wait for answers, the new one is refused. Each refusal
is a status and one sentence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import parse_qs, unquote

import h11
import structlog

from cometmq.errors import ConfigError
from cometmq.remoting.protected import ProtectedMode
from cometmq.runtime.address_list import plain_ip
from cometmq.runtime.addresses import join_address
from cometmq.runtime.network import TCP_NETWORK, Listener, Network
from cometmq.runtime.tasks import TaskOwner

log = structlog.get_logger(__name__)

MAX_HEAD_BYTES: Final = 8 * 1024
MAX_HEADERS: Final = 100  # h11 takes microseconds for each, and 8 KiB have room for 2,000
MAX_HTTP_CONNECTIONS: Final = 32
REQUEST_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 30.0
IDLE_TIMEOUT_S: Final = 120.0
_BACKLOG: Final = 32
# How much of a refused request is read, and for how long, before its connection is closed.
_MOST_DROPPED_BYTES: Final = 1024 * 1024
_DROP_FOR_S: Final = 2.0
_TEXT: Final = "text/plain; charset=utf-8"
_METHODS: Final = (b"GET", b"HEAD")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request that a page is asked for. `rest` is what follows the page's prefix in the path."""

    path: str
    rest: str
    query: dict[str, str]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The answer to a request."""

    status: HTTPStatus
    body: bytes | bytearray
    content_type: str = _TEXT


class HttpRefusal(Exception):  # noqa: N818 - it says what is done, it is no fault of ours
    """Ends a request with a status and a sentence. Only this module's servers see it."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


Page = Callable[[HttpRequest], Awaitable[HttpAnswer]]


def text(sentence: str, status: HTTPStatus = HTTPStatus.OK) -> HttpAnswer:
    """Return an answer of one line."""
    return HttpAnswer(status, f"{sentence}\n".encode())


def json_answer(value: Any) -> HttpAnswer:
    """Return `value` as JSON."""
    return HttpAnswer(HTTPStatus.OK, json.dumps(value).encode() + b"\n", "application/json")


class HttpServer:
    """Serves pages on `host:port`; port 0 takes a free one. For the loop's thread only.

    `port_key` is the configuration key that an error names if the port is taken. A page whose path
    ends with a slash also serves all paths below it. With `protection` the pages are for the peers
    that it admits, but for those that were added for all.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        port_key: str,
        protection: ProtectedMode | None = None,
        network: Network = TCP_NETWORK,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        max_connections: int = MAX_HTTP_CONNECTIONS,
    ) -> None:
        self._host = host
        self._port = port
        self._port_key = port_key
        self._network = network
        self.request_timeout_s = request_timeout_s
        self.answer_timeout_s = answer_timeout_s
        self.idle_timeout_s = idle_timeout_s
        self._max_connections = max_connections
        self._pages: dict[str, Page] = {}
        self._protection = protection
        self._for_all: set[Page] = set()
        self._listener: Listener | None = None
        self.tasks = TaskOwner("http-server")
        # In the order in which they began to rest; a busy one stands anywhere.
        self._connections: dict[_HttpConnection, None] = {}
        # Called with the name of the limit that refuses or closes something.
        self.on_limit: Callable[[str], None] = lambda _limit: None
        # Connections that came when there were too many, until they have read so.
        self._turned_away: dict[_HttpConnection, None] = {}

    @property
    def port(self) -> int:
        """Return the port, which is known after `start`."""
        assert self._listener is not None, "the HTTP server is not started"
        return self._listener.port

    @property
    def address(self) -> str:
        return join_address(self._host, self.port)

    def add(self, path: str, page: Page, *, for_all: bool = False) -> None:
        """Serve `page` at a path, `for_all` also to peers that the protection does not admit."""
        self._pages[path] = page
        if for_all:
            self._for_all.add(page)

    def check(self, page: Page, peer_ip: str, local_ip: str) -> None:
        """Raise HttpRefusal if a page is not for the peer of a connection."""
        protection = self._protection
        if protection is None or page in self._for_all or protection.admits(peer_ip, local_ip):
            return
        protection.note_refusal(peer_ip)
        raise HttpRefusal(HTTPStatus.FORBIDDEN, protection.reason(peer_ip))

    async def start(self) -> None:
        """Listen. Raises ConfigError when the address is taken or not this machine's."""
        try:
            self._listener = await self._network.listen(
                lambda: _HttpConnection(self),
                self._host,
                self._port,
                backlog=_BACKLOG,
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {join_address(self._host, self._port)} for metrics: "
                f"{error.strerror or error}; set another {self._port_key}, 0 takes a free port"
            ) from error
        await self._listener.start()

    async def close(self) -> None:
        """Stop listening and close every connection. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        await self.tasks.close()
        for connection in [*self._connections, *self._turned_away]:
            connection.abort()
        if self._listener is not None:
            await self._listener.wait_closed()

    def find(self, path: str) -> tuple[Page, str]:
        """Return the page of a path, and the path's rest. Raises HttpRefusal."""
        page = self._pages.get(path)
        if page is not None:
            return page, ""
        for prefix, below in self._pages.items():
            if prefix.endswith("/") and path.startswith(prefix):
                return below, path[len(prefix) :]
        raise HttpRefusal(
            HTTPStatus.NOT_FOUND, f"there is no such page; there are {', '.join(self._pages)}"
        )

    def admit(self, connection: _HttpConnection) -> bool:
        """Take a new connection in, if need be in the place of another; say whether."""
        if len(self._connections) >= self._max_connections:
            self.on_limit("MAX_HTTP_CONNECTIONS")
            others = self._connections
            idle = next((other for other in others if other.rests), None)
            if idle is None:
                idle = next((other for other in others if not other.is_served), None)
            if idle is None:
                return False
            idle.abort()
            self.forget(idle)
        self._connections[connection] = None
        return True

    def turn_away(self, connection: _HttpConnection) -> bool:
        """Note that a connection is refused; say whether it may stay to read why."""
        if len(self._turned_away) >= self._max_connections:
            return False
        self._turned_away[connection] = None
        return True

    def begins_to_rest(self, connection: _HttpConnection) -> None:
        """Note that a connection has answered a request and waits for the next one."""
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None

    def forget(self, connection: _HttpConnection) -> None:
        self._connections.pop(connection, None)
        self._turned_away.pop(connection, None)

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    @property
    def too_many(self) -> str:
        """Return why a further connection is refused."""
        return (
            f"{len(self._connections)} connections ask for pages already, the limit "
            f"MAX_HTTP_CONNECTIONS is {self._max_connections}; ask again when some are answered"
        )


class _HttpConnection(asyncio.Protocol):
    """Serves the requests of one connection, one after the other."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        # Whether the last request that came asks for no body, also if it is refused later.
        self._is_head = False
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._request: h11.Request | None = None
        self._peer_ip = self._local_ip = ""
        # Whether it has answered at least one request and no byte of the next has come.
        self.rests = False
        # Whether the peer has closed its side.
        self._ended = False
        # How many bytes and lines have come of the request that is read now.
        self._received = self._lines = 0
        # How many bytes of a refused request were dropped; None while nothing was refused.
        self._dropped: int | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        self._peer_ip = _ip(transport.get_extra_info("peername"))
        self._local_ip = _ip(transport.get_extra_info("sockname"))
        if not self._server.admit(self):
            if self._server.turn_away(self):
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, self._server.too_many)
            else:
                self.abort()
            return
        self._expect(self._server.request_timeout_s, self._request_too_slow)

    def data_received(self, data: bytes) -> None:
        if self._dropped is not None:
            self._dropped += len(data)
            if self._dropped > _MOST_DROPPED_BYTES:
                self.abort()
            return
        if self.rests:
            self.rests = False
            self._expect(self._server.request_timeout_s, self._request_too_slow)
        self._feed(data)

    def eof_received(self) -> bool:
        if self._dropped is not None:
            return False
        self._ended = True
        if self._request is not None:
            # A peer that has closed its side still gets the answer to what it has asked.
            return True
        self._feed(b"")
        return False

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._deadline is not None:
            self._deadline.cancel()
        self._transport = None
        self._writable.set()
        self._server.forget(self)

    # Inside

    @property
    def is_served(self) -> bool:
        """Whether it has asked and has not read its answer yet."""
        return self._request is not None

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _expect(self, within_s: float, late: Callable[[], None]) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(within_s, late)

    def _request_too_slow(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the request did not arrive within {self._server.request_timeout_s:g} s",
        )

    def _feed(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._request is not None and data:
            # Nobody needs to ask ahead, and what waits would have to be bounded.
            self.abort()
            return
        # h11 bounds what is unfinished, but a head that comes in one piece may have any length.
        self._received += len(data)
        end = data.find(b"\n\r\n")  # what was sent ahead may stand behind the head
        self._lines += data.count(b"\n", 0, end if end >= 0 else len(data))
        for limit, what, count, most in (
            ("MAX_HEAD_BYTES", "bytes", self._received, MAX_HEAD_BYTES),
            ("MAX_HEADERS", "lines", self._lines, MAX_HEADERS),
        ):
            if count > most:
                self._server.on_limit(limit)
                self._refuse(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"{count} {what} of the request have come, the limit {limit} is {most}; send fewer headers",
                )
                return
        try:
            self._protocol.receive_data(data)
            self._advance()
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            self._refuse(status, f"this is no HTTP/1.1 request: {error}"[:300])
        except HttpRefusal as refusal:
            self._refuse(refusal.status, str(refusal))

    def _advance(self) -> None:
        request: h11.Request | None = None
        while True:
            event = self._protocol.next_event()
            if isinstance(event, h11.Request):
                if event.method not in _METHODS:
                    raise HttpRefusal(
                        HTTPStatus.METHOD_NOT_ALLOWED,
                        f"{event.method.decode('ascii')[:20]} is not taken: these pages only read, "
                        "so ask by GET or HEAD",
                    )
                request = event
                self._is_head = event.method == b"HEAD"
            elif isinstance(event, h11.Data):
                raise HttpRefusal(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request has a body; send none"
                )
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None, "h11 reads heads in one piece"
                self._begin(request)
                return
            else:
                if isinstance(event, h11.ConnectionClosed):
                    self._close()
                elif request is not None:
                    raise HttpRefusal(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request has a body; send none"
                    )
                return

    def _begin(self, request: h11.Request) -> None:
        self._request = request
        self._expect(self._server.answer_timeout_s, self.abort)
        self._server.tasks.spawn(self._serve(request), "request")

    async def _serve(self, request: h11.Request) -> None:
        try:
            answer = await self._answer(request)
        except HttpRefusal as refusal:
            answer = text(str(refusal), refusal.status)
        except Exception:
            # The outermost edge of a request's task.
            log.exception("page failed", target=request.target[:200])
            answer = text("the server failed; its log says why", HTTPStatus.INTERNAL_SERVER_ERROR)
        if self._transport is None or self._transport.is_closing():
            return
        self._send(answer)
        await self._writable.wait()
        self._done()

    async def _answer(self, request: h11.Request) -> HttpAnswer:
        try:
            target = request.target.decode("ascii")
            path, _, query = target.partition("?")
            path = unquote(path, errors="strict")
            fields = parse_qs(query, max_num_fields=20, errors="strict", keep_blank_values=True)
        except ValueError as error:
            raise HttpRefusal(
                HTTPStatus.BAD_REQUEST, f"the path cannot be read: {error}"
            ) from error
        page, rest = self._server.find(path)
        self._server.check(page, self._peer_ip, self._local_ip)
        wanted = HttpRequest(path, rest, {name: values[-1] for name, values in fields.items()})
        return await page(wanted)

    def _send(self, answer: HttpAnswer, *, then_close: bool = False) -> None:
        assert self._transport is not None
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        if then_close:
            headers.append(("Connection", "close"))
        protocol = self._protocol
        head = protocol.send(
            h11.Response(
                status_code=answer.status, headers=headers, reason=answer.status.phrase.encode()
            )
        )
        pieces = [head or b""]
        # h11 refuses a body where the request was HEAD.
        if answer.body and not self._is_head:
            # h11 passes on whatever has a length.
            data = h11.Data(data=cast("bytes", answer.body))
            pieces += protocol.send_with_data_passthrough(data) or []
        if not self._is_head:
            pieces.append(protocol.send(h11.EndOfMessage()) or b"")
        else:
            protocol.send(h11.EndOfMessage())
        for piece in pieces:
            if piece:
                self._transport.write(piece)

    def _done(self) -> None:
        """Wait for the next request, or close where the peer does not want to ask again."""
        self._request = None
        if self._transport is None or self._transport.is_closing():
            return
        protocol = self._protocol
        if protocol.our_state is not h11.DONE or protocol.their_state is not h11.DONE:
            self._close()
            return
        if self._ended or protocol.trailing_data[0]:  # or it has asked ahead, as above
            self._close()
            return
        protocol.start_next_cycle()
        self._received = self._lines = 0
        self.rests = True
        self._server.begins_to_rest(self)
        self._expect(self._server.idle_timeout_s, self._close)

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        """Answer what is no proper request, and close."""
        if self._transport is None or self._transport.is_closing():
            return
        log.debug("HTTP request refused", status=int(status), why=sentence)
        if self._protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._close()
            return
        self._send(text(sentence, status), then_close=True)
        # With bytes unread a close would be a reset, which may overtake the answer: the rest is read.
        self._dropped = 0
        self._transport.write_eof()
        self._expect(_DROP_FOR_S, self.abort)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            # A peer that does not read the rest must not keep the connection.
            self._expect(self._server.request_timeout_s, self.abort)


def _ip(name: Any) -> str:
    return plain_ip(str(name[0])) if name else ""
