"""Change and delete a topic."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cometmq.console.pages.topic import configs_of, group_of
from cometmq.console.pages.topics import (
    MESSAGE_TYPES,
    MOST_QUEUES,
    PERMISSIONS,
    TYPE,
    kind_of,
    route_now,
    stats_now,
    system_names,
    unknown_topic,
)
from cometmq.console.refusals import Refused
from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.console.views.fields import (
    asked,
    choice_field,
    lines_field,
    number_field,
    pairs_field,
    text_field,
)
from cometmq.console.views.rendering import number, render, url, words
from cometmq.console.watching.asking import each_cluster, in_time
from cometmq.errors import RouteNotFoundError, ServersFailedError
from cometmq.model.route import TopicRouteData
from cometmq.model.sysflag import PERM_READ, PERM_WRITE
from cometmq.model.topic import TopicConfig

if TYPE_CHECKING:
    from cometmq.console.state import Console

routes: Final = Routes()
_MOST_NAMED: Final = 10


@routes.page("/topic/change")
async def form_to_change(request: Request) -> Response:
    """Show the form that changes a topic, filled in with the values on which all brokers agree."""
    console, name = console_of(request), asked(request, "name")
    route = await route_now(console, name)
    if isinstance(route.error, RouteNotFoundError):
        return unknown_topic(request, name)
    configs = {} if route.value is None else await configs_of(console, name, route.value)
    reported = [each.value for each in configs.values() if each.value is not None]
    values: dict[str, Any] = {
        "name": name,
        "route": route,
        "error": next((each.error for each in configs.values() if each.error), None),
        "same": defaultdict(str, _agreed(reported)),
        "brokers": [] if route.value is None else _names(route.value),
        "permissions": PERMISSIONS,
        "types": MESSAGE_TYPES,
        "attributes": sorted({pair for it in reported for pair in (it.attributes or {}).items()}),
    }
    return render(request, "topic_change.html", values)


@routes.action("/topic/change", what="change topic")
async def change(request: Request, form: Form) -> Action:
    """Change the values of a topic that a form gives, at one broker or at all that have the
    topic.
    """
    console, name = console_of(request), text_field(form, "name")
    read = _new(form, "read_queues")
    write = _new(form, "write_queues")
    permission = _chosen(form, "permission", PERMISSIONS)
    order, _ = _chosen(form, "order", ("true", "false")), words(request)
    attributes = pairs_field(form, "attributes")
    removed = lines_field(form, "removed")
    if message_type := _chosen(form, "message_type", MESSAGE_TYPES):
        attributes[TYPE] = message_type
    broker = form.get("broker", "").strip() or None
    route = await console.admin.topics.route(name)
    if broker is not None and broker not in _names(route):
        raise HTTPException(400, Refused.NO_TOPIC_AT(broker=broker))
    changes: dict[str, Any] = {
        "read_queues": read,
        "write_queues": write,
        "permission": None if permission is None else int(permission),
        "order": None if order is None else order == "true",
    }
    changes = {field: value for field, value in changes.items() if value is not None}
    if not (changes or attributes or removed):
        raise HTTPException(400, "nothing is changed; fill in the values that should change")

    async def perform() -> Outcome:
        before = await console.admin.topics.update(
            name, **changes, attributes=attributes, remove_attributes=removed, broker=broker
        )
        return Outcome("changed", [f"{address}: {_('changed')}" for address in before])

    return Action(
        what="change topic",
        target=name,
        perform=perform,
        back=url("/topic", name=name, tab="brokers"),
        again=url("/topic/change", name=name),
        preview=await _losses(request, name, route, changes, broker) or None,
        details={
            **changes,
            "attributes": attributes,
            "removed": removed,
            "broker": broker or "all",
        },
    )


@routes.action("/topics/delete", what="delete topic")
async def delete(request: Request, form: Form) -> Action:
    """Delete a topic and all of its messages."""
    console, name, _ = console_of(request), text_field(form, "name"), words(request)

    async def perform() -> Outcome:
        clusters = await _clusters(console, name)
        try:
            done = await each_cluster(
                clusters,
                lambda cluster: console.admin.topics.delete(
                    name, cluster=cluster, missing_ok=len(clusters) > 1
                ),
            )
        except ServersFailedError as error:
            lines = [f"{address}: {reason}" for address, reason in error.errors.items()]
            lines += [f"{address}: {_('deleted')}" for address in error.results]
            return Outcome("deleted in part; repeat it", lines, failed=True)
        lines = [f"{address}: {_('deleted')}" for part in done for address in part]
        return Outcome("deleted", lines)

    return Action(
        what="delete topic",
        target=name,
        perform=perform,
        back=url("/topics"),
        again=url("/topic", name=name),
        preview=await _end_of(request, name),
    )


def _new(form: Form, field: str) -> int | None:
    """Return the number that the user put in place of the form's first one, None if it is the
    same.
    """
    if form.get(field, "").strip() == form.get(f"was_{field}", ""):
        return None
    return number_field(form, field, 1, MOST_QUEUES)


def _chosen(form: Form, field: str, choices: Collection[str]) -> str | None:
    """Return the choice that the user made in place of the form's first one, None if it is the
    same.
    """
    chosen = choice_field(form, field, ("", *choices), "")
    return None if chosen in ("", form.get(f"was_{field}", "")) else chosen


def _names(route: TopicRouteData) -> list[str]:
    return sorted({data.broker_name for data in route.queue_datas})


def _agreed(configs: Sequence[TopicConfig]) -> dict[str, str]:
    """Return the values of the form's fields in which all brokers agree."""
    if not configs:
        return {}
    fields: dict[str, set[str]] = {
        "read_queues": {str(it.read_queue_nums) for it in configs},
        "write_queues": {str(it.write_queue_nums) for it in configs},
        "permission": {str(it.perm) for it in configs},
        "order": {"true" if it.order else "false" for it in configs},
        "message_type": {(it.attributes or {}).get(TYPE, "") for it in configs},
    }
    return {field: next(iter(values)) for field, values in fields.items() if len(values) == 1}


