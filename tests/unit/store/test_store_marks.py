"""Which files wait for the marks of groups, for how long, and what they never do: fill the disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.cleaning import clean
from tests.unit.store.store_box import LOG_FILE, Box, put
from tests.unit.store.test_store_retention import HOUR, ROOMY, UsedDisk, age, log_files

from cometmq.cli.store.consumer_offsets import committed_offsets
from cometmq.errors import ConfigError
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.offline.marks import offline_hold
from cometmq.store.offline.store import open_offline
from cometmq.store.retention.retention import Disks, Hold, Plan, Policy, plan
from cometmq.store.store import MessageStore

GROUP = "archive"
NOW = 1_773_144_000_000
ALL_DAY = ";".join(f"{hour:02d}" for hour in range(24))
WAITING = Policy.of(
    StoreConfig(
        delete_when=ALL_DAY, clean_file_waits_for_groups=GROUP, clean_file_wait_max_hours=24
    )
)
SECOND_FILE = Hold(100, "somebody has marked little")


def judged(found: Plan) -> list[int]:
    return [file.base for file in found.removals]


def test_an_expired_file_stays_while_it_has_unmarked_messages() -> None:
    files = log_files(NOW, 90, 80, 75, 1)
    found = plan(NOW, files, ROOMY, WAITING, hold=SECOND_FILE)
    assert judged(found) == [0], "the mark is behind the last message of the first file"
    assert "somebody has marked little (cleanFileWaitsForGroups)" in found.verdicts[1].reason
    assert "in 16 h (cleanFileWaitMaxHours)" in found.verdicts[1].reason
    assert found.verdicts[1].when_ms == NOW + 16 * HOUR
    assert found.verdicts[2].reason == "files go oldest first, and an older one waits for a mark"
    assert plan(NOW, files, ROOMY, WAITING).removals == files[:3]


def test_an_operator_who_asks_for_a_deletion_does_not_get_what_waits() -> None:
    found = plan(NOW, log_files(NOW, 90, 1), ROOMY, WAITING, manual=True, hold=Hold(0, "-"))
    assert judged(found) == []
    assert found.waited_ms == 18 * HOUR


def test_a_file_waits_no_longer_than_cleanFileWaitMaxHours() -> None:
    found = plan(NOW, log_files(NOW, 97, 95, 1), ROOMY, WAITING, hold=Hold(0, "-"))
    assert judged(found) == [0]
    assert found.is_unmarked(found.removals[0])
    assert not found.goes_early(found.removals[0])


@pytest.mark.parametrize("may_force", [True, False])
def test_a_disk_that_gets_full_waits_for_nobody(may_force: bool) -> None:
    """Not even where cleanFileForciblyEnable=false: it keeps what has not expired."""
    policy = Policy.of(
        StoreConfig(
            clean_file_waits_for_groups=GROUP,
            clean_file_wait_max_hours=10_000,
            clean_file_forcibly_enable=may_force,
        )
    )
    files = log_files(NOW, 90, 1, 1)
    assert judged(plan(NOW, files, Disks(0.84, 0.1), policy, hold=Hold(0, "-"))) == []
    full = plan(NOW, files, Disks(0.86, 0.1), policy, hold=Hold(0, "-"))
    assert judged(full) == ([0, 100] if may_force else [0])
    assert full.waited_ms == 0


def test_a_mark_lets_nothing_go_before_its_time() -> None:
    files = log_files(NOW, 71, 1)
    assert judged(plan(NOW, files, ROOMY, WAITING, hold=None)) == []
    assert judged(plan(NOW, files, ROOMY, WAITING, hold=Hold(10**9, "-"))) == []


def test_a_group_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="cleanFileWaitsForGroups"):
        StoreConfig(clean_file_waits_for_groups="archive;with space")
    two = StoreConfig(clean_file_waits_for_groups=" a ; b;a;").waited_groups
    assert two == ("a", "b")


# -- the cleaner --


class Marked:
    """A store of four log files with 8 messages each of two queues, which a group marks."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.disk = UsedDisk()
        self.disk.used = 80
        self.store: MessageStore = box.open(self.disk)
        for number in range(32):
            put(self.store, b"%02d" % number * 200, queue_id=number % 2)
        age(box, 90, 90, 90, 1)
        self.marks: dict[str, dict[str, dict[int, int]]] = {GROUP: {}}
        self.store.cleaner.marks_of = lambda group: self.marks[group]

    def run(self) -> int:
        """Return the number of the first file that is left after a run of the cleaner."""
        clean(self.store)
        return self.store.commit_log.min_offset // LOG_FILE


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Marked]:
    box = Box(tmp_path, clean_file_waits_for_groups=GROUP, clean_file_wait_max_hours=24)
    yield Marked(box)
    box.close()


