"""Runs one schedule in virtual time, and has the checker judge what its clients and its disks say."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from tests.simulation import history as h
from tests.simulation.checker import check
from tests.simulation.evidence import StoreImage
from tests.simulation.invariants import INVARIANTS
from tests.simulation.replicas import Replicas
from tests.simulation.schedule import SETTLE_S, Schedule, generator
from tests.simulation.switching import Switching
from tests.simulation.workloads import WORKLOADS
from tests.simulation.workloads.operator import Operator
from tests.simulation.workloads.stage import BROKER_PORT, OPERATOR, Stage
from tests.simulation.workloads.workload import Workload

from cometmq.broker.config import broker_configs
from cometmq.errors import CometMQError
from cometmq.runtime import tasks
from cometmq.testing import FAULTS, Cluster, Fault
from cometmq.testing.virtual.errors import NodeKilledError
from cometmq.testing.virtual.handles import VirtualTask
from cometmq.testing.virtual.storage.disk import VirtualDisk

# A run ends all its faults, and lets everybody find each other again, before it looks at the end.
_CALM_S: Final = 150.0
# How often a run looks whether everything is done.
_LOOK_S: Final = 10.0
# How often it compares the logs of masters and slaves, besides before and after each fault.
_LOOK_AROUND_S: Final = 30.0

# How often slaves are tried in a run.
_TRIES: Final = 4
INTRUDERS: Final = "intruders"


class Figures(NamedTuple):
    """Counts what a run did."""

    cluster_seconds: float
    real_seconds: float
    events: int
    sent: int
    acknowledged: int
    delivered: int
    checks: int
    faults: Counter[str]


class Outcome(NamedTuple):
    """Is what became of a run. `failures` are texts, the invariant or the kind of error first."""

    schedule: Schedule
    history: h.History
    failures: list[str]
    figures: Figures

    @property
    def kinds(self) -> set[str]:
        """The failed checks, without the circumstances: a shorter schedule must fail in the same
        way.
        """
        return {failure.partition(":")[0] for failure in self.failures}


def run(schedule: Schedule) -> Outcome:
    """Run a schedule and judge it."""
    return Run(schedule).outcome()


class Run:
    """One run of a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.history = h.History()
        self.failures: list[str] = []
        self.stores: dict[str, StoreImage] = {}
        self._cluster = Cluster(
            clock="virtual",
            seed=schedule.seed,
            name_servers=schedule.cluster.name_servers,
            brokers=schedule.cluster.brokers,
            slaves=schedule.cluster.slaves,
            master_role=schedule.cluster.master_role,
            properties=schedule.cluster.properties,
            node_properties=dict.fromkeys(
                schedule.cluster.all_slave_names(), schedule.cluster.slave_properties
            ),
        )
        self._ended_s = 0.0

    def outcome(self) -> Outcome:
        began = time.perf_counter()
        with warnings.catch_warnings():
            # Nobody closes the clients of a node that is killed.
            warnings.simplefilter("ignore", ResourceWarning)
            with patch.object(tasks, "log", _TaskLog(self.failures)):
                self._run()
            gc.collect()
        if self.stores:
            self.failures += map(str, check(self.history, self.stores))
        return Outcome(
            self.schedule, self.history, self.failures, self._figures(time.perf_counter() - began)
        )

    def _run(self) -> None:
        try:
            with TemporaryDirectory() as directory, self._cluster as cluster:
                cluster.run(self._main(Path(directory)))
        except Exception as error:  # noqa: BLE001 - any error of a run is what it found
            self.failures.append(f"{type(error).__name__}: {_told(error)}")

    async def _main(self, directory: Path) -> None:
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        stage = Stage(self._cluster, self.history, directory)
        self._replicas = replicas = Replicas(self._cluster, stage)
        stage.acknowledged = replicas.look_at_copies
        workloads = [WORKLOADS[plan.kind](plan, stage) for plan in self.schedule.workloads]
        operator = Operator(stage, OPERATOR)
        if self.schedule.store is not None:
            await self._load(stage, Path(self.schedule.store))
        self._tell_brokers(stage)
        for workload in workloads:
            await self._prepare(workload, operator)
            for life in workload.lives:
                stage.node(life.name)  # faults may name it
        if self.schedule.cluster.slaves:
            await operator.insist(operator.make_topic(INTRUDERS, 1))
        stage.began_s = stage.at_s
        self._switching = Switching(self._cluster, stage, replicas, lambda: self._forget(workloads))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._inject(stage))
            for switch in self.schedule.switches:
                group.create_task(self._switching.run(switch))
            for lost in self.schedule.tables:
                group.create_task(self._switching.lose_tables(lost))
            if self.schedule.cluster.slaves:
                group.create_task(self._look_around(stage))
                group.create_task(self._try_slaves(stage, operator))
            for workload in workloads:
                group.create_task(workload.run())
        await stage.sleep_until(self.schedule.seconds)
        await self._calm(stage)
        is_live = self.schedule.promise == "liveness"
        if is_live:
            await self._settle(stage, workloads)
        for workload in workloads:
            await operator.attempt(operator.look(workload.topic, list(workload.filters)))
            await operator.attempt(operator.read(workload.topic))
        replicas.look_at_all()
        stage.record(h.RunEnded(at_s=stage.at_s, node=OPERATOR, live=is_live))
        self._ended_s = stage.at_s
        self.stores = self._images()

    # -- the parts of a run --

    async def _load(self, stage: Stage, store: Path) -> None:
        """Have the first broker go on with the files of a store directory, or of a slice of one."""
        name = self._cluster.nodes.brokers[0]
        await self._cluster.stop_broker(0)
        root = self._cluster.directory / name
        disk = self._cluster.node(name).disk
        disk.remove_tree(root)
        disk.load(store, root=root)
        await self._cluster.start_broker(0)
        stage.record(
            h.FaultInjected(at_s=stage.at_s, node=name, name="load_store", args={"node": name})
        )

    def _tell_brokers(self, stage: Stage) -> None:
        plan = self.schedule.cluster
        for name in self._cluster.nodes.all_brokers():
            master = name.partition("-slave-")[0]
            own = {"brokerRole": plan.master_role}
            if name != master:
                own = {"brokerRole": "SLAVE", "brokerId": "1", **plan.slave_properties}
            properties = {"brokerIP1": "10.0.0.1", **plan.properties, **own}
            broker, store, replication, _ = broker_configs(properties, source="properties")
            stage.record(
                h.BrokerConfigured(
                    at_s=stage.at_s,
                    node=OPERATOR,
                    broker=master,
                    server=name,
                    host=self._cluster.node(name).host,
                    role=replication.broker_role,  # type: ignore[arg-type]  # one of them
                    copies=max(replication.in_sync_replicas, 2) - 1,
                    flush="SYNC_FLUSH" if store.flush_disk_type == "SYNC_FLUSH" else "ASYNC_FLUSH",
                    transient_store_pool=store.uses_transient_pool,
                    delay_levels_ms=store.delay_levels_ms,
                    transaction_check_max=broker.transaction_check_max,
                    file_reserved_hours=store.file_reserved_time,
                )
            )

    async def _prepare(self, workload: Workload, operator: Operator) -> None:
        await operator.insist(operator.make_topic(workload.topic, workload.queues))
        stage = workload.stage
        for group, wanted in workload.filters.items():
            if workload.pops:
                await operator.insist(operator.make_group(group, workload.max_reconsume_times))
            stage.record(
                h.GroupConfigured(
                    at_s=stage.at_s,
                    node=OPERATOR,
                    group=group,
                    topic=workload.topic,
                    filter=wanted,
                    is_orderly=workload.is_orderly,
                    is_broadcasting=workload.is_broadcasting,
                    max_reconsume_times=workload.max_reconsume_times,
                    pops=workload.pops,
                )
            )

    async def _inject(self, stage: Stage) -> None:
        """Have the faults happen. A slow one, such as a restart, holds up no other."""
        async with asyncio.TaskGroup() as group:
            for fault in self.schedule.faults:
                await stage.sleep_until(fault.at_s)
                group.create_task(self._inject_one(stage, fault))

    async def _inject_one(self, stage: Stage, fault: Fault) -> None:
        node = str(fault.args.get("node", OPERATOR))
        if node in self._switching.away:
            return  # its operator has other plans with it
        broker = self._replicas.broker_of(node)
        if broker is not None:
            self._replicas.look(broker)
        if fault.name in ("power_off", "wipe"):
            self._replicas.torn.add(node)
        stage.record(h.FaultInjected(at_s=stage.at_s, node=node, name=fault.name, args=fault.args))
        if fault.name == "restart":
            self._switching.restarting.add(node)
        try:
            await self._cluster.inject(fault)
        except (CometMQError, NodeKilledError) as error:
            # A broker may not start on the disk that the faults have left; `_calm` tries again.
            stage.record(
                h.FaultInjected(
                    at_s=stage.at_s,
                    node=node,
                    name=f"{fault.name}-failed",
                    args={**fault.args, "error": f"{type(error).__name__}: {error}"},
                )
            )
        else:
            if fault.name == "restart":
                self._replicas.runs_again(node)
            if broker is not None:
                self._replicas.look(broker)
        finally:
            if fault.name == "restart":
                self._switching.restarting.discard(node)

    async def _look_around(self, stage: Stage) -> None:
        """Look at logs and tables now and then, as long as there are workloads.

        In some runs an operator then mends slaves that refuse.
        """
        rng = generator(self.schedule.seed, "slaves that are mended")
        chance = rng.choice((0.0, 0.1, 0.5))
        ends_s = max((each.start_s + each.seconds for each in self.schedule.workloads), default=0.0)
        while stage.elapsed_s < ends_s:
            self._replicas.look_at_all()
            for slave in self._replicas.refusing():
                if rng.random() < chance:
                    await self._switching.mend_slave(slave)
            await asyncio.sleep(_LOOK_AROUND_S)

    async def _try_slaves(self, stage: Stage, operator: Operator) -> None:
        """Read at slaves, and send to them what they have to refuse, at times that the seed draws."""
        rng = generator(self.schedule.seed, "slaves that are tried")
        spans = [(each.start_s, each.start_s + each.seconds) for each in self.schedule.workloads]
        for at_s in sorted(rng.uniform(*rng.choice(spans)) for _ in range(_TRIES if spans else 0)):
            await stage.sleep_until(at_s)
            broker = rng.choice(sorted(self._replicas.masters))
            slaves = [
                each
                for each in self._replicas.servers[broker]
                if each != self._replicas.masters[broker]
            ]
            address = f"{self._cluster.node(rng.choice(slaves)).host}:{BROKER_PORT}"
            topic = rng.choice(self.schedule.workloads).name
            await operator.attempt(operator.intrude(INTRUDERS, broker, address))
            await operator.attempt(operator.read(topic, slave=(broker, address)))

    def _forget(self, workloads: Sequence[Workload]) -> None:
        """Have workloads wait for no message that was in the log of a former master only."""
        present = {
            int(number)
            for master in self._replicas.masters.values()
            for record in self._replicas.store(master).records
            if (number := record.properties.get(h.MESSAGE, "")).isdecimal()
        }
        for workload in workloads:
            workload.acknowledged &= present | workload.finished
            workload.delivered &= present | workload.finished

    async def _calm(self, stage: Stage) -> None:
        """End all faults, and wait until clients had the time to notice."""
        nodes = self._cluster.nodes
        endings: list[tuple[str, dict[str, Any]]] = [("heal_all", {})]
        for name in nodes.all():
            endings.append(("resume", {"node": name}))
        for name in nodes.all_brokers():
            endings.append(("mend_disk", {"node": name}))
        for name in (*nodes.name_servers, *nodes.all_brokers()):
            if self._cluster.node(name).is_killed or self._has_failed(name):
                endings.append(("restart", {"node": name}))
        for name, args in endings:
            await self._inject_one(stage, Fault(stage.elapsed_s, name, args))
        # Two looks without a fault between them: what slaves copy now and then has come by the second.
        await asyncio.sleep(_CALM_S * 0.8)
        self._replicas.look_at_all()
        await asyncio.sleep(_CALM_S * 0.2)

    def _has_failed(self, name: str) -> bool:
        """Return whether a broker takes no messages until it is restarted, because its disk failed."""
        if name not in self._cluster.nodes.all_brokers():
            return False
        return self._cluster.broker(name).store.failure is not None

    async def _settle(self, stage: Stage, workloads: Sequence[Workload]) -> None:
        """Have somebody consume what is left, until nothing is or the time is over.

        All stay until the last workload needs nobody: a message whose producer got an error may still
        come, and its group must have a member then.
        """
        began_s = stage.elapsed_s
        until_s = began_s + SETTLE_S
        clients = [workload.settling(until_s) for workload in workloads]
        async with asyncio.TaskGroup() as group:
            for workload, client in zip(workloads, clients, strict=True):
                group.create_task(workload.stay(client))
            while stage.elapsed_s < until_s:
                await asyncio.sleep(_LOOK_S)
                stayed_s = stage.elapsed_s - began_s
                is_due = stage.elapsed_s >= self._switching.due_s
                if is_due and all(each.is_settled_after(stayed_s) for each in workloads):
                    break
            await asyncio.sleep(_LOOK_S)  # for the commits of what was consumed last
            for client in clients:
                client.leaves.set()

    def _images(self) -> dict[str, StoreImage]:
        """Take the files of the stores, as the brokers that run see them."""
        images = {}
        for name in self._cluster.nodes.all_brokers():
            node, root = self._cluster.node(name), self._cluster.directory / name
            with node.disk.at_peace():
                files = {
                    str(path.relative_to(root)): data for path, data in _files(node.disk, root)
                }
            images[name] = StoreImage(files=files, state="dead" if node.is_killed else "running")
        return images

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Note an error that nobody took: a task or a callback that failed in silence.

        Once a node is killed, the code that would have taken the errors of its tasks does not run any more.
        """
        task = context.get("future")
        if isinstance(task, VirtualTask) and task.node is not None and task.node.is_killed:
            return
        error = context.get("exception")
        what = _told(error) if isinstance(error, BaseException) else ""
        self.failures.append(f"unhandled: {context.get('message')} {what}")

    def _figures(self, real_seconds: float) -> Figures:
        kinds = Counter(type(event) for event in self.history.events)
        return Figures(
            self._ended_s,
            real_seconds,
            len(self.history),
            sum(len(event.messages) for event in self.history.of(h.SendStarted)),
            kinds[h.SendAcknowledged],
            kinds[h.Delivered],
            len(INVARIANTS),
            Counter(event.name for event in self.history.of(h.FaultInjected) if _strikes(event)),
        )


class _TaskLog:
    """Notes tasks of brokers and clients that ended by an error that nobody expects."""

    def __init__(self, failures: list[str]) -> None:
        self._failures = failures

    def error(self, event: str, *, task: str, exc_info: BaseException) -> None:
        if not isinstance(exc_info, (CometMQError, OSError, NodeKilledError)):
            self._failures.append(f"{event}: {task} {_told(exc_info)}")

    def exception(self, event: str, *, task: str) -> None:
        error = sys.exception()
        assert error is not None, "an exception is told where it is caught"
        self.error(event, task=task, exc_info=error)


def _strikes(event: h.FaultInjected) -> bool:
    """Say whether an event is a fault, and not the end of one."""
    kind = FAULTS.get(event.name)
    is_over = event.args.get("seconds") == 0 or event.args.get("rate") == 1
    return kind is not None and kind.draw is not None and not is_over


def _files(disk: VirtualDisk, directory: Path) -> Iterator[tuple[Path, bytes]]:
    for name in disk.names(directory):
        path = directory / name
        if disk.is_directory(path):
            yield from _files(disk, path)
        else:
            yield path, disk.read(path)


def _told(error: BaseException) -> str:
    """Format an error with the places that it came through."""
    return "".join(traceback.format_exception(error))
