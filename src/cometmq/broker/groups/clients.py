"""Keep the connected members of producer and consumer groups.

Java: ConsumerManager, ConsumerGroupInfo, ProducerManager, ClientChannelInfo.

Longer than 500 lines: members, subscriptions, their index and what they count for change together.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from cometmq.broker.groups.staged import AT_ONCE, Staged, emptied
from cometmq.errors import CometMQError, LimitError
from cometmq.filtering.tags import TagMatcher, tag_matcher
from cometmq.model.subscription import ConsumerData, SubscriptionData
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.connection import Connection
from cometmq.runtime.clock import Clock
from cometmq.runtime.slices import run_slice

log = structlog.get_logger(__name__)

# A client is told of all members of its consumer groups, which together must fit into a frame.
# Producers' groups have no such limit: all consumers of Java's are in one of them.
MAX_MEMBERS_OF_GROUP: Final = 10_000
# A membership is one client in one group; it takes about 300 bytes.
MAX_MEMBERSHIPS_OF_CONNECTION: Final = 4_096
MAX_MEMBERSHIPS: Final = 1_000_000
# Bytes that the subscriptions of groups take, by estimate: those that a connection has brought, and
# all. One heartbeat brings 4 MiB at most, but each may name other groups.
MAX_SUBSCRIPTION_BYTES_OF_CONNECTION: Final = 32 * 1024 * 1024
MAX_SUBSCRIPTION_BYTES: Final = 512 * 1024 * 1024
# So often a heartbeat is compared anew with a group whose subscriptions others change, before that is
# done at once.
_TRIES: Final = 3
# How many clients with the same id are remembered besides the last one that sent a heartbeat.
_MAX_TWINS: Final = 8
# A connection that was in more groups leaves them in slices: each has a line in the log.
_LEFT_AT_ONCE: Final = 32
# So many silent members of one group are removed in a step: each has a line in the log.
_EXPIRED_AT_ONCE: Final = 16


@dataclass(slots=True)
class Member:
    """One client in one group. `language` is a name of Java's LanguageCode. `seen_s` is when its last
    heartbeat came, by the monotonic clock, so that no member expires because the wall clock is set."""

    client_id: str
    connection: Connection
    language: str
    version: int
    seen_s: float
    # Whose credentials its last heartbeat had; "" if nobody asks for any.
    account: str = ""
    # Clients with the same id on other connections, the latest first.
    twins: tuple[Member, ...] = ()


@dataclass(slots=True)
class ConsumerGroup:
    """The live members of a consumer group and the topics that they subscribe to.

    `fingerprint` is that of the last heartbeat that named the group: 0 if that heartbeat had none,
    None before the first heartbeat. `subscription_bytes` is what the subscriptions take, and
    `brought_by` the connection that changed them last.
    """

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[str, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    fingerprint: int | None = None
    subscription_bytes: int = 0
    brought_by: Connection | None = None
    # By topic: a subscription, and the test on tag codes made of it, which all pulls share.
    matchers: dict[str, tuple[SubscriptionData, TagMatcher | None]] = field(default_factory=dict)

    def tag_matcher(self, subscription: SubscriptionData) -> TagMatcher | None:
        """Return the test on tag codes of one of the group's subscriptions."""
        known = self.matchers.get(subscription.topic)
        if known is None or known[0] is not subscription:
            known = self.matchers[subscription.topic] = subscription, tag_matcher(subscription)
        return known[1]

    @property
    def broadcasting(self) -> bool:
        return self.message_model == "BROADCASTING"


