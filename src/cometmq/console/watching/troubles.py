"""Look, round by round, for troubles that no server reports by itself, so that the first page has them at
once.

These are members of a group with different subscriptions, new dead letters, and transactions that
brokers gave up. Each takes a question about one group or topic, and there may be thousands of them,
so a round asks about some: first about those that are in trouble and those that work, then about
those whose turn is longest ago. It rests for longer than it worked. The page says which questions
have not been asked yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from cometmq.admin.client import AdminClient
from cometmq.admin.groups.findings import PUSH, is_offline, subscription_differences
from cometmq.admin.groups.records import GroupConnections, RunningInfo
from cometmq.admin.silence import in_haste
from cometmq.admin.topics.records import QueueStats, TopicStats, stats_of
from cometmq.console.watching.recent import Known, known
from cometmq.errors import CometMQError, RouteNotFoundError, ServersFailedError
from cometmq.model.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    TRANS_CHECK_MAX_TIME_TOPIC,
    dlq_topic,
    groups_of_retry_topics,
    is_system_group,
)
from cometmq.runtime.clock import Clock

T = TypeVar("T")

PERIOD_S: Final = 30.0
# Letters and transactions of this span are new.
SPAN_MS: Final = 24 * 60 * 60 * 1000
# A pause is this many times as long as its round took.
REST: Final = 20.0
# The most questions of one round. A group costs one, and one for each of its members.
MOST_TOPICS: Final = 256
MOST_GROUPS: Final = 64
MOST_MEMBERS: Final = 16
_AT_ONCE: Final = 4
_SILENCE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Counts the messages that a topic got within the span, and says when the newest came."""

    count: int
    newest_ms: int


