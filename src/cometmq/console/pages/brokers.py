"""Brokers and name servers: the list, one broker, and the actions on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from cometmq.admin.brokers.room import file_deletions, next_deletion
from cometmq.admin.brokers.settings import Setting, settings_of
from cometmq.admin.servers import BrokerAddress
from cometmq.console.pages.name_servers import settings_of_name_servers
from cometmq.console.refusals import Refused
from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.console.state import Console
from cometmq.console.views.fields import check_unchanged
from cometmq.console.views.paging import page_of
from cometmq.console.views.rendering import Say, render, words
from cometmq.console.watching.asking import brokers_of, in_time
from cometmq.console.watching.concerns import behind_bytes, broker_url
from cometmq.console.watching.recent import Known
from cometmq.console.watching.watch import BrokerState
from cometmq.errors import (
    IllegalArgumentError,
    RouteNotFoundError,
)
from cometmq.model.route import MASTER_ID
from cometmq.model.sysflag import PERM_WRITE

routes: Final = Routes()
PARTS: Final = {
    "state": "State",
    "settings": "Settings",
    "files": "Files",
    "replication": "Replication",
    "values": "All values",
}
_AGE_S: Final = 2.0
# The effect of changing these settings; such a change has to be confirmed.
_RISKS: Final = {
    "brokerPermission": "Clients that may not read or write there any more stop at once.",
    "deleteWhen": "Files that have expired are deleted at this hour, and their messages with them.",
    "diskMaxUsedSpaceRatio": "Above this share of the disk old files are deleted at any hour.",
    "diskSpaceCleanForciblyRatio": "Above this share of the disk files go before they expire.",
    "diskSpaceWarningLevelRatio": "Above this share of the disk all messages are refused.",
    "cleanFileForciblyEnable": "When it is true, a full disk deletes files before they expire.",
    "fileReservedTime": "Files older than this many hours are deleted, and their messages with them.",
    "rejectTransactionMessage": "When it is true, transactions fail at once.",
    "maxConnections": "Clients beyond this number are turned away.",
}


@routes.page("/brokers")
async def listing(request: Request) -> Response:
    """Show all brokers by cluster, and the name servers."""
    console = console_of(request)
    watch = console.watch
    rows = page_of(
        request,
        watch.brokers,
        text=lambda state: f"{state.at.cluster} {state.at.broker_name} {state.at.address}",
        key=lambda state: (state.at.cluster, state.at.broker_name, state.at.broker_id),
    )
    name_servers = await settings_of_name_servers(console)
    values = {
        "rows": rows,
        "watch": watch,
        "with_cluster": len({state.at.cluster for state in watch.brokers}) > 1,
        "name_servers": name_servers,
    }
    return render(request, "brokers.html", values)


@routes.page("/broker")
async def one(request: Request) -> Response:
    """Show a part of what is known of a broker."""
    console, address = console_of(request), request.query_params.get("address", "")
    part = request.query_params.get("part", "state")
    part = part if part in PARTS else "state"
    state = await _state(console, address)
    values: dict[str, object] = {
        "address": address,
        "state": state,
        "part": part,
        "parts": PARTS,
        "watch": console.watch,
    }
    if not state.at.broker_name and isinstance(state.error, RouteNotFoundError):
        return render(request, "broker_unknown.html", values, status=404)
    return render(request, "broker.html", {**values, **await _SHOWS[part](request, state)})


async def _show_state(request: Request, state: BrokerState) -> dict[str, object]:
    console, name = console_of(request), state.at.broker_name

    async def is_chosen() -> bool:
        # Each broker has a topic of its own name, and the permission in that topic's route says whether
        # producers may choose it.
        route = await console.admin.topics.route(name)
        return any(
            queues.perm & PERM_WRITE for queues in route.queue_datas if queues.broker_name == name
        )

    return {
        "trend": console.watch.trend([state.at.address]),
        "behind": behind_bytes(console.watch, state),
        "is_chosen": await in_time(console.recent.get(("chosen", name), _AGE_S, is_chosen)),
    }


async def _show_settings(request: Request, state: BrokerState) -> dict[str, object]:
    reported = await _settings(console_of(request), state.at.address)
    settings = reported.value or []
    changed = sum(setting.is_changed for setting in settings)
    only = "all" if request.query_params.get("show") == "all" or not changed else "changed"
    rows = page_of(
        request,
        (setting for setting in settings if only == "all" or setting.is_changed),
        text=lambda setting: f"{setting.key} {setting.value}",
        key=lambda setting: setting.key.lower(),
    )
    wanted = request.query_params.get("edit", "")
    edited = next((each for each in settings if each.key == wanted and each.is_changeable), None)
    return {"settings": reported, "rows": rows, "show": only, "changed": changed, "edited": edited}


async def _show_files(request: Request, state: BrokerState) -> dict[str, object]:
    del request
    first, end = state.whole("commitLogMinOffset"), state.whole("commitLogMaxOffset")
    return {
        "files": file_deletions(state.info),
        "next": next_deletion(state.info),
        "log_bytes": None if first is None or end is None else end - first,
    }


async def _show_replication(request: Request, state: BrokerState) -> dict[str, object]:
    console, address = console_of(request), state.at.address

    async def ask() -> object:
        await _place(console, address)
        return (await console.admin.brokers.replication(broker=address))[address]

    copies = await in_time(console.recent.get(("replication", address), _AGE_S, ask))
    return {"copies": copies, "behind": behind_bytes(console.watch, state)}


async def _show_values(request: Request, state: BrokerState) -> dict[str, object]:
    rows = page_of(request, state.info.items(), text=" ".join, key=lambda item: item[0].lower())
    return {"rows": rows}


_Show = Callable[[Request, BrokerState], Awaitable[dict[str, object]]]
_SHOWS: Final[Mapping[str, _Show]] = {
    "state": _show_state,
    "settings": _show_settings,
    "files": _show_files,
    "replication": _show_replication,
    "values": _show_values,
}


@routes.action("/broker/set", what="change setting of broker")
async def change_setting(request: Request, form: Form) -> Action:
    """Change a setting of a running broker, and in its file."""
    console, address = console_of(request), form["address"]
    key, value = form["key"], form["value"].strip()
    # Read again, since somebody else may have changed it in the last seconds.
    reported = await _settings(console, address, age_s=0)
    if reported.value is None:
        assert reported.error is not None
        raise reported.error
    setting = next((each for each in reported.value if each.key == key), None)
    if setting is None or not setting.is_changeable:
        raise IllegalArgumentError(Refused.NO_SETTING(key=key, address=address))
    check_unchanged(key, setting.value, form["was"])
    name = (await _place(console, address)).broker_name

    async def perform() -> Outcome:
        await console.admin.brokers.update_config({key: value}, broker=address)
        return Outcome(
            "%(key)s is now %(after)s; it was %(before)s",
            values={"key": key, "after": value, "before": setting.value},
        )

    preview = [f"{name}: {key} = {setting.value} → {value}"]
    return Action(
        what="change setting of broker",
        target=name,
        perform=perform,
        back=broker_url(address, part="settings"),
        preview=[*preview, words(request)(_RISKS[key])] if key in _RISKS else None,
        details={"address": address, "key": key, "before": setting.value, "after": value},
    )


@routes.action("/broker/wipe", what="stop writes to broker")
async def wipe(request: Request, form: Form) -> Action:
    """Keep producers from choosing a broker."""
    console, name, address = console_of(request), form["name"], form["address"]
    _ = words(request)

    async def perform() -> Outcome:
        return _permitted(words(request), await console.admin.brokers.wipe_write_permission(name))

    return Action(
        what="stop writes to broker",
        target=name,
        perform=perform,
        back=broker_url(address),
        preview=[
            _(
                "Within half a minute producers no longer send to broker %(name)s; consumers go on.",
                name=name,
            ),
            _(
                "The permission comes back by the button here, and when the broker registers a "
                "change.",
            ),
        ],
    )


@routes.action("/broker/permit", what="allow writes to broker")
async def permit(request: Request, form: Form) -> Action:
    """Let producers choose a broker again."""
    console, name, address = console_of(request), form["name"], form["address"]

    async def perform() -> Outcome:
        return _permitted(words(request), await console.admin.brokers.add_write_permission(name))

    return Action(
        what="allow writes to broker",
        target=name,
        perform=perform,
        back=broker_url(address),
    )


class _Cleaning(NamedTuple):
    """Is a way to have a broker delete what it does not need; `what` is the action's."""

    what: str
    effect: str
    call: Callable[..., Awaitable[list[str]]]


