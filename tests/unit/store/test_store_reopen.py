"""The contents of a store that is opened again: after a clean stop, a crash, or damage."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.unit.store.store_box import CLIENT, HOST, LOG_FILE, QUEUE_FILE, Box, bodies, put, records

from cometmq.errors import StoreCorruptError
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.protocol.messages.record import encode_record
from cometmq.protocol.messages.record_layout import FIELDS
from cometmq.store.offline.repair import check, plan_repair, repair


def fill(box: Box, count: int = 12) -> None:
    """Put `count` messages into two queues and several files, and close the store cleanly."""
    store = box.open()
    for number in range(count):
        box.clock.value += 1000
        put(store, b"%d" % number + bytes(800), queue_id=number % 2, tags="t")
    store.close()


def snapshot(box: Box) -> dict[str, bytes]:
    """Return the files of the consume queues."""
    root = box.root / "consumequeue"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("0*[0-9]")
            if path.is_file()}  # fmt: skip


def tail(box: Box) -> tuple[int, int]:
    """Return where the log ends: the index of its file, and the position there."""
    store = box.open()
    end = store.commit_log.end
    store.close()
    return divmod(end, LOG_FILE)


def test_a_clean_stop_and_reopening_lose_nothing(box: Box) -> None:
    fill(box)
    store = box.new()
    recovery = store.open()
    assert recovery.clean
    assert recovery.scanned_count == 0
    assert [int(body.rstrip(b"\0")) for body in bodies(store)] == [0, 2, 4, 6, 8, 10]
    assert put(store, b"next")[0] == 6
    assert put(store, b"next", queue_id=1)[0] == 6
    store.close()
    assert bodies(box.open())[-1] == b"next"


def test_marks_in_the_directory(box: Box) -> None:
    store = box.open()
    put(store)
    assert (box.root / "abort").read_text() == str(os.getpid())
    assert (box.root / "lock").read_bytes() == b"lock"
    store.close()
    store.close()
    assert not (box.root / "abort").exists()
    checkpoint = (box.root / "checkpoint").read_bytes()
    assert len(checkpoint) == 4096
    assert struct.unpack_from(">qq", checkpoint) == (box.clock.value, box.clock.value)
    assert {path.name for path in box.root.iterdir()} == {
        "checkpoint", "commitlog", "consumequeue", "lock", "queues.json",
    }  # fmt: skip


def test_an_empty_store_reopens(box: Box) -> None:
    box.open().close()
    store = box.open()
    assert put(store) == (0, 0)


def test_a_store_can_be_opened_again_by_the_same_object(box: Box) -> None:
    store = box.open()
    put(store, b"1")
    store.close()
    store.open()
    put(store, b"2")
    assert bodies(store) == [b"1", b"2"]


@pytest.mark.parametrize("clean", [True, False])
def test_deleted_consume_queues_are_rebuilt_equal(box: Box, clean: bool) -> None:
    fill(box)
    before = snapshot(box)
    assert len(before) == 4
    shutil.rmtree(box.root / "consumequeue")
    if not clean:
        (box.root / "abort").touch()
    store = box.open()
    store.flush_all()
    assert snapshot(box) == before
    assert store.max_offset("orders", 1) == 6


def test_one_deleted_queue_is_rebuilt_when_the_scan_meets_it(box: Box) -> None:
    fill(box)
    before = snapshot(box)
    shutil.rmtree(box.root / "consumequeue/orders/0")
    (box.root / "abort").touch()
    box.open()
    assert snapshot(box) == before


def test_a_stale_queue_is_completed(box: Box) -> None:
    fill(box, 4)
    old = box.root.with_name("old")
    shutil.copytree(box.root / "consumequeue", old)
    fill(box, 8)
    before = snapshot(box)
    shutil.rmtree(box.root / "consumequeue")
    shutil.copytree(old, box.root / "consumequeue")
    box.open()
    assert snapshot(box) == before


def test_queue_files_of_a_wrong_size_are_rebuilt(box: Box) -> None:
    fill(box)
    before = snapshot(box)
    (box.root / "consumequeue/orders/0" / f"{0:020d}").write_bytes(b"x" * 7)
    box.open()
    assert snapshot(box) == before


def test_a_crash_loses_nothing_that_reached_the_page_cache(box: Box) -> None:
    fill(box)
    (box.root / "abort").write_text("1")
    store = box.new()
    recovery = store.open()
    assert not recovery.clean
    assert len(bodies(store)) == 6
    assert put(store)[0] == 6


@pytest.mark.parametrize("position", [0, 4, 8, 30, 89, 700])
def test_a_torn_last_record_is_cut_off(box: Box, position: int) -> None:
    fill(box)
    store = box.open()
    _, offset = put(store, b"torn" * 100)
    box.crash(store)
    file, start = divmod(offset, LOG_FILE)
    with box.log_files[file].open("r+b") as log:
        log.seek(start + position % 400)
        log.write(b"\xde\xad\xbe\xef")
    store = box.open()
    assert len(bodies(store)) == 6
    assert store.commit_log.end == offset
    assert put(store, b"again") == (6, offset)
    store.close()
    assert bodies(box.open())[-1] == b"again"


def test_what_lay_behind_a_torn_record_does_not_come_back(box: Box) -> None:
    store = box.open()
    for letter in "abcd":
        put(store, letter.encode() * 100)
    size = store.commit_log.end // 4
    box.crash(store)
    with box.log_files[0].open("r+b") as log:
        log.seek(size + 100)
        log.write(b"!")
    store = box.open()
    assert bodies(store) == [b"a" * 100]
    # As long as the lost one: what followed it would now follow this.
    put(store, b"n" * 100)
    box.crash(store)
    assert bodies(box.open()) == [b"a" * 100, b"n" * 100]


def test_a_queue_unit_without_its_record_is_dropped(box: Box) -> None:
    fill(box)
    file, position = tail(box)
    unit = box.root / "consumequeue/orders/0" / f"{100:020d}"
    with unit.open("r+b") as queue:
        queue.seek(20)
        queue.write(struct.pack(">qiq", file * LOG_FILE + position, 900, 0))
    store = box.open()
    assert store.max_offset("orders", 0) == 6
    assert put(store)[0] == 6


def test_an_empty_last_file_is_removed(box: Box) -> None:
    fill(box)
    (box.root / "commitlog" / f"{LOG_FILE * 3:020d}").touch()
    assert tail(box)[0] == 2
    assert len(box.log_files) == 3


def test_a_last_file_cut_short_while_it_was_made_is_completed(box: Box) -> None:
    fill(box)
    (box.root / "commitlog" / f"{LOG_FILE * 3:020d}").write_bytes(bytes(100))
    (box.root / "abort").touch()
    store = box.open()
    assert len(bodies(store)) == 6


def test_files_made_ahead_are_no_obstacle(box: Box) -> None:
    fill(box)
    for number in (3, 4):
        (box.root / "commitlog" / f"{LOG_FILE * number:020d}").write_bytes(bytes(LOG_FILE))
    store = box.open()
    assert len(bodies(store)) == 6
    for _ in range(10):
        put(store, bytes(800))
    assert len(bodies(store)) == 16


def test_files_of_another_size_are_named(box: Box) -> None:
    fill(box)
    box.log_files[0].write_bytes(bytes(100))
    with pytest.raises(StoreCorruptError, match=r"0{20} has 100 bytes.*mappedFileSizeCommitLog"):
        box.open()


def test_a_missing_file_is_named(box: Box) -> None:
    fill(box)
    box.log_files[1].unlink()
    with pytest.raises(StoreCorruptError, match=f"{LOG_FILE:020d} is missing"):
        box.open()


def test_flushed_messages_that_are_damaged_stop_the_start(box: Box) -> None:
    fill(box)
    with box.log_files[0].open("r+b") as log:
        log.seek(100)
        log.write(b"!")
    (box.root / "abort").touch()
    before = [path.read_bytes() for path in box.log_files]
    (box.root / "checkpoint").write_bytes(struct.pack(">qq", box.clock.value, 0).ljust(4096, b"\0"))
    with pytest.raises(StoreCorruptError, match=r"is damaged at 0 .*contradicts its CRC"):
        box.open()
    assert [path.read_bytes() for path in box.log_files] == before


def test_damage_before_good_messages_of_the_same_file_stops_the_start(box: Box) -> None:
    store = box.open()
    for number in range(4):
        box.clock.value += 1000
        put(store, b"%d" % number * 20)
    box.crash(store)
    with box.log_files[0].open("r+b") as log:
        log.seek(store.commit_log.end // 4 + 88)
        log.write(b"!")
    with pytest.raises(StoreCorruptError, match=r"good messages follow at .*repair --write"):
        box.open()
    # The remedy that the message names.
    offline, report = check(box.config)
    repair(offline, plan_repair(offline, report), clock=box.clock, stamp="now")
    store = box.open()
    # What stands where a message was lost is the next one.
    assert bodies(store) == [b"%d" % number * 20 for number in (0, 2, 2, 3)]
    assert put(store, b"new")[0] == 4


def test_damage_that_came_after_a_clean_stop_stops_the_start(box: Box) -> None:
    fill(box)
    sound = [path.read_bytes() for path in box.log_files]
    for position in range(len(sound)):
        before = list(sound)
        before[position] = sound[position][:100] + b"!" + sound[position][101:]
        for path, content in zip(box.log_files, before, strict=True):
            path.write_bytes(content)
        fault = rf"{position * LOG_FILE:020d} is damaged at 0 .*contradicts its CRC.*repair --write"
        with pytest.raises(StoreCorruptError, match=fault):
            box.open()
        assert [path.read_bytes() for path in box.log_files] == before
    offline, report = check(box.config)
    repair(offline, plan_repair(offline, report), clock=box.clock, stamp="now")
    assert put(box.open())[0] == 6


def test_the_newest_three_files_are_checked_after_a_clean_stop(box: Box) -> None:
    fill(box, 16)
    with box.log_files[0].open("r+b") as log:
        log.seek(100)
        log.write(b"!")
    assert len(box.log_files) == 4
    store = box.open()
    # Damage further back is not looked for, and breaks no start.
    assert put(store)[0] == 8


def test_the_oldest_files_may_be_gone(box: Box) -> None:
    fill(box)
    box.log_files[0].unlink()
    store = box.open()
    assert store.min_offset("orders", 0) == 2
    assert len(bodies(store)) == 4
    store.close()
    shutil.rmtree(box.root / "consumequeue")
    store = box.open()
    assert [record.queue_offset for record in records(store)] == [2, 3, 4, 5]
    assert store.min_offset("orders", 0) == 2
    assert put(store)[0] == 6


def test_without_a_log_the_queues_go_too(box: Box) -> None:
    fill(box)
    shutil.rmtree(box.root / "commitlog")
    store = box.open()
    assert store.topics() == {}
    assert put(store) == (0, 0)


@pytest.mark.parametrize("age", ["missing", "future", "short", "zero"])
def test_any_checkpoint_will_do_after_a_crash(box: Box, age: str) -> None:
    fill(box)
    before = snapshot(box)
    path = box.root / "checkpoint"
    contents = {
        "future": struct.pack(">qqq", 2**60, 2**60, 0).ljust(4096, b"\0"),
        "short": b"\0\0",
        "zero": bytes(4096),
    }
    if age == "missing":
        path.unlink()
    else:
        path.write_bytes(contents[age])
    # Units of the newest file that never reached the disk.
    queue = box.root / "consumequeue/orders/1" / f"{0:020d}"
    queue.write_bytes(queue.read_bytes()[:40].ljust(100, b"\0"))
    (box.root / "abort").touch()
    box.open()
    assert snapshot(box) == before


def test_units_that_never_reached_the_disk_are_written_again(box: Box) -> None:
    fill(box, 40)
    before = snapshot(box)
    queue = box.root / "consumequeue/orders/1" / f"{300:020d}"
    queue.write_bytes(queue.read_bytes()[:60].ljust(100, b"\0"))
    (box.root / "abort").touch()
    store = box.new()
    recovery = store.open()
    assert recovery.start > 0
    assert snapshot(box) == before


def test_tags_of_delayed_messages_are_rebuilt_as_times(box: Box) -> None:
    store = box.open()
    queue = store.queue("SCHEDULE_TOPIC_XXXX", 2)
    properties = b"DELAY\x013\x02TAGS\x01x\x02"
    store.append(queue, b"", properties, box.clock.value + 10_000, 1, CLIENT)
    store.close()
    before = snapshot(box)
    shutil.rmtree(box.root / "consumequeue")
    box.open()
    assert snapshot(box) == before


def test_a_log_written_by_another_broker(box: Box) -> None:
    """The log has both magics, a gap in the queue offsets and a blank record; there are no queues
    and no checkpoint.
    """
    data = bytearray()
    for number, topic in enumerate(("long" * 40, "orders")):
        data += encode_record(
            topic=topic.encode(), body=b"b%d" % number, properties=b"", queue_id=0,
            queue_offset=number * 2, physical_offset=len(data), sys_flag=0, born_timestamp=1,
            born_host=CLIENT, store_timestamp=5, store_host=HOST,
        )  # fmt: skip
    data += struct.pack(">iI", LOG_FILE - len(data), 0xCBD43194)
    (box.root / "commitlog").mkdir(parents=True)
    (box.root / "commitlog" / f"{0:020d}").write_bytes(data.ljust(LOG_FILE, b"\xff"))
    store = box.open()
    assert bodies(store, "long" * 40) == [b"b0"]
    assert [(r.queue_offset, r.body) for r in records(store)] == [(2, b"b1")]
    assert store.min_offset("orders", 0) == 2
    assert put(store) == (3, LOG_FILE)


def test_batches_reopen(box: Box) -> None:
    store = box.open()
    entries = [BatchEntry(0, b"%d" % number, b"TAGS\x01t\x02") for number in range(20)]
    store.append_batch(store.queue("orders", 0), entries, [116] * 20, 1, CLIENT)
    store.close()
    before = snapshot(box)
    shutil.rmtree(box.root / "consumequeue")
    assert [int(body) for body in bodies(box.open())] == list(range(20))
    assert snapshot(box) == before


def test_progress_is_told(box: Box) -> None:
    fill(box)
    (box.root / "abort").touch()
    reported: list[tuple[int, int]] = []
    store = box.new()
    store.open(lambda done, total: reported.append((done, total)))
    assert reported
    assert all(done <= total for done, total in reported)
    assert reported[-1][0] == reported[-1][1]


def _damage(path: Path, position: int, field: str, value: int) -> None:
    """Write 8 bytes into a record, as a damaged disk would: no sum covers them."""
    at = position + FIELDS[field][0]
    data = bytearray(path.read_bytes())
    data[at : at + 8] = value.to_bytes(8, "big")
    path.write_bytes(data)


def test_a_damaged_queue_offset_does_not_fill_the_disk_through_a_queue_file_without_units(
    box: Box,
) -> None:
    store = box.open()
    put(store, b"first")
    put(store, b"second", queue_id=1)
    put(store, b"third", queue_id=1)
    box.crash(store)
    _damage(box.log_files[0], 0, "queue_offset", 2**56)
    for path in (box.root / "consumequeue" / "orders" / "0").iterdir():
        path.write_bytes(bytes(QUEUE_FILE))
    store = box.open()
    assert store.max_offset("orders", 0) == 0
    assert bodies(store, queue_id=1) == [b"second", b"third"]
    assert put(store, b"next") is not None
    assert bodies(store) == [b"next"]


def test_a_first_message_with_a_later_offset_gets_the_file_of_that_offset(box: Box) -> None:
    """As when retention has removed the messages before it; a file without units is no obstacle."""
    store = box.open()
    for number in range(40):
        put(store, b"x" * 100 + bytes([number]))
    box.crash(store)
    removed = box.log_files[0]
    removed.unlink()
    directory = box.root / "consumequeue" / "orders" / "0"
    for path in directory.iterdir():
        path.unlink()
    (directory / f"{0:020d}").write_bytes(bytes(QUEUE_FILE))
    store = box.open()
    assert store.max_offset("orders", 0) == 40
    assert store.min_offset("orders", 0) > 0
    assert bodies(store)[-1] == b"x" * 100 + bytes([39])
    assert not (directory / f"{0:020d}").exists()


@pytest.mark.parametrize("clean", [True, False])
def test_the_time_does_not_follow_a_damaged_store_time(box: Box, clean: bool) -> None:
    """The broker goes on from the newest message's time; one flipped bit made that the year 1143730."""
    store = box.open()
    position = 0
    for body in (b"first", b"second", b"third"):
        box.clock.value += 1000
        position = store.commit_log.end
        put(store, body)
    if clean:
        store.close()
    else:
        box.crash(store)
    _damage(box.log_files[0], position, "store_timestamp", box.clock.value | 1 << 55)
    with capture_logs() as said:
        store = box.open()
    assert store.commit_log.last_store_timestamp <= box.clock.value
    (line,) = [each for each in said if "no calendar" in each["event"]]
    assert (line["offset"], line["store_timestamp"]) == (position, box.clock.value | 1 << 55)
    put(store, b"next")
    assert bodies(store) == [b"first", b"second", b"third", b"next"]
    assert store.commit_log.last_store_timestamp == box.clock.value
