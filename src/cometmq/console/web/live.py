"""Send open pages an event when there is something new, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cometmq.console.routes import Routes, console_of
from cometmq.console.web.cookies import cookies_of

routes: Final = Routes()
_SILENCE_S: Final = 15.0


@routes.stream("/events")
async def events(request: Request) -> Response:
    """Send `refresh` after each sample that the watch takes; end with the session."""
    console = console_of(request)

    async def stream() -> AsyncIterator[str]:
        yield "retry: 5000\n\n"
        while True:
            try:
                await asyncio.wait_for(console.watch.next(), _SILENCE_S)
            except TimeoutError:
                yield ": nothing new\n\n"
                continue
            if console.is_ending:
                return
            cookie = cookies_of(request).get(console.cookie_name, "")
            if console.sessions.find(cookie, uses=False) is None:
                yield "event: ended\ndata: \n\n"
                return
            yield "event: refresh\ndata: \n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")
