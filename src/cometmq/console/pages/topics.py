"""The list of topics, and the page that makes one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cometmq.admin.topics.records import TopicStats, stats_of
from cometmq.console.refusals import Refused
from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.console.views.fields import (
    choice_field,
    given_by,
    number_field,
    pairs_field,
    text_field,
)
from cometmq.console.views.names import topic_names
from cometmq.console.views.paging import Order, order_of, page_of
from cometmq.console.views.rendering import render, url, words
from cometmq.console.watching.asking import ask_each, gone_masters, in_time, masters_of
from cometmq.console.watching.recent import Known
from cometmq.errors import CometMQError, RouteNotFoundError
from cometmq.model.names import (
    DLQ_PREFIX,
    REPLY_TOPIC_POSTFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    is_retry_topic,
    is_system_topic,
)
from cometmq.model.route import TopicRouteData
from cometmq.model.sysflag import PERM_RW

if TYPE_CHECKING:
    from cometmq.console.state import Console

routes: Final = Routes()
KINDS: Final = {
    "normal": "Normal",
    "retry": "Retry",
    "dead": "Dead letters",
    "delayed": "Delayed",
    "system": "System",
    "all": "All",
}
# Topics are asked for one by one, so fewer of them are on a page.
LIST_ROWS: Final = 100
MOST_QUEUES: Final = 65_535
PERMISSIONS: Final = {"6": "read and write", "4": "read only", "2": "write only", "0": "none"}
MESSAGE_TYPES: Final = (
    "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED", "UNSPECIFIED"
)  # fmt: skip
TYPE: Final = "message.type"
_FIGURES: Final[Mapping[str, Callable[[TopicStats], float]]] = {
    "messages": lambda stats: stats.messages,
    "rate": lambda stats: stats.put_per_s,
    "last": lambda stats: stats.last_stored_ms or 0,
}
# The fields of a form that the address keeps after a failure.
_KEPT: Final = (
    "name", "where", "read_queues", "write_queues", "permission", "message_type", "order", "attributes"
)  # fmt: skip
_MOST_KEPT: Final = 1000
_ROW_AGE_S: Final = 4.0
_TYPES_AGE_S: Final = 15.0
_SYSTEM_AGE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Row:
    """Is a topic's row in the list."""

    route: Known[TopicRouteData]
    stats: Known[TopicStats]

    @property
    def error(self) -> CometMQError | None:
        """The reason why a part of the row is unknown, None if all of it is known."""
        return self.stats.error or self.route.error

    @property
    def brokers(self) -> list[str]:
        route = self.route.value
        return [] if route is None else sorted({at.broker_name for at in route.queue_datas})

    @property
    def queues(self) -> tuple[int, int]:
        """How many queues are read, and how many are written, at all brokers together."""
        found = [] if self.route.value is None else self.route.value.queue_datas
        return sum(at.read_queue_nums for at in found), sum(at.write_queue_nums for at in found)

    @property
    def permissions(self) -> list[str]:
        """The permissions at the brokers, in words: one text if they agree."""
        found = [] if self.route.value is None else self.route.value.queue_datas
        return list(dict.fromkeys(permission_name(at.perm) for at in found))


