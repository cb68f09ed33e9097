"""Ask an HTTP server one question over a connection of its own."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping


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

    Blocks, so it is for a thread; `timeout_s` bounds the wait for each part that comes. Raises OSError
    if the server does not answer, or answers with something other than HTTP.
    """
    connection: http.client.HTTPConnection
    if is_https:
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.read(most_bytes)
    except http.client.HTTPException as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
