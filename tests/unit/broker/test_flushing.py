"""When commit log and consume queues are synced, how many dirty pages that takes, and what a stop
and a lack of descriptors do.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.simulated import LoopClock, SimulatedWorkers
from tests.unit.store.store_box import Box, put
from tests.waits import WAIT_S, until

from cometmq.broker.storage.flushing import CommitLogFlusher, FlushTimers
from cometmq.errors import StoreError, StoreFullError, StoreStarvedError
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.tasks import TaskOwner
from cometmq.runtime.workers import THREADS
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.testing import virtual

LOG, QUEUES, COMMIT = "flush_commit_log", "flush_consume_queues", "commit"
CHECKPOINT, NEXT_FILE, WATCH = "flush_checkpoint", "prepare_next", "watch_page_cache"


class NotedStore:
    """Takes down each call with the time of the loop and the number of least pages."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.calls: list[tuple[float, str, int]] = []
        self.failure: StoreError | None = None
        self.refusal: StoreError | None = None
        # What calls raise, by name.
        self.raises: dict[str, StoreError] = {}
        self.unpublished = 0
        self.commit_log = self
        self.next_file_is_due = False
        self.checkpoint_is_due = True
        self.page_cache_is_idle = False
        self.queues_lack_records = False
        self.has_copied = False
        self._grows = True
        self._at_growth: list[Callable[[], None]] = []
        self._end = 0

    @property
    def grows(self) -> bool:
        return self._grows

    @grows.setter
    def grows(self, grows: bool) -> None:
        self._grows = grows
        waiting, self._at_growth = self._at_growth, []
        for call in waiting:
            call()

    def at_growth(self, call: Callable[[], None]) -> None:
        self._at_growth.append(call)

    @property
    def end(self) -> int:
        """The end of the log, which is further on whenever somebody looks, as long as it grows."""
        self._end += self._grows
        return self._end

    readable_end = dispatched_end = end

    def grow(self, size: int) -> None:
        self._end += size

    def _note(self, name: str, least_pages: int = 0) -> None:
        self.calls.append((asyncio.get_running_loop().time(), name, least_pages))
        if name in self.raises:
            raise self.raises[name]

    def flush_commit_log(self, least_pages: int) -> int:
        self._note(LOG, least_pages)
        return 0

    def flush_consume_queues(self, least_pages: int) -> None:
        self._note(QUEUES, least_pages)

    def commit(self, least_pages: int) -> None:
        self._note(COMMIT, least_pages)

    def publish(self, limit: int) -> bool:
        self.unpublished -= min(limit, self.unpublished)
        return self.unpublished > 0

    def flush_checkpoint(self) -> None:
        self._note(CHECKPOINT)

    def prepare_next(self) -> None:
        self._note(NEXT_FILE)

    def watch_page_cache(self) -> None:
        self._note(WATCH)

    def times(self, name: str) -> list[float]:
        return [round(time_s, 3) for time_s, called, _ in self.calls if called == name]

    def pages(self, name: str) -> list[int]:
        return [pages for _, called, pages in self.calls if called == name]


Scene = Callable[[NotedStore], Coroutine[Any, Any, None]]


def scene(play: Scene, *, has_copied: bool = False, **settings: Any) -> NotedStore:
    """Play it with the timers of a store that has these settings; then close them."""

    async def run() -> NotedStore:
        store = NotedStore(StoreConfig(**settings))
        store.has_copied = has_copied
        tasks = TaskOwner("test")
        workers = SimulatedWorkers(lambda: 0.0)
        flusher = CommitLogFlusher(cast("Any", store), workers)
        timers = FlushTimers(cast("Any", store), flusher, LoopClock(), tasks, workers)
        timers.start()
        await play(store)
        await tasks.close()
        timers.close()
        flusher.close()
        return store

    return virtual.run(run())


def lasting(seconds: float) -> Scene:
    async def play(_: NotedStore) -> None:
        # Between two ticks of the timers.
        await asyncio.sleep(seconds + 0.01)

    return play


