"""One topic: its queues, its state at each broker, and the groups and producers that use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from cometmq.admin.brokers.reports import Statistics
from cometmq.admin.groups.records import GroupConnections, GroupProgress
from cometmq.admin.topics.records import TopicStats
from cometmq.console.pages.producers import seen_at
from cometmq.console.pages.topics import (
    TYPE,
    kind_of,
    permission_name,
    route_now,
    stats_now,
    system_names,
    unknown_topic,
)
from cometmq.console.routes import Routes, console_of
from cometmq.console.views.fields import asked
from cometmq.console.views.group_views import connections_of
from cometmq.console.views.names import groups_of_topic
from cometmq.console.views.paging import page_of
from cometmq.console.views.rendering import render
from cometmq.console.watching.asking import ask_each, brokers_of, gone_masters, in_time
from cometmq.console.watching.recent import Known
from cometmq.errors import RouteNotFoundError
from cometmq.model.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.model.route import BrokerData, QueueData, TopicRouteData
from cometmq.model.topic import TopicConfig

if TYPE_CHECKING:
    from cometmq.console.state import Console

routes: Final = Routes()
TABS: Final = {
    "queues": "Queues",
    "brokers": "Brokers",
    "groups": "Groups",
    "producers": "Producers",
}
# Groups of a topic are asked for one by one, so fewer of them are on a page.
GROUP_ROWS: Final = 20
_COLUMNS: Final[Mapping[str, Callable[[TopicConfig], object]]] = {
    "Read queues": lambda it: it.read_queue_nums,
    "Write queues": lambda it: it.write_queue_nums,
    "Permission": lambda it: it.perm,
    "Ordered": lambda it: it.order,
    "Flags": lambda it: it.topic_sys_flag,
    "Attributes": lambda it: it.attributes,
}
_COUNTS_AGE_S: Final = 5.0
_CONFIG_AGE_S: Final = 10.0
_SETTINGS_AGE_S: Final = 30.0
_GROUPS_AGE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts the messages that a topic got in the last hour and day, and per second in the last
    minute, as far as brokers reported them.

    Brokers count hours by tens of minutes and days by hours, so both are 0 at first.
    """

    hour: int
    day: int
    per_s: float
    # None if some broker did not report them.
    bytes_per_s: float | None
    mean_bytes: float | None


@dataclass(frozen=True, slots=True)
class Holder:
    """Describes a broker that has the topic: its addresses, the topic's queues there by the name
    servers, and the topic's configuration at its master.
    """

    data: BrokerData
    queues: QueueData
    config: Known[TopicConfig] | None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """Is a group of the topic: how far it is, and its members."""

    progress: Known[GroupProgress]
    members: Known[GroupConnections | None]

    @property
    def online(self) -> int | None:
        """How many members are connected, None if that is not known."""
        if self.members.error is not None:
            return None
        return 0 if self.members.value is None else len(self.members.value.clients)


@routes.page("/topic")
async def one(request: Request) -> Response:
    """Show a topic, one tab of it."""
    console, name = console_of(request), asked(request, "name")
    tab = request.query_params.get("tab", "")
    tab = tab if tab in TABS else "queues"
    # All together, because each of them may wait for a broker that does not answer.
    (route, counts, kept, shown), stats, system, waiting = await asyncio.gather(
        _by_route(request, tab, name),
        stats_now(console, name),
        system_names(console),
        _waiting(console, name),
    )
    if isinstance(route.error, RouteNotFoundError):
        return unknown_topic(request, name)
    # No name server knows which topics a lost broker had.
    gone = gone_masters(console, _clusters(route.value))
    # A sum over some of the brokers would look like a drop.
    rate = stats.value.put_per_s if stats.value is not None and stats.error is None else None
    values: dict[str, Any] = {
        "name": name,
        "kind": kind_of(name, system),
        "group": group_of(name),
        "tab": tab,
        "tabs": TABS,
        "route": route,
        "gone": gone,
        # Why numbers come from only some of the brokers.
        "lacks": stats.error or next(iter(gone.values()), None),
        "stats": stats,
        "counts": counts,
        "kept": kept,
        "waiting": waiting,
        "trend": console.watch.topic_trends.add(name, console.clock.now_ms(), rate)
        if route.value is not None
        else None,
        **(_queues(request, stats) if tab == "queues" else shown),
    }
    return render(request, "topic.html", values)


