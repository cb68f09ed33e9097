"""Messages that wait for longer than files are kept are copied before their file is deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.broker.broker_box import RoomyDisk
from tests.unit.broker.delay_box import DelayBox

from cometmq.broker.delays.state import DelayState
from cometmq.errors import StoreClosedError, StoreFullError
from cometmq.model import names
from cometmq.protocol.messages.properties import decode_properties
from cometmq.store.files.disk import Disk, DiskUsage
from cometmq.store.refusals import RefusalCause

HOUR_MS = 3_600_000
LEVEL_3_DAYS, TIMER_3_DAYS = {"DELAY": "2"}, {"TIMER_DELAY_SEC": "259200"}


class OldBox(DelayBox):
    """A store on a clock that also sets the age of files. `fileReservedTime` is 48 hours."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        super().__init__(
            root,
            disk=disk or RoomyDisk(),
            mapped_file_size_commit_log=16 * 1024,
            file_reserved_time=48,
            delete_when="",
            message_delay_level="1s 3d",
        )
        self.clock.value = int(time.time()) * 1000
        self.start_ms = self.clock.value
        self.watch()

    def watch(self) -> None:
        self.store.cleaner.on_expiring.append(
            lambda end: self.delayed.roll(end, self.clock.now_ms(), 10, DelayState())
        )

    def fill(self) -> None:
        """Put more messages, until the log has another file."""
        end = self.store.commit_log.files.end
        while self.store.commit_log.end < end:
            self.put({}, topic="others", body=b"x" * 1000)

    def clean_at(self, after_ms: int) -> None:
        """Run the cleaner twice with a flush between, as a broker's timers do."""
        self.clock.value = self.start_ms + after_ms
        for _ in range(2):
            self.store.flush_all()
            self.store.cleaner.delete_manually()
            self.store.cleaner.run_now()

    def restart(self) -> None:
        """Kill the store, and start it again without any saved state of the delayed messages."""
        self.box.crash(self.store)
        self.open(None)
        self.watch()


@pytest.fixture
def old(tmp_path: Path) -> Iterator[OldBox]:
    old = OldBox(tmp_path / "store")
    yield old
    old.box.close()


@pytest.mark.parametrize("wait", [LEVEL_3_DAYS, TIMER_3_DAYS], ids=["level", "timer"])
@pytest.mark.parametrize("restart", [OldBox.restart, lambda _: None], ids=["killed", "running"])
def test_what_waits_three_days_outlives_files_of_two(
    old: OldBox, wait: dict[str, str], restart: Callable[[OldBox], None]
) -> None:
    places = [
        old.put({**wait, "UNIQ_KEY": f"U{number}", "TAGS": "t"}, body=b"%d" % number)
        for number in range(25)
    ]
    old.fill()
    assert old.store.commit_log.min_offset == 0
    old.clean_at(49 * HOUR_MS)
    assert old.store.commit_log.min_offset > max(places)
    assert old.delayed.pending == 25
    restart(old)
    assert old.delayed.pending == 25
    old.run_at(72 * HOUR_MS - 1)
    assert old.bodies() == []
    old.run_at(72 * HOUR_MS + 1000)
    assert old.bodies() == [b"%d" % number for number in range(25)]
    restart(old)
    old.run_at(200 * HOUR_MS)
    assert len(old.bodies()) == 25
    assert old.delayed.pending == 0


def test_a_copy_counts_how_often_it_was_rolled(old: OldBox) -> None:
    old.put({"TIMER_DELAY_SEC": "259200"})
    for hours in (49, 50):
        old.fill()
        old.clean_at(hours * HOUR_MS)
    (waiting,) = old.records(names.TIMER_TOPIC, 0)
    assert decode_properties(waiting.properties)["TIMER_ROLL_TIMES"] == "2"
    old.run_at(73 * HOUR_MS)
    (record,) = old.records()
    assert decode_properties(record.properties)["TIMER_ROLL_TIMES"] == "2"


def test_what_does_not_wait_in_it_is_not_copied(old: OldBox) -> None:
    old.put({"DELAY": "1"})
    old.put({"TIMER_DELAY_MS": "1000"})
    old.run_at(3_000)
    old.fill()
    old.put(TIMER_3_DAYS)
    count = old.store.max_offset(names.TIMER_TOPIC, 0)
    old.clean_at(49 * HOUR_MS)
    assert old.store.commit_log.min_offset > 0
    assert old.store.max_offset(names.TIMER_TOPIC, 0) == count


