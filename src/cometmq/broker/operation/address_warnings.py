"""Warn of an advertised address at which clients do not find this broker.

It is the most frequent mistake with brokers: a client reaches a name server, which answers 127.0.0.1,
and its sends then fail on its own machine, where nobody looks into the broker's log.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from cometmq.logs.loggers import get_logger
from cometmq.remoting.connection import Connection
from cometmq.runtime.sockets.addresses import ANY_IPV4, Reach, reach_of
from cometmq.runtime.sockets.network import Network

log = get_logger(__name__)

# One line for each network of peers; after so many the operator knows.
_MOST_NETWORKS: Final = 16
_PREFIX_BITS: Final = {4: 24, 6: 64}


class AddressWarnings:
    """Looks at the advertised address, and at each new connection if that is a loopback address."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._address: str | None = None
        self._reported: set[str] = set()

    def advertise(self, ip: str, address: str, bound: str) -> None:
        """Take the address that clients are sent to, and the one listened on.

        `ip` is the address that the name in `address` has here.
        """
        if ":" in ip and bound == ANY_IPV4:
            log.warning(
                "clients are sent to an IPv6 address, and IPv4 alone is listened on",
                advertised=address,
                remedy="set bindAddress=::, which stands for all addresses, IPv4 and IPv6",
            )
        self._address = address if reach_of(ip) is Reach.THIS_MACHINE else None

    def met(self, connection: Connection) -> None:
        """Look at a connection that was made to or by this broker."""
        if self._address is None or len(self._reported) >= _MOST_NETWORKS:
            return
        peer = connection.peer_ip
        network = _network_of(peer)
        if network is None or network in self._reported:
            return
        if self._network.own_address(peer, connection.peer_port) == peer:  # this machine
            return
        self._reported.add(network)
        log.warning(
            "a peer elsewhere is sent to a loopback address",
            peer=connection.peer,
            advertised=self._address,
            remedy="set brokerIP1 to the address at which clients reach this machine; it is right as "
            "it is only if a port of theirs leads here",
        )


def _network_of(peer_ip: str) -> str | None:
    """Return the network of a peer, None for the machine itself."""
    ip = ipaddress.ip_address(peer_ip.partition("%")[0])
    if ip.is_loopback:
        return None
    return str(ipaddress.ip_network((ip, _PREFIX_BITS[ip.version]), strict=False))
