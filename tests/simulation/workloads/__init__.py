"""Has the workloads of simulated runs, each a use of the clients of `cometmq.aio`."""

from __future__ import annotations

from typing import Final

from tests.simulation.workloads.administered import Ranges, Resets
from tests.simulation.workloads.delayed import DelayedByLevel, DelayedByTime
from tests.simulation.workloads.ordered import Keyed, Orderly
from tests.simulation.workloads.plain import Batch, Broadcasting, Filtered, Normal, Retries
from tests.simulation.workloads.popped import Popped, PoppedInOrder, PulledAndPopped
from tests.simulation.workloads.push_by_pop import PushedByPop, PushedByPopInOrder
from tests.simulation.workloads.simple import Simple, SimpleInOrder
from tests.simulation.workloads.transactions import Transactions
from tests.simulation.workloads.workload import Workload

WORKLOADS: Final[dict[str, type[Workload]]] = {
    each.kind: each
    for each in (
        Normal,
        Keyed,
        Orderly,
        DelayedByLevel,
        DelayedByTime,
        Transactions,
        Batch,
        Broadcasting,
        Filtered,
        Resets,
        Retries,
        Ranges,
        Popped,
        PoppedInOrder,
        PulledAndPopped,
        PushedByPop,
        PushedByPopInOrder,
        Simple,
        SimpleInOrder,
    )
}
