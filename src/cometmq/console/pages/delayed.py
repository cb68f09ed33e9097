"""Delayed messages: how many wait, by level and by time, and when they are due."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cometmq.admin.messages.waiting import DelayedMessage, DelayLevel, TimedMessages
from cometmq.admin.servers import BrokerAddress
from cometmq.console.refusals import Refused
from cometmq.console.routes import Routes, console_of
from cometmq.console.state import Console
from cometmq.console.views.paging import Slice, page_of, whole
from cometmq.console.views.rendering import Say, render, words
from cometmq.console.watching.asking import ask_each, brokers_of, in_time, lost_masters, masters_of
from cometmq.console.watching.recent import Known, known
from cometmq.errors import CometMQError

routes: Final = Routes()
_AGE_S: Final = 2.0
_LISTED: Final = 50
# A broker's clock and ours may differ by this much.
_LATE_MS: Final = 5_000
# Messages that are due up to this many ms from now are counted together.
_SPANS: Final = (
    ("within a minute", 60_000),
    ("within 10 minutes", 600_000),
    ("within an hour", 3_600_000),
    ("within a day", 86_400_000),
    ("later", 2**63 - 1),
)


@dataclass(frozen=True, slots=True)
class Timed:
    """Holds the number of messages in a broker's timer, and the messages that were looked at."""

    broker_name: str
    count: int | None
    found: Known[TimedMessages]


@routes.page("/delayed")
async def delayed(request: Request) -> Response:
    """Show what waits in levels and timers; with broker and level, the messages of that level."""
    console = console_of(request)
    if request.query_params.get("level"):
        return await _of_level(request)
    masters, lost = await masters_of(console), await lost_masters(console)
    wanted = request.query_params.get("broker", "")
    if wanted:
        masters = [at for at in masters if at.broker_name == wanted]
        lost = {name: error for name, error in lost.items() if name == wanted}
        if not masters and not lost:
            raise HTTPException(404, Refused.UNKNOWN_MASTER(name=wanted))
    levels, timers = await asyncio.gather(
        ask_each([at.broker_name for at in masters], lambda name: _levels(console, name)),
        _timers(request, masters),
    )
    waiting = [level for each in levels.values() for level in each.value or () if level.pending > 0]
    waiting.sort(key=lambda level: (level.level, level.broker_name))
    messages = [message for each in timers for message in _messages(each)]
    messages.sort(key=lambda each: each.due_ms or 0)
    values = {
        "broker": wanted,
        "levels": waiting,
        "missing": _missing(words(request), timers, levels, lost),
        "timers": timers,
        "rows": _fitting(request, messages),
        "spans": _spans(messages, console.clock.now_ms()),
        "now_ms": console.clock.now_ms(),
        "late_ms": _LATE_MS,
    }
    return render(request, "delayed.html", values)


def _missing(
    _: Say,
    timers: Sequence[Timed],
    levels: Mapping[str, Known[list[DelayLevel]]],
    lost: Mapping[str, CometMQError],
) -> list[tuple[CometMQError, str]]:
    """Return what is not known about the brokers, and why."""
    timed = {each.broker_name: each.found.error for each in timers} | dict(lost)
    waiting = {name: each.error for name, each in levels.items()} | dict(lost)
    found = [
        *(
            (error, _("what the timer of %(broker)s holds", broker=at))
            for at, error in timed.items()
        ),
        *(
            (error, _("what waits in the levels of %(broker)s", broker=at))
            for at, error in waiting.items()
        ),
    ]
    return [(error, what) for error, what in found if error is not None]


async def _levels(console: Console, broker: str) -> list[DelayLevel]:
    return await console.recent.get(
        ("delay levels", broker),
        _AGE_S,
        lambda: console.admin.messages.delay_levels(broker=broker),
    )


async def _timers(request: Request, masters: Sequence[BrokerAddress]) -> list[Timed]:
    console = console_of(request)
    before = whole(request, "before", -1) if request.query_params.get("broker") else -1

    async def timed(name: str) -> TimedMessages:
        async def ask() -> TimedMessages:
            found = await console.admin.messages.timed(name, before=None if before < 0 else before)
            for each in found.messages:
                each.message.body = b""  # nobody sees it here, and together they are large
            return found

        return await console.recent.get(("timed", name, before), _AGE_S, ask)

    async def info(address: str) -> dict[str, str]:
        found = await console.recent.get(
            ("runtime", address),
            _AGE_S,
            lambda: console.admin.brokers.runtime_info(broker=address),
        )
        return found[address]

    found, infos = await asyncio.gather(
        ask_each([at.broker_name for at in masters], timed),
        ask_each([at.address for at in masters], info),
    )
    return [
        Timed(at.broker_name, _count(infos[at.address].value), found[at.broker_name])
        for at in masters
    ]


def _count(info: dict[str, str] | None) -> int | None:
    """Return how many timed messages wait: Java calls them congested."""
    text = (info or {}).get("timerCongestNum", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _messages(timed: Timed) -> Sequence[DelayedMessage]:
    return () if timed.found.value is None else timed.found.value.messages


def _fitting(request: Request, messages: Sequence[DelayedMessage]) -> Slice[DelayedMessage]:
    order = {id(each): number for number, each in enumerate(messages)}
    return page_of(
        request,
        messages,
        text=lambda each: " ".join((each.topic, each.message.msg_id, *each.message.keys)),
        key=lambda each: order[id(each)],
    )


def _spans(messages: Sequence[DelayedMessage], now_ms: int) -> list[tuple[str, int]]:
    """Return how many messages are due in each span of time from now on."""
    counts = dict.fromkeys((name for name, _ in _SPANS), 0)
    for each in messages:
        left_ms = (each.due_ms or 0) - now_ms
        counts[next(name for name, most_ms in _SPANS if left_ms <= most_ms)] += 1
    return [(name, counts[name]) for name, _ in _SPANS]


async def _of_level(request: Request) -> Response:
    console, name = console_of(request), request.query_params.get("broker", "")
    if name not in {at.broker_name for at in await brokers_of(console)}:
        raise HTTPException(404, Refused.UNKNOWN_BROKER(name=name))
    number = whole(request, "level", 0)
    levels = await in_time(_levels(console, name))
    level = next((each for each in levels.value or () if each.level == number), None)
    found: Known[list[DelayedMessage]] = Known([])
    if level is not None and level.pending > 0:
        begin = whole(request, "from", 0)
        found = await known(
            console.admin.messages.in_delay_level(level, begin_offset=begin, count=_LISTED)
        )
    values = {
        "broker": name,
        "number": number,
        "level": level,
        "error": levels.error or found.error,
        "found": found.value or [],
        "listed": _LISTED,
        "now_ms": console.clock.now_ms(),
        "late_ms": _LATE_MS,
    }
    return render(request, "delay_level.html", values)
