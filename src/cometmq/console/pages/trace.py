"""Trace: the events that clients noted of a message, on a timeline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cometmq.admin.messages.room import TraceEvent
from cometmq.console.limits import LimitMetError
from cometmq.console.refusals import Refused
from cometmq.console.routes import Routes, console_of
from cometmq.console.state import Console
from cometmq.console.views.rendering import render
from cometmq.console.views.timeline import timelines
from cometmq.console.watching.asking import gone_masters, in_time
from cometmq.console.watching.recent import Known, known_of
from cometmq.errors import IllegalArgumentError
from cometmq.model.message import MessageExt
from cometmq.model.names import TRACE_TOPIC, topic_fault
from cometmq.model.reports.keyed_text import text_of

routes: Final = Routes()
# If many messages share a key, only the first ones are shown.
MAX_MESSAGES: Final = 20
MAX_ID: Final = 255
# How long brokers may take to look up traces.
_WAIT_S: Final = 6.0


@routes.page("/trace", reads_messages=True)
async def trace(request: Request) -> Response:
    """Show the trace of the message whose id or key the address has."""
    console, query = console_of(request), request.query_params
    wanted = query.get("id", "").strip()
    trace_topic = query.get("trace_topic", "").strip() or TRACE_TOPIC
    if len(wanted) > MAX_ID:
        raise LimitMetError(
            400,
            Refused.CHARACTERS(field="id", count=len(wanted)),
            "MAX_ID",
            MAX_ID,
            Refused.GIVE_SHORTER(),
        )
    if fault := topic_fault(trace_topic):
        raise HTTPException(400, fault)
    values: dict[str, Any] = {
        "wanted": wanted,
        "trace_topic": trace_topic,
        "usual_topic": TRACE_TOPIC,
        "error": None,
        "lines": [],
        "more": 0,
        "gone": {},
    }
    if wanted:
        events: Known[list[TraceEvent]] = await in_time(
            console.admin.messages.trace(wanted, trace_topic=trace_topic),
            lambda reported: sorted(
                chain(*reported.values()), key=lambda event: event.timestamp_ms
            ),
            wait_s=_WAIT_S,
        )
        if isinstance(events.error, IllegalArgumentError):
            raise HTTPException(400, text_of(events.error))
        values["error"] = events.error
        # No name server knows which topics a lost broker had.
        values["gone"] = gone_masters(console)
        found = _first_messages(events.value or [])
        values["lines"] = timelines(found, await _stored(console, found))
        values["more"] = len({event.msg_id for event in events.value or ()}) - MAX_MESSAGES
    return render(request, "trace.html", values)


def _first_messages(events: Sequence[TraceEvent]) -> list[TraceEvent]:
    kept = list(dict.fromkeys(event.msg_id for event in events))[:MAX_MESSAGES]
    return [event for event in events if event.msg_id in kept]


async def _stored(
    console: Console, events: Sequence[TraceEvent]
) -> dict[str, Sequence[MessageExt]]:
    """Return the copies of each message in its topic, as far as the brokers report them."""
    topics = {event.msg_id: event.topic for event in events if event.topic}
    found = await asyncio.gather(
        *(
            known_of(partial(console.admin.messages.by_unique_id, topic, msg_id))
            for msg_id, topic in topics.items()
        )
    )
    return {msg_id: each.value or () for msg_id, each in zip(topics, found, strict=True)}
