"""Bound the run of a benchmark, and report while it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from cometmq.runtime.signals import stop_event
from cometmq.runtime.tasks import TaskOwner


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Ends a run after `quantity` messages or `duration_s` seconds; 0 sets no limit.

    Ctrl-C ends every run.
    """

    quantity: int = 0
    duration_s: float = 0.0
    report_interval_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The outcome of a run: `holds` gives the exit status, `text` the words, `facts` the JSON."""

    holds: bool
    text: str
    notes: list[str]
    facts: dict[str, Any]


@asynccontextmanager
async def bounded(limits: RunLimits, report: Callable[[], None]) -> AsyncIterator[asyncio.Event]:
    """Yield an event that is set when the time is up or a signal came; call `report` meanwhile."""
    owner = TaskOwner("bench")
    with stop_event() as stop:
        timer = None
        if limits.duration_s > 0:
            timer = asyncio.get_running_loop().call_later(limits.duration_s, stop.set)
        owner.every(limits.report_interval_ms / 1000, report, "report")
        try:
            yield stop
        finally:
            if timer is not None:
                timer.cancel()
            await owner.close()
