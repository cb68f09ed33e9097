"""Send messages to a topic, to try the topic and its consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unicodedata import category

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cometmq.console.pages.topics import route_now, unknown_topic
from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.console.views.fields import (
    asked,
    given_by,
    number_field,
    pairs_field,
    text_field,
    too_long,
)
from cometmq.console.views.group_views import connections_of
from cometmq.console.views.names import groups_of_topic
from cometmq.console.views.paging import whole
from cometmq.console.views.rendering import Say, render, url, words
from cometmq.console.watching.asking import ask_each
from cometmq.errors import CometMQError, RouteNotFoundError
from cometmq.model import properties as p
from cometmq.model.message import Message, MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import SendResult

if TYPE_CHECKING:
    from cometmq.console.state import Console

routes: Final = Routes()
MOST_SENT: Final = 100
# Nobody edits a longer body in a form.
MAX_COPIED_BYTES: Final = 64 * 1024
# The tag and the keys have fields of their own; the other properties belong to the message that was
# sent.
_NOT_COPIED: Final = p.RESERVED | p.OF_ONE_SENDING | {p.TAGS, p.KEYS}
_MOST_SAID: Final = 5
_GROUPS_AGE_S: Final = 3.0
# Each group costs a question.
_MOST_GROUPS: Final = 10
_MOST_KEPT: Final = 1000
_KEPT: Final = ("tag", "keys", "broker", "queue", "count", "delay_level", "delay_seconds")
_MOST_QUEUE: Final = 2**31 - 1
# A message's properties, of which these are two, have 32,767 bytes together.
MAX_TAG_OR_KEYS: Final = 32 * 1024
_MOST_LEVEL: Final = 1000
_MOST_DELAY_S: Final = 366 * 24 * 3600


class Copy(NamedTuple):
    """Holds the first values of the form, and the parts of their message that the form cannot hold."""

    message: MessageExt
    has_body: bool
    left_out: list[str]


class Receivers(NamedTuple):
    """Holds the groups connected with a topic, by whether they get its messages now."""

    subscribed: list[str]
    # Without a member now: its next member decides.
    offline: list[str]
    # Online, with an offset in the topic from earlier.
    unsubscribed: list[str]
    unknown: list[str]
    # How many groups were not asked about.
    more: int


@routes.page("/topic/send")
async def form_to_send(request: Request) -> Response:
    """Show the form for a message; the address may fill it in, or name a message to begin with."""
    console, name = console_of(request), asked(request, "name")
    given, copy = given_by(request), None
    if given["like_topic"]:
        copy, fields = await _copy(console, request.query_params, whole(request, "like_offset", 0))
        given.update(fields)
    route = await route_now(console, name)
    if isinstance(route.error, RouteNotFoundError):
        return unknown_topic(request, name)
    groups = await groups_of_topic(console, name, _GROUPS_AGE_S)
    receivers = await _receivers(console, name, groups.value or [])
    queues = [] if route.value is None else route.value.publish_queues(name)
    values: dict[str, Any] = {
        "name": name,
        "given": given,
        "copy": copy,
        "most_copied": MAX_COPIED_BYTES,
        "route": route,
        "brokers": sorted({queue.broker_name for queue in queues}),
        "groups": groups,
        "receivers": receivers,
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
    for field in ("tag", "keys"):
        if len(form.get(field, "")) > MAX_TAG_OR_KEYS:
            raise too_long(field, len(form[field]), "MAX_TAG_OR_KEYS", MAX_TAG_OR_KEYS)
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

    message()  # an impossible message is refused before the audit log says that the action has begun

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
    # A long body does not fit into an address; the browser still has it one page back.
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
            "keys": " ".join(keys),
            "count": count,
            "queue": "any" if queue is None else f"{queue.broker_name} {queue.queue_id}",
        },
    )


async def _receivers(console: Console, topic: str, groups: list[str]) -> Receivers:
    """Sort the groups of a topic: brokers also name groups that only have an offset there."""
    asked = await ask_each(groups[:_MOST_GROUPS], lambda group: connections_of(console, group))
    found = Receivers([], [], [], [], max(0, len(groups) - _MOST_GROUPS))
    for group, answer in asked.items():
        members = answer.value
        if members is None or members.error is not None:
            found.unknown.append(group)
        elif members.value is None:
            found.offline.append(group)
        elif members.value.subscribes(topic) is False:
            found.unsubscribed.append(group)
        elif members.value.subscribes(topic):
            found.subscribed.append(group)
        else:
            found.unknown.append(group)
    return found


async def _copy(
    console: Console, given: Mapping[str, str], offset: int
) -> tuple[Copy, dict[str, str]]:
    """Return the message at the place that an address names, and the fields of a form like it."""
    broker, _, number = given.get("like_queue", "").rpartition(":")
    if not broker or not (number.isascii() and number.isdigit() and len(number) < 10):
        raise HTTPException(400, "name the queue as broker:number")
    queue = MessageQueue(given["like_topic"], broker, int(number))
    message = await console.admin.messages.by_offset(queue, offset)
    if message is None:
        raise HTTPException(404, "the message no longer exists")
    body = _text(message.body)
    own = {name: at for name, at in message.properties.items() if name not in _NOT_COPIED}
    left_out = sorted(name for name, value in own.items() if not _is_line(name, value))
    fields = {
        "body": body or "",
        "tag": message.tags or "",
        "keys": " ".join(message.keys),
        "properties": "\n".join(f"{name}={own[name]}" for name in own if name not in left_out),
    }
    return Copy(message, body is not None, left_out), fields


def _text(body: bytes) -> str | None:
    """Return a body as a form gives it back byte by byte; None for one that it would change."""
    try:
        text = body.decode() if len(body) <= MAX_COPIED_BYTES else "\0"
    except UnicodeDecodeError:
        return None
    # Browsers send all ends of lines in one kind, and nobody sees control characters in a form.
    return None if _has_controls(text, but="\n\t") else text


def _has_controls(text: str, but: str = "") -> bool:
    return any(category(letter) == "Cc" and letter not in but for letter in text)


def _is_line(name: str, value: str) -> bool:
    """Return whether a property is the same when it is read from a line of a form."""
    are_lines = all(
        text.strip().splitlines() == [text] and not _has_controls(text) for text in (name, value)
    )
    return are_lines and "=" not in name


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
