"""Has workloads whose messages come later: after a level's delay, or at a time."""

from __future__ import annotations

from tests.simulation.workloads.recording import Sends
from tests.simulation.workloads.workload import Client, Workload

from cometmq.aio import Producer


class DelayedByLevel(Workload):
    kind = "delayed-level"

    async def send(self, client: Client, producer: Producer, sends: Sends) -> None:
        level = client.rng.choice((1, 2, 3, 5, 9, 14, 16, 17))
        await sends.send(producer, self.topic, self.outgoing(client.rng, delay_level=level))


class DelayedByTime(Workload):
    kind = "delayed-time"

    async def send(self, client: Client, producer: Producer, sends: Sends) -> None:
        delay_ms = client.rng.choice((1000, 5000, 60_000, 601_000, 3_600_000))
        if client.rng.random() < 0.5:
            timing = {"delay_ms": delay_ms}
        else:
            timing = {"deliver_at_ms": self.stage.now_ms + delay_ms}
        await sends.send(producer, self.topic, self.outgoing(client.rng, **timing))
