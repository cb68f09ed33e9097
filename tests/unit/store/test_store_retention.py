"""Which files are deleted, when and why, and what follows."""

from __future__ import annotations

import dataclasses
import mmap
import os
import shutil
import time
from collections.abc import Callable, Container, Iterator
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.cleaning import clean
from tests.unit.store.store_box import LOG_FILE, Box, bodies, put, records

from cometmq.errors import StoreBusyError, StoreError, StoreFullError
from cometmq.protocol.messages.record import decode_record
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk, DiskUsage
from cometmq.store.offline.check import Area
from cometmq.store.offline.repair import check
from cometmq.store.refusals import RefusalCause
from cometmq.store.retention.retention import Disks, Fate, LogFile, Plan, Policy, plan, surprises
from cometmq.store.store import MessageStore

HOUR = 3_600_000
POLICY = Policy.of(StoreConfig())
ROOMY = Disks(0.5, 0.5)


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> int:
    return int(datetime.fromisoformat(f"2026-03-{text}+00:00").timestamp() * 1000)


NOON = at("10T12:00")
FOUR = at("10T04:30")


def log_files(now_ms: int, *ages_h: float) -> list[LogFile]:
    return [LogFile(n * 100, 100, now_ms - int(age * HOUR)) for n, age in enumerate(ages_h)]


def judged(found: Plan) -> list[int]:
    return [file.base for file in found.removals]


def test_expired_files_go_at_the_hour_oldest_first() -> None:
    files = log_files(FOUR, 90, 80, 71, 75, 1)
    found = plan(FOUR, files, ROOMY, POLICY)
    assert judged(found) == [0, 100]
    assert "it is 04 o'clock (deleteWhen)" in found.verdicts[0].reason
    # 75 h are enough, but a file before it stays.
    assert found.verdicts[3].reason == "files go oldest first, and an older one has not expired"


def test_at_other_hours_they_stay_and_it_is_said_until_when() -> None:
    found = plan(NOON, log_files(NOON, 90, 1), ROOMY, POLICY)
    assert judged(found) == []
    assert "not the time to delete (deleteWhen)" in found.verdicts[0].reason
    assert found.verdicts[0].when_ms == at("11T04:00")


def test_the_newest_file_stays_whatever_happens() -> None:
    found = plan(FOUR, log_files(FOUR, 1000), Disks(0.99, 0.99), POLICY, manual=True)
    assert judged(found) == []
    assert found.verdicts[0].when_ms is None
    assert found.verdicts[0].reason == "the newest file always stays"


def test_an_operator_need_not_wait_for_the_hour() -> None:
    found = plan(NOON, log_files(NOON, 90, 71, 1), ROOMY, POLICY, manual=True)
    assert judged(found) == [0]
    assert "an operator asked for it" in found.verdicts[0].reason


@pytest.mark.parametrize("disks", [Disks(0.76, 0.1), Disks(0.1, 0.76)])
def test_above_three_quarters_expired_files_go_at_any_hour(disks: Disks) -> None:
    found = plan(NOON, log_files(NOON, 90, 71, 1), disks, POLICY)
    assert judged(found) == [0]
    assert found.full is False
    assert "76% full, above 75% (diskMaxUsedSpaceRatio)" in found.verdicts[0].reason
    # The next one follows as soon as it has expired.
    assert found.verdicts[1].when_ms == NOON + HOUR


def test_above_85_per_cent_age_does_not_matter() -> None:
    found = plan(NOON, log_files(NOON, 3, 2, 1), Disks(0.86, 0.1), POLICY)
    assert judged(found) == [0, 100]
    assert found.full is None
    assert "whatever its age" in found.verdicts[0].reason
    gentle = Policy.of(StoreConfig(clean_file_forcibly_enable=False))
    assert judged(plan(NOON, log_files(NOON, 80, 2, 1), Disks(0.86, 0.1), gentle)) == [0]


@pytest.mark.parametrize(
    ("ratio", "full"), [(0.84, False), (0.85, False), (0.86, None), (0.90, None), (0.91, True)]
)
def test_messages_are_refused_above_90_per_cent_until_it_is_85_again(
    ratio: float, full: bool | None
) -> None:
    assert plan(NOON, log_files(NOON, 1), Disks(0.1, ratio), POLICY).full is full


def test_a_run_deletes_a_batch() -> None:
    policy = Policy.of(StoreConfig(delete_file_batch_max=2))
    found = plan(FOUR, log_files(FOUR, 90, 90, 90, 90, 1), ROOMY, policy)
    assert judged(found) == [0, 100]
    assert "at most 2 files (deleteFileBatchMax)" in found.verdicts[2].reason


