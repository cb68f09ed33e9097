"""Watch the clusters at a fixed pace, with or without readers, and keep their trends for an
hour.

Pages read what the watch knows and so wait for no server: the brokers as they were seconds ago, how
far groups were within the last half minute, and the last findings of a check-up of all servers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cometmq.admin.brokers.reports import BrokerProgress
from cometmq.admin.client import AdminClient
from cometmq.admin.groups.records import GroupProgress
from cometmq.admin.servers import BrokerAddress
from cometmq.admin.silence import in_haste
from cometmq.console.refusals import Refused
from cometmq.console.watching.recent import Known, known
from cometmq.console.watching.topic_trends import TopicTrends
from cometmq.console.watching.troubles import Troubles
from cometmq.errors import CometMQError, ConnectError, RemoteError, SilentServerError
from cometmq.model.names import is_system_group
from cometmq.model.reports.finding import Finding
from cometmq.model.route import MASTER_ID
from cometmq.runtime.clock import Clock
from cometmq.runtime.tasks import TaskOwner

PERIOD_S: Final = 5.0
SAMPLES: Final = 720
LAG_PERIOD_S: Final = 30.0
LAG_SAMPLES: Final = 120
CHECK_PERIOD_S: Final = 60.0
# A broker that is slower counts as away in this sample, so that it does not hold up the others.
_ANSWER_S: Final = 4.0
_AT_ONCE: Final = 16
# An answer about all groups may have ten megabytes.
_PROGRESS_AT_ONCE: Final = 4
# Twice the time between two questions that every broker gets.
_PROGRESS_SILENCE_S: Final = 10.0
# A question about all groups is much work for a broker: it then rests for this many times its duration.
_REST: Final = 20.0
# How many groups, those with the most lag, have a history; the others have only the newest lag.
_REMEMBERED_GROUPS: Final = 500
# For how long, and how many, brokers are shown that are no longer registered.
_KEPT_MS: Final = 60 * 60 * 1000
_MOST_GONE: Final = 100


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Holds a broker's last report of itself, or why it gave none. `info` is empty without a
    report.
    """

    at: BrokerAddress
    info: Mapping[str, str]
    error: CometMQError | None = None
    # Since when the name servers do not know it any more, in ms since the epoch; 0 while they do.
    gone_ms: int = 0
    # Since when it has not answered, in ms since the epoch; 0 while it does.
    silent_ms: int = 0

    @property
    def is_master(self) -> bool:
        return self.at.broker_id == MASTER_ID

    @property
    def is_silent(self) -> bool:
        """Whether it gave no answer. A refusal, or an answer that it does not know the question, is
        one.
        """
        return self.error is not None and not isinstance(self.error, RemoteError)

    @property
    def messages_in(self) -> float | None:
        """Messages that came per second; None while the broker does not answer."""
        return self._rate("putTps")

    @property
    def messages_out(self) -> float | None:
        """Messages that went out per second; None while the broker does not answer."""
        # Java 4.9 spells it with one r.
        return self._rate("getTransferredTps" if "getTransferredTps" in self.info else _OLD_OUT)

    @property
    def disk_ratio(self) -> float | None:
        """The used part of the disk of the commit log, from 0 to 1."""
        return self.real("commitLogDiskRatio")

    @property
    def refusing(self) -> str:
        """Why the broker takes no messages, empty if it takes them. Java's do not report it."""
        return self.info.get("refusing", "")

    def grown(self, kind: str) -> int | None:
        """Return how many messages came (`Put`) or went out (`Get`) since midnight."""
        begin, now = (
            self.whole(f"msg{kind}TotalTodayMorning"),
            self.whole(f"msg{kind}TotalTodayNow"),
        )
        return None if begin is None or now is None else now - begin

    def real(self, key: str) -> float | None:
        """Return the first number of a value in the broker's report, None if there is none."""
        try:
            return float(self.info[key].split()[0])
        except (KeyError, ValueError, IndexError):
            return None

    def whole(self, key: str) -> int | None:
        """Return a whole number in the broker's report, None if there is none."""
        try:
            return int(self.info[key])
        except (KeyError, ValueError):
            return None

    def _rate(self, key: str) -> float | None:
        """Return the first of the rates of a key, over ten seconds; 0 before the broker knows it."""
        return (self.real(key) or 0.0) if self.info else None