class ClientManager:
    """Keeps the members of all groups, as heartbeats name them. For the loop's thread only.

    The functions in `on_members_changed` are called with a consumer group's name and its members
    whenever a member joins or leaves or the set of topics changes; those in `on_subscriptions` with
    a group's name and its subscriptions at each heartbeat that has them, to take these in, in steps;
    those in `on_taken_in` with the name when all of that has been done; those in `on_reselected`
    with a topic for which a group's expression has changed.
    """

    def __init__(self, clock: Clock) -> None:
        self.on_members_changed: list[Callable[[str, list[Member]], None]] = []
        self.on_subscriptions: list[Callable[[str, list[SubscriptionData]], Iterator[None]]] = []
        self.on_taken_in: list[Callable[[str], None]] = []
        self.on_reselected: list[Callable[[str], None]] = []
        self._clock = clock
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[str, Member]] = {}
        # The same by client id, then group, for replies; the group heard of last stands last.
        self._producing: dict[str, dict[str, Member]] = {}
        # Groups by connection, with the number of memberships in each: with many clients, searching
        # all groups for the members of a lost connection would take too long.
        self._groups_of: dict[Connection, Counter[str]] = {}
        self._memberships: dict[Connection, int] = {}
        self._membership_count = 0
        # Bytes of subscriptions, by the connection that brought them, and of all groups.
        self._brought: Counter[Connection] = Counter()
        self._subscription_bytes = 0
        # By topic, the consumer groups that subscribe to it; by group, the topics it subscribes to.
        # There may be more than these: what a long heartbeat changes is noted in steps.
        self._subscribers: dict[str, set[str]] = {}
        self._subscribed: dict[str, set[str]] = {}
        # What is done in slices beside requests.
        self._left_to_do: deque[Iterator[None]] = deque()

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        """Return the group; None if no member is online."""
        return self._consumers.get(group)

    def consumer_ids(self, group: str) -> list[str]:
        info = self._consumers.get(group)
        return list(info.members) if info is not None else []

    def consumers(self, group: str) -> list[Member]:
        """Return the members of a consumer group, in the order in which they joined."""
        info = self._consumers.get(group)
        return list(info.members.values()) if info is not None else []

    def groups_of(self, topic: str) -> set[str]:
        """Return the consumer groups that are online and subscribe to a topic."""
        return {
            group for group in self._subscribers.get(topic, ()) if self.subscribes(group, topic)
        }

    def subscribes(self, group: str, topic: str) -> bool:
        """Say whether a consumer group is online and subscribes to a topic."""
        info = self._consumers.get(group)
        return info is not None and topic in info.subscriptions

    def consumer_groups(self) -> list[str]:
        """Return the consumer groups that are online."""
        return list(self._consumers)

    @property
    def consumer_count(self) -> int:
        """How many members all consumer groups have; a client counts once in each."""
        return sum(len(group.members) for group in self._consumers.values())

    @property
    def producer_count(self) -> int:
        """How many clients are online as producers."""
        return len(self._producing)

    def producer_groups(self) -> list[str]:
        return list(self._producers)

    def producers(self, group: str) -> list[Member]:
        return list(self._producers.get(group, {}).values())

    def producer_of(self, client_id: str) -> Member | None:
        """Find a client by its id, as the last heartbeat of any of its producer groups showed it
        (Java: ProducerManager.findChannel).
        """
        memberships = self._producing.get(client_id)
        return next(reversed(memberships.values())) if memberships else None

    def register_consumer(
        self,
        member: Member,
        data: ConsumerData,
        *,
        fingerprint: int = 0,
        without_subscriptions: bool = False,
    ) -> None:
        """Take in one group of a consumer's heartbeat, as `register_steps` does, at once."""
        steps = self.register_steps(
            member, data, fingerprint=fingerprint, without_subscriptions=without_subscriptions
        )
        for _ in steps:
            pass

    def register_steps(
        self,
        member: Member,
        data: ConsumerData,
        *,
        fingerprint: int = 0,
        without_subscriptions: bool = False,
    ) -> Iterator[None]:
        """Take in one group of a consumer's heartbeat; many subscriptions in steps.

        A heartbeat leaves its subscriptions out if they have not changed (`without_subscriptions`):
        then those of the group stay as they are. Else the group has its former ones until all are
        looked at, and then the new ones at once. If the member leaves meanwhile, the rest is left out.
        Raises LimitError for too many members, and for too many bytes of subscriptions.
        """
        staged = None
        if not without_subscriptions:
            staged = yield from self._staged(data)
            if member.connection.closed:  # nothing would remove it again
                return
        group = self._consumers.get(data.group_name)
        members = {} if group is None else group.members
        if member.client_id not in members:
            _check(
                f"clients would be in the group {data.group_name}",
                len(members) + 1,
                "MAX_MEMBERS_OF_GROUP",
                MAX_MEMBERS_OF_GROUP,
                "divide them among several groups",
            )
        _check_account(members.get(member.client_id), member, data.group_name)
        self._check_room(members, member)
        if staged is not None:
            self._check_subscription_bytes(member, staged.news)
        if group is None:
            group = ConsumerGroup(
                data.group_name, data.consume_type, data.message_model, data.consume_from_where
            )
            self._consumers[data.group_name] = group
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        joined = self._join(group.members, member, data.group_name)
        if staged is None:
            group.fingerprint = fingerprint
            if joined:
                self._members_changed(group)
            return
        for take_in in self.on_subscriptions:
            for _ in take_in(group.name, data.subscription_data_set):
                yield
                if group.members.get(member.client_id) is not member:
                    return
        yield from self._exchange(group, member, data, staged, fingerprint, joined=joined)

    def _staged(self, data: ConsumerData) -> Generator[None, None, Staged]:
        """Collect in steps what a heartbeat makes of its group as it is at the end."""
        for _ in range(_TRIES):
            staged = Staged(self._consumers.get(data.group_name), data)
            yield from staged.collect()
            if staged.is_current(self._consumers.get(data.group_name)):
                return staged
        staged = Staged(self._consumers.get(data.group_name), data)
        for _ in staged.collect():
            pass
        return staged

    def _exchange(
        self,
        group: ConsumerGroup,
        member: Member,
        data: ConsumerData,
        staged: Staged,
        fingerprint: int,
        *,
        joined: bool,
    ) -> Iterator[None]:
        """Give a group the subscriptions that were collected, and tell who must know."""
        yield from self._note_topics(group.name, staged.added)
        if not staged.is_current(group):
            staged = yield from self._staged(data)
            self._check_subscription_bytes(member, staged.news)
            for _ in self._note_topics(group.name, staged.added):
                pass
        if group.members.get(member.client_id) is not member:
            return
        group.fingerprint = fingerprint
        former: dict[str, SubscriptionData] = {}
        if staged.has_new or staged.changes:
            former, group.subscriptions = group.subscriptions, staged.subscriptions
            group.matchers = {}
            self._charge(group, member.connection, staged.subscription_bytes)
        for tell in self.on_taken_in:
            tell(group.name)
        if staged.changes or joined:
            self._members_changed(group)
        yield from self._leave_topics(group.name, staged.dropped)
        yield from self._tell_reselected(staged.reselected)
        yield from emptied(former)

    def _tell_reselected(self, topics: list[str]) -> Iterator[None]:
        for number, topic in enumerate(topics, 1):
            for tell in self.on_reselected:
                tell(topic)
            if number % AT_ONCE == 0:
                yield

    def register_producer(self, member: Member, group: str) -> None:
        """Take in one group of a producer's heartbeat. Raises LimitError for too many members."""
        known = self._producers.get(group, {})
        if _is_of_another_account(known.get(member.client_id), member):
            log.info("client id of another account", group=group, client_id=member.client_id)
            return
        self._check_room(known, member)
        self._join(self._producers.setdefault(group, {}), member, group)
        # Replies to a client find it by its id alone. All that trace producers of Java on one machine
        # have is one id, so who has that of another is in its group nevertheless.
        if _is_of_another_account(self.producer_of(member.client_id), member):
            log.info("client id of another account", group=group, client_id=member.client_id)
            return
        memberships = self._producing.setdefault(member.client_id, {})
        memberships.pop(group, None)
        memberships[group] = member

    def unregister_consumer(self, group: str, client_id: str, by: Connection | None = None) -> None:
        """Remove a member of a group, but not one that is connected in another way than `by`.

        Without a client id it is the member that is connected by `by` (Java: unregisterChannel).
        """
        info = self._consumers.get(group)
        if info is not None and not client_id:
            client_id = _id_of(info.members, by)
        if info is None or _is_anothers(info.members.get(client_id), by):
            return
        member = info.members.get(client_id)
        if member is not None and self._leaves(info.members, member, group):
            log.info("consumer left", group=group, client_id=client_id)
            self._members_changed(info)

    def unregister_producer(self, group: str, client_id: str, by: Connection | None = None) -> None:
        """Do the same for a producer."""
        members = self._producers.get(group)
        if members is not None and not client_id:
            client_id = _id_of(members, by)
        if members is None or _is_anothers(members.get(client_id), by):
            return
        member = members.get(client_id)
        if member is None:
            return
        is_gone = self._leaves(members, member, group)
        if not members:
            del self._producers[group]
        memberships = self._producing.get(client_id)
        if memberships is not None and memberships.get(group) is member:
            if not is_gone:
                memberships[group] = members[client_id]
                return
            del memberships[group]
            if not memberships:
                del self._producing[client_id]

    def connection_closed(self, connection: Connection) -> None:
        """Remove every member that came over this connection."""
        groups = self._groups_of.pop(connection, ())
        del self._brought[connection]
        steps = self._leave_groups(list(groups), connection)
        self._take(steps, at_once=len(groups) <= _LEFT_AT_ONCE)

    def _leave_groups(self, groups: list[str], connection: Connection) -> Iterator[None]:
        for name in groups:
            left = self._consumers.get(name)
            if left is not None and left.brought_by is connection:
                left.brought_by = None  # what others of the group still need
            self._remove(
                [name], lambda member: member.connection is connection, "connection closed"
            )
            yield

    def _take(self, steps: Iterator[None], *, at_once: bool) -> None:
        """Take all steps at once, or in slices from the next turn of the loop on."""
        if at_once:
            for _ in steps:
                pass
            return
        self._left_to_do.append(steps)
        if len(self._left_to_do) == 1:
            asyncio.get_running_loop().call_soon(self._work_off)

    def _work_off(self) -> None:
        try:
            is_done = run_slice(self._left_to_do[0])
        except Exception:  # those behind it must not suffer from it
            log.exception("members of groups cannot be removed")
            is_done = True
        if is_done:
            self._left_to_do.popleft()
        if self._left_to_do:
            asyncio.get_running_loop().call_soon(self._work_off)

    def remove_expired(self, timeout_ms: int) -> None:
        """Remove members without a heartbeat for `timeout_ms` and close their connections; where there
        are many in slices from the next turn of the loop on.
        """
        steps = self._expire(self._clock.monotonic() - timeout_ms / 1000)
        self._take(steps, at_once=self._membership_count <= _LEFT_AT_ONCE)

    def _expire(self, limit_s: float) -> Iterator[None]:
        for name in list(self._consumers):
            yield from self._expire_consumers(name, limit_s)
            yield
        for name in list(self._producers):
            for producer in self.producers(name):
                if producer.seen_s < limit_s:
                    _forget_silent_twins(producer, limit_s)
                    known = self._producers.get(name, {}).get(producer.client_id)
                    if known is producer:  # nobody took its place meanwhile
                        self.unregister_producer(name, producer.client_id)
                        producer.connection.close()
                    yield
            yield

    def _expire_consumers(self, name: str, limit_s: float) -> Iterator[None]:
        """Remove the silent members of a group, of which there may be thousands."""
        group = self._consumers.get(name)
        if group is None:
            return
        members = list(group.members.values())
        for start in range(0, len(members), _EXPIRED_AT_ONCE):
            silent = [
                member
                for member in members[start : start + _EXPIRED_AT_ONCE]
                # Unless somebody took its place meanwhile.
                if member.seen_s < limit_s and group.members.get(member.client_id) is member
            ]
            if silent:
                for member in silent:
                    _forget_silent_twins(member, limit_s)
                self._drop(group, silent, "no heartbeat")
                for member in silent:
                    member.connection.close()
            yield

    def _remove(
        self, groups: Iterable[str], doomed: Callable[[Member], bool], reason: str
    ) -> list[Member]:
        removed: list[Member] = []
        for name in groups:
            group = self._consumers.get(name)
            if group is not None:
                removed += self._remove_consumers(group, doomed, reason)
            for member in self.producers(name):
                if doomed(member):
                    removed.append(member)
                    self.unregister_producer(name, member.client_id)
        return removed

    def _remove_consumers(
        self, group: ConsumerGroup, doomed: Callable[[Member], bool], reason: str
    ) -> list[Member]:
        gone = [member for member in group.members.values() if doomed(member)]
        if gone:
            self._drop(group, gone, reason)
        return gone

    def _drop(self, group: ConsumerGroup, gone: list[Member], reason: str) -> None:
        left = False
        for member in gone:
            if self._leaves(group.members, member, group.name):
                left = True
                log.info(
                    "consumer left", group=group.name, client_id=member.client_id, reason=reason
                )
        if left:
            self._members_changed(group)

    def _leaves(self, members: dict[str, Member], member: Member, group: str) -> bool:
        """Take a member out of its group; return whether no other client with its id stays in it.

        Two clients have the same id if their process and host look the same, as in two containers.
        When one of them leaves, the other one continues.
        """
        self._left(member, group)
        twins = [each for each in member.twins if not each.connection.closed]
        if not twins:
            del members[member.client_id]
            return True
        stays, *others = twins
        stays.twins = tuple(others)
        members[member.client_id] = stays
        self._joined(stays, group)
        log.info(
            "another client with this id stays in the group",
            group=group,
            client_id=member.client_id,
        )
        return False

    def _check_room(self, members: dict[str, Member], member: Member) -> None:
        known = members.get(member.client_id)
        if known is not None and known.connection is member.connection:
            return
        _check(
            "memberships would belong to this connection",
            self._memberships.get(member.connection, 0) + 1,
            "MAX_MEMBERSHIPS_OF_CONNECTION",
            MAX_MEMBERSHIPS_OF_CONNECTION,
            "give each client a connection of its own, with fewer groups",
        )
        _check(
            "memberships of clients in groups would be online",
            self._membership_count + (known is None),
            "MAX_MEMBERSHIPS",
            MAX_MEMBERSHIPS,
            "stop some clients, or use more brokers",
        )

    def _check_subscription_bytes(self, member: Member, more: int) -> None:
        if not more:
            return
        _check(
            "bytes of subscriptions would have come by this connection",
            self._brought[member.connection] + more,
            "MAX_SUBSCRIPTION_BYTES_OF_CONNECTION",
            MAX_SUBSCRIPTION_BYTES_OF_CONNECTION,
            "subscribe to fewer topics and tags, or by several clients",
        )
        _check(
            "bytes of subscriptions would be held",
            self._subscription_bytes + more,
            "MAX_SUBSCRIPTION_BYTES",
            MAX_SUBSCRIPTION_BYTES,
            "stop some clients, or use more brokers",
        )

    def _charge(self, group: ConsumerGroup, connection: Connection | None, now: int) -> None:
        """Count what a group's subscriptions take now, for the connection that has changed them."""
        before, group.subscription_bytes = group.subscription_bytes, now
        self._subscription_bytes += group.subscription_bytes - before
        former = group.brought_by
        if former is not None and former in self._brought:  # else it is closed
            self._brought[former] -= before
            if not self._brought[former]:
                del self._brought[former]
        group.brought_by = connection if group.subscription_bytes else None
        if group.brought_by is not None:
            self._brought[group.brought_by] += group.subscription_bytes

    def _left(self, member: Member, group: str) -> None:
        connection = member.connection
        self._membership_count -= 1
        left = self._memberships[connection] - 1
        if left:
            self._memberships[connection] = left
        else:
            del self._memberships[connection]
        groups = self._groups_of.get(connection)
        if groups is None:  # it is closed
            return
        groups[group] -= 1
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._groups_of[connection]

    def _join(self, members: dict[str, Member], member: Member, group: str) -> bool:
        known = members.get(member.client_id)
        if known is not None:
            self._left(known, group)
            if known.twins or known.connection is not member.connection:
                member.twins = tuple(
                    each
                    for each in (known, *known.twins)
                    if each.connection is not member.connection and not each.connection.closed
                )[:_MAX_TWINS]
                for each in member.twins:
                    each.twins = ()
        members[member.client_id] = member
        self._joined(member, group)
        if known is None:
            log.info("client joined", group=group, client_id=member.client_id)
            return True
        if known.connection is not member.connection:
            log.info("client came over another connection", group=group, client_id=member.client_id)
        return False

    def _joined(self, member: Member, group: str) -> None:
        self._membership_count += 1
        self._memberships[member.connection] = self._memberships.get(member.connection, 0) + 1
        self._groups_of.setdefault(member.connection, Counter())[group] += 1

    def _members_changed(self, group: ConsumerGroup) -> None:
        if not group.members:
            del self._consumers[group.name]
            former, group.subscriptions = group.subscriptions, {}
            group.matchers = {}
            self._charge(group, None, 0)
            self._take(self._forget(group.name, former), at_once=len(former) <= AT_ONCE)
        for callback in self.on_members_changed:
            callback(group.name, list(group.members.values()))

    def _forget(self, group: str, former: dict[str, SubscriptionData]) -> Iterator[None]:
        """Free in steps what a group that has ended had."""
        yield from self._leave_topics(group, list(self._subscribed.get(group, ())))
        yield from emptied(former)

    def _note_topics(self, group: str, topics: list[str]) -> Iterator[None]:
        """Note in steps that a group that is online is about to subscribe to topics."""
        for number, topic in enumerate(topics, 1):
            if group not in self._consumers:
                return
            self._subscribers.setdefault(topic, set()).add(group)
            self._subscribed.setdefault(group, set()).add(topic)
            if number % AT_ONCE == 0:
                yield

    def _leave_topics(self, group: str, topics: list[str]) -> Iterator[None]:
        """Note in steps that a group does not subscribe to topics, unless it does again."""
        for number, topic in enumerate(topics, 1):
            noted = self._subscribed.get(group)
            if noted is None:
                return
            if topic in noted and not self.subscribes(group, topic):
                noted.discard(topic)
                subscribers = self._subscribers[topic]
                subscribers.discard(group)
                if not subscribers:
                    del self._subscribers[topic]
                if not noted:
                    del self._subscribed[group]
            if number % AT_ONCE == 0:
                yield


