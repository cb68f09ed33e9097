"""Makes client ids and message ids (Java: ClientConfig.buildMQClientId, MessageClientIDSetter)."""

from __future__ import annotations

import os
import socket
import time
from typing import Final

from cometmq.protocol.ids import UniqueIdGenerator
from cometmq.remoting.client import split_address

DEFAULT_INSTANCE_NAME: Final = "DEFAULT"
_LOOPBACK: Final = "127.0.0.1"

_last_nanos = 0
_unique_ids: dict[int, UniqueIdGenerator] = {}


def local_address(towards: str) -> str:
    """Return the IP address this host would use to reach `towards` (`host:port`). Sends nothing."""
    host, port = split_address(towards)
    try:
        family, kind, _, _, endpoint = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(endpoint)
            return str(probe.getsockname()[0])
    except OSError:
        return _LOOPBACK


def client_id(
    address: str, instance_name: str, unit_name: str | None = None, *, unique: bool = True
) -> str:
    """Return the client id `ip@instance[@unit]`.

    The default instance name becomes `pid#nanotime`, which is unique in a process. Without `unique`
    it stays as it is, so that the id is the same from one start to the next.
    """
    if unique and instance_name == DEFAULT_INSTANCE_NAME:
        instance_name = f"{os.getpid()}#{_unique_nanos()}"
    parts = [address, instance_name]
    if unit_name:
        parts.append(unit_name)
    return "@".join(parts)


def unique_ids(address: str) -> UniqueIdGenerator:
    """Return this process's generator of message ids. A forked child gets one of its own."""
    pid = os.getpid()
    generator = _unique_ids.get(pid)
    if generator is None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        generator = UniqueIdGenerator(socket.inet_pton(family, address), pid)
        _unique_ids.clear()
        _unique_ids[pid] = generator
    return generator


def _unique_nanos() -> int:
    global _last_nanos  # noqa: PLW0603 - one counter per process is the point
    _last_nanos = max(time.monotonic_ns(), _last_nanos + 1)
    return _last_nanos
