"""Has workloads whose messages come later: after a level's delay, or at a time."""

from __future__ import annotations

from typing import Final

from tests.simulation.workloads.recording import Sends
from tests.simulation.workloads.workload import Client, Workload

from cometmq.aio import Producer

# A broker whose clock is ten minutes ahead delivers so much later what it stores then.
LATE_S: Final = 630.0
# Some levels of messageDelayLevel, and their delays.
LEVELS_S: Final = {1: 1, 2: 5, 3: 10, 5: 60, 9: 300, 14: 600, 16: 1800, 17: 3600}


class DelayedByLevel(Workload):
    kind = "delayed-level"

    async def send(self, client: Client, producer: Producer, sends: Sends) -> None:
        level = client.rng.choice(tuple(LEVELS_S))
        self.due_s = max(self.due_s, self.stage.elapsed_s + LEVELS_S[level] + LATE_S)
        await sends.send(producer, self.topic, self.outgoing(client.rng, delay_level=level))


class DelayedByTime(Workload):
    kind = "delayed-time"

    async def send(self, client: Client, producer: Producer, sends: Sends) -> None:
        delay_ms = client.rng.choice((1000, 5000, 60_000, 601_000, 3_600_000))
        self.due_s = max(self.due_s, self.stage.elapsed_s + delay_ms / 1000 + LATE_S)
        if client.rng.random() < 0.5:
            timing = {"delay_ms": delay_ms}
        else:
            timing = {"deliver_at_ms": self.stage.now_ms + delay_ms}
        await sends.send(producer, self.topic, self.outgoing(client.rng, **timing))
