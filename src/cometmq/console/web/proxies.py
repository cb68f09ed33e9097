"""Find the client of a request if proxies stand before the console."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from starlette.types import Scope

from cometmq.runtime.sockets.address_list import AddressList

# A chain of proxies is short; a longer one was made up.
_MAX_HOPS: Final = 20


def take_forwarded(scope: Scope, trusted: AddressList) -> bool:
    """Put the client and the scheme that a trusted proxy names into a request's scope.

    Return whether the request came by such a proxy. Of X-Forwarded-For the last address that is no
    trusted proxy counts: each proxy appends the address of its caller, and the client may have
    written all that stands before.
    """
    client = scope.get("client")
    if client is None or client[0] not in trusted:
        return False
    heard = client[0]
    for text in reversed(_values(scope["headers"], b"x-forwarded-for")[-_MAX_HOPS:]):
        address = _address(text)
        if address is None:
            break
        heard = address
        if address not in trusted:
            break
    scope["client"] = (heard, 0)
    schemes = _values(scope["headers"], b"x-forwarded-proto")
    if schemes and schemes[-1].lower() in ("http", "https"):
        scope["scheme"] = schemes[-1].lower()
    return True


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[str]:
    """Return the values of a header that are separated by commas, in the order of the hops."""
    found = b",".join(value for key, value in headers if key == name)
    return [part.strip() for part in found.decode("latin-1").split(",") if part.strip()]


def _address(text: str) -> str | None:
    """Return an IP address that may have a port, None for a text that is none."""
    host, is_bracketed, _ = text.removeprefix("[").partition("]")
    if not is_bracketed and host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return str((ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip)
