"""Gather the contents of the pages of consumer groups; facts that servers do not report stay
unknown.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from cometmq.admin.groups.findings import is_offline
from cometmq.admin.groups.pops import PoppedTopic, joined_pops
from cometmq.admin.groups.reading import QueueTimes
from cometmq.admin.groups.records import (
    GroupConnections,
    GroupProgress,
    RunningInfo,
    joined,
    merged,
)
from cometmq.admin.servers import BrokerAddress
from cometmq.console.watching.asking import ask_each, in_time
from cometmq.console.watching.causes import joined as joined_errors
from cometmq.console.watching.recent import Known
from cometmq.console.watching.watch import BrokerState
from cometmq.errors import CometMQError, RemoteError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.queue import MessageQueue
from cometmq.model.route import MASTER_ID

if TYPE_CHECKING:
    from cometmq.console.state import Console

T = TypeVar("T")

# The configurations of all groups of a broker are a long answer. An action requests them again.
LIST_AGE_S: Final = 10.0
MOST_ROWS: Final = 100
_MEMBERS_AGE_S: Final = 10.0
_MEMBER_AGE_S: Final = 2.0
_STACKS_AGE_S: Final = 5.0
# At most this many members of a group are asked, and about at most this many of its topics that wait.
MOST_MEMBERS: Final = 100
MOST_AGES: Final = 8
_AT_ONCE: Final = 64


@dataclass(slots=True)
class SeenGroups:
    """Remembers the groups of each cluster, so that a broker that does not answer makes only the
    groups of its own cluster unknown.

    For the loop's thread only. The names come from the last answers.
    """

    by_cluster: dict[str, frozenset[str]] = field(default_factory=dict)

    def note(self, reported: Answers[dict[str, SubscriptionGroupConfig]]) -> None:
        """Remember the groups that brokers reported. A broker that did not answer keeps its former
        ones.
        """
        names: dict[str, set[str]] = {}
        for at in reported.brokers:
            names.setdefault(at.cluster, set()).update(reported.given.get(at.address, ()))
        for silent, _ in reported.errors:
            if silent is not None and silent.cluster in self.by_cluster:
                names[silent.cluster] |= self.by_cluster[silent.cluster]
        if names:
            self.by_cluster = {cluster: frozenset(each) for cluster, each in names.items()}

    def clusters_of(self, group: str) -> list[str]:
        return sorted(name for name, groups in self.by_cluster.items() if group in groups)


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """Holds the answers of brokers by address, and why others did not answer.

    An error without a broker says why it is not known which brokers there are.
    """

    brokers: tuple[BrokerAddress, ...]
    given: Mapping[str, T]
    errors: Sequence[tuple[BrokerAddress | None, CometMQError]]

    def known(self, clusters: Collection[str] = ()) -> Known[dict[str, T]]:
        """Return all answers, and why others are missing: in these clusters, or in all of them."""
        missing = [
            ("" if at is None else at.address, error)
            for at, error in self.errors
            if at is None or not clusters or at.cluster in clusters
        ]
        error = joined_errors(missing, len(self.brokers))
        return Known(dict(self.given) if self.given or error is None else None, error)


@dataclass(frozen=True, slots=True)
class GroupConfigs:
    """Holds a group's configuration at each broker that has it.

    `asked` are the addresses of the brokers that have answered.
    """

    brokers: tuple[BrokerAddress, ...]
    by_broker: Mapping[str, SubscriptionGroupConfig]
    asked: frozenset[str] = frozenset()

    @property
    def clusters(self) -> list[str]:
        return sorted({at.cluster for at in self.brokers if at.address in self.by_broker})

    @property
    def at_masters(self) -> dict[str, SubscriptionGroupConfig]:
        """The configuration at each master that has the group, by address."""
        masters = [at.address for at in self.brokers if at.broker_id == MASTER_ID]
        return {at: self.by_broker[at] for at in masters if at in self.by_broker}

    @property
    def without(self) -> list[BrokerAddress]:
        """The masters of the group's clusters that have answered and do not have the group."""
        clusters = self.clusters
        return [
            at
            for at in self.brokers
            if at.broker_id == MASTER_ID
            and at.cluster in clusters
            and at.address in self.asked
            and at.address not in self.by_broker
        ]

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
    """Shows the state of a group: its members, its progress, and the age of its waiting messages.

    The value of `members` is None if no member is connected. `age_ms` is the age of the oldest
    message that waits, None if it was not asked for or not answered. A number is None while a
    broker that may contribute to it does not answer.
    """

    name: str
    members: Known[GroupConnections | None]
    progress: Known[GroupProgress]
    age_ms: int | None

    @property
    def lag(self) -> int | None:
        progress = self.progress
        return None if progress.value is None or progress.error else lag_of(progress.value)

    @property
    def consume_per_s(self) -> float | None:
        progress = self.progress
        return None if progress.value is None or progress.error else progress.value.consume_per_s

    @property
    def online(self) -> int | None:
        """How many members are connected."""
        if self.members.error is not None:
            return None
        return 0 if self.members.value is None else len(self.members.value.clients)

    @property
    def error(self) -> CometMQError | None:
        return self.members.error or self.progress.error