def test_a_file_stays_until_its_copies_are_on_disk(old: OldBox) -> None:
    old.put(TIMER_3_DAYS)
    old.fill()
    old.store.flush_all()
    old.clock.value += 49 * HOUR_MS
    old.store.cleaner.delete_manually()
    old.store.cleaner.run_now()
    assert old.store.max_offset(names.TIMER_TOPIC, 0) == 2
    assert old.store.commit_log.min_offset == 0
    old.store.flush_all()
    old.store.cleaner.run_now()
    assert old.store.commit_log.min_offset > 0
    assert old.store.max_offset(names.TIMER_TOPIC, 0) == 2


def test_a_file_stays_while_the_store_takes_no_copies(old: OldBox) -> None:
    old.put(TIMER_3_DAYS)
    old.fill()
    old.store.refusals.set(RefusalCause.CLOSED, StoreClosedError("no more"))
    old.clean_at(49 * HOUR_MS)
    assert old.store.commit_log.min_offset == 0
    old.store.refusals.lift(RefusalCause.CLOSED)
    old.clean_at(49 * HOUR_MS)
    assert old.store.commit_log.min_offset > 0
    old.run_at(73 * HOUR_MS)
    assert old.bodies() == [b"body"]


class CrowdedDisk(Disk):
    """A disk whose use lies above diskSpaceCleanForciblyRatio and below
    diskSpaceWarningLevelRatio.
    """

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(1 << 30, (1 << 30) * 13 // 100)


def test_one_message_that_waits_keeps_no_file_on_a_full_disk(tmp_path: Path) -> None:
    old = OldBox(tmp_path / "store", CrowdedDisk())
    old.put(TIMER_3_DAYS)
    old.fill()
    full = StoreFullError("the disk is full")
    old.store.refusals.set(RefusalCause.DISK_FULL, full)
    old.clean_at(0)
    assert old.store.commit_log.min_offset > 0
    assert old.store.refusal is full
    old.store.refusals.lift(RefusalCause.DISK_FULL)
    old.run_at(73 * HOUR_MS)
    assert old.bodies() == [b"body"]
    old.box.close()


def test_a_rolled_message_can_be_recalled(old: OldBox) -> None:
    old.put({**TIMER_3_DAYS, "UNIQ_KEY": "U1"})
    old.put({**TIMER_3_DAYS, "UNIQ_KEY": "U2"}, body=b"kept")
    old.fill()
    old.clean_at(49 * HOUR_MS)
    slot = old.delayed.timers.slot_of(old.start_ms + 72 * HOUR_MS)
    old.put({"TIMER_DELIVER_MS": str(slot + 1), "TIMER_DEL_UNIQKEY": "orders+U1"}, body=b"0")
    old.fill()
    # The recall is rolled as well.
    old.clean_at(60 * HOUR_MS)
    old.restart()
    old.run_at(80 * HOUR_MS)
    assert old.bodies() == [b"kept"]


def test_a_message_of_a_recall_that_was_done_and_left_the_log_does_not_come_after_a_kill(
    old: OldBox,
) -> None:
    old.put({**TIMER_3_DAYS, "UNIQ_KEY": "U1"})
    old.fill()
    # The message lies behind its recall now.
    slot = old.delayed.timers.slot_of(old.start_ms + 72 * HOUR_MS)
    recall = {"TIMER_DELIVER_MS": str(slot + 1), "TIMER_DEL_UNIQKEY": "orders+U1"}
    place = old.put({**recall, "UNIQ_KEY": "U1"}, body=b"0")
    old.clean_at(49 * HOUR_MS)
    old.run_at(80 * HOUR_MS)
    old.fill()
    old.clean_at(140 * HOUR_MS)
    assert old.store.commit_log.min_offset > place
    old.restart()
    old.run_at(141 * HOUR_MS)
    assert old.bodies() == []


def test_a_file_stays_until_what_was_delivered_out_of_it_is_on_disk(old: OldBox) -> None:
    old.put({"TIMER_DELAY_MS": "1000"})
    old.put({"DELAY": "1"})
    old.fill()
    old.store.flush_all()
    old.run_at(49 * HOUR_MS)
    assert len(old.bodies()) == 2
    old.store.cleaner.delete_manually()
    old.store.cleaner.run_now()
    assert old.store.commit_log.min_offset == 0
    old.store.flush_all()
    old.store.cleaner.run_now()
    assert old.store.commit_log.min_offset > 0
