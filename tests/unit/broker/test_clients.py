"""Membership of groups by heartbeat, time and connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any, NoReturn, cast

import pytest

from cometmq.broker.groups.clients import ClientManager, Member, bytes_of
from cometmq.errors import CometMQError
from cometmq.model.subscription import ConsumerData, SubscriptionData
from cometmq.remoting.connection import Connection


class FakeConnection:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Clock:
    now = 1_000_000
    ahead_ms = 0

    def now_ms(self) -> int:
        return self.now + self.ahead_ms

    def monotonic(self) -> float:
        return self.now / 1000


class Clients:
    """A manager with its clock and a list of its listeners' calls."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.manager = ClientManager(self.clock)
        self.reported: list[tuple[str, list[str]]] = []
        self.manager.on_members_changed.append(
            lambda group, members: self.reported.append((group, [m.client_id for m in members]))
        )

    def member(self, client_id: str, connection: FakeConnection | None = None) -> Member:
        return Member(
            client_id,
            cast("Connection", connection or FakeConnection()),
            "JAVA",
            479,
            self.clock.monotonic(),
        )

    def beat(self, member: Member, group: str = "g", *topics: str, version: int = 1) -> None:
        member.seen_s = self.clock.monotonic()
        subscriptions = [SubscriptionData(topic, sub_version=version) for topic in topics or ["t"]]
        self.manager.register_consumer(
            member, ConsumerData(group, subscription_data_set=subscriptions)
        )


@pytest.fixture
def clients() -> Clients:
    return Clients()


def test_all_are_told_when_somebody_joins(clients: Clients) -> None:
    clients.beat(clients.member("a"))
    clients.beat(clients.member("b"))
    assert clients.reported == [("g", ["a"]), ("g", ["a", "b"])]
    assert clients.manager.consumer_ids("g") == ["a", "b"]


def test_a_repeated_heartbeat_changes_nothing(clients: Clients) -> None:
    member = clients.member("a")
    clients.beat(member)
    clients.beat(member)
    assert len(clients.reported) == 1


def test_a_topic_that_comes_or_goes_is_a_change(clients: Clients) -> None:
    member = clients.member("a")
    clients.beat(member, "g", "t")
    clients.beat(member, "g", "t", "u")
    clients.beat(member, "g", "u")
    assert len(clients.reported) == 3
    group = clients.manager.consumer_group("g")
    assert group is not None
    assert group.subscriptions.keys() == {"u"}


def test_only_a_newer_subscription_replaces_the_known_one(clients: Clients) -> None:
    member = clients.member("a")
    for version in (5, 4, 6):
        clients.beat(member, version=version)
    group = clients.manager.consumer_group("g")
    assert group is not None
    assert group.subscriptions["t"].sub_version == 6
    clients.beat(member, version=3)
    assert group.subscriptions["t"].sub_version == 6
    assert len(clients.reported) == 1


def test_who_unregisters_leaves_one_group_only(clients: Clients) -> None:
    member = clients.member("a")
    clients.beat(member, "g")
    clients.beat(member, "h")
    clients.manager.unregister_consumer("g", "a")
    clients.manager.unregister_consumer("g", "a")
    assert clients.manager.consumer_ids("g") == []
    assert clients.manager.consumer_group("g") is None
    assert clients.manager.consumer_ids("h") == ["a"]
    assert clients.reported[2:] == [("g", [])]


def test_a_closed_connection_takes_all_its_members_along(clients: Clients) -> None:
    connection = FakeConnection()
    clients.beat(clients.member("a", connection), "g")
    clients.beat(clients.member("a", connection), "h")
    clients.beat(clients.member("b"), "g")
    clients.manager.register_producer(clients.member("a", connection), "p")
    clients.manager.connection_closed(cast("Connection", connection))
    assert clients.manager.consumer_ids("g") == ["b"]
    assert clients.manager.consumer_ids("h") == []
    assert clients.manager.producers("p") == []


def test_a_client_that_came_back_over_another_connection_stays(clients: Clients) -> None:
    old, new = FakeConnection(), FakeConnection()
    clients.beat(clients.member("a", old))
    clients.beat(clients.member("a", new))
    assert len(clients.reported) == 1
    old.closed = True
    clients.manager.connection_closed(cast("Connection", old))
    assert clients.manager.consumer_ids("g") == ["a"]
    clients.manager.connection_closed(cast("Connection", new))
    assert clients.manager.consumer_ids("g") == []


