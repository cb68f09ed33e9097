"""Holds a browser's connection within limits: how many there are, how slow a client may be.

A client that sends its request too slowly, does not read its answer or only keeps a connection open
loses it; or a few machines could keep everybody else out. uvicorn has no such limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS: Final = 1000
# Of one address, which may be a proxy with many people behind it.
MAX_OF_ADDRESS: Final = 500
# A request must have come whole within this time.
REQUEST_S: Final = 30.0
# A client that takes nothing of its answer for so long is given up, at the latest after twice this.
CHECK_S: Final = 10.0


class Connection(H11Protocol):
    """Is a connection of a browser. It looks at itself every CHECK_S. For the loop's thread only."""

    check_s = CHECK_S
    request_s = REQUEST_S

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._timer: asyncio.TimerHandle | None = None
        # Since when it has waited for a request to come whole; None while it answers one.
        self._asked_s: float | None = None
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's type, too
        """Serve the connection, or say which limit refuses it."""
        super().connection_made(transport)
        self._asked_s = self.loop.time()
        self._timer = self.loop.call_later(self.check_s, self._check)
        if reason := self._too_many():
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, reason)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # it was refused
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._asked_s = None
        elif self._asked_s is None:
            self._asked_s = self.loop.time()

    def resume_writing(self) -> None:
        """Go on sending: the client has taken most of what waited, so what waits now is new."""
        self._unsent = 0
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, also when an answer is under way."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def _too_many(self) -> str:
        connections: Iterable[Any] = self.connections
        if len(self.connections) > MAX_CONNECTIONS:
            return f"{MAX_CONNECTIONS} connections are open (MAX_CONNECTIONS)"
        address = self.client and self.client[0]
        same = sum(1 for each in connections if each.client and each.client[0] == address)
        if same > MAX_OF_ADDRESS:
            return f"{MAX_OF_ADDRESS} connections of {address} are open (MAX_OF_ADDRESS)"
        return ""

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        body = f"The console refuses this connection: {reason}. Close some, or try again later.\n"
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
        )
        self.transport.close()

    def _check(self) -> None:
        """Give up a client that is too slow."""
        unsent = self.transport.get_write_buffer_size()
        is_stuck = unsent > 0 and unsent >= self._unsent > 0
        waited_s = 0.0 if self._asked_s is None else self.loop.time() - self._asked_s
        # One that is closing still sends the end of its answer.
        is_over = unsent == 0 and self.transport.is_closing()
        if is_over or is_stuck or waited_s > self.request_s:
            self.transport.abort()
            return
        self._unsent = unsent
        self._timer = self.loop.call_later(self.check_s, self._check)