@routes.action("/broker/clean", what="clean up broker")
async def clean(request: Request, form: Form) -> Action:
    """Have a broker delete what has expired or is not used."""
    console, address, kind = console_of(request), form["address"], form["kind"]
    _, brokers = words(request), console.admin.brokers
    calls = {
        "files": _Cleaning(
            what="delete expired files of broker",
            effect=_("Expired files and their messages are deleted now, for good."),
            call=brokers.delete_expired_files,
        ),
        "queues": _Cleaning(
            what="clean expired queues of broker",
            effect=_("Files of queues are deleted once their messages have left the commit log."),
            call=brokers.clean_expired_queues,
        ),
        "topics": _Cleaning(
            what="clean unused topics of broker",
            effect=_("Queues of topics that the broker no longer has are deleted for good."),
            call=brokers.clean_unused_topics,
        ),
    }
    if kind not in calls:
        raise IllegalArgumentError(Refused.NO_CLEANING(kind=kind, kinds=tuple(calls)))
    cleaning = calls[kind]
    name = (await _place(console, address)).broker_name

    async def perform() -> Outcome:
        await cleaning.call(broker=address)
        return Outcome("begun; the broker does it within a minute")

    return Action(
        what=cleaning.what,
        target=name,
        perform=perform,
        back=broker_url(address, part="files"),
        preview=[cleaning.effect],
        details={"address": address},
    )


