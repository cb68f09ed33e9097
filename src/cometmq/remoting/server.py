"""Accept connections and serve their requests by handlers (Java: NettyRemotingServer)."""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.logs.rare_line import RareLine
from cometmq.protocol.frame import SerializeType
from cometmq.remoting.connection import (
    DEFAULT_LIMITS,
    Connection,
    ConnectionLimits,
    close_all,
)
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.holdings import MEASURE_PERIOD_S, SLOW_BYTES_PER_S, Holdings
from cometmq.remoting.protected import ProtectedMode, Strangers
from cometmq.remoting.turns import ServingTurns
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.host.process_limits import descriptors_for_connections
from cometmq.runtime.sockets.addresses import join_address, network_of
from cometmq.runtime.sockets.arrivals import Arrival
from cometmq.runtime.sockets.network import TCP_NETWORK, Listener, Network
from cometmq.runtime.tasks import OnDemand, TaskOwner
from cometmq.tls.handshakes import Door

if TYPE_CHECKING:
    from cometmq.tls.server import ServerTls

log = get_logger(__name__)

# A connection that has sent nothing at all is closed after this time.
SILENT_TIMEOUT_S: Final = 60.0
DEFAULT_CONNECTIONS: Final = 50_000
DEFAULT_CONNECTIONS_PER_ADDRESS: Final = 20_000
# A connection may stay silent for this long, since clients connect in order to ask at once.
_SILENT_AT_LEAST_S: Final = 1.0


class ConnectionCounts:
    """Counts the connections of a server, or of several listeners, in all and by their addresses.

    One address is the range of one subscriber: of IPv6 a whole /64, because otherwise one machine
    could take all connections.

    `max_in_all` and `max_per_address` may be changed; 0 is no limit per address. For the loop's
    thread only.
    """

    def __init__(
        self,
        max_in_all: int = DEFAULT_CONNECTIONS,
        max_per_address: int = DEFAULT_CONNECTIONS_PER_ADDRESS,
    ) -> None:
        self.max_in_all = max_in_all
        self.max_per_address = max_per_address
        self.taken = 0
        self._by_address: dict[str, int] = {}

    def of(self, address: str) -> int:
        """Return how many connections come from an address."""
        return self._by_address.get(network_of(address), 0)

    def take(self, address: str) -> None:
        self.taken += 1
        network = network_of(address)
        self._by_address[network] = self._by_address.get(network, 0) + 1

    def free(self, address: str) -> None:
        self.taken -= 1
        network = network_of(address)
        self._by_address[network] -= 1
        if not self._by_address[network]:
            del self._by_address[network]


