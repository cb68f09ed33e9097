"""A large table of topics is registered in parts, and a name server has all of it in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.broker.operation import registration as module
from cometmq.broker.operation.registration import Registration
from cometmq.broker.topics.topics import TopicManager
from cometmq.model.topic import TopicConfig
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.route_table import Link, RegisterResult, RouteTable
from cometmq.namesrv.route_table import Registration as Received
from cometmq.namesrv.server import NameServer
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.tasks import TaskOwner

AT_ONCE = 10
COUNT = 57


class Pair:
    """Keeps a name server, and what a broker registers there."""

    def __init__(self, server: NameServer) -> None:
        self.server = server
        self.tasks = TaskOwner("test")
        config = BrokerConfig(
            broker_name="b",
            broker_cluster_name="C",
            broker_ip1="127.0.0.1",
            namesrv_addr=f"127.0.0.1:{server.port}",
        )
        self.topics = TopicManager(config, SYSTEM_CLOCK)
        for at in range(COUNT):
            self.topics.put(TopicConfig(f"t{at:02d}"))
        self.registration = Registration(
            config,
            self.topics,
            address="127.0.0.1:10911",
            ha_address="127.0.0.1:10912",
            tasks=self.tasks,
        )

    def missing(self) -> set[str]:
        return {topic.topic_name for topic in self.topics.all()} - set(self.server.table.topics())


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many topics each registration had that was sent to a name server."""
    found: list[int] = []
    register = RouteTable.register

    def noted(self: RouteTable, received: Received, link: Link) -> RegisterResult | None:
        found.append(len(received.topics))
        return register(self, received, link)

    monkeypatch.setattr(RouteTable, "register", noted)
    monkeypatch.setattr(module, "MAX_TOPICS_AT_ONCE", AT_ONCE)
    return found


@pytest.fixture
async def pair(tmp_path: Path, sizes: list[int]) -> AsyncIterator[Pair]:
    server = NameServer(
        NamesrvConfig(
            bind_address="127.0.0.1", listen_port=0, kv_config_path=tmp_path / "kvConfig.json"
        )
    )
    await server.start()
    pair = Pair(server)
    yield pair
    await pair.registration.close()
    await pair.tasks.close()
    await server.close()


async def test_all_topics_arrive_in_parts(pair: Pair, sizes: list[int]) -> None:
    await pair.registration.register_all()
    assert pair.missing() == set()
    assert max(sizes) == AT_ONCE
    assert sum(sizes) == len(list(pair.topics.all()))


async def test_a_change_arrives_whichever_part_it_is_in(pair: Pair) -> None:
    await pair.registration.register_all()
    for name in ("t00", "t23", f"t{COUNT - 1}"):
        pair.topics.put(TopicConfig(name, write_queue_nums=3))
    await pair.registration.register_all()
    for name in ("t00", "t23", f"t{COUNT - 1}"):
        route = pair.server.table.route(name)
        assert route is not None
        assert route.queue_datas[0].write_queue_nums == 3


async def test_a_period_sends_one_part_to_a_name_server_that_has_the_table(
    pair: Pair, sizes: list[int]
) -> None:
    await pair.registration.register_all()
    pair.server.table.delete_topic("t30")
    sizes.clear()
    parts = -(-len(list(pair.topics.all())) // AT_ONCE)
    for _ in range(parts):
        await pair.registration.remind()
    assert len(sizes) == parts
    assert max(sizes) == AT_ONCE
    # Topics that the name server has lost come back with the periodic parts.
    assert pair.missing() == set()


async def test_a_period_sends_all_to_a_name_server_that_missed_a_change(
    pair: Pair, sizes: list[int]
) -> None:
    await pair.registration.register_all()
    pair.topics.put(TopicConfig("late"))
    sizes.clear()
    await pair.registration.remind()
    assert pair.missing() == set()
    assert sum(sizes) == len(list(pair.topics.all()))
