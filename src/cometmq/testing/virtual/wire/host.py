"""The network as one simulated machine has it: its addresses, ports and listeners."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextvars import Context
from typing import Final

from cometmq.testing.virtual.loop import made_at
from cometmq.testing.virtual.wire.transport import VirtualTransport

LOOPBACK: Final = "127.0.0.1"
# The address of a listener that serves every address of its machine.
ANY: Final = "0.0.0.0"  # noqa: S104 - nobody is outside
_FIRST_PORT: Final = 32_768
_LAST_PORT: Final = 60_999


class VirtualListener:
    """Takes connections on one port, of which up to `backlog` wait to be accepted."""

    def __init__(
        self,
        host: Host,
        address: str,
        port: int,
        *,
        new_protocol: Callable[[], asyncio.Protocol],
        backlog: int,
        context: Context,
    ) -> None:
        self.port = port
        self.address = address
        self.context = context
        self._host = host
        self._new_protocol = new_protocol
        self._backlog = backlog
        self._waiting: dict[VirtualTransport, None] = {}
        self.made_at = made_at()
        self.accepts = False

    async def start(self) -> None:
        self.accepts = True

    def close(self) -> None:
        """Release the port; reset the connections that nobody has accepted."""
        self.accepts = False
        self._host.release(self)
        waiting, self._waiting = self._waiting, {}
        for transport in waiting:
            transport.abort()

    async def wait_closed(self) -> None:
        """Return at once: `close` has released the port."""

    @property
    def is_full(self) -> bool:
        return len(self._waiting) > self._backlog

    def take(self, loop: asyncio.AbstractEventLoop, transport: VirtualTransport) -> None:
        """Keep a connection until the process accepts it."""
        self._waiting[transport] = None
        loop.call_soon(self._accept, loop, transport, context=self.context)

    def _accept(self, loop: asyncio.AbstractEventLoop, transport: VirtualTransport) -> None:
        if self._waiting.pop(transport, self) is not None:  # closed meanwhile
            return
        try:
            protocol = self._new_protocol()
        except Exception as error:  # noqa: BLE001 - as asyncio does
            message = "Error on transport creation for incoming connection"
            loop.call_exception_handler({"message": message, "exception": error})
            transport.abort()
            return
        transport.begin(protocol)


class Host:
    """Knows which ports of a machine are taken, by whom."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_off = False
        # The ends of connections on this machine, in the order in which they were made.
        self.transports: dict[VirtualTransport, None] = {}
        self._listeners: dict[int, list[VirtualListener]] = {}
        self._local_ports: dict[int, int] = {}
        self._next_port = _FIRST_PORT

    @property
    def listeners(self) -> list[VirtualListener]:
        return [listener for of_port in self._listeners.values() for listener in of_port]

    def bind(self, address: str, port: int) -> int:
        """Return the port, a free one for 0. Raises OSError if it is taken."""
        port = port or self.free_port()
        for other in self._listeners.get(port, ()):
            if ANY in (address, other.address) or address == other.address:
                raise OSError(
                    errno.EADDRINUSE,
                    f"error while attempting to bind on address ({address!r}, {port}): "
                    "address already in use",
                )
        return port

    def add(self, listener: VirtualListener) -> None:
        self._listeners.setdefault(listener.port, []).append(listener)

    def release(self, listener: VirtualListener) -> None:
        of_port = self._listeners.get(listener.port, [])
        if listener in of_port:
            of_port.remove(listener)
        if not of_port:
            self._listeners.pop(listener.port, None)

    def release_all(self) -> None:
        """Release all ports, because the process that had them is gone."""
        self._listeners.clear()

    def listener(self, address: str, port: int) -> VirtualListener | None:
        """Return who accepts connections to an address of this machine."""
        for listener in self._listeners.get(port, ()):
            if listener.accepts and listener.address in (address, ANY):
                return listener
        return None

    def free_port(self) -> int:
        """Return the next port that nobody has. Raises OSError if all are taken."""
        for _ in range(_LAST_PORT - _FIRST_PORT + 1):
            port = self._next_port
            self._next_port = _FIRST_PORT if port == _LAST_PORT else port + 1
            if port not in self._listeners and port not in self._local_ports:
                return port
        raise OSError(errno.EADDRNOTAVAIL, f"no port of {self.address} is free")

    def join(self, transport: VirtualTransport) -> None:
        self.transports[transport] = None
        port = transport.sockname[1]
        self._local_ports[port] = self._local_ports.get(port, 0) + 1

    def leave(self, transport: VirtualTransport) -> None:
        if self.transports.pop(transport, self) is self:
            return
        port = transport.sockname[1]
        self._local_ports[port] -= 1
        if not self._local_ports[port]:
            del self._local_ports[port]
