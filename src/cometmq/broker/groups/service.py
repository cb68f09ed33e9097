"""Serve groups: heartbeats of their members, their offsets, and the queues that members lock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.broker.groups.client_handlers import ClientHandlers
from cometmq.broker.groups.client_relay import ClientRelay
from cometmq.broker.groups.group_handlers import GroupHandlers
from cometmq.broker.groups.lock_handlers import LockHandlers
from cometmq.broker.groups.offset_handlers import OffsetHandlers
from cometmq.broker.groups.queue_locks import QueueLocks
from cometmq.broker.parts import Parts, Service

_SCAN_PERIOD_S: Final = 10.0


class Groups(Service):
    """Serves consumer groups.

    `save_offsets` has changed offsets written to their file; `groups_written` returns when the disk
    has all groups as they are.
    """

    def __init__(
        self,
        parts: Parts,
        save_offsets: Callable[[], None],
        groups_written: Callable[[], Awaitable[None]],
    ) -> None:
        self._parts = parts
        self._save_offsets = save_offsets
        self._groups_written = groups_written
        self.locks = QueueLocks(parts.clock)

    async def open(self) -> None:
        parts = self._parts
        LockHandlers(self.locks).register(parts.handlers)
        ClientHandlers(
            parts.config, parts.clock, parts.clients, parts.groups, parts.topics
        ).register(parts.handlers)
        OffsetHandlers(parts.store, parts.topics, parts.groups, parts.offsets).register(
            parts.handlers
        )
        ClientRelay(parts).register(parts.handlers)
        GroupHandlers(parts, self._groups_written).register(parts.handlers)

    def start(self) -> None:
        config, tasks = self._parts.config, self._parts.tasks
        tasks.every(_SCAN_PERIOD_S, self._drop_silent, "client-scan")
        tasks.every(
            config.flush_consumer_offset_interval / 1000, self._save_offsets, "save-offsets"
        )

    def _drop_silent(self) -> None:
        self._parts.clients.remove_expired(self._parts.config.channel_expired_timeout)
