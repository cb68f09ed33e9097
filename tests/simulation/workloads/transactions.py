"""Has a workload of transactions: committed, rolled back, or decided when a broker asks."""

from __future__ import annotations

from contextlib import AsyncExitStack
from random import Random
from typing import Any

from tests.simulation import history as h
from tests.simulation.schedule import WorkloadPlan
from tests.simulation.workloads.recording import Sends, message_of
from tests.simulation.workloads.stage import Stage
from tests.simulation.workloads.workload import Client, Workload

from cometmq.aio import Producer, TransactionProducer
from cometmq.model.message import Message, MessageExt
from cometmq.model.results import LocalTransactionState

_STATES: dict[h.Decision, LocalTransactionState] = {
    "commit": LocalTransactionState.COMMIT,
    "rollback": LocalTransactionState.ROLLBACK,
    "unknown": LocalTransactionState.UNKNOWN,
}


class _LocalPart:
    """Decides on the half messages that one client sent, and on those that it is asked about."""

    def __init__(self, workload: Transactions, node: str) -> None:
        self._workload = workload
        self._node = node

    async def execute(self, message: Message, _arg: Any) -> LocalTransactionState:
        return self._decide(message, is_check=False)

    async def check(self, message: MessageExt) -> LocalTransactionState:
        return self._decide(message, is_check=True)

    def _decide(self, message: Message, *, is_check: bool) -> LocalTransactionState:
        workload, stage = self._workload, self._workload.stage
        number = int(message.properties[h.MESSAGE])
        decision = workload.decide(number, is_check=is_check)
        stage.record(
            h.TransactionDecided(
                at_s=stage.at_s,
                node=self._node,
                send=workload.send_of[number],
                decision=decision,
                check=is_check,
            )
        )
        return _STATES[decision]


class Transactions(Workload):
    """Sends half messages. The verdict on each follows from its number: the same at every check."""

    kind = "transactions"
    # Half messages that are in doubt are asked for every 30 s, up to 4 times.
    settles_for_s = 300.0

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        super().__init__(plan, stage)
        self.send_of: dict[int, int] = {}
        self._committed: set[int] = set()
        self._checks: dict[int, int] = {}

    def decide(self, number: int, *, is_check: bool) -> h.Decision:
        rng = Random(f"{self.plan.seed}:{number}")
        final: h.Decision = rng.choice(("commit", "commit", "rollback"))
        unknown = rng.choice((0, 0, 1, 3))  # how many answers say nothing
        if is_check:
            self._checks[number] = self._checks.get(number, 0) + 1
        if self._checks.get(number, 0) < unknown:
            return "unknown"
        if final == "commit":
            self._committed.add(number)
        return final

    def is_settled(self) -> bool:
        return self._committed & self.acknowledged | self.delivered <= self.finished

    async def producer(self, client: Client, closing: AsyncExitStack) -> Producer:
        producer = TransactionProducer(
            f"{self.plan.name}-producers",
            _LocalPart(self, client.name),
            namesrv=self.stage.namesrv,
            instance_name=f"{client.name}-producer",
            topics=[self.topic],
        )
        await self.start(client, producer, closing)
        return producer

    async def produce(self, client: Client, closing: AsyncExitStack) -> None:
        if not client.life.messages:
            await self.producer(client, closing)  # brokers ask it
        await super().produce(client, closing)

    async def send(self, client: Client, producer: Producer, sends: Sends) -> None:
        assert isinstance(producer, TransactionProducer)
        outgoing = self.outgoing(client.rng)
        number = self.send_of[outgoing.number] = self.stage.next_send()
        self.stage.record(
            h.SendStarted(
                at_s=self.stage.at_s,
                node=client.name,
                send=number,
                topic=self.topic,
                messages=(outgoing,),
                is_transaction=True,
            )
        )
        message = message_of(self.topic, outgoing)
        await sends.call(
            self.topic, [outgoing], lambda: producer.send_in_transaction(message), number=number
        )