def test_log_and_queues_are_flushed_at_intervals_of_their_own() -> None:
    store = scene(lasting(3), flush_interval_commit_log=500, flush_interval_consume_queue=1_000)
    assert store.times(LOG) == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert store.times(QUEUES) == [1.0, 2.0, 3.0]
    assert store.times(CHECKPOINT) == [1.0, 2.0, 3.0]


def test_few_dirty_pages_wait_for_the_thorough_interval() -> None:
    store = scene(
        lasting(5),
        flush_interval_commit_log=1_000,
        flush_commit_log_least_pages=4,
        flush_commit_log_thorough_interval=2_500,
        flush_interval_consume_queue=1_000,
        flush_consume_queue_least_pages=2,
        flush_consume_queue_thorough_interval=1_500,
    )
    # 0 pages means every byte: what one message dirtied is on disk after the thorough interval.
    assert store.pages(LOG) == [4, 4, 0, 4, 4]
    assert store.pages(QUEUES) == [2, 0, 2, 0, 2]


def test_a_log_that_does_not_grow_is_not_flushed_again() -> None:
    async def play(store: NotedStore) -> None:
        await asyncio.sleep(4.01)
        store.grows = store.checkpoint_is_due = False
        await asyncio.sleep(60)
        store.grows = True
        await asyncio.sleep(3)

    store = scene(
        play,
        flush_interval_commit_log=1_000,
        flush_commit_log_least_pages=4,
        flush_commit_log_thorough_interval=2_500,
    )
    calls = list(zip(store.times(LOG), store.pages(LOG), strict=True))
    # What was there when the log stopped is flushed whole, and then nothing until it grows again.
    assert [call for call in calls if 4 < call[0] <= 64] == [(5.0, 4), (6.0, 0)]
    assert [at for at, _ in calls if at > 64] == [65.0, 66.0, 67.0]
    assert [at for at in store.times(CHECKPOINT) if 4 < at <= 64] == []


@pytest.mark.parametrize("idle_s", [10, 60.7, 61.4, 62, 62.4])
def test_what_comes_after_a_pause_waits_no_longer_than_what_comes_amid_others(
    idle_s: float,
) -> None:
    came_s = 4.01 + idle_s

    async def play(store: NotedStore) -> None:
        await asyncio.sleep(4.01)
        store.grows = False
        await asyncio.sleep(idle_s)
        store.grows = True
        await asyncio.sleep(8)

    store = scene(
        play,
        flush_interval_commit_log=1_000,
        flush_commit_log_thorough_interval=2_500,
        flush_interval_consume_queue=1_000,
        flush_consume_queue_thorough_interval=500,
    )
    for name, longest_s in ((LOG, 3.5), (QUEUES, 1.0)):
        calls = zip(store.times(name), store.pages(name), strict=True)
        thorough = min(at for at, pages in calls if at > came_s and pages == 0)
        assert thorough - came_s <= longest_s


def test_a_changed_setting_counts_from_the_next_flush() -> None:
    async def play(store: NotedStore) -> None:
        await asyncio.sleep(1.01)
        store.config.flush_interval_commit_log = 100
        store.config.flush_commit_log_least_pages = 7
        await asyncio.sleep(1.25)

    store = scene(play, flush_interval_commit_log=1_000, flush_commit_log_least_pages=4)
    assert store.times(LOG) == [1.0, 2.0, 2.1, 2.2]
    assert store.pages(LOG) == [4, 7, 7, 7]


def test_a_store_whose_disk_failed_is_left_alone() -> None:
    async def play(store: NotedStore) -> None:
        store.failure = StoreError("Input/output error")
        await asyncio.sleep(20)

    calls = scene(play).calls
    assert {name for _, name, _ in calls} <= {WATCH}


@pytest.mark.parametrize("name", [LOG, QUEUES, CHECKPOINT])
def test_a_lack_of_descriptors_is_logged_and_tried_again(name: str) -> None:
    async def play(store: NotedStore) -> None:
        store.raises[name] = StoreStarvedError("no descriptor is free")
        await asyncio.sleep(1.01)
        del store.raises[name]
        await asyncio.sleep(1)

    with capture_logs() as logs:
        store = scene(play, flush_interval_commit_log=1_000, flush_interval_consume_queue=1_000)
    assert store.times(name) == [1.0, 2.0]
    assert [(line["event"], line["log_level"], line["reason"]) for line in logs] == [
        ("work on the disk put off", "warning", "no descriptor is free")
    ]


