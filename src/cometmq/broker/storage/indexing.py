"""Build the store's index behind the log, and query it, in one thread beside the loop."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from cometmq.runtime.tasks import OnDemand, TaskOwner
from cometmq.runtime.workers import Workers
from cometmq.store.index.index_service import IndexAnswer
from cometmq.store.store import MessageStore

# The longer the period, the larger the batches and the cheaper a key. Queries do not wait for it.
_BUILD_PERIOD_S: Final = 0.5
# A query first brings the index up to date, for at most this long. While a lost index is rebuilt,
# that would take longer than clients wait. An answer from the index as it is serves them better.
_CATCH_UP_LIMIT_S: Final = 1.0


class Indexing:
    """Builds and queries the index. Call `start` once, and `close` once before the store is closed.

    For the loop's thread only.
    """

    def __init__(self, store: MessageStore, tasks: TaskOwner, workers: Workers) -> None:
        self._store = store
        self._tasks = tasks
        self._executor = workers.worker("index")

    def start(self) -> None:
        index, log = self._store.index, self._store.commit_log

        def idle_s() -> float:
            # Not what is readable: that grows later, with the transient store pool.
            return math.inf if not index.enabled or index.position == log.end else 0.0

        building = OnDemand(self._tasks, idle_s, self._store.at_growth)
        building.every(_BUILD_PERIOD_S, self._build, "build-index", first_s=0)
        self._store.on_settings_changed.append(building.arm)

    def close(self) -> None:
        """Wait for the batch under way, and end the thread; the timer ends with its task."""
        self._executor.shutdown(wait=True)

    async def query(
        self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int
    ) -> IndexAnswer:
        """Find the messages with a key, among all that were stored before the call."""
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, self._query, topic, key, limit, begin_ms, end_ms
        )

    def _query(self, topic: str, key: str, limit: int, begin_ms: int, end_ms: int) -> IndexAnswer:
        index = self._store.index
        index.catch_up(self._store.commit_log.readable_end, _CATCH_UP_LIMIT_S)
        return index.query(topic, key, limit, begin_ms, end_ms)

    async def _build(self) -> None:
        index = self._store.index
        loop = asyncio.get_running_loop()
        # One batch for each call in the thread: a query then waits for one batch, not for all.
        while index.lag_bytes and await loop.run_in_executor(self._executor, index.build):
            pass
