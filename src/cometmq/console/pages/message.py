"""Show one message: its body, its properties, who has consumed it; send or consume it again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cometmq.admin.messages.reading import address_of
from cometmq.admin.messages.room import MessageTrack, TrackKind
from cometmq.console.pages.messages import Row, link_of
from cometmq.console.refusals import Refused
from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.console.schemas import bodies
from cometmq.console.schemas.bodies import Shown
from cometmq.console.views.advice import is_not_there
from cometmq.console.views.names import groups_of_topic
from cometmq.console.views.paging import Slice, page_of, whole
from cometmq.console.views.rendering import Say, localized, moment, render, url, words
from cometmq.console.watching.asking import ask_each, brokers_of, gone_masters, in_time
from cometmq.errors import CometMQError, IllegalArgumentError
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.names import CLOSED_TOPICS, SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.model.queue import MessageQueue
from cometmq.model.reports.keyed_text import text_of
from cometmq.model.sysflag import COMPRESSED

if TYPE_CHECKING:
    from cometmq.console.state import Console

routes: Final = Routes()
_PLACE: Final = ("topic", "broker", "queue", "offset", "id")
_AGE_S: Final = 2.0
# The program sets tag and keys, but they are at the top of the page already.
_SYSTEM: Final = p.RESERVED | p.OF_ONE_SENDING | {p.TAGS, p.KEYS}
# Larger messages are requested each time: hundreds of them would fill the memory within these seconds.
_MOST_KEPT_BYTES: Final = 64 * 1024
# The share of the page's time for the groups' names, and for the message's fate in each.
_DECODE_WAIT_S: Final = 6.0


@dataclass(frozen=True, slots=True)
class Consumers:
    """Shows what became of a message in the groups of its topic, a page of them at a time."""

    groups: Slice[str]
    tracks: list[MessageTrack]
    # Why further groups of the topic are not known.
    error: CometMQError | None


@routes.page("/message", reads_messages=True)
async def one(request: Request) -> Response:
    """Show a message, or which messages have its id."""
    place = _place(request.query_params)
    found = await in_time(_find(console_of(request), place), _joined)
    if not found.value or len(found.value) > 1:
        rows = [Row(each, len(each.body)) for each in found.value or ()]
        # No name server knows which topics a lost broker had.
        gone = {} if rows else gone_masters(console_of(request))
        is_missing = not rows and (found.error is None or is_not_there(found.error))
        return render(
            request,
            "message_choice.html",
            {"found": found, "rows": rows, "place": place, "gone": gone},
            status=404 if is_missing else 200,
        )
    message = found.value[0]
    consumers = await in_time(_consumers(request, message))
    group = request.query_params.get("group", "")
    members = await in_time(console_of(request).admin.groups.connections(group)) if group else None
    values = {
        "error": found.error,
        "message": message,
        "place": _place_of(message),
        "shown": await _shown(request, message),
        "is_compressed": bool(message.sys_flag & COMPRESSED),
        "kinds": bodies.KINDS,
        "charsets": bodies.CHARSETS,
        "schemas": console_of(request).schemas.all(),
        "consumers": consumers,
        "group": group,
        "members": members,
        "facts": _facts(message, words(request)),
        "visible": bodies.visible,
        "properties": _by_origin(message.properties),
        "can_resend": message.topic not in CLOSED_TOPICS,
        "origin": message.properties.get(p.RETRY_TOPIC, message.topic),
        "can_recall": message.topic == TIMER_TOPIC,
        "waits_by_level": message.topic == SCHEDULE_TOPIC,
    }
    return render(request, "message.html", values)


@routes.page("/message/body", reads_messages=True)
async def body(request: Request) -> Response:
    """Send a body as it is, byte for byte, as a file."""
    found = await _find(console_of(request), _place(request.query_params))
    if len(found) != 1:
        raise HTTPException(404, "there is no such message, or there are several with this id")
    message = found[0]
    name = f"{message.topic}-{message.broker_name}-{message.queue_id}-{message.queue_offset}.bin"
    disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    return Response(
        message.body,
        media_type="application/octet-stream",
        headers={"content-disposition": disposition, "content-security-policy": "sandbox"},
    )


@routes.action("/message/resend", what="send again")
async def resend(request: Request, form: Form) -> Action:
    """Send a message once more to its queue."""
    console, message = console_of(request), await _only(request, form)
    _ = words(request)
    if message.topic in CLOSED_TOPICS:
        raise HTTPException(
            409, _("It waits in a topic of the broker's own, to which nobody sends.")
        )

    async def perform() -> Outcome:
        sent = await console.admin.messages.resend(message)
        return Outcome(
            "sent to %(queue)s at offset %(offset)s (%(status)s)",
            values={
                "queue": f"{sent.queue.broker_name}:{sent.queue.queue_id}",
                "offset": sent.queue_offset,
                "status": sent.status.name,
            },
            shown_at=url(
                "/message",
                topic=sent.queue.topic,
                broker=sent.queue.broker_name,
                queue=sent.queue.queue_id,
                offset=sent.queue_offset,
            ),
        )

    return Action(
        what="send again",
        target=message.msg_id,
        perform=perform,
        back=link_of(message),
        preview=[
            _("The message goes to topic %(topic)s once more, under its id.", topic=message.topic),
            _("Every group of the topic gets it again, so consumers may process it twice."),
        ],
        details=_place_of(message),
    )


@routes.action("/message/consume", what="consume directly")
async def consume(request: Request, form: Form) -> Action:
    """Have one member of a group consume a message, outside its queues."""
    console, message = console_of(request), await _only(request, form)
    _ = words(request)
    group, client = form.get("group", ""), form.get("client", "")
    if not group or not client:
        raise HTTPException(400, "choose a group and one of its members")

    async def perform() -> Outcome:
        done = await console.admin.messages.consume_directly(
            group, client, message.offset_msg_id, message.topic
        )
        remark = [done.remark] if done.remark else []
        return Outcome(
            "%(client)s of group %(group)s answered %(result)s after %(spent)s ms",
            remark,
            failed=done.result != "CR_SUCCESS",
            values={
                "client": client,
                "group": group,
                "result": done.result,
                "spent": done.spent_ms,
            },
        )

    return Action(
        what="consume directly",
        target=message.msg_id,
        perform=perform,
        back=link_of(message),
        preview=[
            _(
                "%(client)s of group %(group)s gets the message once more, even if it has consumed it.",
                client=client,
                group=group,
            ),
            _("The group's offsets stay as they are."),
        ],
        details={**_place_of(message), "group": group, "client": client},
    )


@routes.action("/message/recall", what="recall")
async def recall(request: Request, form: Form) -> Action:
    """Keep the broker from delivering a delayed message."""
    console, message = console_of(request), await _only(request, form)
    _ = words(request)

    async def perform() -> Outcome:
        await console.admin.messages.recall(message)
        return Outcome("the broker will not deliver it")

    return Action(
        what="recall",
        target=message.msg_id,
        perform=perform,
        # Its own page would show it as it lies in the broker's log, as if it still waited.
        back="/delayed",
        again=link_of(message),
        preview=[_("The message waits for its time. Recalled, it is never delivered to anybody.")],
        details=_place_of(message),
    )


async def _find(console: Console, place: Mapping[str, str]) -> list[MessageExt]:
    """Return the messages at a place, or with an id. Raises CometMQError."""
    key = ("message", *place.values())
    found = await _asked(console, place, key)
    if sum(len(each.body) for each in found) > _MOST_KEPT_BYTES:
        console.recent.drop(key)
    return found


async def _asked(
    console: Console, place: Mapping[str, str], key: tuple[str, ...]
) -> list[MessageExt]:
    topic, messages = place["topic"], console.admin.messages
    if place["broker"]:
        if not topic:
            raise IllegalArgumentError(Refused.QUEUE_WITHOUT_TOPIC())
        queue = MessageQueue(topic, place["broker"], _number("queue", place["queue"]))
        offset = _number("offset", place["offset"])
        at = await console.recent.get(key, _AGE_S, lambda: messages.by_offset(queue, offset))
        return [at] if at is not None else []
    if not place["id"]:
        raise IllegalArgumentError(Refused.NO_MESSAGE_NAMED())
    if topic:
        return await console.recent.get(key, _AGE_S, lambda: messages.find(place["id"], topic))
    # An id holds an address. The console signs its requests, so it sends them to the cluster only.
    address = address_of(place["id"])
    if address not in {at.address for at in await brokers_of(console)}:
        raise IllegalArgumentError(Refused.OTHER_CLUSTER(message=place["id"], address=address))
    return [await console.recent.get(key, _AGE_S, lambda: messages.by_id(place["id"]))]


def _joined(by_id: Mapping[str, list[MessageExt]]) -> list[MessageExt]:
    """Join what some brokers found under an id, the oldest first."""
    found = [message for each in by_id.values() for message in each]
    return sorted(found, key=lambda message: message.store_timestamp_ms)


async def _only(request: Request, form: Form) -> MessageExt:
    try:
        found = await _find(console_of(request), _place(form))
    except IllegalArgumentError as error:
        raise HTTPException(400, text_of(error)) from error
    if len(found) != 1:
        raise HTTPException(404, "the message no longer exists, or there are several")
    return found[0]


async def _shown(request: Request, message: MessageExt) -> Shown:
    """Return what to show of the body, by the address and the schema of the topic."""
    query, schemas = request.query_params, console_of(request).schemas
    kind, charset = query.get("as", "auto"), query.get("charset", "utf-8")
    kind = kind if kind in (*bodies.KINDS, "schema") else "auto"
    name = query.get("schema", "")
    schema = schemas.get(name) if name else None
    if schema is None and kind == "auto":
        schema = schemas.of_topic(message.properties.get(p.REAL_TOPIC, message.topic))
    hint = ""
    if schema is not None and kind in ("auto", "schema"):
        decoded = await in_time(
            schemas.decode(schema, message.body), wait_s=_DECODE_WAIT_S, who="the decoder"
        )
        if decoded.value is not None:
            (text, hint), size = decoded.value, len(message.body)
            shown_text = await asyncio.to_thread(bodies.visible, text)
            return Shown(schema.name, shown_text, 0, size, size, hint)
        if decoded.error is not None:
            console_of(request).limit_hits.note(decoded.error)
        hint = f"{schema.name}: {localized(request, decoded.error)}"
    shown = await asyncio.to_thread(
        bodies.show,
        message.body,
        "auto" if kind == "schema" else kind,
        charset,
        words(request),
        first=whole(request, "from", 0),
        more=query.get("more") == "1",
    )
    if hint:
        return Shown(shown.kind, shown.text, shown.first, shown.shown, shown.total, hint)
    return shown


async def _consumers(request: Request, message: MessageExt) -> Consumers:
    console, topic, link = console_of(request), message.topic, link_of(message)
    messages = console.admin.messages
    names = await groups_of_topic(console, topic, _AGE_S)
    rows = page_of(request, names.value or (), text=str, key=str)

    async def ask(group: str) -> MessageTrack:
        (track,) = await console.recent.get(
            ("track", link, group), _AGE_S, lambda: messages.tracks(message, groups=[group])
        )
        return track

    answers = await ask_each(rows.rows, ask)
    unknown = TrackKind.UNKNOWN
    tracks = [
        at.value or MessageTrack(g, unknown, "" if at.error is None else text_of(at.error))
        for g, at in answers.items()
    ]
    return Consumers(rows, tracks, names.error)


def _facts(message: MessageExt, _: Say) -> list[tuple[str, str, str]]:
    """Return what the properties say of a message's way: for each a sentence, a value, its page."""
    given = message.properties
    found: list[tuple[str, str, str]] = []
    real, origin = given.get(p.REAL_TOPIC), given.get(p.ORIGIN_MESSAGE_ID)
    due = given.get(p.TIMER_OUT_MS, "") if message.topic == TIMER_TOPIC else ""
    retried = given.get(p.RETRY_TOPIC)
    if real and real != message.topic:
        found.append((_("It waits for topic"), real, url("/topic", name=real)))
    if due.isascii() and due.isdigit() and len(due) <= 18:
        found.append((_("It is due"), moment(int(due)), ""))
    if retried:
        found.append((_("It was first sent to topic"), retried, url("/topic", name=retried)))
    if origin:
        found.append((_("It is a copy of"), origin, url("/message", id=origin, topic=retried)))
    if message.reconsume_times:
        found.append((_("Delivered again, times"), str(message.reconsume_times), ""))
    if (failure := message.failure) is not None:
        cause = f"{failure.type}: {failure.text}" if failure.text else failure.type
        found.append((_("The delivery before failed"), f"{cause} ({failure.member})", ""))
    return found


def _by_origin(given: Mapping[str, str]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Separate the properties that the sender's program set from those that clients and brokers
    set.
    """
    own = [(name, value) for name, value in sorted(given.items()) if name not in _SYSTEM]
    others = [(name, value) for name, value in sorted(given.items()) if name in _SYSTEM]
    return [
        (heading, found)
        for heading, found in (("Set by its sender", own), ("Set by clients and brokers", others))
        if found
    ]


def _place(given: Mapping[str, str]) -> dict[str, str]:
    return {name: given.get(name, "").strip()[:300] for name in _PLACE}


def _place_of(message: MessageExt) -> dict[str, str]:
    return {
        "topic": message.topic,
        "broker": message.broker_name,
        "queue": str(message.queue_id),
        "offset": str(message.queue_offset),
    }


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise IllegalArgumentError(Refused.NO_MESSAGE_NUMBER(field=name, text=text))
    return int(text)
