"""Open many connections from one thread and do to a server what its worst clients do.

Sockets are driven by epoll and bytes only, so that the generator takes little of the machine.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

_LENGTHS: Final = struct.Struct(">II")
_CODE: Final = re.compile(rb'"code":(-?\d+)')
_FLAG: Final = re.compile(rb'"flag":(\d+)')
_NUMBERS: Final = re.compile(r"\d[\d.:]*")
# Remarks of refusals that are kept, each once whatever its numbers.
_KEPT_REMARKS: Final = 12
_READ_BYTES: Final = 1 << 18
_BACK_OFF_S: Final = 0.05


class Peer:
    """Is one connection of a swarm."""

    __slots__ = (
        "answered", "closed", "connection", "due", "feed", "in_flight", "reads", "received", "unsent",
    )  # fmt: skip

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.unsent = memoryview(b"")
        self.received = bytearray()
        self.in_flight = 0
        self.answered = 0
        self.reads = True
        self.closed = False
        self.feed: Iterator[bytes] | None = None
        self.due = 0.0


class Swarm:
    """Drives connections to one server and counts what it says to them."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._place = (host, int(port))
        self._epoll = select.epoll()
        self.peers: dict[int, Peer] = {}
        self.counts: Counter[str] = Counter()
        self.remarks: dict[str, str] = {}
        self.on_closed: Callable[[], None] | None = None
        self.on_answer: Callable[[Peer, bytes, bytes], None] | None = None

    def connect(self, source: str | None = None) -> Peer | None:
        """Return a new connection, or None and count why there is none."""
        connection = socket.socket()
        try:
            if source is not None:
                # The port is chosen when it connects: each address has all ports for itself.
                connection.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
                connection.bind((source, 0))
            connection.settimeout(5)
            connection.connect(self._place)
        except OSError as error:
            self.counts[f"not connected: {error.strerror or error}"] += 1
            connection.close()
            return None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        peer = self.peers[connection.fileno()] = Peer(connection)
        self._epoll.register(connection.fileno(), select.EPOLLIN)
        self.counts["connections"] += 1
        return peer

    def flood(self, peer: Peer, feed: Iterator[bytes], in_flight: int = 0) -> None:
        """Have a connection send what `feed` gives: all at once, or `in_flight` requests at a time."""
        peer.feed = feed
        peer.in_flight = in_flight
        if in_flight:
            self._push(peer, b"".join(next(feed, b"") for _ in range(in_flight)))
        else:
            self._mind(peer)

    def stop_reading(self, peer: Peer) -> None:
        peer.reads = False
        self._mind(peer)

    def run(self, seconds: float, step: Callable[[], None] | None = None) -> None:
        """Serve all connections; call `step` about a hundred times a second."""
        end = time.monotonic() + seconds
        stepped = 0.0
        while (now := time.monotonic()) < end:
            if step is not None and now - stepped > 0.01:
                stepped = now
                step()
            for fileno, event in self._epoll.poll(0.01):
                peer = self.peers.get(fileno)
                if peer is None:
                    continue
                if event & select.EPOLLOUT:
                    self._write(peer)
                if event & ~select.EPOLLOUT and not peer.closed:
                    self._read(peer)

    def close(self) -> None:
        for peer in list(self.peers.values()):
            self.drop(peer)

    def drop(self, peer: Peer) -> None:
        if not peer.closed:
            peer.closed = True
            fileno = peer.connection.fileno()
            self.peers.pop(fileno, None)
            self._epoll.unregister(fileno)
            peer.connection.close()

    def read_some(self, peer: Peer, size: int) -> None:
        """Read `size` bytes of a connection that otherwise reads nothing."""
        with contextlib.suppress(BlockingIOError):
            try:
                data = peer.connection.recv(size)
            except ConnectionError:
                data = b""
            self.counts["bytes read"] += len(data)
            if not data:
                self._lost(peer)

    # Inside

    def _push(self, peer: Peer, data: bytes) -> None:
        peer.unsent = memoryview(bytes(peer.unsent) + data if peer.unsent else data)
        self._write(peer)

    def _write(self, peer: Peer) -> None:
        try:
            if not peer.unsent and peer.feed is not None and not peer.in_flight:
                peer.unsent = memoryview(next(peer.feed, b""))
                if not peer.unsent:
                    peer.feed = None
            if peer.unsent:
                size = peer.connection.send(peer.unsent)
                self.counts["bytes sent"] += size
                peer.unsent = peer.unsent[size:]
        except BlockingIOError:
            pass
        except OSError:
            self._lost(peer)
            return
        self._mind(peer)

    def _mind(self, peer: Peer) -> None:
        if peer.closed:
            return
        pumps = peer.feed is not None and not peer.in_flight
        event = select.EPOLLIN if peer.reads else 0
        self._epoll.modify(
            peer.connection, event | (select.EPOLLOUT if peer.unsent or pumps else 0)
        )

    def _read(self, peer: Peer) -> None:
        try:
            data = peer.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost(peer)
            return
        received = peer.received
        received += data
        answered = at = 0
        while len(received) - at >= 8:
            length, header_length = _LENGTHS.unpack_from(received, at)
            if len(received) - at < 4 + length:
                break
            header = bytes(received[at + 8 : at + 8 + (header_length & 0xFFFFFF)])
            if self.on_answer is not None:
                self.on_answer(
                    peer, header, bytes(received[at + 8 + len(header) : at + 4 + length])
                )
            at += 4 + length
            flag = _FLAG.search(header)
            if flag is not None and int(flag[1]) & 1:
                answered += 1
                self._count(header)
            else:
                self.counts["requests of the server"] += 1
        del received[:at]
        peer.answered += answered
        if answered and peer.in_flight and peer.feed is not None:
            self._push(peer, b"".join(next(peer.feed, b"") for _ in range(answered)))

    def _count(self, header: bytes) -> None:
        match = _CODE.search(header)
        code = match[1].decode() if match else "?"
        self.counts[f"answers with code {code}"] += 1
        if code not in ("0", "19", "20", "21") and len(self.remarks) < _KEPT_REMARKS:
            remark = json.loads(header).get("remark") or ""
            self.remarks.setdefault(f"{code} {_NUMBERS.sub('N', remark)}"[:300], remark[:300])

    def _lost(self, peer: Peer) -> None:
        self.counts["closed by the server"] += 1
        self.drop(peer)
        if self.on_closed is not None:
            self.on_closed()