def test_ratios_are_bounded() -> None:
    high = Policy.of(
        StoreConfig(disk_space_warning_level_ratio=99, disk_space_clean_forcibly_ratio=99)
    )
    assert (high.forcibly_ratio, high.warning_ratio) == (0.85, 0.90)
    low = Policy.of(
        StoreConfig(disk_space_warning_level_ratio=1, disk_space_clean_forcibly_ratio=1)
    )
    assert (low.forcibly_ratio, low.warning_ratio) == (0.30, 0.35)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, []),
        ({"disk_max_used_space_ratio": 85}, []),
        (
            {"disk_max_used_space_ratio": 100},
            ["diskMaxUsedSpaceRatio=100 counts as 95", "keeps no file for longer: above 85%"],
        ),
        ({"disk_max_used_space_ratio": 95, "clean_file_forcibly_enable": False}, []),
        ({"disk_max_used_space_ratio": 5}, ["diskMaxUsedSpaceRatio=5 counts as 10"]),
        (
            {"disk_space_warning_level_ratio": 98, "disk_space_clean_forcibly_ratio": 97},
            [
                "diskSpaceCleanForciblyRatio=97 counts as 85",
                "diskSpaceWarningLevelRatio=98 counts as 90",
            ],
        ),
    ],
)
def test_a_ratio_of_100_became_90_and_nobody_said_so(
    settings: dict[str, int], said: list[str]
) -> None:
    found = surprises(StoreConfig(**settings))  # type: ignore[arg-type]  # a dict of settings of several types
    assert len(found) == len(said)
    for text, wanted in zip(found, said, strict=True):
        assert wanted in text


def test_without_an_hour_nothing_is_foretold() -> None:
    never = Policy.of(StoreConfig(delete_when=""))
    assert plan(NOON, log_files(NOON, 90, 1), ROOMY, never).verdicts[0].when_ms is None
    twice = Policy.of(StoreConfig(delete_when="02;14"))
    found = plan(NOON, log_files(NOON, 70, 1), ROOMY, twice)
    assert found.verdicts[0].when_ms == at("10T14:00")
    assert "it expires in 2 h" in found.verdicts[0].reason


# -- the cleaner --


class UsedDisk(Disk):
    """A disk that is as full as the test says, and removes nothing while `stuck`."""

    def __init__(self) -> None:
        self.used = 50
        self.stuck = False

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(100 << 30, (100 - self.used) << 30)

    def remove(self, path: Path) -> None:
        if self.stuck:
            raise StoreError(f"{path}: Operation not permitted")
        super().remove(path)

    def remove_tree(self, path: Path) -> None:
        if self.stuck:
            raise StoreError(f"{path}: Operation not permitted")
        super().remove_tree(path)


def age(box: Box, *hours: float) -> None:
    """Give the log's files an age, and sync what is in them: only then may they be deleted."""
    for store in box.opened:
        store.flush_commit_log()
    for path, hour in zip(box.log_files, hours, strict=False):
        seconds = box.clock.value / 1000 - hour * 3600
        os.utime(path, (seconds, seconds))


def filled(box: Box, disk: Disk) -> MessageStore:
    """Make four files of the log with eight messages each, for two queues of five messages a
    file.
    """
    store = box.open(disk)
    for number in range(32):
        put(store, b"%02d" % number * 200, queue_id=number % 2)
    assert len(box.log_files) == 4
    return store


def test_files_queues_and_offsets_follow(box: Box) -> None:
    disk = UsedDisk()
    store = filled(box, disk)
    trimmed: list[int] = []
    store.cleaner.on_trimmed.append(lambda offset: iter(trimmed.append(offset) or ()))  # type: ignore[func-returns-value]  # append returns None, and `or` goes on
    age(box, 90, 90)
    disk.used = 80
    before = {record.queue_offset: record.body for record in records(store)}
    clean(store)
    assert store.commit_log.min_offset == 2 * LOG_FILE
    assert trimmed == [2 * LOG_FILE]
    kept = records(store)
    assert kept
    assert kept[0].physical_offset >= 2 * LOG_FILE
    assert store.min_offset("orders", 0) == kept[0].queue_offset > 0
    assert {record.queue_offset: record.body for record in kept}.items() < before.items()
    assert store.min_offset("orders", 0) == 8
    names = sorted(path.name for path in (box.root / "consumequeue/orders/0").iterdir())
    assert names[0] == f"{100:020d}"
    # And all of it holds after a restart.
    store.close()
    again = box.open()
    assert records(again)[0].queue_offset == kept[0].queue_offset
    assert put(again)[0] == 16


