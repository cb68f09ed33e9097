"""Serve requests that make, change, list and delete topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator

from cometmq.broker.parts import Parts, Service
from cometmq.broker.tables import BrokerTables
from cometmq.broker.topics.topic_handlers import TopicHandlers
from cometmq.store.retention.cleaner import Work


class Topics(Service):
    """Serves requests about topics.

    `tables` are where offsets are written; `announced` returns when name servers know all topics;
    `work_off` does the store's work outside the loop; `confirmed` returns when slaves have the
    topics.
    """

    def __init__(
        self,
        parts: Parts,
        tables: BrokerTables,
        announced: Callable[[], Awaitable[None]],
        work_off: Callable[[Generator[Work, None, None]], Awaitable[None]],
        confirmed: Callable[[], Awaitable[None]],
    ) -> None:
        self._parts = parts
        self._handlers = TopicHandlers(parts, tables, announced, work_off, confirmed)

    async def open(self) -> None:
        self._handlers.register(self._parts.handlers)

    async def delete(self, topic: str) -> None:
        """Remove a topic with all that belongs to it. Raises Refused if that cannot be written."""
        await self._handlers.remove(topic)
