"""A broker in virtual time starts from a slice of another one's store, and goes on from there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integration.raw_client import pull_ext, send_ext
from tests.unit.testing.test_broker_on_virtual_disk import STORE, ended, started

from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.messages.record import StoredRecord, decode_records
from cometmq.remoting.client import RemotingClient
from cometmq.store.config import StoreConfig
from cometmq.store.offline.slice import Selection, make_slice
from cometmq.store.offline.store import open_offline
from cometmq.testing.virtual.node import Node
from cometmq.testing.virtual.world import World

SLICE = Path("/slice")


class Asker:
    """Sends requests to a broker from a node of its own."""

    def __init__(self, world: World, node: Node) -> None:
        self._client = RemotingClient(network=world.node("app").surroundings.network)
        self._address = f"{node.host}:10911"

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        command = RemotingCommand(code, ext=ext, body=body)
        answer = await self._client.call(self._address, command, 30.0)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    async def send(self, body: bytes, properties: str = "") -> dict[str, str]:
        fields = send_ext("orders", properties=properties)
        return dict((await self.ask(RequestCode.SEND_MESSAGE, fields, body)).ext)

    async def pull(self, offset: int) -> list[StoredRecord]:
        fields = pull_ext("orders", queueOffset=offset, consumerGroup="g")
        answer = await self.ask(RequestCode.PULL_MESSAGE, fields)
        return list(decode_records(bytes(answer.body)))

    async def close(self) -> None:
        await self._client.close()


def filled(middle_ms: list[int]) -> World:
    """Return a world whose broker-a got ten messages, a delayed one, ten more, and was stopped."""
    world = World(1)
    node = world.node("broker-a")

    async def main() -> None:
        broker = await started(node)
        asker = Asker(world, node)
        for number in range(10):
            await asker.send(b"%d" % number)
        middle_ms.append(node.clock.now_ms())
        await asyncio.sleep(1)
        await asker.send(b"delayed", "DELAY\x018\x02")  # four minutes
        for number in range(10, 20):
            await asker.send(b"%d" % number)
        assert len(await asker.pull(0)) == 20
        fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "20"}
        await asker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        await asker.close()
        await node.run_in(broker.close())

    ended(world, main())
    return world


def test_a_broker_goes_on_from_the_end_of_a_slice_in_another_world(tmp_path: Path) -> None:
    middle_ms: list[int] = []
    source = filled(middle_ms).node("broker-a")
    with open_offline(StoreConfig(store_path_root_dir=STORE), source.disk) as store:
        wanted = Selection(begin_ms=middle_ms[0] + 1)
        made = make_slice(store, SLICE, wanted, clock=source.clock, disk=source.disk)
    source.disk.save(tmp_path / "slice", root=SLICE)
    assert made.queues["orders", 0].first_offset == 10

    world = World(2)
    node = world.node("broker-a")
    node.disk.load(tmp_path / "slice", root=STORE)

    async def main() -> None:
        broker = await started(node)
        asker = Asker(world, node)
        records = await asker.pull(10)
        assert [record.body for record in records] == [b"%d" % n for n in range(10, 20)]
        assert [record.queue_offset for record in records] == list(range(10, 20))
        assert records[0].physical_offset > made.first_offset
        assert (await asker.send(b"new"))["queueOffset"] == "20"
        await asyncio.sleep(300)
        bodies = [record.body for record in await asker.pull(20)]
        assert sorted(bodies) == [b"delayed", b"new"]
        await asker.close()
        await node.run_in(broker.close())

    ended(world, main())


def test_offsets_of_groups_behind_the_end_of_a_slice_are_corrected() -> None:
    source = filled([]).node("broker-a")
    with open_offline(StoreConfig(store_path_root_dir=STORE), source.disk) as store:
        fifth = next(found for n, found in enumerate(store.records()) if n == 5)
        wanted = Selection(end_offset=fifth.offset)
        make_slice(store, SLICE, wanted, clock=source.clock, disk=source.disk)
    world = World(3)
    node = world.node("broker-b")
    for path, file in source.disk.system.files(SLICE):
        node.disk.make_directory(path.parent)
        node.disk.write(path, file.read(0, file.size))

    async def main() -> None:
        broker = await started(node, storePathRootDir=str(SLICE))
        asker = Asker(world, node)
        assert (await asker.send(b"new"))["queueOffset"] == "5"
        fields = {"consumerGroup": "g", "topic": "orders", "queueId": "0"}
        answer = await asker.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        assert answer.ext["offset"] == "5"
        await asker.close()
        await node.run_in(broker.close())

    ended(world, main())
