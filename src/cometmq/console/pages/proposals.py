"""Propose values for an input while a user types: names of each kind, and the newest message ids.

Pages do not hold the names, so they stay small however many names there are; the browser requests the
best ones here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from heapq import nsmallest
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cometmq.console.pages.producers import Seen, seen_at
from cometmq.console.routes import Routes, console_of
from cometmq.console.state import Console
from cometmq.console.views.names import group_names, topic_names
from cometmq.console.views.paging import MAX_QUERY
from cometmq.console.watching.asking import in_time, masters_of
from cometmq.model.names import is_retry_topic, is_system_group, is_system_topic

routes: Final = Routes()
MOST_PROPOSED: Final = 50
_MESSAGES: Final = 20

Names = Callable[[Console], Awaitable[Iterable[str]]]


async def _topics(console: Console) -> Iterable[str]:
    return (await in_time(topic_names(console))).value or ()


async def _groups(console: Console) -> Iterable[str]:
    known = (await in_time(group_names(console))).value
    names = known.value if known is not None else None
    return names or ()


async def _producers(console: Console) -> Iterable[str]:
    return {seen.group for seen in await _seen(console)}


async def _clients(console: Console) -> Iterable[str]:
    return {name for seen in await _seen(console) for name in (seen.group, seen.client.client_id)}


async def _seen(console: Console) -> Iterable[Seen]:
    masters = (await in_time(masters_of(console))).value or ()
    return (await seen_at(console, {at.broker_name: at.address for at in masters}))[0]


async def _brokers(console: Console) -> Iterable[str]:
    return {state.at.broker_name for state in console.watch.brokers}


async def _queues(console: Console) -> Iterable[str]:
    return [f"{name}:0" for name in await _brokers(console)]


async def _clusters(console: Console) -> Iterable[str]:
    return {state.at.cluster for state in console.watch.brokers}


_KINDS: Final[Mapping[str, Names]] = {
    "topics": _topics,
    "groups": _groups,
    "producers": _producers,
    "clients": _clients,
    "brokers": _brokers,
    "queues": _queues,
    "clusters": _clusters,
}


@routes.page("/propose")
async def propose(request: Request) -> Response:
    """Return names of a `kind` that contain `q`, the best ones first; none of an unknown kind.

    The list may lack names that the console does not know now; the input takes every text.
    """
    names_of = _KINDS.get(request.query_params.get("kind", ""))
    if names_of is None:
        return JSONResponse([])
    wanted = request.query_params.get("q", "")[:MAX_QUERY].strip().lower()
    found = (name for name in await names_of(console_of(request)) if wanted in name.lower())

    def rank(name: str) -> tuple[bool, bool, str]:
        own = is_system_topic(name) or is_retry_topic(name) or is_system_group(name)
        lower = name.lower()
        return own, not lower.startswith(wanted), lower

    return JSONResponse(nsmallest(MOST_PROPOSED, found, key=rank))


@routes.page("/propose/messages", reads_messages=True)
async def propose_messages(request: Request) -> Response:
    """Return the ids of the newest messages of a `topic`; none without a topic."""
    topic = request.query_params.get("topic", "").strip()
    if not topic:
        return JSONResponse([])
    page = await in_time(
        console_of(request).admin.messages.page(topic, count=_MESSAGES, body_bytes=0)
    )
    listed = page.value.messages if page.value is not None else ()
    return JSONResponse([each.message.msg_id for each in listed])