def test_files_follow_the_queue_that_is_marked_least(marked: Marked) -> None:
    assert marked.run() == 0, "nothing is marked yet"
    assert "group archive has not marked anything" in marked.store.cleaner.explain().verdicts[0][2]
    marked.marks[GROUP] = {"orders": {0: 16}}
    assert marked.run() == 0, "of queue 1 nothing is marked yet"
    marked.marks[GROUP] = {"orders": {0: 16, 1: 3}}
    assert marked.run() == 0
    assert "only up to offset 3" in marked.store.cleaner.explain().verdicts[0].reason
    assert marked.store.cleaner.waited_ms == 18 * HOUR
    marked.marks[GROUP] = {"orders": {0: 16, 1: 4}}
    assert marked.run() == 1
    marked.marks[GROUP] = {"orders": {0: 16, 1: 16}}
    assert marked.run() == 3
    assert marked.store.cleaner.waited_ms == 0
    assert marked.store.cleaner.unmarked_counts == {"disk": 0, "age": 0}


def test_topics_that_a_group_does_not_mark_do_not_wait(marked: Marked) -> None:
    marked.marks[GROUP] = {"payments": {0: 0}}
    assert marked.run() == 3


def test_every_group_has_to_mark(marked: Marked) -> None:
    marked.store.config.clean_file_waits_for_groups = f"{GROUP};backup"
    marked.marks = {GROUP: {"orders": {0: 16, 1: 16}}, "backup": {"orders": {0: 4, 1: 4}}}
    assert marked.run() == 1


def test_a_mark_in_front_of_the_queue_counts_from_its_first_message(marked: Marked) -> None:
    marked.marks[GROUP] = {"orders": {0: 4, 1: 4}}
    assert marked.run() == 1
    marked.marks[GROUP] = {"orders": {0: 0, 1: 0}}
    assert marked.run() == 1
    assert "only up to offset 4" in marked.store.cleaner.explain().verdicts[0].reason


def test_a_unit_that_cannot_be_read_keeps_the_files(marked: Marked) -> None:
    marked.marks[GROUP] = {"orders": {0: 16, 1: 12}}
    (hidden,) = (marked.box.root / "consumequeue/orders/1").glob(f"*{200:03d}")
    away = hidden.with_name("away")
    shutil.move(hidden, away)
    assert marked.run() == 0
    shutil.move(away, hidden)
    assert marked.run() == 3


def test_what_goes_unmarked_is_an_error_and_is_counted(marked: Marked) -> None:
    age(marked.box, 97, 90, 90, 1)
    with capture_logs() as logs:
        assert marked.run() == 1
    (reported,) = [line for line in logs if "before a group has marked" in line["event"]]
    assert reported["log_level"] == "error"
    assert "cleanFileWaitMaxHours=24" in reported["why"]
    assert marked.store.cleaner.unmarked_counts == {"disk": 0, "age": 1}
    marked.disk.used = 88
    marked.run()
    assert marked.store.cleaner.unmarked_counts == {"disk": 2, "age": 1}


def test_groups_may_be_named_and_taken_out_while_the_store_is_open(marked: Marked) -> None:
    assert marked.run() == 0
    marked.store.config.clean_file_waits_for_groups = ""
    assert marked.run() == 3


def test_explain_finds_the_same_in_the_files_of_a_stopped_broker(marked: Marked) -> None:
    marks = '{"offsetTable":{"orders@archive":{"0":16,"1":4},"orders@other":{"0":1}}}'
    marked.marks[GROUP] = {"orders": {0: 16, 1: 4}}
    clean(marked.store)
    marked.store.close()
    (marked.box.root / "config").mkdir(exist_ok=True)
    (marked.box.root / "config/consumerOffset.json").write_text(marks)
    with open_offline(marked.box.config, Disk(), lock=False) as store:
        hold = offline_hold(store, committed_offsets(store))
    assert hold is not None
    assert hold.offset == marked.store.cleaner.explain().hold.offset  # type: ignore[union-attr]  # a group is named, so it holds
    assert "queue 1 of topic orders only up to offset 4" in hold.reason