@routes.page("/topics")
async def listing(request: Request) -> Response:
    """Show the topics of a kind, a page at a time."""
    console = console_of(request)
    kind = request.query_params.get("kind", "normal")
    kind = kind if kind in KINDS else "normal"
    names = await topic_names(console)
    of_kind, missing = await _of_kind(console, names, kind)
    order = order_of(request, ("name", *_FIGURES), "name")
    rows = page_of(request, of_kind, text=str, key=str, most=LIST_ROWS)
    # A figure is known only for topics that were asked for, so longer lists are sorted only by
    # name.
    is_sortable = rows.total <= LIST_ROWS
    if order.by in _FIGURES and is_sortable:
        wanted = rows.query.lower()
        some = [name for name in of_kind if wanted in name.lower()]
        found = await ask_each(some, lambda name: _row(console, name))
        key = _by_figure(_FIGURES[order.by], {name: each.value for name, each in found.items()})
        rows = page_of(request, some, text=str, key=key, most=LIST_ROWS)
    else:
        order = Order("name", order.is_down)
        found = await ask_each(rows.rows, lambda name: _row(console, name))
    values = {
        "rows": rows,
        "found": {name: each.value for name, each in found.items()},
        "late": [each.error or (each.value and each.value.error) for each in found.values()],
        "missing": missing,
        # Name servers report no topics of these brokers any more.
        "gone": gone_masters(console),
        "kind": kind,
        "kinds": KINDS,
        "order": order,
        "is_sortable": is_sortable,
    }
    return render(request, "topics.html", values)


def _by_figure(
    figure: Callable[[TopicStats], float], rows: Mapping[str, Row | None]
) -> Callable[[str], tuple[float, str]]:
    """Return the key that sorts names by a figure; an unknown figure counts as less than 0."""

    def key(name: str) -> tuple[float, str]:
        row = rows.get(name)
        return (-1.0 if row is None or row.stats.value is None else figure(row.stats.value)), name

    return key


@routes.page("/topics/new")
async def new(request: Request) -> Response:
    """Show the form for a new topic; the address may fill it in."""
    console = console_of(request)
    masters = await in_time(masters_of(console))
    values = {
        "given": given_by(request),
        "clusters": sorted({at.cluster for at in masters.value or ()}),
        "masters": masters,
        "permissions": PERMISSIONS,
        "types": MESSAGE_TYPES,
    }
    return render(request, "topic_new.html", values)


@routes.action("/topics/new", what="create topic")
async def create(request: Request, form: Form) -> Action:
    """Make a topic that does not exist yet, in a cluster or at one broker."""
    console, name = console_of(request), text_field(form, "name")
    place = await _place(console, text_field(form, "where"))
    read = number_field(form, "read_queues", 1, MOST_QUEUES) or 8
    write = number_field(form, "write_queues", 1, MOST_QUEUES) or 8
    permission = int(choice_field(form, "permission", PERMISSIONS, "6"))
    message_type = choice_field(form, "message_type", ("", *MESSAGE_TYPES), "")
    attributes = pairs_field(form, "attributes")
    if message_type:
        attributes[TYPE] = message_type
    order, _ = form.get("order") == "true", words(request)

    async def perform() -> Outcome:
        if await _has(console, name, place):
            return Outcome("there is a topic of this name already; change that one", failed=True)
        done = await console.admin.topics.create(
            name,
            read_queues=read,
            write_queues=write,
            permission=permission,
            order=order,
            attributes=attributes,
            cluster=place.get("cluster"),
            broker=place.get("broker"),
        )
        return Outcome("created", [f"{address}: {_('created')}" for address in done])

    return Action(
        what="create topic",
        target=name,
        perform=perform,
        back=url("/topic", name=name),
        again=url("/topics/new", **{field: form.get(field, "")[:_MOST_KEPT] for field in _KEPT}),
        details={
            **place,
            "read_queues": read,
            "write_queues": write,
            "permission": permission,
            "order": order,
            "attributes": attributes,
        },
    )


async def _place(console: Console, where: str) -> dict[str, str]:
    """Return the cluster or broker that a form names. Raises HTTPException for one that is not there.

    No user may have the console ask an address of their choice.
    """
    masters = await masters_of(console)
    kind, _, name = where.partition(":")
    known = {
        "cluster": {at.cluster for at in masters},
        "broker": {at.broker_name for at in masters},
    }
    if name not in known.get(kind, ()):
        raise HTTPException(400, Refused.NO_PLACE(where=where))
    return {kind: name}


def permission_name(permission: int) -> str:
    """Return what a permission allows, in words."""
    return PERMISSIONS[str(permission & PERM_RW)]


