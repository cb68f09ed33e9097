"""A broker, its name server and a client in one process and one thread, in simulated time."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import pull_ext, send_ext
from tests.simulated import LoopClock, MemoryNetwork, SimulatedWorkers
from tests.unit.broker.broker_box import RoomyDisk

from cometmq.broker.config import BrokerConfig
from cometmq.broker.server import Broker
from cometmq.model.route import TopicRouteData
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.protocol import headers
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, request
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.fastjson.queue_table import with_text_keys
from cometmq.protocol.messages.record import decode_records
from cometmq.remoting.client import RemotingClient
from cometmq.runtime.randomness import Randomness
from cometmq.store.config import StoreConfig
from cometmq.testing import virtual

NAME_SERVER, BROKER = "127.0.0.1:9876", "10.0.0.1:10911"
FLUSHERS = {"flush-commit-log", "flush-queues", "write-commit-log"}


class Machine(RoomyDisk):
    """A disk without threads."""

    def side_by_side(self, works: Sequence[Any]) -> None:
        for work in works:
            work()


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise AssertionError(f"the thread {thread.name} in a simulation")

    monkeypatch.setattr(threading.Thread, "start", refuse)


class Simulation:
    """One name server and one broker, with all that they draw from `seed`."""

    def __init__(self, directory: Path, seed: int = 1) -> None:
        self.directory = directory
        self.network = MemoryNetwork()
        self.randomness = Randomness(seed)
        self.workers = SimulatedWorkers(lambda: self.randomness.uniform(0.0001, 0.05))
        self.client = RemotingClient(network=self.network)

    @asynccontextmanager
    async def name_server(self) -> AsyncIterator[NameServer]:
        config = NamesrvConfig(
            listen_port=9876,
            kv_config_path=self.directory / "kvConfig.json",
            config_store_path=self.directory / "namesrv.properties",
        )
        server = NameServer(config, clock=LoopClock(), network=self.network, workers=self.workers)
        await server.start()
        try:
            yield server
        finally:
            await self.client.close()
            await server.close()

    @asynccontextmanager
    async def broker(self) -> AsyncIterator[Broker]:
        broker = Broker(
            BrokerConfig(
                broker_name="broker-a",
                broker_ip1="10.0.0.1",
                listen_port=10911,
                namesrv_addr=NAME_SERVER,
                vip_channel_enable=False,
            ),
            StoreConfig(
                store_path_root_dir=self.directory / "store",
                mapped_file_size_commit_log=1 << 16,
                mapped_file_size_consume_queue=20_000,
                max_hash_slot_num=100,
                max_index_num=1000,
                flush_disk_type="SYNC_FLUSH",
            ),
            clock=LoopClock(),
            randomness=self.randomness,
            network=self.network,
            workers=self.workers,
            disk=Machine(),
        )
        await broker.start()
        try:
            yield broker
        finally:
            await broker.close()

    async def ask(
        self, address: str, code: int, ext: dict[str, str], body: bytes = b""
    ) -> RemotingCommand:
        return await self.client.call(address, RemotingCommand(code, ext=ext, body=body), 3.0)

    async def send(self, body: bytes, **fields: Any) -> dict[str, Any]:
        answer = await self.ask(
            BROKER, RequestCode.SEND_MESSAGE, send_ext("orders", **fields), body
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return dict(answer.ext)

    async def pulled(self, queue_id: int = 0) -> list[bytes]:
        answer = await self.ask(
            BROKER, RequestCode.PULL_MESSAGE, pull_ext("orders", queueId=queue_id)
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return [record.body for record in decode_records(bytes(answer.body))]

    async def route(self) -> TopicRouteData | None:
        header = headers.GetRouteInfoRequestHeader(topic="orders")
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        answer = await self.client.call(NAME_SERVER, command, 3.0)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return decode_body(bytes(answer.body), TopicRouteData)


def test_a_broker_registers_and_answers_a_send_without_socket_or_thread(tmp_path: Path) -> None:
    async def main() -> None:
        simulation = Simulation(tmp_path)
        async with simulation.name_server(), simulation.broker():
            assert await simulation.route() is None
            await simulation.send(b"first")
            route = await simulation.route()
            assert route is not None
            assert [data.broker_addrs for data in route.broker_datas] == [{0: BROKER}]
            assert await simulation.pulled() == [b"first"]
        assert set(simulation.network.listeners) == set()

    virtual.run(main())


def test_a_broker_stays_known_in_simulated_time_until_it_stops(tmp_path: Path) -> None:
    async def main() -> None:
        loop, simulation = asyncio.get_running_loop(), Simulation(tmp_path)
        async with simulation.name_server():
            async with simulation.broker():
                await simulation.send(b"kept")
                for _ in range(10):  # silent for two minutes, it would be forgotten
                    await asyncio.sleep(60)
                    assert await simulation.route() is not None
            assert loop.time() > 600
            assert await simulation.route() is None
            async with simulation.broker():
                assert await simulation.route() is not None
                assert await simulation.pulled() == [b"kept"]

    virtual.run(main())


async def history_of_sends(directory: Path, seed: int) -> list[object]:
    """Answers and their times, and the workers' steps, for sends that leave the broker the choice of
    the queue.
    """
    simulation, history = Simulation(directory, seed), list[object]()
    async with simulation.name_server(), simulation.broker():
        for number in range(20):
            ext = await simulation.send(b"%d" % number, queueId=-1)
            history.append((asyncio.get_running_loop().time(), ext["queueId"], ext["queueOffset"]))
    return [*history, *simulation.workers.history]


def test_two_runs_of_one_seed_have_the_same_history(tmp_path: Path) -> None:
    first = virtual.run(history_of_sends(tmp_path / "first", 7))
    assert first == virtual.run(history_of_sends(tmp_path / "second", 7))
    assert first != virtual.run(history_of_sends(tmp_path / "other", 8))


def test_a_synced_send_is_answered_when_its_worker_has_flushed(tmp_path: Path) -> None:
    async def main() -> None:
        simulation = Simulation(tmp_path)
        async with simulation.name_server(), simulation.broker():
            await simulation.send(b"makes the topic")
            loop, history = asyncio.get_running_loop(), simulation.workers.history
            for _ in range(5):
                begun = loop.time()
                await simulation.send(b"x")
                flushes = [at for at, name in history if name == "flush-commit-log"]
                assert begun < flushes[-1] == loop.time()
            await simulation.send(bytes(40_000))  # more than half a file: the next one is made
            await asyncio.sleep(2)
            assert FLUSHERS | {"index", "state-writer", "topic-journal"} <= {
                name for _, name in history
            }

    virtual.run(main())


def test_rates_of_topics_and_groups_are_those_of_the_last_minute(tmp_path: Path) -> None:
    async def main() -> None:
        simulation = Simulation(tmp_path)

        async def reported(code: int, **ext: str) -> Any:
            answer = await simulation.ask(BROKER, code, ext)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            return json.loads(with_text_keys(bytes(answer.body)))

        async def minute(name: str, key: str) -> dict[str, float]:
            code = RequestCode.VIEW_BROKER_STATS_DATA
            figures: dict[str, float] = (await reported(code, statsName=name, statsKey=key))[
                "statsMinute"
            ]
            return figures

        async with simulation.name_server(), simulation.broker():
            for second in range(60):
                await simulation.send(b"%d" % second)
                await asyncio.sleep(1)
            group = pull_ext("orders")["consumerGroup"]
            got = await simulation.pulled()
            await asyncio.sleep(10)
            put = await minute("TOPIC_PUT_NUMS", "orders")
            taken = await minute("GROUP_GET_NUMS", f"orders@{group}")
            # The time of the sends counts, too, so there is less than one in a second.
            assert 40 < put["sum"] < 60
            assert 0.6 < put["tps"] < 1.0
            assert taken["sum"] == taken["avgpt"] == len(got) > 0
            stats = await reported(RequestCode.GET_TOPIC_STATS_INFO, topic="orders")
            assert stats["topicPutTps"] == put["tps"]
            of_group = await reported(
                RequestCode.GET_CONSUME_STATS, consumerGroup=group, topic="orders"
            )
            assert of_group["consumeTps"] == taken["tps"] > 0
            code = RequestCode.QUERY_CONSUME_TIME_SPAN
            spans = (await reported(code, topic="orders", group=group))["consumeTimeSpanSet"]
            # Nothing is consumed, and the first message came more than 70 seconds ago.
            assert 70_000 <= spans[0]["delayTime"] < 100_000
            assert 59_000 <= spans[0]["maxTimeStamp"] - spans[0]["minTimeStamp"] < 80_000
            await asyncio.sleep(70)
            for name, key in (("TOPIC_PUT_NUMS", "orders"), ("GROUP_GET_NUMS", f"orders@{group}")):
                assert await minute(name, key) == {"sum": 0, "tps": 0.0, "avgpt": 0.0}

    virtual.run(main())
