"""Run a cluster's servers in this process, over real sockets and real files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cometmq.broker.config import broker_configs
from cometmq.broker.server import VIP_PORT_DISTANCE, Broker
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.testing.ports import HeldPort
from cometmq.testing.servers import all_registered, broker_name, name_server_name

_LOOPBACK = "127.0.0.1"
_FOR_TESTS = {
    # Few tests fill a file of a gigabyte, and preallocating one would make each test slow.
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    # A machine that runs tests does other things, too: a flush that takes a second says nothing, and
    # a send that is refused for it (SYSTEM_BUSY) fails a test that has nothing to do with it.
    "osPageCacheBusyTimeOutMills": "60000",
    # That its disk is nearly full says nothing, either, and deletes no messages.
    "diskMaxUsedSpaceRatio": "95",
    "cleanFileForciblyEnable": "false",
}


class RealServers:
    """Runs `name_servers` name servers and `brokers` brokers on free ports of this machine.

    A server keeps its port while it is stopped and when it is started again.
    """

    def __init__(
        self,
        name_servers: int,
        brokers: int,
        properties: Mapping[str, str],
        directory: Path | None,
    ) -> None:
        self._counts = (name_servers, brokers)
        self._properties = {**_FOR_TESTS, **properties}
        self._directory = directory
        self._temporary: Path | None = None
        self._ports: list[HeldPort] = []
        self.name_servers: list[NameServer] = []
        self.brokers: list[Broker] = []

    @property
    def namesrv(self) -> str:
        return ";".join(f"{_LOOPBACK}:{server.port}" for server in self.name_servers)

    @property
    def directory(self) -> Path:
        directory = self._directory or self._temporary
        assert directory is not None, "the cluster is not started"
        return directory

    async def start(self) -> None:
        """Start the name servers, then the brokers; return when all are registered."""
        if self._directory is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="cometmq-"))
        name_servers, brokers = self._counts
        try:
            for index in range(name_servers):
                self.name_servers.append(await self._new_name_server(index, self._free_port()))
            for index in range(brokers):
                # The neighbouring port is for a broker that is configured to have a VIP channel.
                port = self._free_port(-VIP_PORT_DISTANCE)
                self.brokers.append(await self._new_broker(index, port))
            if "namesrvAddr" not in self._properties:
                await all_registered(self)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all servers and remove the temporary directory. Idempotent."""
        for broker in self.brokers:
            await broker.close()
        for server in self.name_servers:
            await server.close()
        self.brokers.clear()
        self.name_servers.clear()
        while self._ports:
            self._ports.pop().close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    async def stop_broker(self, index: int = 0) -> None:
        """Stop one broker cleanly; `start_broker` brings it back."""
        await self.brokers[index].close()

    async def start_broker(self, index: int = 0) -> None:
        """Start a stopped broker again, with its store and on its port."""
        self.brokers[index] = await self._new_broker(index, self.brokers[index].port)

    async def stop_name_server(self, index: int = 0) -> None:
        await self.name_servers[index].close()

    async def start_name_server(self, index: int = 0) -> None:
        """Start a stopped name server again, on its port and with an empty route table."""
        port = self.name_servers[index].port
        self.name_servers[index] = await self._new_name_server(index, port)

    def _free_port(self, *neighbours: int) -> int:
        self._ports.append(HeldPort(neighbours))
        return self._ports[-1].port

    async def _new_name_server(self, index: int, port: int) -> NameServer:
        directory = self.directory / name_server_name(index)
        server = NameServer(
            NamesrvConfig(
                listen_port=port,
                bind_address=_LOOPBACK,
                kv_config_path=directory / "kvConfig.json",
                config_store_path=directory / "namesrv.properties",
                **self._metrics(),
            )
        )
        await server.start()
        return server

    def _metrics(self) -> dict[str, Any]:
        """Return the keys by which name servers tell metrics, too, where the brokers do."""
        if self._properties.get("metricsExporterType") != "PROM":
            return {}
        return {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": 0}

    async def _new_broker(self, index: int, port: int) -> Broker:
        name = broker_name(index)
        properties = {
            "brokerName": name,
            "brokerIP1": _LOOPBACK,
            "bindAddress": _LOOPBACK,
            "namesrvAddr": self.namesrv,
            "vipChannelEnable": "false",  # its port may be held for another server
            "storePathRootDir": str(self.directory / name),
            "metricsPromExporterPort": "0",
            **self._properties,
            "listenPort": str(port),
        }
        broker = Broker(*broker_configs(properties, source="properties"))
        await broker.start()
        return broker