def test_a_reader_keeps_what_it_reads(box: Box) -> None:
    disk = UsedDisk()
    store = filled(box, disk)
    view = store.record_at(0)
    assert view is not None
    age(box, 90)
    disk.used = 80
    clean(store)
    assert not (box.root / "commitlog" / f"{0:020d}").exists()
    assert store.record_at(0) is None
    assert decode_record(view, check_crc=True).body == b"00" * 200


def removed_queues(store: MessageStore, kept: Container[str] = ()) -> list[str]:
    """Remove the queues without messages; return their topics."""
    forgotten: list[str] = []
    for work in store.removal_of_lost_queues(lambda topic: topic in kept, forgotten.append):
        work.do()
    return forgotten


def test_a_queue_without_messages_goes_on_with_its_offsets(box: Box) -> None:
    disk = UsedDisk()
    store = box.open(disk)
    for _ in range(7):
        put(store, b"old", topic="idle")
    for _ in range(12):
        put(store, bytes(800))
    age(box, 90, 90)
    disk.used = 80
    clean(store)
    assert (store.min_offset("idle", 0), store.max_offset("idle", 0)) == (7, 7)
    assert store.get("idle", 0, 7, 32).status.value == "OFFSET_OVERFLOW_ONE"
    assert removed_queues(store, kept={"idle"}) == []
    assert put(store, topic="idle")[0] == 7
    store.close()
    again = box.open()
    assert bodies(again, "idle") == [b"body"]


def test_queues_of_topics_that_are_gone_are_removed(box: Box) -> None:
    disk = UsedDisk()
    store = box.open(disk)
    put(store, b"old", topic="gone", queue_id=0)
    for _ in range(12):
        put(store, bytes(800))
    put(store, b"new", topic="gone", queue_id=1)
    age(box, 90, 90)
    disk.used = 80
    clean(store)
    assert removed_queues(store) == ["gone"]
    assert store.topics()["gone"] == [1]
    assert not (box.root / "consumequeue/gone/0").exists()
    assert bodies(store, "gone", 1) == [b"new"]


def test_a_queue_that_is_removed_takes_nothing_until_its_files_are_gone(box: Box) -> None:
    disk = UsedDisk()
    store = box.open(disk)
    put(store, b"old", topic="gone")
    for _ in range(12):
        put(store, bytes(800))
    age(box, 90, 90)
    disk.used = 80
    clean(store)
    for work in store.removal_of_lost_queues(lambda topic: topic != "gone"):
        with pytest.raises(StoreBusyError, match="topic gone is being deleted; try again"):
            put(store, topic="gone")
        # Somebody else may ask for the same meanwhile.
        assert list(store.removal_of_lost_queues(lambda topic: topic != "gone")) == []
        work.do()
    assert put(store, b"new", topic="gone")[0] == 0
    assert bodies(store, "gone") == [b"new"]


def test_a_late_deletion_spares_the_file_of_a_queue_that_was_made_since(box: Box) -> None:
    """It has the name of the file that is to be deleted."""
    disk = UsedDisk()
    store = box.open(disk)
    for _ in range(6):
        put(store, b"old", topic="gone")
    for _ in range(12):
        put(store, bytes(800))
    age(box, 90, 90)
    disk.used = 80
    queue = store.queues.find("gone", 0)
    assert queue is not None
    was_removed = False
    for work in store.cleaner.run():
        if not was_removed and queue.first_offset > 0:  # this is the deletion of its first file
            assert removed_queues(store, kept={"orders"}) == ["gone"]
            assert put(store, b"new", topic="gone")[0] == 0
            was_removed = True
        work.do()
    assert was_removed
    store.queues.release()
    assert bodies(store, "gone") == [b"new"]


def test_queues_stay_while_a_file_that_may_have_their_messages_hangs(box: Box) -> None:
    disk = UsedDisk()
    store = box.open(disk)
    put(store, b"old", topic="gone")
    for _ in range(12):
        put(store, bytes(800))
    age(box, 90, 90)
    disk.used = 80
    disk.stuck = True
    clean(store)
    assert store.commit_log.min_offset > 0
    assert removed_queues(store, kept={"orders"}) == []
    assert put(store, b"new", topic="gone")[0] == 1
    disk.stuck = False
    box.crash(store)
    # A rebuild from the whole log, which has the file again.
    shutil.rmtree(box.root / "consumequeue")
    assert bodies(box.open(disk), "gone") == [b"old", b"new"]


