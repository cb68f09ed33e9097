"""Gathers what the pages of consumer groups show; what servers do not tell stays unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from cometmq.admin.group_findings import is_offline, is_unknown_group
from cometmq.admin.group_reading import QueueTimes
from cometmq.admin.group_records import (
    GroupConnections,
    GroupProgress,
    RunningInfo,
    joined,
    merged,
)
from cometmq.admin.servers import BrokerAddress
from cometmq.console.recent import Known, known, known_in_part
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.queue import MessageQueue

if TYPE_CHECKING:
    from cometmq.console.state import Console

T = TypeVar("T")

LIST_AGE_S: Final = 3.0
_LAGS_AGE_S: Final = 15.0
_MEMBERS_AGE_S: Final = 10.0
# All groups of a broker are much to tell.
_LAGS_WITHIN_S: Final = 10.0
# Of a group with more members only so many are asked, and of one with more topics that wait, these.
MOST_MEMBERS: Final = 100
MOST_AGES: Final = 8
_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class GroupConfigs:
    """Holds a group's configuration at each broker that has it."""

    brokers: tuple[BrokerAddress, ...]
    by_broker: Mapping[str, SubscriptionGroupConfig]

    @property
    def clusters(self) -> list[str]:
        return sorted({at.cluster for at in self.brokers if at.address in self.by_broker})

    @property
    def is_paused(self) -> bool:
        """Whether no broker lets the group consume."""
        return bool(self.by_broker) and not any(
            config.consume_enable for config in self.by_broker.values()
        )

    @property
    def is_partly_paused(self) -> bool:
        paused = [not config.consume_enable for config in self.by_broker.values()]
        return any(paused) and not all(paused)


@dataclass(frozen=True, slots=True)
class GroupState:
    """Tells how a group does: its members, how far it is, and how old what waits is.

    The value of `members` is None if no member is connected. `age_ms` is the age of the oldest
    message that waits, None if that was not asked or told.
    """

    name: str
    members: Known[GroupConnections | None]
    progress: Known[GroupProgress]
    age_ms: int | None

    @property
    def lag(self) -> int | None:
        return None if self.progress.value is None else lag_of(self.progress.value)

    @property
    def error(self) -> Exception | None:
        return self.members.error or self.progress.error


@dataclass(frozen=True, slots=True)
class TopicState:
    """Tells how far a group is in one topic."""

    topic: str
    queues: int
    lag: int
    in_flight: int
    age_ms: int | None


def lag_of(progress: GroupProgress, topic: str | None = None) -> int:
    """Return how many messages wait. A queue that was made anew under its group has none less."""
    return sum(max(0, at.lag) for at in progress.queues if topic in (None, at.queue.topic))


async def all_configs(
    console: Console, *, age_s: float = LIST_AGE_S
) -> Known[dict[str, dict[str, SubscriptionGroupConfig]]]:
    """Return the groups of every broker that answers, by address and name."""

    async def ask() -> Known[dict[str, dict[str, SubscriptionGroupConfig]]]:
        clusters = await known(console.admin.brokers.clusters())
        if clusters.value is None:
            return Known(None, clusters.error)
        asked = await asyncio.gather(
            *(
                known_in_part(console.admin.groups.configs(cluster=cluster), dict)
                for cluster in clusters.value
            )
        )
        tables = {address: table for part in asked for address, table in (part.value or {}).items()}
        error = next((part.error for part in asked if part.error is not None), None)
        return Known(tables or (None if error else {}), error)

    return await console.recent.get("group configs", age_s, ask)


async def configs_of(
    console: Console, group: str, *, age_s: float = LIST_AGE_S
) -> Known[GroupConfigs]:
    """Return the configuration of one group at the brokers that answer."""
    tables, brokers = await asyncio.gather(
        all_configs(console, age_s=age_s),
        known(
            console.recent.get(
                "masters", LIST_AGE_S, lambda: console.admin.brokers.addresses(slaves=False)
            )
        ),
    )
    if tables.value is None:
        return Known(None, tables.error)
    mine = {address: table[group] for address, table in tables.value.items() if group in table}
    return Known(GroupConfigs(tuple(brokers.value or ()), mine), tables.error)


async def all_lags(console: Console) -> Known[dict[str, int]]:
    """Return how many messages wait for each group, over all brokers that answer."""

    async def ask() -> Known[dict[str, int]]:
        clusters = await known(console.admin.brokers.clusters())
        if clusters.value is None:
            return Known(None, clusters.error)
        asked = await asyncio.gather(
            *(
                known_in_part(
                    console.admin.brokers.progress(cluster=cluster), dict, within_s=_LAGS_WITHIN_S
                )
                for cluster in clusters.value
            )
        )
        lags: dict[str, int] = {}
        for part in asked:
            for told in (part.value or {}).values():
                for progress in told.groups:
                    lags[progress.group] = lags.get(progress.group, 0) + lag_of(progress)
        return Known(lags, next((part.error for part in asked if part.error is not None), None))

    return await console.recent.get("lags of groups", _LAGS_AGE_S, ask)


