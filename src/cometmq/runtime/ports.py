"""Holds ports of 127.0.0.1 while no server of ours listens there, and finds out which are taken.

A server that stops and comes back on its port would otherwise find, now and then, that the kernel
has given the port away meanwhile: to another server that took any free port, or to an outgoing
connection.
"""

from __future__ import annotations

import errno
import socket
import sys
from types import TracebackType
from typing import Final, Self

_LOOPBACK: Final = "127.0.0.1"
_ATTEMPTS: Final = 100
# Linux lets a server take an address that another socket is bound to, as long as both set
# SO_REUSEADDR and only the server listens. On other systems a chosen port is not held.
_HOLDS: Final = sys.platform == "linux"


class HeldPort:
    """Holds a free `port`, and the ports at the distances `neighbours` from it, until `close`.

    Connections to a held port are refused while no server listens. A server in this or another
    process takes the port as any other if it sets SO_REUSEADDR, as asyncio, Java and Redis do by
    themselves. Raises OSError when no such ports are found.
    """

    def __init__(self, neighbours: tuple[int, ...] = ()) -> None:
        self._sockets: list[socket.socket] = []
        self.port = 0
        for attempt in range(_ATTEMPTS):
            try:
                self.port = self._hold(0)
                for distance in neighbours:
                    self._hold(self.port + distance)
            except (OSError, OverflowError) as error:
                self.close()
                taken = isinstance(error, OverflowError) or error.errno == errno.EADDRINUSE
                if not taken or attempt == _ATTEMPTS - 1:
                    raise
            else:
                break
        if not _HOLDS:
            self.close()

    def _hold(self, port: int) -> int:
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._sockets.append(holder)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_LOOPBACK, port))
        return int(holder.getsockname()[1])

    def close(self) -> None:
        """Release the ports. Idempotent."""
        while self._sockets:
            self._sockets.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


def listen_fault(host: str, port: int) -> str | None:
    """Return why a server could not listen on `host:port` now, None if it could.

    Blocks while the name of `host` is looked up.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "another process has the port"
        return error.strerror or str(error)
    return None
