"""Find messages: by topic and time, by key, by id, by place; and follow a topic live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from cometmq.admin.messages.pages import ListedMessage, MessagePage, Order
from cometmq.admin.messages.room import FoundMessages
from cometmq.console.limits import LimitMetError, note
from cometmq.console.pages.topics import kind_of, route_now, system_names, unknown_topic
from cometmq.console.refusals import Refused
from cometmq.console.routes import Routes, account_of, console_of
from cometmq.console.schemas.bodies import snippet
from cometmq.console.state import Console
from cometmq.console.views.names import topic_names
from cometmq.console.views.paging import MAX_QUERY, whole
from cometmq.console.views.rendering import fragment, localized, render, url
from cometmq.console.views.times import time_ms
from cometmq.console.watching.asking import gone_masters, in_time
from cometmq.console.watching.recent import Known
from cometmq.console.web.cookies import cookies_of
from cometmq.errors import CometMQError, IllegalArgumentError, RouteNotFoundError
from cometmq.model.message import MessageExt

routes: Final = Routes()
WAYS: Final = ("time", "tail", "key", "id", "offset")
MAX_TAILS: Final = 20
_PAGE_ROWS: Final = 50
_TAIL_ROWS: Final = 50
_MAX_OFFERED: Final = 20
_TAIL_PAUSE_S: Final = 1.0
# A look at many queues, or a search in many messages, is much work: brokers then rest for this many
# times its duration.
_TAIL_REST: Final = 4.0
_LISTED_BODY_BYTES: Final = 256
# How long a broker may take before a page is shown without its messages.
_WAIT_S: Final = 2.0
_PAGE_WAIT_S: Final = 6.0
_NO_END_MS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Row:
    """Is a line of a list of messages."""

    message: MessageExt
    body_bytes: int

    @property
    def link(self) -> str:
        return link_of(self.message)

    @property
    def snippet(self) -> str:
        return snippet(self.message.body)


def link_of(message: MessageExt) -> str:
    """Return the address of a message's page: its place, which no other message has."""
    return url(
        "/message",
        topic=message.topic,
        broker=message.broker_name,
        queue=message.queue_id,
        offset=message.queue_offset,
    )


@routes.page("/messages", reads_messages=True)
async def listing(request: Request) -> Response:
    """Show the form, and what it finds."""
    query = request.query_params
    way = query.get("by", "time")
    way = way if way in WAYS else "time"
    topic = query.get("topic", "").strip()
    values: dict[str, Any] = {
        "way": way,
        "ways": WAYS,
        "topic": topic,
        "query": query,
        "page": None,
        "found": None,
        "ended_by": {},
        "gone": {},
    }
    if way == "id" and query.get("id"):
        return RedirectResponse(url("/message", topic=topic, id=query["id"].strip()), 303)
    if way == "offset" and topic and query.get("offset"):
        place = {name: query.get(name, "").strip() for name in ("broker", "queue", "offset")}
        return RedirectResponse(url("/message", topic=topic, **place), 303)
    if topic and way in ("time", "tail"):
        values["page"] = await in_time(
            _page(request, topic, is_tail=way == "tail"), wait_s=_PAGE_WAIT_S
        )
    elif topic and way == "key" and query.get("key"):
        keyed = await in_time(_by_key(request, topic), FoundMessages.joined, wait_s=_PAGE_WAIT_S)
        values["found"] = keyed
        if keyed.value is not None:
            values["found"] = Known(_listed(keyed.value), keyed.error)
            values["ended_by"] = keyed.value.ended_by
    asked = values["page"] or values["found"]
    if asked is not None:
        if isinstance(asked.error, RouteNotFoundError):
            return unknown_topic(request, topic)
        # No name server knows which topics a lost broker had.
        route = await route_now(console_of(request), topic)
        clusters = {data.cluster for data in route.value.broker_datas} if route.value else ()
        values["gone"] = gone_masters(console_of(request), clusters)
    values["rows_of"] = lambda listed: [Row(each.message, each.body_bytes) for each in listed]
    values["offered"] = await _offered(console_of(request)) if not topic else []
    return render(request, "messages.html", values)


async def _offered(console: Console) -> list[str]:
    """Return the topics that programs use, for a link to each; an empty list if there are many."""
    names = await in_time(topic_names(console))
    system = await system_names(console)
    offered = [name for name in names.value or () if kind_of(name, system) == "normal"]
    return offered if len(offered) <= _MAX_OFFERED else []


