"""Assemble the pages into an application."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from cometmq.console.limits import note
from cometmq.console.pages import (
    audit,
    brokers,
    delayed,
    group_actions,
    group_offsets,
    groups,
    letters,
    letters_export,
    login,
    message,
    messages,
    name_servers,
    overview,
    producers,
    proposals,
    reports,
    schemas,
    topic,
    topic_change,
    topic_send,
    topics,
    trace,
    transactions,
    why,
)
from cometmq.console.views.advice import is_not_there
from cometmq.console.views.rendering import HERE, render
from cometmq.console.web import live
from cometmq.console.web.guard import Guard
from cometmq.errors import CometMQError, IllegalArgumentError
from cometmq.model.reports.keyed_text import text_of

if TYPE_CHECKING:
    from cometmq.console.state import Console

PAGES: Final = (
    login,
    live,
    overview,
    brokers,
    name_servers,
    topics,
    topic,
    topic_change,
    topic_send,
    groups,
    group_actions,
    group_offsets,
    producers,
    proposals,
    messages,
    message,
    schemas,
    letters,
    letters_export,
    delayed,
    transactions,
    trace,
    why,
    reports,
    audit,
)


def create_app(console: Console) -> ASGIApp:
    """Return the application of a console that is started, behind its guard.

    The guard stands before all of Starlette: the page of a failure gets its headers, too.
    """
    routes: list[BaseRoute] = [
        Mount("/static", StaticFiles(directory=HERE / "static")),
        *(route for module in PAGES for route in module.routes.routes),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            CometMQError: _cluster_failed,
            IllegalArgumentError: _cannot_be,
            HTTPException: _refused,
            404: _refused,
            500: _failed,
        },
    )
    app.state.console = console
    return Guard(app, console, frozenset().union(*(module.routes.streams for module in PAGES)))


async def _cluster_failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, CometMQError)
    if is_not_there(error):
        return _error(request, 404, "The cluster does not have this", text_of(error))
    return _error(
        request, 502, "The cluster did not give the answer that this page needs", text_of(error)
    )


async def _cannot_be(request: Request, error: Exception) -> Response:
    return _error(request, 400, "The console cannot do this", text_of(error))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    note(request.app.state.console.limit_hits, error)
    titles = {403: "This is not allowed", 404: "This does not exist"}
    # Starlette's own details are the status in words, which says less than the title.
    is_said = error.detail != HTTPStatus(error.status_code).phrase
    title = titles.get(error.status_code, "The console cannot do this")
    if error.status_code == 404 and not is_said:
        title = "There is no such page"
    why = error.detail if is_said else "Check the address, or look for it in the menu."
    return _error(request, error.status_code, title, why)


async def _failed(request: Request, error: Exception) -> Response:
    del error  # it is in the log
    return _error(request, 500, "The console has failed", "The reason is in the console's log.")


def _error(request: Request, status: int, title: str, why: str) -> Response:
    values: dict[str, Any] = {"title": title, "why": why, "status": status}
    return render(request, "error.html", values, status=status)
