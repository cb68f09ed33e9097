"""Heartbeats that are served in steps, in order with what their client sends behind them."""

from __future__ import annotations

from pathlib import Path

from tests.integration.raw_client import heartbeat_body
from tests.unit.broker.broker_box import Client, running

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