@routes.stream("/messages/tail")
async def tail(request: Request) -> Response:
    """Send the rows of new messages, as server-sent events, until the session ends."""
    console = console_of(request)
    _check_tails(request)
    following = _Tail(request, *_selection(request))

    async def stream() -> AsyncIterator[str]:
        try:
            _check_tails(request)  # others may have begun meanwhile
        except LimitMetError as error:
            note(console.limit_hits, error)
            yield _event("failed", localized(request, error.detail))
            return
        account = account_of(request)
        console.tails.take(account)
        try:
            yield "retry: 5000\n\n"
            cookie = cookies_of(request).get(console.cookie_name, "")
            while not console.is_ending:
                if console.sessions.find(cookie, uses=False) is None:
                    yield _event("ended", "")
                    return
                async with console.message_reads.turn(account):
                    began_s = console.clock.monotonic()
                    events = await following.look()
                    took_s = console.clock.monotonic() - began_s
                for event in events:
                    yield event
                await asyncio.sleep(max(_TAIL_PAUSE_S, _TAIL_REST * took_s))
        finally:
            console.tails.give_back(account)

    return StreamingResponse(stream(), media_type="text/event-stream")


def _check_tails(request: Request) -> None:
    tails = console_of(request).tails
    tails.check(
        account_of(request),
        Refused.FOLLOWING_PAGES(count=tails.count),
        "MAX_TAILS",
        MAX_TAILS,
        Refused.CLOSE_PAGES(),
        status=503,
    )


class _Tail:
    """Follows a topic for one page, from the cursor in the address on."""

    def __init__(self, request: Request, tags: str, matches: Callable[[MessageExt], bool] | None):
        self._request = request
        self._tags = tags
        self._matches = matches
        self._topic = request.query_params.get("topic", "")
        # A browser that connects again sends the id of the last event that it got.
        self._cursor = request.headers.get("last-event-id") or request.query_params.get(
            "cursor", ""
        )

    async def look(self) -> list[str]:
        """Return the events of messages that have come since the last look; a comment if none
        have.
        """
        try:
            page = await console_of(self._request).admin.messages.page(
                self._topic,
                order=Order.OLDEST,
                tags=self._tags,
                matches=self._matches,
                cursor=self._cursor,
                count=_TAIL_ROWS,
                body_bytes=_LISTED_BODY_BYTES,
            )
        except CometMQError as error:
            return [_event("failed", localized(self._request, error))]
        events = [
            _event("failed", f"{name}: {localized(self._request, error)}")
            for name, error in page.errors.items()
        ]
        self._cursor = page.newest if page.next is None or page.messages else page.next
        if page.messages:
            rows = [Row(each.message, each.body_bytes) for each in reversed(page.messages)]
            text = fragment(self._request, "message_rows.html", {"rows": rows})
            events.append(f"id: {self._cursor}\n{_event('rows', text)}")
        if page.next is not None and page.messages:
            # They come faster than anybody reads.
            events.append(_event("skipped", ""))
        return events or [": nothing new\n\n"]


async def _page(request: Request, topic: str, *, is_tail: bool) -> MessagePage:
    query = request.query_params
    tags, matches = _selection(request)
    queue = None
    if query.get("queue"):
        broker, colon, number = query["queue"].strip().rpartition(":")
        if not colon or not (number.isascii() and number.isdigit() and len(number) < 10):
            raise IllegalArgumentError(Refused.NO_QUEUE())
        queue = broker, int(number)
    now_ms = console_of(request).clock.now_ms()
    return await console_of(request).admin.messages.page(
        topic,
        order=Order.NEWEST if is_tail or query.get("order") != "oldest" else Order.OLDEST,
        begin_ms=0 if is_tail else _time(query.get("begin", ""), now_ms, 0),
        end_ms=_NO_END_MS if is_tail else _time(query.get("end", ""), now_ms, _NO_END_MS),
        tags=tags,
        matches=matches,
        queue=queue,
        cursor=None if is_tail else query.get("cursor"),
        count=min(max(whole(request, "rows", 20 if is_tail else _PAGE_ROWS), 1), 500),
        body_bytes=_LISTED_BODY_BYTES,
        wait_s=_WAIT_S,
    )


async def _by_key(request: Request, topic: str) -> FoundMessages:
    query, now_ms = request.query_params, console_of(request).clock.now_ms()
    return await console_of(request).admin.messages.by_key(
        topic,
        query["key"].strip(),
        begin_ms=_time(query.get("begin", ""), now_ms, 0),
        end_ms=_time(query.get("end", ""), now_ms, _NO_END_MS),
    )


def _listed(found: Iterable[MessageExt]) -> list[ListedMessage]:
    return [ListedMessage(message, len(message.body)) for message in found]


def _selection(request: Request) -> tuple[str, Callable[[MessageExt], bool] | None]:
    """Return the tags to ask the brokers for, and the other conditions that a message must
    fulfil.
    """
    query = request.query_params
    tags = query.get("tags", "").strip()[:MAX_QUERY] or "*"
    text = query.get("text", "")[:MAX_QUERY]
    if not text:
        return tags, None
    wanted = text.encode()

    def matches(message: MessageExt) -> bool:
        return wanted in message.body or any(text in value for value in message.properties.values())

    return tags, matches


def _time(text: str, now_ms: int, default: int) -> int:
    return time_ms(text, now_ms) if text.strip() else default


def _event(name: str, data: str) -> str:
    lines = "".join(f"data: {line}\n" for line in data.splitlines() or [""])
    return f"event: {name}\n{lines}\n"
