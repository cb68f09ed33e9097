"""Connections and listeners, from a network that is passed as a parameter.

Servers and clients meet others only here, so a test can pass a network that lies in memory.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

P = TypeVar("P", bound=asyncio.Protocol)


class Listener(Protocol):
    """A place that others can connect to."""

    @property
    def port(self) -> int:
        """Return the port that was taken; it stays known after `close`."""

    async def start(self) -> None:
        """Accept connections, those too that came since the port was taken."""

    def close(self) -> None:
        """Give the port back. Connections that were accepted stay open. Idempotent."""

    async def wait_closed(self) -> None:
        """Wait until a closed listener has given its port back."""


class Network(Protocol):
    """Binds each connection to a protocol object that `new_protocol` makes.

    For the running loop. All failures are OSErrors.
    """

    async def connect(
        self, new_protocol: Callable[[], P], host: str, port: int, *, tls: ssl.SSLContext | None
    ) -> P:
        """Connect to `host:port` and return the protocol object of the connection."""

    async def listen(
        self,
        new_protocol: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
    ) -> Listener:
        """Take a port, a free one for 0, and accept nothing before the listener is started."""


class _TcpListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port = int(server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        await self._server.start_serving()

    def close(self) -> None:
        self._server.close()

    async def wait_closed(self) -> None:
        await self._server.wait_closed()


class TcpNetwork:
    """The network that the operating system offers."""

    async def connect(
        self, new_protocol: Callable[[], P], host: str, port: int, *, tls: ssl.SSLContext | None
    ) -> P:
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(new_protocol, host, port, ssl=tls)
        return protocol

    async def listen(
        self,
        new_protocol: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
        tls: ssl.SSLContext | None,
        handshake_timeout_s: float,
    ) -> Listener:
        server = await asyncio.get_running_loop().create_server(
            new_protocol,
            host,
            port,
            backlog=backlog,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else handshake_timeout_s,
            start_serving=False,
        )
        return _TcpListener(server)


TCP_NETWORK = TcpNetwork()
