"""Ask an HTTP server one question over a connection of its own."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from functools import partial


def exchange(
    host: str,
    port: int,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    is_https: bool,
    tls: ssl.SSLContext | None,
    timeout_s: float,
    most_bytes: int,
) -> tuple[int, bytes]:
    """Return the status and the body, of which at most `most_bytes` are read. Redirects are not followed.

    Blocks, so call it in a thread. `timeout_s` bounds the whole exchange once the connection is open. Raises
    OSError if the server does not answer, or answers with something other than HTTP.
    """
    connection: http.client.HTTPConnection
    if is_https:
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    late = threading.Event()
    timer = None
    try:
        connection.connect()
        # A socket's timeout applies to each read: a server that sends a byte from time to time would hold
        # this thread, and delay the end of its process, for hours.
        timer = threading.Timer(timeout_s, partial(_cut, connection.sock, late))
        timer.daemon = True
        timer.start()
        connection.request(method, path, body, dict(headers))
        # Close the answer explicitly: an answer that is not read to its end keeps its socket.
        with connection.getresponse() as response:
            status, data = response.status, response.read(most_bytes)
    except (OSError, http.client.HTTPException) as error:
        if late.is_set():
            raise _late(timeout_s) from error
        if isinstance(error, OSError):
            raise
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    finally:
        if timer is not None:
            timer.cancel()
        connection.close()
    if late.is_set():  # a body without a declared length ends with the connection
        raise _late(timeout_s)
    return status, data


def _cut(connection: socket.socket, late: threading.Event) -> None:
    """End the reads of another thread."""
    late.set()
    with contextlib.suppress(OSError):  # it is closed already
        # That of a TLS socket first forgets its encryption, and another thread might write in the clear.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _late(timeout_s: float) -> TimeoutError:
    return TimeoutError(f"the whole answer did not come within {timeout_s:g} s")
