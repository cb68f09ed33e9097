"""Read the cookies that a browser sends.

Starlette unquotes their values as Python's `http.cookies` does, in a time that grows with the square
of their length in some releases of Python (CVE-2024-7592), for every client that can connect.
Nothing that the console keeps in a cookie has to be quoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request

# Browsers keep some 180 for a host; cookies beyond this number are not looked at.
MAX_COOKIES: Final = 1000
_KEPT: Final = "cometmq.cookies"


def cookies_of(request: Request) -> Mapping[str, str]:
    """Return the cookies of a request by their names, as they are; of two with one name the last."""
    kept: Mapping[str, str] | None = request.scope.get(_KEPT)
    if kept is None:
        kept = request.scope[_KEPT] = _read("; ".join(request.headers.getlist("cookie")))
    return kept


def _read(header: str) -> dict[str, str]:
    found = {}
    for part in header.split(";", MAX_COOKIES)[:MAX_COOKIES]:
        name, _, value = part.partition("=")
        found[name.strip()] = value.strip()
    return found
