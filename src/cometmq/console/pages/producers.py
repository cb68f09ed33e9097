"""The producers that are connected: all of them, those of a group, those at the brokers of a topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from cometmq.admin.groups.producers import SeenProducer
from cometmq.admin.groups.records import Connection
from cometmq.console.routes import Routes, console_of
from cometmq.console.views.fields import MAX_NAME
from cometmq.console.views.paging import page_of
from cometmq.console.views.rendering import render
from cometmq.console.watching.asking import (
    ask_each,
    gone_masters,
    in_time,
    lost_masters,
    masters_of,
)
from cometmq.errors import CometMQError, RouteNotFoundError

if TYPE_CHECKING:
    from cometmq.console.state import Console

routes: Final = Routes()
_AGE_S: Final = 3.0
# Groups of internal producers: each client that writes traces has one, and each of Java's has one to
# send failed messages back.
_OF_CLIENTS: Final = ("_INNER_TRACE_PRODUCER", "CLIENT_INNER_PRODUCER")


@dataclass(slots=True)
class Seen:
    """Describes a client in a producer group: the brokers to which it is connected, and the time of
    its last heartbeat, in ms since the epoch; 0 if no broker reports it.
    """

    group: str
    client: Connection
    brokers: list[str] = field(default_factory=list)
    last_seen_ms: int = 0

    @property
    def rank(self) -> tuple[bool, str, str]:
        """The sort key in a list: by name, the internal producers of clients at the end."""
        return self.group.startswith(_OF_CLIENTS), self.group, self.client.client_id

    @property
    def text(self) -> str:
        return f"{self.group} {self.client.client_id} {self.client.address}"


@routes.page("/producers")
async def producers(request: Request) -> Response:
    """Show producers. With a group and a topic the request is one that brokers of all versions
    know.
    """
    console = console_of(request)
    group = request.query_params.get("group", "").strip()[:MAX_NAME]
    topic = request.query_params.get("topic", "").strip()[:MAX_NAME]
    errors: Mapping[str, CometMQError]
    if group and topic:
        found, errors = await _named(console, group, topic)
    else:
        found, errors = await _seen_producers(console, topic)
        found = [seen for seen in found if group in ("", seen.group)]
    rows = page_of(
        request,
        found,
        text=lambda seen: seen.text,
        key=lambda seen: seen.rank,
    )
    values: dict[str, Any] = {"rows": rows, "errors": errors, "group": group, "topic": topic}
    return render(request, "producers.html", values)


async def seen_at(
    console: Console, brokers: Mapping[str, str]
) -> tuple[list[Seen], dict[str, CometMQError]]:
    """Return the producers at brokers, and why some brokers do not report theirs, by name.

    `brokers` has the addresses by name.
    """

    async def ask(address: str) -> Mapping[str, list[SeenProducer]]:
        reported = await console.recent.get(
            ("producers", address),
            _AGE_S,
            lambda: console.admin.producers.of_brokers(broker=address),
        )
        return reported[address]

    asked = await ask_each(brokers.values(), ask)
    reported = {name: asked[address] for name, address in brokers.items()}
    found = _joined({name: each.value for name, each in reported.items() if each.value is not None})
    return found, {name: each.error for name, each in reported.items() if each.error is not None}


async def _seen_producers(
    console: Console, topic: str
) -> tuple[list[Seen], dict[str, CometMQError]]:
    if topic:
        route = await in_time(console.admin.topics.route(topic))
        if route.value is None:
            assert route.error is not None
            return [], _not_there(console, topic, route.error)
        at = {data.broker_name: data.any_address() for data in route.value.broker_datas}
        found, errors = await seen_at(
            console, {name: to for name, to in at.items() if to is not None}
        )
        clusters = {data.cluster for data in route.value.broker_datas}
        return found, {**gone_masters(console, clusters), **errors}
    masters = await in_time(masters_of(console))
    if masters.value is None:
        assert masters.error is not None
        return [], {"brokers": masters.error}
    found, errors = await seen_at(console, {at.broker_name: at.address for at in masters.value})
    return found, {**await lost_masters(console), **errors}


async def _named(
    console: Console, group: str, topic: str
) -> tuple[list[Seen], dict[str, CometMQError]]:
    clients = await in_time(console.admin.producers.connections(group, topic))
    if clients.value is None:
        assert clients.error is not None
        return [], _not_there(console, group, clients.error)
    return [Seen(group, client) for client in clients.value], {}


def _not_there(console: Console, name: str, error: CometMQError) -> dict[str, CometMQError]:
    """Return why producers are not known: name servers say nothing about lost brokers."""
    gone = gone_masters(console) if isinstance(error, RouteNotFoundError) else {}
    return {**gone, name: error}


def _joined(reported: Mapping[str, Mapping[str, Iterable[SeenProducer]]]) -> list[Seen]:
    """Join the brokers' answers: a client connects to several brokers, and each of them lists
    it.
    """
    joined: dict[tuple[str, str], Seen] = {}
    for broker, groups in reported.items():
        for group, members in groups.items():
            for member in members:
                seen = joined.setdefault((group, member.client_id), Seen(group, member))
                seen.brokers.append(broker)
                seen.last_seen_ms = max(seen.last_seen_ms, member.last_seen_ms)
    return list(joined.values())
