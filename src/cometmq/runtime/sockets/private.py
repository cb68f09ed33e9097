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

P = TypeVar("P", bound=asyncio.Protocol)


class PrivateSockets:
    """Holds a directory for the listening socket, which `close` removes. Raises ConfigError."""

    def __init__(self, prefix: str) -> None:
        try:
            # Only the owner may enter it.
            self._directory = Path(tempfile.mkdtemp(prefix=prefix))
        except OSError as error:
            raise ConfigError(
                f"no directory can be made in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR"
            ) from error
        self._path = str(self._directory / "s")
        self._prefix = prefix + self._directory.name.removeprefix(prefix)
        self._count = 0
        if len(self._path) > _LONGEST_PATH:
            self.close()
            raise ConfigError(
                f"the path {self._path} has {len(self._path)} characters, and a socket's may have "
                f"{_LONGEST_PATH}; set TMPDIR to a shorter one"
            )

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
