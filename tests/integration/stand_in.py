from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from cometmq.broker.config import broker_configs
from cometmq.broker.server import Broker
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.store.files.disk import Disk, DiskUsage
from cometmq.testing import Cluster
from cometmq.testing.virtual import World


class Machine(Disk):
    def side_by_side(self, works: Sequence[Any]) -> None:
        for work in works:
            work()

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(100 << 30, 50 << 30)


class StandIn(Cluster):
    def __init__(self, *, seed: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.world = World(seed)
        self._main = self.world.node("main")

    @property
    def namesrv(self) -> str:
        return ";".join(
            f"{self.world.node(f'namesrv-{i}').host}:{s.port}"
            for i, s in enumerate(self.name_servers)
        )

    def _free_port(self, *neighbours: int) -> int:
        return 9876 if not neighbours else 10911

    async def _new_name_server(self, index: int, port: int) -> NameServer:
        directory = self.directory / f"namesrv-{index}"
        node = self.world.node(f"namesrv-{index}")
        s = node.surroundings
        server = NameServer(
            NamesrvConfig(
                listen_port=port,
                bind_address=node.host,
                kv_config_path=directory / "kvConfig.json",
                config_store_path=directory / "namesrv.properties",
            ),
            clock=s.clock,
            network=s.network,
            workers=s.workers,
        )
        await node.run_in(server.start())
        return server

    async def _new_broker(self, index: int, port: int) -> Broker:
        name = f"broker-{chr(ord('a') + index)}"
        node = self.world.node(name)
        s = node.surroundings
        properties = {
            "brokerName": name,
            "brokerIP1": node.host,
            "bindAddress": node.host,
            "namesrvAddr": self.namesrv,
            "vipChannelEnable": "false",
            "storePathRootDir": str(self.directory / name),
            "metricsPromExporterPort": "0",
            **self._properties,
            "listenPort": str(port),
        }
        broker = Broker(
            *broker_configs(properties, source="properties"),
            clock=s.clock,
            network=s.network,
            workers=s.workers,
            randomness=s.randomness,
            disk=Machine(),
        )
        await node.run_in(broker.start())
        return broker

    def node(self, name: str) -> Any:
        return self.world.node(name)

    def run(self, work: Any) -> Any:
        return self.world.loop.run_until_complete(self._main.run_in(work))

    def call(self, method: str, *args: Any) -> None:
        self.run(getattr(self, method)(*args))

    def __enter__(self) -> Self:
        self.run(self.start())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self.stop())
        finally:
            self.world.loop.close()
