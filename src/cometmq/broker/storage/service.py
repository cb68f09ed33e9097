"""Look after the store: flush, index, clean; serve requests that query it or have it cleaned."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.parts import Parts, Service
from cometmq.broker.storage.cleaning import CleaningHandlers, CleaningTimer
from cometmq.broker.storage.flushing import FlushTimers
from cometmq.broker.storage.indexing import Indexing
from cometmq.broker.storage.query_handlers import QueryHandlers


class Storage(Service):
    """Opened last and so closed first: what other services write when they close is flushed by
    them, and by no thread beside them.

    `rolls` copy what would expire with its commit-log file; see `Cleaner.on_expiring`.
    """

    def __init__(self, parts: Parts, rolls: list[Callable[[int], int]]) -> None:
        self._parts = parts
        self._rolls = rolls
        self._indexing = Indexing(parts.store, parts.tasks, parts.workers)
        self._flush_timers = FlushTimers(
            parts.store, parts.flusher, parts.clock, parts.tasks, parts.workers
        )
        self._cleaning = CleaningTimer(parts.store, parts.tasks, parts.workers)

    async def open(self) -> None:
        parts = self._parts
        parts.store.cleaner.on_expiring += self._rolls
        QueryHandlers(parts.store, self._indexing, parts.config.max_frame_length).register(
            parts.handlers
        )
        CleaningHandlers(parts.store, parts.topics).register(parts.handlers)

    def start(self) -> None:
        self._indexing.start()
        self._flush_timers.start()
        self._cleaning.start()

    def close(self) -> None:
        """Wait for the work under way in the threads, and end them."""
        self._flush_timers.close()
        self._indexing.close()
        self._parts.flusher.close()
        self._cleaning.close()
