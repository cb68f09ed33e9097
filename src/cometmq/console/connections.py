"""Holds a browser's connection within limits: how many there are, how slow a client may be.

A client that sends its request too slowly, does not read its answer or only keeps a connection open
loses it; or a few machines could keep everybody else out. uvicorn has no such limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from cometmq.console.rendering import LANGUAGES
from cometmq.console.sayings import told_in
from cometmq.runtime.address_list import AddressList
from cometmq.runtime.addresses import network_of
from cometmq.runtime.limits import descriptors_for_connections

MAX_CONNECTIONS: Final = 1000
# Of one IPv4 address or /64 of IPv6, with many people behind it. Those of a trusted proxy are bounded by
# their requests, see `guard`.
MAX_OF_ADDRESS: Final = 500
# A request must have come whole within this time.
REQUEST_S: Final = 30.0
# A client that takes nothing of its answer for so long is given up, at the latest after twice this.
CHECK_S: Final = 10.0


class Refusal(NamedTuple):
    """Is the limit that keeps a connection out, and what to do.

    `is_of_address` says that its own address has too many: no other one makes room for it.
    """

    reason: str
    is_of_address: bool = False


class Connection(H11Protocol):
    """Is a connection of a browser. It looks at itself every CHECK_S. For the loop's thread only."""

    check_s = CHECK_S
    request_s = REQUEST_S
    # Proxies, whose connections are not counted by their address.
    trusted: AddressList = AddressList("trusted_proxies", "")

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._timer: asyncio.TimerHandle | None = None
        # Since when it has waited for a request to come whole; None while it answers one.
        self._asked_s: float | None = None
        self._unsent = 0
        self.peer_ip = ""
        self.network = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's type, too
        """Serve the connection, or say which limit refuses it."""
        super().connection_made(transport)
        self._asked_s = self.loop.time()
        self._timer = self.loop.call_later(self.check_s, self._check)
        self.peer_ip = self.client[0] if self.client else ""
        self.network = network_of(self.peer_ip)
        if refused := self._too_many():
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"The console refuses this connection: {refused.reason}.",
            )
        elif self.config.is_ssl and self.scheme == "http":
            self._refuse(
                HTTPStatus.BAD_REQUEST,
                "The console speaks TLS at this port: call it by https://.",
            )

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

    def _too_many(self) -> Refusal | None:
        sock = self.transport.get_extra_info("socket")
        connections: set[Any] = self.connections  # uvicorn's type names all of its protocols
        others: set[Connection] = connections - {self}
        return refusal(others, (), self.peer_ip, sock.fileno() if sock else -1, self.trusted)

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Answer in each language: what the client asked for, and in which one, is not read."""
        told = dict.fromkeys(told_in(language, text) for language in LANGUAGES)
        body = "".join(f"{each}\n" for each in told).encode()
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            "content-type: text/plain; charset=utf-8\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
            + body
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


def refusal(
    served: Collection[Connection],
    waiting: Collection[str],
    peer_ip: str,
    descriptor: int,
    trusted: AddressList,
) -> Refusal | None:
    """Return what keeps another connection of an address out, None if nothing does.

    `served` are the other connections, `waiting` the addresses of those that do not speak TLS yet.
    """
    if peer_ip not in trusted:
        network = network_of(peer_ip)
        same = sum(each.network == network for each in served)
        same += sum(network_of(each) == network for each in waiting)
        if same >= MAX_OF_ADDRESS:
            return Refusal(
                f"{MAX_OF_ADDRESS} connections of {peer_ip} are open (MAX_OF_ADDRESS); close some, or "
                "try again later. Of a proxy that is named by --trusted-proxies they are not counted",
                is_of_address=True,
            )
    if len(served) + len(waiting) >= MAX_CONNECTIONS:
        return Refusal(
            f"{MAX_CONNECTIONS} connections are open (MAX_CONNECTIONS); close some, or try again later"
        )
    below, limit = descriptors_for_connections()
    if descriptor >= below:
        return Refusal(
            f"{limit} files may be open at once (RLIMIT_NOFILE), and {limit - below} of them are kept; "
            "raise the limit (ulimit -n, or LimitNOFILE in the systemd unit)"
        )
    return None
