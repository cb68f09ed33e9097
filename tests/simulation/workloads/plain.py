"""Has workloads that only send and consume: one by one, in batches, to all members, by filters."""

from __future__ import annotations

from random import Random
from typing import Any, ClassVar

from tests.simulation import history as h
from tests.simulation.schedule import WorkloadPlan
from tests.simulation.workloads.recording import Sends, message_of
from tests.simulation.workloads.stage import Stage
from tests.simulation.workloads.workload import Client, Workload

from cometmq.aio import Producer
from cometmq.model.results import MessageModel


class Normal(Workload):
    """Sends one message after the other."""

    kind = "normal"


class Batch(Workload):
    """Sends some messages in one request."""

    kind = "batch"

    async def send(self, client: Client, producer: Producer, sends: Sends) -> None:
        batch = [self.outgoing(client.rng) for _ in range(client.rng.randint(2, 8))]
        messages = [message_of(self.topic, each) for each in batch]
        await sends.call(self.topic, batch, lambda: producer.send_batch(messages))


class Broadcasting(Workload):
    """Has every member consume every message. Nobody waits for messages that a member missed while
    it was away.
    """

    kind = "broadcasting"
    message_model = MessageModel.BROADCASTING

    def is_settled(self) -> bool:
        return True

    def consumer_options(self, client: Client) -> dict[str, Any]:
        options = super().consumer_options(client)
        return {**options, "local_offset_dir": self.stage.directory(client.name)}


_TAGS = ("red", "green", "blue")


class Filtered(Workload):
    """Has several groups, each with a filter of its own, by tags or by SQL92."""

    kind = "filtered"

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        super().__init__(plan, stage)
        level = self.rng.randint(1, 9)
        self.filters = {
            f"{plan.name}-tags": h.Filter(tags=tuple(self.rng.sample(_TAGS, 2))),
            f"{plan.name}-sql": h.Filter(
                comparisons=(
                    h.Comparison("level", self.rng.choice((">", "<=", "<>")), level),
                    h.Comparison("size", ">=", 5),
                )
            ),
        }
        self._wanted: dict[int, int] = {}

    def outgoing(self, rng: Random, **fields: Any) -> h.Outgoing:
        properties = {"size": str(rng.randrange(20))}
        if rng.random() < 0.9:
            properties["level"] = str(rng.randrange(10))
        made = super().outgoing(rng, tags=rng.choice(_TAGS), properties=properties, **fields)
        self._wanted[made.number] = sum(
            h.accepts(each, made.tags, made.properties) for each in self.filters.values()
        )
        return made

    def is_settled(self) -> bool:
        """Only what some filter accepts is delivered, and maybe to one of the groups only."""
        wanted = {number for number in self.acknowledged if self._wanted[number]}
        return wanted | self.delivered <= self.finished


class Retries(Workload):
    """Has a listener that fails, now and then or always: retries, and then dead letters."""

    kind = "retries"
    always: ClassVar[float] = 0.3

    def __init__(self, plan: WorkloadPlan, stage: Stage) -> None:
        super().__init__(plan, stage)
        self.max_reconsume_times = self.rng.choice((1, 3, 16))

    def verdict(self, number: int, reconsume_times: int) -> h.Verdict:
        rng = Random(f"{self.plan.seed}:{number}")
        fails = 1000 if rng.random() < self.always else rng.choice((0, 1, 2))
        if reconsume_times >= fails:
            return "success"
        return rng.choice(("later", "later", "raised"))
