"""Hold ports of 127.0.0.1 while no server of ours listens there, and find out which are taken.

Otherwise the port of a server that stops and comes back would now and then be taken: by another
server that took any free port, or by an outgoing connection.
"""

from __future__ import annotations

import errno
import random
import socket
import sys
from types import TracebackType
from typing import Final, Self

# All addresses of the machine: Java's servers listen on all of them, so a port that a download has on
# another address than the loopback one is no use to them.
_ALL: Final = "0.0.0.0"  # noqa: S104 - nothing listens here
_ATTEMPTS: Final = 100
# The kernel chooses ports in the range of outgoing connections (from 32768 on), which may be full of
# connections that were closed within the last minute. So half the attempts are made below it.
_BELOW_OUTGOING: Final = range(20_000, 32_000)
# Linux lets a server take an address that another socket is bound to, as long as both set
# SO_REUSEADDR and only the server listens. On other systems a chosen port is not held.
_HOLDS: Final = sys.platform == "linux"


class HeldPort:
    """Holds a free port, and the ports at the distances `neighbours` from it, until `close`.

    Connections to a held port are refused while no server listens. A server in this or another
    process takes the port as any other if it sets SO_REUSEADDR, as asyncio, Java and Redis do by
    themselves. With `port` holds that one instead of any free port. Raises OSError when no such
    ports are found, or when `port` or a neighbour of it is taken or held.
    """

    def __init__(self, neighbours: tuple[int, ...] = (), *, port: int = 0) -> None:
        self._sockets: list[socket.socket] = []
        self.port = 0
        attempts = 1 if port else _ATTEMPTS
        for attempt in range(attempts):
            try:
                chosen = port if attempt % 2 == 0 else random.choice(_BELOW_OUTGOING)
                self.port = self._hold(chosen)
                for distance in neighbours:
                    self._hold(self.port + distance)
            except (OSError, OverflowError) as error:
                self.close()
                taken = isinstance(error, OverflowError) or error.errno == errno.EADDRINUSE
                if not taken or attempt == attempts - 1:
                    raise
            else:
                break
        if not _HOLDS:
            self.close()

    def _hold(self, port: int) -> int:
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._sockets.append(holder)
        # With SO_REUSEADDR already set, a given port would be shared with another holder.
        holder.bind((_ALL, port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
