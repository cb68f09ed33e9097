"""Membership of groups by heartbeat, time and connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any, NoReturn, cast

import pytest

from cometmq.broker.groups.clients import ClientManager, Member
from cometmq.broker.groups.staged import bytes_of
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
    """A manager with its clock and a list of what its listeners were told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.manager = ClientManager(self.clock)
        self.told: list[tuple[str, list[str]]] = []
        self.manager.on_members_changed.append(
            lambda group, members: self.told.append((group, [m.client_id for m in members]))
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
    assert clients.told == [("g", ["a"]), ("g", ["a", "b"])]
    assert clients.manager.consumer_ids("g") == ["a", "b"]


def test_a_repeated_heartbeat_changes_nothing(clients: Clients) -> None:
    member = clients.member("a")
    clients.beat(member)
    clients.beat(member)
    assert len(clients.told) == 1


def test_a_topic_that_comes_or_goes_is_a_change(clients: Clients) -> None:
    member = clients.member("a")
    clients.beat(member, "g", "t")
    clients.beat(member, "g", "t", "u")
    clients.beat(member, "g", "u")
    assert len(clients.told) == 3
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
    assert len(clients.told) == 1


def test_who_unregisters_leaves_one_group_only(clients: Clients) -> None:
    member = clients.member("a")
    clients.beat(member, "g")
    clients.beat(member, "h")
    clients.manager.unregister_consumer("g", "a")
    clients.manager.unregister_consumer("g", "a")
    assert clients.manager.consumer_ids("g") == []
    assert clients.manager.consumer_group("g") is None
    assert clients.manager.consumer_ids("h") == ["a"]
    assert clients.told[2:] == [("g", [])]


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
    assert len(clients.told) == 1
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
    told = len(clients.told)
    if how == "closed":
        cast("FakeConnection", second.connection).closed = True
        manager.connection_closed(second.connection)
    else:
        manager.unregister_consumer("g", "a", second.connection)
        manager.unregister_producer("p", "a", second.connection)
    assert manager.consumers("g") == [first]
    assert manager.producers("p") == [first]
    assert manager.producer_of("a") is first
    assert len(clients.told) == told
    cast("FakeConnection", first.connection).closed = True
    manager.connection_closed(first.connection)
    assert manager.consumer_ids("g") == []
    assert manager.producer_of("a") is None


def test_who_is_silent_for_too_long_is_removed_and_cut_off(clients: Clients) -> None:
    silent, live = FakeConnection(), FakeConnection()
    clients.beat(clients.member("silent", silent))
    clients.manager.register_producer(clients.member("silent", silent), "p")
    clients.clock.now += 1000
    clients.beat(clients.member("live", live))
    clients.clock.now += 120_000 - 1000
    clients.manager.remove_expired(120_000)
    assert clients.manager.consumer_ids("g") == ["silent", "live"]
    clients.clock.now += 1
    clients.manager.remove_expired(120_000)
    assert clients.manager.consumer_ids("g") == ["live"]
    assert clients.manager.producers("p") == []
    assert (silent.closed, live.closed) == (True, False)


async def test_silent_members_of_many_groups_leave_in_turns_of_the_loop(clients: Clients) -> None:
    """Each has a line in the log, and others to be told: 2,000 at once took 20 ms."""
    silent = clients.member("silent")
    names = [f"g{number}" for number in range(2_000)]
    for name in names:
        clients.beat(silent, name)
    clients.clock.now += 120_001
    clients.manager.remove_expired(120_000)
    assert clients.manager.consumer_count == len(names)
    turns = 0
    while clients.manager.consumer_count and turns < len(names):
        await asyncio.sleep(0)
        turns += 1
    assert clients.manager.consumer_count == 0
    assert turns > 1
    assert cast("FakeConnection", silent.connection).closed


def test_a_clock_that_was_set_forward_expired_every_client(clients: Clients) -> None:
    member = clients.member("a")
    clients.beat(member)
    clients.manager.register_producer(member, "p")
    clients.clock.ahead_ms = 3 * 3_600_000
    clients.manager.remove_expired(120_000)
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
    assert clients.told == []


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


def test_a_producer_is_found_as_long_as_one_of_its_groups_has_it(clients: Clients) -> None:
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
    manager.remove_expired(1000)
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
    assert clients.told[-1] == ("g", ["a", "b"])


def test_groups_that_a_connection_had_left_were_remembered_as_long_as_it_lasted(
    clients: Clients,
) -> None:
    """Who went from group to group, without end, made the broker grow without end."""
    connection = FakeConnection()
    member = clients.member("a", connection)
    clients.manager.register_producer(member, "lasting")
    for number in range(20):
        group = f"passing-{number}"
        clients.manager.register_producer(member, group)
        clients.manager.unregister_producer(group, "a", member.connection)
    assert [list(groups) for groups in clients.manager._groups_of.values()] == [["lasting"]]
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
        assert manager._subscription_bytes == sum(held)
        for each in connections:
            of = [group for group in groups if group.brought_by is cast("Connection", each)]
            brought = manager._brought[cast("Connection", each)]
            assert brought == sum(group.subscription_bytes for group in of)
        assert len(manager._brought) <= len(connections)
    for connection in connections:
        manager.connection_closed(cast("Connection", connection))
    assert manager._subscription_bytes == 0
    assert not manager._brought


MANY = [f"topic-{number:04d}" for number in range(3_000)]


def long_beat(
    clients: Clients, member: Member, topics: Iterable[str], version: int = 1
) -> Iterator[None]:
    subscriptions = [SubscriptionData(topic, sub_version=version) for topic in topics]
    data = ConsumerData("g", subscription_data_set=subscriptions)
    return clients.manager.register_steps(member, data, fingerprint=version)


def subscribed(clients: Clients) -> list[str]:
    group = clients.manager.consumer_group("g")
    return [] if group is None else sorted(group.subscriptions)


def noted(clients: Clients) -> list[str]:
    return [topic for topic in [*MANY, "t", "u"] if clients.manager.groups_of(topic) == {"g"}]


def test_many_subscriptions_are_looked_at_in_steps_and_exchanged_at_once(clients: Clients) -> None:
    """8,192 subscriptions of one group held the loop for 37 ms."""
    manager = clients.manager
    clients.beat(clients.member("a"), "g", "t", "u")
    member = clients.member("b")
    seen = []
    for _ in long_beat(clients, member, MANY, version=2):
        seen.append(subscribed(clients))
        assert noted(clients) == seen[-1]
    assert len(seen) >= 15
    assert seen == [["t", "u"]] * len(seen)
    assert subscribed(clients) == noted(clients) == MANY
    assert clients.told[-1] == ("g", ["a", "b"])
    assert sorted(manager._subscribers) == MANY
    # Back again: thousands are left, and freed, in steps, too.
    seen = [subscribed(clients) for _ in long_beat(clients, member, ["t"], version=3)]
    assert seen.count(["t"]) >= 10
    assert subscribed(clients) == noted(clients) == ["t"]
    assert list(manager._subscribers) == ["t"]
    # What is known already changes nothing.
    told = len(clients.told)
    list(long_beat(clients, clients.member("b", cast("Any", member.connection)), ["t"], version=3))
    assert (subscribed(clients), len(clients.told)) == (["t"], told)


@pytest.mark.parametrize("after", [0, 1, 5, 9, 12, 15, 20])
async def test_a_client_that_goes_in_the_middle_of_its_heartbeat_leaves_nothing(
    clients: Clients, after: int
) -> None:
    connection = FakeConnection()
    member = clients.member("a", connection)
    steps = long_beat(clients, member, MANY)
    for _ in range(after):
        next(steps, None)
    connection.closed = True
    clients.manager.connection_closed(member.connection)
    list(steps)
    assert clients.manager.consumer_groups() == []
    for _ in range(1_000):  # what it had is freed in slices
        await asyncio.sleep(0)
    assert clients.manager._subscribers == {}
    assert clients.manager._subscribed == {}
    assert clients.manager._subscription_bytes == 0
    assert clients.manager._memberships == {}


@pytest.mark.parametrize("after", [0, 1, 5, 9, 12, 15])
def test_a_client_that_comes_by_another_connection_meanwhile_is_what_it_says_last(
    clients: Clients, after: int
) -> None:
    clients.beat(clients.member("other"), "g", "t")
    old, new = clients.member("a"), clients.member("a")
    steps = long_beat(clients, old, MANY, version=2)
    for _ in range(after):
        next(steps)
    clients.beat(new, "g", "t", "u", version=3)
    list(steps)
    manager = clients.manager
    # It had joined by the first connection, if at all, before it came by the second.
    joined_late = manager.consumers("g")[-1] is old
    assert subscribed(clients) == noted(clients) == (MANY if joined_late else ["t", "u"])
    assert manager._subscription_bytes == sum(
        group.subscription_bytes for group in manager._consumers.values()
    )


@pytest.mark.parametrize("after", [0, 1, 5, 9, 12, 15])
def test_two_heartbeats_of_a_group_do_not_mix(clients: Clients, after: int) -> None:
    first = long_beat(clients, clients.member("a"), MANY[:2_000], version=2)
    second = long_beat(clients, clients.member("b"), MANY[1_000:], version=3)
    for _ in range(after):
        next(first, None)
    whole: tuple[list[str], ...] = (MANY[:2_000], MANY[1_000:], [])
    for _ in second:
        next(first, None)
        assert subscribed(clients) in whole
    for _ in first:
        assert subscribed(clients) in whole
    assert subscribed(clients) in whole[:2]
    assert noted(clients) == subscribed(clients)
    group = clients.manager.consumer_group("g")
    assert group is not None
    assert sorted(group.members) == ["a", "b"]
    assert group.subscription_bytes == sum(map(bytes_of, group.subscriptions.values()))
    # The topics of both have the newer version, whichever was exchanged last.
    versions = {group.subscriptions[topic].sub_version for topic in subscribed(clients)}
    assert versions <= {2, 3}


async def test_a_connection_in_thousands_of_groups_leaves_them_in_slices(clients: Clients) -> None:
    """The end of a connection in 2,048 groups held the loop for 80 ms, by the lines of the log alone."""
    manager = clients.manager
    connection = FakeConnection()
    member = clients.member("a", connection)
    groups = [f"g-{number:04d}" for number in range(2_000)]
    for group in groups:
        clients.beat(member, group)
    manager.register_producer(member, "p")
    connection.closed = True
    manager.connection_closed(member.connection)
    # Who comes back meanwhile stays.
    back = clients.member("a")
    clients.beat(back, groups[-1])
    turns = 0
    # It leaves its groups of producers last, perhaps in a slice of their own.
    while len(manager.consumer_groups()) > 1 or manager.producers("p"):
        turns += 1
        await asyncio.sleep(0)
    assert turns > 2
    assert manager.consumers(groups[-1]) == [back]
    assert manager.groups_of("t") == {groups[-1]}
    assert list(manager._memberships) == [back.connection]


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
    manager.remove_expired(120_000)
    back = clients.member("1999")
    clients.beat(back)
    turns = 0
    while len(manager.consumer_ids("g")) > 2:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 5
    assert manager.consumers("g") == [silent[0], back]
    assert manager.producers("p") == [silent[0]]
    closed = [cast("FakeConnection", member.connection).closed for member in silent]
    assert closed == [False] + [True] * 1_998 + [False]


async def test_the_subscriptions_of_a_group_that_ends_are_freed_in_slices(clients: Clients) -> None:
    member = clients.member("a")
    list(long_beat(clients, member, MANY))
    clients.manager.unregister_consumer("g", "a")
    assert noted(clients) == []
    clients.beat(member, "g", "topic-0007")
    turns = 0
    while len(clients.manager._subscribers) > 1:
        turns += 1
        await asyncio.sleep(0)
    assert turns > 1
    assert noted(clients) == subscribed(clients) == ["topic-0007"]
