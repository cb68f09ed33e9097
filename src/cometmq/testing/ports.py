"""Ports of 127.0.0.1 that stay ours while no server of ours listens there.

A server that stops and comes back on its port would otherwise find, now and then, that the kernel
has given the port to somebody else meanwhile: to another server that took any free one, or to an
outgoing connection.
"""

from __future__ import annotations

import errno
import socket
import sys
from types import TracebackType
from typing import Final, Self

_LOOPBACK: Final = "127.0.0.1"
_ATTEMPTS: Final = 100
# Linux lets a server take an address that another socket is bound to, as long as both say
# SO_REUSEADDR and only the server listens. Elsewhere the port is free again once it was chosen.
_HOLDS: Final = sys.platform == "linux"


class HeldPort:
    """A free `port`, and those that lie `neighbours` from it, until `close`.

    Connections to a held port are refused while no server listens. Servers take it as any other,
    in this process or another, with SO_REUSEADDR, as asyncio, Java and Redis set it by themselves.
    Raises OSError when no such ports are found.
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
        """Let go of the port. Idempotent."""
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
