"""Write into a download what ended it early: its HTTP status has been sent before."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from cometmq.console.limits import note
from cometmq.console.routes import check_session, console_of
from cometmq.console.views.rendering import localized
from cometmq.console.web.places import Places


class Export(StreamingResponse):
    """Sends lines as they are made, and gives the account's place back however it ends.

    The place is taken already.
    """

    def __init__(
        self,
        lines: AsyncGenerator[bytes],
        places: Places,
        account: str,
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(lines, media_type=media_type, headers=headers)
        self._lines = lines
        self._places = places
        self._account = account

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._places.give_back(self._account)
            await self._lines.aclose()


def last_line(request: Request, met: HTTPException) -> bytes:
    """Return the last line of a file of JSON lines that ends early; count the limit, if one ended
    it.

    The text is in the language of the page; programs go by the key.
    """
    note(console_of(request).limit_hits, met)
    return (
        json.dumps({"incomplete": localized(request, met.detail)}, ensure_ascii=False).encode()
        + b"\n"
    )


def ended_by_session(request: Request) -> bytes:
    """Return the last line if the session has ended, as it does with its account; b"" while it lasts."""
    try:
        check_session(request)
    except HTTPException as ended:
        return last_line(request, ended)
    return b""
