"""Announce groups to brokers soon after they come, many of them by one heartbeat.

An instance's own heartbeats reach a broker once for each connection, and then every 30 s. A proxy gets groups all
the time: a broker that does not know of a producer asks nobody about its transactions.
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
        """Send a heartbeat to all brokers in a moment. Calls within that moment share it."""
        if not self._is_planned and not self._tasks.is_closed:
            self._is_planned = True
            self._tasks.spawn(self._announce(), "announce")

    async def _announce(self) -> None:
        try:
            await asyncio.sleep(_TOGETHER_S)
        finally:
            self._is_planned = False
        await self._instance.heartbeats.beat_all()
