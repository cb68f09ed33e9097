"""Mend a store whose log has diverged: the part that is cut off, the part that is kept, and the
copying after it.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cleaning import remove_first
from tests.unit.replication.two_logs import LogOf, fill, promoted, replicate
from tests.unit.store.store_box import LOG_FILE, Box, bodies, put

from cometmq.errors import StoreError, StoreLockedError
from cometmq.replication.divergence import Common, MasterLog, find_common, find_divergence
from cometmq.store.files.disk import Disk
from cometmq.store.offline.dump import Filter, dump
from cometmq.store.offline.rejoin import OwnLog, RejoinPlan, plan_rejoin, rejoin
from cometmq.store.offline.repair import check
from cometmq.store.offline.store import Damage, open_offline
from cometmq.store.store import MessageStore

both_kinds = pytest.mark.parametrize("as_java", [False, True], ids=["ours", "java"])


@pytest.fixture
def other(make_box: Callable[..., Box]) -> Box:
    return make_box()


def planned(box: Box, master: MasterLog, disk: Disk | None = None) -> tuple[RejoinPlan, Common]:
    with open_offline(box.config, disk) as store:
        log = OwnLog(store)
        common = asyncio.run(find_common(log, master))
        return plan_rejoin(store, log, common.offset, whole=common.whole), common


def mended(box: Box, master: MasterLog, disk: Disk | None = None) -> RejoinPlan:
    plan, _ = planned(box, master, disk)
    if not plan.is_empty:
        rejoin(plan, disk or Disk(), clock=box.clock, master=master.address)
    return plan


def kept_bodies(plan: RejoinPlan) -> list[str]:
    with open_offline(Box(plan.kept).config) as store:
        damages: list[Damage] = []
        found = dump(
            store, Filter(), decode_body=lambda record: record.body, on_damage=damages.append
        )
        bodies_found = [message["body"].split(" ")[0] for message in found]
    assert damages == []
    return bodies_found


def assert_goes_on(box: Box, master: MessageStore) -> None:
    """The store opens, fits its master, takes the rest, and is sound."""
    store = box.open()
    assert asyncio.run(find_divergence(store, LogOf(master))) is None
    replicate(master, store)
    for queue_id in range(2):
        assert bodies(store, queue_id=queue_id) == bodies(master, queue_id=queue_id)
        assert store.max_offset("orders", queue_id) == master.max_offset("orders", queue_id)
    store.close()
    _, report = check(box.config)
    assert report.findings == []


@both_kinds
def test_what_the_master_does_not_have_is_cut_off_and_kept(
    box: Box, other: Box, as_java: bool
) -> None:
    former, master = promoted(box, other)
    end = former.commit_log.end
    former.close()
    theirs = LogOf(master, as_java=as_java)
    plan = mended(box, theirs)
    assert len(theirs.asked) <= 20
    assert plan.own_end == end
    assert plan.record_count == 12
    assert master.record_at(plan.common) is not None
    assert kept_bodies(plan) == ["former"] * 12
    assert_goes_on(box, master)
    note = json.loads((plan.kept / "rejoin.json").read_text())
    assert (note["from"], note["to"], note["records"]) == (plan.cut, end, 12)


def test_a_file_whose_beginning_a_power_loss_took_is_kept_too(box: Box, other: Box) -> None:
    former, master = promoted(box, other)
    box.crash(former)
    last = box.log_files[-1]
    assert b"former 11 " in last.read_bytes()
    with last.open("r+b") as file:
        file.write(bytes(512))
    plan = mended(box, LogOf(master))
    assert b"former 11 " in (plan.kept / "commitlog" / last.name).read_bytes()
    assert_goes_on(box, master)


def test_nothing_is_changed_by_a_plan(box: Box, other: Box) -> None:
    former, master = promoted(box, other)
    former.close()

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in box.root.rglob("*") if path.is_file()}

    before = files()
    plan, common = planned(box, LogOf(master))
    assert (plan.is_empty, common.whole) == (False, False)
    assert files() == before
    assert not plan.kept.exists()


def test_a_store_that_fits_is_left_alone(box: Box, other: Box) -> None:
    master, slave = box.open(), other.open()
    places = fill(master, 40, "both")
    replicate(master, slave, until=places[25])
    slave.close()
    assert mended(other, LogOf(master)).is_empty
    slave = other.open()
    replicate(master, slave, until=2 * LOG_FILE)
    slave.close()
    plan = mended(other, LogOf(master))
    assert plan.is_empty
    assert plan.cut == 2 * LOG_FILE


def test_a_store_without_any_common_record_becomes_empty_and_is_kept_whole(
    box: Box, other: Box
) -> None:
    mine, master = box.open(), other.open()
    fill(mine, 40, "mine")
    fill(master, 50, "theirs", size=120)
    mine.close()
    plan = mended(box, LogOf(master))
    assert (plan.common, plan.cut) == (-1, 0)
    assert kept_bodies(plan) == ["mine"] * 40
    assert box.log_files == []
    assert_goes_on(box, master)


def test_a_log_that_ends_before_its_masters_begins_is_kept_whole(box: Box, other: Box) -> None:
    master, slave = box.open(), other.open()
    places = fill(master, 80, "both")
    replicate(master, slave, until=places[3])
    slave.close()
    remove_first(master.commit_log.files)
    remove_first(master.commit_log.files)
    plan = mended(other, LogOf(master))
    assert (plan.common, plan.cut) == (-1, 0)
    store = other.open()
    assert asyncio.run(find_divergence(store, LogOf(master))) is None
    start = master.commit_log.min_offset
    base, end, view = master.commit_log.window(start)
    store.append_replicated(start, view[: end - base])
    replicate(master, store)
    first = store.min_offset("orders", 0)
    assert first > 0
    assert bodies(store) == bodies(master)


def test_a_store_that_a_kill_left_is_mended(box: Box, other: Box) -> None:
    former, master = promoted(box, other)
    box.crash(former)
    plan = mended(box, LogOf(master))
    assert plan.record_count == 12
    assert_goes_on(box, master)


def test_a_store_that_is_open_is_refused(box: Box, other: Box) -> None:
    former, master = promoted(box, other)
    with pytest.raises(StoreLockedError):
        planned(box, LogOf(master))
    former.close()
    plan, _ = planned(box, LogOf(master))
    box.open()
    with pytest.raises(StoreLockedError):
        rejoin(plan, Disk(), clock=box.clock, master="m")


def test_a_store_that_changed_after_the_plan_is_refused(box: Box, other: Box) -> None:
    former, master = promoted(box, other)
    former.close()
    plan, _ = planned(box, LogOf(master))
    former = box.open()
    fill(former, 1, "later")
    former.close()
    with pytest.raises(StoreError, match="has changed since"):
        rejoin(plan, Disk(), clock=box.clock, master="m")


def test_a_second_tail_at_the_same_place_goes_elsewhere(box: Box, other: Box) -> None:
    former, master = promoted(box, other)
    former.close()
    first = mended(box, LogOf(master))
    former = box.open()
    fill(former, 3, "again")
    former.close()
    second = mended(box, LogOf(master))
    assert first.cut == second.cut
    assert first.kept != second.kept
    assert kept_bodies(first) == ["former"] * 12
    assert kept_bodies(second) == ["again"] * 3
    assert_goes_on(box, master)


class OtherFileSystem(Disk):
    """Keeps the directory for what is cut off on another file system."""

    def rename(self, source: Path, target: Path) -> None:
        if ("rejoin" in str(source)) is not ("rejoin" in str(target)):
            raise StoreError(str(source)) from OSError(errno.EXDEV, "other file system")
        super().rename(source, target)


def test_files_are_copied_to_another_file_system(box: Box, other: Box) -> None:
    former, master = promoted(box, other)
    former.close()
    plan = mended(box, LogOf(master), OtherFileSystem())
    assert kept_bodies(plan) == ["former"] * 12
    assert_goes_on(box, master)


@pytest.mark.parametrize("beyond", [True, False])
def test_state_that_tells_of_what_is_cut_off_is_kept_aside(
    box: Box, other: Box, beyond: bool
) -> None:
    former, master = promoted(box, other)
    former.close()
    cut = planned(box, LogOf(master))[0].cut
    config = box.root / "config"
    config.mkdir(exist_ok=True)
    state: dict[str, Any] = {"offsetTable": {}, "commitLogOffset": cut + (1 if beyond else 0)}
    (config / "delayOffset.json").write_text(json.dumps(state))
    (config / "redrives.json").write_text(json.dumps({"all": [{"commitLogOffset": cut}]}))
    (config / "consumerOffset.json").write_text("{}")
    plan = mended(box, LogOf(master))
    assert (config / "delayOffset.json").exists() is not beyond
    assert (plan.kept / "config" / "delayOffset.json").exists() is beyond
    assert (config / "redrives.json").exists()
    assert (config / "consumerOffset.json").exists()


def test_a_topic_that_was_deleted_behind_the_common_part_is_there_again(
    box: Box, other: Box
) -> None:
    """The master never heard of the deletion, and its messages are expected here, too."""
    former, master = promoted(box, other)
    former.delete_topic("orders")
    former.close()
    mended(box, LogOf(master))
    assert_goes_on(box, master)


def test_a_topic_of_the_tail_alone_is_gone(box: Box, other: Box) -> None:
    former, master = promoted(box, other)
    put(former, topic="only-here")
    former.close()
    mended(box, LogOf(master))
    store = box.open()
    assert store.max_offset("only-here", 0) == 0
