"""Run one name server: it answers requests and forgets silent brokers (Java: NamesrvController).

Name servers do not know of each other: brokers register with each, clients ask any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cometmq.access.choice import choose_rules
from cometmq.access.config import AccessConfig
from cometmq.access.control import AccessControl
from cometmq.access.doors import log_who_is_served, pages_protection, requests_protection
from cometmq.access.rules import Identity
from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.metrics import catalogue as metric_catalogue
from cometmq.metrics.catalogue import Server
from cometmq.metrics.exposition import Exposition
from cometmq.namesrv.admin_handlers import AdminHandlers
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.kv_config import KvConfig
from cometmq.namesrv.route_handlers import RouteHandlers
from cometmq.namesrv.route_table import RouteTable
from cometmq.protocol.fastjson import dialect as json_dialect
from cometmq.remoting.access import Access, AdminAccess
from cometmq.remoting.connection import Connection, ConnectionLimits
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.holdings import Holdings
from cometmq.remoting.http.request_meter import RequestMeter
from cometmq.remoting.server import ConnectionCounts, RemotingServer
from cometmq.runtime.clock import BlockingClock
from cometmq.runtime.configuration.config import Configuration
from cometmq.runtime.slices import run_slices
from cometmq.runtime.sockets.addresses import host_name, join_address
from cometmq.runtime.sockets.network import Network
from cometmq.runtime.state_files.state_writer import LOOK_PERIOD_S, StateWriter
from cometmq.runtime.surroundings import current
from cometmq.runtime.tasks import TaskOwner
from cometmq.runtime.workers import Workers
from cometmq.tls.server import server_tls

if TYPE_CHECKING:
    from cometmq.remoting.http.monitoring import Monitoring

log = get_logger(__name__)


class NameServer:
    """A name server for one loop, to be started and closed.

    `properties` are the entries of its configuration file. GET_NAMESRV_CONFIG shows all of them,
    also those that `config` does not know.
    """

    def __init__(
        self,
        config: NamesrvConfig | None = None,
        access: AccessConfig | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        clock: BlockingClock | None = None,
        network: Network | None = None,
        workers: Workers | None = None,
    ) -> None:
        around = current()
        clock, workers = clock or around.clock, workers or around.workers
        network = network or around.network
        self.config = config or NamesrvConfig()
        self.access = access or AccessConfig()
        self.table = RouteTable(self.config, clock)
        self._state = StateWriter(workers, clock)
        self._kv_config = KvConfig(self.config.kv_config_path, self._state)
        configuration = Configuration([self.config, self.access], properties)
        self._rules = choose_rules(
            self.access,
            clock=clock,
            files=around.files,
            workers=workers,
            directory=self.config.kv_config_path.parent,
            identity=lambda: Identity("", "", join_address(self.config.bind_address, self.port)),
        )
        self._control = None if self._rules is None else AccessControl(self._rules, clock)
        guard: Access = self._control or AdminAccess(self.config.admin_from)
        is_monitored = self.config.metrics_exporter_type == "PROM"
        meter = RequestMeter(clock.monotonic) if is_monitored else None
        self.handlers = handlers = Handlers(guard, meter)
        self._holdings = Holdings(self.config.max_bytes_in_flight)
        RouteHandlers(self.config, self.table, self._kv_config, guard, clock).register(handlers)
        AdminHandlers(
            self.config, self.table, self._kv_config, configuration, self._state
        ).register(handlers)
        self._tls = server_tls(self.config, clock)
        if self._rules is not None:
            self._rules.register(handlers)
        self._server = RemotingServer(
            self.config.bind_address,
            self.config.listen_port,
            handlers,
            limits=ConnectionLimits(
                max_frame_length=self.config.max_frame_length,
                unfinished_frame_s=self.config.unfinished_frame_timeout_seconds,
                max_kept_bytes=self.config.max_bytes_in_flight_per_connection,
                max_waiting_requests=self.config.max_waiting_requests_per_connection,
            ),
            counts=ConnectionCounts(
                self.config.max_connections, self.config.max_connections_per_address
            ),
            holdings=self._holdings,
            idle_timeout_s=self.config.server_channel_max_idle_time_seconds,
            backlog=self.config.server_socket_backlog,
            on_disconnect=self._disconnected,
            tls=self._tls,
            protection=requests_protection(self.access, "name server"),
            network=network,
            monotonic=clock.monotonic,
        )
        self._network = network
        self._clock = clock
        self._monitoring: Monitoring | None = None
        self._is_monitored = is_monitored
        self._tasks = TaskOwner("namesrv")
        self._closing = False
        self._is_releasing = False
        self.table.on_gone = self._begin_release

    @property
    def port(self) -> int:
        """The port that the server listens on, known after `start`."""
        return self._server.port

    @property
    def metrics_address(self) -> str | None:
        """The address of `/metrics`, `/health` and `/ready`; None where metrics are off."""
        return None if self._monitoring is None else self._monitoring.http.address

    @property
    def monitoring(self) -> Monitoring:
        """The service of metrics, which must be on."""
        assert self._monitoring is not None, "metricsExporterType is not PROM"
        return self._monitoring

    @property
    def holdings(self) -> Holdings:
        """The bytes that all connections hold, and their limit."""
        return self._server.holdings

    async def start(self) -> None:
        """Load the key-value configuration and listen. Raises ConfigError."""
        await asyncio.get_running_loop().run_in_executor(None, self._kv_config.load)
        if self._tls is not None:
            await self._tls.load()
        if self._rules is not None:
            await self._rules.open()
            self._rules.start(self._tasks)
        await self._server.start()
        if self._tls is not None:
            self._tls.start(self._tasks)
        if self._is_monitored:
            try:
                await self._start_monitoring()
            except ConfigError:
                await self._server.close()
                raise
        period_s = self.config.scan_not_active_broker_interval / 1000
        self._tasks.every(period_s, self.scan, "scan")
        self._tasks.every(LOOK_PERIOD_S, self._state.look, "look-at-state-files", of_outside=True)
        self._tasks.spawn(asyncio.to_thread(json_dialect.prepare), "prepare-json-dialect")
        log_who_is_served(self.access, "name server", self.config.bind_address, self.port)
        log.info("name server listens", address=self.config.bind_address, port=self.port)

    async def close(self) -> None:
        """Stop listening and close every connection. Idempotent."""
        self._closing = True
        if self._monitoring is not None:
            self._monitoring.state = lambda: "the name server is stopping"
        await self._tasks.close()
        await self._server.close()
        if self._monitoring is not None:
            await self._monitoring.close()
        if self._rules is not None:
            await self._rules.close()
        self._state.close()

    async def _start_monitoring(self) -> None:
        # Where metrics are off, a start does without the parser of HTTP.
        from cometmq.remoting.http.monitoring import Monitoring

        config = self.config
        host = config.metrics_prom_exporter_host.strip() or config.bind_address
        self._monitoring = monitoring = Monitoring(
            host,
            config.metrics_prom_exporter_port,
            base={
                "cluster": "",
                "node_type": Server.NAMESRV.value,
                "node_id": f"{host_name()}:{self.port}",
            },
            clock=self._clock,
            handlers=self.handlers,
            holdings=self._holdings,
            connection_count=lambda: self._server.open_count,
            protection=pages_protection(self.access),
            network=self._network,
        )
        waits_until_s = self._clock.monotonic() + (
            config.wait_seconds_for_service if config.need_wait_for_service else 0
        )

        def ready() -> str:
            if self._clock.monotonic() < waits_until_s:
                return "the name server waits for its brokers, needWaitForService is true"
            return ""

        monitoring.collectors.append(self._collect)
        if self._control is not None:
            monitoring.collectors.append(self._control.collect)
        if self._tls is not None:
            monitoring.collectors.append(self._tls.collect)
        await monitoring.start()
        monitoring.state = ready

    def _collect(self, out: Exposition) -> Iterator[None]:
        live = self.table.live()
        out.one(metric_catalogue.REGISTERED_BROKERS, len(live))
        out.one(metric_catalogue.ROUTED_TOPICS, self.table.topic_count)
        out.one(metric_catalogue.BROKER_SILENT, self.table.longest_silence_ms() / 1000)
        yield

    async def scan(self) -> None:
        """Drop the brokers that were silent for too long, and close their connections."""
        await run_slices(self._expire())

    def _expire(self) -> Iterator[None]:
        for live in self.table.expire():
            live.link.close()
            log.warning(
                "broker expired",
                broker=live.broker_name,
                broker_id=live.broker_id,
                address=live.key.address,
                timeout_ms=live.timeout_ms,
            )
            yield

    def _begin_release(self) -> None:
        """Have what brokers that are gone have served forgotten beside other requests."""
        if not self._is_releasing and not self._tasks.is_closed:
            self._is_releasing = True
            self._tasks.spawn(self._release(), "release")

    async def _release(self) -> None:
        await run_slices(self.table.release())
        self._is_releasing = False

    def _disconnected(self, connection: Connection) -> None:
        for live in self.table.link_closed(connection):
            if self._closing:
                continue
            log.warning(
                "broker gone: its connection closed",
                broker=live.broker_name,
                broker_id=live.broker_id,
                address=live.key.address,
            )
