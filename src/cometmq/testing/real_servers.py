"""Run a cluster's servers in this process, over real sockets and real files."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from functools import partial
from pathlib import Path

from cometmq.broker.config import broker_configs
from cometmq.broker.server import VIP_PORT_DISTANCE, Broker
from cometmq.namesrv.config import namesrv_configs
from cometmq.namesrv.server import NameServer
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.state_files.files import SYSTEM_FILES
from cometmq.testing.accounts import access_properties
from cometmq.testing.ports import HeldPort
from cometmq.testing.servers import (
    HA_PORT_DISTANCE,
    BrokerPlaces,
    ClusterPlan,
    all_registered,
)
from cometmq.tls.authority import Certificates, make_certificates

_LOOPBACK = "127.0.0.1"
_FOR_TESTS = {
    # Few tests fill a file of a gigabyte, and preallocating one would make each test slow.
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    # A machine that runs tests is busy with other things, too: a flush that takes a second is no fault,
    # and a send that is refused for it (SYSTEM_BUSY) would fail an unrelated test.
    "osPageCacheBusyTimeOutMills": "60000",
    # A nearly full disk is no fault either, and must not delete messages.
    "diskMaxUsedSpaceRatio": "95",
    "cleanFileForciblyEnable": "false",
}


class RealServers:
    """Runs the servers of a plan on free ports of this machine.

    A server keeps its ports while it is stopped and when it is started again.
    """

    def __init__(self, plan: ClusterPlan, directory: Path | None) -> None:
        self._plan = plan
        self._directory = directory
        self._temporary: Path | None = None
        self.certificates: Certificates | None = None
        self._tls: dict[str, str] = {}
        self._ports: dict[str, HeldPort] = {}
        self.places = BrokerPlaces(plan)
        self.servers: dict[str, Broker | NameServer] = {}

    @property
    def namesrv(self) -> str:
        names = self._plan.name_server_names()
        return ";".join(f"{_LOOPBACK}:{self._ports[name].port}" for name in names)

    @property
    def directory(self) -> Path:
        directory = self._directory or self._temporary
        assert directory is not None, "the cluster is not started"
        return directory

    async def start(self) -> None:
        """Start the name servers, then the brokers; return when all are registered."""
        if self._directory is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="cometmq-"))
        names = self._plan.name_server_names()
        try:
            if self._plan.tls:
                await self._make_certificates()
            for name in names:
                self._ports[name] = HeldPort()
            for name in self.places.names():
                # The neighbours are for a VIP channel, if it is configured, and for replication.
                self._ports[name] = HeldPort((-VIP_PORT_DISTANCE, HA_PORT_DISTANCE))
            for name in [*names, *self.places.names()]:
                await self.start_server(name)
            if "namesrvAddr" not in self._plan.properties:
                await all_registered(self)
        except BaseException:
            await self.stop()
            raise

    async def _make_certificates(self) -> None:
        make = partial(
            make_certificates, self.directory / "tls", [_LOOPBACK, "localhost"], SYSTEM_CLOCK
        )
        self.certificates = await asyncio.get_running_loop().run_in_executor(None, make)
        self._tls = self.certificates.server_properties("enforcing")

    async def stop(self) -> None:
        """Stop all servers and remove the temporary directory. Idempotent."""
        for name in reversed(list(self.servers)):
            await self.stop_server(name)
        self.servers.clear()
        while self._ports:
            self._ports.popitem()[1].close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    async def stop_server(self, name: str) -> None:
        await self.servers[name].close()

    async def start_server(self, name: str) -> None:
        if name in self.places.names():
            self.servers[name] = await self._new_broker(name)
        else:
            self.servers[name] = await self._new_name_server(name)

    async def _new_name_server(self, name: str) -> NameServer:
        directory = self.directory / name
        properties = {
            "listenPort": str(self._ports[name].port),
            "bindAddress": _LOOPBACK,
            "kvConfigPath": str(directory / "kvConfig.json"),
            "configStorePath": str(directory / "namesrv.properties"),
            **self._metrics(),
            **self._tls,
            **self._plan.namesrv_properties,
        }
        server = NameServer(*namesrv_configs(properties, source="namesrv_properties"))
        await server.start()
        return server

    def _metrics(self) -> dict[str, str]:
        """Return the keys with which name servers serve metrics, too, if the brokers do."""
        if self._plan.properties.get("metricsExporterType") != "PROM":
            return {}
        return {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}

    async def _new_broker(self, name: str) -> Broker:
        port = self._ports[name].port
        defaults = {
            **_FOR_TESTS,
            "brokerIP1": _LOOPBACK,
            "bindAddress": _LOOPBACK,
            "namesrvAddr": self.namesrv,
            "vipChannelEnable": "false",  # its port may be held for another server
            "storePathRootDir": str(self.directory / name),
            "metricsPromExporterPort": "0",
            "haListenPort": str(port + HA_PORT_DISTANCE),
            **self._tls,
        }
        home = self.directory / "accounts" / name
        defaults |= access_properties(home, self._plan.accounts, SYSTEM_FILES)
        properties = {**self.places.properties(name, defaults), "listenPort": str(port)}
        broker = Broker(*broker_configs(properties, source="properties"))
        await broker.start()
        return broker
