"""Name servers: the settings of each, and the key-value entries that all of them hold.

Changes go to every name server, as those of mqadmin do (updateNamesrvConfig, updateKvConfig,
deleteKvConfig, updateOrderConf). Only settings that take effect at once can be changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cometmq.admin.name_servers import CHANGEABLE_SETTINGS
from cometmq.admin.topics.room import ORDER_NAMESPACE
from cometmq.console.refusals import Refused
from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.console.state import Console
from cometmq.console.views.fields import Bound, check_unchanged, name_field, same_lines, text_field
from cometmq.console.views.paging import page_of
from cometmq.console.views.rendering import render, url, words
from cometmq.console.watching.asking import in_time
from cometmq.console.watching.recent import Known
from cometmq.errors import CometMQError, IllegalArgumentError, ServersFailedError
from cometmq.model.reports.keyed_text import text_of
from cometmq.runtime.configuration.config import hide_secrets

routes: Final = Routes()
# As in name servers: MAX_KV_NAME_LENGTH, MAX_KV_VALUE_LENGTH.
MAX_ENTRY_NAME: Final = 512
MAX_ENTRY_VALUE: Final = 65_536
MAX_SETTING: Final = 1000
_ENTRY_NAME: Final = Bound("MAX_ENTRY_NAME", MAX_ENTRY_NAME)
# How many letters of a value the result of a change shows; the preview and the audit log have all.
_SHOWN_LETTERS: Final = 500
_ENTRIES_AGE_S: Final = 2.0
# One that does not answer takes seconds to say so.
_SETTINGS_AGE_S: Final = 10.0
# The entry from which Java's and our clients read the queues of an ordered topic:
# `broker-a:4;broker-b:4`.
_ORDER: Final = re.compile(r"[^:;\s]+:[0-9]{1,6}(;[^:;\s]+:[0-9]{1,6})*")
# The effect of changing these settings.
EFFECTS: Final = {
    "deleteTopicWithBrokerRegistration": "When it is true, a broker's registration removes the "
    "routes of topics that it does not have any more.",
    "enableAllTopicList": "When it is false, nobody may ask for the list of all topics.",
    "enableTopicList": "When it is false, nobody may ask for the topics of a cluster.",
    "logLevel": "It decides what the name servers write to their logs.",
    "needWaitForService": "When it is true, a name server that has just started gives no routes for "
    "a while.",
    "orderMessageEnable": "When it is true, clients of ordered topics get the order configuration.",
    "returnOrderTopicConfigToBroker": "When it is true, brokers get the order configuration when "
    "they register.",
    "supportActingMaster": "When it is true, a slave stands in for a master that is away.",
    "waitSecondsForService": "It decides how long a name server that has just started waits before "
    "it answers with routes.",
}


@routes.page("/name-server")
async def settings(request: Request) -> Response:
    """Show the settings of a name server."""
    console, address = console_of(request), request.query_params.get("address", "")
    found = (await settings_of_name_servers(console)).get(address)
    reported = (found.value or {}) if found is not None else {}
    rows = page_of(request, reported.items(), text=" ".join, key=lambda item: item[0].lower())
    wanted = request.query_params.get("edit", "")
    values = {
        "address": address,
        "settings": found,
        "rows": rows,
        "changeable": CHANGEABLE_SETTINGS,
        "edited": (wanted, reported[wanted])
        if wanted in CHANGEABLE_SETTINGS & set(reported)
        else None,
    }
    return render(request, "name_server.html", values, status=404 if found is None else 200)


@routes.action("/name-server/set", what="change setting of name servers")
async def change_setting(request: Request, form: Form) -> Action:
    """Change a setting of every name server, running and in its file."""
    console, address, key = console_of(request), form["address"], form["key"]
    value = text_field(form, "value", Bound("MAX_SETTING", MAX_SETTING))
    if key not in CHANGEABLE_SETTINGS:
        raise IllegalArgumentError(Refused.NO_NAME_SERVER_SETTING(key=key))
    # Read again, since somebody else may have changed it in the last seconds.
    found = await settings_of_name_servers(console, age_s=0)
    reported = {at: each.value for at, each in found.items()}
    seen = reported.get(address)
    if seen is None or key not in seen:
        raise IllegalArgumentError(Refused.SETTING_UNKNOWN(address=address, key=key))
    check_unchanged(key, seen[key], form["was"])
    before = {at: each.get(key, "") for at, each in reported.items() if each is not None}

    async def perform() -> Outcome:
        await console.admin.name_servers.update_config({key: value})
        return _changed(key, seen[key], value)

    return Action(
        what="change setting of name servers",
        target=key,
        perform=perform,
        back=url("/name-server", address=address),
        preview=[
            *(f"{at}: {key} = {each} → {value}" for at, each in before.items()),
            words(request)(EFFECTS[key]),
        ],
        details={"key": key, "before": before, "after": value},
    )


@routes.page("/name-servers")
async def entries(request: Request) -> Response:
    """Show the key-value entries of a namespace, and what name servers do not agree on."""
    console, query = console_of(request), request.query_params
    namespace = query.get("namespace", "")[:MAX_ENTRY_NAME]
    if not namespace.strip():
        namespace = ORDER_NAMESPACE

    async def ask() -> dict[str, dict[str, str]]:
        return await console.admin.name_servers.entries_by_server(namespace)

    reported = await in_time(
        console.recent.get(("entries", namespace), _ENTRIES_AGE_S, ask), _as_they_are
    )
    held = reported.value or {}
    rows = page_of(
        request,
        [(key, _values_of(held, key)) for key in set().union(*held.values())],
        text=lambda row: " ".join([row[0], *row[1]]),
        key=lambda row: row[0],
    )
    wanted = query.get("edit", "")[:MAX_ENTRY_NAME]
    values = {
        "namespace": namespace,
        "is_order": namespace == ORDER_NAMESPACE,
        "order_namespace": ORDER_NAMESPACE,
        "reported": reported,
        "rows": rows,
        "edited": wanted,
        "value": next(iter(_values_of(held, wanted)), ""),
        "is_new": "new" in query,
    }
    return render(request, "name_server_entries.html", values)


@routes.action("/name-servers/put", what="set entry of name servers")
async def put(request: Request, form: Form) -> Action:
    """Make or change an entry at every name server."""
    console, _ = console_of(request), words(request)
    namespace = name_field(form, "namespace", _ENTRY_NAME)
    # An existing entry may have white space around its name; in a typed name it is a mistake.
    name_of = name_field if form["was"] else text_field
    key = name_of(form, "key", _ENTRY_NAME)
    value = text_field(form, "value", Bound("MAX_ENTRY_VALUE", MAX_ENTRY_VALUE))
    if namespace == ORDER_NAMESPACE and not _ORDER.fullmatch(value):
        raise IllegalArgumentError(Refused.NO_ORDER(value=value))
    before, missed = await _now(console, namespace, key)
    held = next(iter(before), "")
    check_unchanged(key, held, form["was"])
    if namespace != ORDER_NAMESPACE:
        value = _as_its_lines_end(form["value"], held)

    async def perform() -> Outcome:
        await console.admin.name_servers.put_entry(namespace, key, value)
        return _changed(key, ", ".join(before), value)

    return Action(
        what="set entry of name servers",
        target=_typed(key),
        perform=perform,
        back=url("/name-servers", namespace=namespace),
        preview=[
            f"{namespace}: {key} = {', '.join(before) or '–'} → {value}",
            _("Clients of this topic use these queues for ordered messages, within half a minute.")
            if namespace == ORDER_NAMESPACE
            else _("Programs that read this entry get the new value."),
            *_not_everywhere(request, missed),
        ],
        details={"namespace": namespace, "key": key, "before": before, "after": value},
    )


@routes.action("/name-servers/delete", what="delete entry of name servers")
async def delete(request: Request, form: Form) -> Action:
    """Delete an entry at every name server."""
    console, _ = console_of(request), words(request)
    namespace, key = (
        name_field(form, "namespace", _ENTRY_NAME),
        name_field(form, "key", _ENTRY_NAME),
    )
    before, missed = await _now(console, namespace, key)
    if not before:
        why = Refused.AND_WHY(error=missed) if missed else ""
        raise HTTPException(404, Refused.NO_ENTRY(key=key, namespace=namespace, why=why))
    check_unchanged(key, before[0], form["was"])

    async def perform() -> Outcome:
        await console.admin.name_servers.delete_entry(namespace, key)
        return Outcome("deleted")

    return Action(
        what="delete entry of name servers",
        target=_typed(key),
        perform=perform,
        back=url("/name-servers", namespace=namespace),
        preview=[
            f"{namespace}: {key} = {', '.join(before)}",
            _("Clients of this topic then use the queues of its route, as for other topics.")
            if namespace == ORDER_NAMESPACE
            else _("Programs that read this entry find none."),
            *_not_everywhere(request, missed),
        ],
        details={"namespace": namespace, "key": key, "before": before},
    )


async def settings_of_name_servers(
    console: Console, *, age_s: float = _SETTINGS_AGE_S
) -> dict[str, Known[dict[str, str]]]:
    """Return the settings of each name server, or why it did not report them."""
    addresses = await console.admin.name_servers.addresses()

    async def ask() -> dict[str, Known[dict[str, str]]]:
        errors: Mapping[str, CometMQError] = {}
        reported: Mapping[str, dict[str, str]] = {}
        try:
            reported = await console.admin.name_servers.config()
        except ServersFailedError as error:
            errors, reported = error.errors, error.results
        except CometMQError as error:
            errors = dict.fromkeys(addresses, error)
        return {
            address: Known(
                hide_secrets(reported[address]) if address in reported else None,
                errors.get(address),
            )
            for address in addresses
        }

    return await console.recent.get("name servers", age_s, ask)


async def _now(console: Console, namespace: str, key: str) -> tuple[list[str], str]:
    """Return the values that an entry has at the name servers that answer, and why others do not.

    Raises CometMQError if none does.
    """
    try:
        reported: Mapping[str, Mapping[str, str]]
        reported = await console.admin.name_servers.entries_by_server(namespace)
    except ServersFailedError as error:
        if not error.results:
            raise
        return _values_of(error.results, key), text_of(error)
    return _values_of(reported, key), ""


def _not_everywhere(request: Request, missed: str) -> list[str]:
    """Say that a change will fail at some name servers, which keep what they have."""
    if not missed:
        return []
    return [
        words(request)(
            "Not all name servers answer: those keep what they have, and serve it when they are back. "
            "%(why)s",
            why=missed,
        )
    ]


def _as_its_lines_end(value: str, before: str) -> str:
    """Return a value of several lines with the line ends that it had; a new one has those of Unix."""
    lines = same_lines(value)
    is_windows = "\r\n" in before and same_lines(before).count("\n") == before.count("\r\n")
    return lines.replace("\n", "\r\n") if is_windows else lines


def _typed(name: str) -> str:
    """Return a name as it can be typed to confirm it: in one line, with single spaces."""
    return " ".join(name.split())


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}…"


def _values_of(held: Mapping[str, Mapping[str, str]], key: str) -> list[str]:
    """Return the different values of an entry, the first name server's first."""
    return list(dict.fromkeys(each[key] for each in held.values() if key in each))


def _as_they_are(results: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    return dict(results)


def _changed(key: str, before: str, after: str) -> Outcome:
    return Outcome(
        "%(key)s is now %(after)s; it was %(before)s",
        values={"key": key, "after": _short(after), "before": _short(before) or "–"},
    )
