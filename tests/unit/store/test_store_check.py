"""Damage of every kind is found, named by file and place, and repaired from what is left."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.cleaning import remove_first
from tests.golden.golden import unpack_store
from tests.unit.store.store_box import CLIENT, LOG_FILE, Box, bodies, put, records

from cometmq.errors import StoreLockedError, StoreUnusableError
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.protocol.messages.ids import pack_host
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk, DiskUsage
from cometmq.store.layout import check_usable
from cometmq.store.offline.check import Area, Report
from cometmq.store.offline.dump import Filter, dump
from cometmq.store.offline.repair import check, plan_repair, repair
from cometmq.store.offline.stats import collect
from cometmq.store.offline.store import Damage, open_offline

INDEX: dict[str, Any] = {"max_hash_slot_num": 50, "max_index_num": 200}


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    box = make_box(**INDEX)
    store = box.open()
    for number in range(20):
        box.clock.value += 1000
        properties = f"KEYS\x01k{number} all\x02TAGS\x01t\x02UNIQ_KEY\x01U{number}\x02".encode()
        queue = store.queue("orders", number % 2)
        store.append(queue, b"%02d" % number * 250, properties, 116, 1, CLIENT)
    entries = [BatchEntry(0, b"%d" % number, b"") for number in range(3)]
    store.append_batch(store.queue("batches", 0), entries, [0] * 3, 1, CLIENT)
    store.close()
    return box


def report_of(box: Box) -> Report:
    return check(StoreConfig(store_path_root_dir=box.root, **INDEX))[1]


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def flip(path: Path, position: int, bits: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bits
    path.write_bytes(data)


def repaired(box: Box) -> Report:
    config = StoreConfig(store_path_root_dir=box.root, **INDEX)
    store, report = check(config)
    repair(store, plan_repair(store, report), clock=box.clock, stamp="now")
    return check(config)[1]


def log_file(box: Box, number: int) -> Path:
    return box.root / "commitlog" / f"{number * LOG_FILE:020d}"


def second_record(box: Box) -> int:
    return int.from_bytes(log_file(box, 0).read_bytes()[:4], "big")


def places(box: Box) -> list[int]:
    """Return where the records of one queue lie in the log."""
    store = box.open()
    found = [record.physical_offset for record in records(store)]
    store.close()
    return found


def test_a_sound_store_is_sound_and_unchanged(box: Box) -> None:
    before = snapshot(box.root)
    report = report_of(box)
    assert report.is_sound
    assert snapshot(box.root) == before
    assert (report.log_file_count, report.record_count, report.unit_count) == (4, 23, 23)
    assert (report.queue_count, report.index_file_count, report.index_entry_count) == (3, 1, 60)
    assert report.last_timestamp == box.clock.value
    assert report.clean_stop
    assert report.notes == []


def test_sizes_are_found_without_settings(box: Box) -> None:
    _, report = check(StoreConfig(store_path_root_dir=box.root))
    assert report.is_sound
    assert report.index_entry_count == 60


def test_a_store_of_the_java_broker(tmp_path: Path) -> None:
    root = unpack_store(tmp_path)
    before = snapshot(root)
    store, report = check(StoreConfig(store_path_root_dir=root))
    assert report.findings == []
    assert report.index_entry_count > 0
    assert report.record_count == report.unit_count > 200
    assert plan_repair(store, report).is_empty
    assert snapshot(root) == before


@pytest.mark.parametrize("position", [0, 5, 30, 88, 300])
def test_a_damaged_record_is_found_and_given_up(box: Box, position: int) -> None:
    path = log_file(box, 0)
    at = second_record(box)
    flip(path, at + position)
    report = report_of(box)
    found = next(finding for finding in report.findings if finding.area is Area.LOG)
    assert (found.path, found.position, found.by_start) == (path, at, False)
    assert "bytes are lost, good records follow" in found.text
    assert any(
        finding.area is Area.QUEUE or finding.area is Area.INDEX for finding in report.findings
    )

    damaged = path.read_bytes()
    assert repaired(box).is_sound
    kept = box.root / "repair-now" / f"{path.name}-{at}"
    assert kept.read_bytes() == damaged[at : at + len(kept.read_bytes())]
    store = box.open()
    assert [record.body[:2] for record in records(store)] == [b"%02d" % n for n in range(0, 20, 2)]
    assert [record.body[:2] for record in records(store, queue_id=1)] == [
        b"%02d" % n for n in range(3, 20, 2)
    ]
    assert [record.queue_offset for record in records(store, queue_id=1)] == list(range(1, 10))
    assert put(store, queue_id=1)[0] == 10
    assert store.index.query("orders", "k1", 10, 0, 2**62).offsets == []
    assert len(store.index.query("orders", "k2", 10, 0, 2**62).offsets) == 1


@pytest.mark.parametrize("position", [5, 88])
def test_a_log_whose_first_record_was_given_up_still_knows_when_it_began(
    box: Box, position: int
) -> None:
    began = report_of(box).first_timestamp
    flip(log_file(box, 0), position)
    after = repaired(box)
    assert after.is_sound
    assert began <= after.first_timestamp <= after.last_timestamp


def test_where_a_message_is_lost_the_next_one_comes_twice(box: Box) -> None:
    size = second_record(box)  # all records of the first kind are equally long
    flip(log_file(box, 0), 2 * size + 100)
    assert repaired(box).is_sound
    store = box.open()
    assert [record.queue_offset for record in records(store)] == [0, 2, *range(2, 10)]
    assert store.min_offset("orders", 0) == 0
    # The queue can still be searched by time.
    third = store.store_timestamp("orders", 0, 2)
    assert store.offset_by_time("orders", 0, third) == 1
    assert store.offset_by_time("orders", 0, third + 1) == 3
    # And the repair holds when the queues are built again.
    store.close()
    shutil.rmtree(box.root / "consumequeue")
    again = box.open()
    assert [record.queue_offset for record in records(again)] == [0, 2, *range(2, 10)]
    again.close()
    assert report_of(box).is_sound


@pytest.mark.parametrize(
    ("victim", "left"), [(0, range(1, 10)), (1, [0, 2, *range(2, 10)]), (9, range(9))]
)
def test_a_record_of_an_impossible_queue_offset_was_reported_after_each_repair(
    box: Box, victim: int, left: Iterable[int]
) -> None:
    """No sum covers the queue offset. Queues that are built again leave the record out."""
    place = places(box)[victim]
    flip(log_file(box, place // LOG_FILE), place % LOG_FILE + 20, 0x01)
    assert not report_of(box).is_sound
    report = repaired(box)
    assert report.is_sound, report.findings
    (note,) = [note for note in report.notes if "impossible" in note]
    assert note.startswith("1 records are in no queue")
    assert [record.queue_offset for record in records(box.open())] == list(left)


def test_damage_up_to_the_end_of_a_file(box: Box) -> None:
    path = log_file(box, 1)
    data = bytearray(path.read_bytes())
    data[800:] = b"\xff" * (LOG_FILE - 800)
    path.write_bytes(data)
    report = report_of(box)
    assert report.damages[0].end_position == LOG_FILE
    assert not report.damages[0].is_tail
    assert repaired(box).is_sound
    assert len(set(bodies(box.open()))) < 10


def test_a_file_that_was_cut(box: Box) -> None:
    path = log_file(box, 1)
    path.write_bytes(path.read_bytes()[:1500])
    report = report_of(box)
    assert any(f.path == path and "1500 bytes where 4096 belong" in f.text for f in report.findings)
    assert repaired(box).is_sound
    assert path.stat().st_size == LOG_FILE
    store = box.open()
    assert 0 < len(set(bodies(store))) < 10
    assert store.max_offset("orders", 0) == 10


def test_a_file_that_is_missing(box: Box) -> None:
    log_file(box, 1).unlink()
    report = report_of(box)
    assert any(finding.text == "the file is missing" for finding in report.findings)
    assert repaired(box).is_sound
    store = box.open()
    assert store.max_offset("orders", 1) == 10
    assert records(store, queue_id=1)[0].queue_offset == 0


def test_a_torn_tail_is_left_to_the_start(box: Box) -> None:
    store = box.open()
    _, offset = put(store, b"torn" * 50)
    store.close()
    (box.root / "abort").touch()
    flip(log_file(box, offset // LOG_FILE), offset % LOG_FILE + 120)
    before = snapshot(box.root)
    report = report_of(box)
    tail = next(finding for finding in report.findings if finding.area is Area.LOG)
    assert tail.by_start
    assert "a write that a crash cut short" in tail.text
    assert "not stopped cleanly" in report.notes[-1]
    assert snapshot(box.root) == before
    box.open().close()
    assert report_of(box).is_sound
    # `repair` does it too.
    (box.root / "abort").touch()
    store = box.open()
    _, offset = put(store, b"torn" * 50)
    store.close()
    flip(log_file(box, offset // LOG_FILE), offset % LOG_FILE + 120)
    assert repaired(box).is_sound


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (3, "points elsewhere than to its record"),
        (9, "points elsewhere than to its record"),
        (19, "another tags code"),
    ],
)
def test_a_wrong_unit(box: Box, field: int, text: str) -> None:
    path = box.root / "consumequeue/orders/1" / f"{0:020d}"
    flip(path, 2 * 20 + field)
    (found,) = report_of(box).findings
    assert (found.area, found.path, found.position) == (Area.QUEUE, path, 40)
    assert text in found.text
    assert "(offset 2)" in found.text
    assert repaired(box).is_sound
    assert len(bodies(box.open(), queue_id=1)) == 10


def test_missing_and_surplus_units(box: Box) -> None:
    directory = box.root / "consumequeue/orders/1"
    path = directory / f"{100:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:40].ljust(100, b"\0"))
    (found,) = report_of(box).findings
    assert found.text == "the unit is missing (offsets 7 to 9)"
    assert (found.path, found.position) == (path, 40)
    path.write_bytes(data)
    queue = box.root / "consumequeue/batches/0" / f"{0:020d}"
    units = queue.read_bytes()[:60] + struct.pack(">qiq", 20_000, 100, 0)
    queue.write_bytes(units.ljust(100, b"\0"))
    (found,) = report_of(box).findings
    assert "units without records behind the end of the queue (offset 3, " in found.text
    assert repaired(box).is_sound
    assert len(bodies(box.open(), "batches")) == 3


def test_a_lost_queue_is_rebuilt(box: Box) -> None:
    shutil.rmtree(box.root / "consumequeue/orders/1")
    (found,) = report_of(box).findings
    assert found.text == "the unit is missing (offsets 0 to 9)"
    assert repaired(box).is_sound
    assert len(bodies(box.open(), queue_id=1)) == 10


def test_a_deleted_topic_is_no_fault(box: Box) -> None:
    store = box.open()
    store.delete_topic("batches")
    store.close()
    (box.root / "config").mkdir()
    (box.root / "config/topics.json").write_text('{"topicConfigTable": {"orders": {}}}')
    report = report_of(box)
    assert report.is_sound
    assert report.notes == ["3 records belong to topics that were deleted"]


def test_a_topic_made_anew_is_no_fault(box: Box) -> None:
    store = box.open()
    store.delete_topic("orders")
    put(store, b"new")
    store.close()
    (box.root / "config").mkdir()
    (box.root / "config/topics.json").write_text(
        '{"topicConfigTable": {"orders": {}, "batches": {}}}'
    )
    report = report_of(box)
    assert [finding for finding in report.findings if "orders/0" in str(finding.path)] == []


def test_a_wrong_index_entry(box: Box) -> None:
    (path,) = (box.root / "index").iterdir()
    entry = 40 + 50 * 4 + 7 * 20
    flip(path, entry)
    report = report_of(box)
    assert {finding.area for finding in report.findings} == {Area.INDEX}
    found = next(finding for finding in report.findings if "entry 7: " in finding.text)
    assert (found.path, found.position) == (path, entry)
    assert "no record with such a key begins at" in found.text
    assert repaired(box).is_sound


@pytest.mark.parametrize("entry", [1, 7, 59])
def test_an_index_entry_whose_offset_is_below_nothing(box: Box, entry: int) -> None:
    """Seed 78247225 of the simulated crashes: such an entry passed for one that retention left
    behind, and all in front of the last one with it.
    """
    (path,) = (box.root / "index").iterdir()
    position = 40 + 50 * 4 + entry * 20
    flip(path, position + 4, 0x80)
    (found,) = report_of(box).findings
    assert (found.area, found.path, found.position) == (Area.INDEX, path, position)
    assert f"entry {entry}: its record is at -" in found.text
    assert repaired(box).is_sound


@pytest.mark.parametrize(
    ("position", "text"), [(40 + 200 + 140 + 19, "points back to entry"), (43, "slot 0")]
)
def test_a_wrong_chain_of_the_index(box: Box, position: int, text: str) -> None:
    (path,) = (box.root / "index").iterdir()
    flip(path, position)
    (found,) = report_of(box).findings
    assert (found.area, found.path) == (Area.INDEX, path)
    assert text in found.text
    assert repaired(box).is_sound


def test_an_index_of_unusual_size_is_noted(box: Box) -> None:
    (path,) = (box.root / "index").iterdir()
    path.write_bytes(path.read_bytes() + b"x")
    report = report_of(box)
    assert report.is_sound
    assert "was not looked at" in report.notes[0]


@pytest.mark.parametrize("size", [0, 3, 39])
def test_an_index_file_cut_to_nothing_is_damage(box: Box, size: int) -> None:
    (path,) = (box.root / "index").iterdir()
    path.write_bytes(path.read_bytes()[:size])
    (found,) = report_of(box).findings
    assert (found.area, found.path, found.by_start) == (Area.INDEX, path, True)
    assert f"{size} bytes are left of it" in found.text
    after = repaired(box)
    assert after.is_sound
    assert after.index_entry_count == 60


def test_a_checkpoint_from_the_future(box: Box) -> None:
    (box.root / "checkpoint").write_bytes(struct.pack(">qq", 2**50, 2**50).ljust(4096, b"\0"))
    (found,) = report_of(box).findings
    assert found.area is Area.FILES
    assert repaired(box).is_sound


def test_a_queue_without_messages_keeps_its_offsets(make_box: Callable[..., Box]) -> None:
    box = make_box(**INDEX)
    store = box.open()
    for _ in range(7):
        put(store, topic="idle")
    for _ in range(12):
        put(store, bytes(800))
    remove_first(store.commit_log.files)
    store.close()
    assert report_of(box).is_sound
    flip(box.root / "consumequeue/orders/0" / f"{100:020d}", 20 + 3)
    assert repaired(box).is_sound
    store = box.open()
    assert put(store, topic="idle")[0] == 7


def test_a_repair_of_a_sound_store_does_nothing(box: Box) -> None:
    store, report = check(StoreConfig(store_path_root_dir=box.root, **INDEX))
    assert plan_repair(store, report).is_empty


# -- directories that are no stores, or not ours --


def refused(root: Path) -> str:
    with (
        pytest.raises(StoreUnusableError) as caught,
        open_offline(StoreConfig(store_path_root_dir=root)),
    ):
        pass
    return str(caught.value)


def test_what_is_no_store(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "missing")
    (tmp_path / "file").touch()
    assert "is no directory" in refused(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert "is no store, it has no directory commitlog" in refused(tmp_path / "empty")


def dledger(root: Path) -> None:
    (root / "dledger-n0").mkdir()


def rocksdb(root: Path) -> None:
    (root / "consumequeue").mkdir(exist_ok=True)
    (root / "consumequeue/CURRENT").touch()


@pytest.mark.parametrize("make", [dledger, rocksdb])
def test_stores_of_another_kind(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "commitlog").mkdir()
    make(tmp_path)
    before = snapshot(tmp_path)
    assert "cannot be used here" in refused(tmp_path)
    with pytest.raises(StoreUnusableError, match="storePathRootDir"):
        Box(tmp_path).open()
    assert snapshot(tmp_path) == before


def test_a_commit_log_on_several_paths(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusableError, match="names several paths"):
        Box(tmp_path, store_path_commit_log=Path("/a,/b")).open()


class OthersDisk(Disk):
    """A disk on which everything belongs to another user."""

    def owner(self, path: Path) -> str | None:
        return "rocketmq" if super().owner(path) else None


class ForbiddenDisk(Disk):
    """A disk on which we may not write."""

    def user(self) -> str:
        return "me"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("store", "give the store to me: chown -R me {}/store"),
        ("empty", "give the store to me: chown -R me {}/empty"),
        ("other", "run as that user, or name another directory with storePathRootDir"),
        (
            "other/missing/too",
            "ask a user who may write there to make {}/other/missing/too and to give it to me",
        ),
    ],
)
def test_the_owner_of_nothing_but_a_store_is_to_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, said: str
) -> None:
    # For a store that was not there, the advice was to give `/` to another user.
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other" / "home").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StoreUnusableError) as raised:
        check_usable(StoreConfig(store_path_root_dir=tmp_path / wanted), ForbiddenDisk())
    assert said.format(tmp_path) in str(raised.value)
    assert ("chown" in str(raised.value)) is said.startswith("give the store")


class ProcDisk(Disk):
    def access_fault(self, path: Path, *, write: bool) -> str | None:
        return None

    def usage(self, path: Path) -> DiskUsage:
        return super().usage(Path("/proc"))


def test_a_file_system_that_is_for_no_files_is_not_called_full() -> None:
    with pytest.raises(StoreUnusableError, match="/proc/x is on a file system without any space"):
        check_usable(StoreConfig(store_path_root_dir=Path("/proc/x")), ProcDisk())


def test_a_store_of_another_user_is_not_written(box: Box) -> None:
    before = snapshot(box.root)
    with pytest.raises(StoreUnusableError, match=r"belongs to the user rocketmq: run as.*chown"):
        box.open(OthersDisk())
    store, report = check(StoreConfig(store_path_root_dir=box.root), OthersDisk())
    with pytest.raises(StoreUnusableError, match="belongs to the user rocketmq"):
        repair(store, plan_repair(store, report), clock=box.clock, stamp="now")
    assert snapshot(box.root) == before


def test_a_store_in_use_is_not_read(box: Box) -> None:
    box.open()
    with pytest.raises(StoreLockedError), open_offline(StoreConfig(store_path_root_dir=box.root)):
        pass


def test_a_store_being_read_is_not_opened(box: Box) -> None:
    with (
        open_offline(StoreConfig(store_path_root_dir=box.root)),
        pytest.raises(StoreLockedError),
    ):
        box.open()
    box.open()


# -- stats and dump --


def test_stats(box: Box) -> None:
    with open_offline(StoreConfig(store_path_root_dir=box.root)) as store:
        stats = collect(store)
    assert stats.message_count == 23
    assert [topic.topic for topic in stats.by_size()] == ["orders", "batches"]
    orders = stats.topics["orders"]
    assert orders.tags == {"t": 20}
    assert {queue_id: queue.message_count for queue_id, queue in orders.queues.items()} == {
        0: 10,
        1: 10,
    }
    assert orders.queues[1].last_offset == 9
    assert orders.last_timestamp == box.clock.value
    assert stats.allocated_bytes == 4 * LOG_FILE


def dumped(box: Box, damages: list[Damage] | None = None, **wanted: object) -> list[int]:
    with open_offline(StoreConfig(store_path_root_dir=box.root)) as store:
        found = dump(
            store,
            Filter(topic="orders", **wanted),  # type: ignore[arg-type]  # a dict of filters of several types
            decode_body=lambda record: record.body,
            on_damage=(damages if damages is not None else list[Damage]()).append,
        )
        return [int(message["body"][:2]) for message in found]


def test_dump_filters(box: Box) -> None:
    last = box.clock.value
    assert dumped(box) == list(range(20))
    assert dumped(box, queue_id=1, first_offset=3, end_offset=5) == [7, 9]
    assert dumped(box, key="k7") == [7]
    assert dumped(box, key="U9") == [9]
    assert dumped(box, begin_ms=last - 2000) == [17, 18, 19]
    assert dumped(box, end_ms=last - 17_000) == [0, 1]
    assert dumped(box, key="all", queue_id=0) == list(range(0, 20, 2))


def test_dump_passes_damage_over(box: Box) -> None:
    flip(log_file(box, 0), second_record(box) + 100)
    damages: list[Damage] = []
    assert dumped(box, damages) == [0, *range(2, 20)]
    assert damages[0].position == second_record(box)


def test_a_dumped_message_has_it_all(box: Box) -> None:
    with open_offline(StoreConfig(store_path_root_dir=box.root)) as store:
        message = next(
            dump(
                store,
                Filter(),
                decode_body=lambda record: record.body,
                on_damage=list[Damage]().append,
            )
        )
    assert message["keys"] == ["k0", "all"]
    assert message["tags"] == "t"
    assert message["msgId"] == "U0"
    assert message["bornHost"] == "10.0.0.7:50000"
    assert (message["queueId"], message["queueOffset"], message["commitLogOffset"]) == (0, 0, 0)
    assert message["body"] == "00" * 250


def test_a_message_of_a_java_batch_is_dumped_by_both_its_ids(make_box: Callable[..., Box]) -> None:
    box = make_box()
    store = box.open()
    text = b"UNIQ_KEY\x01A\x02WAIT\x01true\x02UNIQ_KEY\x01B\x02"
    store.append(store.queue("orders", 0), b"00", text, 0, 1, pack_host("::1", 5))
    store.close()
    assert dumped(box, key="A") == dumped(box, key="B") == [0]
    assert dumped(box, key="true") == []
    with open_offline(StoreConfig(store_path_root_dir=box.root)) as offline:
        (message,) = dump(
            offline,
            Filter(),
            decode_body=lambda record: record.body,
            on_damage=list[Damage]().append,
        )
    assert (message["msgId"], message["batchMsgId"]) == ("A", "B")


def test_a_body_that_is_no_text(make_box: Callable[..., Box]) -> None:
    box = make_box()
    store = box.open()
    store.append(store.queue("t", 0), b"\xff\x00", b"", 0, 1, pack_host("::1", 5))
    store.close()
    with open_offline(StoreConfig(store_path_root_dir=box.root)) as offline:
        (message,) = dump(
            offline,
            Filter(),
            decode_body=lambda record: record.body,
            on_damage=list[Damage]().append,
        )
    assert message["bodyBase64"] == "/wA="
    assert message["bornHost"] == "::1:5"
