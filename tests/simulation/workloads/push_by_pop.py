"""Has workloads whose members are push consumers of the mode "pop".

Their pops, acknowledgements and changes of times are read from their calls, so what the consumer does by itself (it
acknowledges in batches, hides for longer, gives back at a close) is judged as that of any client that pops.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from tests.simulation import history as h
from tests.simulation.schedule import WorkloadPlan
from tests.simulation.workloads.ordered import Keyed
from tests.simulation.workloads.popped import Popped
from tests.simulation.workloads.pops import PopRecorder, broker_at
from tests.simulation.workloads.recording import Listener
from tests.simulation.workloads.stage import Stage
from tests.simulation.workloads.workload import Client

from cometmq.model.message import MessageExt


class _PopListener(Listener):
    """Consumes what `recorder` has recorded as delivered. Messages that were pulled it records itself."""

    recorder: PopRecorder

    def _delivered(self, message: MessageExt) -> int:
        delivery = self.recorder.delivery_of(message)
        return super()._delivered(message) if delivery is None else delivery


class PushedByPop(Popped):
    """Has push consumers that pop. Listeners fail, and some work for longer than messages are hidden."""

    kind = "pushed-by-pop"
    always = 0.1
    # Messages are hidden for so long, and are hidden again while a listener works.
    invisible_ms: Final = 10_000

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        super().__init__(plan, stage)
        self.max_reconsume_times = self.rng.choice((1, 2, 16))

    def judged(self, number: int, reconsume_times: int, verdict: h.Verdict) -> None:
        super().judged(number, reconsume_times, verdict)
        self.due_s = max(self.due_s, self.stage.elapsed_s + self.invisible_ms / 1000)

    async def pop(self, client: Client, closing: Any) -> None:
        await self.consume(client, self.group, closing)

    def make_listener(self, client: Client, group: str) -> Listener:
        slowest_s = client.rng.choice((0.05, 0.05, 1.5 * self.invisible_ms / 1000))
        listener = _PopListener(
            self.stage,
            client.name,
            self.member(client, group),
            group,
            client.rng,
            self.verdict,
            self.judged,
            is_orderly=self.is_orderly,
            slowest_s=slowest_s,
        )
        listener.recorder = PopRecorder(self, client, self.member(client, group))
        return listener

    def prepare_consumer(self, consumer: Any, listener: Listener) -> None:
        assert isinstance(listener, _PopListener)
        listener.recorder.broker_at = lambda address: broker_at(consumer, self.topic, address)
        consumer.add_hook(listener.recorder)

    def consumer_options(self, client: Client) -> dict[str, Any]:
        rng = client.rng
        return {
            "mode": "pop",
            "pop_invisible_ms": self.invisible_ms,
            "pop_batch_size": rng.choice((1, 4, 32)),
            "consume_message_batch_max_size": rng.choice((1, 1, 4)),
        }


class PushedByPopInOrder(PushedByPop, Keyed):
    """Has orderly push consumers that pop. A listener that fails holds its queue."""

    kind = "pushed-by-pop-in-order"
    is_orderly = True
    in_order = True

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        super().__init__(plan, stage)
        self.max_reconsume_times = 16

    def verdict(self, number: int, reconsume_times: int) -> h.Verdict:
        rng = Random(f"{self.plan.seed}:{number}")
        return "success" if reconsume_times >= rng.choice((0,) * 6 + (1, 2)) else "suspend"
