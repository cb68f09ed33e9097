"""Heartbeats with many groups or expressions, in order with what their client sends behind them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.integration.raw_client import heartbeat_body, properties, pull_ext, send_ext
from tests.unit.broker.broker_box import GROUP, Client, running
from tests.waits import WAIT_S

from cometmq.broker.pulls import pull as pulls

SEND, PULL, HEARTBEAT, UNREGISTER = 10, 11, 34, 35
SUSPEND = 2
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
            if number >= 200:  # the first may have come that far before the second did
                assert data is None or data.dead
                continue
            assert data is not None
            assert not data.dead
            assert data.expression.endswith("b = 2")


async def test_a_pull_waits_for_the_expression_that_its_heartbeat_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first pull that came while the expression was compiled would be refused for three seconds."""
    # A busy machine may compile for more than a second.
    monkeypatch.setattr(pulls, "HEARTBEAT_WAIT_S", WAIT_S)
    async with running(tmp_path, enable_property_filter=True) as broker:
        client = Client(broker)
        await client.ask(HEARTBEAT, {}, heartbeat_body("c1", {GROUP: ["orders"]}))
        await client.ask(SEND, send_ext("orders", properties=properties({"a": "399"})), b"x")
        long = " OR ".join(f"a = {number}" for number in range(400))
        said = {"topic": "orders", "subString": long, "expressionType": "SQL92", "subVersion": 2}
        group = {"groupName": GROUP, "subscriptionDataSet": [said]}
        beat = client.send(
            HEARTBEAT, {}, json.dumps({"clientID": "c1", "consumerDataSet": [group]}).encode()
        )
        assert beat not in client.answers()
        pull = client.send(
            PULL,
            pull_ext(
                "orders", consumerGroup=GROUP, sysFlag=SUSPEND, subVersion=2, subscription=None
            ),
        )
        assert (await client.answer(beat)).code == 0
        answer = await client.answer(pull)
        assert (answer.code, len(answer.body) > 0) == (0, True), answer.remark


async def test_the_groups_of_a_heartbeat_were_made_one_by_one(tmp_path: Path) -> None:
    """A line in the log and a word to each listener for a thousand groups and topics took 0.1 s."""
    async with running(tmp_path) as broker:
        client = Client(broker)
        reported: list[int] = []
        broker.topics.on_change.append(lambda topics: reported.append(len(topics)))
        version = broker.groups.table.data_version.counter
        assert (await client.ask(HEARTBEAT, {}, large())).code == 0
        assert reported == [len(GROUPS)]
        assert broker.groups.table.data_version.counter == version + 1
        assert all(broker.groups.get(group) is not None for group in GROUPS)
        assert broker.clients.consumer_ids(GROUPS[-1]) == ["c1"]


async def test_groups_that_may_be_made_are_registered_before_the_refusal(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        broker.config.max_groups = len(broker.groups.all()) + 10
        answer = await client.ask(HEARTBEAT, {}, large())
        assert "the limit maxGroups is" in (answer.remark or "")
        there = [bool(broker.clients.consumer_ids(group)) for group in GROUPS]
        assert there == [True] * 10 + [False] * (len(GROUPS) - 10)
