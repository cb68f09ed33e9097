"""Hold the proxy's port: count connections, serve TLS, and relay to gRPC's own server.

gRPC's library takes neither a socket nor a certificate that changes, and counts no connections. So it
listens at a Unix socket of this process, which no other user can reach, and the port is here. The
first byte of a connection says whether it is plain or TLS (Java: ProxyAndTlsProtocolNegotiator).
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from functools import partial
from typing import Final

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.logs.rare_line import RareLine
from cometmq.metrics.limit_hits import LimitHits
from cometmq.proxy.configuration import front_config
from cometmq.proxy.configuration.front_config import FrontConfig
from cometmq.proxy.port.balancers import BEGINNINGS, Balancers
from cometmq.proxy.port.frame_limits import FrameLimit
from cometmq.proxy.port.relay import Side
from cometmq.proxy.port.requests_begun import RequestsBegun
from cometmq.remoting.server import ConnectionCounts
from cometmq.runtime.host.process_limits import descriptors_for_connections
from cometmq.runtime.sockets.address_list import AddressList
from cometmq.runtime.sockets.addresses import bare_host, join_address, network_of
from cometmq.runtime.sockets.arrivals import Arrival, ArrivalListener, bound_sockets
from cometmq.runtime.sockets.private import PrivateSockets
from cometmq.runtime.tasks import TaskOwner
from cometmq.tls.handshakes import Door, Handshakes
from cometmq.tls.server import ServerTls

log = get_logger(__name__)

_BACKLOG: Final = 1024
_SWEEP_S: Final = 1.0
# How long the last answers may take to leave once gRPC's server has stopped.
_LEAVE_S: Final = 1.0
# A connection may stay silent for this long before it makes room for others.
_SILENT_AT_LEAST_S: Final = 1.0
# The address of a caller that came by no connection of the port: there is none.
_NOBODY: Final = "unknown"


class _NoTls:
    """Stands for the certificates of a port that serves no TLS."""

    def __init__(self) -> None:
        self.handshakes = Handshakes(
            at_once=1, per_second=1, timeout_s=front_config.SILENT_TIMEOUT_S
        )

    @property
    def context(self) -> ssl.SSLContext:
        raise AssertionError("no handshake begins at this door")


class _Relay:
    """Holds the two sides of one connection; that to gRPC's server is made later."""

    __slots__ = ("client", "network", "peer", "peer_ip", "server")

    def __init__(self, arrival: Arrival, client: Side) -> None:
        self.peer_ip, self.peer = arrival.peer_ip, arrival.peer
        self.network = network_of(arrival.peer_ip)
        self.client = client
        self.server: Side | None = None


