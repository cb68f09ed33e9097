"""Serve pulls, and answer those that wait when their time is up."""

from __future__ import annotations

import asyncio
from typing import Final

from cometmq.broker.parts import Parts, Service
from cometmq.broker.pulls.pull import PullHandler
from cometmq.broker.traffic import Traffic
from cometmq.runtime.tasks import OnDemand

_SWEEP_PERIOD_S: Final = 0.5


class Pulls(Service):
    """Serves pulls. `traffic` counts what they take."""

    def __init__(self, parts: Parts, traffic: Traffic) -> None:
        self._parts = parts
        self._handler = PullHandler(parts, traffic)

    async def open(self) -> None:
        parts = self._parts
        parts.topics.on_remove.append(parts.long_polling.release_topic)
        parts.store.on_settings_changed.append(self._obey_settings)
        self._handler.register(parts.handlers)

    def start(self) -> None:
        loop, polling = asyncio.get_running_loop(), self._parts.long_polling
        cold_reads = self._handler.cold_reads

        def sweep() -> None:
            polling.sweep(loop.time())
            cold_reads.sweep()

        def idle_s() -> float:
            return 0.0 if cold_reads.must_sweep else polling.idle_s(loop.time())

        sweeping = OnDemand(self._parts.tasks, idle_s)
        polling.on_sweep_due = cold_reads.on_sweep_due = sweeping.arm
        sweeping.every(_SWEEP_PERIOD_S, sweep, "long-polling-sweep")

    def close(self) -> None:
        self._handler.cold_reads.close()

    def _obey_settings(self) -> None:
        limit = self._parts.config.max_held_pulls
        self._parts.long_polling.max_held = self._parts.filter_work.max_deferred = limit
        of_connection = self._parts.config.max_held_pulls_per_connection
        self._parts.long_polling.max_of_connection = of_connection