@dataclass(frozen=True, slots=True)
class TopicState:
    """Shows how far a group is in one topic."""

    topic: str
    queues: int
    lag: int | None
    in_flight: int | None
    age_ms: int | None


def lag_of(progress: GroupProgress, topic: str | None = None) -> int | None:
    """Return how many messages wait, None if that is not known."""
    return progress.lag if topic is None else progress.lag_in(topic)


async def at_brokers(console: Console, ask: Callable[[str], Awaitable[T]]) -> Answers[T]:
    """Return the answers that brokers give in time, and why others gave none.

    A broker that did not answer the watch a moment ago is not waited for. If a broker has no
    master, a slave is asked.
    """
    states = console.watch.brokers
    if not states:
        found = await in_time(
            console.recent.get("brokers of groups", LIST_AGE_S, console.admin.brokers.addresses),
            _nothing,
        )
        if found.value is None:
            return Answers((), {}, [(None, found.error)] if found.error is not None else [])
        states = tuple(BrokerState(at, {}) for at in found.value)
    readers: dict[tuple[str, str], BrokerState] = {}
    # A lost broker is not registered any more, but its slave may be.
    for state in sorted(states, key=lambda state: (bool(state.gone_ms), state.at.broker_id)):
        readers.setdefault((state.at.cluster, state.at.broker_name), state)

    async def answer_of(state: BrokerState) -> Known[T]:
        if state.is_silent:
            return Known(None, state.error)
        return await in_time(ask(state.at.address), _nothing, address=state.at.address)

    asked = [state.at for state in readers.values()]
    answers = await asyncio.gather(*map(answer_of, readers.values()))
    pairs = list(zip(asked, answers, strict=True))
    return Answers(
        tuple(asked),
        {at.address: answer.value for at, answer in pairs if answer.value is not None},
        [(at, answer.error) for at, answer in pairs if answer.error is not None],
    )


async def all_configs(
    console: Console, *, age_s: float = LIST_AGE_S
) -> Answers[dict[str, SubscriptionGroupConfig]]:
    """Return the groups of every broker that answers, by address and name."""

    async def of_broker(address: str) -> dict[str, SubscriptionGroupConfig]:
        return (await console.admin.groups.configs(broker=address))[address]

    async def ask() -> Answers[dict[str, SubscriptionGroupConfig]]:
        reported = await at_brokers(console, of_broker)
        console.seen_groups.note(reported)
        return reported

    return await console.recent.get("group configs", age_s, ask)


