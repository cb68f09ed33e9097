"""Look after the store: flush, index, clean it, watch its files; serve requests that query or clean
it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from cometmq.broker.parts import Parts, Service
from cometmq.broker.storage.cleaning import CleaningHandlers, CleaningTimer
from cometmq.broker.storage.flushing import FlushTimers
from cometmq.broker.storage.indexing import Indexing
from cometmq.broker.storage.query_handlers import QueryHandlers
from cometmq.broker.storage.queue_query import QueueQuery
from cometmq.runtime.state_files.state_writer import LOOK_PERIOD_S
from cometmq.store.retention.cleaner import Work


class Storage(Service):
    """Flushes, indexes and cleans the store.

    Storage is opened after all other services that write, and so closed before them. Services that
    write while they close flush these records themselves, and no thread flushes at the same time.
    `rolls` copy what would expire with its commit-log file; see `Cleaner.on_expiring`.
    """

    def __init__(self, parts: Parts, rolls: Sequence[Callable[[int], int]]) -> None:
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
        parts.store.cleaner.marks_of = parts.offsets.marks_of
        QueryHandlers(parts.store, self._indexing, parts.config.max_frame_length).register(
            parts.handlers
        )
        QueueQuery(parts).register(parts.handlers)
        CleaningHandlers(parts.store, parts.topics, self._cleaning).register(parts.handlers)

    async def work_off(self, steps: Generator[Work, None, None]) -> None:
        """Do the store's work, step after step, beside the loop and beside no other such work."""
        await self._cleaning.work_off(steps)

    def start(self) -> None:
        self._indexing.start()
        self._flush_timers.start()
        self._cleaning.start()
        # Whether somebody removed, replaced or cut files. The store's files are looked at in the thread
        # that looks at state files, because each thread that a timer wakes is one more.
        parts = self._parts
        parts.tasks.every(
            LOOK_PERIOD_S,
            lambda: parts.state.look(parts.store.look_at_files),
            "look-at-files",
            of_outside=True,
        )

    def close(self) -> None:
        """Wait for the work under way in the threads, and end them."""
        self._flush_timers.close()
        self._indexing.close()
        self._parts.flusher.close()
        self._cleaning.close()