def _clusters(route: TopicRouteData | None) -> set[str]:
    return set() if route is None else {data.cluster for data in route.broker_datas}


def group_of(topic: str) -> str | None:
    """Return the group to which a retry topic or a topic of dead letters belongs."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return None


async def configs_of(
    console: Console, name: str, route: TopicRouteData
) -> dict[str, Known[TopicConfig]]:
    """Return a topic's configuration at each master of its route, by address."""

    async def ask(address: str) -> TopicConfig:
        configs = await console.recent.get(
            ("topic config", name, address),
            _CONFIG_AGE_S,
            lambda: console.admin.topics.config(name, broker=address),
        )
        return configs[address]

    masters = [data.master() for data in route.broker_datas]
    return await ask_each([address for address in masters if address is not None], ask)


def differences(configs: Iterable[TopicConfig]) -> list[str]:
    """Return the columns in which the brokers' configurations of a topic differ."""
    reported = list(configs)
    return [
        column
        for column, value in _COLUMNS.items()
        if any(value(config) != value(reported[0]) for config in reported[1:])
    ]


async def _by_route(
    request: Request, tab: str, name: str
) -> tuple[Known[TopicRouteData], Counts | None, str | None, dict[str, Any]]:
    """Return a topic's route and what its brokers report: counts, how long they keep messages, and
    the contents of the tab.
    """
    console = console_of(request)
    route = await route_now(console, name)
    if route.value is None:
        return route, None, None, {}
    counts, kept, shown = await asyncio.gather(
        _counts(console, name, route.value),
        _kept(console, route.value),
        _shown(request, tab, name, route.value),
    )
    return route, counts, kept, shown


async def _shown(request: Request, tab: str, name: str, route: TopicRouteData) -> dict[str, Any]:
    """Return what a tab shows, but for the queues."""
    console = console_of(request)
    if tab == "brokers":
        return await _brokers(console, name, route)
    if tab == "groups":
        return await _groups(request, name)
    if tab == "producers":
        return await _producers(request, route)
    return {}


def _queues(request: Request, stats: Known[TopicStats]) -> dict[str, Any]:
    queues = stats.value.queues if stats.value is not None else ()
    rows = page_of(request, queues, text=lambda at: at.queue.broker_name, key=lambda at: at.queue)
    return {"rows": rows}


async def _counts(console: Console, name: str, route: TopicRouteData) -> Counts | None:
    """Count the messages that came, None if no broker reports them."""
    numbers, sizes = await asyncio.gather(
        _statistics(console, "TOPIC_PUT_NUMS", name, route),
        _statistics(console, "TOPIC_PUT_SIZE", name, route),
    )
    if not any(each.is_known for each in numbers.values()):
        return None
    known = [each.value for each in numbers.values() if each.value is not None]
    are_sized = all(each.is_known for each in (*numbers.values(), *sizes.values()))
    sized = [each.value for each in sizes.values() if each.value is not None]
    # Over the longest period for which brokers have counts.
    spans = ("day", "hour", "minute")
    totals = [
        (sum(getattr(at, span).total for at in sized), sum(getattr(at, span).total for at in known))
        for span in spans
    ]
    return Counts(
        sum(at.hour.total for at in known),
        sum(at.day.total for at in known),
        sum(at.minute.per_s for at in known),
        sum(at.minute.per_s for at in sized) if are_sized else None,
        next((size / count for size, count in totals if count and size and are_sized), None),
    )


async def _statistics(
    console: Console, kind: str, name: str, route: TopicRouteData
) -> dict[str, Known[Statistics | None]]:
    """Ask each master of a topic for its counts of the topic."""

    async def ask(address: str) -> Statistics | None:
        reported = await console.recent.get(
            (kind, name, address),
            _COUNTS_AGE_S,
            lambda: console.admin.brokers.statistics(kind, name, broker=address),
        )
        return reported[address]

    masters = [data.master() for data in route.broker_datas]
    return await ask_each([address for address in masters if address is not None], ask)