async def _losses(
    request: Request,
    name: str,
    route: TopicRouteData,
    changes: Mapping[str, Any],
    broker: str | None,
) -> list[str]:
    """Say what clients lose by a change: queues that are no longer read, permissions that are
    removed.
    """
    console, _ = console_of(request), words(request)
    names = {data.master(): data.broker_name for data in route.broker_datas}
    reported = {
        names[address]: each
        for address, each in (await configs_of(console, name, route)).items()
        if broker in (None, names[address])
    }
    before = {at: each.value for at, each in reported.items() if each.value is not None}
    sentences = [
        _(
            "The value that broker %(broker)s has now is not known, so the change may replace one that "
            "you have not seen: %(why)s",
            broker=at,
            why=each.error,
        )
        for at, each in reported.items()
        if each.error is not None
    ]
    read = changes.get("read_queues")
    if read is not None and any(read < it.read_queue_nums for it in before.values()):
        stats = await stats_now(console, name)
        queues = stats.value.queues if stats.value is not None else ()
        left = [at for at in queues if at.queue.broker_name in before and at.queue.queue_id >= read]
        sentences.append(
            _(
                "Consumers no longer read the queues from number %(first)s on. %(count)s messages "
                "lie there.",
                first=read,
                count=number(sum(at.max_offset - at.min_offset for at in left)),
            )
        )
    unread = [
        it
        for it in before.values()
        if changes.get("write_queues", it.write_queue_nums) > (read or it.read_queue_nums)
    ]
    if unread and ("write_queues" in changes or read is not None):
        sentences.append(
            _(
                "The topic has more queues to write than to read: messages in the others reach no consumer."
            )
        )
    permission = changes.get("permission")
    lost = {bit for it in before.values() for bit in (PERM_READ, PERM_WRITE) if it.perm & bit}
    if permission is not None and PERM_WRITE in lost and not permission & PERM_WRITE:
        sentences.append(_("Brokers refuse the messages of all producers of this topic."))
    if permission is not None and PERM_READ in lost and not permission & PERM_READ:
        sentences.append(_("Consumers get no more messages of this topic."))
    return sentences


async def _clusters(console: Console, name: str) -> list[str]:
    """Return the clusters that have a topic; all of them if the name servers know no route of it."""
    try:
        return await console.admin.topics.clusters(name)
    except RouteNotFoundError:
        return await console.admin.brokers.clusters()


async def _end_of(request: Request, name: str) -> list[str]:
    """Say what is lost when a topic is deleted."""
    console, _ = console_of(request), words(request)
    stats, groups, system = await asyncio.gather(
        stats_now(console, name),
        in_time(console.admin.groups.of_topic(name)),
        system_names(console),
    )
    sentences = [
        _(
            "The topic %(name)s and all of its messages are deleted from every broker for good.",
            name=name,
        )
    ]
    kind, group = kind_of(name, system), group_of(name)
    if kind == "system":
        sentences.append(_("RocketMQ itself uses this topic; a broker may not work without it."))
    elif kind == "retry":
        sentences.append(
            _("Messages that group %(group)s is to consume again are lost.", group=group)
        )
    elif kind == "dead":
        sentences.append(_("The dead letters of group %(group)s are lost.", group=group))
    if stats.value is not None:
        sentences.append(_("It holds %(count)s messages.", count=number(stats.value.messages)))
    if stats.error is not None:
        sentences.append(_("How many messages it holds is not known: %(why)s", why=stats.error))
    if groups.value:
        shown = ", ".join(groups.value[:_MOST_NAMED])
        more = len(groups.value) - _MOST_NAMED
        sentences.append(
            _("These groups consume it: %(groups)s, and %(more)s more.", groups=shown, more=more)
            if more > 0
            else _("These groups consume it: %(groups)s.", groups=shown)
        )
    return sentences
