"""Has workloads in which messages of a key, or of a queue, are consumed in their order."""

from __future__ import annotations

from collections import defaultdict
from random import Random

from tests.simulation import history as h
from tests.simulation.schedule import WorkloadPlan
from tests.simulation.workloads.recording import Sends
from tests.simulation.workloads.stage import Stage
from tests.simulation.workloads.workload import Client, Workload

from cometmq.aio import Producer


class Keyed(Workload):
    """Sends to the queue of a key, and consumes as it comes."""

    kind = "keyed"

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        super().__init__(plan, stage)
        self._numbers: defaultdict[str, int] = defaultdict(int)

    async def send(self, client: Client, producer: Producer, sends: Sends) -> None:
        # A key has one producer: between two there would be no order.
        key = f"{client.name}-{client.rng.randrange(5)}"
        number = self._numbers[key]
        self._numbers[key] += 1
        outgoing = self.outgoing(client.rng, order_key=key, order_number=number)
        await sends.send(producer, self.topic, outgoing, key=key)


class Orderly(Keyed):
    """Sends to the queue of a key, and consumes in order. A listener that fails holds its queue."""

    kind = "orderly"
    is_orderly = True

    def verdict(self, number: int, reconsume_times: int) -> h.Verdict:
        rng = Random(f"{self.plan.seed}:{number}")
        fails = rng.choice((0,) * 9 + (1,))
        return "success" if reconsume_times >= fails else "suspend"
