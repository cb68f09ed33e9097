"""When a broker cleans its store, in which thread, and what operators have cleaned at once.

Which files go is the store's to say: `tests/unit/store/test_store_retention.py`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.cleaning import clean
from tests.integration.raw_client import send_ext
from tests.simulated import LoopClock, SimulatedWorkers
from tests.unit.broker.broker_box import HOST, Client, running
from tests.unit.store.store_box import LOG_FILE, Box, put

from cometmq.broker.server import Broker
from cometmq.broker.storage.cleaning import CleaningTimer
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.protocol.codes import ResponseCode
from cometmq.runtime.tasks import TaskOwner
from cometmq.runtime.workers import THREADS, Workers
from cometmq.store.files.disk import Disk, DiskUsage
from cometmq.testing import virtual

SEND, COMMIT = 10, 15
DELETE_EXPIRED, CLEAN_QUEUES, CLEAN_TOPICS = 329, 306, 316
HOUR_S = 3600
THREE_O_CLOCK = int(datetime.fromisoformat("2026-03-10T03:00+00:00").timestamp())


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class UsedDisk(Disk):
    """A disk that is as full as the test says, and notes the threads that remove files."""

    used = 50

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def side_by_side(self, works: Sequence[Callable[[], object]]) -> None:
        """Do all in this thread: virtual time has no other."""
        for work in works:
            work()

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(100 << 30, (100 - self.used) << 30)

    def remove(self, path: Path) -> None:
        self.threads.add(threading.current_thread().name)
        super().remove(path)

    def remove_tree(self, path: Path) -> None:
        self.threads.add(threading.current_thread().name)
        super().remove_tree(path)


class ClockFromThree(LoopClock):
    """The simulated loop's time, which begins at three o'clock."""

    def now_ms(self) -> int:
        return int((THREE_O_CLOCK + self.monotonic()) * 1000)


class Site:
    """A store of four log files, and the timer that cleans it."""

    def __init__(self, root: Path, workers: Workers = THREADS, **settings: Any) -> None:
        self.box = Box(
            root,
            **{"clean_resource_interval": 10_000, "delete_commit_log_files_interval": 0} | settings,
        )
        self.clock = ClockFromThree()
        self.box.clock = self.clock  # type: ignore[assignment]  # it tells the time, as that one does
        self.disk = UsedDisk()
        self.store = self.box.open(self.disk)
        for number in range(32):
            put(self.store, b"%02d" % number * 200, queue_id=number % 2)
        assert len(self.box.log_files) == 4
        self.age(0, 0, 0, 0)
        self.store.flush_commit_log()
        self.tasks = TaskOwner("test")
        self.timer = CleaningTimer(self.store, self.tasks, workers)

    def age(self, *hours: float) -> None:
        """Give the log's files an age."""
        for path, hour in zip(self.box.log_files, hours, strict=False):
            modified_s = self.clock.now_ms() / 1000 - hour * HOUR_S
            os.utime(path, (modified_s, modified_s))

    @property
    def first(self) -> int:
        """The number of the first file that is left."""
        return self.store.commit_log.min_offset // LOG_FILE