_OLD_OUT: Final = "getTransferedTps"


@dataclass(frozen=True, slots=True)
class Sample:
    """Holds messages in and out per second by a broker's address, None while it did not answer."""

    at_ms: int
    rates: Mapping[str, tuple[float | None, float | None]]

    def total(self, addresses: Iterable[str] | None = None) -> tuple[float | None, float | None]:
        """Return the sums over these brokers, or over all; None if none of them answered."""
        asked = self.rates if addresses is None else addresses
        found = [self.rates.get(address, (None, None)) for address in asked]
        incoming = [rate for rate, _ in found if rate is not None]
        outgoing = [rate for _, rate in found if rate is not None]
        return sum(incoming) if incoming else None, sum(outgoing) if outgoing else None

    @property
    def messages_in(self) -> float | None:
        return self.total()[0]

    @property
    def messages_out(self) -> float | None:
        return self.total()[1]


@dataclass(frozen=True, slots=True)
class GroupLag:
    """Holds a group's lag in all its queues, in messages; None if it is not known.

    `least` is the number of waiting messages that the answering brokers report.
    """

    group: str
    lag: int | None
    in_flight: int | None
    consume_per_s: float
    least: int = 0


@dataclass(frozen=True, slots=True)
class Lags:
    """Holds the lags of all groups at one moment. `errors` has the brokers that did not answer.

    `of_users` are the groups of programs, and `total` counts the messages that wait for them, since
    no program consumes those of RocketMQ's own groups. It is None if a broker leaves the lag of
    some group unknown; a group that has committed nothing yet does not count.
    """

    at_ms: int
    groups: Mapping[str, GroupLag]
    errors: Mapping[str, CometMQError]
    # Many pages ask for these until there are newer ones.
    of_users: tuple[GroupLag, ...] = field(init=False)
    total: int | None = field(init=False)

    def __post_init__(self) -> None:
        found = tuple(each for each in self.groups.values() if not is_system_group(each.group))
        object.__setattr__(self, "of_users", found)
        total = None if self.errors else sum(each.lag or 0 for each in found)
        object.__setattr__(self, "total", total)


@dataclass(frozen=True, slots=True)
class LagChange:
    """By how many messages a group's lag grew, and within which time that was really watched."""

    grown: int
    span_ms: int


@dataclass(frozen=True, slots=True)
class LagSample:
    """Is the lag of all groups together, and of those that were the furthest behind."""

    at_ms: int
    total: int | None
    groups: Mapping[str, int]


