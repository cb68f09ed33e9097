"""Accepts connections and serves their requests by handlers (Java: NettyRemotingServer)."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from typing import Final

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
from cometmq.remoting.holdings import MEASURE_PERIOD_S, SLOW_BYTES_PER_S, Holdings
from cometmq.remoting.protected import ProtectedMode, Strangers
from cometmq.runtime.addresses import join_address
from cometmq.runtime.limits import descriptors_for_connections
from cometmq.runtime.network import TCP_NETWORK, Listener, Network
from cometmq.runtime.tasks import TaskOwner, quiet_if

log = structlog.get_logger(__name__)

_REFUSALS_TOLD_EVERY_S: Final = 10.0
# A connection may stay silent for this long, since clients connect in order to ask at once.
_SILENT_AT_LEAST_S: Final = 1.0
_HANDSHAKE_AT_MOST_S: Final = 10.0


class RemotingServer:
    """Serves `handlers` on `host:port`; port 0 takes a free one.

    `on_connect` and `on_disconnect` are called on the loop for each connection. The server closes a
    connection that neither reads nor writes for `idle_timeout_s`, one that has sent nothing at all
    after `silent_timeout_s`, and one whose frame does not arrive in time (see `ConnectionLimits`).
    Above `max_connections`, or when few file descriptors are left, a new connection takes the place
    of the one that has been silent for longest, or is closed at once. `holdings` bounds what all
    connections hold; several listeners may share it. With `ssl` every connection is encrypted, and
    is closed if its handshake takes longer than `silent_timeout_s` or ten seconds. With `protection`
    peers that it does not admit get a refusal of each request. The port is taken from `network`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handlers: Handlers,
        *,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        serialize_type: SerializeType = SerializeType.JSON,
        holdings: Holdings | None = None,
        idle_timeout_s: float = 120.0,
        silent_timeout_s: float = 60.0,
        max_connections: int = 50_000,
        backlog: int = 1024,
        ssl: ssl.SSLContext | None = None,
        on_connect: Callable[[Connection], None] | None = None,
        on_disconnect: Callable[[Connection], None] | None = None,
        protection: ProtectedMode | None = None,
        network: Network = TCP_NETWORK,
    ) -> None:
        # A dict, because it has an order: a set would close them in that of their addresses.
        self.connections: dict[Connection, None] = {}
        self.holdings = holdings or Holdings()
        self._host = host
        self._port = port
        self._handlers = handlers
        self._limits = limits
        self._serialize_type = serialize_type
        self._idle_timeout_s = idle_timeout_s
        self._silent_timeout_s = min(silent_timeout_s, idle_timeout_s)
        self._max_connections = max_connections
        self._backlog = backlog
        self._ssl = ssl
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._owner = TaskOwner("remoting-server")
        self._turn = WriteTurn()
        self._protection = protection
        self._strangers = None if protection is None else Strangers(protection)
        self._network = network
        self._listener: Listener | None = None
        self._closing = False
        # Silent connections in the order in which they came. Those that have sent something since
        # are taken out when the server comes across them.
        self._silent: dict[Connection, None] = {}
        self._most_descriptors = self._descriptor_limit = 0
        self._refused = 0
        self._refusal_told_at = -_REFUSALS_TOLD_EVERY_S
        self._swept_at = self._sweep_period_s = 0.0

    @property
    def port(self) -> int:
        """Return the port, which is known after `bind` and stays known after `close`."""
        assert self._listener is not None, "the server is not bound"
        return self._listener.port

    async def bind(self) -> None:
        """Take the port without listening yet, so that callers can first use its number.

        Raises ConfigError when the address is taken or does not belong to this machine.
        """
        # During its handshake a connection does not count towards any limit.
        handshake_timeout_s = min(_HANDSHAKE_AT_MOST_S, self._silent_timeout_s)
        try:
            self._listener = await self._network.listen(
                self._new_connection,
                self._host,
                self._port,
                backlog=self._backlog,
                tls=self._ssl,
                handshake_timeout_s=handshake_timeout_s,
            )
        except OSError as error:
            raise ConfigError(_listen_fault(self._host, self._port, error)) from error

    async def start(self) -> None:
        """Listen; call `bind` first if the caller has not."""
        if self._listener is None:
            await self.bind()
        assert self._listener is not None
        self._most_descriptors, self._descriptor_limit = descriptors_for_connections()
        await self._listener.start()
        shortest_s = min(
            self._idle_timeout_s, self._silent_timeout_s, self._limits.unfinished_frame_s
        )
        self._sweep_period_s = min(10.0, shortest_s / 4)
        self._swept_at = asyncio.get_running_loop().time()
        self._owner.every(self._sweep_period_s, self._sweep, "sweep")
        self._owner.every(
            MEASURE_PERIOD_S,
            self.holdings.measure,
            "measure-holdings",
            quiet_s=lambda: quiet_if(self.holdings.is_idle),
        )

    async def close(self) -> None:
        """Stop listening, close all connections, cancel the tasks of requests. Idempotent."""
        self._closing = True
        if self._listener is not None:
            self._listener.close()
        await self._owner.close()
        await close_all(self.connections)
        if self._strangers is not None:
            await close_all(self._strangers.connections)
        if self._listener is not None:
            await self._listener.wait_closed()

    def _new_connection(self) -> Connection:
        return Connection(
            self._handlers,
            self._owner,
            limits=self._limits,
            serialize_type=self._serialize_type,
            server_side=True,
            turn=self._turn,
            holdings=self.holdings,
            on_connect=self._connected,
        )

    def _connected(self, connection: Connection) -> None:
        if self._closing:  # accepted in the same turn of the loop that began to close
            connection.abort()
            return
        if self._strangers is not None and not self._is_admitted(connection):
            self._strangers.take(connection)
            return
        if not self._has_room(connection) and not self._drop_silent():
            self._refuse(connection)
            return
        self._silent[connection] = None
        self.connections[connection] = None
        connection.on_close.append(self._disconnected)
        if self._on_connect is not None:
            self._on_connect(connection)

    def _is_admitted(self, connection: Connection) -> bool:
        assert self._protection is not None, "without it nobody asks"
        return self._protection.admits(connection.peer_ip, connection.local_ip)

    def _disconnected(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._silent.pop(connection, None)
        if self._on_disconnect is not None:
            self._on_disconnect(connection)

    def _has_room(self, connection: Connection) -> bool:
        if len(self.connections) >= self._max_connections:
            return False
        return connection.descriptor < self._most_descriptors

    def _drop_silent(self) -> bool:
        """Close the connection that has been silent for longest; return whether there was one."""
        silent_before = asyncio.get_running_loop().time() - _SILENT_AT_LEAST_S
        while self._silent:
            oldest = next(iter(self._silent))
            if oldest.heard:
                del self._silent[oldest]
                continue
            if oldest.made_at > silent_before:
                break
            del self._silent[oldest]
            log.warning("silent connection closed: others need its place", peer=oldest.peer)
            oldest.abort()
            return True
        return False

    def _refuse(self, connection: Connection) -> None:
        """Close a new connection; log one line for all that are refused within ten seconds."""
        connection.abort()
        self._refused += 1
        now = asyncio.get_running_loop().time()
        if now - self._refusal_told_at < _REFUSALS_TOLD_EVERY_S:
            return
        about = {"peer": connection.peer, "refused": self._refused, "open": len(self.connections)}
        if len(self.connections) >= self._max_connections:
            log.warning("connections refused: too many", limit=self._max_connections, **about)
        else:
            log.warning(
                "connections refused: too few file descriptors are left",
                limit=self._descriptor_limit,
                kept_for_files=self._descriptor_limit - self._most_descriptors,
                remedy="raise the limit (ulimit -n, or LimitNOFILE in the systemd unit)",
                **about,
            )
        self._refused = 0
        self._refusal_told_at = now

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        late = now - self._swept_at > max(1.0, 3 * self._sweep_period_s)
        self._swept_at = now
        if late:  # this process stood still and has not read yet what peers sent meanwhile
            return
        if self._strangers is not None:
            self._strangers.sweep(now)
        for connection in list(self.connections):
            if connection.is_overdue(now):
                self._cut_overdue(connection)
                continue
            idle_s = now - connection.last_active
            if idle_s <= (self._idle_timeout_s if connection.heard else self._silent_timeout_s):
                continue
            if connection.closed:  # but its peer does not read the rest of the answers
                connection.abort()
            else:
                log.info("idle connection closed", peer=connection.peer, heard=connection.heard)
                connection.close()

    def _cut_overdue(self, connection: Connection) -> None:
        limit_s = self._limits.unfinished_frame_s
        log.warning(
            "connection closed: its frame does not end",
            peer=connection.peer,
            held=connection.holding.received,
            limit=f"unfinishedFrameTimeoutSeconds={limit_s:g}",
            remedy=f"send at least {SLOW_BYTES_PER_S} bytes a second, or raise the limit",
        )
        connection.cut(
            f"the frame did not end within unfinishedFrameTimeoutSeconds={limit_s:g} and a second "
            f"more for each {SLOW_BYTES_PER_S} bytes; send it faster, or raise the limit"
        )


def _listen_fault(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot listen on {join_address(host, port)}: another process has the port; "
            "stop it or set another listenPort"
        )
    return f"cannot listen on {join_address(host, port)}: {error.strerror or error}"
