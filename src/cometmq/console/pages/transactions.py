"""Transactions: half messages that wait for their end, and those that brokers gave up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cometmq.admin.messages.pages import MessagePage
from cometmq.admin.messages.waiting import HalfMessage, HalfMessages
from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.console.state import Console
from cometmq.console.views.paging import page_of
from cometmq.console.views.rendering import render, url, words
from cometmq.console.watching.asking import ask_each, gone_masters, lost_masters, masters_of
from cometmq.console.watching.recent import Known, known, known_of
from cometmq.errors import RouteNotFoundError
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC

routes: Final = Routes()
_AGE_S: Final = 2.0
_LISTED_BODY_BYTES: Final = 200
# Each broker's half messages may have 32 MiB until their bodies are dropped.
_AT_ONCE: Final = 4


@routes.page("/transactions", reads_messages=True)
async def transactions(request: Request) -> Response:
    """Show the half messages that wait, the oldest first, and those that were given up."""
    console = console_of(request)
    if request.query_params.get("kind") == "given-up":
        return await _given_up(request)
    names, lost = [at.broker_name for at in await masters_of(console)], await lost_masters(console)
    found = await ask_each(names, lambda name: _halves(console, name), at_once=_AT_ONCE)
    halves = [half for each in found.values() if each.value for half in each.value.messages]
    rows = page_of(
        request,
        halves,
        text=lambda half: " ".join(
            (half.topic, half.producer_group, half.message.msg_id, *half.message.keys)
        ),
        key=lambda half: (half.message.born_timestamp_ms, half.message.queue_offset),
    )
    values = {
        "rows": rows,
        "unknown": lost
        | {name: each.error for name, each in found.items() if each.error is not None},
        "cut": [name for name, each in found.items() if each.value and not each.value.is_all],
        "unsure": [name for name, each in found.items() if each.value and not each.value.is_sure],
        "now_ms": console.clock.now_ms(),
    }
    return render(request, "transactions.html", values)


async def _halves(console: Console, broker: str) -> HalfMessages:
    async def ask() -> HalfMessages:
        found = await console.admin.messages.halves(broker)
        for half in found.messages:
            half.message.body = b""  # nobody sees it here, and together they are large
        return found

    return await console.recent.get(("halves", broker), _AGE_S, ask)


async def _given_up(request: Request) -> Response:
    console = console_of(request)
    page: Known[MessagePage] = await known(
        console.admin.messages.page(
            TRANS_CHECK_MAX_TIME_TOPIC,
            cursor=request.query_params.get("cursor") or None,
            body_bytes=_LISTED_BODY_BYTES,
        )
    )
    if isinstance(page.error, RouteNotFoundError):
        # Brokers make the topic with the first one that they give up.
        page = Known(None)
    messages = page.value.messages if page.value is not None else ()
    rows = [
        {
            "message": each.message,
            "body_bytes": each.body_bytes,
            "topic": each.message.properties.get(p.REAL_TOPIC, ""),
            "producer_group": each.message.properties.get(p.PRODUCER_GROUP, ""),
            "checks": each.message.properties.get(p.TRANSACTION_CHECK_TIMES, ""),
        }
        for each in messages
    ]
    errors = dict(page.value.errors) if page.value is not None else {}
    # No name server knows which topics a lost broker had.
    errors = {**gone_masters(console), **errors}
    return render(request, "given_up.html", {"page": page, "rows": rows, "errors": errors})


@routes.action("/transactions/resume", what="resume transaction")
async def resume(request: Request, form: Form) -> Action:
    """Have the broker ask the producers again about a half message."""
    _, console, message = words(request), console_of(request), await _half(request, form["id"])
    preview = None
    if message.topic == TRANS_CHECK_MAX_TIME_TOPIC:
        preview = [
            _sentence(request, message),
            _("The broker begins a new transaction with it, and asks its producers again."),
            _(
                "It stays in this list. If it is resumed twice and both are committed, consumers get "
                "it twice."
            ),
        ]

    async def perform() -> Outcome:
        await console.admin.messages.resume_half(message.offset_msg_id)
        return Outcome("its producers are asked again")

    return _action(message, perform, preview, what="resume transaction")


@routes.action("/transactions/end", what="end transaction")
async def end(request: Request, form: Form) -> Action:
    """Commit or roll back a transaction in the place of its producer."""
    _, console, message = words(request), console_of(request), await _half(request, form["id"])
    if message.topic != TRANS_HALF_TOPIC:
        raise HTTPException(409, _("The broker gave this message up: it can only be resumed."))
    commits = form.get("verdict") == "commit"
    if not commits and form.get("verdict") != "discard":
        raise HTTPException(400, _("The form must say whether to commit or to discard."))

    async def perform() -> Outcome:
        await console.admin.messages.end_half(message, commit=commits)
        return Outcome("committed" if commits else "discarded")

    topic = message.properties.get(p.REAL_TOPIC, "")
    if commits:
        effect = _("All groups of topic %(topic)s get the message, at once.", topic=topic)
    else:
        effect = _("The message is dropped: no group of topic %(topic)s ever gets it.", topic=topic)
    preview = [
        _sentence(request, message),
        effect,
        _(
            "The broker no longer asks its producer. Make sure that this agrees with what the producer has done."
        ),
    ]
    return _action(
        message,
        perform,
        preview,
        what="commit transaction" if commits else "discard transaction",
    )


async def _half(request: Request, offset_msg_id: str) -> MessageExt:
    """Return the half message of an id. It is looked for at the masters that name servers know."""
    console = console_of(request)
    found = await asyncio.gather(
        known_of(lambda: console.admin.messages.find(offset_msg_id, TRANS_HALF_TOPIC)),
        known_of(lambda: console.admin.messages.find(offset_msg_id, TRANS_CHECK_MAX_TIME_TOPIC)),
    )
    for each in found:
        for message in each.value or ():
            if message.offset_msg_id == offset_msg_id:
                return message
    error = found[0].error
    if error is not None:
        raise error
    raise HTTPException(409, words(request)("This half message no longer exists."))


def _sentence(request: Request, message: MessageExt) -> str:
    _ = words(request)
    return _(
        "A message of producer group %(group)s to topic %(topic)s, with the key %(key)s.",
        group=message.properties.get(p.PRODUCER_GROUP, "–"),
        topic=message.properties.get(p.REAL_TOPIC, "–"),
        key=" ".join(message.keys) or "–",
    )


def _action(
    message: MessageExt,
    perform: Callable[[], Awaitable[Outcome]],
    preview: list[str] | None,
    *,
    what: str,
) -> Action:
    given_up = message.topic == TRANS_CHECK_MAX_TIME_TOPIC
    return Action(
        what=what,
        target=message.msg_id,
        perform=perform,
        back=url("/transactions", kind="given-up" if given_up else None),
        preview=preview,
        details={
            "offset_msg_id": message.offset_msg_id,
            "topic": message.properties.get(p.REAL_TOPIC, ""),
            "producer_group": message.properties.get(p.PRODUCER_GROUP, ""),
        },
    )


__all__ = ["HalfMessage", "routes"]
