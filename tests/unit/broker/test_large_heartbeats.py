"""Heartbeats that are served in steps, in order with what their client sends behind them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.integration.raw_client import heartbeat_body
from tests.unit.broker.broker_box import GROUP, Client, running

HEARTBEAT, UNREGISTER = 34, 35
GROUPS = [f"group-{number:03d}" for number in range(600)]


def large() -> bytes:
    return heartbeat_body("c1", {group: ["orders"] for group in GROUPS})


async def test_a_client_that_left_a_group_came_back_by_its_heartbeat_before(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        farewell = {"clientID": "c1", "consumerGroup": GROUPS[-1]}
        first = client.send(HEARTBEAT, {}, large())
        await client.ask(UNREGISTER, farewell)
        assert client.answers()[first].code == 0
        clients = broker.clients
        assert (clients.consumer_ids(GROUPS[-1]), clients.consumer_ids(GROUPS[-2])) == ([], ["c1"])


async def test_a_small_heartbeat_was_undone_by_the_large_one_before(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        small = heartbeat_body("c1", {GROUPS[-1]: ["refunds"]}, sub_version=2)
        first = client.send(HEARTBEAT, {}, large())
        await client.ask(HEARTBEAT, {}, small)
        assert client.answers()[first].code == 0
        group = broker.clients.consumer_group(GROUPS[-1])
        assert group is not None
        assert list(group.subscriptions) == ["refunds"]


def expressions(count: int, version: int) -> bytes:
    subscriptions = [
        {
            "topic": f"topic-{number}",
            "subString": f"a = {number} AND b = {version}",
            "expressionType": "SQL92",
            "subVersion": version,
        }
        for number in range(count)
    ]
    group = {"groupName": GROUP, "subscriptionDataSet": subscriptions}
    return json.dumps({"clientID": "c1", "consumerDataSet": [group]}).encode()


def many(first: int, last: int, version: int) -> bytes:
    topics = [f"topic-{number:05d}" for number in range(first, last)]
    return heartbeat_body("c1", {GROUP: topics}, sub_version=version)


async def test_a_heartbeat_of_thousands_of_subscriptions_lets_others_be_served(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        for version, (first, last) in enumerate([(0, 8_000), (4_000, 8_192)], 1):
            opaque = client.send(HEARTBEAT, {}, many(first, last, version))
            turns = 0
            while opaque not in client.answers():
                await asyncio.sleep(0)
                turns += 1
            assert client.answers()[opaque].code == 0
            assert turns > 20
            group = broker.clients.consumer_group(GROUP)
            assert group is not None
            assert len(group.subscriptions) == last - first
            assert broker.clients.groups_of("topic-00000") == ({GROUP} if not first else set())
            assert broker.clients.groups_of("topic-07999") == {GROUP}


async def test_expressions_of_a_client_that_goes_meanwhile_are_left_unused(tmp_path: Path) -> None:
    async with running(tmp_path, enable_property_filter=True) as broker:
        client = Client(broker)
        client.send(HEARTBEAT, {}, expressions(256, 1))
        filters = broker.parts.filters.manager

        def registered() -> list[bool]:
            found = [filters.get(f"topic-{number}", GROUP) for number in range(256)]
            return [data.dead for data in found if data is not None]

        # The first slice may end before the first of them, or behind some.
        for _ in range(10_000):
            if registered():
                break
            await asyncio.sleep(0)
        assert 0 < len(registered()) < 256, "it is taken in in steps"
        client.line.connection.connection_lost(None)
        broker.clients.connection_closed(client.line.connection)
        known = len(registered())
        for _ in range(500):
            await asyncio.sleep(0)
        assert broker.clients.consumer_group(GROUP) is None
        assert len(registered()) == known < 256
        assert all(registered())


async def test_two_heartbeats_of_a_client_end_as_the_second_says(tmp_path: Path) -> None:
    async with running(tmp_path, enable_property_filter=True) as broker:
        client = Client(broker)
        first = client.send(HEARTBEAT, {}, expressions(256, 1))
        second = client.send(HEARTBEAT, {}, expressions(200, 2))
        await client.answer(first)
        await client.answer(second)
        filters = broker.parts.filters.manager
        for number in range(256):
            data = filters.get(f"topic-{number}", GROUP)
            assert data is not None
            assert data.dead == (number >= 200)
            assert data.expression.endswith(f"b = {2 if number < 200 else 1}")
