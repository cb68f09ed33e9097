"""Read the lists of addresses and networks that stand in a configuration."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final

from cometmq.errors import ConfigError

_SEPARATORS: Final = re.compile(r"[,;\s]+")
# How many bits come before the IPv4 address in an IPv6 address that stands for it.
_MAPPED_BITS: Final = 96


class AddressList:
    """The addresses and CIDR networks of a text, separated by commas, semicolons or blanks.

    Raises ConfigError, which names the text's configuration key `key`.
    """

    def __init__(self, key: str, text: str) -> None:
        self._networks = []
        for part in filter(None, _SEPARATORS.split(text)):
            try:
                self._networks.append(read_network(part))
            except ValueError as error:
                raise ConfigError(
                    f"{key}={text} does not fit: {error}; it must be IP addresses and networks such "
                    "as 10.0.0.7,192.168.4.0/24"
                ) from error

    def __contains__(self, address: str) -> bool:
        parsed = _parsed(address)
        return parsed is not None and any(parsed in network for network in self._networks)

    def __bool__(self) -> bool:
        """Return whether the text names anything."""
        return bool(self._networks)


def is_loopback(address: str) -> bool:
    parsed = _parsed(address)
    return parsed is not None and parsed.is_loopback


def is_own_machine(peer_ip: str, local_ip: str) -> bool:
    """Return whether the peer of a connection is a process of this machine.

    It is, if its address is a loopback address, or the one under which this side was connected to.
    `local_ip` is this side's address.
    """
    peer = _parsed(peer_ip)
    return peer is not None and (peer.is_loopback or peer == _parsed(local_ip))


def plain_ip(address: str) -> str:
    """Return the address of a socket as records and lists have it.

    A socket bound to `::` names IPv4 peers as `::ffff:10.0.0.7`; Java shows their IPv4 address.
    """
    rest = address.removeprefix("::ffff:")
    # `::ffff:0:102:304` begins like that, too, and is an IPv6 address.
    return rest if "." in rest else address


def read_network(
    text: str, *, strict: bool = True
) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return the network of a text, in IPv4 also if the text maps it to IPv6, as peers are compared.

    Raises ValueError, with `strict` also for a network with bits behind its prefix.
    """
    network = ipaddress.ip_network(text, strict)
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return ipaddress.IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


@lru_cache(maxsize=256)
def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        # A scope (`%eth0` in `fe80::1%eth0`) names an interface of this host, not another address.
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed
