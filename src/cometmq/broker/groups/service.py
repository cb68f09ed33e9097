"""Serve groups: heartbeats of their members, their offsets, and the queues that members lock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from cometmq.broker.groups.assignments import Assignments
from cometmq.broker.groups.client_handlers import ClientHandlers
from cometmq.broker.groups.client_relay import ClientRelay
from cometmq.broker.groups.group_handlers import GroupHandlers
from cometmq.broker.groups.lock_handlers import LockHandlers
from cometmq.broker.groups.offset_admin import OffsetAdmin
from cometmq.broker.groups.offset_handlers import OffsetHandlers
from cometmq.broker.groups.queue_locks import QueueLocks
from cometmq.broker.groups.request_modes import RequestModes
from cometmq.broker.parts import Parts, Service
from cometmq.broker.tables import BrokerTables
from cometmq.model.route import TopicRouteData
from cometmq.protocol.bodies.overview import MessageRequestModes

_SCAN_PERIOD_S: Final = 10.0


class Groups(Service):
    """Serves consumer groups; `tables` are where groups and offsets are written, `route_of` asks the name
    servers for a topic's route, and `confirmed` returns when slaves have the tables. `copy_modes` has a
    slave's master say which groups pop.
    """

    def __init__(
        self,
        parts: Parts,
        tables: BrokerTables,
        route_of: Callable[[str], Awaitable[TopicRouteData | None]],
        confirmed: Callable[[], Awaitable[None]],
        copy_modes: Callable[[Callable[[MessageRequestModes], None]], None],
    ) -> None:
        self._route_of = route_of
        self._parts = parts
        self._confirmed = confirmed
        self._copy_modes = copy_modes
        self._tables = tables
        self.locks = QueueLocks(parts.clock)
        self.modes = RequestModes(parts)
        self.locks.on_limit = parts.handlers.limit_hits.hit

    async def open(self) -> None:
        parts = self._parts
        parts.topics.on_remove.append(parts.groups.topic_removed)
        parts.store.on_settings_changed.append(self._obey_settings)
        LockHandlers(self.locks).register(parts.handlers)
        ClientHandlers(
            parts.config,
            parts.clock,
            parts.clients,
            parts.groups,
            parts.topics,
            parts.long_answers,
        ).register(parts.handlers)
        OffsetHandlers(parts.store, parts.topics, parts.groups, parts.offsets).register(
            parts.handlers
        )
        OffsetAdmin(parts).register(parts.handlers)
        ClientRelay(parts, self._tables).register(parts.handlers)
        modes = self.modes
        modes.open()
        modes.register(parts.handlers)
        self._copy_modes(modes.copy)
        Assignments(parts.clients, self._route_of, modes.mode_of).register(parts.handlers)
        GroupHandlers(parts, self._tables, self._confirmed).register(parts.handlers)

    def start(self) -> None:
        config, tasks = self._parts.config, self._parts.tasks
        tasks.every(_SCAN_PERIOD_S, self._drop_silent, "client-scan")
        tasks.every(
            lambda: config.flush_consumer_offset_interval / 1000,
            self._tables.save_offsets,
            "save-offsets",
        )

    def _obey_settings(self) -> None:
        self._parts.offsets.max_count = self._parts.config.max_consumer_offsets

    async def _drop_silent(self) -> None:
        await self._parts.clients.remove_expired(self._parts.config.channel_expired_timeout)
