"""Explain what the restart of a broker would cost: log to read, queues to open, clients to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.admin.brokers.room import Brokers
from cometmq.admin.explain.disk import away, nothing_registered
from cometmq.admin.explain.inquiry import Inquiry, Place, Reported, number, plural, shortened
from cometmq.admin.explain.records import (
    Cause,
    Evidence,
    Reason,
    RestartCost,
    RestartExplanation,
    Unasked,
)
from cometmq.admin.explain.texts import Remedy, Said, Shown
from cometmq.admin.groups.room import Groups
from cometmq.model.names import is_system_group
from cometmq.model.reports.finding import Severity
from cometmq.protocol import requests
from cometmq.protocol.bodies.inspection import ConsumerConnection
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import GetConsumerConnectionListRequestHeader

_MIB: Final = 1 << 20
# How much a start is taken to read a second if its last recovery was too short to judge by.
_ASSUMED_RATE: Final = 200 * _MIB
_MEANINGFUL_BYTES: Final = 64 * _MIB
_QUEUES_PER_S: Final = 20_000
_MOST_GROUPS: Final = 200
_FIGURES: Final = (
    "restartLogBytes",
    "restartLogBytesAfterCrash",
    "restartQueues",
    "recoveredBytes",
    "recoveryMillis",
    "consumersOnline",
    "producersOnline",
    "remainHowManyDataToFlush",
    "indexBehindBytes",
)


@dataclass(frozen=True, slots=True)
class RestartFacts:
    """Holds what one broker reports. `online` has the groups with a member, None if it is not known."""

    place: Place
    info: Reported[Mapping[str, str]] | None
    online: Mapping[str, Reported[ConsumerConnection]] | None
    asked_groups: int = 0
    known_groups: int = 0


async def explain_restart(
    inquiry: Inquiry, *, cluster: str | None, broker: str | None
) -> RestartExplanation:
    """Ask brokers, and judge. See Explanations.restart."""
    inquiry.step("asking the name servers for the brokers")
    places = await inquiry.masters(cluster=cluster, broker=broker)
    everywhere = places if broker is None else await _all(inquiry, places)
    inquiry.step(f"asking {plural(len(places), 'broker')} for figures and groups")
    # The figures come first, because groups may be too many for the questions that are left.
    infos = await asyncio.gather(*(_info(inquiry, place) for place in places))
    found = [
        await _of_broker(inquiry, place, reported)
        for place, reported in zip(places, infos, strict=True)
    ]
    costs = {facts.place.address: cost(facts) for facts in found}
    reasons = [reason for facts in found for reason in judge(facts, everywhere, inquiry.unasked)]
    return RestartExplanation(
        question=Said.WHAT_COSTS_RESTART(),
        reasons=tuple(reasons) or (nothing_registered(),),
        unasked=inquiry.unasked,
        at_ms=inquiry.now_ms(),
        costs=costs,
    )


async def _all(inquiry: Inquiry, places: list[Place]) -> list[Place]:
    if not inquiry.servers.has_name_servers:
        return places
    return await inquiry.masters()


async def _info(inquiry: Inquiry, place: Place) -> Reported[Mapping[str, str]] | None:
    address = place.address

    async def info() -> Mapping[str, str]:
        return (await Brokers(inquiry.servers).runtime_info(broker=address))[address]

    return await inquiry.ask(requests.GET_BROKER_RUNTIME_INFO, address, info)


async def _of_broker(
    inquiry: Inquiry, place: Place, reported: Reported[Mapping[str, str]] | None
) -> RestartFacts:
    servers, address = inquiry.servers, place.address
    configs = await inquiry.ask(
        requests.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        address,
        lambda: Groups(servers).configs(broker=address),
    )
    if configs is None:
        return RestartFacts(place, reported, None)
    known = sorted(group for group in configs.value[address] if not is_system_group(group))

    async def members(group: str) -> ConsumerConnection | None:
        answer = await servers.ask(
            address,
            requests.GET_CONSUMER_CONNECTION_LIST,
            GetConsumerConnectionListRequestHeader(consumer_group=group),
            what=f"the members of group {group}",
            also=(ResponseCode.CONSUMER_NOT_ONLINE,),
        )
        return None if answer.code == ResponseCode.CONSUMER_NOT_ONLINE else answer.body

    async def online(group: str) -> Reported[ConsumerConnection] | None:
        found = await inquiry.ask(
            requests.GET_CONSUMER_CONNECTION_LIST, address, lambda: members(group)
        )
        if found is None or found.value is None:
            return None
        return Reported(found.value, found.request, found.address, found.at_ms)

    asked = known[:_MOST_GROUPS]
    answers = await asyncio.gather(*map(online, asked))
    table = {g: found for g, found in zip(asked, answers, strict=True) if found is not None}
    return RestartFacts(place, reported, table, len(asked), len(known))


def cost(facts: RestartFacts) -> RestartCost:
    """Compute the cost from the broker's report."""
    info: Mapping[str, str] = facts.info.value if facts.info is not None else {}
    clean, crash = _figure(info, "restartLogBytes"), _figure(info, "restartLogBytesAfterCrash")
    queues = _figure(info, "restartQueues")
    rate, _ = _rate(info)
    online = facts.online or {}
    clients = {c.client_id for reported in online.values() for c in reported.value.connection_set}

    def seconds(count: int | None) -> float | None:
        return None if count is None else count / rate + (queues or 0) / _QUEUES_PER_S

    return RestartCost(
        broker_name=facts.place.name,
        clean_bytes=clean,
        crash_bytes=crash,
        clean_s=seconds(clean),
        crash_s=seconds(crash),
        queue_count=queues,
        groups=tuple(online),
        consumer_count=len(clients),
        producer_count=_figure(info, "producersOnline"),
    )


