"""Operators' actions on consumer groups: make, change, pause, resume and delete them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request

from cometmq.admin.groups.records import GroupFields
from cometmq.admin.servers import failure
from cometmq.console.pages.groups import FORM_FIELDS, shown
from cometmq.console.refusals import Refused
from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.console.state import Console
from cometmq.console.views import group_views as views
from cometmq.console.views.rendering import number, url, words
from cometmq.console.watching.asking import ask_each, each_cluster
from cometmq.console.watching.recent import known
from cometmq.errors import RouteNotFoundError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.names import dlq_topic, group_fault, is_system_group, retry_topic
from cometmq.model.reports.keyed_text import text_of

routes: Final = Routes()
# Longer than one request takes at a server that hangs.
_COMPLETE_S: Final = 30.0


@routes.action("/groups/create", what="create group")
async def create(request: Request, form: Form) -> Action:
    """Make a group at all brokers of a cluster."""
    console, name = console_of(request), checked_group(form)
    fields, cluster = _fields(form, SubscriptionGroupConfig()), form.get("cluster") or None
    configs = await views.configs_of(console, name)
    if (
        configs.value is not None
        and configs.value.by_broker
        and cluster
        in (
            None,
            *configs.value.clusters,
        )
    ):
        raise HTTPException(409, Refused.GROUP_EXISTS(group=name))

    async def perform() -> Outcome:
        done = await console.admin.groups.create(name, cluster=cluster, **fields)
        return Outcome("created at %(servers)s", values={"servers": ", ".join(done)})

    return Action(
        what="create group",
        target=name,
        perform=perform,
        back=url("/group", name=name),
        details=dict(fields),
    )


@routes.action("/groups/change", what="change group")
async def change(request: Request, form: Form) -> Action:
    """Change settings of a group at all of its brokers."""
    console, name = console_of(request), checked_group(form)
    configs = await _read(console, name)
    fields = _changed(form, configs[0])

    async def perform() -> Outcome:
        if not fields:
            return Outcome("nothing differs from what the brokers have")
        before, missed = await _update(console, configs, name, fields)
        lines = [
            f"{address}: {field} {shown(getattr(config, field))} → {shown(value)}"
            for address, config in before.items()
            for field, value in fields.items()
            if getattr(config, field) != value
        ]
        if missed:
            return _in_part(missed, lines)
        return Outcome("%(count)s settings changed", lines, values={"count": len(fields)})

    return Action(
        what="change group",
        target=name,
        perform=perform,
        back=url("/group", name=name, view="configuration"),
        details=dict(fields),
    )


@routes.action("/groups/pause", what="pause group")
async def pause(request: Request, form: Form) -> Action:
    """Stop all brokers from giving a group messages (consumeEnable=false)."""
    console, name = console_of(request), checked_group(form)
    configs = await _read(console, name)
    state = await views.state_of(console, name)
    _ = words(request)
    preview = [
        _(
            "All brokers stop giving messages to the %(count)s members of this group that are online.",
            count=number(_online(state)),
        ),
        _("Messages wait until you resume the group; none is lost before its retention ends."),
        *await _unknown(request, name, state),
    ]

    async def perform() -> Outcome:
        before, missed = await _update(console, configs, name, {"consume_enable": False})
        if missed:
            return _in_part(missed, before)
        return Outcome("paused at %(count)s brokers", values={"count": len(before)})

    return Action(
        what="pause group",
        target=name,
        perform=perform,
        back=url("/group", name=name),
        preview=preview,
    )


@routes.action("/groups/resume", what="resume group")
async def resume(request: Request, form: Form) -> Action:
    """Have all brokers give a group messages again."""
    console, name = console_of(request), checked_group(form)
    configs = await _read(console, name)

    async def perform() -> Outcome:
        before, missed = await _update(console, configs, name, {"consume_enable": True})
        if missed:
            return _in_part(missed, before)
        return Outcome(
            "resumed at %(count)s brokers; its members go on within seconds",
            values={"count": len(before)},
        )

    return Action(what="resume group", target=name, perform=perform, back=url("/group", name=name))


@routes.action("/groups/complete", what="create group at further brokers")
async def complete(request: Request, form: Form) -> Action:
    """Make a group at the brokers of its clusters that lack it, as one of the others has it."""
    console, name, like = console_of(request), checked_group(form), form["like"]
    configs = await need_group(console, name)
    model = configs.by_broker.get(like)
    if model is None:
        raise HTTPException(409, Refused.NO_GROUP_AT(broker=like))
    if not configs.without:
        raise HTTPException(409, "all brokers that answer have this group now")
    given = {field: getattr(model, field) for field in GroupFields.__annotations__}
    # A request adds attributes to those of a group, each by its own sign.
    given["attributes"] = {f"+{key}": value for key, value in model.attributes.items()}
    fields = cast("GroupFields", given)

    async def perform() -> Outcome:
        done = await ask_each(
            configs.without,
            lambda at: console.admin.groups.create(name, broker=at.address, **fields),
            wait_s=_COMPLETE_S,
        )
        made = {at.address: at for at, each in done.items() if each.error is None}
        errors = {at.address: each.error for at, each in done.items() if each.error is not None}
        lines = [f"{at.broker_name} ({address})" for address, at in made.items()]
        if not errors:
            return Outcome("created at %(count)s brokers", lines, values={"count": len(lines)})
        error = failure(f"making group {name}", errors, made)
        if not made:
            raise error
        return Outcome(
            "created at %(count)s brokers; repeat it for the others: %(why)s",
            lines,
            failed=True,
            values={"count": len(lines), "why": error},
        )

    return Action(
        what="create group at further brokers",
        target=name,
        perform=perform,
        back=url("/group", name=name, view="configuration"),
        details={"like": like, "at": [at.address for at in configs.without], **fields},
    )


@routes.action("/groups/delete", what="delete group")
async def delete(request: Request, form: Form) -> Action:
    """Delete a group with its retry topic and dead letters, and with its offsets if wanted."""
    console, name = console_of(request), checked_group(form)
    clean = form.get("clean_offsets") == "1"
    configs = await need_group(console, name)
    state, dead, retries = await asyncio.gather(
        views.state_of(console, name),
        _stored(console, dlq_topic(name)),
        _stored(console, retry_topic(name)),
    )

    async def perform() -> Outcome:
        done = await each_cluster(
            configs.clusters,
            lambda cluster: console.admin.groups.delete(
                name, clean_offsets=clean, cluster=cluster, missing_ok=True
            ),
        )
        servers = ", ".join(at for part in done for at in part)
        return Outcome("deleted at %(servers)s", values={"servers": servers})

    _ = words(request)
    preview = [
        _(
            "The group is deleted from every broker for good, with its retry topic (%(retries)s messages) "
            "and its %(dead)s dead letters.",
            retries=number(retries),
            dead=number(dead),
        ),
        _("Its offsets are deleted, too: a new group of this name begins without them.")
        if clean
        else _("Its offsets stay: a group of this name goes on where this one ends."),
    ]
    if members := _online(state):
        preview.append(
            _(
                "%(count)s members are online. Stop them first: where brokers create groups "
                "automatically, members bring the group back.",
                count=number(members),
            )
        )
    if is_system_group(name):
        preview.append(_("RocketMQ itself uses this group."))
    preview += await _unknown(request, name, state)
    return Action(
        what="delete group",
        target=name,
        perform=perform,
        back=url("/groups"),
        preview=preview,
        details={"clean_offsets": clean},
    )


# Inside


def checked_group(form: Form) -> str:
    """Return the group that a form names; 400 if it is no name."""
    name = form.get("name", "").strip()
    if (fault := group_fault(name)) is not None:
        raise HTTPException(400, fault)
    return name


def _fields(form: Form, usual: SubscriptionGroupConfig) -> GroupFields:
    """Return the settings that a form has; 400 if one is no number that fits."""
    given: dict[str, Any] = {}
    for field in FORM_FIELDS:
        if (text := form.get(field)) is None:
            continue
        if isinstance(getattr(usual, field), bool):
            # A switch that is off sends its hidden 0 only.
            given[field] = text.endswith("1")
            continue
        try:
            given[field] = int(text)
        except ValueError as error:
            raise HTTPException(400, Refused.NO_NUMBER(field=field, text=text[:40])) from error
    try:
        # Checks the ranges of numbers, which setting the fields does not.
        wanted = msgspec.structs.replace(usual, **given)
        msgspec.convert(msgspec.to_builtins(wanted), SubscriptionGroupConfig)
    except msgspec.ValidationError as error:
        raise HTTPException(400, Refused.SETTINGS_UNFIT(error=error)) from error
    return cast("GroupFields", given)


def _changed(form: Form, configs: views.GroupConfigs) -> GroupFields:
    """Return the settings that the user changed, and those in which brokers differ.

    A setting that somebody else has changed since the form was shown stays as it is.
    """
    every = list(configs.by_broker.values())
    usual = every[0]
    shown_before = _fields({f: form[f"was_{f}"] for f in FORM_FIELDS if f"was_{f}" in form}, usual)
    before = cast("dict[str, Any]", shown_before)
    fields = {
        field: value
        for field, value in _fields(form, usual).items()
        if value != before.get(field) or len({getattr(config, field) for config in every}) > 1
    }
    return cast("GroupFields", fields)


async def need_group(console: Console, name: str) -> views.GroupConfigs:
    """Return the group's configuration; 404 if no broker that answers has the group."""
    return (await _read(console, name))[0]


