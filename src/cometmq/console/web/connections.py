"""Hold a browser's connection within limits: how many there are, how slow a client may be, and how
many of its bytes are read at once.

A client that sends its request too slowly, does not read its answer or only keeps a connection open
loses it; otherwise a few machines could keep everybody else out. Clients that have not logged in
can send a body in chunks of one byte, or thousands of headers, and h11 takes some microseconds for
each: a read of 256 KiB would hold up all pages for a second. uvicorn has no such limits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from cometmq.console.languages import LANGUAGES, said_in
from cometmq.console.refusals import Refused
from cometmq.runtime.host.process_limits import descriptors_for_connections
from cometmq.runtime.rotation import LoopTurns
from cometmq.runtime.sockets.address_list import AddressList, plain_ip
from cometmq.runtime.sockets.addresses import network_of

MAX_CONNECTIONS: Final = 1000
# Connections of one IPv4 address or /64 of IPv6, with many people behind it. Clients of a trusted proxy
# are bounded by their requests, see `guard`.
MAX_OF_ADDRESS: Final = 500
# A request must have come whole within this time.
REQUEST_S: Final = 30.0
# A client that takes nothing of its answer for so long is given up, at the latest after twice this.
CHECK_S: Final = 10.0
# Browsers and proxies send some forty.
MAX_HEADERS: Final = 200
MAX_HEADER_BYTES: Final = 32 * 1024
# How many bytes are read in a turn of the loop: in chunks of one byte that takes two milliseconds.
_PIECE_BYTES: Final = 2048


class Refusal(NamedTuple):
    """Is the limit that keeps a connection out, with the reason and the remedy.

    `is_of_address` says that its own address has too many: no other one makes room for it.
    """

    limit: str
    reason: str
    is_of_address: bool = False


class _Flow(FlowControl):
    """Reads if neither uvicorn nor the connection has enough for now."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._is_full = self._is_held = False

    def pause_reading(self) -> None:
        self._is_full = True
        self._mind()

    def resume_reading(self) -> None:
        self._is_full = False
        self._mind()

    def hold(self, *, is_held: bool) -> None:
        """Say whether the connection has bytes that it has not read yet."""
        self._is_held = is_held
        self._mind()

    def _mind(self) -> None:
        pauses = self._is_full or self._is_held
        if pauses != self.read_paused:
            self.read_paused = pauses
            if pauses:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()


