"""A broker and a name server keep everything on the disk of their node, and share its faults."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.integration.raw_client import send_ext

from cometmq.access.config import AccessConfig
from cometmq.broker.config import broker_configs
from cometmq.broker.server import Broker
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.remoting.client import RemotingClient
from cometmq.testing.virtual.node import Node
from cometmq.testing.virtual.world import World

T = TypeVar("T")

STORE = Path("/store")


def ended(world: World, main: Coroutine[Any, Any, T]) -> T:
    """Run `main`, and end the world."""
    with world:
        return world.run(main)


async def started(node: Node, **properties: Any) -> Broker:
    """Start a broker on `node`, without a name server."""
    given = {
        "brokerName": node.name,
        "brokerIP1": node.host,
        "bindAddress": node.host,
        "storePathRootDir": str(STORE),
        "listenPort": "10911",
        "vipChannelEnable": "false",
        "protectedMode": "false",
        "mappedFileSizeCommitLog": str(1 << 16),
        "mappedFileSizeConsumeQueue": "2000",
        "maxHashSlotNum": "100",
        "maxIndexNum": "1000",
        **properties,
    }

    async def start() -> Broker:
        broker = Broker(*broker_configs(given, source="the test"), disk=node.disk)
        await broker.start()
        return broker

    return await node.run_in(start())


async def send(world: World, node: Node, topic: str = "orders") -> tuple[int, str]:
    """Send a message from another node; return the answer's code and remark."""
    client = RemotingClient(network=world.node("app").surroundings.network)
    request = RemotingCommand(RequestCode.SEND_MESSAGE, ext=send_ext(topic), body=b"x" * 100)
    try:
        answer = await client.call(f"{node.host}:10911", request, 30.0)
        return answer.code, answer.remark or ""
    finally:
        await client.close()


def ended_by(end: str, world: World, node: Node) -> Node:
    """End the node's process, with its disk in that way, and return the next process of the node."""
    node.kill()
    getattr(node.disk, end)()
    world.network.kill(node.name)
    return world.restart(node.name)


def test_nothing_of_a_broker_lies_on_the_machines_disk(tmp_path: Path) -> None:
    world = World(1)
    node = world.node("broker-a")
    root = tmp_path / "store"

    async def main() -> None:
        broker = await started(node, storePathRootDir=str(root))
        assert await send(world, node) == (ResponseCode.SUCCESS, "")
        await node.run_in(broker.close())

    ended(world, main())
    assert not root.exists()
    names = {path.relative_to(root).parts[0] for path, _ in node.disk.system.files(root)}
    assert names == {"checkpoint", "commitlog", "config", "consumequeue", "index", "lock"} | {
        "queues.json"
    }
    assert "topics.json" in node.disk.names(root / "config")


@pytest.mark.parametrize("end", ["crash_process", "lose_power"])
def test_what_a_flush_has_written_survives_either_end(end: str) -> None:
    world = World(2)
    node = world.node("broker-a")

    async def main() -> None:
        await started(node, flushDiskType="SYNC_FLUSH")
        for _ in range(5):
            assert await send(world, node) == (ResponseCode.SUCCESS, "")
        again = ended_by(end, world, node)
        assert again.disk is node.disk
        broker = await started(again)
        assert broker.store.max_offset("orders", 0) == 5
        assert broker.topics.get("orders") is not None
        await again.run_in(broker.close())

    ended(world, main())


def test_a_process_that_ends_leaves_what_was_not_flushed_and_a_loss_of_power_may_take_it() -> None:
    def left(end: str, seed: int) -> int:
        world = World(seed)
        node = world.node("broker-a")

        async def main() -> int:
            await started(node, flushIntervalCommitLog="60000")
            for _ in range(5):
                assert await send(world, node) == (ResponseCode.SUCCESS, "")
            again = ended_by(end, world, node)
            broker = await started(again)
            found = broker.store.max_offset("orders", 0)
            await again.run_in(broker.close())
            return found

        return ended(world, main())

    assert {left("crash_process", seed) for seed in range(3)} == {5}
    assert min(left("lose_power", seed) for seed in range(12)) < 5


def test_a_failing_disk_refuses_a_new_topic_and_the_reason_is_told() -> None:
    world = World(3)
    node = world.node("broker-a")

    async def main() -> None:
        broker = await started(node)
        node.disk.fail("any", "ENOSPC", times=None, path="*topics.*")
        code, remark = await send(world, node)
        assert code != ResponseCode.SUCCESS
        assert "No space left on device" in remark
        node.disk.mend()
        assert await send(world, node) == (ResponseCode.SUCCESS, "")
        await node.run_in(broker.close())

    ended(world, main())


def test_a_slow_disk_delays_sends_that_wait_for_it_in_virtual_time() -> None:
    world = World(4)
    node = world.node("broker-a")

    async def main() -> None:
        broker = await started(node, flushDiskType="SYNC_FLUSH")
        await send(world, node)
        before_s = world.loop.time()
        assert await send(world, node) == (ResponseCode.SUCCESS, "")
        assert world.loop.time() - before_s < 0.5
        node.disk.slow(2.0)
        before_s = world.loop.time()
        assert await send(world, node) == (ResponseCode.SUCCESS, "")
        assert 2.0 <= world.loop.time() - before_s < 5.0
        node.disk.mend()
        await node.run_in(broker.close())

    ended(world, main())


def test_a_name_servers_table_lies_on_its_nodes_disk(tmp_path: Path) -> None:
    world = World(5)
    node = world.node("namesrv-0")
    config = NamesrvConfig(
        listen_port=9876,
        bind_address=node.host,
        admin_from=world.node("app").host,
        kv_config_path=tmp_path / "kvConfig.json",
        config_store_path=tmp_path / "namesrv.properties",
    )

    async def start() -> NameServer:
        server = NameServer(config, AccessConfig(protected_mode=False))
        await server.start()
        return server

    async def main() -> None:
        server = await node.run_in(start())
        client = RemotingClient(network=world.node("app").surroundings.network)
        fields = {"namespace": "n", "key": "k", "value": "v"}
        answer = await client.call(
            f"{node.host}:9876", RemotingCommand(RequestCode.PUT_KV_CONFIG, ext=fields), 3.0
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        node.disk.lose_power()
        await client.close()
        await node.run_in(server.close())

    ended(world, main())
    assert list(tmp_path.iterdir()) == []
    assert b'"k"' in node.disk.files.read(tmp_path / "kvConfig.json")
