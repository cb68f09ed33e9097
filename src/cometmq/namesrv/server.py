"""Runs one name server: it answers requests and forgets silent brokers (Java: NamesrvController).

Name servers do not know of each other: brokers register with each, clients ask any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from cometmq.namesrv.admin_handlers import AdminHandlers
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.kv_config import KvConfig
from cometmq.namesrv.route_handlers import RouteHandlers
from cometmq.namesrv.route_table import RouteTable
from cometmq.protocol import json_dialect
from cometmq.remoting.access import AdminAccess
from cometmq.remoting.connection import Connection, ConnectionLimits
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.holdings import Holdings
from cometmq.remoting.server import RemotingServer
from cometmq.runtime.clock import SYSTEM_CLOCK, BlockingClock
from cometmq.runtime.config import Configuration
from cometmq.runtime.network import TCP_NETWORK, Network
from cometmq.runtime.state_writer import StateWriter
from cometmq.runtime.tasks import TaskOwner
from cometmq.runtime.workers import THREADS, Workers

log = structlog.get_logger(__name__)


class NameServer:
    """A name server for one loop, to be started and closed.

    `properties` are the entries of its configuration file. GET_NAMESRV_CONFIG shows all of them,
    also those that `config` does not know.
    """

    def __init__(
        self,
        config: NamesrvConfig | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        clock: BlockingClock = SYSTEM_CLOCK,
        network: Network = TCP_NETWORK,
        workers: Workers = THREADS,
    ) -> None:
        self.config = config or NamesrvConfig()
        self.table = RouteTable(self.config, clock)
        self._state = StateWriter(workers, clock)
        self._kv_config = KvConfig(self.config.kv_config_path, self._state)
        configuration = Configuration([self.config], properties)
        access = AdminAccess(self.config.admin_from)
        self.handlers = handlers = Handlers(access)
        RouteHandlers(self.config, self.table, self._kv_config, access, clock).register(handlers)
        AdminHandlers(
            self.config, self.table, self._kv_config, configuration, self._state
        ).register(handlers)
        self._server = RemotingServer(
            self.config.bind_address,
            self.config.listen_port,
            handlers,
            limits=ConnectionLimits(
                unfinished_frame_s=self.config.unfinished_frame_timeout_seconds
            ),
            holdings=Holdings(self.config.max_bytes_in_flight),
            idle_timeout_s=self.config.server_channel_max_idle_time_seconds,
            backlog=self.config.server_socket_backlog,
            on_disconnect=self._disconnected,
            network=network,
        )
        self._tasks = TaskOwner("namesrv")
        self._closing = False

    @property
    def port(self) -> int:
        """The port that the server listens on, known after `start`."""
        return self._server.port

    async def start(self) -> None:
        """Load the key-value configuration and listen. Raises ConfigError."""
        await asyncio.get_running_loop().run_in_executor(None, self._kv_config.load)
        await self._server.start()
        period_s = self.config.scan_not_active_broker_interval / 1000
        self._tasks.every(period_s, self.scan, "scan")
        self._tasks.spawn(asyncio.to_thread(json_dialect.prepare), "prepare-json-dialect")
        log.info("name server listens", address=self.config.bind_address, port=self.port)

    async def close(self) -> None:
        """Stop listening and close every connection. Idempotent."""
        self._closing = True
        await self._tasks.close()
        await self._server.close()
        self._state.close()

    def scan(self) -> None:
        """Drop the brokers that were silent for too long, and close their connections."""
        for live in self.table.expire():
            log.warning(
                "broker expired",
                broker=live.broker_name,
                broker_id=live.broker_id,
                address=live.key.address,
                timeout_ms=live.timeout_ms,
            )
            live.link.close()

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
