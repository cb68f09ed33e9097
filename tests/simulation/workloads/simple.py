"""Has workloads whose members are simple consumers: they receive, and say of each message what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import Final

from tests.simulation import history as h
from tests.simulation.schedule import WorkloadPlan
from tests.simulation.workloads.ordered import Keyed
from tests.simulation.workloads.popped import LONGEST_S, Popped
from tests.simulation.workloads.pops import PopRecorder, broker_at
from tests.simulation.workloads.stage import Stage
from tests.simulation.workloads.workload import Client

from cometmq.aio import ReceivedMessage, SimpleConsumer
from cometmq.errors import CometMQError

# How often a member says again what no broker answered.
_TRIES: Final = 3


class Simple(Popped):
    """Has members that receive, work, acknowledge one by one or together, extend the time, and give back."""

    kind = "simple-consumer"

    async def pop(self, client: Client, closing: AsyncExitStack) -> None:
        """Begin to receive, one call or two at a time."""
        member = self.member(client, self.group)
        consumer = SimpleConsumer(
            self.group,
            namesrv=self.stage.namesrv,
            instance_name=f"{client.name}-{self.group}",
            ordered=self.in_order,
        )
        consumer.subscribe(self.topic, self.filters[self.group].expression)
        recorder = PopRecorder(self, client, member)
        recorder.broker_at = lambda address: broker_at(consumer, self.topic, address)
        consumer.add_hook(recorder)
        self.stage.record(
            h.MemberStarted(
                at_s=self.stage.at_s,
                node=client.name,
                member=member,
                group=self.group,
                topic=self.topic,
            )
        )
        closing.callback(self._member_stopped, client, self.group, clean=True)
        await self.start(client, consumer, closing)
        if client.leaves.is_set():
            return
        tasks = await closing.enter_async_context(asyncio.TaskGroup())
        for _ in range(client.rng.choice((1, 2))):
            tasks.create_task(_Receiver(self, client, consumer, recorder).run())


class SimpleInOrder(Simple, Keyed):
    """Has simple consumers that receive in order, and stop at a message that fails."""

    kind = "simple-consumer-in-order"
    is_orderly = True
    in_order = True

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        super().__init__(plan, stage)
        self.max_reconsume_times = 16  # nothing counts them: a queue waits for its first message

    def verdict(self, number: int, reconsume_times: int) -> h.Verdict:
        rng = Random(f"{self.plan.seed}:{number}")
        return "success" if reconsume_times >= rng.choice((0,) * 6 + (1, 2)) else "later"


class _Receiver:
    """Receives for one client, a call after the other."""

    def __init__(
        self, workload: Simple, client: Client, consumer: SimpleConsumer, recorder: PopRecorder
    ) -> None:
        self._workload = workload
        self._client = client
        self._consumer = consumer
        self._recorder = recorder
        self._rng = client.rng

    async def run(self) -> None:
        """Receive until the client leaves; go on after whatever faults do."""
        rng = self._rng
        while not self._client.leaves.is_set():
            try:
                received = await self._consumer.receive(
                    rng.choice((1, 2, 8, 32)),
                    invisible_ms=rng.choice((1_000, 3_000, 10_000, 30_000)),
                    wait_ms=rng.choice((0, 500, 5_000, 15_000)),
                )
            except CometMQError:
                await self._client.rest(rng.choice((0.1, 3)))
                continue
            await self._work_on(received)
            if not received or rng.random() < 0.3:
                await self._client.rest(rng.uniform(0.01, 3))

    async def _work_on(self, received: Sequence[ReceivedMessage]) -> None:
        """Consume messages one after the other, and say of each what became of it."""
        workload, stage, rng = self._workload, self._workload.stage, self._rng
        together = rng.random() < 0.4
        done: list[ReceivedMessage] = []
        for at, message in enumerate(received):
            if rng.random() < 0.1:
                await _said(partial(message.extend, int(LONGEST_S * 1000)), tries=1)
            await asyncio.sleep(rng.uniform(0, 2.0 if rng.random() < 0.05 else 0.05))
            if self._client.leaves.is_set() and rng.random() < 0.3:
                break  # it leaves with what it holds
            number = int(message.properties[h.MESSAGE])
            verdict = workload.verdict(number, message.reconsume_times)
            delivery = self._recorder.delivery_of(message)
            assert delivery is not None, "a simple consumer pops"
            stage.record(
                h.Consumed(
                    at_s=stage.at_s, node=self._client.name, delivery=delivery, verdict=verdict
                )
            )
            workload.judged(number, message.reconsume_times, verdict)
            if verdict == "success":
                done.append(message)
                if not together:
                    await _said(done.pop().ack)
                continue
            if rng.random() < 0.7:
                delay_ms = rng.choice((0, 500, 4_000))
                for each in received[at:] if workload.in_order else [message]:
                    await _said(partial(each.nack, delay_ms), tries=1)
            if workload.in_order:
                break
        # Acknowledgements of one turn of the loop go to their broker in one request.
        await asyncio.gather(*(_said(message.ack) for message in done))


async def _said(say: Callable[[], Awaitable[None]], *, tries: int = _TRIES) -> None:
    """Say to a broker what became of a message; give up when it does not answer."""
    for _ in range(tries):
        try:
            await say()
        except CometMQError:
            await asyncio.sleep(0.2)
        else:
            return
