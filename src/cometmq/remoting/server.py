"""A listening socket whose connections share one table of handlers (Java: NettyRemotingServer)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import structlog

from cometmq.errors import ConfigError
from cometmq.protocol.frame import SerializeType
from cometmq.remoting.connection import (
    DEFAULT_LIMITS,
    Connection,
    ConnectionLimits,
    WriteTurn,
    close_all,
)
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.tasks import TaskOwner

log = structlog.get_logger(__name__)


class RemotingServer:
    """Serves `handlers` on `host:port`; port 0 takes a free one.

    `on_connect` and `on_disconnect` are called on the loop for each connection. A connection that
    neither reads nor writes for `idle_timeout_s` is closed; one above `max_connections` at once.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handlers: Handlers,
        *,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        serialize_type: SerializeType = SerializeType.JSON,
        idle_timeout_s: float = 120.0,
        max_connections: int = 50_000,
        backlog: int = 1024,
        on_connect: Callable[[Connection], None] | None = None,
        on_disconnect: Callable[[Connection], None] | None = None,
    ) -> None:
        self.connections: set[Connection] = set()
        self._host = host
        self._port = port
        self._handlers = handlers
        self._limits = limits
        self._serialize_type = serialize_type
        self._idle_timeout_s = idle_timeout_s
        self._max_connections = max_connections
        self._backlog = backlog
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._owner = TaskOwner("remoting-server")
        self._turn = WriteTurn()
        self._server: asyncio.Server | None = None
        self._bound_port = 0
        self._closing = False

    @property
    def port(self) -> int:
        """The port of the socket; known after `bind`, and still after `close`."""
        assert self._bound_port, "the server is not bound"
        return self._bound_port

    async def bind(self) -> None:
        """Take the port without listening yet: what needs its number can be made ready first.

        Raises ConfigError when the address is taken or not ours.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._new_connection,
                self._host,
                self._port,
                backlog=self._backlog,
                start_serving=False,
            )
        except OSError as error:
            raise ConfigError(_listen_fault(self._host, self._port, error)) from error
        self._bound_port = int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Listen; binds first if `bind` was not called."""
        if self._server is None:
            await self.bind()
        assert self._server is not None
        await self._server.start_serving()
        self._owner.every(
            min(10.0, self._idle_timeout_s / 4), self._close_idle_connections, "idle-sweep"
        )

    async def close(self) -> None:
        """Stop listening, close every connection, end the tasks of running requests. Idempotent."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        await self._owner.close()
        await close_all(self.connections)
        if self._server is not None:
            await self._server.wait_closed()

    def _new_connection(self) -> Connection:
        return Connection(
            self._handlers,
            self._owner,
            limits=self._limits,
            serialize_type=self._serialize_type,
            server_side=True,
            turn=self._turn,
            on_connect=self._connected,
        )

    def _connected(self, connection: Connection) -> None:
        if self._closing:  # accepted in the same turn of the loop that began to close
            connection.abort()
            return
        if len(self.connections) >= self._max_connections:
            log.warning(
                "connection refused: too many", peer=connection.peer, limit=self._max_connections
            )
            connection.abort()
            return
        self.connections.add(connection)
        connection.on_close.append(self._disconnected)
        if self._on_connect is not None:
            self._on_connect(connection)

    def _disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._on_disconnect is not None:
            self._on_disconnect(connection)

    def _close_idle_connections(self) -> None:
        limit = asyncio.get_running_loop().time() - self._idle_timeout_s
        for connection in list(self.connections):
            if connection.last_active >= limit:
                continue
            if connection.closed:  # and its peer does not read what is left to be sent
                connection.abort()
            else:
                log.info("idle connection closed", peer=connection.peer)
                connection.close()


def _listen_fault(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot listen on {host}:{port}: another process has the port; "
            "stop it or set another listenPort"
        )
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
