"""Run a cluster's servers in virtual time, each on a node of its own."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cometmq.broker.config import broker_configs
from cometmq.broker.server import Broker
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.store.files.disk import Disk, DiskUsage
from cometmq.testing.servers import broker_name, name_server_name
from cometmq.testing.virtual.network import VirtualNetwork
from cometmq.testing.virtual.node import Node
from cometmq.testing.virtual.world import World

_REGISTERED_WITHIN_S: Final = 60.0
_NAME_SERVER_PORT: Final = 9876
_BROKER_PORT: Final = 10911
# Files are small, because their mappings are made, and their pages touched, in each run.
_FOR_SIMULATIONS: Final = {
    "mappedFileSizeCommitLog": str(256 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 500),
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}


class _Machine(Disk):
    """A disk without threads, which is half full."""

    def side_by_side(self, works: Sequence[Any]) -> None:
        for work in works:
            work()

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(100 << 30, 50 << 30)


class VirtualServers:
    """Runs name servers and brokers on the nodes of a world."""

    def __init__(
        self, world: World, name_servers: int, brokers: int, properties: Mapping[str, str]
    ) -> None:
        self.world = world
        self._counts = (name_servers, brokers)
        self._properties = {**_FOR_SIMULATIONS, **properties}
        self._temporary: Path | None = None
        self.name_servers: list[NameServer] = []
        self.brokers: list[Broker] = []

    @property
    def network(self) -> VirtualNetwork:
        return self.world.network

    @property
    def namesrv(self) -> str:
        names = map(name_server_name, range(self._counts[0]))
        return ";".join(f"{self.node(name).host}:{_NAME_SERVER_PORT}" for name in names)

    @property
    def directory(self) -> Path:
        assert self._temporary is not None, "the cluster is not started"
        return self._temporary

    def node(self, name: str) -> Node:
        return self.world.node(name)

    async def start(self) -> None:
        """Start the name servers, then the brokers; return when all are registered."""
        self._temporary = Path(tempfile.mkdtemp(prefix="cometmq-"))
        name_servers, brokers = self._counts
        try:
            for index in range(name_servers):
                self.name_servers.append(await self._new_name_server(index))
            for index in range(brokers):
                self.brokers.append(await self._new_broker(index))
            if "namesrvAddr" not in self._properties:
                await self._all_registered()
        except BaseException:
            await self.stop()
            raise

    async def _all_registered(self) -> None:
        async with asyncio.timeout(_REGISTERED_WITHIN_S):
            while any(  # noqa: ASYNC110 - a name server tells nobody who has registered
                len(each.table.live()) < len(self.brokers) for each in self.name_servers
            ):
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        for index, _ in enumerate(self.brokers):
            await self.stop_broker(index)
        for index, _ in enumerate(self.name_servers):
            await self.stop_name_server(index)
        self.brokers.clear()
        self.name_servers.clear()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    async def stop_broker(self, index: int) -> None:
        await self._close(broker_name(index), self.brokers[index].close())

    async def start_broker(self, index: int) -> None:
        self.brokers[index] = await self._new_broker(index)

    async def stop_name_server(self, index: int) -> None:
        await self._close(name_server_name(index), self.name_servers[index].close())

    async def start_name_server(self, index: int) -> None:
        self.name_servers[index] = await self._new_name_server(index)

    async def _close(self, name: str, closing: Coroutine[Any, Any, None]) -> None:
        node = self.node(name)
        if node.is_killed:
            closing.close()
            return
        await node.run_in(closing)

    async def _new_name_server(self, index: int) -> NameServer:
        name = name_server_name(index)
        node, directory = self.node(name), self.directory / name
        config = NamesrvConfig(
            listen_port=_NAME_SERVER_PORT,
            bind_address=node.host,
            kv_config_path=directory / "kvConfig.json",
            config_store_path=directory / "namesrv.properties",
        )
        given = node.surroundings

        async def started() -> NameServer:
            server = NameServer(
                config, clock=given.clock, network=given.network, workers=given.workers
            )
            await server.start()
            return server

        return await node.run_in(started())

    async def _new_broker(self, index: int) -> Broker:
        name = broker_name(index)
        node = self.node(name)
        given = node.surroundings
        properties = {
            "brokerName": name,
            "brokerIP1": node.host,
            "bindAddress": node.host,
            "namesrvAddr": self.namesrv,
            "vipChannelEnable": "false",
            "storePathRootDir": str(self.directory / name),
            **self._properties,
            "listenPort": str(_BROKER_PORT),
        }

        async def started() -> Broker:
            broker = Broker(
                *broker_configs(properties, source="properties"),
                clock=given.clock,
                randomness=given.randomness,
                network=given.network,
                workers=given.workers,
                disk=_Machine(),
            )
            await broker.start()
            return broker

        return await node.run_in(started())

    # Faults

    def kill(self, name: str) -> None:
        raise NotImplementedError

    def power_off(self, name: str) -> None:
        raise NotImplementedError

    def pause(self, name: str) -> None:
        self.node(name).pause()

    def resume(self, name: str) -> None:
        self.node(name).resume()

    async def restart(self, name: str) -> None:
        raise NotImplementedError

    def wipe(self, name: str) -> None:
        raise NotImplementedError

    def fail_disk(self, name: str, operation: str, error: str, after: int, times: int) -> None:
        raise NotImplementedError

    def fill_disk(self, name: str) -> None:
        raise NotImplementedError

    def free_disk(self, name: str) -> None:
        raise NotImplementedError

    def slow_disk(self, name: str, seconds: float) -> None:
        self.node(name).workers.slow_down(seconds)

    def flip_bit(self, name: str, path: str, offset: int) -> None:
        raise NotImplementedError

    def skew_clock(self, name: str, ms: int) -> None:
        self.node(name).skew_clock(ms)

    def drift_clock(self, name: str, rate: float) -> None:
        self.node(name).drift_clock(rate)