def judge(
    facts: RestartFacts, everywhere: list[Place], unasked: tuple[Unasked, ...] = ()
) -> list[Reason]:
    """Say what the restart of one broker costs, by its report."""
    place = facts.place
    if facts.info is None:
        return [away(place, unasked)]
    found = cost(facts)
    evidence = _evidence(facts)
    producers = found.producer_count
    lost = {"consumers": found.consumer_count, "groups": len(found.groups)}
    affected = (
        Said.LOSE_IT_WITH_PRODUCERS(**lost)
        if producers is None
        else Said.LOSE_IT(**lost, producers=producers)
    )
    reasons = []
    if found.clean_s is None or found.clean_bytes is None:
        reasons.append(
            Reason(
                Cause.NOT_REPORTED,
                Severity.WARNING,
                Said.RESTART_UNKNOWN(broker=place.name, affected=affected),
                evidence,
                Remedy.RESTART_UNKNOWN(),
            )
        )
    else:
        crash = (
            Said.AFTER_CRASH(log=_mib(found.crash_bytes), time=_seconds(found.crash_s))
            if found.crash_bytes is not None and found.crash_s is not None
            else ""
        )
        reasons.append(
            Reason(
                Cause.RESTART_COST,
                Severity.OK,
                Said.RESTART_COST(
                    broker=place.name,
                    time=_seconds(found.clean_s),
                    log=_mib(found.clean_bytes),
                    queues=found.queue_count or 0,
                    crash=crash,
                    affected=affected,
                ),
                evidence,
            )
        )
    if not any(p.cluster == place.cluster and p.name != place.name for p in everywhere):
        reasons.append(
            Reason(
                Cause.NO_OTHER_BROKER,
                Severity.WARNING,
                Said.NO_OTHER_BROKER(broker=place.name),
                (),
                Remedy.NO_OTHER_BROKER(),
            )
        )
    return reasons


def _evidence(facts: RestartFacts) -> tuple[Evidence, ...]:
    assert facts.info is not None, "checked by the caller"
    info = facts.info
    shown = [info.shows(key, info.value[key]) for key in _FIGURES if key in info.value]
    if "restartLogBytes" in info.value:
        rate, measured = _rate(info.value)
        how = Shown.MEASURED if measured else Shown.ASSUMED
        shown.append(info.shows(Shown.LOG_READ_A_SECOND(), how(rate=_mib(rate))))
    if facts.online:
        reported = next(iter(facts.online.values()))
        more = facts.known_groups - facts.asked_groups
        groups = shortened(sorted(facts.online))
        if more:
            groups = Shown.GROUPS_IN_PART(groups=groups, more=more)
        shown.append(reported.shows(Shown.GROUPS_ONLINE(), groups))
    return tuple(shown)


def _rate(info: Mapping[str, str]) -> tuple[int, bool]:
    """Return the bytes that a start reads a second, and whether the broker has measured it."""
    read, took_ms = _figure(info, "recoveredBytes") or 0, _figure(info, "recoveryMillis") or 0
    if read >= _MEANINGFUL_BYTES and took_ms > 0:
        return read * 1000 // took_ms, True
    return _ASSUMED_RATE, False


def _figure(info: Mapping[str, str], key: str) -> int | None:
    found = number(info.get(key), -1)
    return found if found >= 0 else None


def _mib(count: int) -> str:
    if count >= _MIB:
        return Said.MEBIBYTES(count=count / _MIB)
    return Said.BYTES(count=count)


def _seconds(span_s: float) -> str:
    return Said.A_SECOND() if span_s < 1 else Said.SECONDS(count=span_s)