def _permitted(_: Say, changed: Mapping[str, int]) -> Outcome:
    lines = [
        f"{address}: {_('%(count)s topics changed', count=count)}"
        for address, count in changed.items()
    ]
    return Outcome("done at all name servers", lines)


async def _place(console: Console, address: str) -> BrokerAddress:
    """Return the broker that is registered at an address.

    Nothing is asked of an address that only a link names: the console would sign requests for a
    stranger. Raises CometMQError.
    """
    found = console.watch.state_of(address)
    if found is not None:
        return found.at
    place = next((at for at in await brokers_of(console) if at.address == address), None)
    if place is None:
        raise RouteNotFoundError(Refused.NO_BROKER_AT(address=address))
    return place


async def _state(console: Console, address: str) -> BrokerState:
    """Return what the watch saw of a broker; ask one that it has not seen yet."""
    found = console.watch.state_of(address)
    if found is not None:
        return found
    place = await in_time(_place(console, address))
    if place.value is None:
        return BrokerState(BrokerAddress("", "", MASTER_ID, address), {}, place.error)
    reported = await in_time(
        console.recent.get(
            ("runtime", address),
            _AGE_S,
            lambda: console.admin.brokers.runtime_info(broker=address),
        )
    )
    return BrokerState(place.value, (reported.value or {}).get(address, {}), reported.error)


async def _settings(
    console: Console, address: str, *, age_s: float = _AGE_S
) -> Known[list[Setting]]:
    async def ask() -> list[Setting]:
        await _place(console, address)
        return settings_of((await console.admin.brokers.config(broker=address))[address])

    return await in_time(console.recent.get(("settings", address), age_s, ask))
