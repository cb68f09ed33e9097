"""Serve selection by properties and by named predicates, and keep the file of the expressions."""

from __future__ import annotations

from cometmq.broker.filters.table_handlers import FilterTableHandlers
from cometmq.broker.parts import Parts, Service


class Filters(Service):
    """Serves the filters. They are parts: the store needs their bit maps while it recovers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def open(self) -> None:
        parts = self._parts
        # From here on bit maps are made on the loop and share the budget of its turns.
        parts.filters.manager.work = parts.filter_work
        release_topic = parts.waiting.release_topic
        # A pull that waits with the old expression must be answered now: Java checks every 5 s.
        parts.clients.on_reselected.append(release_topic)
        parts.filters.watch(parts.clients, release_topic)
        parts.filters.register(parts.handlers)
        parts.predicates.register(parts.handlers)
        FilterTableHandlers(parts).register(parts.handlers)

    def start(self) -> None:
        self._parts.filters.start(self._parts.tasks)

    def close(self) -> None:
        self._parts.filters.save()
