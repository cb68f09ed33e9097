"""Watches the cluster at a fixed pace, whoever looks, and keeps its trends for an hour."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from cometmq.admin.client import AdminClient
from cometmq.console.recent import Known, known
from cometmq.runtime.clock import Clock
from cometmq.runtime.tasks import TaskOwner

PERIOD_S: Final = 5.0
SAMPLES: Final = 720


@dataclass(frozen=True, slots=True)
class Sample:
    """Is the cluster at one moment: messages in and out per second, and each broker's report."""

    at_ms: int
    messages_in: float
    messages_out: float
    brokers: Known[dict[str, dict[str, str]]]


@dataclass(slots=True)
class Watch:
    """Keeps the newest samples, the oldest one first. For the loop's thread only."""

    admin: AdminClient
    clock: Clock
    tasks: TaskOwner
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self) -> None:
        """Begin to watch."""
        self.tasks.every(PERIOD_S, self.look, "watch")

    async def look(self) -> None:
        """Take a sample and wake those who wait for one."""
        reports = await known(self.admin.brokers.runtime_info(slaves=True))
        rates = (reports.value or {}).values()
        self.samples.append(
            Sample(
                self.clock.now_ms(),
                sum(_rate(report, "putTps") for report in rates),
                sum(_rate(report, "getTransferredTps") for report in rates),
                reports,
            )
        )
        self.wake()

    def wake(self) -> None:
        """Wake those who wait for a sample."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def next(self) -> None:
        """Wait until there is a newer sample."""
        await self._changed.wait()


def _rate(report: dict[str, str], key: str) -> float:
    """Return the first of the rates that a broker reports, over its last ten seconds."""
    try:
        return float(report.get(key, "0").split()[0])
    except (ValueError, IndexError):
        return 0.0