def test_files_that_a_removal_leaves_are_no_part_of_the_next_queue(box: Box) -> None:
    disk = UsedDisk()
    store = box.open(disk)
    for _ in range(4):
        put(store, b"old", topic="gone")
    for _ in range(12):
        put(store, bytes(800))
    age(box, 90, 90)
    disk.used = 80
    clean(store)
    disk.stuck = True
    with pytest.raises(StoreError, match="not permitted"):
        removed_queues(store, kept={"orders"})
    with pytest.raises(StoreError, match="not permitted"):
        put(store, b"new", topic="gone")
    disk.stuck = False
    assert put(store, b"new", topic="gone")[0] == 0
    store.close()
    assert bodies(box.open(disk), "gone") == [b"new"]


def test_a_pooled_queue_begins_anew_after_its_removal(make_box: Callable[..., Box]) -> None:
    box = make_box(transient_store_pool_enable=True)
    disk = UsedDisk()
    store = box.open(disk)
    put(store, b"old", topic="gone")
    for _ in range(12):
        put(store, bytes(800))
    store.commit()
    store.publish()
    age(box, 90, 90)
    disk.used = 80
    clean(store)
    # What is not published yet keeps its queue.
    assert put(store, b"late", topic="gone")[0] == 1
    assert removed_queues(store, kept={"orders"}) == []
    assert store.max_offset("gone", 0) == 2
    for _ in range(12):
        put(store, bytes(800))
    store.commit()
    store.publish()
    age(box, 90, 90)
    clean(store)
    assert removed_queues(store, kept={"orders"}) == ["gone"]
    assert put(store, b"new", topic="gone")[0] == 0
    store.commit()
    store.publish()
    assert bodies(store, "gone") == [b"new"]


def test_a_full_disk_refuses_and_recovers_by_itself(box: Box) -> None:
    disk = UsedDisk()
    store = filled(box, disk)
    store.flush_commit_log()
    disk.used = 91
    clean(store)
    with pytest.raises(
        StoreFullError,
        match=r"91\.0% full, the limit is 90% \(diskSpaceWarningLevelRatio\).*below 85%.*72 hours",
    ) as caught:
        put(store)
    assert caught.value.code == 14
    assert len(store.commit_log.files.files) == 1, "forced cleaning has begun"
    assert records(store, queue_id=1), "consumers are served"
    disk.used = 88
    clean(store)
    with pytest.raises(StoreFullError):
        put(store)
    disk.used = 84
    clean(store)
    put(store)
    assert store.refusals.counts[RefusalCause.DISK_FULL] == 2


def test_files_seconds_old_were_deleted_without_an_error(box: Box) -> None:
    """Each file is named once, with the rule and the setting; an expired file goes without a
    line.
    """
    disk = UsedDisk()
    store = filled(box, disk)
    store.flush_commit_log()
    paths = box.log_files
    age(box, 90, 0, 0, 0)
    disk.used = 86
    with capture_logs() as said:
        for _ in range(3):
            clean(store)
    assert box.log_files == paths[-1:]
    errors = [line for line in said if line["log_level"] == "error"]
    assert [line["path"] for line in errors] == [str(path) for path in paths[1:-1]]
    for line in errors:
        assert "86% full, above 85% (diskSpaceCleanForciblyRatio)" in line["why"]
        assert "diskSpaceCleanForciblyRatio=85 and cleanFileForciblyEnable=true" in line["rule"]
        assert line["file_reserved_time"] == "72 h"
        assert "cleanFileForciblyEnable=false" in line["remedy"]


def test_without_force_a_full_disk_refuses_and_keeps_what_has_not_expired(box: Box) -> None:
    box.config = dataclasses.replace(box.config, clean_file_forcibly_enable=False)
    disk = UsedDisk()
    store = filled(box, disk)
    store.flush_commit_log()
    paths = box.log_files
    age(box, 0, 0, 0, 0)
    disk.used = 91
    with capture_logs() as said:
        for _ in range(3):
            clean(store)
    with pytest.raises(StoreFullError):
        put(store)
    assert box.log_files == paths
    assert not [line for line in said if line["log_level"] == "error" and "path" in line]
    disk.used = 84
    clean(store)
    put(store)


def test_twenty_runs_delete_by_order(box: Box) -> None:
    store = filled(box, UsedDisk())
    box.clock.value = NOON
    age(box, 90)
    clean(store)
    assert store.commit_log.min_offset == 0
    store.cleaner.delete_manually()
    clean(store)
    assert store.commit_log.min_offset == LOG_FILE
    for _ in range(19):
        clean(store)
    age(box, 90)
    clean(store)
    assert store.commit_log.min_offset == LOG_FILE


