"""When the store is flushed: its timers (Java: FlushRealTimeService, FlushConsumeQueueService)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cometmq.runtime.clock import Clock
from cometmq.runtime.tasks import TaskOwner
from cometmq.store.store import MessageStore


class FlushTimers:
    """Flushes in threads of its own, so that a slow disk holds up neither the loop nor another
    flush. What is dirty by fewer than `least pages` waits for the thorough interval.

    For the loop's thread only.
    """

    def __init__(self, store: MessageStore, clock: Clock, tasks: TaskOwner) -> None:
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="flush")

    def start(self) -> None:
        config = self._store.config
        self._every(
            config.flush_interval_commit_log,
            self._store.flush_commit_log,
            config.flush_commit_log_least_pages,
            config.flush_commit_log_thorough_interval,
            "flush-commit-log",
        )
        self._every(
            config.flush_interval_consume_queue,
            self._store.flush_consume_queues,
            config.flush_consume_queue_least_pages,
            config.flush_consume_queue_thorough_interval,
            "flush-consume-queues",
        )

    def close(self) -> None:
        """Wait for flushes under way; the timers end with their tasks."""
        self._executor.shutdown(wait=True)

    def _every(
        self,
        interval_ms: int,
        flush: Callable[[int], object],
        least_pages: int,
        thorough_interval_ms: int,
        name: str,
    ) -> None:
        last_thorough = self._clock.monotonic()

        async def run() -> None:
            nonlocal last_thorough
            now = self._clock.monotonic()
            pages = least_pages
            if now - last_thorough >= thorough_interval_ms / 1000:
                last_thorough, pages = now, 0
            await asyncio.get_running_loop().run_in_executor(self._executor, flush, pages)

        self._tasks.every(interval_ms / 1000, run, name)