def test_an_error_ends_no_timer() -> None:
    async def play(store: NotedStore) -> None:
        store.raises[LOG] = StoreError("Input/output error")
        await asyncio.sleep(2.01)

    with capture_logs() as logs:
        store = scene(play, flush_interval_commit_log=1_000)
    assert store.times(LOG) == [1.0, 2.0]
    assert {line["event"] for line in logs} == {"periodic task failed"}


def test_the_next_file_is_made_once_it_is_due() -> None:
    async def play(store: NotedStore) -> None:
        await asyncio.sleep(1.01)
        assert store.times(NEXT_FILE) == []
        store.next_file_is_due = True
        await asyncio.sleep(0.5)
        store.next_file_is_due = False
        await asyncio.sleep(2)

    assert scene(play).times(NEXT_FILE) == [1.5]


def test_a_store_that_takes_no_messages_gets_no_next_file() -> None:
    async def play(store: NotedStore) -> None:
        store.next_file_is_due = True
        store.refusal = StoreFullError("the disk is full")
        await asyncio.sleep(5)

    assert scene(play).times(NEXT_FILE) == []


def test_a_disk_without_room_for_the_next_file_is_told_of_once() -> None:
    async def play(store: NotedStore) -> None:
        store.next_file_is_due = True
        store.raises[NEXT_FILE] = StoreFullError("no room for 1 GiB")
        await asyncio.sleep(5)
        del store.raises[NEXT_FILE]
        await asyncio.sleep(1)
        store.raises[NEXT_FILE] = StoreFullError("no room again")
        await asyncio.sleep(5)

    with capture_logs() as logs:
        scene(play)
    assert [line["reason"] for line in logs] == ["no room for 1 GiB", "no room again"]


def test_without_a_transient_pool_nothing_is_committed() -> None:
    assert scene(lasting(5)).times(COMMIT) == []


def test_the_transient_pool_is_committed_often_and_its_records_published() -> None:
    async def play(store: NotedStore) -> None:
        store.unpublished = 1_700
        await asyncio.sleep(0.21)
        assert store.unpublished == 1_700, "records are published once they are committed"
        await asyncio.sleep(0.6)
        assert store.unpublished == 0

    store = scene(
        play,
        transient_store_pool_enable=True,
        commit_interval_commit_log=250,
        commit_commit_log_least_pages=4,
        commit_commit_log_thorough_interval=500,
    )
    assert store.times(COMMIT) == [0.25, 0.5, 0.75]
    assert store.pages(COMMIT) == [4, 0, 4]


def test_the_page_cache_is_looked_at_several_times_per_time_out() -> None:
    store = scene(lasting(1), os_page_cache_busy_time_out_mills=1_000)
    assert store.times(WATCH) == [0.2, 0.4, 0.6, 0.8, 1.0]


# In real threads


class SlowStore(NotedStore):
    """Its queues' flush ends when it may."""

    def __init__(self, config: StoreConfig) -> None:
        super().__init__(config)
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.flushed = False

    def flush_consume_queues(self, least_pages: int) -> None:
        self.begun.set()
        assert self.may_end.wait(WAIT_S)
        self.flushed = True

    def flush_commit_log(self, least_pages: int) -> int:
        return least_pages


async def test_a_stop_waits_for_the_flush_under_way() -> None:
    store = SlowStore(StoreConfig(flush_interval_consume_queue=1))
    tasks = TaskOwner("test")
    flusher = CommitLogFlusher(cast("Any", store))
    timers = FlushTimers(cast("Any", store), flusher, SYSTEM_CLOCK, tasks, THREADS)
    timers.start()
    await until(store.begun.is_set)
    # A flush of queues that takes long holds up no flush of the log, for which senders wait.
    assert await flusher.flush(3) == 3
    await tasks.close()
    timer = threading.Timer(0.02, store.may_end.set)
    timer.start()
    timers.close()
    assert store.flushed
    flusher.close()
    timer.join()