async def connections_of(console: Console, group: str) -> Known[GroupConnections | None]:
    """Return the members of a group at the brokers that answer, None if there are none."""

    async def ask() -> Known[GroupConnections | None]:
        found: Known[GroupConnections | None] = await known_in_part(
            console.admin.groups.connections(group), lambda told: joined(group, told.values())
        )
        if found.error is not None and is_offline(found.error):
            return Known(None)
        return found

    return await console.recent.get(("members", group), 2.0, ask)


async def progress_of(console: Console, group: str) -> Known[GroupProgress]:
    """Return how far a group is at the brokers that answer; a group that nobody knows is nowhere."""

    async def ask() -> Known[GroupProgress]:
        found = await known_in_part(
            console.admin.groups.progress(group), lambda told: merged(group, told.values())
        )
        if found.error is not None and is_unknown_group(found.error):
            return Known(GroupProgress(group, 0.0, ()))
        return found

    return await console.recent.get(("progress", group), 1.0, ask)


async def times_of(
    console: Console, group: str, topics: Iterable[str]
) -> dict[str, Known[list[QueueTimes]]]:
    """Return for each of these topics when its messages were stored, queue by queue."""

    async def ask(topic: str) -> Known[list[QueueTimes]]:
        return await known_in_part(
            console.admin.groups.times(group, topic),
            lambda told: [at for times in told.values() for at in times],
        )

    names = list(topics)
    answers = await asyncio.gather(
        *(console.recent.get(("times", group, topic), 2.0, partial(ask, topic)) for topic in names)
    )
    return dict(zip(names, answers, strict=True))


async def state_of(console: Console, group: str) -> GroupState:
    """Return how a group does. Of many topics in which messages wait, those with the most count."""
    members, progress = await asyncio.gather(
        connections_of(console, group), progress_of(console, group)
    )
    age_ms: int | None = None
    if progress.value is not None:
        waiting = waiting_topics(progress.value)
        times = await times_of(console, group, waiting)
        ages = [age for told in times.values() if (age := oldest_ms(told)) is not None]
        age_ms = max(ages, default=None if waiting else 0)
    return GroupState(group, members, progress, age_ms)


async def states_of(console: Console, groups: Iterable[str]) -> list[GroupState]:
    """Return how some groups do, asked a few at once."""
    return await few_at_once(groups, lambda group: state_of(console, group))


async def members_of(
    console: Console, group: str, clients: Iterable[str]
) -> dict[str, Known[RunningInfo]]:
    """Return what members of a group tell of themselves, by client id."""

    async def ask(client_id: str) -> Known[RunningInfo]:
        return await known_in_part(
            console.admin.groups.running_info(group, client_id),
            lambda told: next(iter(told.values())),
        )

    names = list(clients)
    answers = await few_at_once(
        names,
        lambda client_id: console.recent.get(
            ("member", group, client_id), _MEMBERS_AGE_S, lambda: ask(client_id)
        ),
    )
    return dict(zip(names, answers, strict=True))


def waiting_topics(progress: GroupProgress) -> list[str]:
    """Return the topics in which messages wait, the MOST_AGES with the most of them."""
    return [topic for topic, lag in _lags(progress).items() if lag > 0][:MOST_AGES]


def topics_of(
    progress: GroupProgress, times: Mapping[str, Known[list[QueueTimes]]]
) -> list[TopicState]:
    """Return how far a group is by topic, that with the most messages waiting first."""
    queues: dict[str, int] = {}
    in_flight: dict[str, int] = {}
    for at in progress.queues:
        topic = at.queue.topic
        queues[topic] = queues.get(topic, 0) + 1
        in_flight[topic] = in_flight.get(topic, 0) + at.in_flight
    return [
        TopicState(
            topic,
            queues[topic],
            lag,
            in_flight[topic],
            oldest_ms(times[topic]) if topic in times else (None if lag else 0),
        )
        for topic, lag in _lags(progress).items()
    ]


def oldest_ms(times: Known[list[QueueTimes]]) -> int | None:
    """Return the age of the oldest message that waits, None if it is not known."""
    return max((at.delay_ms for at in times.value), default=0) if times.value is not None else None


def ages_of(times: Mapping[str, Known[list[QueueTimes]]]) -> dict[MessageQueue, int]:
    """Return the age of the next message to consume of each queue, 0 where none waits."""
    return {at.queue: at.delay_ms for told in times.values() for at in told.value or ()}


async def few_at_once(names: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> list[T]:
    """Ask for each name, a bounded number at a time, and return the answers in their order."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> T:
        async with turns:
            return await ask(name)

    return await asyncio.gather(*map(one, names))


def _lags(progress: GroupProgress) -> dict[str, int]:
    lags: dict[str, int] = {}
    for at in progress.queues:
        lags[at.queue.topic] = lags.get(at.queue.topic, 0) + max(0, at.lag)
    return dict(sorted(lags.items(), key=lambda item: (-item[1], item[0])))
