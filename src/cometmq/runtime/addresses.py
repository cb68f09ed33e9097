"""Names and addresses of this host and of others, as the machine knows them."""

from __future__ import annotations

import asyncio
import socket
from typing import Final

_LOOPBACK: Final = "127.0.0.1"
# Nobody has this address (RFC 5737), but the way to it leads outside.
_OUTSIDE: Final = ("192.0.2.1", 9)


def host_name() -> str:
    """Return the name of this host, an empty text if it has none."""
    return socket.gethostname()


def own_address(host: str = _OUTSIDE[0], port: int = _OUTSIDE[1]) -> str:
    """Return this host's address as `host:port` would see it; without arguments, as the outside
    would. Return loopback if there is no way there.

    No packet is sent: connecting a datagram socket only chooses the interface. Blocks for as long
    as looking up the name of `host` takes.
    """
    try:
        family, kind, _, _, endpoint = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(endpoint)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):  # the latter for a label that is empty or too long
        return _LOOPBACK


async def resolve(host: str) -> str:
    """Return the IP address of `host`. Raises OSError when it has none."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is no name of a host: {error}") from error
    return str(found[0][4][0])
