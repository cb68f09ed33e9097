"""Reads the lists of addresses and networks that stand in a configuration."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final

from cometmq.errors import ConfigError

_SEPARATORS: Final = re.compile(r"[,;\s]+")


class AddressList:
    """The addresses and CIDR networks of a text, separated by commas, semicolons or blanks.

    Raises ConfigError, which names the text's configuration key `key`.
    """

    def __init__(self, key: str, text: str) -> None:
        self._networks = []
        for part in filter(None, _SEPARATORS.split(text)):
            try:
                self._networks.append(ipaddress.ip_network(part))
            except ValueError as error:
                raise ConfigError(
                    f"{key}={text} does not fit: {error}; it must be IP addresses and networks such "
                    "as 10.0.0.7,192.168.4.0/24"
                ) from error

    def __contains__(self, address: str) -> bool:
        parsed = _parsed(address)
        return parsed is not None and any(parsed in network for network in self._networks)


def is_loopback(address: str) -> bool:
    parsed = _parsed(address)
    return parsed is not None and parsed.is_loopback


@lru_cache(maxsize=256)
def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        # A scope (`%eth0` in `fe80::1%eth0`) names an interface of this host, not another address.
        return ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
