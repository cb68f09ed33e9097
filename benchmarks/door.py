"""How the benchmark gets in at a server: signed by an account, encrypted, or neither.

    sign: Base64(HMAC-SHA1(secret key, all ext values in the order of their names, then the body))

Spelt out here like the frames, without the product's own code.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

RECEIVE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Door:
    """An account, if requests are signed, and whether connections are encrypted.

    Whatever certificate a server shows is taken: nobody listens on the loopback address.
    """

    access_key: str = ""
    secret_key: str = ""
    tls: bool = False

    def signed(self, ext: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the ext fields with access key and signature; the same ones without an account."""
        if not self.access_key:
            return dict(ext)
        fields = {**ext, "AccessKey": self.access_key}
        text = "".join(fields[name] for name in sorted(fields)).encode()
        digest = hmac.new(self.secret_key.encode(), text + body, hashlib.sha1).digest()
        return {**fields, "Signature": base64.b64encode(digest).decode()}

    def connect(self, address: tuple[str, int], timeout_seconds: float) -> socket.socket:
        """Return a blocking connection without Nagle's algorithm, encrypted if that is wanted."""
        connected = socket.create_connection(address, timeout=timeout_seconds)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _context().wrap_socket(connected) if self.tls else connected
        except BaseException:
            connected.close()
            raise


OPEN = Door()


class EncryptedSocket:
    """Acts as a non-blocking plain socket towards the generator's loop, over TLS.

    `recv` takes all that has come: what TLS has decrypted already wakes no epoll.
    """

    def __init__(self, connected: ssl.SSLSocket) -> None:
        self._socket = connected

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def recv(self, _size: int) -> bytes:
        parts: list[bytes] = []
        try:
            while part := self._socket.recv(RECEIVE_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            if not parts:
                raise BlockingIOError from None
        return b"".join(parts)

    def send(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            raise BlockingIOError from None


LoadSocket: TypeAlias = "socket.socket | EncryptedSocket"


def for_load(connected: socket.socket) -> LoadSocket:
    """Return a connection as the generator's loop wants it: it never blocks."""
    connected.setblocking(False)
    return EncryptedSocket(connected) if isinstance(connected, ssl.SSLSocket) else connected


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
