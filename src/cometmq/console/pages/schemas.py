"""List the schemas by which bodies are decoded; operators give and delete them."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.console.schemas.store import KINDS, MAX_SCHEMA_NAME, Schema
from cometmq.console.views.rendering import render, url, words
from cometmq.errors import CometMQError

routes: Final = Routes()


@routes.page("/schemas")
async def listing(request: Request) -> Response:
    """Show the schemas, and the one that is named with its text."""
    schemas, name = console_of(request).schemas, request.query_params.get("name", "")
    values = {
        "schemas": schemas.all(),
        "chosen": schemas.take_draft(request.state.session.token) or schemas.get(name),
        "topic": request.query_params.get("topic", ""),
        "kinds": KINDS,
    }
    return render(request, "schemas.html", values)


@routes.action("/schemas/give", what="add schema")
async def give(request: Request, form: Form) -> Action:
    """Keep a schema, or replace the one of its name."""
    console = console_of(request)
    schema = Schema(
        form.get("name", "").strip()[: MAX_SCHEMA_NAME + 1],
        form.get("kind", ""),
        form.get("text", ""),
        form.get("topic", "").strip(),
        form.get("message", "").strip(),
    )

    async def perform() -> Outcome:
        try:
            kept = await console.schemas.put(schema)
        except CometMQError:
            console.schemas.keep_draft(request.state.session.token, schema)
            raise
        if not kept.message:
            return Outcome("kept")
        return Outcome("kept %(message)s", values={"message": kept.message})

    return Action(
        what="add schema",
        target=schema.name,
        perform=perform,
        back=url("/schemas", name=schema.name),
        details={"kind": schema.kind, "topic": schema.topic, "message": schema.message},
    )


@routes.action("/schemas/delete", what="delete schema")
async def delete(request: Request, form: Form) -> Action:
    """Forget a schema."""
    console, name, _ = console_of(request), form["name"], words(request)
    if console.schemas.get(name) is None:
        raise HTTPException(404, "there is no such schema")

    async def perform() -> Outcome:
        await console.schemas.delete(name)
        return Outcome("deleted")

    return Action(
        what="delete schema",
        target=name,
        perform=perform,
        back=url("/schemas"),
        preview=[
            _("The console forgets the schema %(name)s. Messages stay as they are.", name=name)
        ],
    )
