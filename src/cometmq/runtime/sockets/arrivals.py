"""Accept sockets and look at the first bytes of a peer, before anything is read or allocated for
it.

The bytes stay in the kernel (MSG_PEEK), so that the same port can serve plain connections and TLS,
and a peer that begins a handshake and does not go on costs a descriptor and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, cast

from cometmq.logs.loggers import get_logger
from cometmq.runtime.sockets.address_list import plain_ip
from cometmq.runtime.sockets.addresses import join_address

log = get_logger(__name__)

# So many are accepted before others get their turn; in a loop whose turns are long, one for each ms since
# the last ones, up to the second number, or a new connection would wait for seconds behind hundreds of
# others.
_ACCEPTED_AT_ONCE: Final = 8
_ACCEPTED_AT_MOST: Final = 64
# How long no socket is accepted after one could not be for want of descriptors.
_ACCEPT_PAUSE_S: Final = 1.0
# Where the low-water mark has no effect, an incomplete beginning is looked at again after this time.
_LOOK_AGAIN_S: Final = 0.05
_HELLO_BYTES: Final = 64 * 1024
# A record of TLS 1.2 with a fatal alert: access_denied (RFC 8446, 6.2).
_ACCESS_DENIED: Final = bytes((21, 3, 3, 0, 2, 2, 49))
_CANNOT_ACCEPT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# The state of a connection whose peer still sends (Linux: tcp_states.h).
_TCP_ESTABLISHED: Final = 1

# For other rooms, which may not import `socket`.
Socket = socket.socket


class Arrival:
    """A connection that was accepted and is not served yet. For the loop's thread only."""

    def __init__(self, sock: socket.socket, peer: tuple[Any, ...]) -> None:
        self.peer_ip = plain_ip(str(peer[0]))
        self.peer = join_address(self.peer_ip, int(peer[1]))
        self._loop = asyncio.get_running_loop()
        self.made_at = self._loop.time()
        self._socket: socket.socket | None = sock
        self._wanted = 0
        self._timer: asyncio.TimerHandle | None = None
        self._then: Callable[[], None] | None = None
        self._first: _First | None = None

    @property
    def descriptor(self) -> int:
        """Return the file descriptor, -1 once the arrival is closed or connected."""
        return -1 if self._socket is None else self._socket.fileno()

    @property
    def local_ip(self) -> str:
        """Return the address that the peer connected to, "" once the arrival is closed."""
        return "" if self._socket is None else plain_ip(str(self._socket.getsockname()[0]))

    def refuse_tls(self) -> None:
        """Answer the beginning of a handshake by an alert that says that access is denied."""
        assert self._socket is not None, "the arrival is closed"
        with suppress(OSError):
            # Unread bytes of a socket that is closed reset the connection, and the alert is lost.
            self._socket.recv(_HELLO_BYTES)
            self._socket.send(_ACCESS_DENIED)

    def when_sent(self, count: int, then: Callable[[], None]) -> None:
        """Call `then` once `count` bytes have come, or the peer has closed."""
        assert self._socket is not None, "the arrival is closed"
        self._stop_waiting()
        self._wanted, self._then = count, then
        self._set_low_water(count)
        self._loop.add_reader(self._socket, self._look)

    def peek(self, count: int) -> bytes | None:
        """Return up to `count` of the bytes that have come, b"" if none have, None if the peer is
        gone.
        """
        assert self._socket is not None, "the arrival is closed"
        try:
            return self._socket.recv(count, socket.MSG_PEEK) or None
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            return None

    def discard(self, count: int) -> None:
        """Take the first `count` bytes off the connection. They must have arrived."""
        assert self._socket is not None, "the arrival is closed"
        with suppress(OSError):  # the peer has reset the connection; the next read fails
            self._socket.recv(count)

    def comes_from(self, ip: str, port: int) -> None:
        """Replace the peer's address by that of the client that a balancer names."""
        self.peer_ip, self.peer = ip, join_address(ip, port)

    @property
    def has_left(self) -> bool:
        """Return whether the peer has closed, as far as this machine knows."""
        if self._socket is None or not sys.platform.startswith("linux"):
            return self._socket is None
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        except OSError:
            return True
        return info[0] != _TCP_ESTABLISHED

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._stop_waiting()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Serve the connection without TLS. Closes it before raising OSError.

        A cancellation closes the connection, and `protocol` hears of its loss if it heard of its
        start: for a connection that is just starting, uvloop would report only the start.
        """
        first = self._first = _First(protocol)
        connecting = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: first, self.take())
        )
        try:
            await asyncio.shield(connecting)
        except asyncio.CancelledError:
            with suppress(OSError):
                transport, _ = await connecting
                transport.abort()
            raise

    @property
    def is_made(self) -> bool:
        """Return whether `connect` has given the connection to its protocol."""
        return self._first is not None and self._first.is_made

    def take(self) -> Socket:
        """Give the socket away: the arrival counts as closed, and the caller closes the socket."""
        self._stop_waiting()
        sock, self._socket = self._socket, None
        assert sock is not None, "the arrival is closed"
        _low_water(sock, 1)
        return sock

    # -- inside --

    def _look(self) -> None:
        """Say that enough has come, or wait on."""
        sent = self.peek(self._wanted)
        if sent is not None and len(sent) < self._wanted and not self.has_left:
            # The kernel should not have called. It would call without end.
            self._pause_reading()
            self._timer = self._loop.call_later(_LOOK_AGAIN_S, self._listen_again)
            return
        then = self._then
        self._stop_waiting()
        if then is not None:
            then()

    def _listen_again(self) -> None:
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._look)

    def _pause_reading(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket)

    def _stop_waiting(self) -> None:
        if self._then is not None:
            self._then = None
            self._pause_reading()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_low_water(self, count: int) -> None:
        if self._socket is not None:
            _low_water(self._socket, count)


class _First(asyncio.Protocol):
    """Notes that a connection is made, and gives it its protocol."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self.is_made = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.is_made = True
        cast("asyncio.Transport", transport).set_protocol(self._protocol)
        self._protocol.connection_made(transport)


