"""Connect two protocol objects of one process without a socket.

Each end is a transport. The bytes that one end writes are copied, because stores reuse the memory that answers lie
in, and reach the other end's protocol in the next turn of the loop. A protocol that pauses reading lets the bytes
wait, and the writer's protocol is asked to pause once more than its limit wait, as with a socket.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from cometmq.runtime.sockets.arrivals import Arrival
from cometmq.runtime.sockets.network import Listener, Network

P = TypeVar("P", bound=asyncio.Protocol)

# As asyncio has them.
_HIGH_BYTES: Final = 64 * 1024
# As many bytes as a loop reads from a socket before others have their turn.
_MOST_READ_BYTES: Final = 256 * 1024


class TransportWithin(asyncio.Transport):
    """Is one end of a connection within the process. For the loop's thread only."""

    def __init__(
        self, protocol: asyncio.Protocol, own: tuple[str, int], far: tuple[str, int]
    ) -> None:
        super().__init__({"sockname": own, "peername": far})
        self.far: TransportWithin
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        # Bytes from the other end that the protocol has not got.
        self._inbox: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.far_has_closed = False
        self._is_reading = True
        self._is_closing = False
        self._is_lost = False
        self._read_due = False
        self._high, self._low = _HIGH_BYTES, _HIGH_BYTES // 4
        self._has_paused = False

    # asyncio.Transport

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and not self._is_closing:
            self.far.takes(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.far.waiting_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.wake()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close once the other end has read what was written."""
        if not self._is_closing:
            self._is_closing = True
            self._drop()
            self.far.far_has_closed = True
            self.far.wake()
            self._lose(None)

    def abort(self) -> None:
        """Close at once; what the other end has not read is lost."""
        self._is_closing = True
        self._drop()
        self._lose(None)
        self.far.is_reset()

    # Called by the other end, and by `connect_within`

    def begin(self) -> None:
        """Give the connection to the protocol."""
        self._protocol.connection_made(self)

    def takes(self, data: bytes) -> None:
        if self._is_closing:
            return
        self._inbox.append(data)
        self.waiting_bytes += len(data)
        self.far.pauses_if_full()
        self.wake()

    def pauses_if_full(self) -> None:
        if not self._has_paused and self.get_write_buffer_size() > self._high:
            self._has_paused = True
            self._protocol.pause_writing()

    def drains(self) -> None:
        if self._has_paused and self.get_write_buffer_size() <= self._low:
            self._has_paused = False
            if not self._is_closing:
                self._protocol.resume_writing()

    def wake(self) -> None:
        if self._read_due or self._is_lost or not (self._inbox or self.far_has_closed):
            return
        if self.is_reading():
            self._read_due = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._read_due = False
        if not self.is_reading() or self._is_lost:
            return
        if not self._inbox:
            self._protocol.eof_received()
            self.close()
            return
        data = self._next()
        self.far.drains()
        try:
            self._protocol.data_received(data)
        except Exception as error:  # noqa: BLE001 - as asyncio does
            self._loop.call_exception_handler(
                {
                    "message": "Fatal error: protocol.data_received() call failed.",
                    "exception": error,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
            self.abort()
        self.wake()

    def _next(self) -> bytes:
        """Return what came, a part of it if it is much."""
        if len(self._inbox) == 1:
            data = self._inbox.popleft()
        else:
            data = b"".join(self._inbox)
            self._inbox.clear()
        if len(data) > _MOST_READ_BYTES:
            self._inbox.appendleft(data[_MOST_READ_BYTES:])
            data = data[:_MOST_READ_BYTES]
        self.waiting_bytes -= len(data)
        return data

    def _drop(self) -> None:
        self._inbox.clear()
        self.waiting_bytes = 0
        self.far.drains()

    def is_reset(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self._drop()
            self._lose(ConnectionResetError("the other end was closed"))

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._loop.call_soon(self._protocol.connection_lost, error)


def connect_within(one: asyncio.Protocol, other: asyncio.Protocol) -> None:
    """Connect two protocol objects; both see a peer on this machine, without a port."""
    here = ("127.0.0.1", 0)
    ends = TransportWithin(one, here, here), TransportWithin(other, here, here)
    ends[0].far, ends[1].far = ends[1], ends[0]
    for end in ends:
        end.begin()


class NetworkWithin:
    """Is a network on which this process serves one address itself.

    A connection to an address for which `is_own` is true leads to a protocol object that `serve` makes, without
    socket and TLS. Everything else goes through the network beneath.
    """

    def __init__(
        self,
        beneath: Network,
        is_own: Callable[[str, int], bool],
        serve: Callable[[], asyncio.Protocol],
    ) -> None:
        self._beneath = beneath
        self._is_own = is_own
        self._serve = serve

    async def connect(
        self, new_protocol: Callable[[], P], host: str, port: int, *, tls: ssl.SSLContext | None
    ) -> P:
        if not self._is_own(host, port):
            return await self._beneath.connect(new_protocol, host, port, tls=tls)
        protocol = new_protocol()
        connect_within(self._serve(), protocol)
        return protocol

    async def listen(
        self,
        new_protocol: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
    ) -> Listener:
        return await self._beneath.listen(new_protocol, host, port, backlog=backlog)

    async def accept(
        self, on_arrival: Callable[[Arrival], None], host: str, port: int, *, backlog: int
    ) -> Listener:
        return await self._beneath.accept(on_arrival, host, port, backlog=backlog)

    async def resolve(self, host: str) -> str:
        return await self._beneath.resolve(host)

    def own_address(self, host: str, port: int) -> str:
        return self._beneath.own_address(host, port)
