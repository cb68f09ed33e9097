"""Topics: the list, one topic, and the actions on it."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from cometmq.console.paging import page_of
from cometmq.console.recent import known
from cometmq.console.rendering import render, url
from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.model.names import DLQ_PREFIX, is_retry_topic, is_system_topic

routes: Final = Routes()
_LIST_AGE_S: Final = 3.0
KINDS: Final = ("normal", "retry", "dead", "system", "all")


@routes.page("/topics")
async def listing(request: Request) -> Response:
    """Show the names of all topics of a kind, a page at a time."""
    console = console_of(request)
    names = await console.recent.get("topics", _LIST_AGE_S, console.admin.topics.names)
    kind = request.query_params.get("kind", "normal")
    kind = kind if kind in KINDS else "normal"
    of_kind = [name for name in names if kind in ("all", _kind(name))]
    rows = page_of(request, of_kind, text=str, key=str)
    return render(request, "topics.html", {"rows": rows, "kind": kind, "kinds": KINDS})


@routes.page("/topic")
async def one(request: Request) -> Response:
    """Show a topic's queues."""
    console, name = console_of(request), request.query_params.get("name", "")
    stats = await known(
        console.recent.get(("topic stats", name), 1.0, lambda: console.admin.topics.stats(name))
    )
    return render(request, "topic.html", {"name": name, "stats": stats})


@routes.action("/topics/delete")
async def delete(request: Request, form: Form) -> Action:
    """Delete a topic and all of its messages."""
    console, name = console_of(request), form["name"]

    async def perform() -> Outcome:
        done = await console.admin.topics.delete(name)
        return Outcome("deleted", [str(address) for address in done or ()])

    return Action(
        what="delete topic",
        target=name,
        perform=perform,
        back=url("/topics"),
        preview=[f"The topic {name} and all of its messages go away on every broker, for good."],
    )


def _kind(name: str) -> str:
    if is_retry_topic(name):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead"
    return "system" if is_system_topic(name) else "normal"
