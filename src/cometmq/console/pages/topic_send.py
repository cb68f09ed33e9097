"""Sends messages to a topic, to try it and those who consume it."""

from __future__ import annotations

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cometmq.console.asking import in_time
from cometmq.console.fields import asked, given_by, number_field, pairs_field, text_field
from cometmq.console.pages.topics import route_now
from cometmq.console.rendering import Say, render, url, words
from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.errors import CometMQError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult

routes: Final = Routes()
MOST_SENT: Final = 100
_MOST_SAID: Final = 5
_MOST_KEPT: Final = 1000
_KEPT: Final = ("tag", "keys", "broker", "queue", "count", "delay_level", "delay_seconds")
_MOST_QUEUE: Final = 2**31 - 1
_MOST_LEVEL: Final = 1000
_MOST_DELAY_S: Final = 366 * 24 * 3600


@routes.page("/topic/send")
async def form_to_send(request: Request) -> Response:
    """Show the form for a message; the address may fill it in."""
    console, name = console_of(request), asked(request, "name")
    route = await route_now(console, name)
    groups = await in_time(console.admin.groups.of_topic(name))
    queues = [] if route.value is None else route.value.publish_queues(name)
    values: dict[str, Any] = {
        "name": name,
        "given": given_by(request),
        "route": route,
        "brokers": sorted({queue.broker_name for queue in queues}),
        "groups": groups.value,
        "most_sent": MOST_SENT,
    }
    return render(request, "topic_send.html", values)


@routes.action("/topic/send", what="send message")
async def send(request: Request, form: Form) -> Action:
    """Send a message, once or several times."""
    console, name = console_of(request), text_field(form, "name")
    body = form.get("body", "").replace("\r\n", "\n").encode()
    if not body:
        raise HTTPException(400, "the message has no body; write at least one character")
    properties = pairs_field(form, "properties")
    tag, keys = form.get("tag", "").strip(), form.get("keys", "").split()
    level = number_field(form, "delay_level", 0, _MOST_LEVEL) or 0
    delay_s = number_field(form, "delay_seconds", 0, _MOST_DELAY_S)
    count = number_field(form, "count", 1, MOST_SENT) or 1
    queue, _ = _queue(form, name), words(request)

    def message() -> Message:
        return Message(
            name,
            body,
            tags=tag or None,
            keys=keys,
            properties=properties,
            delay_level=level,
            delay_ms=delay_s * 1000 if delay_s else None,
        )

    message()  # what cannot be is refused before the audit log says that it has begun

    async def perform() -> Outcome:
        sent: list[SendResult] = []
        for _turn in range(count):
            try:
                sent.append(await console.admin.messages.send(message(), queue=queue))
            except CometMQError as error:
                if not sent:
                    raise
                return _outcome(_, name, sent, count, error)
        return _outcome(_, name, sent, count)

    kept = {"name": name, **{field: form.get(field, "")[:_MOST_KEPT] for field in _KEPT}}
    # An address is no place for a long body; the browser has it one page back.
    short = form.get("body", "") if len(body) <= _MOST_KEPT else ""
    properties_text = form.get("properties", "")[:_MOST_KEPT]
    return Action(
        what="send message",
        target=name,
        perform=perform,
        back=url("/topic/send", **kept),
        again=url("/topic/send", **kept, body=short, properties=properties_text),
        details={
            "bytes": len(body),
            "tag": tag,
            "keys": keys,
            "count": count,
            "queue": "any" if queue is None else f"{queue.broker_name} {queue.queue_id}",
        },
    )


def _queue(form: Form, topic: str) -> MessageQueue | None:
    """Return the queue that a form names, None for any. Raises HTTPException."""
    broker = form.get("broker", "").strip()
    number = number_field(form, "queue", 0, _MOST_QUEUE)
    if number is None and not broker:
        return None
    if number is None or not broker:
        raise HTTPException(400, "a queue has a broker and a number; give both of them, or none")
    return MessageQueue(topic, broker, number)


def _outcome(
    _: Say, topic: str, sent: list[SendResult], count: int, error: CometMQError | None = None
) -> Outcome:
    lines = [
        _(
            "%(id)s: queue %(queue)s of %(broker)s, offset %(offset)s, %(status)s",
            id=at.msg_id,
            queue=at.queue.queue_id,
            broker=at.queue.broker_name,
            offset=at.queue_offset,
            status=at.status.value,
        )
        for at in sent[:_MOST_SAID]
    ]
    if len(sent) > _MOST_SAID:
        lines.append(_("… and %(count)s more", count=len(sent) - _MOST_SAID))
    shown_at = url("/message", id=sent[0].offset_msg_id, topic=topic)
    if error is not None:
        values = {"sent": len(sent), "count": count, "error": error}
        return Outcome(
            "sent %(sent)s of %(count)s, then: %(error)s",
            lines,
            failed=True,
            shown_at=shown_at,
            values=values,
        )
    if count == 1:
        return Outcome("sent", lines, shown_at=shown_at)
    return Outcome("sent %(count)s messages", lines, shown_at=shown_at, values={"count": count})