def _check(what: str, value: int, limit: str, most: int, remedy: str) -> None:
    if value > most:
        raise LimitError(what, value, limit, most, remedy, code=ResponseCode.SYSTEM_BUSY)


def _check_account(known: Member | None, member: Member, group: str) -> None:
    if _is_of_another_account(known, member):
        raise CometMQError(
            f"the client id {member.client_id:.200} is that of a client of another account, which "
            f"is connected and in the group {group}; give each client an id (instance name) of its own",
            code=ResponseCode.NO_PERMISSION,
        )


def _is_of_another_account(known: Member | None, member: Member) -> bool:
    """Say whether a client with the id of `member` is connected by other credentials.

    What is meant for that client would reach `member`: replies, say.
    """
    return (
        known is not None
        and known.account != member.account
        and _is_anothers(known, member.connection)
    )


def _forget_silent_twins(member: Member, limit_s: float) -> None:
    member.twins = tuple(each for each in member.twins if each.seen_s >= limit_s)


def _id_of(members: Mapping[str, Member], connection: Connection | None) -> str:
    """Return the id of the member on this connection; "" if there is none."""
    return next((name for name, member in members.items() if member.connection is connection), "")


def _is_anothers(member: Member | None, by: Connection | None) -> bool:
    """Say whether a member is connected, and not by the connection that speaks for it."""
    if member is None or by is None or member.connection is by:
        return False
    return not member.connection.closed