class Connection(H11Protocol):
    """Is a connection of a browser. It looks at itself every CHECK_S. For the loop's thread only."""

    check_s = CHECK_S
    request_s = REQUEST_S
    # Proxies, whose connections are not counted by their address.
    trusted: AddressList = AddressList("trusted_proxies", "")
    # Shared by all connections of a console.
    turns = LoopTurns()
    # Gets the name of each limit that was met.
    on_limit: Callable[[str], None] = staticmethod(lambda _: None)

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._timer: asyncio.TimerHandle | None = None
        # Since when it has waited for a request to come whole; None while it answers one.
        self._asked_s: float | None = None
        self._rests_s = 0.0
        self._unsent = 0
        # Bytes that have come and are not read yet; see `LoopTurns`.
        self._unread = bytearray()
        self._is_in_turns = False
        # The lines and bytes that have come of a head that is not whole yet.
        self._head_lines = self._head_bytes = 0
        self.peer_ip = ""
        self.network = ""
        # It is about to close, and does not count any more.
        self.makes_room = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's type, too
        """Serve the connection, or say which limit refuses it."""
        super().connection_made(transport)
        self.flow: _Flow = _Flow(transport)
        self._asked_s = self._rests_s = self.loop.time()
        self._timer = self.loop.call_later(self.check_s, self._check)
        if self.client:
            self.client = plain_ip(self.client[0]), self.client[1]
            self.peer_ip = self.client[0]
        self.network = network_of(self.peer_ip)
        if refused := self._too_many():
            self.on_limit(refused.limit)
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE,
                Refused.CONNECTION(reason=refused.reason),
            )
        elif self.config.is_ssl and self.scheme == "http":
            self._refuse(HTTPStatus.BAD_REQUEST, Refused.TLS_ONLY())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._unread.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # it was refused
        is_short = len(data) <= _PIECE_BYTES and not self._unread and not self._is_answering
        if is_short and self.turns.take():
            self._read(data)
            return
        self._unread += data
        self.flow.hold(is_held=True)
        # uvicorn may have had it read all the same, and TLS brings what the kernel has given it.
        self.transport.pause_reading()
        self._go_on()

    def read_piece(self) -> None:
        """Read some of the bytes that have come; wait for another turn if there are more."""
        self._is_in_turns = False
        if self.transport.is_closing():
            self._unread.clear()
            return
        if not self._is_answering:
            piece = bytes(self._unread[:_PIECE_BYTES])
            del self._unread[:_PIECE_BYTES]
            self._read(piece)
        self._go_on()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._rests_s = self.loop.time()
        self._go_on()

    @property
    def _is_answering(self) -> bool:
        """Whether a request has come whole and its answer has not left: the next one waits."""
        return self.conn.their_state is h11.DONE

    def _go_on(self) -> None:
        if not self._unread:
            self.flow.hold(is_held=False)
        elif not self._is_in_turns and not self._is_answering:
            self._is_in_turns = True
            self.turns.join(self.network, self.read_piece)

    def _read(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE:
            # The size of the head alone: a body may begin in the same piece.
            end = data.find(b"\n\r\n")
            self._head_lines += data.count(b"\n", 0, end if end >= 0 else len(data))
            self._head_bytes += end if end >= 0 else len(data)
            if self._head_lines > MAX_HEADERS:
                self._refuse_head(Refused.HEADERS(), "MAX_HEADERS", MAX_HEADERS)
                return
            if self._head_bytes > MAX_HEADER_BYTES:
                self._refuse_head(Refused.HEADER_BYTES(), "MAX_HEADER_BYTES", MAX_HEADER_BYTES)
                return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_lines = self._head_bytes = 0
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._asked_s = None
        elif self._asked_s is None:
            self._asked_s = self.loop.time()

    def resume_writing(self) -> None:
        """Go on sending: the client has taken most of the waiting bytes, so the bytes that wait now
        are new.
        """
        self._unsent = 0
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, also when an answer is under way."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    @property
    def waits_since(self) -> float | None:
        """When it was opened, or its last answer was whole, by the loop's clock; None while it
        answers.
        """
        return None if self._is_answering else self._rests_s

    def make_room(self) -> None:
        """End the connection, whatever its client has sent: another one needs its place."""
        self.makes_room = True
        self.transport.abort()

    def _too_many(self) -> Refusal | None:
        sock = self.transport.get_extra_info("socket")
        connections: set[Any] = self.connections  # uvicorn's type names all of its protocols
        others: set[Connection] = connections - {self}
        return room_for(others, (), self.peer_ip, sock.fileno() if sock else -1, self.trusted)

    def _refuse_head(self, unit: str, limit: str, most: int) -> None:
        self.on_limit(limit)
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            Refused.HEAD(unit=unit, limit=limit, most=most),
        )

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        """Answer in every language, because the request is not read."""
        said = dict.fromkeys(said_in(language, text) for language in LANGUAGES)
        body = "".join(f"{each}\n" for each in said).encode()
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
        if not is_over and (is_stuck or waited_s > self.request_s):
            self.on_limit("CHECK_S" if is_stuck else "REQUEST_S")
        if is_over or is_stuck or waited_s > self.request_s:
            self.transport.abort()
            return
        self._unsent = unsent
        self._timer = self.loop.call_later(self.check_s, self._check)


def room_for(
    served: Collection[Connection],
    waiting: Collection[str],
    peer_ip: str,
    descriptor: int,
    trusted: AddressList,
) -> Refusal | None:
    """Return the limit that keeps another connection of an address out, None if there is none.

    `served` are the other connections, `waiting` the addresses of those that do not speak TLS yet. If
    there are too many in all, one of the network that has most of them makes room.
    """
    served = [each for each in served if not each.makes_room]
    network = network_of(peer_ip)
    if peer_ip not in trusted:
        same = sum(each.network == network for each in served)
        same += sum(network_of(each) == network for each in waiting)
        if same >= MAX_OF_ADDRESS:
            return Refusal(
                "MAX_OF_ADDRESS",
                Refused.CONNECTIONS_OF_ADDRESS(count=same, address=peer_ip, most=MAX_OF_ADDRESS),
                is_of_address=True,
            )
    if len(served) + len(waiting) >= MAX_CONNECTIONS and not _made_room(served, network, trusted):
        return Refusal(
            "MAX_CONNECTIONS",
            Refused.CONNECTIONS(count=len(served) + len(waiting), most=MAX_CONNECTIONS),
        )
    below, limit = descriptors_for_connections()
    if descriptor >= below:
        return Refusal(
            "RLIMIT_NOFILE",
            Refused.OPEN_FILES(limit=limit, kept=limit - below),
        )
    return None


def _made_room(served: Collection[Connection], newcomer: str, trusted: AddressList) -> bool:
    """Close the connection that has waited longest for its next request, of the network with most
    connections, and return True; False if the newcomer's network would have as many then.

    A machine with an IPv4 and an IPv6 address has all connections that there may be.
    """
    counts = Counter(each.network for each in served if each.peer_ip not in trusted)
    if not counts:
        return False
    network, most = counts.most_common(1)[0]
    if most < counts[newcomer] + 2:
        return False
    idle = [each for each in served if each.network == network and each.waits_since is not None]
    if not idle:
        return False
    longest = min(idle, key=lambda each: each.waits_since or 0.0)
    longest.make_room()
    return True
