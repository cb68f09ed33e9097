"""Names and addresses of this host and of others, as the machine knows them."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from typing import Final

_LOOPBACK: Final = "127.0.0.1"
ANY_IPV4: Final = "0.0.0.0"  # noqa: S104 - a name for it
# Nobody has these addresses (RFC 5737, RFC 3849), but the way to them leads outside.
_OUTSIDE: Final = ("192.0.2.1", "2001:db8::1")
_ANY_PORT: Final = 9


def host_name() -> str:
    """Return the name of this host, an empty text if it has none."""
    return socket.gethostname()


def own_address(host: str | None = None, port: int = _ANY_PORT) -> str:
    """Return this host's address as `host:port` would see it; without arguments, as the outside
    would, by IPv4 if it can. Return loopback if there is no way there.

    No packet is sent: connecting a datagram socket only chooses the interface. Blocks for as long
    as looking up the name of `host` takes.
    """
    for target in _OUTSIDE if host is None else (host,):
        with suppress(OSError, UnicodeError):  # the latter for a label that is empty or too long
            found = socket.getaddrinfo(target, port, type=socket.SOCK_DGRAM)
            family, kind, _, _, endpoint = found[0]
            with socket.socket(family, kind) as probe:
                probe.connect(endpoint)
                return str(probe.getsockname()[0])
    return _LOOPBACK


def bare_host(host: str) -> str:
    """Return a host without the brackets that an IPv6 address may stand in."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets, as Java's servers write it."""
    host = bare_host(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# A peer that connects again and again is compared with all that are connected.
@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Return what one subscriber has: an IPv4 address, or the /64 of an IPv6 address.

    A text that is no address stands for itself.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


async def resolve(host: str) -> str:
    """Return the IP address of `host`. Raises OSError when it has none."""
    host = bare_host(host)
    with suppress(ValueError):  # virtual time has no resolver
        return str(ipaddress.ip_address(host))
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is not a host name: {error}") from error
    return str(found[0][4][0])


def is_own_address(address: str) -> bool:
    """Say whether an IP address is one of this machine's. Of loopback, only its first is.

    The way to an own address begins at that address. Binding to it would prove nothing: with
    `net.ipv4.ip_nonlocal_bind` the system lets a program bind to any.
    """
    return own_address(address) == address


def look_up(host: str) -> str | None:
    """Return the IP address of `host`, None if it has none. Blocks while the name is looked up."""
    try:
        found = socket.getaddrinfo(bare_host(host), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    return str(found[0][4][0])


def is_loopback(host: str) -> bool:
    """Say whether a host is a loopback address, or the name that means one everywhere."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


class Reach(Enum):
    """Says who can reach an IP address."""

    ANYBODY = "anybody that the network lets through"
    THIS_MACHINE = "this machine only: it is a loopback address"
    CONTAINERS = "containers of one machine only: it is in Docker's own network"
    LINK = "its own network link only: it is a link-local address"
    NOBODY = "nobody: it stands for all addresses of a machine"


# Docker's bridge, unless somebody has chosen another network.
_DOCKER_BRIDGE: Final = ipaddress.ip_network("172.17.0.0/16")


def reach_of(address: str) -> Reach:
    """Return who can reach an IP address. Raises ValueError if it is none."""
    ip = ipaddress.ip_address(address)
    if ip.is_unspecified:
        return Reach.NOBODY
    if ip.is_loopback:
        return Reach.THIS_MACHINE
    if ip.is_link_local:
        return Reach.LINK
    return Reach.CONTAINERS if ip in _DOCKER_BRIDGE else Reach.ANYBODY
