"""Run a whole cluster inside a test, in real time or in virtual time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast

from cometmq.errors import ClientStateError, CometMQError, ConfigError, IllegalArgumentError
from cometmq.remoting.credentials import Credentials
from cometmq.runtime.portal import LoopThread
from cometmq.runtime.surroundings import current
from cometmq.runtime.tasks import TaskOwner
from cometmq.testing.accounts import ADMINISTRATOR, Account
from cometmq.testing.assertions import Assertions
from cometmq.testing.cluster_faults import ClusterFaults
from cometmq.testing.faults import (
    FAULTS,
    MAIN,
    Fault,
    FaultError,
    NodeName,
    Nodes,
    check_fault,
    fault,
)
from cometmq.testing.real_servers import RealServers
from cometmq.testing.servers import ClusterPlan, Servers, name_server_name
from cometmq.testing.virtual.errors import DeadlockError
from cometmq.tls.contexts import Tls

if TYPE_CHECKING:
    from cometmq.broker.server import Broker
    from cometmq.namesrv.server import NameServer
    from cometmq.testing.virtual.node import Node
    from cometmq.testing.virtual.servers import VirtualServers
    from cometmq.testing.virtual.world import World

T = TypeVar("T")

_VIRTUAL_TIME = 'make the cluster with Cluster(clock="virtual")'


def _from_environment() -> dict[str, str]:
    text = os.environ.get("COMETMQ_TEST_PROPERTIES", "")
    entries = [entry.strip() for entry in text.split(",")]
    if wrong := [entry for entry in entries if entry and "=" not in entry]:
        raise ConfigError(
            f"COMETMQ_TEST_PROPERTIES has {wrong[0]!r}, which is no key=value; give key=value,key=value"
        )
    return dict(entry.split("=", 1) for entry in entries if entry)


class Cluster(Assertions, ClusterFaults):
    """Runs `name_servers` name servers and `brokers` masters, named `broker-a`, `broker-b`, …

    Each master has `slaves` slaves on nodes named `broker-a-slave-1`, …, with the master's
    brokerName. `master_role` is ASYNC_MASTER or SYNC_MASTER. `promote` and `demote` change roles.

    `properties` are entries of every broker's configuration, under RocketMQ's keys; with
    metricsExporterType=PROM the name servers serve metrics, too, each on a free port.
    `node_properties` are entries for one node's broker, by the node's name, and
    `namesrv_properties` for every name server.

    With `accounts` the brokers have access control (ACL 1.0): they serve only requests that one of
    these accounts has signed and may send. The calls of this class go on working, by an account of
    the cluster's own, `administrator`.

    With `tls=True`, in real time only, all servers and their slaves talk TLS and refuse plain
    connections, by certificates that are made beneath the directory (which needs the extra
    `certificates`); `tls` has the settings for clients. `properties` may change that, as by
    `tls.server.mode=permissive`.

    In real time (the default) the servers listen on free ports of this machine, and a server keeps
    its port while it is stopped and when it is started again. With `directory` the stores lie there
    and stay after the end; else they are temporary. In `with`, the cluster runs on a loop thread of
    its own; in `async with`, on the running loop.

    With `clock="virtual"` the cluster and its clients run in one thread, on a loop whose time jumps
    to the next timer when nothing is left to do, with connections and disks in memory. A delay of
    two hours takes milliseconds, and all that happens depends on `seed` only. Clients of
    `cometmq.aio` run there unchanged. Write either of these:

        with Cluster(clock="virtual", seed=7) as cluster:
            cluster.run(main(cluster))

        async def main():
            async with Cluster(clock="virtual") as cluster: ...
        cometmq.testing.run(main(), seed=7)

    In virtual time each server is a node with an address, clocks and a disk of its own; `nodes` has
    their names. `node` makes nodes for clients. Every fault is a method; see `ClusterFaults`.

    The environment variable COMETMQ_TEST_PROPERTIES (`key=value,key=value`) adds entries, which
    `properties` override. So a whole test suite can run with other settings, such as
    `transientStorePoolEnable=true`.

    Inside `with`, call the coroutines of this class by `call`, as in
    `cluster.call("restart_broker", 0)`.
    """

    def __init__(
        self,
        *,
        clock: Literal["real", "virtual"] = "real",
        seed: int | None = None,
        name_servers: int = 1,
        brokers: int = 1,
        slaves: int = 0,
        master_role: str = "ASYNC_MASTER",
        properties: Mapping[str, str] | None = None,
        node_properties: Mapping[str, Mapping[str, str]] | None = None,
        accounts: Iterable[Account] = (),
        namesrv_properties: Mapping[str, str] | None = None,
        directory: Path | None = None,
        tls: bool = False,
    ) -> None:
        plan = ClusterPlan(
            name_servers,
            brokers,
            slaves,
            master_role,
            {**_from_environment(), **(properties or {})},
            node_properties or {},
            tuple(accounts),
            namesrv_properties or {},
            tls,
        )
        plan.check()
        if clock not in ("real", "virtual"):
            raise ValueError(f'clock={clock!r} does not fit, it is "real" or "virtual"')
        if clock == "real" and seed is not None:
            raise ValueError(f"seed={seed} has no meaning in real time; {_VIRTUAL_TIME}")
        if clock == "virtual" and directory is not None:
            raise ValueError(
                f"directory={directory} has no meaning in virtual time, where disks are in memory"
            )
        if clock == "virtual" and tls:
            raise ValueError(
                "tls=True has no meaning in virtual time, where no connection is encrypted"
            )
        self._plan = plan
        self._is_virtual = clock == "virtual"
        self._seed = seed
        self._directory = directory
        self._servers: Servers | None = None
        self._thread: LoopThread | None = None
        self._world: World | None = None
        self._client_nodes: list[str] = []

    # The servers

    @property
    def administrator(self) -> Credentials:
        """The account that may do everything at brokers with `accounts`, for `admin` clients."""
        return ADMINISTRATOR.credentials

    @property
    def _asks_as(self) -> Credentials | None:
        return self.administrator if self._plan.accounts else None

    @property
    def namesrv(self) -> str:
        """The name servers' addresses in one text, as clients take it."""
        return self._started().namesrv

    @property
    def tls(self) -> Tls | None:
        """The settings with which clients connect, None for a cluster without `tls=True`."""
        certificates = getattr(self._started(), "certificates", None)
        if certificates is None:
            return None
        return Tls(
            ca_file=str(certificates.authority),
            cert_file=str(certificates.client),
            key_file=str(certificates.client_key),
        )

    @property
    def name_servers(self) -> list[NameServer]:
        """The name servers; one that was stopped or killed stays here until it is started again."""
        return cast("list[NameServer]", self._servers_of(self._plan.name_server_names()))

    @property
    def brokers(self) -> list[Broker]:
        """The brokers of the nodes that began as masters; one that was stopped or killed stays here
        until it is started again.
        """
        return cast("list[Broker]", self._servers_of(self._plan.master_names()))

    @property
    def slaves(self) -> list[Broker]:
        """The brokers of the nodes that began as slaves, as `brokers`; see `nodes.slaves`."""
        return cast("list[Broker]", self._servers_of(self._plan.slave_names()))

    def broker(self, node: str) -> Broker:
        """Return the broker of a node by the node's name, whatever its role is now."""
        return cast("Broker", self._servers_of([self._broker_node(node)])[0])

    def _servers_of(self, names: Iterable[str]) -> list[Broker | NameServer]:
        servers = {} if self._servers is None else self._servers.servers
        return [servers[name] for name in names if name in servers]

    @property
    def directory(self) -> Path:
        """Where the stores lie, one directory per broker name."""
        return self._started().directory

    @property
    def nodes(self) -> Nodes:
        """The names of the nodes: name servers, brokers, slaves, and those that `node` made.

        `main` is not among them. A node keeps its name when its broker gets another role.
        """
        return Nodes(
            self._plan.name_server_names(),
            self._plan.master_names(),
            list(self._client_nodes),
            self._plan.slave_names(),
        )

    # In virtual time

    @property
    def world(self) -> World:
        """The nodes, the network and the history of a cluster in virtual time."""
        return self._virtual.world

    def node(self, name: str) -> Node:
        """Return the node of that name, in virtual time; make one for clients if there is none.

        Clients and tasks that are made inside `with cluster.node("app-1"):`, or by a coroutine that
        its `run_in` runs, belong to that node: clients there have its address, and faults can name
        it.
        """
        node = self._virtual.node(name)
        if name not in (*self.nodes.all(), MAIN):
            self._client_nodes.append(name)
        return node

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the cluster's own loop, inside `with`; return its result."""
        if self._world is not None:
            return self._world.run(main)
        if self._thread is not None:
            return self._thread.call(main)
        main.close()
        raise ClientStateError(
            "run() is for a cluster in `with`; in `async with` await your coroutine"
        )

    async def inject(self, fault: Fault) -> None:
        """Have a fault happen now, whatever its `at_s`. Raises FaultError if it cannot."""
        check_fault(fault, self.nodes)
        happened = getattr(self, fault.name)(**fault.args)
        if asyncio.iscoroutine(happened):
            await happened

    async def inject_all(self, faults: Iterable[Fault]) -> None:
        """Have each fault happen at its time, counted from now; return after the last.

        A node that cannot be restarted, because of its disk for example, stays down, and the
        history says why. Raises FaultError before the first fault if one of them cannot happen.
        """
        schedule = sorted(faults, key=lambda each: each.at_s)
        for each in schedule:
            check_fault(each, self.nodes)
        world = self.world
        began_s = world.loop.now_s
        faults_under_way = TaskOwner("faults")
        try:
            happening = []
            for each in schedule:
                await asyncio.sleep(max(0.0, began_s + each.at_s - world.loop.now_s))
                # A restart takes its time, and the next faults do not wait for it.
                happening.append(faults_under_way.spawn(self._inject_anyway(each), each.name))
            await asyncio.gather(*happening)
        finally:
            await faults_under_way.close()

    async def _inject_anyway(self, fault: Fault) -> None:
        try:
            await self.inject(fault)
        except CometMQError as error:
            self.world.record(f"{fault.name} failed: {error}", fault.args.get("node"))

    def fault_begins(self, name: str, args: Mapping[str, Any]) -> None:
        """Refuse the fault if the cluster cannot have any now; else write it to the history."""
        if not self._is_virtual:
            if FAULTS[name].in_real_time:
                return
            raise FaultError(f"{name}: faults are for virtual time; {_VIRTUAL_TIME}")
        text = ", ".join(f"{key}={value!r}" for key, value in args.items())
        self._virtual.world.record(f"{name}({text})", args.get("node"))

    def is_running(self, name: str) -> bool:
        """Say whether a server is started, and neither stopped nor killed; it may be paused. For a
        cluster in virtual time.
        """
        return self._virtual.is_running(name)

    @property
    def _virtual(self) -> VirtualServers:
        from cometmq.testing.virtual.servers import VirtualServers

        servers = self._started()
        if not isinstance(servers, VirtualServers):
            raise ClientStateError(f"this cluster runs in real time; {_VIRTUAL_TIME}")
        return servers

    # Start and stop

    async def start(self) -> None:
        """Start the name servers, then the brokers; return when all are registered."""
        self._servers = servers = self._new_servers()
        try:
            await servers.start()
        except BaseException:
            self._servers = None
            raise

    def _new_servers(self) -> Servers:
        if not self._is_virtual:
            if current().is_virtual:
                raise ClientStateError(
                    f"a cluster in real time cannot run in virtual time; {_VIRTUAL_TIME}"
                )
            return RealServers(self._plan, self._directory)
        from cometmq.testing.virtual.servers import VirtualServers
        from cometmq.testing.virtual.world import World

        world = World.current()
        if name_server_name(0) in world.nodes:
            raise ClientStateError(
                "this virtual world has a cluster already, and has room for one; give that one more "
                "brokers"
            )
        return VirtualServers(world, self._plan)

    def _started(self) -> Servers:
        if self._servers is None:
            raise ClientStateError(
                "the cluster is not started; use it inside `with` or `async with`, or await start()"
            )
        return self._servers

    async def stop(self) -> None:
        """Stop all servers and remove the temporary directory. Idempotent."""
        if self._servers is not None:
            await self._servers.stop()

    async def stop_broker(self, broker: int | str = 0) -> None:
        """Stop one broker cleanly, by its index in `brokers` or the name of its node.

        `start_broker` brings it back.
        """
        await self._started().stop_server(self._broker_node(broker))

    async def start_broker(self, broker: int | str = 0) -> None:
        """Start a stopped broker again, with its store and on its ports."""
        await self._started().start_server(self._broker_node(broker))

    async def restart_broker(self, broker: int | str = 0) -> None:
        """Stop a broker cleanly and start it again."""
        await self.stop_broker(broker)
        await self.start_broker(broker)

    @fault(in_real_time=True)
    async def promote(self, node: NodeName) -> None:
        """Make a slave the master of its group, as an operator does by hand.

        It is stopped, gets the cluster's `master_role` and brokerId 0, and starts. Nobody stops the
        former master: one that still runs, or comes back before `demote`, is a second master.
        """
        self._started().places.promote(self._broker_node(node))
        await self.restart_broker(node)

    @fault(in_real_time=True)
    async def demote(self, node: NodeName) -> None:
        """Start a former master as a slave of its group, with the lowest brokerId that is free.

        It is stopped first if it runs. A slave stays what it is.
        """
        self._started().places.demote(self._broker_node(node))
        await self.restart_broker(node)

    def _broker_node(self, broker: int | str) -> str:
        """Return the name of a broker's node. Raises IllegalArgumentError if there is none."""
        masters = self._plan.master_names()
        if isinstance(broker, int):
            return masters[broker]
        if broker not in (known := [*masters, *self._plan.slave_names()]):
            raise IllegalArgumentError(
                f"{broker!r} is no broker of this cluster; its brokers are {', '.join(known)}"
            )
        return broker

    async def stop_name_server(self, index: int = 0) -> None:
        """Stop one name server cleanly; `start_name_server` brings it back."""
        await self._started().stop_server(self._plan.name_server_names()[index])

    async def start_name_server(self, index: int = 0) -> None:
        """Start a stopped name server again, on its port and with an empty route table."""
        await self._started().start_server(self._plan.name_server_names()[index])

    async def restart_name_server(self, index: int = 0) -> None:
        """Stop a name server cleanly and start it again."""
        await self.stop_name_server(index)
        await self.start_name_server(index)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Run one of the coroutines of this class by name, inside `with`."""
        if self._thread is None and self._world is None:
            raise ClientStateError(
                "the cluster runs on your own loop; await its methods instead of using call()"
            )
        return self.run(getattr(self, method)(*args, **kwargs))

    def __enter__(self) -> Self:
        self._check_no_loop_runs()
        if self._is_virtual:
            from cometmq.testing.virtual.world import World

            self._world = World(self._seed or 0)
        else:
            self._thread = LoopThread("cometmq-cluster")
            self._thread.start()
        try:
            self.run(self.start())
        except BaseException as error:
            self._end(error)
            raise
        return self

    def _check_no_loop_runs(self) -> None:
        """Refuse a call that would have to wait for a second loop in the thread of the first."""
        if self._is_virtual and asyncio._get_running_loop() is not None:  # noqa: SLF001 - it asks
            raise ClientStateError(
                '`with Cluster(clock="virtual")` runs a loop of its own, and here runs one already; '
                "use it where none runs, or one cluster for both"
            )
        if not self._is_virtual and current().is_virtual:
            raise ClientStateError(
                f"a cluster in real time cannot run in virtual time; {_VIRTUAL_TIME}"
            )

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        __tracebackhide__ = True  # pytest shows the message, not these lines
        if isinstance(error, DeadlockError):
            self._end(
                error
            )  # what kept the time from going on would also keep the servers from stopping
            return
        try:
            self.run(self.stop())
        except BaseException as stop_error:
            self._end(error or stop_error)
            raise
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """End the cluster's own loop; without an `error`, report what is left behind on it."""
        __tracebackhide__ = True
        if self._thread is not None:
            self._thread.stop()
            self._thread = None
        if self._world is not None:
            ended, self._world = self._world, None
            ended.__exit__(None, error, None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self.stop())