class RemotingServer:
    """Serves `handlers` on `host:port`; port 0 takes a free one.

    `on_connect` and `on_disconnect` are called on the loop for each connection. The server closes a
    connection that neither reads nor writes for `idle_timeout_s`, one that has sent nothing at all
    after `silent_timeout_s`, and one whose frame does not arrive in time (see `ConnectionLimits`).
    When a limit of `counts` is reached, or few file descriptors are left, a new connection takes
    the place of the one that has been silent for longest. If there is none, the new one is closed
    with an answer that gives the reason. `holdings` bounds what all connections hold; several
    listeners may share it, and `counts`. With `tls`, whose certificates are loaded, it serves TLS
    as its mode says, and connections have a place from the moment when they are accepted. With
    `protection` peers that it does not admit get a refusal of each request. The port is taken from
    `network`, and `monotonic` says how long requests take.
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
        silent_timeout_s: float = SILENT_TIMEOUT_S,
        counts: ConnectionCounts | None = None,
        backlog: int = 1024,
        tls: ServerTls | None = None,
        on_connect: Callable[[Connection], None] | None = None,
        on_disconnect: Callable[[Connection], None] | None = None,
        protection: ProtectedMode | None = None,
        network: Network = TCP_NETWORK,
        monotonic: Callable[[], float] = SYSTEM_CLOCK.monotonic,
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
        self._counts = counts or ConnectionCounts()
        self._backlog = backlog
        self._tls = tls
        self._door: Door | None = None
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._owner = TaskOwner("remoting-server")
        self._turns = ServingTurns(monotonic)
        self._protection = protection
        self._strangers = None if protection is None else Strangers(protection)
        self._network = network
        self._listener: Listener | None = None
        self._closing = False
        # Silent connections in the order in which they came. Connections that have sent something since
        # are taken out when the server comes across them.
        self._silent: dict[Connection, None] = {}
        self._most_descriptors = self._descriptor_limit = 0
        self._refusals = RareLine()
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
        try:
            if self._tls is None or self._tls.mode == "disabled":
                self._listener = await self._network.listen(
                    self.new_connection, self._host, self._port, backlog=self._backlog
                )
            else:
                self._listener = await self._listen_by_door(self._tls)
        except OSError as error:
            raise ConfigError(_listen_fault(self._host, self._port, error)) from error

    async def _listen_by_door(self, tls: ServerTls) -> Listener:
        self._door = Door(
            tls,
            mode=tls.mode,
            admit=self._admit,
            on_leave=self._leaves_door,
            is_stranger=self._is_stranger,
            on_stranger=self._note_stranger,
            on_limit=self._handlers.limit_hits.hit,
            new_protocol=lambda _: self.new_connection(),
            silent_timeout_s=self._silent_timeout_s,
            owner=self._owner,
        )
        return await self._network.accept(
            self._door.arrived, self._host, self._port, backlog=self._backlog
        )

    async def start(self) -> None:
        """Listen; call `bind` first if the caller has not. Raises ConfigError if the port cannot be had."""
        if self._listener is None:
            await self.bind()
        assert self._listener is not None
        self._most_descriptors, self._descriptor_limit = descriptors_for_connections()
        try:
            await self._listener.start()
        except OSError as error:
            # Two processes may bind a port at the same time, and the second one to listen gets none.
            raise ConfigError(_listen_fault(self._host, self._listener.port, error)) from error
        shortest_s = min(
            self._idle_timeout_s, self._silent_timeout_s, self._limits.unfinished_frame_s
        )
        self._sweep_period_s = min(10.0, shortest_s / 4)
        self._swept_at = asyncio.get_running_loop().time()
        self._owner.every(self._sweep_period_s, self._sweep, "sweep")
        holdings = self.holdings
        measuring = OnDemand(self._owner, lambda: math.inf if holdings.is_idle else 0.0)
        holdings.on_use.append(measuring.arm)
        measuring.every(MEASURE_PERIOD_S, holdings.measure, "measure-holdings")

    async def close(self) -> None:
        """Stop listening, close all connections, cancel the tasks of requests. Idempotent."""
        self._closing = True
        if self._listener is not None:
            self._listener.close()
        if self._door is not None:
            self._door.close()
        await self._owner.close()
        await close_all(self.connections)
        if self._strangers is not None:
            await close_all(self._strangers.connections)
        if self._listener is not None:
            await self._listener.wait_closed()

    def new_connection(self) -> Connection:
        """Return a protocol object that serves its transport, whichever way that comes."""
        return Connection(
            self._handlers,
            self._owner,
            limits=self._limits,
            serialize_type=self._serialize_type,
            turns=self._turns,
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
        if not self._admits(connection):
            return
        self._counts.take(connection.peer_ip)
        self._silent[connection] = None
        self.connections[connection] = None
        connection.on_close.append(self._disconnected)
        if self._on_connect is not None:
            self._on_connect(connection)

    def _admit(self, arrival: Arrival) -> bool:
        """Return whether there is room for a connection that was just accepted."""
        if self._closing:
            return False
        full = self._no_place(arrival.peer_ip, arrival.descriptor)
        if full is None:
            self._counts.take(arrival.peer_ip)
            return True
        limit, reason = full
        self._handlers.limit_hits.hit(limit)
        self._report_refusal(arrival.peer, reason)
        return False

    def _leaves_door(self, arrival: Arrival) -> None:
        """Free a place: the connection is closed, or takes one as any that is served."""
        self._counts.free(arrival.peer_ip)

    def _is_stranger(self, arrival: Arrival) -> bool:
        """Return whether the peer of a connection that was just accepted is not served."""
        protection = self._protection
        return protection is not None and not protection.admits(arrival.peer_ip, arrival.local_ip)

    def _note_stranger(self, arrival: Arrival) -> None:
        assert self._protection is not None, "without it nobody is a stranger"
        self._protection.note_refusal(arrival.peer)

    def _is_admitted(self, connection: Connection) -> bool:
        assert self._protection is not None, "without it nobody asks"
        return self._protection.admits(connection.peer_ip, connection.local_ip)

    def _disconnected(self, connection: Connection) -> None:
        self._counts.free(connection.peer_ip)
        self.connections.pop(connection, None)
        self._silent.pop(connection, None)
        if self._on_disconnect is not None:
            self._on_disconnect(connection)

    @property
    def open_count(self) -> int:
        """Return how many connections are open, with those that are not served yet."""
        return len(self.connections) + (0 if self._door is None else len(self._door.guests))

    def _admits(self, connection: Connection) -> bool:
        """Return whether there is a place for a new connection; if not, turn it away."""
        full = self._no_place(connection.peer_ip, connection.descriptor)
        if full is None:
            return True
        limit, reason = full
        connection.turn_away(reason, limit=limit)
        self._report_refusal(connection.peer, reason)
        return False

    def _no_place(self, address: str, descriptor: int) -> tuple[str, str] | None:
        """Return the limit, and a text, that keeps a new connection out; None if it has a place.

        The connection that has been silent for longest makes room.
        """
        counts = self._counts
        hits = self._handlers.limit_hits
        if 0 < counts.max_per_address <= counts.of(address):
            return (
                "maxConnectionsPerAddress",
                (
                    f"{counts.of(address)} connections from {network_of(address)} are open, the limit "
                    f"maxConnectionsPerAddress is {counts.max_per_address}; close some, use more "
                    "addresses, or raise it"
                ),
            )
        if counts.taken >= counts.max_in_all:
            if self._drop_silent():
                hits.hit("maxConnections")
                return None
            return (
                "maxConnections",
                (
                    f"{counts.taken} connections are open, the limit maxConnections is "
                    f"{counts.max_in_all}; try again later, or raise it"
                ),
            )
        if descriptor >= self._most_descriptors:
            if self._drop_silent():
                hits.hit("RLIMIT_NOFILE")
                return None
            return (
                "RLIMIT_NOFILE",
                (
                    f"{counts.taken} connections are open and too few file descriptors are left: the "
                    f"limit RLIMIT_NOFILE is {self._descriptor_limit}, of which "
                    f"{self._descriptor_limit - self._most_descriptors} are kept for files; raise the "
                    "limit (ulimit -n, or LimitNOFILE in the systemd unit)"
                ),
            )
        return None

    def _drop_silent(self) -> bool:
        """Close the connection that has been silent for longest; return whether there was one."""
        silent_before = asyncio.get_running_loop().time() - _SILENT_AT_LEAST_S
        if self._door is not None and self._door.drop_silent(silent_before):
            return True
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

    def _report_refusal(self, peer: str, reason: str) -> None:
        if refused := self._refusals.count():
            log.warning("connections refused", peer=peer, refused=refused, reason=reason)

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
                self._handlers.limit_hits.hit(
                    "serverChannelMaxIdleTimeSeconds" if connection.heard else "SILENT_TIMEOUT_S"
                )
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
            "the frame did not end in time, the limit unfinishedFrameTimeoutSeconds is "
            f"{limit_s:g} and a second more for each {SLOW_BYTES_PER_S} bytes; send it faster, or "
            "raise the limit",
            limit="unfinishedFrameTimeoutSeconds",
        )


def _listen_fault(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot listen on {join_address(host, port)}: another process has the port; "
            "stop it or set another listenPort"
        )
    return f"cannot listen on {join_address(host, port)}: {error.strerror or error}"
