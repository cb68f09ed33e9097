"""Join the nodes of one simulated loop, and break the links between them.

A `VirtualNetwork` has one `Network` for each host (`of`). Faults name nodes, or hosts by their IP
address; each can be undone by `heal`. All that is drawn comes from one `Randomness`, so one seed
gives the same times, splits and ports in every run.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import itertools
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from typing import Final, TypeVar

from cometmq.runtime.randomness import Randomness
from cometmq.runtime.sockets.addresses import bare_host
from cometmq.runtime.sockets.arrivals import Arrival
from cometmq.testing.virtual.origins import Line
from cometmq.testing.virtual.wire.flow import Flow, os_error
from cometmq.testing.virtual.wire.host import ANY, LOOPBACK, Host, VirtualListener
from cometmq.testing.virtual.wire.link import Link
from cometmq.testing.virtual.wire.transport import VirtualTransport, outside

P = TypeVar("P", bound=asyncio.Protocol)

_LATENCY_S: Final = (0.0001, 0.002)
_LATENCY_OF_LOOPBACK_S: Final = (0.00001, 0.00005)
# When Linux asks again for a connection, and how long it waits after the last time.
_CONNECT_RETRIES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def _unrecorded(_node: str, _event: str) -> None:
    """Record nothing."""


class VirtualNetwork:
    """Carries bytes between hosts in simulated time. For the loop's thread only.

    Each link, which is a pair of hosts and a direction, draws its own usual latency from
    `latency_s` (minimum, maximum). A read gets, with the probability `split_chance`, only a piece
    of the bytes that have arrived. `record` is called with the name of a node and a text for each
    fault and for each connection that is made, refused or lost by an error.
    """

    def __init__(
        self,
        randomness: Randomness,
        *,
        latency_s: tuple[float, float] = _LATENCY_S,
        split_chance: float = 0.1,
        record: Callable[[str, str], None] = _unrecorded,
    ) -> None:
        self._randomness = randomness
        self._latency_s = latency_s
        self._split_chance = split_chance
        self._record = record
        self._hosts: dict[str, Host] = {}
        # Addresses by names, and names by addresses.
        self._addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._links: dict[tuple[str, str], Link] = {}

    def add(self, name: str, host: str) -> None:
        """Give the host with the IP address `host` a name, which connections and faults may use."""
        self._host(host)
        self._addresses[name] = host
        self._names[host] = name

    def of(self, host: str) -> HostNetwork:
        """Return the network as the host with the IP address `host` sees it."""
        return HostNetwork(self, self._host(host))

    # Faults. `a`, `b` and `node` are names or IP addresses. Faults of a link work both ways unless
    # `one_way` limits them to the way from `a` to `b`.

    def cut(self, a: str, b: str) -> None:
        """Reset all connections between two nodes and refuse new ones."""
        self._fault("cut", a, b)
        for link in self._both(a, b):
            link.refuses = True
        self._reset(a, b)

    def blackhole(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Let all bytes vanish that are sent.

        Connections hang and new ones are not answered. Bytes wait until TCP sends them again, which
        it does ever more rarely; after 15 minutes it gives the connection up. A reset is not sent
        again, so an end that closes meanwhile leaves the other one half-open.
        """
        self._fault("blackhole", a, b, one_way=one_way)
        for link in self._ways(a, b, one_way=one_way):
            link.swallow()

    def delay(self, a: str, b: str, min_s: float, max_s: float, *, one_way: bool = False) -> None:
        """Draw a further delay for all that is sent; so connections overtake each other."""
        if not 0 <= min_s <= max_s:
            raise ValueError(f"a delay from {min_s} to {max_s} s cannot be; 0 <= min_s <= max_s")
        self._fault(f"delay of {min_s:g} to {max_s:g} s", a, b, one_way=one_way)
        for link in self._ways(a, b, one_way=one_way):
            link.delay_s = (min_s, max_s)

    def slow(self, a: str, b: str, bytes_per_s: float, *, one_way: bool = False) -> None:
        """Let all connections of a link together carry no more than this many bytes a second."""
        if bytes_per_s <= 0:
            raise ValueError(f"{bytes_per_s} bytes a second carry nothing; use blackhole for that")
        self._fault(f"limit of {bytes_per_s:g} bytes a second", a, b, one_way=one_way)
        for link in self._ways(a, b, one_way=one_way):
            link.bytes_per_s = bytes_per_s

    def partition(self, *groups: Sequence[str]) -> None:
        """Let all vanish that is sent between nodes of different groups."""
        for left, right in itertools.combinations(groups, 2):
            for a, b in itertools.product(left, right):
                self.blackhole(a, b)

    def heal(self, a: str, b: str) -> None:
        """Undo all faults of the link between two nodes, in both directions."""
        self._fault("heal", a, b)
        for link in self._both(a, b):
            link.heal()
        self._notify_flows(self._between(a, b))

    def heal_all(self) -> None:
        """Undo the faults of all links. A machine that is off stays off."""
        self._record("", "heal all links")
        for link in self._links.values():
            link.heal()
        self._notify_flows(t for host in self._hosts.values() for t in host.transports)

    def reset_connections(self, a: str, b: str) -> None:
        """Reset all connections between two nodes; new ones can be made at once."""
        self._fault("reset of connections", a, b)
        self._reset(a, b)

    def kill(self, node: str) -> None:
        """End the process of a node: its listeners vanish, and its peers see a reset."""
        host = self._node(node)
        self._record(self.name_of(host.address), "network of a killed process")
        self._forget_process(host, notify_peers=True)

    def power_off(self, node: str) -> None:
        """Take the machine of a node off the network: its peers see nothing.

        Peers that have sent it something get a reset when it is on again.
        """
        host = self._node(node)
        self._record(self.name_of(host.address), "network off")
        if not host.is_off:
            host.is_off = True
            self._forget_process(host, notify_peers=False)
            for link in self._links_of(host):
                link.end_goes_off()

    def power_on(self, node: str) -> None:
        """Put a machine back on the network, without any of its former connections."""
        host = self._node(node)
        self._record(self.name_of(host.address), "network on")
        if host.is_off:
            host.is_off = False
            for link in self._links_of(host):
                link.end_comes_on()
            self._notify_flows(t for other in self._hosts.values() for t in other.transports)

    def open_connections(self) -> list[str]:
        """Return a line for each open listener and connection."""
        found = []
        for host in self._hosts.values():
            name = self.name_of(host.address)
            ends: list[tuple[str, Line | None]] = [
                *((f"listener on port {each.port}", each.made_at) for each in host.listeners),
                *((each.description, each.made_at) for each in host.transports),
            ]
            found += [f"{name}: {what}{f'; made at {at}' if at else ''}" for what, at in ends]
        return found

    # For the networks of hosts

    def name_of(self, address: str) -> str:
        """Return the name of the host with an address, the address if it has none."""
        return self._names.get(address, address)

    def resolve(self, name: str) -> str:
        """Return the IP address of a name; loopback for each name of the own machine. Raises gaierror."""
        name = bare_host(name)
        if name == "localhost":
            return LOOPBACK
        if (address := self._addresses.get(name)) is not None:
            return address
        try:
            address = str(ipaddress.ip_address(name))
        except ValueError:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
        own = {ANY, "::", "::1"}
        return LOOPBACK if address in own or address.startswith("127.") else address

    async def connect(self, source: Host, address: str, port: int) -> VirtualTransport:
        """Return the source's end of a new connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        target = source if address == LOOPBACK else self._hosts.get(address)
        there = self._link(source.address, address)
        back = self._link(address, source.address)
        for wait_s in _CONNECT_RETRIES_S:
            asked_at_s = loop.time()
            if target is not None and not there.is_lossy:
                await asyncio.sleep(there.draw_latency_s())
                listener = None if there.refuses else target.listener(address, port)
                if listener is None:
                    if not back.is_lossy:
                        await asyncio.sleep(back.draw_latency_s())
                        self._note(source, f"was refused by {self.name_of(address)}:{port}")
                        raise ConnectionRefusedError(
                            errno.ECONNREFUSED, f"Connect call failed ({address!r}, {port})"
                        )
                elif not listener.is_full and not back.is_lossy and not target.is_off:
                    return await self._join(source, target, address, listener)
            await asyncio.sleep(asked_at_s + wait_s - loop.time())
        self._note(source, f"was not answered by {self.name_of(address)}:{port}")
        raise TimeoutError(errno.ETIMEDOUT, f"Connect call failed ({address!r}, {port})")

    async def _join(
        self, source: Host, target: Host, address: str, listener: VirtualListener
    ) -> VirtualTransport:
        loop = asyncio.get_running_loop()
        own = (LOOPBACK if address == LOOPBACK else source.address, source.free_port())
        far_name = (address, listener.port)
        there = self._link(source.address, target.address)
        back = self._link(target.address, source.address)
        near = self._transport(source, (own, far_name), None)
        far = self._transport(target, (far_name, own), listener)
        near.flow = far.far_flow = Flow(loop, there, back, near, far)
        far.flow = near.far_flow = Flow(loop, back, there, far, near)
        listener.take(loop, far)
        try:
            await asyncio.sleep(back.draw_latency_s())
        except asyncio.CancelledError:
            near.abort()
            raise
        self._note(source, f"connected to {self.name_of(target.address)}:{listener.port}")
        return near

    def _transport(
        self,
        host: Host,
        names: tuple[tuple[str, int], tuple[str, int]],
        listener: VirtualListener | None,
    ) -> VirtualTransport:
        def lost(transport: VirtualTransport, error: Exception | None) -> None:
            host.leave(transport)
            if error is not None:
                self._note(host, f"lost {transport.description}: {error}")

        transport = VirtualTransport(
            asyncio.get_running_loop(),
            copy_context() if listener is None else listener.context,
            names,
            randomness=self._randomness,
            split_chance=self._split_chance,
            on_lost=lost,
        )
        host.join(transport)
        return transport

    # Inside

    def _note(self, host: Host, event: str) -> None:
        self._record(self.name_of(host.address), event)

    def _fault(self, what: str, a: str, b: str, *, one_way: bool = False) -> None:
        first, second = (self.name_of(self._node(node).address) for node in (a, b))
        if first == second:
            raise ValueError(f"{first} has no link to itself")
        self._record("", f"{what}: {first} {'to' if one_way else 'and'} {second}")

    def _host(self, address: str) -> Host:
        address = str(ipaddress.ip_address(address))
        if address not in self._hosts:
            self._hosts[address] = Host(address)
        return self._hosts[address]

    def _node(self, name: str) -> Host:
        host = self._hosts.get(self._addresses.get(name, name))
        if host is None:
            known = ", ".join(self._addresses) or ", ".join(self._hosts)
            raise ValueError(f"there is no node {name!r}; there are {known}")
        return host

    def _link(self, source: str, target: str) -> Link:
        if target == LOOPBACK:
            target = source
        elif source == LOOPBACK:
            source = target
        link = self._links.get((source, target))
        if link is None:
            usual_s = _LATENCY_OF_LOOPBACK_S if source == target else self._latency_s
            link = self._links[source, target] = Link(self._randomness, usual_s)
            for address in (source, target):
                if (host := self._hosts.get(address)) is not None and host.is_off:
                    link.end_goes_off()
        return link

    def _links_of(self, host: Host) -> Iterator[Link]:
        for pair, link in self._links.items():
            for address in pair:
                if address == host.address:
                    yield link

    def _ways(self, a: str, b: str, *, one_way: bool) -> list[Link]:
        first, second = self._node(a).address, self._node(b).address
        ways = [self._link(first, second)]
        return ways if one_way else [*ways, self._link(second, first)]

    def _both(self, a: str, b: str) -> list[Link]:
        return self._ways(a, b, one_way=False)

    def _between(self, a: str, b: str) -> list[VirtualTransport]:
        """Return both ends of all connections between two nodes."""
        first, second = self._node(a), self._node(b)
        return [
            transport
            for host, other in ((first, second), (second, first))
            for transport in host.transports
            if transport.peername[0] == other.address
        ]

    def _notify_flows(
        self, transports: Iterator[VirtualTransport] | list[VirtualTransport]
    ) -> None:
        def notify() -> None:
            for transport in transports:
                transport.flow.link_changed()
                transport.far_flow.link_changed()

        outside(notify)

    def _reset(self, a: str, b: str) -> None:
        def reset() -> None:
            for transport in self._between(a, b):
                transport.flow.drop(under_way=True)
                transport.fails(os_error(errno.ECONNRESET))

        outside(reset)

    def _forget_process(self, host: Host, *, notify_peers: bool) -> None:
        def forget() -> None:
            for transport in list(host.transports):
                transport.vanish()
                if notify_peers:
                    transport.flow.send_reset(drop=False)
                host.leave(transport)

        host.release_all()
        outside(forget)


class HostNetwork:
    """The `Network` of one host."""

    def __init__(self, whole: VirtualNetwork, host: Host) -> None:
        self._whole = whole
        self._host = host

    async def resolve(self, host: str) -> str:
        """Return the IP address of a node by its name, or `host` if it is an address."""
        return self._whole.resolve(host)

    def own_address(self, host: str, port: int) -> str:  # noqa: ARG002 - the Network's signature
        """Return the address of this host, loopback if `host` is this host by that or has no address."""
        try:
            address = self._whole.resolve(host)
        except OSError:
            return LOOPBACK
        return LOOPBACK if address == LOOPBACK else self._host.address

    async def connect(
        self, new_protocol: Callable[[], P], host: str, port: int, *, tls: object
    ) -> P:
        _refuse_tls(tls)
        address = self._whole.resolve(host)
        transport = await self._whole.connect(self._host, address, port)
        try:
            protocol = new_protocol()
        except BaseException:
            transport.abort()
            raise
        transport.begin(protocol)
        return protocol

    async def listen(
        self,
        new_protocol: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        backlog: int,
    ) -> VirtualListener:
        address = ANY if bare_host(host) in ("", ANY, "::") else self._whole.resolve(host)
        if address not in (ANY, LOOPBACK, self._host.address):
            raise OSError(
                errno.EADDRNOTAVAIL,
                f"error while attempting to bind on address ({address!r}, {port}): "
                f"{os.strerror(errno.EADDRNOTAVAIL).lower()}",
            )
        listener = VirtualListener(
            self._host,
            address,
            self._host.bind(address, port),
            new_protocol=new_protocol,
            backlog=backlog,
            context=copy_context(),
        )
        self._host.add(listener)
        return listener

    async def accept(
        self,
        on_arrival: Callable[[Arrival], None],  # noqa: ARG002 - it is refused
        host: str,  # noqa: ARG002 - the same
        port: int,  # noqa: ARG002 - the same
        *,
        backlog: int,  # noqa: ARG002 - the same
    ) -> VirtualListener:
        raise ValueError(_NO_TLS)


def _refuse_tls(tls: object) -> None:
    if tls is not None:
        raise ValueError(_NO_TLS)


_NO_TLS: Final = (
    "connections in virtual time are not encrypted; leave tls out, or test it with real sockets: "
    'Cluster(clock="real")'
)
