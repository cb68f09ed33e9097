"""Connect two parts of one process by a Unix socket that only the process's own user can reach.

For a library that accepts connections by itself: it listens at `address`, and each connection that is
made to it has a name, by which the library knows its peer.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from cometmq.errors import ConfigError

# The longest path that a Unix socket may have on all systems, less one for the names beside it.
_LONGEST_PATH: Final = 90
# How long a connection waits for room in the backlog of the listening socket, and how often it looks.
_PATIENCE_S: Final = 5.0
_LOOK_AGAIN_S: Final = 0.01

_HAS_NAMES_WITHOUT_FILES: Final = sys.platform.startswith("linux")

# Where TMPDIR is too long for the path of a socket, as those of tests and of macOS may be.
_OTHER_PLACES: Final = ("/tmp", "/var/tmp")  # noqa: S108 - mkdtemp makes a directory of one's own there
# The characters that mkdtemp puts behind a prefix, and the socket's own name.
_NAME_LENGTH: Final = len("/12345678/s")

P = TypeVar("P", bound=asyncio.Protocol)


class PrivateSockets:
    """Holds a directory for the listening socket, which `close` removes. Raises ConfigError."""

    def __init__(self, prefix: str) -> None:
        self._directory = _new_directory(prefix)
        self._path = str(self._directory / "s")
        self._prefix = prefix + self._directory.name.removeprefix(prefix)
        self._count = 0

    @property
    def address(self) -> str:
        """Return the address to listen at, in the form of gRPC."""
        return f"unix:{self._path}"

    def close(self) -> None:
        """Remove the directory. Idempotent."""
        shutil.rmtree(self._directory, ignore_errors=True)

    async def connect(self, new_protocol: Callable[[str], P]) -> P:
        """Connect, and return the protocol object, which is made with the name of the connection.

        The name is in the form in which gRPC shows it. Raises OSError.
        """
        sock, name = self._named()
        try:
            await self._connect(sock)
            made = await asyncio.get_running_loop().create_unix_connection(
                lambda: new_protocol(name), sock=sock
            )
        except BaseException:
            sock.close()
            raise
        return made[1]

    # Inside

    def _named(self) -> tuple[socket.socket, str]:
        self._count += 1
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if _HAS_NAMES_WITHOUT_FILES:
                # A name without a file.
                name = f"{self._prefix}-{self._count}"
                sock.bind(f"\0{name}")
                return sock, f"unix-abstract:{name}"
            path = f"{self._path}{self._count}"
            sock.bind(path)
            # The socket keeps its name.
            Path(path).unlink()
        except BaseException:
            sock.close()
            raise
        return sock, f"unix:{path}"

    async def _connect(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE_S
        while True:
            try:
                sock.connect(self._path)
            except BlockingIOError:
                # The backlog is full. asyncio would take the connection for one that is under way.
                if loop.time() > until:
                    raise
                await asyncio.sleep(_LOOK_AGAIN_S)
            else:
                return


def _new_directory(prefix: str) -> Path:
    """Make a directory that only its owner may enter, at a path that is short enough for sockets in it."""
    temporary = tempfile.gettempdir()
    reasons = []
    for place in dict.fromkeys((temporary, *_OTHER_PLACES)):
        if len(place) + len(prefix) + _NAME_LENGTH > _LONGEST_PATH:
            reasons.append(
                f"{place} is too long, paths of sockets may have {_LONGEST_PATH} characters"
            )
            continue
        try:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        except OSError as error:
            reasons.append(f"{place}: {error.strerror}")
    raise ConfigError(
        f"no directory can be made for a socket ({'; '.join(reasons)}); set TMPDIR to a directory with a "
        "shorter path that this process may write to"
    )