def test_a_file_that_cannot_be_deleted_holds_up_those_behind_it(box: Box) -> None:
    disk = UsedDisk()
    store = filled(box, disk)
    age(box, 90, 90)
    disk.used, disk.stuck = 80, True
    clean(store)
    first, second, *_ = box.log_files
    disk.stuck = False
    clean(store)
    assert (first.exists(), second.exists()) == (True, True), "not before the interval is over"
    box.clock.value += 120_000
    age(box, 90, 90)
    clean(store)
    assert (first.exists(), second.exists()) == (False, False)


def test_pauses_are_asked_for(box: Box) -> None:
    disk = UsedDisk()
    store = filled(box, disk)
    age(box, 90, 90)
    disk.used = 80
    pauses = []
    for work in store.cleaner.run():
        work.do()
        pauses.append(work.pause_ms)
    assert pauses[1:3] == [100, 100]


def test_many_queues_are_looked_at_in_pieces_of_half_a_millisecond(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = UsedDisk()
    store = box.open(disk)
    for number in range(120):
        put(store, bytes(200), queue_id=number % 60)
    age(box, 90, 90)
    disk.used = 80
    readings = count(0, 0.0002)  # A look at a queue takes 0.2 ms.
    monkeypatch.setattr(box.clock, "monotonic", lambda: next(readings))
    pieces = 0
    for work in store.cleaner.run():
        work.do()
        pieces += 1
    assert store.commit_log.min_offset == 2 * LOG_FILE
    assert pieces >= 60 / 3


def test_a_removal_of_lost_queues_leaves_alone_what_another_one_has_taken(box: Box) -> None:
    disk = UsedDisk()
    store = box.open(disk)
    for number in range(5):
        put(store, topic=f"gone-{number}")
    for _ in range(20):
        put(store, bytes(800))
    age(box, 90, 90)
    disk.used = 80
    clean(store)
    forgotten: list[str] = []
    first, second = (
        store.removal_of_lost_queues(lambda topic: topic == "orders", forgotten.append)
        for _ in range(2)
    )
    next(first).do()
    for removal in (second, first):
        for work in removal:
            work.do()
    assert sorted(forgotten) == sorted(f"gone-{number}" for number in range(5))


def test_no_queue_is_mapped_while_nothing_has_left_the_log(box: Box) -> None:
    class CountingDisk(UsedDisk):
        maps = 0

        def map(self, path: Path, size: int, **how: Any) -> mmap.mmap:
            self.maps += 1
            return super().map(path, size, **how)

    filled(box, UsedDisk()).close()
    disk = CountingDisk()
    store = box.open(disk)
    maps = disk.maps
    clean(store)
    assert disk.maps == maps
    age(box, 90, 90)
    disk.used = 80
    clean(store)
    assert disk.maps > maps


def test_explain_sees_every_file(box: Box) -> None:
    store = filled(box, UsedDisk())
    found = store.cleaner.explain()
    assert [verdict.file.base for verdict in found.verdicts] == [
        file.base for file in store.commit_log.files.files
    ]
    assert {verdict.fate for verdict in found.verdicts} == {Fate.KEPT}


def test_a_queue_file_that_is_not_full_stays_though_the_next_one_is_made(box: Box) -> None:
    disk = UsedDisk()
    store = box.open(disk)
    for _ in range(8):
        put(store, bytes(800), queue_id=1)
    put(store, b"a")
    queue = store.queue("orders", 0)
    queue.reserve(10)
    assert len(queue.files.files) > 1
    age(box, 90)
    disk.used = 80
    clean(store)
    assert store.commit_log.min_offset > 0
    assert bodies(store) == [b"a"]


@pytest.mark.parametrize("kept_files", [1, 3])
def test_a_queue_of_the_smallest_records_is_rebuilt_though_most_of_its_log_is_gone(
    make_box: Callable[..., Box], kept_files: int
) -> None:
    """Its next message has the largest queue offset that a place in the log allows."""
    box = make_box()
    store = box.open()
    for _ in range(2_000):
        put(store, b"", topic="a")
    last = store.max_offset("a", 0)
    store.close()
    files = sorted((box.root / "commitlog").iterdir())
    for path in files[:-kept_files]:
        path.unlink()
    shutil.rmtree(box.root / "consumequeue")
    again = box.open()
    assert again.max_offset("a", 0) == last
    found = [record.queue_offset for record in records(again, "a")]
    assert found == list(range(again.min_offset("a", 0), last))
    assert len(found) >= (kept_files - 1) * (LOG_FILE // 92 - 1)
    again.close()
    # A check misses the files that were removed by hand, and nothing else.
    assert {found.area for found in check(box.config)[1].findings} == {Area.FILES}
