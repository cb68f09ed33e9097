"""Serve a few read-only pages over HTTP/1.1, on the server's own loop: metrics, health, lag.

h11 reads the protocol. A connection is for one request, GET or HEAD without a body, whose head has
at most MAX_HEAD_BYTES and arrives within REQUEST_TIMEOUT_S; its answer must be read within
ANSWER_TIMEOUT_S. When there are more than MAX_HTTP_CONNECTIONS, the oldest connection that waits
for no answer is closed, so that peers that never ask do not keep others out; if all wait, the new
one is refused. Each refusal is a status and one sentence.
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

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.remoting.protected import ProtectedMode
from cometmq.runtime.sockets.address_list import plain_ip
from cometmq.runtime.sockets.addresses import join_address
from cometmq.runtime.sockets.network import TCP_NETWORK, Listener, Network
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

MAX_HEAD_BYTES: Final = 8 * 1024
MAX_HTTP_CONNECTIONS: Final = 32
REQUEST_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 30.0
_BACKLOG: Final = 32
# How long bytes that follow a request are still read: closing with unread bytes would send a reset,
# which may overtake the answer.
_MOST_DROPPED_BYTES: Final = 1024 * 1024
_DROP_FOR_S: Final = 2.0
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request that a page is asked for. `rest` is the part of the path behind the page's
    prefix.
    """

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
    ends with a slash also serves all paths below it. With `protection` only the peers that it
    admits get pages, except the pages that were added `for_all`.
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
        max_connections: int = MAX_HTTP_CONNECTIONS,
    ) -> None:
        self._host = host
        self._port = port
        self._port_key = port_key
        self._network = network
        self.request_timeout_s = request_timeout_s
        self.answer_timeout_s = answer_timeout_s
        self._max_connections = max_connections
        self._pages: dict[str, Page] = {}
        self._protection = protection
        self._for_all: set[Page] = set()
        self._listener: Listener | None = None
        self.tasks = TaskOwner("http-server")
        self._connections: dict[_HttpConnection, None] = {}  # the oldest first
        # Called with the name of the limit that refuses or closes something.
        self.on_limit: Callable[[str], None] = lambda _limit: None

    @property
    def port(self) -> int:
        """Return the port, which is known after `start`."""
        assert self._listener is not None, "the HTTP server is not started"
        return self._listener.port

    @property
    def address(self) -> str:
        return join_address(self._host, self.port)

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def add(self, path: str, page: Page, *, for_all: bool = False) -> None:
        """Serve `page` at a path, `for_all` also to peers that the protection does not admit."""
        self._pages[path] = page
        if for_all:
            self._for_all.add(page)

    async def start(self) -> None:
        """Listen. Raises ConfigError when the address is taken or not this machine's."""
        try:
            self._listener = await self._network.listen(
                lambda: _HttpConnection(self), self._host, self._port, backlog=_BACKLOG
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
        for connection in [*self._connections]:
            connection.abort()
        if self._listener is not None:
            await self._listener.wait_closed()

    async def answer(self, request: h11.Request, peer_ip: str, local_ip: str) -> HttpAnswer:
        """Return the answer of the requested page, or the reason why there is none."""
        try:
            path, _, query = request.target.decode("ascii").partition("?")
            path = unquote(path, errors="strict")
            fields = parse_qs(query, max_num_fields=20, errors="strict", keep_blank_values=True)
        except ValueError as error:
            return text(f"the path cannot be read: {error}", HTTPStatus.BAD_REQUEST)
        page, rest = self._find(path)
        if page is None:
            there = ", ".join(self._pages)
            return text(f"there is no such page; there are {there}", HTTPStatus.NOT_FOUND)
        protection = self._protection
        if not (
            protection is None or page in self._for_all or protection.admits(peer_ip, local_ip)
        ):
            protection.note_refusal(peer_ip)
            return text(protection.reason(peer_ip), HTTPStatus.FORBIDDEN)
        try:
            return await page(
                HttpRequest(path, rest, {name: values[-1] for name, values in fields.items()})
            )
        except Exception:
            # The outermost edge of a request's task.
            log.exception("page failed", target=request.target[:200])
            return text("the server failed; its log says why", HTTPStatus.INTERNAL_SERVER_ERROR)

    def _find(self, path: str) -> tuple[Page | None, str]:
        for known, page in self._pages.items():
            if path == known or (known.endswith("/") and path.startswith(known)):
                return page, path[len(known) :]
        return None, ""

    def admit(self, connection: _HttpConnection) -> str:
        """Admit a new connection, if necessary in the place of another; return why it may not ask,
        or "". At the limit of open descriptors the connection is closed at once (`is_open`),
        before its peer can read a reason.
        """
        asking = [other for other in self._connections if not other.is_answered]
        refusal = ""
        if len(asking) >= self._max_connections:
            self.on_limit("MAX_HTTP_CONNECTIONS")
            if (
                silent := next((other for other in asking if not other.is_served), None)
            ) is not None:
                silent.abort()
                self.forget(silent)
            else:
                refusal = (
                    f"{len(asking)} connections are already asking for pages, the limit "
                    f"MAX_HTTP_CONNECTIONS is {self._max_connections}; ask again when some of them "
                    "are answered"
                )
        if len(self._connections) < 2 * self._max_connections:
            self._connections[connection] = None
        return refusal

    def is_open(self, connection: _HttpConnection) -> bool:
        return connection in self._connections

    def forget(self, connection: _HttpConnection) -> None:
        self._connections.pop(connection, None)


class _HttpConnection(asyncio.Protocol):
    """Serves the request of one connection."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_head = self.is_served = self.is_answered = False
        self._received = self._dropped = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        refusal = self._server.admit(self)
        if not self._server.is_open(self):
            self.abort()
        elif refusal:
            self._send(text(refusal, HTTPStatus.SERVICE_UNAVAILABLE))
        else:
            self._expect(self._server.request_timeout_s, self._request_too_slow)

    def data_received(self, data: bytes) -> None:
        if self.is_served or self.is_answered:
            self._dropped += len(data)
            if self._dropped > _MOST_DROPPED_BYTES:
                self.abort()
            return
        # h11 bounds an unfinished head, but a head that arrives in one piece may have any length.
        self._received += len(data)
        if self._received > MAX_HEAD_BYTES:
            self._server.on_limit("MAX_HEAD_BYTES")
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"{self._received} bytes of the request have arrived, the limit MAX_HEAD_BYTES is "
                f"{MAX_HEAD_BYTES}; send fewer headers",
            )
            return
        try:
            self._protocol.receive_data(data)
            event = self._protocol.next_event()
            if isinstance(event, h11.Request):
                self._is_head = event.method == b"HEAD"
                self._check(event)
                self._expect(self._server.answer_timeout_s, self.abort)
                self.is_served = True
                self._server.tasks.spawn(self._serve(event), "request")
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            self._refuse(status, f"this is not an HTTP/1.1 request: {error}"[:300])
        except HttpRefusal as refusal:
            self._refuse(refusal.status, str(refusal))

    def eof_received(self) -> bool:
        # A peer that has closed its side still gets the answer to its request.
        return self.is_served

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._deadline is not None:
            self._deadline.cancel()
        self._transport = None
        self._server.forget(self)

    # Inside

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def _expect(self, within_s: float, late: Callable[[], None]) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(within_s, late)

    def _request_too_slow(self) -> None:
        within_s = self._server.request_timeout_s
        self._refuse(
            HTTPStatus.REQUEST_TIMEOUT, f"the request did not arrive within {within_s:g} s"
        )

    def _check(self, request: h11.Request) -> None:
        if request.method not in (b"GET", b"HEAD"):
            raise HttpRefusal(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{request.method.decode('ascii')[:20]} is not accepted: these pages are "
                "read-only, so use GET or HEAD",
            )
        if not isinstance(self._protocol.next_event(), h11.EndOfMessage):
            raise HttpRefusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request has a body; send none"
            )

    async def _serve(self, request: h11.Request) -> None:
        assert self._transport is not None
        peer, local = (self._transport.get_extra_info(of) for of in ("peername", "sockname"))
        self._send(await self._server.answer(request, _ip(peer), _ip(local)))

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        log.debug("HTTP request refused", status=int(status), why=sentence)
        self._send(text(sentence, status))

    def _send(self, answer: HttpAnswer) -> None:
        """Send the answer, and close when the peer has read it."""
        if self._transport is None or self._transport.is_closing():
            return
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("Allow", "GET, HEAD"))
        reason = answer.status.phrase.encode()
        response = h11.Response(status_code=answer.status, headers=headers, reason=reason)
        self._transport.write(self._protocol.send(response) or b"")
        if answer.body and not self._is_head:
            self._transport.write(answer.body)
        self._transport.write_eof()
        within_s = self._server.answer_timeout_s if self.is_served else _DROP_FOR_S
        self.is_served, self.is_answered = False, True
        self._expect(within_s, self.abort)


def _ip(name: Any) -> str:
    return plain_ip(str(name[0])) if name else ""
