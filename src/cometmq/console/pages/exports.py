"""Says in a download that a limit has ended it: its status has been sent when the limit is met."""

from __future__ import annotations

import json

from starlette.requests import Request

from cometmq.console.limits import LimitMetError, note
from cometmq.console.rendering import told
from cometmq.console.routes import console_of


def last_line(request: Request, met: LimitMetError) -> bytes:
    """Count a limit that ends a file of JSON lines, and return what its last line says of it.

    The text is in the language of the page; programs go by the key.
    """
    note(console_of(request).limit_hits, met)
    return (
        json.dumps({"incomplete": told(request, met.detail)}, ensure_ascii=False).encode() + b"\n"
    )