@pytest.mark.parametrize("how", ["closed", "unregistered"])
def test_a_client_stays_while_another_one_with_its_id_lives(clients: Clients, how: str) -> None:
    first, second = clients.member("a", FakeConnection()), clients.member("a", FakeConnection())
    manager = clients.manager
    clients.beat(first)
    clients.beat(second)
    manager.register_producer(first, "p")
    manager.register_producer(second, "p")
    reported = len(clients.reported)
    if how == "closed":
        cast("FakeConnection", second.connection).closed = True
        manager.connection_closed(second.connection)
    else:
        manager.unregister_consumer("g", "a", second.connection)
        manager.unregister_producer("p", "a", second.connection)
    assert manager.consumers("g") == [first]
    assert manager.producers("p") == [first]
    assert manager.producer_of("a") is first
    assert len(clients.reported) == reported
    cast("FakeConnection", first.connection).closed = True
    manager.connection_closed(first.connection)
    assert manager.consumer_ids("g") == []
    assert manager.producer_of("a") is None


async def test_a_member_that_is_silent_for_too_long_is_removed_and_cut_off(
    clients: Clients,
) -> None:
    silent, live = FakeConnection(), FakeConnection()
    clients.beat(clients.member("silent", silent))
    clients.manager.register_producer(clients.member("silent", silent), "p")
    clients.clock.now += 1000
    clients.beat(clients.member("live", live))
    clients.clock.now += 120_000 - 1000
    await clients.manager.remove_expired(120_000)
    assert clients.manager.consumer_ids("g") == ["silent", "live"]
    clients.clock.now += 1
    await clients.manager.remove_expired(120_000)
    assert clients.manager.consumer_ids("g") == ["live"]
    assert clients.manager.producers("p") == []
    assert (silent.closed, live.closed) == (True, False)


async def test_a_clock_that_was_set_forward_expired_every_client(clients: Clients) -> None:
    member = clients.member("a")
    clients.beat(member)
    clients.manager.register_producer(member, "p")
    clients.clock.ahead_ms = 3 * 3_600_000
    await clients.manager.remove_expired(120_000)
    assert clients.manager.consumer_ids("g") == ["a"]
    assert clients.manager.producers("p") == [member]


def test_producers_come_and_go(clients: Clients) -> None:
    member = clients.member("a")
    clients.manager.register_producer(member, "p")
    clients.manager.register_producer(member, "p")
    assert clients.manager.producers("p") == [member]
    clients.manager.unregister_producer("p", "a")
    clients.manager.unregister_producer("p", "a")
    assert clients.manager.producers("p") == []
    assert clients.reported == []


class UnreadGroups(dict[str, dict[str, Member]]):
    """A table of groups that fails a test which goes through all of them."""

    def values(self) -> NoReturn:
        raise AssertionError("all groups were looked at")

    def items(self) -> NoReturn:
        raise AssertionError("all groups were looked at")


def test_a_producer_is_found_by_its_id_without_looking_at_all_groups(clients: Clients) -> None:
    manager = clients.manager
    # Of `a` the connection of its last heartbeat counts, whichever of its groups that named.
    lost, back, other = clients.member("a"), clients.member("a"), clients.member("b")
    manager.register_producer(lost, "p")
    manager.register_producer(lost, "q")
    manager.register_producer(other, "p")
    manager.register_producer(back, "p")
    manager._producers = UnreadGroups(manager._producers)
    assert manager.producer_of("a") is back
    assert manager.producer_of("b") is other
    assert manager.producer_of("nobody") is None


async def test_a_producer_is_found_as_long_as_one_of_its_groups_has_it(clients: Clients) -> None:
    manager = clients.manager
    lost, back = clients.member("a"), clients.member("a")
    for group in ("p", "q"):
        manager.register_producer(lost, group)
    manager.register_producer(back, "p")
    manager.unregister_producer("p", "a")
    assert manager.producer_of("a") is lost
    manager.connection_closed(lost.connection)
    assert manager.producer_of("a") is None
    manager.register_producer(back, "p")
    clients.clock.now += 1_000_000
    await manager.remove_expired(1000)
    assert manager.producer_of("a") is None


