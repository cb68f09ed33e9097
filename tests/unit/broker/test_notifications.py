"""Members are notified that their group changed: once for changes at the same time, and in slices."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tests.waits import WAIT_S

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups.client_handlers import ClientHandlers
from cometmq.broker.groups.clients import ClientManager, Member
from cometmq.broker.long_answer import LongAnswers
from cometmq.model.subscription import ConsumerData
from cometmq.protocol.command import RemotingCommand
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.testing import virtual


class Connection:
    """Counts its notifications."""

    closed = False

    def __init__(self) -> None:
        self.reported: list[str] = []

    def send_oneway(self, command: RemotingCommand) -> int:
        self.reported.append(command.ext["consumerGroup"])
        return 0


class Groups:
    def get(self, _group: str) -> None:
        """No group has settings of its own."""


def new_clients() -> ClientManager:
    clients = ClientManager(SYSTEM_CLOCK)
    ClientHandlers(
        BrokerConfig(broker_name="a", broker_ip1="127.0.0.1"),
        SYSTEM_CLOCK,
        clients,
        cast("Any", Groups()),
        cast("Any", None),
        LongAnswers(),
    )
    return clients


def join(clients: ClientManager, connections: list[Connection], group: str) -> None:
    for number, connection in enumerate(connections):
        member = Member(f"c-{number}", cast("Any", connection), "JAVA", 400, 1)
        clients.register_consumer(member, ConsumerData(group))


async def settled(connections: list[Connection]) -> None:
    """Wait until all notifications are sent."""
    async with asyncio.timeout(WAIT_S):
        before = -1
        while before != (now := sum(len(connection.reported) for connection in connections)):
            before = now
            for _ in range(5):
                await asyncio.sleep(0)


def test_many_members_that_join_together_are_told_together() -> None:
    async def run() -> None:
        clients = new_clients()
        connections = [Connection() for _ in range(500)]
        join(clients, connections, "g")
        await settled(connections)
        # Each was told of each that came after it: 125,000 requests. Now the first eight are, as long
        # as the group is small, and then all once.
        assert [len(connection.reported) for connection in connections[8:]] == [1] * 492
        assert sum(len(connection.reported) for connection in connections) == 500 + sum(range(1, 9))

    virtual.run(run())


def test_a_small_group_is_told_before_its_new_member_is_answered() -> None:
    async def run() -> None:
        clients = new_clients()
        connections = [Connection(), Connection()]
        join(clients, connections, "g")
        assert [len(connection.reported) for connection in connections] == [2, 1]

    virtual.run(run())  # on a slow machine a slice of real time may end after one of them


def test_members_that_leave_together_are_not_told_of_each_other() -> None:
    async def run() -> None:
        clients = new_clients()
        connections = [Connection() for _ in range(300)]
        join(clients, connections, "g")
        await settled(connections)
        for connection in connections:
            connection.reported.clear()
        for connection in connections[1:]:
            clients.connection_closed(cast("Any", connection))
        await settled(connections)
        assert connections[0].reported == ["g"]
        assert not any(connection.reported for connection in connections[1:])

    virtual.run(run())


def test_every_changed_group_is_told_and_a_later_change_again() -> None:
    async def run() -> None:
        clients = new_clients()
        connections = [Connection()]
        for number in range(50):
            join(clients, connections, f"g-{number}")
        await settled(connections)
        assert sorted(connections[0].reported) == sorted(f"g-{number}" for number in range(50))
        join(clients, [Connection(), Connection()], "g-7")
        await settled(connections)
        assert clients.consumer_ids("g-7") == ["c-0", "c-1"]

    virtual.run(run())


def test_a_member_that_cannot_be_notified_keeps_no_other_from_it() -> None:
    class Broken(Connection):
        def send_oneway(self, command: RemotingCommand) -> int:
            raise RuntimeError("a fault of ours")

        def fail(self) -> None:
            self.closed = True

    async def play() -> None:
        connections: list[Connection] = [Connection() for _ in range(100)]
        broken = connections[50] = Broken()
        join(new_clients(), connections, "g")
        await settled(connections)
        assert all(connection.reported for connection in connections if connection is not broken)
        assert broken.closed

    virtual.run(play())
