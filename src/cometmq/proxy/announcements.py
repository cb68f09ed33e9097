"""Announce new groups to brokers soon, many of them in one heartbeat.

An instance sends a heartbeat when it connects to a broker, and then every 30 s. A proxy gets new groups at any
time, and a broker asks nobody about a transaction until it knows a producer of its group.
"""

from __future__ import annotations

import asyncio
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.runtime.tasks import TaskOwner

_TOGETHER_S: Final = 0.1


class Announcements:
    def __init__(self, instance: ClientInstance, tasks: TaskOwner) -> None:
        self._instance = instance
        self._tasks = tasks
        self._is_planned = False

    def soon(self) -> None:
        """Send a heartbeat to all brokers after a short wait. Calls during the wait share one heartbeat."""
        if not self._is_planned and not self._tasks.is_closed:
            self._is_planned = True
            self._tasks.spawn(self._announce(), "announce")

    async def _announce(self) -> None:
        try:
            await asyncio.sleep(_TOGETHER_S)
        finally:
            self._is_planned = False
        await self._instance.heartbeats.beat_all()