# With a real store


class SyncedDisk(Disk):
    """Takes down the directory of each file that is synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync(self, path: Path) -> None:
        self.synced.append(path.parent.name)
        super().sync(path)


@pytest.fixture
def disk() -> SyncedDisk:
    return SyncedDisk()


@pytest.fixture
def box(tmp_path: Path, disk: SyncedDisk) -> Iterator[Box]:
    box = Box(tmp_path / "store", disk=disk)
    yield box
    box.close()


async def test_a_flush_gives_the_offset_below_which_all_is_on_disk(
    box: Box, disk: SyncedDisk
) -> None:
    store = box.open()
    flusher = CommitLogFlusher(store)
    put(store)
    end = store.commit_log.end
    assert await flusher.flush(1_000) < end
    assert "commitlog" not in disk.synced
    assert await flusher.flush(0) == end
    assert disk.synced.count("commitlog") == 1
    flusher.close()


async def test_flushes_run_one_after_the_other_and_close_waits_for_them(box: Box) -> None:
    store = box.open()
    flusher = CommitLogFlusher(store)
    ends = []
    flushes = []
    for _ in range(5):
        put(store)
        ends.append(store.commit_log.end)
        flushes.append(flusher.flush(0))
    flusher.close()
    flushed = await asyncio.gather(*flushes)
    assert flushed == sorted(flushed)
    assert all(got >= end for got, end in zip(flushed, ends, strict=True))
    with pytest.raises(RuntimeError, match="after shutdown"):
        flusher.flush(0)


async def test_a_disk_that_fails_fails_the_flush(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    store = box.open()
    flusher = CommitLogFlusher(store)
    put(store)

    def fail(path: Path) -> None:
        raise StoreError(f"{path.name}: Input/output error")

    monkeypatch.setattr(box.disk, "sync", fail)
    with pytest.raises(StoreError, match="Input/output error"):
        await flusher.flush(0)
    flusher.close()
    assert store.failure is not None
    with pytest.raises(StoreError, match="Input/output error"):
        store.close()


def test_what_leaves_the_transient_pool_behind_a_thorough_flush_is_flushed_without_further_growth(
    tmp_path: Path,
) -> None:
    box = Box(
        tmp_path / "store",
        transient_store_pool_enable=True,
        commit_interval_commit_log=300,
        commit_commit_log_thorough_interval=300,
        flush_interval_commit_log=500,
        flush_commit_log_thorough_interval=500,
        flush_interval_consume_queue=500,
        flush_consume_queue_thorough_interval=500,
        disk=SyncedDisk(),
    )
    store = box.open()
    disk = cast("SyncedDisk", box.disk)

    async def play() -> None:
        tasks = TaskOwner("test")
        workers = SimulatedWorkers(lambda: 0.0)
        flusher = CommitLogFlusher(store, workers)
        timers = FlushTimers(store, flusher, LoopClock(), tasks, workers)
        timers.start()
        await asyncio.sleep(0.45)
        put(store)
        await asyncio.sleep(0.1)
        # The flush has found nothing, since the message was in a buffer.
        assert store.flushed_offset == 0
        await asyncio.sleep(0.55)
        assert store.flushed_offset == store.commit_log.end
        # The directory of the queue that the message is in.
        assert "0" in disk.synced
        await tasks.close()
        timers.close()
        flusher.close()

    virtual.run(play())
    box.close()


def test_a_slave_with_sync_flush_has_all_on_disk_within_milliseconds_and_rests_then() -> None:
    """Java's slaves look every 10 ms, too, though no send waits there."""

    async def play(store: NotedStore) -> None:
        store.grows = False
        await asyncio.sleep(1.005)
        store.calls.clear()
        store.grow(1)
        await asyncio.sleep(1)

    store = scene(play, has_copied=True, flush_disk_type="SYNC_FLUSH")
    assert store.pages(LOG) == [0]
    assert store.times(LOG)[0] < 1.02
