"""The servers of `cometmq dev`: a name server, masters and their slaves, all on one loop.

They share one process because they are for trying things out: they start within a second, one
debugger sees all, and one core is enough. `cometmq broker --processes` runs brokers that use more.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.config import broker_configs
from cometmq.broker.operation.config_handlers import GivenConfig
from cometmq.broker.processes import STRIDE, check_root, check_single
from cometmq.broker.server import Broker
from cometmq.cli.dev.settings import NO_SETTINGS, DevSettings, properties_of
from cometmq.errors import ConfigError
from cometmq.namesrv.config import namesrv_configs
from cometmq.namesrv.server import NameServer
from cometmq.runtime.sockets.addresses import join_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cometmq.cli.dev.proxy import DevProxy
    from cometmq.tls.authority import Certificates

BROKER_NAME: Final = "dev"
_HIGHEST_PORT: Final = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class DevPlan:
    """Holds what to run, where, and on which ports; port 0 stands for free ones."""

    root: Path
    host: str
    port: int
    broker_port: int
    brokers: int = 1
    slaves: int = 0
    log_level: str = "info"
    # None serves no TLS.
    certificates: Certificates | None = None
    # Serve other machines, too, though there is no access control.
    open_to_all: bool = False
    settings: DevSettings = NO_SETTINGS


@dataclass(slots=True)
class Node:
    """A broker that runs, with its master if it is a slave."""

    broker: Broker
    master: Broker | None = None
    slaves: list[Node] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.broker.config.broker_name

    @property
    def role(self) -> str:
        broker_id = self.broker.config.broker_id
        return f"slave {broker_id}" if broker_id else "master"

    @property
    def gap(self) -> int:
        """The bytes of the master's log that are missing here; 0 on a master."""
        if self.master is None:
            return 0
        return max(0, self.master.store.commit_log.end - self.broker.store.commit_log.end)

    def trouble(self) -> str:
        """Return why the broker does not do all of its work, an empty text if it does."""
        slave = self.broker.slave
        if slave is not None and not slave.is_connected:
            return slave.reason or "it looks for its master"
        return (slave.reason if slave is not None else None) or self.broker.monitoring.state()

    def state(self) -> str:
        """Return one word or two for the state."""
        slave = self.broker.slave
        if slave is None:
            return "not ready" if self.trouble() else "serving"
        if not slave.is_connected:
            return "alone"
        limit = self.broker.replication.ha_max_gap_not_in_sync
        return "in step" if self.gap < limit else "behind"


class DevServers:
    """Runs the servers of a plan, and a proxy beside the first master; `masters` has the brokers once they are started."""

    def __init__(self, plan: DevPlan, proxy: DevProxy | None = None) -> None:
        self.plan = plan
        self.proxy = proxy
        self.masters: list[Node] = []
        self._running = AsyncExitStack()
        properties = {
            **plan.settings.of_name_server,
            **properties_of(
                listenPort=plan.port,
                bindAddress=plan.host,
                kvConfigPath=plan.root / "namesrv" / "kvConfig.json",
                configStorePath=plan.root / "namesrv" / "namesrv.properties",
                **_for_all(plan),
            ),
        }
        config, access = namesrv_configs(
            properties, source=plan.settings.source, file=plan.settings.file
        )
        self.namesrv: NameServer = NameServer(config, access, properties=properties)

    @property
    def namesrv_address(self) -> str:
        return join_address(self.plan.host, self.namesrv.port)

    def nodes(self) -> Iterator[Node]:
        """Yield each master with its slaves behind it."""
        for master in self.masters:
            yield master
            yield from master.slaves

    async def start(self) -> None:
        """Start the name server, then the masters, then the slaves.

        Raises ConfigError or StoreError, and then leaves nothing running.
        """
        plan = self.plan
        names = master_names(plan.brokers)
        _check_ports(plan)
        if plan.brokers > 1:
            check_root(plan.root, names)
        else:
            check_single(plan.root, BROKER_NAME)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.namesrv.close)
            await self.namesrv.start()
            for index, name in enumerate(names):
                root = plan.root / name if plan.brokers > 1 else plan.root
                self.masters.append(Node(await self._run(stack, name, root, index)))
            index = plan.brokers
            for node in self.masters:
                for broker_id in range(1, plan.slaves + 1):
                    root = plan.root / f"{node.name}-slave-{broker_id}"
                    slave = await self._run(stack, node.name, root, index, broker_id)
                    node.slaves.append(Node(slave, node.broker))
                    index += 1
            if self.proxy is not None:
                await self.proxy.start(self.masters[0].broker)
            self._running = stack.pop_all()

    async def _run(
        self, stack: AsyncExitStack, name: str, root: Path, index: int, broker_id: int = 0
    ) -> Broker:
        plan = self.plan
        properties = {
            **plan.settings.of_brokers,
            **properties_of(
                brokerName=name,
                brokerId=broker_id,
                brokerIP1=plan.host,
                bindAddress=plan.host,
                listenPort=plan.broker_port + STRIDE * index if plan.broker_port else 0,
                namesrvAddr=self.namesrv_address,
                storePathRootDir=root,
                metricsExporterType="PROM",
                metricsPromExporterPort=0,
                **_for_all(plan),
            ),
        }
        if broker_id:
            properties["brokerRole"] = "SLAVE"
        configs = broker_configs(properties, source=plan.settings.source, file=plan.settings.file)
        broker = Broker(*configs, given=GivenConfig(properties, None))
        await broker.start()
        stack.push_async_callback(broker.close)
        return broker

    async def close(self) -> None:
        """Stop all, the slaves first. Idempotent."""
        await self._running.aclose()


def master_names(count: int) -> list[str]:
    """Return the masters' names, as `cometmq broker --processes` would call them."""
    return [BROKER_NAME] if count == 1 else [f"{BROKER_NAME}-{index}" for index in range(count)]


def _for_all(plan: DevPlan) -> dict[str, Any]:
    """Return the settings that the plan makes for every server."""
    made: dict[str, Any] = {"logLevel": plan.log_level}
    if plan.open_to_all:
        made["protectedMode"] = False
    if plan.certificates is not None:
        files = plan.certificates
        # Their own connections stay plain, as do those of clients that know nothing of TLS.
        made |= {
            "tls.server.mode": "permissive",
            "tls.server.certPath": files.server,
            "tls.server.keyPath": files.server_key,
        }
    return made


def _check_ports(plan: DevPlan) -> None:
    last = plan.broker_port + STRIDE * (plan.brokers * (1 + plan.slaves) - 1) + 1
    if plan.broker_port and last > _HIGHEST_PORT:
        raise ConfigError(
            f"--broker-port {plan.broker_port} leaves no ports for all brokers: each takes the next "
            f"{STRIDE}, and the last port would be {last}; the highest is {_HIGHEST_PORT}"
        )
