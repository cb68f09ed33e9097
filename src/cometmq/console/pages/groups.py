"""Consumer groups: the list, one group with its tabs, and one member."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from cometmq.admin.groups.findings import holders, judge, subscription_differences
from cometmq.admin.groups.records import GroupFields, QueueProgress, RunningInfo
from cometmq.console.routes import Routes, console_of
from cometmq.console.views import group_views as views
from cometmq.console.views.names import topic_names
from cometmq.console.views.paging import Order, order_of, page_of
from cometmq.console.views.rendering import render, words
from cometmq.console.watching.asking import in_time
from cometmq.console.watching.recent import Known
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.names import is_retry_topic, is_system_group, retry_topic
from cometmq.model.queue import MessageQueue

if TYPE_CHECKING:
    from cometmq.console.state import Console

routes: Final = Routes()
KINDS: Final = ("normal", "conflict", "system", "all")
VIEWS: Final = ("progress", "members", "offsets", "configuration")
_MOST_FINDINGS: Final = 4
_MOST_TOPICS: Final = 50


@routes.page("/groups")
async def listing(request: Request) -> Response:
    """Show the groups of a kind, a page at a time, by name or with the most messages waiting first."""
    console = console_of(request)
    configs = (await views.all_configs(console)).known()
    kind = request.query_params.get("kind", "normal")
    kind = kind if kind in KINDS else "normal"
    order = order_of(request, ("name", "lag", "rate"), "name")
    if order.by != "name" and "desc" not in request.query_params:
        # Links to the longest lags do not name a direction.
        order = Order(order.by, is_down=True)
    by_lag = order.by == "lag"
    lags = console.watch.lags
    conflicts = console.watch.troubles.conflicts
    paused: dict[str, list[bool]] = {}
    for table in (configs.value or {}).values():
        for name, config in table.items():
            is_of_kind = {
                "all": True,
                "conflict": name in conflicts,
                "normal": not is_system_group(name),
                "system": is_system_group(name),
            }
            if is_of_kind[kind]:
                paused.setdefault(name, []).append(not config.consume_enable)

    def by_figure(name: str) -> tuple[float, str]:
        found = lags.groups.get(name) if lags is not None else None
        figure = 0.0
        if found is not None:
            figure = found.least if by_lag else found.consume_per_s or 0.0
        return (figure if "desc" in request.query_params else -figure), name

    key = str if order.by == "name" else by_figure
    rows = page_of(request, paused, text=str, key=key, most=views.MOST_ROWS)
    values = {
        "rows": rows,
        "states": await views.states_of(console, rows.rows),
        "paused": paused,
        "configs": configs,
        "lags": lags,
        "by_lag": by_lag,
        "order": order,
        "kind": kind,
        "kinds": KINDS,
        "conflicts": conflicts,
        "compared": console.watch.troubles.group_round,
        "not_compared": console.watch.troubles.error or console.watch.troubles.missing,
    }
    return render(request, "groups.html", values)


@routes.page("/group")
async def one(request: Request) -> Response:
    """Show one tab of a group."""
    console, name = console_of(request), request.query_params.get("name", "")
    view = request.query_params.get("view", VIEWS[0])
    view = view if view in VIEWS else VIEWS[0]
    configs, state = await asyncio.gather(
        views.configs_of(console, name), views.state_of(console, name)
    )
    if _is_nowhere(configs):
        # The group may have been made a moment ago.
        configs = await views.configs_of(console, name, age_s=0)
    is_seen = state.members.value is not None or _queues(state) > 0
    if not is_seen and await is_unknown_group(console, name, configs):
        return unknown_group(request, name, configs)
    members = await _asked_members(request, state)
    reported = {client: info.value for client, info in members.items() if info.value is not None}
    if members and len(reported) == len(members):
        console.watch.troubles.note(name, reported)
    # `differences` reports what members select differently.
    findings = [each for each in judge(name, reported, console.clock.now_ms()) if each.client_id]
    values: dict[str, Any] = {
        "name": name,
        "view": view,
        "views": VIEWS,
        "configs": configs,
        "state": state,
        "members": members,
        "reported": reported,
        "differences": subscription_differences(reported),
        "findings": findings[:_MOST_FINDINGS],
        "more_findings": max(0, len(findings) - _MOST_FINDINGS),
        "silent": {client: info.error for client, info in members.items() if info.error},
        "is_broadcasting": _is_broadcasting(state),
        # Facts that the tab itself asks for and could not get.
        "missing": [],
    }
    values.update(await _TABS[view](request, state, reported))
    return render(request, f"group_{view}.html", values)


async def is_unknown_group(console: Console, name: str, configs: Known[views.GroupConfigs]) -> bool:
    """Return whether nothing suggests that there is such a group: no broker that answers has it,
    and no silent broker had it or has its retry topic.
    """
    if not _is_nowhere(configs) or configs.error is None:
        return _is_nowhere(configs)
    if console.seen_groups.clusters_of(name):
        return False
    names = await in_time(topic_names(console))
    return names.value is not None and retry_topic(name) not in names.value


def unknown_group(request: Request, name: str, configs: Known[views.GroupConfigs]) -> Response:
    """Say that no broker knows a group, or that not all of them answered."""
    values = {"name": name, "error": configs.error}
    return render(request, "group_unknown.html", values, status=404)


@routes.page("/member")
async def member(request: Request) -> Response:
    """Show what a member of a group reports of itself, with `stacks=1` the stacks of its threads,
    too.
    """
    console = console_of(request)
    group = request.query_params.get("group", "")
    client_id = request.query_params.get("client", "")
    stacks = request.query_params.get("stacks") == "1"
    online, info = await asyncio.gather(
        views.connections_of(console, group),
        views.member_of(console, group, client_id, stacks=stacks),
    )
    client = None
    if online.value is not None:
        client = next((at for at in online.value.clients if at.client_id == client_id), None)
    values = {
        "group": group,
        "client_id": client_id,
        "online": online,
        "client": client,
        "info": info,
        "stacks": stacks,
        "started_ms": started_ms(info.value) if info.value is not None else None,
        "findings": judge(group, {client_id: info.value}, console.clock.now_ms())
        if info.value is not None
        else [],
    }
    is_gone = client is None and info.value is None and online.error is None
    return render(request, "member.html", values, status=404 if is_gone else 200)


@routes.page("/groups/new")
async def new(request: Request) -> Response:
    """Show the form that makes a group."""
    console = console_of(request)
    values = {
        "name": request.query_params.get("name", ""),
        "fields": form_fields(SubscriptionGroupConfig()),
        "clusters": await in_time(console.admin.brokers.clusters()),
    }
    return render(request, "group_new.html", values)


# The tabs


async def _progress(
    request: Request, state: views.GroupState, reported: Mapping[str, RunningInfo]
) -> dict[str, Any]:
    console = console_of(request)
    progress = state.progress.value
    topic = request.query_params.get("topic", "")
    pops = await views.pops_of(console, state.name)
    _ = words(request)
    popped = {
        "pops": pops.value.topics if pops.value is not None else [],
        "pops_error": pops.error,
        "pops_unreported": pops.value.unreported if pops.value is not None and _pops(state) else (),
        "missing": [(pops.error, _("what it has popped"))],
    }
    if progress is None:
        trend = console.watch.lag_trend(state.name)
        return {"rows": None, "topics": [], "topic": topic, "trend": trend, **popped}
    owners = holders(reported)
    by_lag = request.query_params.get("sort") == "lag"
    queues = [at for at in progress.queues if topic in ("", at.queue.topic)]
    rows = page_of(
        request,
        queues,
        text=lambda at: f"{at.queue} {owners.get(at.queue, '')}",
        key=_lag_first if by_lag else _by_queue,
    )
    # The topics of the rows are asked, too, so that each row has an age.
    asked = views.waiting_topics(progress)
    asked += [
        at.queue.topic for at in rows.rows if (at.lag or 0) > 0 and at.queue.topic not in asked
    ]
    times = await views.times_of(console, state.name, dict.fromkeys(asked[: 2 * views.MOST_AGES]))
    topics = views.topics_of(progress, times)
    return {
        **popped,
        "rows": rows,
        "owners": owners,
        "ages": views.ages_of(times),
        "topic": topic,
        "by_lag": by_lag,
        "topics": topics[:_MOST_TOPICS],
        "more_topics": max(0, len(topics) - _MOST_TOPICS),
        "trend": console.watch.lag_trend(state.name),
        "is_retry": is_retry_topic,
    }


def _pops(state: views.GroupState) -> bool:
    """Say whether the members of a group say that they pop."""
    return state.members.value is not None and state.members.value.consume_type == "CONSUME_POP"


def _lag_first(at: QueueProgress) -> tuple[int, MessageQueue]:
    return -(at.lag or 0), at.queue


def _by_queue(at: QueueProgress) -> tuple[bool, MessageQueue]:
    return is_retry_topic(at.queue.topic), at.queue


async def _members(
    request: Request, state: views.GroupState, reported: Mapping[str, RunningInfo]
) -> dict[str, Any]:
    online = state.members.value
    clients = online.clients if online is not None else ()
    rows = page_of(
        request,
        clients,
        text=lambda at: f"{at.client_id} {at.address} {at.version} {at.language}",
        key=lambda at: at.client_id,
    )
    return {
        "rows": rows,
        "versions": sorted({at.version for at in clients}),
        "held": {
            client: sum(not at.droped for at in info.queues.values())
            for client, info in reported.items()
        },
        "started": {client: started_ms(info) for client, info in reported.items()},
        "cached": {
            client: sum(at.cached_msg_count for at in info.queues.values())
            for client, info in reported.items()
        },
        "rates": {
            client: sum(at.consume_ok_tps for at in info.topics.values())
            for client, info in reported.items()
        },
        "failed": {
            client: sum(at.consume_failed_msgs for at in info.topics.values())
            for client, info in reported.items()
        },
        "paused_members": {client for client, info in reported.items() if info.paused},
        "paused_queues": {client: sorted(info.paused_queues) for client, info in reported.items()},
    }


async def _offsets(
    request: Request, state: views.GroupState, reported: Mapping[str, RunningInfo]
) -> dict[str, Any]:
    del reported
    console = console_of(request)
    progress = state.progress.value
    topics = [at.topic for at in views.topics_of(progress, {})] if progress is not None else []
    topic = request.query_params.get("topic", "") or next(iter(topics), "")
    if not topic:
        return {"topics": [], "topic": "", "rows": None, "queues": Known([]), "readable": Known({})}
    queues, readable = await asyncio.gather(
        in_time(
            console.admin.offsets.of_topic(topic, state.name),
            lambda parts: [at for part in parts.values() for at in part],
        ),
        in_time(console.admin.groups.may_read(state.name, topic), dict),
    )
    rows = page_of(
        request, queues.value or [], text=lambda at: str(at.queue), key=lambda at: at.queue
    )
    _ = words(request)
    return {
        "missing": [
            (
                queues.error,
                _("the queues of this topic")
                if rows.total == 0
                else _("some queues of this topic"),
            ),
            (readable.error, _("whether it may read this topic")),
        ],
        "topics": topics[:_MOST_TOPICS],
        "topic": topic,
        "queues": queues,
        "rows": rows,
        "readable": readable,
    }


async def _configuration(
    request: Request, state: views.GroupState, reported: Mapping[str, RunningInfo]
) -> dict[str, Any]:
    del state, reported
    name = request.query_params.get("name", "")
    configs = (await views.configs_of(console_of(request), name)).value
    if configs is None or not configs.by_broker:
        return {"table": [], "fields": [], "columns": []}
    columns = [at for at in configs.brokers if at.address in configs.by_broker]
    builtins = {
        address: msgspec.to_builtins(config) for address, config in configs.by_broker.items()
    }
    usual = msgspec.to_builtins(SubscriptionGroupConfig())
    table = []
    for field in usual:
        if field in ("groupName", "subscriptionDataSet"):
            continue
        values = [builtins[at.address][field] for at in columns]
        table.append(
            {
                "name": field,
                "values": [shown(value) for value in values],
                "usual": shown(usual[field]),
                "differs": any(value != usual[field] for value in values),
                "disagrees": any(value != values[0] for value in values),
            }
        )
    first = configs.by_broker[columns[0].address]
    return {"table": table, "fields": form_fields(first), "columns": columns}


_TABS: Final = {
    "progress": _progress,
    "members": _members,
    "offsets": _offsets,
    "configuration": _configuration,
}


# Used by forms and templates


def form_fields(config: SubscriptionGroupConfig) -> list[dict[str, Any]]:
    """Return the fields of a group that forms can set, with their values, in the order of forms."""
    kinds = {"bool": "switch", "int": "number"}
    return [
        {"name": name, "kind": kinds[type(getattr(config, name)).__name__], "value": value}
        for name in FORM_FIELDS
        if (value := getattr(config, name)) is not None
    ]


FORM_FIELDS: Final = (
    "consume_enable",
    "consume_from_min_enable",
    "consume_broadcast_enable",
    "consume_message_orderly",
    "retry_max_times",
    "retry_queue_nums",
    "consume_timeout_minute",
    "broker_id",
    "which_broker_when_consume_slowly",
    "notify_consumer_ids_changed_enable",
)
assert set(FORM_FIELDS) <= set(GroupFields.__annotations__)


def shown(value: object) -> str:
    """Return a value of a configuration as text, as brokers write it."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def started_ms(info: RunningInfo) -> int | None:
    """Return when a member says that it started, in ms since the epoch."""
    text = info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None


async def _asked_members(
    request: Request, state: views.GroupState
) -> dict[str, Known[RunningInfo]]:
    if state.members.value is None:
        return {}
    clients = [at.client_id for at in state.members.value.clients][: views.MOST_MEMBERS]
    return await views.members_of(console_of(request), state.name, clients)


def _is_broadcasting(state: views.GroupState) -> bool:
    online = state.members.value
    return online is not None and online.message_model == "BROADCASTING"


def _is_nowhere(configs: Known[views.GroupConfigs]) -> bool:
    return configs.value is not None and not configs.value.by_broker


def _queues(state: views.GroupState) -> int:
    return len(state.progress.value.queues) if state.progress.value is not None else 0
