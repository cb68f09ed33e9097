"""Take the port of a console. Light, so that `cometmq dev` knows the address before it imports the rest."""

from __future__ import annotations

import errno
from typing import Final

from cometmq.errors import ConfigError
from cometmq.runtime.sockets.addresses import join_address
from cometmq.runtime.sockets.arrivals import Socket, bound_sockets

_BACKLOG: Final = 512


async def listening(host: str, port: int, *, or_free_port: bool = False) -> list[Socket]:
    """Return sockets that listen; browsers that connect wait until they are served.

    With `or_free_port` it is a free port if `port` is taken. Raises ConfigError.
    """
    try:
        return await _listening(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and or_free_port:
            return await listening(host, 0)
        raise ConfigError(
            f"the console cannot listen on {join_address(host, port)}: {error.strerror or error}; "
            "choose another port"
        ) from error


async def _listening(host: str, port: int) -> list[Socket]:
    sockets = await bound_sockets(host, port)
    try:
        # Two processes may bind a port at the same time; only one of them can listen.
        for sock in sockets:
            sock.listen(_BACKLOG)
    except OSError:
        for sock in sockets:
            sock.close()
        raise
    return sockets