@dataclass(slots=True)
class Watch:
    """Keeps the last look at the brokers, and the newest samples, the oldest one first.

    `brokers` are those that the name servers know; while no name server answers, `error` says so and
    `brokers` are those that were known before. For the loop's thread only.
    """

    admin: AdminClient
    clock: Clock
    tasks: TaskOwner
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    brokers: tuple[BrokerState, ...] = ()
    error: CometMQError | None = None
    lags: Lags | None = None
    lag_samples: deque[LagSample] = field(default_factory=lambda: deque(maxlen=LAG_SAMPLES))
    findings: Known[list[Finding]] | None = None
    troubles: Troubles = field(init=False)
    topic_trends: TopicTrends = field(default_factory=TopicTrends)
    _lag_took_s: float = 0.0
    # The groups that each broker last reported.
    _groups_at: dict[BrokerAddress, set[str]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.troubles = Troubles(self.admin, self.clock, self._works)

    def start(self) -> None:
        """Begin to watch."""
        self.tasks.every(PERIOD_S, self.look, "watch", first_s=0)
        self.tasks.every(self._lag_period_s, self.look_at_groups, "watch-groups", first_s=1)
        self.tasks.every(CHECK_PERIOD_S, self.check, "watch-check-up", first_s=2)
        self.tasks.every(self.troubles.period_s, self.troubles.look, "watch-troubles", first_s=2)

    async def look(self) -> None:
        """Take a sample and wake the tasks that wait for one."""
        found = await known(self.admin.brokers.addresses())
        self.error = found.error
        addresses = found.value
        if addresses is None:
            addresses = [state.at for state in self.brokers if not state.gone_ms]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def state(at: BrokerAddress) -> BrokerState:
            async with turns:
                return await self._state(at)

        before, now_ms = self.brokers, self.clock.now_ms()
        known_silent = {it.at.address: it.silent_ms for it in before if it.silent_ms}
        found_now = [
            _since(found, known_silent.get(found.at.address, now_ms))
            for found in await asyncio.gather(*map(state, addresses))
        ]
        self.brokers = (*found_now, *_gone(before, set(addresses), now_ms))
        rates = {it.at.address: (it.messages_in, it.messages_out) for it in self.brokers}
        self.samples.append(Sample(now_ms, rates))
        self.wake()

    async def look_at_groups(self) -> None:
        """Ask all masters how far all groups are."""
        if not self.samples:
            return  # the brokers are not known yet
        began_s = self.clock.monotonic()
        readers = self._readers()
        turns = asyncio.Semaphore(_PROGRESS_AT_ONCE)

        async def ask(address: str) -> Known[dict[str, BrokerProgress]]:
            async with turns:
                return await known(self.admin.brokers.progress(broker=address))

        # A broker that answers other questions meanwhile is busy with this one; a silent one would hold
        # this up for a minute, and then rest for many times as long.
        there = [state for state in readers if not state.gone_ms]
        with in_haste(_PROGRESS_SILENCE_S):
            reported = await asyncio.gather(*(ask(state.at.address) for state in there))
        parts: dict[str, list[GroupProgress]] = {}
        errors = {
            state.at.address: state.error
            for state in readers
            if state.gone_ms and state.error is not None
        }
        for state, progress in zip(there, reported, strict=True):
            if progress.error is not None:
                errors[state.at.address] = progress.error
            elif progress.value is not None:
                of_groups = progress.value[state.at.address]
                self._groups_at[state.at] = {each.group for each in of_groups.groups if each.queues}
                for each in of_groups.groups:
                    parts.setdefault(each.group, []).append(each)
        groups = {group: _lag_of(group, reported_of) for group, reported_of in parts.items()}
        places = {state.at for state in readers}
        self._groups_at = {at: it for at, it in self._groups_at.items() if at in places}
        for state in readers:
            if state.at.address in errors:
                self._doubt(groups, state.at)
        self.lags = Lags(self.clock.now_ms(), groups, errors)
        worst = sorted(groups.values(), key=lambda each: -each.least)[:_REMEMBERED_GROUPS]
        remembered = {each.group: each.lag for each in worst if each.lag is not None}
        if not errors or groups:
            self.lag_samples.append(LagSample(self.lags.at_ms, self.lags.total, remembered))
        self._lag_took_s = self.clock.monotonic() - began_s

    def _readers(self) -> list[BrokerState]:
        """Return for each broker name its master, a slave if there is no master, or the former
        master if all are gone.
        """
        readers: dict[tuple[str, str], BrokerState] = {}
        for state in sorted(self.brokers, key=lambda it: (it.gone_ms > 0, it.at.broker_id)):
            readers.setdefault((state.at.cluster, state.at.broker_name), state)
        return list(readers.values())

    def _doubt(self, groups: dict[str, GroupLag], at: BrokerAddress) -> None:
        """Note the groups with unknown progress because a broker does not answer: those in its last
        answer, or all of its cluster if it never answered.
        """
        known = self._groups_at.get(at)
        if known is None:
            mine = [it for other, it in self._groups_at.items() if other.cluster == at.cluster]
            known = set().union(*mine)
        for name in known:
            before = groups.get(name, GroupLag(name, None, None, 0.0))
            groups[name] = replace(before, lag=None, in_flight=None)

    async def check(self) -> None:
        """Check all servers as `cometmq doctor` does."""
        self.findings = await known(self.admin.health.findings())

    def state_of(self, address: str) -> BrokerState | None:
        """Return what was seen last of the broker at an address."""
        return next((state for state in self.brokers if state.at.address == address), None)

    def trend(self, addresses: Sequence[str] | None = None) -> list[list[float | None]]:
        """Return seconds, messages in and messages out per second, of these brokers or of all."""
        totals = [sample.total(addresses) for sample in self.samples]
        return [
            [sample.at_ms // 1000 for sample in self.samples],
            [_short(incoming) for incoming, _ in totals],
            [_short(outgoing) for _, outgoing in totals],
        ]

    def lag_trend(self, group: str | None = None) -> list[list[float | None]]:
        """Return seconds and the lag of a group, or of all groups, in messages."""
        return [
            [sample.at_ms // 1000 for sample in self.lag_samples],
            [
                sample.total if group is None else sample.groups.get(group)
                for sample in self.lag_samples
            ],
        ]

    def lag_change(self, group: str, most_ms: int) -> LagChange | None:
        """Return how a group's lag changed within the last `most_ms`, or since the watch began to look
        if that was later; None if that is not known.
        """
        if self.lags is None or group not in self.lags.groups:
            return None
        since_ms = self.lags.at_ms - most_ms
        before = next((each for each in self.lag_samples if each.at_ms >= since_ms), None)
        if before is None or before.at_ms == self.lags.at_ms or group not in before.groups:
            return None
        now = self.lags.groups[group].lag
        if now is None:
            return None
        return LagChange(now - before.groups[group], self.lags.at_ms - before.at_ms)

    def wake(self) -> None:
        """Wake the tasks that wait for a sample."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def next(self) -> None:
        """Wait until there is a newer sample."""
        await self._changed.wait()

    def _works(self, group: str) -> bool:
        """Say whether a group consumed when the groups were looked at last."""
        found = self.lags.groups.get(group) if self.lags is not None else None
        return found is not None and (found.consume_per_s > 0 or bool(found.in_flight))

    def _lag_period_s(self) -> float:
        if self.lags is None:
            return 1.0
        return max(LAG_PERIOD_S, _REST * self._lag_took_s)

    async def _state(self, at: BrokerAddress) -> BrokerState:
        try:
            async with asyncio.timeout(_ANSWER_S):
                reported = await self.admin.brokers.runtime_info(broker=at.address)
        except CometMQError as refusal:
            return BrokerState(at, {}, refusal)
        except TimeoutError:
            error = SilentServerError(
                Refused.SILENT(address=at.address, seconds=_ANSWER_S), address=at.address
            )
            return BrokerState(at, {}, error)
        return BrokerState(at, reported[at.address])


def _since(state: BrokerState, silent_ms: int) -> BrokerState:
    """Say since when a broker has not answered, if it does not."""
    if isinstance(state.error, SilentServerError):
        state.error.since_ms = silent_ms
    return replace(state, silent_ms=silent_ms) if state.is_silent else state


def _short(rate: float | None) -> float | None:
    """Round a rate, because a page has hundreds of them."""
    return None if rate is None else round(rate, 1)


def _gone(
    before: Iterable[BrokerState], there: set[BrokerAddress], now_ms: int
) -> list[BrokerState]:
    """Return the brokers that the name servers knew within the last hour, but do not know now.

    They forget a broker as soon as its connection ends, so that the list would just get shorter.
    """
    places = {(at.cluster, at.broker_name, at.broker_id) for at in there}
    gone = []
    for state in before:
        at = state.at
        since_ms = state.gone_ms or now_ms
        # It may have come back at another address, as another process.
        if (at.cluster, at.broker_name, at.broker_id) in places or since_ms < now_ms - _KEPT_MS:
            continue
        error = ConnectError(
            Refused.GONE(broker=at.broker_name, address=at.address), address=at.address
        )
        gone.append(BrokerState(at, {}, error, since_ms))
    return gone[:_MOST_GONE]


def _lag_of(group: str, parts: Sequence[GroupProgress]) -> GroupLag:
    """Return a group's lag from the brokers' answers; a broker without a queue of it does not
    count.
    """
    reported = [part for part in parts if part.queues]
    lags = [part.lag for part in reported]
    in_flight = [part.in_flight for part in reported]
    return GroupLag(
        group,
        _sum(lags),
        _sum(in_flight),
        sum(part.consume_per_s for part in parts),
        sum(lag for lag in lags if lag is not None),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None
