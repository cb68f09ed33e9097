"""Says in a download what has ended it: its status has been sent before."""

from __future__ import annotations

import json

from starlette.exceptions import HTTPException
from starlette.requests import Request

from cometmq.console.limits import note
from cometmq.console.rendering import told
from cometmq.console.routes import check_session, console_of


def last_line(request: Request, met: HTTPException) -> bytes:
    """Return what the last line of a file of JSON lines says of what ends it; count a limit.

    The text is in the language of the page; programs go by the key.
    """
    note(console_of(request).limit_hits, met)
    return (
        json.dumps({"incomplete": told(request, met.detail)}, ensure_ascii=False).encode() + b"\n"
    )


def ended_by_session(request: Request) -> bytes:
    """Return the last line if the session has ended, as it does with its account; b"" while it lasts."""
    try:
        check_session(request)
    except HTTPException as ended:
        return last_line(request, ended)
    return b""
