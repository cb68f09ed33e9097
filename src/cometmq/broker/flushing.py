"""When the store is flushed (Java: FlushRealTimeService, FlushConsumeQueueService)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from cometmq.runtime.clock import Clock
from cometmq.runtime.tasks import TaskOwner
from cometmq.store.store import MessageStore


class CommitLogFlusher:
    """Flushes the commit log in a thread of its own, one flush at a time."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="flush-commit-log")

    def flush(self, least_pages: int) -> asyncio.Future[int]:
        """The flushed offset, once the disk has it; StoreError if the disk refuses."""
        return asyncio.get_running_loop().run_in_executor(
            self._executor, self._store.flush_commit_log, least_pages
        )

    def close(self) -> None:
        """Wait for the flush under way."""
        self._executor.shutdown(wait=True)


class FlushTimers:
    """Flushes commit log and consume queues now and then, beside the loop.

    What is dirty by fewer than `least pages` waits for the thorough interval. For the loop's thread
    only.
    """

    def __init__(
        self, store: MessageStore, flusher: CommitLogFlusher, clock: Clock, tasks: TaskOwner
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._clock = clock
        self._tasks = tasks
        # Apart from the commit log's: many queues to flush must not hold up a sync send.
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="flush-queues")

    def start(self) -> None:
        config = self._store.config
        self._every(
            config.flush_interval_commit_log,
            self._flusher.flush,
            config.flush_commit_log_least_pages,
            config.flush_commit_log_thorough_interval,
            "flush-commit-log",
        )
        self._every(
            config.flush_interval_consume_queue,
            self._flush_consume_queues,
            config.flush_consume_queue_least_pages,
            config.flush_consume_queue_thorough_interval,
            "flush-consume-queues",
        )

    def close(self) -> None:
        """Wait for the flush under way; the timers end with their tasks."""
        self._executor.shutdown(wait=True)

    def _flush_consume_queues(self, least_pages: int) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(
            self._executor, self._store.flush_consume_queues, least_pages
        )

    def _every(
        self,
        interval_ms: int,
        flush: Callable[[int], Awaitable[object]],
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
            await flush(pages)

        self._tasks.every(interval_ms / 1000, run, name)