async def _has(console: Console, name: str, place: Mapping[str, str]) -> bool:
    """Return whether the name servers know a topic at a broker, or at any of a cluster.

    So a topic that was made at some brokers only can still be made at the others.
    """
    try:
        route = await console.admin.topics.route(name)
    except RouteNotFoundError:
        return False
    clusters = {data.broker_name: data.cluster for data in route.broker_datas}
    return any(
        data.broker_name == place.get("broker")
        or clusters.get(data.broker_name) == place.get("cluster", "")
        for data in route.queue_datas
    )


async def stats_now(console: Console, name: str, age_s: float = 1.0) -> Known[TopicStats]:
    """Return what is known of a topic's queues. With an error, the value is that of some brokers."""
    asked = console.recent.get(
        ("topic stats", name), age_s, lambda: console.admin.topics.stats(name)
    )
    return await in_time(asked, lambda reported: stats_of(name, reported))


async def route_now(console: Console, name: str, age_s: float = 1.0) -> Known[TopicRouteData]:
    """Return a topic's route, or why it is not known."""
    return await in_time(
        console.recent.get(("route", name), age_s, lambda: console.admin.topics.route(name))
    )


def unknown_topic(request: Request, name: str) -> Response:
    """Say that the name servers know no topic of this name; brokers that are gone may have had it."""
    values = {"name": name, "gone": gone_masters(console_of(request))}
    return render(request, "topic_unknown.html", values, status=404)


def kind_of(name: str, system: frozenset[str]) -> str:
    """Return the kind of a topic by its name; `system` are the names of clusters and brokers."""
    if is_retry_topic(name):
        return "retry"
    if name.startswith(DLQ_PREFIX):
        return "dead"
    is_reply = name.endswith(f"_{REPLY_TOPIC_POSTFIX}")
    own = name.removesuffix(f"_{REPLY_TOPIC_POSTFIX}") if is_reply else name
    return "system" if is_system_topic(name) or own in system else "normal"


async def system_names(console: Console) -> frozenset[str]:
    """Return the names of clusters and brokers, of which brokers have topics for themselves."""
    found = await in_time(
        console.recent.get("system topics", _SYSTEM_AGE_S, console.admin.name_servers.system_topics)
    )
    return frozenset(found.value or ())


async def _of_kind(
    console: Console, names: list[str], kind: str
) -> tuple[list[str], list[CometMQError]]:
    """Return the names of one kind, and why the kind of others is unknown."""
    if kind == "all":
        return names, []
    if kind == "delayed":
        made, errors = await _delay_topics(console)
        delayed = {SCHEDULE_TOPIC, TIMER_TOPIC, *made}
        return [name for name in names if name in delayed], errors
    system = await system_names(console)
    return [name for name in names if kind_of(name, system) == kind], []


async def _delay_topics(console: Console) -> tuple[set[str], list[CometMQError]]:
    """Return the topics for delayed messages, and why some brokers do not report theirs.

    Brokers before 5.0 have none.
    """

    async def ask(address: str) -> set[str]:
        configs = await console.admin.topics.configs(broker=address)
        return {
            name
            for config in configs.values()
            for name, topic in config.items()
            if topic.attributes.get(TYPE) == "DELAY"
        }

    masters = await in_time(masters_of(console))
    found = await ask_each(
        [at.address for at in masters.value or ()],
        lambda address: console.recent.get(
            ("delay topics", address), _TYPES_AGE_S, lambda: ask(address)
        ),
    )
    answers: list[Known[Any]] = [masters, *found.values()]
    errors = [each.error for each in answers if each.error is not None]
    return {name for each in found.values() for name in each.value or ()}, errors


async def _row(console: Console, name: str) -> Row:
    return Row(
        *await asyncio.gather(
            route_now(console, name, _ROW_AGE_S), stats_now(console, name, _ROW_AGE_S)
        )
    )
