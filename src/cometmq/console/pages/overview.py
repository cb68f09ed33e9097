"""The first page: how the cluster does, and what needs attention first."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from cometmq.console.rendering import render
from cometmq.console.routes import Routes, console_of

routes: Final = Routes()


@routes.page("/")
async def overview(request: Request) -> Response:
    """Show rates, trends and brokers."""
    samples = list(console_of(request).watch.samples)
    trend = [
        [sample.at_ms // 1000 for sample in samples],
        [sample.messages_in for sample in samples],
        [sample.messages_out for sample in samples],
    ]
    values = {"sample": samples[-1] if samples else None, "trend": trend}
    return render(request, "overview.html", values)
