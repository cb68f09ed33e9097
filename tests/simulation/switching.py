"""Switches between masters and slaves by hand, as an operator does in a run, and brings masters back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.simulation import history as h
from tests.simulation.replicas import NEWS, Replicas
from tests.simulation.schedule import SwitchPlan, TablesPlan
from tests.simulation.workloads.delayed import LATE_S, LEVELS_S
from tests.simulation.workloads.recording import Sends, message_of
from tests.simulation.workloads.stage import BROKER_PORT, OPERATOR, Stage

from cometmq import LocalTransactionState, Message, MessageExt
from cometmq.aio import Producer, TransactionProducer
from cometmq.broker.config import broker_configs
from cometmq.errors import CometMQError
from cometmq.remoting.client import RemotingClient
from cometmq.replication.divergence import MasterLog, find_common
from cometmq.runtime.surroundings import current
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.offline.rejoin import OwnLog, plan_rejoin, rejoin
from cometmq.store.offline.store import open_offline
from cometmq.testing.cluster import Cluster
from cometmq.testing.virtual.errors import NodeKilledError

Step = Callable[[str], Any]
_NEWS_WITHIN_S: Final = 3.0


class _Hesitant:
    """Never decides on a transaction."""

    def __init__(self, stage: Stage, send_of: dict[int, int]) -> None:
        self._stage = stage
        self._send_of = send_of

    async def execute(self, message: Message, _arg: object) -> LocalTransactionState:
        return self._wait(message, is_check=False)

    async def check(self, message: MessageExt) -> LocalTransactionState:
        return self._wait(message, is_check=True)

    def _wait(self, message: Message, *, is_check: bool) -> LocalTransactionState:
        self._stage.record(
            h.TransactionDecided(
                at_s=self._stage.at_s,
                node=OPERATOR,
                send=self._send_of[int(message.properties[h.MESSAGE])],
                decision="unknown",
                check=is_check,
            )
        )
        return LocalTransactionState.UNKNOWN


class Switching:
    """Does what switches say. A former master is `away` until it is a slave: no fault may start it, since
    it would be a second master.
    """

    def __init__(
        self, cluster: Cluster, stage: Stage, replicas: Replicas, forgotten: Callable[[], None]
    ) -> None:
        self.away: set[str] = set()
        # Servers that a fault is restarting. One that is killed meanwhile starts nevertheless.
        self.restarting: set[str] = set()
        self._cluster = cluster
        self._stage = stage
        self._replicas = replicas
        # Is called when what a former master had alone is gone.
        self._forgotten = forgotten
        # When all delayed messages that a switch sends have come, in seconds of the run.
        self.due_s = 0.0

    async def run(self, plan: SwitchPlan) -> None:
        """End a master, promote a slave, and bring the former master back as a slave, if it is to."""
        stage, replicas = self._stage, self._replicas
        await stage.sleep_until(plan.at_s)
        former = replicas.masters[plan.broker]
        if self._is_taken(former):
            return  # a fault was quicker, and will start it again
        self.away.add(former)
        await self._send_news(plan)
        replicas.look(plan.broker, again=True)
        await self._end(plan, former)
        replicas.look(plan.broker)
        successor = replicas.successor(plan.broker)
        if plan.with_slave and successor is not None and not self._is_taken(successor):
            await self._step("kill", successor, self._cluster.kill)
        await asyncio.sleep(plan.after_s)
        if not plan.with_slave:
            successor = replicas.successor(plan.broker)
        if successor is None:
            self.away.discard(former)
            await self._step("restart", former, self._cluster.restart)
            replicas.runs_again(former)
            return
        if not await self._promote(plan.broker, former, successor):
            await self._call_off(plan.broker, former, successor)
            return
        await asyncio.sleep(plan.returns_after_s)
        await self._return(plan, former)

    def _is_taken(self, server: str) -> bool:
        return (
            server in self.away or server in self.restarting or self._cluster.node(server).is_killed
        )

    async def _end(self, plan: SwitchPlan, former: str) -> None:
        self._replicas.down.add(former)
        if plan.how == "stop":
            await self._step("stop", former, self._cluster.stop_broker)
        elif plan.how == "kill":
            await self._step("kill", former, self._cluster.kill)
        else:
            self._replicas.torn.add(former)
            await self._step("power_off", former, self._cluster.power_off)

    async def _promote(self, broker: str, former: str, successor: str) -> bool:
        stage, replicas = self._stage, self._replicas
        replicas.look(broker)
        ends = replicas.queue_ends(successor)
        changed = h.MasterChanged(
            at_s=stage.at_s, node=successor, broker=broker, server=successor, former=former
        )
        stage.record(changed)
        replicas.masters[broker] = successor
        self._forgotten()
        if not await self._step("promote", successor, self._cluster.promote):
            return False
        stage.record(
            h.MasterChanged(
                at_s=stage.at_s,
                node=successor,
                broker=broker,
                server=successor,
                former=former,
                queue_ends=ends,
                done=True,
            )
        )
        replicas.look_at_topics(broker, successor, has_begun=True)
        replicas.look(broker, again=True)
        return True

    async def _send_news(self, plan: SwitchPlan) -> None:
        """Send to topics that nobody knows yet, as fast as their brokers answer."""

        stage = self._stage
        sends = Sends(stage, OPERATOR, set())
        send_of: dict[int, int] = {}

        async def send_half(teller: TransactionProducer, topic: str) -> None:
            outgoing = h.Outgoing(number=stage.next_message(), body=b"half")
            number = send_of[outgoing.number] = stage.next_send()
            stage.record(
                h.SendStarted(
                    at_s=stage.at_s,
                    node=OPERATOR,
                    send=number,
                    topic=topic,
                    messages=(outgoing,),
                    is_transaction=True,
                )
            )
            message = message_of(topic, outgoing)
            await sends.call(
                topic, [outgoing], lambda: teller.send_in_transaction(message), number=number
            )

        async def send() -> None:
            hesitant = _Hesitant(stage, send_of)
            async with (
                Producer("newcomers", namesrv=stage.namesrv) as producer,
                TransactionProducer("hesitant", hesitant, namesrv=stage.namesrv) as teller,
            ):
                for number in range(plan.news):
                    topic = f"{NEWS}{plan.broker}-{number}"
                    if number % 4 == 3:
                        await send_half(teller, topic)
                        continue
                    level = 9 if number % 4 == 2 else 0
                    if level:
                        self.due_s = stage.elapsed_s + LEVELS_S[level] + LATE_S
                    for _ in range(1 + number % 3):
                        outgoing = h.Outgoing(
                            number=stage.next_message(), body=b"news", delay_level=level
                        )
                        await sends.send(producer, topic, outgoing)

        if not plan.news:
            return
        try:
            async with asyncio.timeout(_NEWS_WITHIN_S):
                await self._stage.node(OPERATOR).run_in(send())
        except (CometMQError, NodeKilledError, TimeoutError):
            pass  # what came before is in the log

    async def lose_tables(self, plan: TablesPlan) -> None:
        """Stop a master, take its tables of topics and groups from it, and start it."""
        await self._stage.sleep_until(plan.older_at_s)
        master = self._replicas.masters[plan.broker]
        older = {}
        if not self._cluster.node(master).is_killed:
            older = dict(self._tables_of(master))
        await self._stage.sleep_until(plan.at_s)
        if self._is_taken(master) or master != self._replicas.masters[plan.broker]:
            return
        self.away.add(master)
        self._replicas.down.add(master)
        await self._step("stop", master, self._cluster.stop_broker)

        def lose(node: str) -> None:
            disk = self._cluster.node(node).disk
            for path, _ in self._tables_of(node):
                disk.remove(path)
                if plan.lost == "older" and path in older:
                    disk.write(path, older[path])
                elif plan.lost == "empty":
                    # A file without a byte is damaged, and a broker does not start with it.
                    disk.write(path, b"{}")

        await self._step("lose_tables", master, lose)
        self.away.discard(master)
        if await self._step("restart", master, self._cluster.restart):
            self._replicas.runs_again(master)
            self._replicas.look_at_topics(plan.broker, master, has_begun=True)

    def _tables_of(self, server: str) -> Iterator[tuple[Path, bytes]]:
        disk = self._cluster.node(server).disk
        directory = self._cluster.directory / server / "config"
        with disk.at_peace():
            for name in disk.names(directory):
                if name.startswith(("topics.", "subscriptionGroup.")):
                    yield directory / name, disk.read(directory / name)

    async def _call_off(self, broker: str, former: str, successor: str) -> None:
        """Leave the former master what it was. A fault has started it again, and its successor refuses to
        be a second master; or the successor cannot start, and the operator starts the former one.
        """
        self._stage.record(
            h.MasterChanged(
                at_s=self._stage.at_s, node=former, broker=broker, server=former, former=successor
            )
        )
        self._replicas.masters[broker] = former
        self.away.discard(former)
        if self._cluster.is_running(former) or await self._step(
            "restart", former, self._cluster.restart
        ):
            self._replicas.runs_again(former)
        if await self._step("demote", successor, self._cluster.demote):
            self._replicas.runs_again(successor)

    async def _return(self, plan: SwitchPlan, former: str) -> None:
        if plan.returns == "never":
            return
        if plan.returns == "wiped":
            await self._step("wipe", former, self._cluster.wipe)
        elif plan.returns == "mended" and not await self._step("mend_store", former, self._mend):
            return
        self.away.discard(former)
        if await self._step("demote", former, self._cluster.demote):
            self._replicas.runs_again(former)

    async def mend_slave(self, slave: str) -> None:
        """Mend a slave that refuses its master's log: stop it, cut its log, start it."""
        if self._is_taken(slave):
            return
        self.away.add(slave)
        self._replicas.down.add(slave)
        await self._step("stop", slave, self._cluster.stop_broker)
        await self._step("mend_store", slave, self._mend)
        self.away.discard(slave)
        if await self._step("restart", slave, self._cluster.restart):
            self._replicas.runs_again(slave)

    async def _mend(self, former: str) -> None:
        """Cut off what the former master has and the new one has not, as `cometmq store rejoin` does."""
        broker = self._replicas.broker_of(former) or former
        master = self._cluster.node(self._replicas.masters[broker])
        node = self._cluster.node(former)
        _, config, *_ = broker_configs(
            {"storePathRootDir": str(self._cluster.directory / former), "brokerIP1": node.host},
            source="properties",
        )
        with self._replicas.cutting(former):
            await self._stage.node(OPERATOR).run_in(
                _rejoin(config, node.disk, f"{master.host}:{BROKER_PORT}")
            )

    async def _step(self, name: str, node: str, step: Step) -> bool:
        """Do one thing to a node; return whether it came to its end. Disks and faults may be against it."""
        stage = self._stage
        stage.record(h.FaultInjected(at_s=stage.at_s, node=node, name=name, args={"node": node}))
        try:
            done = step(node)
            if isinstance(done, Awaitable):
                await done
        except (CometMQError, NodeKilledError) as error:
            stage.record(
                h.FaultInjected(
                    at_s=stage.at_s,
                    node=node,
                    name=f"{name}-failed",
                    args={"node": node, "error": f"{type(error).__name__}: {error}"},
                )
            )
            return False
        return True


async def _rejoin(config: StoreConfig, disk: Disk, master: str) -> None:
    remoting = RemotingClient(network=current().network)
    try:
        with open_offline(config, disk) as store:
            log = OwnLog(store)
            common = await find_common(log, MasterLog(remoting, master), lambda *_: None)
            plan = plan_rejoin(store, log, common.offset, whole=common.whole)
        if not plan.is_empty:
            rejoin(plan, disk, clock=current().clock, master=master, progress=lambda _: None)
    finally:
        await remoting.close()