def test_subscribers_of_a_topic_are_known_without_looking_at_all_groups(clients: Clients) -> None:
    first, second = clients.member("a"), clients.member("b")
    clients.beat(first, "g", "t", "u")
    clients.beat(second, "h", "t")
    assert clients.manager.groups_of("t") == {"g", "h"}
    clients.beat(first, "g", "u", version=2)
    assert clients.manager.groups_of("t") == {"h"}
    clients.manager.unregister_consumer("g", "a")
    clients.manager.connection_closed(second.connection)
    assert clients.manager.groups_of("t") == clients.manager.groups_of("u") == set()


def test_a_beat_without_subscriptions_leaves_those_of_the_group(clients: Clients) -> None:
    clients.beat(clients.member("a"))
    clients.manager.register_consumer(
        clients.member("b"), ConsumerData("g"), fingerprint=7, without_subscriptions=True
    )
    group = clients.manager.consumer_group("g")
    assert group is not None
    assert (list(group.subscriptions), list(group.members)) == (["t"], ["a", "b"])
    assert clients.reported[-1] == ("g", ["a", "b"])


def test_groups_that_a_connection_had_left_were_remembered_as_long_as_it_lasted(
    clients: Clients,
) -> None:
    """A client that went from group to group, without end, made the broker grow without end."""
    connection = FakeConnection()
    member = clients.member("a", connection)
    clients.manager.register_producer(member, "lasting")
    for number in range(20):
        group = f"passing-{number}"
        clients.manager.register_producer(member, group)
        clients.manager.unregister_producer(group, "a", member.connection)
    assert [list(places) for places in clients.manager._places_of.values()] == [[("lasting", "a")]]
    assert clients.manager.producers("lasting") == [member]
    clients.manager.connection_closed(member.connection)
    assert clients.manager.producer_groups() == []


def test_a_group_of_producers_and_consumers_is_left_twice(clients: Clients) -> None:
    connection = FakeConnection()
    member = clients.member("a", connection)
    clients.beat(member)
    clients.manager.register_producer(member, "g")
    clients.manager.unregister_producer("g", "a", member.connection)
    clients.manager.connection_closed(member.connection)
    assert clients.manager.consumer_ids("g") == []


def test_the_place_of_a_client_stays_that_of_its_account(clients: Clients) -> None:
    """Replies and checks that are meant for one client must not reach another account's."""
    own, thief = clients.member("a"), clients.member("a")
    own.account, thief.account = "shop", "other"
    clients.beat(own)
    with pytest.raises(CometMQError, match="of a client of another account"):
        clients.beat(thief)
    manager = clients.manager
    manager.register_producer(own, "senders")
    manager.register_producer(thief, "senders")
    assert manager.producers("senders") == [own]
    manager.register_producer(thief, "others")
    assert manager.producers("others") == [thief]
    assert manager.producer_of("a") is own
    manager.unregister_producer("others", "a", thief.connection)
    assert manager.producer_of("a") is own
    # Once the client is gone its id is anybody's.
    manager.connection_closed(own.connection)
    manager.register_producer(thief, "senders")
    clients.beat(thief)
    assert manager.producer_of("a") is thief
    assert manager.consumers("g") == [thief]


@pytest.mark.parametrize("seed", range(20))
def test_bytes_of_subscriptions_are_counted_for_who_brought_them(
    clients: Clients, seed: int
) -> None:
    random = Random(seed)
    manager = clients.manager
    connections = [FakeConnection() for _ in range(3)]
    for step in range(200):
        connection = random.choice(connections)
        name, group = f"c{connections.index(connection)}", random.choice("gh")
        match random.randrange(4):
            case 0:
                manager.unregister_consumer(group, name)
            case 1:
                connection.closed = True
                manager.connection_closed(cast("Connection", connection))
                connections[connections.index(connection)] = FakeConnection()
            case _:
                topics = random.sample("abcd", random.randrange(1, 4))
                clients.beat(clients.member(name, connection), group, *topics, version=step)
        groups = [each for each in map(manager.consumer_group, "gh") if each is not None]
        held = [sum(map(bytes_of, each.subscriptions.values())) for each in groups]
        assert [each.subscription_bytes for each in groups] == held
        assert manager.subscription_bytes == sum(held)
        for each in connections:
            of = [group for group in groups if group.brought_by is cast("Connection", each)]
            brought = manager.bytes_brought_by(cast("Connection", each))
            assert brought == sum(group.subscription_bytes for group in of)
        assert manager.connections <= {cast("Connection", each) for each in connections}
    for connection in connections:
        manager.connection_closed(cast("Connection", connection))
    assert manager.subscription_bytes == 0
    assert not manager.connections


