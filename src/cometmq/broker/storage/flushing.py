"""Flush the store and make its next file on time (Java: FlushRealTimeService,
FlushConsumeQueueService, CommitRealTimeService, AllocateMappedFileService).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from cometmq.errors import StoreFullError, StoreStarvedError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.clock import Clock
from cometmq.runtime.tasks import OnDemand, TaskOwner
from cometmq.runtime.workers import THREADS, Workers
from cometmq.store.store import MessageStore

log = get_logger(__name__)

_CHECKPOINT_PERIOD_S: Final = 1.0
_NEXT_FILE_PERIOD_S: Final = 0.5
_PUBLISH_PERIOD_S: Final = 0.5
# Java: GroupCommitService looks for unflushed messages so often, on a slave with SYNC_FLUSH, too.
_SYNC_SLAVE_MS: Final = 10
# Also with a long osPageCacheBusyTimeOutMills, so that a shorter one is soon obeyed.
_MAX_WATCH_PERIOD_S: Final = 1.0
# Records published before the loop serves others.
_PUBLISHED_AT_ONCE: Final = 500


@contextmanager
def _put_off(what: str) -> Iterator[None]:
    """Log a lack of descriptors and go on: it passes by itself, and the timer tries again."""
    try:
        yield
    except StoreStarvedError as error:
        log.warning("work on the disk put off", what=what, reason=str(error))


class CommitLogFlusher:
    """Flushes the commit log in a thread of its own, one flush at a time."""

    def __init__(self, store: MessageStore, workers: Workers = THREADS) -> None:
        self._store = store
        self._executor = workers.worker("flush-commit-log")

    def flush(self, least_pages: int) -> asyncio.Future[int]:
        """Flush in the thread; the future gives the flushed offset, or StoreError of the disk."""
        return asyncio.get_running_loop().run_in_executor(
            self._executor, self._store.flush_commit_log, least_pages
        )

    def close(self) -> None:
        """Wait for the flush under way, and end the thread."""
        self._executor.shutdown(wait=True)


class FlushTimers:
    """Flushes commit log and consume queues at intervals, in threads beside the loop, and watches
    the page cache.

    Files with fewer dirty pages than the `least pages` setting wait for the thorough interval. For
    the loop's thread only.
    """

    def __init__(
        self,
        store: MessageStore,
        flusher: CommitLogFlusher,
        clock: Clock,
        tasks: TaskOwner,
        workers: Workers,
    ) -> None:
        self._store = store
        self._flusher = flusher
        self._clock = clock
        # All of it rests together, because one piece of work may begin where another ends.
        self._work = OnDemand(tasks, self._idle_s, store.at_growth)
        # Say for each flush whether it has something to do.
        self._waits: list[Callable[[], bool]] = []
        # Threads of their own: flushing many queues must not hold up a sync send, and a slow flush
        # must not keep records in the buffers of the transient store pool.
        self._executor = workers.worker("flush-queues")
        self._writer = workers.worker("write-commit-log")
        self._full = False
        self._queues_full = False
        self._writes_ahead = False

    def start(self) -> None:
        config, commit_log = self._store.config, self._store.commit_log
        self._every(
            lambda: _SYNC_SLAVE_MS if self._is_sync_slave else config.flush_interval_commit_log,
            self._flusher.flush,
            lambda: 0 if self._is_sync_slave else config.flush_commit_log_least_pages,
            lambda: 0 if self._is_sync_slave else config.flush_commit_log_thorough_interval,
            lambda: commit_log.readable_end,
            "flush-commit-log",
        )
        self._every(
            lambda: config.flush_interval_consume_queue,
            self._flush_consume_queues,
            lambda: config.flush_consume_queue_least_pages,
            lambda: config.flush_consume_queue_thorough_interval,
            lambda: commit_log.dispatched_end,
            "flush-consume-queues",
        )
        if config.uses_transient_pool:
            self._every(
                lambda: config.commit_interval_commit_log,
                self._commit,
                lambda: config.commit_commit_log_least_pages,
                lambda: config.commit_commit_log_thorough_interval,
                lambda: commit_log.end,
                "commit-commit-log",
            )
        self._work.every(_PUBLISH_PERIOD_S, self._publish, "fill-queues")
        self._work.every(_CHECKPOINT_PERIOD_S, self._flush_checkpoint, "flush-checkpoint")
        self._work.every(_NEXT_FILE_PERIOD_S, self._prepare_next, "prepare-next-file")
        commit_log.on_large = self._write_ahead
        self._work.every(
            lambda: min(config.os_page_cache_busy_time_out_mills / 5000, _MAX_WATCH_PERIOD_S),
            self._store.watch_page_cache,
            "watch-page-cache",
        )

    def _idle_s(self) -> float:
        """Return 0 as long as something is not on disk or not made ready; else nothing is to be done
        until the log grows.
        """
        store = self._store
        if store.failure is not None:
            return math.inf
        # Usually a flush waits, and checking this is cheaper than checking the checkpoint.
        for waits in self._waits:
            if waits():
                return 0.0
        is_busy = (
            store.queues_lack_records
            or store.commit_log.next_file_is_due
            or not store.page_cache_is_idle
            or store.checkpoint_is_due
        )
        return 0.0 if is_busy else math.inf

    @property
    def _is_sync_slave(self) -> bool:
        """Whether no send waits for the flush, and everything has to be on disk soon all the same."""
        return self._store.has_copied and self._store.config.flush_disk_type == "SYNC_FLUSH"

    def close(self) -> None:
        """Wait for the work under way; the timers end with their tasks."""
        self._store.commit_log.on_large = None
        self._executor.shutdown(wait=True)
        self._writer.shutdown(wait=True)

    async def _commit(self, least_pages: int) -> None:
        """Copy records from the transient store pool to the log, then make them readable."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer, self._store.commit, least_pages)
        await self._fill_queues()

    async def _publish(self) -> None:
        """Put what a slave has received into queues that had no room when it came."""
        if self._store.queues_lack_records:
            await self._fill_queues()

    async def _fill_queues(self) -> None:
        try:
            while self._store.publish(_PUBLISHED_AT_ONCE):  # noqa: ASYNC110 - others get their turn
                await asyncio.sleep(0)
            self._queues_full = False
        except (StoreFullError, StoreStarvedError) as error:
            if not self._queues_full:
                log.warning("consume queues have no room, it is tried again", reason=str(error))
            self._queues_full = True

    async def _flush_checkpoint(self) -> None:
        if self._store.failure is not None or not self._store.checkpoint_is_due:
            return
        loop = asyncio.get_running_loop()
        with _put_off("flush-checkpoint"):
            await loop.run_in_executor(self._executor, self._store.flush_checkpoint)

    async def _prepare_next(self) -> None:
        """Make the next file once the present one is half full, not sooner: it takes disk room."""
        if not self._store.commit_log.next_file_is_due or self._store.refusal is not None:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._writer, self._store.prepare_next)
            self._full = False
        except (StoreFullError, StoreStarvedError) as error:
            if not self._full:
                log.warning("the next file cannot be made ahead of need", reason=str(error))
            self._full = True

    def _write_ahead(self) -> None:
        """Have pages made ready for large messages, unless that is under way."""
        if self._writes_ahead:
            return
        self._writes_ahead = True
        done = asyncio.get_running_loop().run_in_executor(
            self._writer, self._store.commit_log.write_ahead
        )
        done.add_done_callback(self._wrote_ahead)

    def _wrote_ahead(self, _: asyncio.Future[None]) -> None:
        self._writes_ahead = False

    def _flush_consume_queues(self, least_pages: int) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(
            self._executor, self._store.flush_consume_queues, least_pages
        )

    def _every(
        self,
        interval_ms: Callable[[], int],
        flush: Callable[[int], Awaitable[object]],
        least_pages: Callable[[], int],
        thorough_interval_ms: Callable[[], int],
        end_to_flush: Callable[[], int],
        name: str,
    ) -> None:
        """Call `flush` at intervals. Read the settings each time: operators may change them.

        `end_to_flush` returns up to where in the log there is something for `flush`. Records in the
        buffers of the transient store pool are not yet there for all.
        """
        last_thorough = self._clock.monotonic()
        # That end at the last thorough flush. While it is still the end, nothing waits.
        flushed_end = -1

        async def run() -> None:
            nonlocal last_thorough, flushed_end
            if self._store.failure is not None:  # was logged when it happened
                return
            now = self._clock.monotonic()
            thorough_s = thorough_interval_ms() / 1000
            end = end_to_flush()
            if end == flushed_end:
                return
            if flushed_end >= 0:
                # Nothing waited at the last call. Thorough flushes not needed until then count as
                # done; later ones do not, or what came meanwhile would wait for too long.
                interval_s = interval_ms() / 1000
                step_s = max(thorough_s, interval_s, 0.001)
                last_thorough += max(0.0, now - interval_s - last_thorough) // step_s * step_s
                flushed_end = -1
            is_thorough = now - last_thorough >= thorough_s
            if is_thorough:
                last_thorough = now
            with _put_off(name):
                await flush(0 if is_thorough else least_pages())
                if is_thorough:
                    flushed_end = end

        self._waits.append(lambda: end_to_flush() != flushed_end)
        self._work.every(lambda: interval_ms() / 1000, run, name)
