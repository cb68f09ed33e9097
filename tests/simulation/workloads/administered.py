"""Has workloads beside which an operator works: offsets are reset, ranges of queues are read."""

from __future__ import annotations

import asyncio

from tests.simulation.workloads.operator import Operator
from tests.simulation.workloads.workload import Workload


class Resets(Workload):
    """Has an operator send the group back in time, some times. Nothing is skipped by that."""

    kind = "resets"

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self._reset())

    async def _reset(self) -> None:
        operator = Operator(self.stage, f"{self.plan.name}-operator")
        for _ in range(self.rng.randint(1, 3)):
            at_s = self.plan.start_s + self.plan.seconds * self.rng.uniform(0.1, 1)
            await self.stage.sleep_until(at_s)
            back_ms = int(self.plan.seconds * 1000 * self.rng.random())
            await operator.attempt(
                operator.reset(self.group, self.topic, self.stage.now_ms - back_ms)
            )


class Ranges(Workload):
    """Has a reader read ranges of the queues beside the consumers, as Spark does."""

    kind = "ranges"

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self._read())

    async def _read(self) -> None:
        operator = Operator(self.stage, f"{self.plan.name}-operator")
        for share in sorted(self.rng.uniform(0.1, 1) for _ in range(self.rng.randint(1, 4))):
            await self.stage.sleep_until(self.plan.start_s + self.plan.seconds * share)
            await operator.attempt(operator.read(self.topic, self.rng))