async def configs_of(
    console: Console, group: str, *, age_s: float = LIST_AGE_S
) -> Known[GroupConfigs]:
    """Return the configuration of one group at the brokers that answer.

    The error says why other brokers that may have it did not.
    """
    answers, brokers = await asyncio.gather(
        all_configs(console, age_s=age_s),
        in_time(
            console.recent.get("brokers of groups", LIST_AGE_S, console.admin.brokers.addresses),
            _nothing,
        ),
    )
    tables = answers.known(console.seen_groups.clusters_of(group))
    if tables.value is None:
        return Known(None, tables.error)
    mine = {address: table[group] for address, table in tables.value.items() if group in table}
    found = GroupConfigs(tuple(brokers.value or ()), mine, frozenset(tables.value))
    return Known(found, tables.error or brokers.error)


async def _of_group(console: Console, group: str, reported: Answers[T]) -> Known[dict[str, T]]:
    """Return what brokers answered about a group; brokers of other clusters need not have answered."""
    if reported.errors:
        await all_configs(console)
    return reported.known(console.seen_groups.clusters_of(group))


async def connections_of(console: Console, group: str) -> Known[GroupConnections | None]:
    """Return the members of a group at the brokers that answer, None if there are none."""

    async def of_broker(address: str) -> list[GroupConnections]:
        try:
            return [await console.admin.groups.connections(group, broker=address)]
        except RemoteError as error:
            if is_offline(error):
                return []
            raise

    async def ask() -> Known[GroupConnections | None]:
        reported = await _of_group(console, group, await at_brokers(console, of_broker))
        parts = [part for parts in (reported.value or {}).values() for part in parts]
        return Known(joined(group, parts), reported.error)

    return await console.recent.get(("group", "members", group), 2.0, ask)


async def progress_of(console: Console, group: str) -> Known[GroupProgress]:
    """Return how far a group is at the brokers that answer; empty for a group that none of them
    knows.
    """

    async def ask() -> Known[GroupProgress]:
        answers = await at_brokers(
            console, lambda address: console.admin.groups.progress(group, broker=address)
        )
        reported = await _of_group(console, group, answers)
        if reported.value is None:
            return Known(None, reported.error)
        complete = reported.error is None
        return Known(merged(group, reported.value.values(), complete=complete), reported.error)

    return await console.recent.get(("group", "progress", group), 1.0, ask)


@dataclass(frozen=True, slots=True)
class Pops:
    """Shows what a group has popped, by topic. `unreported` has the addresses of brokers that do not know the question,
    as Java's.
    """

    topics: Sequence[PoppedTopic]
    unreported: tuple[str, ...] = ()


async def pops_of(console: Console, group: str) -> Known[Pops]:
    """Return what a group has popped at the brokers that answer."""

    async def of_broker(address: str) -> list[PoppedTopic] | tuple[()]:
        reported = await console.admin.groups.popped(group, broker=address)
        return () if reported is None else reported

    async def ask() -> Known[Pops]:
        reported = await _of_group(console, group, await at_brokers(console, of_broker))
        if reported.value is None:
            return Known(None, reported.error)
        unreported = tuple(sorted(at for at, part in reported.value.items() if part == ()))
        return Known(Pops(joined_pops(reported.value.values()), unreported), reported.error)

    return await console.recent.get(("group", "pops", group), 1.0, ask)


async def times_of(
    console: Console, group: str, topics: Iterable[str]
) -> dict[str, Known[list[QueueTimes]]]:
    """Return for each of these topics when its messages were stored, queue by queue."""

    async def ask(topic: str) -> Known[list[QueueTimes]]:
        answers = await at_brokers(
            console,
            lambda address: console.admin.groups.times(group, topic, broker=address),
        )
        reported = await _of_group(console, group, answers)
        if reported.value is None:
            return Known(None, reported.error)
        return Known([at for times in reported.value.values() for at in times], reported.error)

    names = list(topics)
    answers = await asyncio.gather(
        *(
            console.recent.get(("group", "times", group, topic), 2.0, partial(ask, topic))
            for topic in names
        )
    )
    return dict(zip(names, answers, strict=True))


