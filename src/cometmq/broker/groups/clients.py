"""Keep the connected members of producer and consumer groups.

Java: ConsumerManager, ConsumerGroupInfo, ProducerManager, ClientChannelInfo.

Longer than 500 lines: members, subscriptions, their index and their limits change together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from cometmq.broker.groups.pop_subscriptions import PopSubscriptions
from cometmq.errors import CometMQError, LimitError
from cometmq.filtering.tags import TagMatcher, tag_matcher
from cometmq.logs.loggers import get_logger
from cometmq.model.subscription import ConsumerData, SubscriptionData
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.connection import Connection
from cometmq.runtime.clock import Clock
from cometmq.runtime.slices import run_slices

log = get_logger(__name__)

# An answer to a client lists all members of its consumer group, so together they must fit into a frame.
# Producers' groups have no such limit: all consumers of Java's are in one of them.
MAX_MEMBERS_OF_GROUP: Final = 10_000
# A membership is one client in one group; it takes about 300 bytes.
MAX_MEMBERSHIPS_OF_CONNECTION: Final = 2_048
MAX_MEMBERSHIPS: Final = 1_000_000
# Bytes that the subscriptions of groups take, by estimate: those that one connection brought, and
# all. When a connection closes, those that it brought may be freed at once.
MAX_SUBSCRIPTION_BYTES_OF_CONNECTION: Final = 8 * 1024 * 1024
MAX_SUBSCRIPTION_BYTES: Final = 512 * 1024 * 1024
# How many clients with the same id are remembered besides the last one that sent a heartbeat.
_MAX_TWINS: Final = 8
_SUBSCRIPTION_BYTES: Final = 400
_TAG_BYTES: Final = 100
# How many silent members of one group are removed in a step.
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
    # The credentials of its last heartbeat; "" if nobody asks for any.
    account: str = ""
    # Clients with the same id on other connections, the latest first.
    twins: tuple[Member, ...] = ()


@dataclass(slots=True)
class ConsumerGroup:
    """The live members of a consumer group and the topics that they subscribe to.

    `fingerprint` is that of the last heartbeat that named the group: 0 if that heartbeat had none,
    None before the first heartbeat. `subscription_bytes` is the memory that the subscriptions take,
    and `brought_by` the connection that changed them last.
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
    whenever a member joins or leaves, or the set of topics changes. The functions in
    `on_subscriptions` are called with a group's name and its subscriptions at each heartbeat that
    has them, to take in their expressions in steps. The functions in `on_taken_in` are called with the group's name
    after the last step, and the functions in `on_reselected` with a topic for which a group's
    expression has changed.
    """

    def __init__(self, clock: Clock) -> None:
        self.on_members_changed: list[Callable[[str, list[Member]], None]] = []
        self.on_subscriptions: list[Callable[[str, list[SubscriptionData]], Iterator[None]]] = []
        self.on_taken_in: list[Callable[[str], None]] = []
        self.on_reselected: list[Callable[[str], None]] = []
        # The selections of groups that pop, with or without members that send heartbeats.
        self.pops = PopSubscriptions(clock)
        self._clock = clock
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[str, Member]] = {}
        # The same by client id, then group, for replies; the group heard of last stands last.
        self._producing: dict[str, dict[str, Member]] = {}
        # The groups and client ids of a connection, each with its number of memberships: to search all
        # groups for the members of a lost connection would take too long.
        self._places_of: dict[Connection, Counter[tuple[str, str]]] = {}
        self._memberships: dict[Connection, int] = {}
        self._membership_count = 0
        # Bytes of subscriptions, by the connection that brought them, and of all groups.
        self._brought: Counter[Connection] = Counter()
        self._subscription_bytes = 0
        # By topic, the consumer groups that subscribe to it.
        self._subscribers: dict[str, set[str]] = {}
        # Groups that a client has joined since `log_joined`.
        self._just_joined: list[str] = []

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
        return set(self._subscribers.get(topic, ()))

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
    def subscription_bytes(self) -> int:
        """How many bytes the subscriptions of all consumer groups take."""
        return self._subscription_bytes

    def bytes_brought_by(self, connection: Connection) -> int:
        """Return how many bytes of subscriptions a connection has brought that are still valid."""
        return self._brought[connection]

    @property
    def connections(self) -> set[Connection]:
        """The connections of the members that are online."""
        return {*self._memberships, *self._places_of, *self._brought}

    @property
    def topics(self) -> set[str]:
        """The topics to which some consumer group subscribes."""
        return set(self._subscribers)

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
    ) -> Iterator[None]:
        """Take in one group of a consumer's heartbeat; return the steps that take in its expressions.

        A heartbeat leaves its subscriptions out if they have not changed (`without_subscriptions`):
        then those of the group stay as they are. Raises LimitError for too many members, and for too
        many bytes of subscriptions.
        """
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
        known = {} if group is None else group.subscriptions
        subscriptions = known if without_subscriptions else _newest(known, data)
        news = (each for topic, each in subscriptions.items() if known.get(topic) is not each)
        self._check_subscription_bytes(member, sum(map(bytes_of, news)))
        if group is None:
            group = ConsumerGroup(
                data.group_name, data.consume_type, data.message_model, data.consume_from_where
            )
            self._consumers[data.group_name] = group
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        group.fingerprint = fingerprint
        joined = self._join(group.members, member, data.group_name)
        changed = joined
        if subscriptions is not known:
            changed = joined or subscriptions.keys() != known.keys()
            self._exchange(group, subscriptions, member.connection)
        if changed:
            self._members_changed(group)
        return iter(()) if without_subscriptions else self._take_in(group, member, data)

    def _exchange(
        self,
        group: ConsumerGroup,
        subscriptions: dict[str, SubscriptionData],
        connection: Connection | None,
    ) -> None:
        """Replace the subscriptions of a group by those that `connection` brought."""
        known, group.subscriptions = group.subscriptions, subscriptions
        group.matchers = {}
        for topic in known.keys() - subscriptions.keys():
            subscribers = self._subscribers[topic]
            subscribers.discard(group.name)
            if not subscribers:
                del self._subscribers[topic]
        for topic in subscriptions.keys() - known.keys():
            self._subscribers.setdefault(topic, set()).add(group.name)
        self._charge(group, connection, sum(map(bytes_of, subscriptions.values())))
        for topic, subscription in subscriptions.items():
            before = known.get(topic)
            if before is not None and before.sub_string != subscription.sub_string:
                for notify in self.on_reselected:
                    notify(topic)

    def _take_in(self, group: ConsumerGroup, member: Member, data: ConsumerData) -> Iterator[None]:
        """Take in the expressions of a group, unless its member leaves or sends others meanwhile."""
        for take_in in self.on_subscriptions:
            for _ in take_in(group.name, data.subscription_data_set):
                yield
                if group.members.get(member.client_id) is not member:
                    return
        for notify in self.on_taken_in:
            notify(group.name)

    def log_joined(self, client_id: str) -> None:
        """Log in one line which groups a client has joined: a line for each of a thousand takes 25 ms."""
        if self._just_joined:
            first, *others = self._just_joined
            log.info("client joined", client_id=client_id, group=first, more_groups=len(others))
            self._just_joined = []

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
        places = self._places_of.pop(connection, None)
        del self._brought[connection]
        left = []
        for group, client_id in places or ():
            consumers = self._consumers.get(group)
            if consumers is not None:
                if consumers.brought_by is connection:
                    consumers.brought_by = None  # other members still need the subscriptions
                member = consumers.members.get(client_id)
                if member is not None and member.connection is connection:
                    left += self._drop(consumers, [member])
            producer = self._producers.get(group, {}).get(client_id)
            if producer is not None and producer.connection is connection:
                self.unregister_producer(group, client_id)
        if left:
            log.info(
                "consumer left",
                client_id=left[0].client_id,
                memberships=len(left),
                reason="connection closed",
            )

    async def remove_expired(self, timeout_ms: int) -> None:
        """Remove members without a heartbeat for `timeout_ms` and close their connections, in slices:
        there may be a million members.
        """
        await run_slices(self._expire(self._clock.monotonic() - timeout_ms / 1000))

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
                if left := self._drop(group, silent):
                    log.info(
                        "consumers left",
                        group=name,
                        count=len(left),
                        first=left[0].client_id,
                        reason="no heartbeat",
                    )
                for member in silent:
                    member.connection.close()
            yield

    def _drop(self, group: ConsumerGroup, gone: list[Member]) -> list[Member]:
        """Take members out of a group; return those that no other client with their id replaces."""
        left = [member for member in gone if self._leaves(group.members, member, group.name)]
        if left:
            self._members_changed(group)
        return left

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
        places = self._places_of.get(connection)
        if places is None:  # it is closed
            return
        place = group, member.client_id
        places[place] -= 1
        if not places[place]:
            del places[place]
        if not places:
            del self._places_of[connection]

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
            self._just_joined.append(group)
            return True
        if known.connection is not member.connection:
            log.info("client came over another connection", group=group, client_id=member.client_id)
        return False

    def _joined(self, member: Member, group: str) -> None:
        self._membership_count += 1
        self._memberships[member.connection] = self._memberships.get(member.connection, 0) + 1
        places = self._places_of.setdefault(member.connection, Counter())
        places[group, member.client_id] += 1

    def _members_changed(self, group: ConsumerGroup) -> None:
        if not group.members:
            del self._consumers[group.name]
            self._exchange(group, {}, None)
        for callback in self.on_members_changed:
            callback(group.name, list(group.members.values()))


def _newest(known: dict[str, SubscriptionData], data: ConsumerData) -> dict[str, SubscriptionData]:
    """Return the subscriptions of a group after a heartbeat, `known` itself if none has changed.

    A newer version of a known subscription replaces it; topics that the heartbeat does not name are
    dropped.
    """
    subscriptions: dict[str, SubscriptionData] = {}
    has_new = False
    for subscription in data.subscription_data_set:
        before = known.get(subscription.topic)
        if before is None or subscription.sub_version > before.sub_version:
            has_new = True
            subscriptions[subscription.topic] = subscription
        else:
            subscriptions[subscription.topic] = before
    return subscriptions if has_new or len(subscriptions) != len(known) else known


def bytes_of(subscription: SubscriptionData) -> int:
    """Return about how many bytes of memory a subscription takes."""
    tags = subscription.tags_set
    return (
        _SUBSCRIPTION_BYTES
        + len(subscription.topic)
        + len(subscription.sub_string)
        + sum(map(len, tags))
        + _TAG_BYTES * (len(tags) + len(subscription.code_set))
    )


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

    Requests meant for that client, such as replies, would reach `member`.
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