async def _kept(console: Console, route: TopicRouteData) -> str | None:
    """Return for how many hours the topic's brokers keep messages; None if one does not answer.

    They delete files of a log that all topics share, so the time is a broker's.
    """

    async def ask(address: str) -> str:
        reported = await console.recent.get(
            ("configuration", address),
            _SETTINGS_AGE_S,
            lambda: console.admin.brokers.config(broker=address),
        )
        return reported[address].get("fileReservedTime", "")

    masters = [data.master() for data in route.broker_datas]
    reported = await ask_each([address for address in masters if address is not None], ask)
    hours = {each.value for each in reported.values()}
    if not hours or None in hours or not all(text and text.isdigit() for text in hours):
        return None
    found = sorted(int(text) for text in hours if text is not None)
    return str(found[0]) if len(found) == 1 else f"{found[0]}–{found[-1]}"


async def _waiting(console: Console, name: str) -> int | None:
    """Return how many messages of the topic wait for its groups, all together; None if that is not
    known.

    With more groups than fit on a page it is not known, because each one costs a question.
    """
    groups = await groups_of_topic(console, name, _GROUPS_AGE_S)
    if groups.value is None or groups.error is not None or len(groups.value) > GROUP_ROWS:
        return None

    async def ask(group: str) -> GroupProgress:
        return await _progress_of(console, group, name)

    reported = await ask_each(groups.value, ask)
    lags = [
        None if each.value is None or each.error else each.value.lag for each in reported.values()
    ]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if len(known) == len(lags) else None


async def _progress_of(console: Console, group: str, name: str) -> GroupProgress:
    return await console.recent.get(
        ("topic progress", group, name),
        _GROUPS_AGE_S,
        lambda: console.admin.groups.progress(group, name),
    )


async def _brokers(console: Console, name: str, route: TopicRouteData) -> dict[str, Any]:
    configs, registered = await asyncio.gather(
        configs_of(console, name, route), in_time(brokers_of(console))
    )
    order = None
    if any(each.value is not None and each.value.order for each in configs.values()):
        order = await in_time(console.admin.topics.order_config(name))
    datas = {data.broker_name: data for data in route.broker_datas}
    holders = [
        Holder(data, queues, configs.get(data.master() or ""))
        for queues in sorted(route.queue_datas, key=lambda at: at.broker_name)
        if (data := datas.get(queues.broker_name)) is not None
    ]
    clusters = {data.cluster for data in route.broker_datas}
    others = {at.broker_name for at in registered.value or () if at.cluster in clusters}
    known = {holder.data.broker_name: holder.config.value for holder in holders if holder.config}
    stale = [
        holder.data.broker_name
        for holder in holders
        if (config := known.get(holder.data.broker_name)) is not None
        and (config.read_queue_nums, config.write_queue_nums, config.perm)
        != (holder.queues.read_queue_nums, holder.queues.write_queue_nums, holder.queues.perm)
    ]
    unread = [
        broker
        for broker, config in known.items()
        if config is not None and config.write_queue_nums > config.read_queue_nums
    ]
    return {
        "holders": holders,
        "unread": unread,
        "differences": differences(config for config in known.values() if config is not None),
        "stale": stale,
        "without": sorted(others - datas.keys()),
        "like": _like(next((config for config in known.values() if config is not None), None)),
        "order": order,
        "permission_name": permission_name,
    }


def _like(config: TopicConfig | None) -> dict[str, object]:
    """Return the fields of the form that makes a topic as a broker has it."""
    if config is None:
        return {}
    attributes = dict(config.attributes or {})
    return {
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "permission": config.perm,
        "order": "true" if config.order else None,
        "message_type": attributes.pop(TYPE, None),
        "attributes": "\n".join(f"{key}={value}" for key, value in sorted(attributes.items())),
    }


async def _groups(request: Request, name: str) -> dict[str, Any]:
    console = console_of(request)
    groups = await groups_of_topic(console, name, _GROUPS_AGE_S)
    rows = page_of(request, groups.value or (), text=str, key=str, most=GROUP_ROWS)

    async def ask(group: str) -> GroupRow:
        progress, members = await asyncio.gather(
            in_time(_progress_of(console, group, name)),
            connections_of(console, group),
        )
        return GroupRow(progress, members)

    return {"groups": groups, "rows": rows, "found": await ask_each(rows.rows, ask)}


async def _producers(request: Request, route: TopicRouteData) -> dict[str, Any]:
    at = {data.broker_name: data.any_address() for data in route.broker_datas}
    found, errors = await seen_at(
        console_of(request), {name: to for name, to in at.items() if to is not None}
    )
    rows = page_of(
        request,
        found,
        text=lambda seen: seen.text,
        key=lambda seen: seen.rank,
    )
    return {"rows": rows, "errors": errors}