async def state_of(console: Console, group: str) -> GroupState:
    """Return the state of a group. If messages wait in many topics, those with the most count."""
    members, progress = await asyncio.gather(
        connections_of(console, group), progress_of(console, group)
    )
    age_ms: int | None = None
    if progress.value is not None:
        waiting = waiting_topics(progress.value)
        times = await times_of(console, group, waiting)
        ages = [age for reported in times.values() if (age := oldest_ms(reported)) is not None]
        if progress.value.complete:
            age_ms = max(ages, default=None if waiting else 0)
    return GroupState(group, members, progress, age_ms)


async def states_of(console: Console, groups: Iterable[str]) -> list[GroupState]:
    """Return the state of some groups. Answers that are late for this page are there for a later
    refresh.
    """
    found = await ask_each(groups, lambda group: state_of(console, group))
    return [
        state.value or GroupState(group, Known(None, state.error), Known(None, state.error), None)
        for group, state in found.items()
    ]


async def members_of(
    console: Console, group: str, clients: Iterable[str]
) -> dict[str, Known[RunningInfo]]:
    """Return what members of a group report of themselves, by client id."""

    names = list(clients)
    answers = await few_at_once(
        names,
        lambda client_id: console.recent.get(
            ("group", "member", group, client_id),
            _MEMBERS_AGE_S,
            lambda: _reported_by(console, group, client_id, stacks=False),
        ),
    )
    return dict(zip(names, answers, strict=True))


async def member_of(
    console: Console, group: str, client_id: str, *, stacks: bool
) -> Known[RunningInfo]:
    """Return what one member reports of itself, with its stacks if wanted.

    Its viewers share the answer for a moment: to report its stacks a member stops all of its
    threads.
    """
    return await console.recent.get(
        ("group", "one member", group, client_id, stacks),
        _STACKS_AGE_S if stacks else _MEMBER_AGE_S,
        lambda: _reported_by(console, group, client_id, stacks=stacks),
    )


async def _reported_by(
    console: Console, group: str, client_id: str, *, stacks: bool
) -> Known[RunningInfo]:
    return await in_time(
        console.admin.groups.running_info(group, client_id, stacks=stacks),
        lambda reported: next(iter(reported.values())),
    )


def waiting_topics(progress: GroupProgress) -> list[str]:
    """Return the topics in which messages wait, the MOST_AGES with the most of them."""
    return [topic for topic, lag in _lags(progress).items() if lag > 0][:MOST_AGES]


def topics_of(
    progress: GroupProgress, times: Mapping[str, Known[list[QueueTimes]]]
) -> list[TopicState]:
    """Return how far a group is by topic, that with the most messages waiting first."""
    queues = Counter(at.queue.topic for at in progress.queues)
    return [
        TopicState(
            topic,
            queues[topic],
            progress.lag_in(topic),
            progress.in_flight_in(topic),
            oldest_ms(times[topic]) if topic in times else (None if lag else 0),
        )
        for topic, lag in _lags(progress).items()
    ]


def oldest_ms(times: Known[list[QueueTimes]]) -> int | None:
    """Return the age of the oldest message that waits, None if it is not known."""
    return max((at.delay_ms for at in times.value), default=0) if times.value is not None else None


def ages_of(times: Mapping[str, Known[list[QueueTimes]]]) -> dict[MessageQueue, int]:
    """Return the age of the next message to consume of each queue, 0 where none waits."""
    return {at.queue: at.delay_ms for reported in times.values() for at in reported.value or ()}


async def few_at_once(names: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> list[T]:
    """Ask for each name, a bounded number at a time, and return the answers in their order."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> T:
        async with turns:
            return await ask(name)

    return await asyncio.gather(*map(one, names))


def _nothing(results: Mapping[str, Any]) -> Any:
    """Take nothing from a partial answer: one server was asked, or the answers only count
    together.
    """
    del results
    return None


def _lags(progress: GroupProgress) -> dict[str, int]:
    """Return by topic how many messages are known to wait, the topic with the most first."""
    lags: dict[str, int] = {}
    for at in progress.queues:
        lags[at.queue.topic] = lags.get(at.queue.topic, 0) + max(0, at.lag or 0)
    return dict(sorted(lags.items(), key=lambda item: (-item[1], item[0])))