def scene(root: Path, play: Callable[[Site], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def run() -> None:
        site = Site(root, SimulatedWorkers(lambda: 0.0), **settings)
        try:
            await play(site)
        finally:
            await site.tasks.close()
            site.timer.close()
            site.box.close()

    virtual.run(run())


def test_expired_files_go_when_the_hour_of_deletion_comes(tmp_path: Path) -> None:
    async def play(site: Site) -> None:
        site.age(100, 90)
        site.timer.start()
        await asyncio.sleep(HOUR_S - 30)
        assert site.first == 0, "it is not four o'clock yet"
        await asyncio.sleep(60)
        assert site.first == 2
        assert len(site.box.log_files) == 2

    scene(tmp_path, play, delete_when="04")


def test_what_expires_after_the_hour_stays_until_the_next_day(tmp_path: Path) -> None:
    async def play(site: Site) -> None:
        site.age(69.5)  # 72 hours old at half past five
        site.timer.start()
        await asyncio.sleep(10 * HOUR_S)
        assert site.first == 0
        await asyncio.sleep(15.5 * HOUR_S)
        assert site.first == 1

    scene(tmp_path, play, delete_when="04", clean_resource_interval=600_000)


def test_a_disk_that_fills_up_is_noticed_within_an_interval(tmp_path: Path) -> None:
    async def play(site: Site) -> None:
        site.age(100, 1, 1)
        site.timer.start()
        await asyncio.sleep(60)
        assert site.first == 0
        site.disk.used = 80
        await asyncio.sleep(11)
        assert site.first == 1, "what has expired goes at any hour"
        site.disk.used = 88
        await asyncio.sleep(11)
        assert site.first == 3, "and what has not goes too; the newest file stays"
        site.disk.used = 95
        await asyncio.sleep(11)
        assert site.first == 3
        assert site.store.refusal is not None
        site.disk.used = 50
        await asyncio.sleep(11)
        assert site.store.refusal is None

    scene(tmp_path, play, delete_when="04")


def test_the_first_run_comes_within_a_minute_however_long_the_interval(tmp_path: Path) -> None:
    async def play(site: Site) -> None:
        site.disk.used = 95
        site.timer.start()
        assert site.store.refusal is None
        await asyncio.sleep(61)
        assert site.store.refusal is not None

    scene(tmp_path, play, clean_resource_interval=24 * HOUR_S * 1000)


def test_an_interval_that_is_changed_counts_from_the_next_run(tmp_path: Path) -> None:
    async def play(site: Site) -> None:
        site.timer.start()
        await asyncio.sleep(11)
        site.store.config.clean_resource_interval = 1_000
        await asyncio.sleep(10)
        site.disk.used = 95
        await asyncio.sleep(1.5)
        assert site.store.refusal is not None

    scene(tmp_path, play)


def test_files_go_one_by_one_with_the_pauses_that_are_set(tmp_path: Path) -> None:
    async def play(site: Site) -> None:
        site.age(100, 100, 100)
        site.store.cleaner.delete_manually()
        loop = asyncio.get_running_loop()
        run = site.tasks.spawn(site.timer.run(), "clean")
        left: dict[int, int] = {}
        while not run.done():
            await asyncio.sleep(0.1)
            left.setdefault(len(site.box.log_files), int(loop.time()))
        assert left == {4: 0, 3: 5, 2: 10, 1: 15}

    scene(tmp_path, play, delete_commit_log_files_interval=5_000)


def test_settings_that_do_not_do_what_they_say_are_told_at_the_start(tmp_path: Path) -> None:
    async def play(site: Site) -> None:
        with capture_logs() as logs:
            site.timer.start()
        assert any("diskMaxUsedSpaceRatio=5 counts as 10" in line["reason"] for line in logs)

    scene(tmp_path, play, disk_max_used_space_ratio=5)


async def test_files_are_deleted_beside_the_loop(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.age(100, 100)
    site.store.cleaner.delete_manually()
    await site.timer.run()
    assert site.first == 2
    assert site.disk.threads
    assert all(name.startswith("clean-store") for name in site.disk.threads)
    site.timer.close()
    site.box.close()


# What operators ask for


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    # Nothing is cleaned but by the test.
    settings = {"delete_when": "", "clean_resource_interval": 24 * HOUR_S * 1000}
    async with running(tmp_path, store=settings) as broker:
        yield broker


async def fill(broker: Broker, client: Client, topic: str, count: int) -> None:
    """Send messages of a size of which four fill a file of the log."""
    for _ in range(count):
        assert (await client.ask(SEND, send_ext(topic), bytes(900_000))).code == 0
    broker.store.flush_commit_log()
    for file in broker.store.commit_log.files.files:
        os.utime(file.path, (0, 0))


async def test_an_operator_has_expired_files_deleted_whatever_the_hour(
    broker: Broker, client: Client, operator: Client
) -> None:
    await fill(broker, client, "orders", 9)
    log = broker.store.commit_log
    clean(broker.store)
    assert log.min_offset == 0, "no hour is set, so nothing goes by itself"
    assert (await operator.ask(DELETE_EXPIRED, {})).code == ResponseCode.SUCCESS
    clean(broker.store)
    assert log.min_offset == 2 * (4 << 20)
    assert broker.store.min_offset("orders", 0) == 8


async def test_files_wait_for_the_offsets_that_a_group_commits(
    broker: Broker, client: Client, operator: Client
) -> None:
    broker.store.config.clean_file_waits_for_groups = "archive"
    # The files are as old as 1970.
    broker.store.config.clean_file_wait_max_hours = 1_000_000
    broker.groups.put(SubscriptionGroupConfig("archive"))
    await fill(broker, client, "orders", 9)
    log = broker.store.commit_log

    async def first_left_after(offset: int) -> int:
        ext = {"consumerGroup": "archive", "topic": "orders", "queueId": 0, "commitOffset": offset}
        assert (await client.ask(COMMIT, ext)).code == ResponseCode.SUCCESS
        assert (await operator.ask(DELETE_EXPIRED, {})).code == ResponseCode.SUCCESS
        clean(broker.store)
        return log.min_offset // (4 << 20)

    assert await first_left_after(3) == 0
    assert await first_left_after(4) == 1
    assert await first_left_after(9) == 2


async def test_queues_without_messages_go_but_those_of_topics_that_exist(
    broker: Broker, client: Client, operator: Client
) -> None:
    for topic in ("gone", "orders", "rmq_sys_of_a_switch_that_is_off", "kept"):
        put(broker.store, topic=topic)
    await fill(broker, client, "orders", 9)
    put(broker.store, topic="kept")
    broker.store.flush_commit_log()
    broker.store.cleaner.delete_manually()
    clean(broker.store)
    assert (await operator.ask(CLEAN_QUEUES, {})).code == ResponseCode.SUCCESS
    left = broker.store.topics().keys()
    assert "gone" not in left
    # The first exists, the second is the broker's own, the third has a message in the log.
    assert {"orders", "rmq_sys_of_a_switch_that_is_off", "kept"} <= left
    assert broker.store.min_offset("orders", 0) == 9, "or else it would begin at 0 again"


async def test_queues_without_messages_go_beside_the_loop(tmp_path: Path) -> None:
    disk = UsedDisk()
    settings = {"delete_when": "", "clean_resource_interval": 24 * HOUR_S * 1000}
    async with running(tmp_path, store=settings, disk=disk) as broker:
        client, operator = Client(broker), Client(broker, 4712, host=HOST)
        for number in range(3):
            put(broker.store, topic=f"gone-{number}")
        await fill(broker, client, "orders", 9)
        broker.store.cleaner.delete_manually()
        clean(broker.store)
        forgotten: list[str] = []
        broker.topics.on_remove.append(forgotten.append)
        disk.threads.clear()
        # Two operators at once do no more than one.
        for answer in await asyncio.gather(
            operator.ask(CLEAN_QUEUES, {}), operator.ask(CLEAN_QUEUES, {})
        ):
            assert answer.code == ResponseCode.SUCCESS
        assert sorted(forgotten) == ["gone-0", "gone-1", "gone-2"]
        assert {name.partition("_")[0] for name in disk.threads} == {"clean-store"}
        assert not [name for name in broker.store.topics() if name.startswith("gone")]
        assert not list((tmp_path / "consumequeue").glob("gone*"))


async def test_queues_of_topics_that_are_not_configured_go_with_their_messages(
    broker: Broker, operator: Client
) -> None:
    broker.topics.put(TopicConfig("made"))
    # Light queues, which a Java broker made, have no configuration.
    kept = {"made", "rmq_sys_of_a_switch_that_is_off", "%LMQ%device"}
    for topic in ("forgotten", *kept):
        put(broker.store, topic=topic)
    removed: list[str] = []
    broker.topics.on_remove.append(removed.append)
    assert (await operator.ask(CLEAN_TOPICS, {})).code == ResponseCode.SUCCESS
    left = broker.store.topics().keys()
    assert "forgotten" not in left
    assert kept <= left
    assert removed == ["forgotten"], "who keeps something about a topic hears that its queues went"


async def test_cleaning_what_is_clean_changes_nothing(
    broker: Broker, client: Client, operator: Client
) -> None:
    await client.ask(SEND, send_ext("orders"), b"x")
    for code in (DELETE_EXPIRED, CLEAN_QUEUES, CLEAN_TOPICS):
        assert (await operator.ask(code, {})).code == ResponseCode.SUCCESS
    assert broker.store.max_offset("orders", 0) == 1
    assert (broker.store.min_offset("orders", 0), broker.store.commit_log.min_offset) == (0, 0)