class ArrivalListener:
    """Accepts connections at `sockets`, which are bound, and calls `on_arrival` for each."""

    def __init__(
        self, sockets: list[socket.socket], on_arrival: Callable[[Arrival], None], backlog: int
    ) -> None:
        self.port = int(sockets[0].getsockname()[1])
        self._sockets = sockets
        self._on_arrival = on_arrival
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        self._timers: dict[socket.socket, asyncio.TimerHandle] = {}
        self._started = False
        self._accepted_s = 0.0

    async def start(self) -> None:
        """Begin to accept."""
        self._started = True
        for sock in self._sockets:
            sock.listen(self._backlog)
            self._loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Release the port. Idempotent."""
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            if (timer := self._timers.pop(sock, None)) is not None:
                timer.cancel()
            if self._started:
                self._loop.remove_reader(sock)
            sock.close()

    async def wait_closed(self) -> None:
        """Return at once: the port is free when `close` returns."""

    def _accept(self, listening: socket.socket) -> None:
        now_s = self._loop.time()
        count = int((now_s - self._accepted_s) * 1000)
        self._accepted_s = now_s
        for _ in range(min(max(count, _ACCEPTED_AT_ONCE), _ACCEPTED_AT_MOST)):
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _CANNOT_ACCEPT:
                    raise
                log.warning("no connection can be accepted", reason=error.strerror)
                self._loop.remove_reader(listening)
                self._timers[listening] = self._loop.call_later(
                    _ACCEPT_PAUSE_S, self._accept_again, listening
                )
                return
            sock.setblocking(False)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:  # the peer has reset it
                sock.close()
                continue
            self._on_arrival(Arrival(sock, peer))
            if not self._sockets:  # closed by the function that was called
                return

    def _accept_again(self, listening: socket.socket) -> None:
        del self._timers[listening]
        self._loop.add_reader(listening, self._accept, listening)


async def bound_sockets(
    host: str | None, port: int, *, shares_port: bool = False
) -> list[socket.socket]:
    """Return sockets for all addresses of `host`, with one port; `::` is one socket for both families.

    With `shares_port` other processes of this user may bind the port, too, and the kernel divides the
    connections among them. Raises OSError.
    """
    if host == "::":
        return [_bound(socket.AF_INET6, ("::", port), both_families=True, shares_port=shares_port)]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    bound: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            # A free port is the same for all addresses.
            number = bound[0].getsockname()[1] if bound else port
            where = (address[0], number, *address[2:])
            bound.append(_bound(family, where, shares_port=shares_port))
    except OSError:
        for sock in bound:
            sock.close()
        raise
    return bound


def _bound(
    family: int,
    address: tuple[Any, ...],
    *,
    both_families: bool = False,
    shares_port: bool = False,
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both_families else 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _low_water(sock: socket.socket, count: int) -> None:
    with suppress(OSError):  # the peer has reset the connection; the next reader learns of it
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