MANY = [f"topic-{number:04d}" for number in range(3_000)]


def subscribed(clients: Clients) -> list[str]:
    group = clients.manager.consumer_group("g")
    return [] if group is None else sorted(group.subscriptions)


def test_new_subscriptions_of_a_group_replace_its_entries_in_the_index_by_topic(
    clients: Clients,
) -> None:
    manager = clients.manager
    clients.beat(clients.member("a"), "g", "t", "u")
    member = clients.member("b")
    clients.beat(member, "g", *MANY, version=2)
    assert subscribed(clients) == sorted(manager.topics) == MANY
    assert clients.reported[-1] == ("g", ["a", "b"])
    clients.beat(member, "g", "t", version=3)
    assert subscribed(clients) == list(manager.topics) == ["t"]
    # What is known already changes nothing.
    reported = len(clients.reported)
    clients.beat(clients.member("b", cast("Any", member.connection)), "g", "t", version=3)
    assert (subscribed(clients), len(clients.reported)) == (["t"], reported)


@pytest.mark.parametrize("how", ["goes", "comes back"])
def test_expressions_of_a_client_that_goes_meanwhile_are_left(clients: Clients, how: str) -> None:
    manager = clients.manager
    taken: list[str] = []

    def take_in(_group: str, subscriptions: list[SubscriptionData]) -> Iterator[None]:
        for subscription in subscriptions:
            taken.append(subscription.topic)
            yield

    manager.on_subscriptions.append(take_in)
    manager.on_taken_in.append(taken.append)
    member = clients.member("a")
    subscriptions = [SubscriptionData(topic) for topic in "tuv"]
    steps = manager.register_consumer(
        member, ConsumerData("g", subscription_data_set=subscriptions)
    )
    assert subscribed(clients) == ["t", "u", "v"]
    next(steps)
    if how == "goes":
        manager.connection_closed(member.connection)
    else:
        clients.beat(clients.member("a", cast("Any", member.connection)), "g", "t")
    assert list(steps) == []
    assert taken == ["t"]


def test_a_connection_in_thousands_of_groups_leaves_them_all(clients: Clients) -> None:
    manager = clients.manager
    connection = FakeConnection()
    member = clients.member("a", connection)
    groups = [f"g-{number:04d}" for number in range(2_000)]
    for group in groups:
        clients.beat(member, group)
    manager.register_producer(member, "p")
    connection.closed = True
    manager.connection_closed(member.connection)
    assert not manager.consumer_groups()
    assert not manager.producers("p")
    assert not manager.topics
    assert not manager.connections
    assert manager.subscription_bytes == 0


async def test_thousands_of_silent_members_of_one_group_leave_it_in_slices(
    clients: Clients,
) -> None:
    """The scan that removed 10,000 held the loop for 0.4 s."""
    manager = clients.manager
    silent = [clients.member(f"{number:04d}") for number in range(2_000)]
    for member in silent:
        clients.beat(member)
    manager.register_producer(silent[0], "p")
    clients.clock.now += 200_000
    # These are heard again: one before the scan, one while it is under way, by another connection.
    clients.beat(silent[0])
    scan = asyncio.create_task(manager.remove_expired(120_000))
    await asyncio.sleep(0)
    back = clients.member("1999")
    clients.beat(back)
    turns = 0
    while len(manager.consumer_ids("g")) > 2:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 5
    await scan
    assert manager.consumers("g") == [silent[0], back]
    assert manager.producers("p") == [silent[0]]
    closed = [cast("FakeConnection", member.connection).closed for member in silent]
    assert closed == [False] + [True] * 1_998 + [False]