async def _read(console: Console, name: str) -> tuple[views.GroupConfigs, str]:
    """Return the group's configuration as it is now, and why some brokers did not report theirs."""
    configs = await views.configs_of(console, name, age_s=0)
    if configs.value is None or not configs.value.by_broker:
        raise HTTPException(
            404,
            Refused.NO_GROUP(
                group=name,
                why=Refused.CHECK_NAME() if configs.error is None else text_of(configs.error),
            ),
        )
    return configs.value, str(configs.error or "")


async def _update(
    console: Console, read: tuple[views.GroupConfigs, str], name: str, fields: GroupFields
) -> tuple[dict[str, SubscriptionGroupConfig], str]:
    """Change a group at the masters that have it; return its configuration before, by address, and
    why it was not changed at others.
    """
    configs, missed = read
    before = await console.admin.groups.update(name, before=configs.at_masters, **fields)
    return before, missed or ("" if before else "the name servers do not know where it is")


def _in_part(missed: str, lines: Iterable[str]) -> Outcome:
    return Outcome(
        "changed at those brokers that answer; repeat it for the others: %(why)s",
        list(lines),
        failed=True,
        values={"why": missed},
    )


def _online(state: views.GroupState) -> int | None:
    """Return how many members are connected, None if no broker reports them."""
    if state.members.value is not None:
        return len(state.members.value.clients)
    return 0 if state.members.error is None else None


async def _unknown(request: Request, name: str, state: views.GroupState) -> list[str]:
    """Say what the preview, and the action, lack because some brokers do not answer."""
    _, said = words(request), []
    # `need_group` has just asked.
    configs = await views.configs_of(console_of(request), name)
    if configs.error is not None:
        said.append(
            _(
                "Not all brokers answer: where they do not, the group may stay as it is. %(why)s",
                why=configs.error,
            )
        )
    if state.members.error is not None:
        said.append(
            _(
                "More members may be online: not all brokers have answered. %(why)s",
                why=state.members.error,
            )
        )
    return said


async def _stored(console: Console, topic: str) -> int | None:
    """Return how many messages a topic has, 0 if there is no such topic, None if it is not known."""
    stats = await known(console.admin.topics.stats(topic))
    if stats.value is not None:
        return sum(at.max_offset - at.min_offset for at in stats.value.queues)
    return 0 if isinstance(stats.error, RouteNotFoundError) else None