@dataclass(slots=True)
class Round:
    """Remembers when each of perhaps many names was asked about, and what is wrong with some."""

    # All names, and when each was asked about last, by the console's monotonic clock.
    names: frozenset[str] = frozenset()
    asked_s: dict[str, float] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        return len(self.asked_s)

    def next(self, names: Iterable[str], first: Callable[[str], bool], most: int) -> list[str]:
        """Take these as all names, and return the names that have their turn.

        Half of the turns are for those that come first, so that the others get theirs, too.
        """
        self.names = frozenset(names)
        self.asked_s = {name: at for name, at in self.asked_s.items() if name in self.names}
        waiting = sorted(self.names, key=lambda name: (self.asked_s.get(name, -1.0), name))
        preferred = [name for name in waiting if first(name)][: most // 2]
        return list(dict.fromkeys([*preferred, *waiting]))[:most]


@dataclass(slots=True)
class Troubles:
    """Keeps what rounds have found. For the loop's thread only.

    `works` says whether a group consumed lately. `letters` has the groups with new dead letters,
    `conflicts` those whose members select differently, with the topics; `given_up` is None before the
    first round. `error` says why the last round knew no names, `missing` why it lacks an answer.
    """

    admin: AdminClient
    clock: Clock
    works: Callable[[str], bool]
    letters: dict[str, Newcomers] = field(default_factory=dict)
    letter_round: Round = field(default_factory=Round)
    conflicts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    group_round: Round = field(default_factory=Round)
    given_up: Known[Newcomers] | None = None
    error: CometMQError | None = None
    missing: CometMQError | None = None
    began_ms: int = 0
    _took_s: float = 0.0
    _lacks: CometMQError | None = None

    def period_s(self) -> float:
        return max(PERIOD_S, REST * self._took_s)

    async def look(self) -> None:
        """Make one round."""
        began_s = self.clock.monotonic()
        with in_haste(_SILENCE_S):
            names = await known(self.admin.topics.names())
            self.error, self._lacks = names.error, None
            if names.value is not None:
                await self._look(names.value)
                self.began_ms = self.began_ms or self.clock.now_ms()
            self.missing = self._lacks
        self._took_s = self.clock.monotonic() - began_s

    def note(self, group: str, reported: Mapping[str, RunningInfo]) -> None:
        """Note whether members select alike, from their reports to this round or to a page."""
        found = tuple(each.topic for each in subscription_differences(reported))
        if found:
            self.conflicts[group] = found
        else:
            self.conflicts.pop(group, None)
        self.group_round.asked_s[group] = self.clock.monotonic()

    async def _look(self, names: list[str]) -> None:
        dead = _of_prefix(names, DLQ_PREFIX)
        self.letters = {group: it for group, it in self.letters.items() if group in dead}
        # A group has a retry topic from its first member on.
        groups = {
            group
            for group in groups_of_retry_topics(names, await self._known_groups(names))
            if not is_system_group(group)
        }
        self.conflicts = {group: it for group, it in self.conflicts.items() if group in groups}
        self.given_up = await self._given_up()
        turns = self.letter_round.next(dead, self.letters.__contains__, MOST_TOPICS)
        await _some_at_once(turns, self._count_letters)

        def comes_first(group: str) -> bool:
            return group in self.conflicts or self.works(group)

        await _some_at_once(self.group_round.next(groups, comes_first, MOST_GROUPS), self._compare)

    async def _known_groups(self, names: Collection[str]) -> set[str]:
        """Return the groups that brokers have, if they are needed to know whose a retry topic is: the one of a group
        that pops has the name of the group and of a topic.
        """
        topics = set(names)
        if not any(_may_be_popped(name, topics) for name in names):
            return set()
        brokers = await known(self.admin.brokers.addresses(slaves=False))
        self._lacks = self._lacks or brokers.error
        found: set[str] = set()
        for at in brokers.value or ():
            groups = await known(self.admin.groups.names(broker=at.address))
            self._lacks = self._lacks or groups.error
            found.update(groups.value or ())
        return found

    async def _given_up(self) -> Known[Newcomers]:
        found = await known(self._newcomers(TRANS_CHECK_MAX_TIME_TOPIC))
        if isinstance(found.error, RouteNotFoundError):
            # Brokers make the topic with the first transaction that they give up.
            return Known(Newcomers(0, 0))
        return found

    async def _count_letters(self, group: str) -> None:
        found = await known(self._newcomers(dlq_topic(group)))
        if found.value is None:
            self._lacks = self._lacks or found.error
            self.letter_round.asked_s.pop(group, None)
            return
        self.letter_round.asked_s[group] = self.clock.monotonic()
        if found.value.count:
            self.letters[group] = found.value
        else:
            self.letters.pop(group, None)

    async def _newcomers(self, topic: str) -> Newcomers:
        """Count what a topic got within the span, at the brokers that answer if some do not."""
        since_ms = self.clock.now_ms() - SPAN_MS
        stats = await self._stats(topic)
        count = 0
        for queue in stats.queues:
            if queue.max_offset > queue.min_offset and queue.last_stored_ms >= since_ms:
                count += await self._newer(queue, since_ms)
        return Newcomers(count, stats.last_stored_ms if count else 0)

    async def _stats(self, topic: str) -> TopicStats:
        try:
            return await self.admin.topics.stats(topic)
        except ServersFailedError as error:
            if not error.results:
                raise
            self._lacks = self._lacks or error
            return stats_of(topic, error.results)

    async def _newer(self, queue: QueueStats, since_ms: int) -> int:
        begin = await self.admin.offsets.at_time(queue.queue, since_ms)
        return queue.max_offset - min(max(begin, queue.min_offset), queue.max_offset)

    async def _compare(self, group: str) -> None:
        online = await known(self.admin.groups.connections(group))
        if online.value is None:
            if online.error is not None and is_offline(online.error):
                self.note(group, {})
            else:
                self._lacks = self._lacks or online.error
            return
        members = _compared(online.value)
        reported: dict[str, RunningInfo] = {}
        for client in members:
            info = await known(self.admin.groups.running_info(group, client))
            if info.value is not None:
                reported[client] = info.value
        if len(reported) == len(members) or len(reported) > 1:
            self.note(group, reported)


def _compared(online: GroupConnections) -> list[str]:
    """Return the members to ask: a single member agrees with itself, and pull consumers select for
    themselves.
    """
    if online.consume_type != PUSH or len(online.clients) < 2:
        return []
    return sorted(client.client_id for client in online.clients)[:MOST_MEMBERS]


def _of_prefix(names: Iterable[str], prefix: str) -> set[str]:
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def _may_be_popped(name: str, topics: Collection[str]) -> bool:
    """Say whether a topic may be the retry topic of a group and of one of these topics."""
    if not name.startswith(RETRY_PREFIX):
        return False
    return any(name[at + 1 :] in topics for at, char in enumerate(name) if char in "_+")


async def _some_at_once(names: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> None:
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> None:
        async with turns:
            await ask(name)

    await asyncio.gather(*map(one, names))