class Front:
    """Listens at a proxy's port. For the loop's thread only; `bind`, `start` and `close` once each.

    gRPC's server listens at `address`. `tls` has its certificates loaded, or is None. `hits` counts
    refusals by limits. With `shares_port` other processes may listen at the port, too. gRPC's server takes requests
    of up to `longest_request_bytes`.
    """

    def __init__(
        self,
        config: FrontConfig,
        tls: ServerTls | None,
        hits: LimitHits,
        *,
        longest_request_bytes: int,
        shares_port: bool = False,
    ) -> None:
        self.mode = "disabled" if tls is None else tls.mode
        self._sockets = PrivateSockets("cometmq-proxy-")
        self._hits = hits
        self._counts = ConnectionCounts(config.max_connections, config.max_connections_per_address)
        self._owner = TaskOwner("proxy-port")
        self._shares_port = shares_port
        self._most_descriptors, self._descriptor_limit = descriptors_for_connections()
        self._refusals, self._cuts, self._uploads = RareLine(), RareLine(), RareLine()
        self._cancels = FrameLimit(lambda: front_config.MAX_CANCELS_PER_SECOND)
        self._empty_frames = FrameLimit(lambda: front_config.MAX_EMPTY_FRAMES_PER_SECOND)
        self._floods = RareLine()
        self._is_closing = False
        self._longest_request_bytes = longest_request_bytes
        # The bytes of requests that have not arrived whole.
        self._request_bytes = 0
        # Dicts, because they have an order: those that came first are first.
        self._relays: dict[Side, _Relay] = {}
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._peers: dict[str, str] = {}
        self._listener: ArrivalListener | None = None
        self._host = ""
        self._door = Door(
            _NoTls() if tls is None else tls,
            mode=self.mode,
            admit=self._admit,
            on_leave=lambda arrival: self._counts.free(arrival.peer_ip),
            on_limit=hits.hit,
            new_protocol=lambda arrival: Side(partial(self._connected, arrival), self._client_lost),
            silent_timeout_s=front_config.SILENT_TIMEOUT_S,
            owner=self._owner,
        )
        self._balancers = Balancers(
            AddressList("haproxyFrom", config.haproxy_from),
            self._door.arrived,
            hits.hit,
            full=self._full_with_waiting,
            timeout_s=front_config.SILENT_TIMEOUT_S,
        )

    @property
    def address(self) -> str:
        """Return where gRPC's server has to listen."""
        return self._sockets.address

    @property
    def port(self) -> int:
        assert self._listener is not None, "the port is not bound"
        return self._listener.port

    @property
    def open_count(self) -> int:
        """Return how many connections are open, with those that are not served yet."""
        return len(self._relays) + len(self._door.guests) + self._balancers.waiting_count

    @property
    def request_bytes(self) -> int:
        """Return the bytes of requests that have not arrived whole."""
        return self._request_bytes

    def peer_of(self, name: str) -> str:
        """Return the address of the client behind a connection, by the name that gRPC has for it."""
        return self._peers.get(name, _NOBODY)

    async def bind(self, host: str, port: int) -> None:
        """Take the port without listening yet. Raises ConfigError."""
        self._host = host
        try:
            sockets = await bound_sockets(bare_host(host), port, shares_port=self._shares_port)
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        self._listener = ArrivalListener(sockets, self._balancers.arrived, _BACKLOG)

    async def start(self) -> None:
        """Listen; gRPC's server listens already. Raises ConfigError if another process took the port meanwhile."""
        assert self._listener is not None, "the port is not bound"
        try:
            await self._listener.start()
        except OSError as error:
            raise _cannot_listen(self._host, self.port, error) from error
        self._owner.every(_SWEEP_S, self._sweep, "sweep")

    def stop_listening(self) -> None:
        """Take no more connections; those that are open stay."""
        self._is_closing = True
        if self._listener is not None:
            self._listener.close()
        self._balancers.close()
        self._door.close()

    async def let_answers_leave(self) -> None:
        """Wait until all that gRPC's server wrote before it stopped has been passed on, but at most _LEAVE_S.

        A message in an answer that is cut off stays hidden from all consumers for its whole invisible time.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._all_gone.wait()

    async def close(self) -> None:
        """Close all connections at once. Idempotent."""
        self.stop_listening()
        for relay in list(self._relays.values()):
            relay.client.cut()
            if relay.server is not None:
                relay.server.cut()
        await self._owner.close()
        self._sockets.close()

    # Connections

    def _admit(self, arrival: Arrival) -> bool:
        """Return whether there is room for a connection that was just accepted."""
        if self._is_closing:
            return False
        full = self._no_place(arrival.peer_ip, arrival.descriptor)
        if full is None:
            self._counts.take(arrival.peer_ip)
            return True
        limit, reason = full
        self._hits.hit(limit)
        if refused := self._refusals.count():
            log.warning("connections refused", peer=arrival.peer, refused=refused, reason=reason)
        return False

    def _full_with_waiting(self, arrival: Arrival) -> str:
        """Return the limit that keeps one more connection of a balancer from waiting, "" if none does."""
        if self._counts.taken + self._balancers.waiting_count >= self._counts.max_in_all:
            return "maxConnections"
        return "RLIMIT_NOFILE" if arrival.descriptor >= self._most_descriptors else ""

    def _no_place(self, address: str, descriptor: int) -> tuple[str, str] | None:
        """Return the limit that keeps a connection out, and a text on it; None if it has a place.

        A connection that has sent nothing yet makes room.
        """
        counts = self._counts
        if 0 < counts.max_per_address <= counts.of(address):
            return (
                "maxConnectionsPerAddress",
                (
                    f"{counts.of(address)} connections from {network_of(address)} are open, the limit "
                    f"maxConnectionsPerAddress is {counts.max_per_address}; close some, use more "
                    "addresses, or raise it"
                ),
            )
        silent_before = asyncio.get_running_loop().time() - _SILENT_AT_LEAST_S
        if counts.taken >= counts.max_in_all:
            limit, reason = (
                "maxConnections",
                (
                    f"{counts.taken} connections are open, the limit maxConnections is "
                    f"{counts.max_in_all}; start another proxy, or raise it"
                ),
            )
        elif descriptor >= self._most_descriptors:
            limit, reason = (
                "RLIMIT_NOFILE",
                (
                    f"{counts.taken} connections are open and too few file descriptors are left: the "
                    f"limit RLIMIT_NOFILE is {self._descriptor_limit}, and each connection has three; "
                    "raise the limit (ulimit -n, or LimitNOFILE in the systemd unit)"
                ),
            )
        else:
            return None
        if self._door.drop_silent(silent_before) or (
            limit == "RLIMIT_NOFILE" and self._balancers.drop_oldest()
        ):
            self._hits.hit(limit)
            return None
        return limit, reason

    def _connected(self, arrival: Arrival, client: Side) -> None:
        if self._is_closing:
            client.cut()
            return
        relay = self._relays[client] = _Relay(arrival, client)
        self._all_gone.clear()
        client.requests = RequestsBegun(
            self._longest_request_bytes, self._on_request_bytes, partial(self._on_frames, relay)
        )
        client.check_first = lambda data: self._may_begin(relay, data)
        self._counts.take(relay.peer_ip)
        self._owner.spawn(self._connect(relay), "relay", log_failure=False)

    def _may_begin(self, relay: _Relay, data: bytes) -> bool:
        """Close a connection that begins with an HAProxy header and is not from haproxyFrom; return False.

        gRPC's library would close it without a log line.
        """
        if not data.startswith(BEGINNINGS):
            return True
        if refused := self._refusals.count():
            log.warning(
                "connections refused: they begin with an HAProxy header, and their addresses are not in haproxyFrom",
                peer=relay.peer,
                refused=refused,
                remedy="add the balancer's address to haproxyFrom, or remove send-proxy and send-proxy-v2 from its settings",
            )
        relay.client.cut()
        return False

    async def _connect(self, relay: _Relay) -> None:
        """Connect to gRPC's server, and join the two sides."""

        def new_side(name: str) -> Side:
            self._peers[name] = relay.peer
            return Side(lambda _: None, self._server_lost, name)

        try:
            server = await self._sockets.connect(new_side)
        except OSError as error:
            log.warning("a connection is not relayed", peer=relay.peer, reason=str(error))
            relay.client.cut()
            return
        relay.server = server
        server.join(relay.client)
        relay.client.join(server)

    def _client_lost(self, client: Side) -> None:
        relay = self._relays.pop(client, None)
        if relay is not None:
            self._counts.free(relay.peer_ip)
        if not self._relays:
            self._all_gone.set()

    def _server_lost(self, server: Side) -> None:
        self._peers.pop(server.name, None)

    def _sweep(self) -> None:
        """Close the connections of clients that do not read, and of those that hold most if all hold too much."""
        now_s = asyncio.get_running_loop().time()
        self._cancels.forget(now_s)
        self._empty_frames.forget(now_s)
        slow = [relay for relay in self._relays.values() if relay.client.unsent_since]
        held = {relay: relay.client.unsent_bytes for relay in slow}
        for relay in slow:
            if now_s - relay.client.unsent_since > front_config.UNREAD_TIMEOUT_S:
                held.pop(relay)
                self._cut(relay, "UNREAD_TIMEOUT_S", front_config.UNREAD_TIMEOUT_S)
        total = sum(held.values())
        for relay in sorted(held, key=lambda each: held[each], reverse=True):
            if total <= front_config.MAX_UNSENT_BYTES:
                break
            total -= held[relay]
            self._cut(relay, "MAX_UNSENT_BYTES", front_config.MAX_UNSENT_BYTES)

    def _on_request_bytes(self, change: int) -> None:
        """Count parts of requests, and close the connections that hold most of them if all hold too much."""
        self._request_bytes += change
        while change > 0 and self._request_bytes > front_config.MAX_REQUEST_BYTES:
            relay = max(self._relays.values(), key=lambda each: _begun_bytes(each.client))
            self._hits.hit("MAX_REQUEST_BYTES")
            if count := self._uploads.count():
                log.warning(
                    "connections closed: they hold too many bytes of unfinished requests",
                    peer=relay.peer,
                    closed=count,
                    request_bytes=_begun_bytes(relay.client),
                    limit=f"MAX_REQUEST_BYTES={front_config.MAX_REQUEST_BYTES}",
                    remedy="send each request whole, and fewer at a time",
                )
            relay.client.cut()

    def _on_frames(self, relay: _Relay, cancels: int, empty: int) -> None:
        """Close a connection if its address sends too many frames that carry no part of a request."""
        now_s = asyncio.get_running_loop().time()
        if not self._cancels.take(relay.network, cancels, now_s):
            limit, value = "MAX_CANCELS_PER_SECOND", front_config.MAX_CANCELS_PER_SECOND
            remedy = "let calls end; a deadline that is too short cancels each call"
        elif not self._empty_frames.take(relay.network, empty, now_s):
            limit, value = "MAX_EMPTY_FRAMES_PER_SECOND", front_config.MAX_EMPTY_FRAMES_PER_SECOND
            remedy = "send fewer frames that are no part of a request, like PING and WINDOW_UPDATE"
        else:
            return
        self._hits.hit(limit)
        if count := self._floods.count():
            log.warning(
                "connections closed: the clients of their address send too many frames that carry no request",
                peer=relay.peer,
                closed=count,
                limit=f"{limit}={value}",
                remedy=remedy,
            )
        relay.client.cut()

    def _cut(self, relay: _Relay, limit: str, value: float) -> None:
        self._hits.hit(limit)
        if count := self._cuts.count():
            log.warning(
                "connections closed: their clients do not read",
                peer=relay.peer,
                closed=count,
                unsent_bytes=relay.client.unsent_bytes,
                limit=f"{limit}={value:g}",
                remedy="read answers as they come",
            )
        relay.client.cut()


def _begun_bytes(client: Side) -> int:
    return 0 if client.requests is None else client.requests.held_bytes


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"the proxy cannot listen at {join_address(host, port)}: "
        f"{error.strerror or error}; choose another port"
    )
