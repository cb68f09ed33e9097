"""Repairs at a start outside the newest files: queues and index files that somebody removed, cut or
replaced, and topics that were deleted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from tests.unit.store.store_box import LOG_FILE, QUEUE_FILE, Box, bodies, put

from cometmq.errors import StoreError
from cometmq.runtime.randomness import Randomness
from cometmq.store.files.disk import Disk
from cometmq.store.offline.repair import check
from cometmq.testing.virtual.storage.disk import VirtualDisk

IDLE = "idle"
ALWAYS = 1e9


def fill(box: Box) -> None:
    """Make an idle queue of 12 messages over three files, and put 40 messages behind it."""
    store = box.open()
    for number in range(12):
        box.clock.value += 1000
        put(store, b"%d" % number, topic=IDLE)
    for number in range(40):
        box.clock.value += 1000
        put(store, b"%d" % number + bytes(700), queue_id=number % 2)
    store.close()


def queue_files(box: Box, topic: str = IDLE) -> list[Path]:
    return sorted((box.root / "consumequeue" / topic / "0").iterdir())


def contents(box: Box) -> dict[str, bytes]:
    root = box.root / "consumequeue"
    return {str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*") if path.is_file()}  # fmt: skip


def remove_queue(box: Box) -> None:
    shutil.rmtree(box.root / "consumequeue" / IDLE / "0")


def remove_topic(box: Box) -> None:
    shutil.rmtree(box.root / "consumequeue" / IDLE)


def remove_first_file(box: Box) -> None:
    queue_files(box)[0].unlink()


def remove_middle_file(box: Box) -> None:
    queue_files(box)[1].unlink()


def remove_last_file(box: Box) -> None:
    queue_files(box)[-1].unlink()


def cut_last_file(box: Box) -> None:
    path = queue_files(box)[-1]
    path.write_bytes(path.read_bytes()[:20])


def empty_last_file(box: Box) -> None:
    queue_files(box)[-1].write_bytes(b"")


def bring_back_an_old_file(box: Box) -> None:
    path = queue_files(box)[-1]
    path.write_bytes(path.read_bytes()[:20] + bytes(QUEUE_FILE - 20))


DAMAGES = (
    remove_queue,
    remove_topic,
    remove_first_file,
    remove_middle_file,
    remove_last_file,
    cut_last_file,
    empty_last_file,
    bring_back_an_old_file,
)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("clean", [True, False])
def test_an_idle_queue_that_was_hurt_by_hand_is_rebuilt(
    box: Box, damage: Callable[[Box], None], clean: bool
) -> None:
    fill(box)
    if not clean:
        box.crash(box.open())
    before = contents(box)
    damage(box)
    store = box.open()
    assert bodies(store, IDLE) == [b"%d" % number for number in range(12)]
    assert put(store, b"12", topic=IDLE)[0] == 12
    store.close()
    # Beside the new message all is as it was.
    changed = {name for name, data in contents(box).items() if before.get(name) != data}
    assert changed == {f"{IDLE}/0/{2 * QUEUE_FILE:020d}"}
    assert check(box.config)[1].is_sound


def test_the_rebuilt_queue_is_named(box: Box) -> None:
    fill(box)
    remove_queue(box)
    with structlog.testing.capture_logs() as said:
        box.open()
    (line,) = [line for line in said if "lack messages" in line["event"]]
    assert (line["log_level"], line["queues"]) == ("warning", [f"{IDLE}/0"])


def test_a_queue_whose_messages_have_left_the_log_may_be_missing(box: Box) -> None:
    fill(box)
    for path in box.log_files[:1]:
        path.unlink()
    remove_queue(box)
    store = box.new()
    assert store.open().scanned_count == 0
    assert store.max_offset(IDLE, 0) == 0


def test_a_ledger_that_is_missing_or_damaged_is_no_obstacle(box: Box) -> None:
    for text in (None, "", "{", '{"deleted": 1, "queues": {}, "index": {}}', "[1]"):
        shutil.rmtree(box.root, ignore_errors=True)
        fill(box)
        path = box.root / "queues.json"
        path.unlink() if text is None else path.write_text(text)
        store = box.open()
        assert len(bodies(store, IDLE)) == 12
        store.close()


def test_a_store_that_another_broker_went_on_with(box: Box) -> None:
    """Java neither reads nor writes the file."""
    fill(box)
    ledger = (box.root / "queues.json").read_bytes()
    store = box.open()
    for _ in range(10):
        put(store, b"more", topic=IDLE)
    store.close()
    (box.root / "queues.json").write_bytes(ledger)
    store = box.new()
    assert store.open().scanned_count == 0
    assert len(bodies(store, IDLE)) == 22


def test_a_missing_index_file_is_rebuilt(box: Box) -> None:
    box = Box(box.root, max_hash_slot_num=10, max_index_num=10)
    store = box.open()
    for number in range(50):
        box.clock.value += 1000
        queue = store.queue("orders", 0)
        store.append(queue, b"x", f"KEYS\x01k{number}\x02".encode(), 0, 1, bytes(8))
    store.close()
    files = sorted((box.root / "index").iterdir())
    assert len(files) > 4
    for position in (0, 2, -1):
        sorted((box.root / "index").iterdir())[position].unlink()
        store = box.open()
        assert store.index.catch_up(store.commit_log.end, ALWAYS)
        for number in range(50):
            assert store.index.query("orders", f"k{number}", 9, 0, 2**62).offsets, number
        store.close()


# -- deleted topics --


def delete_and_begin_anew(box: Box, *, old: int = 5, new: int = 3) -> list[bytes]:
    """Make two queues of a topic that is deleted; in its new life only queue 0 has messages."""
    store = box.open()
    for number in range(old):
        put(store, b"old %d" % number, topic="t")
        put(store, b"old %d" % number, topic="t", queue_id=1)
        put(store, bytes(800))
    assert sorted(store.delete_topic("t")) == [0, 1]
    expected = [b"new %d" % number for number in range(new)]
    for number, body in enumerate(expected):
        assert put(store, body, topic="t")[0] == number
    put(store, bytes(800))
    store.close()
    return expected


@pytest.mark.parametrize("new", [0, 3, 8])
@pytest.mark.parametrize("clean", [True, False])
def test_a_rebuild_does_not_bring_back_a_deleted_topic(box: Box, new: int, clean: bool) -> None:
    expected = delete_and_begin_anew(box, new=new)
    for _ in range(2):
        if not clean:
            (box.root / "abort").touch()
            (box.root / "checkpoint").unlink()
        shutil.rmtree(box.root / "consumequeue")
        store = box.open()
        assert bodies(store, "t") == expected
        assert store.topics().get("t", []) == ([0] if new else [])
        assert len(bodies(store)) == 6
        store.close()
        report = check(box.config)[1]
        assert report.is_sound, report.findings
    assert put(box.open(), b"next", topic="t")[0] == new


def test_a_crash_between_note_and_removal_deletes_the_topic_all_the_same(box: Box) -> None:
    class Stubborn(Disk):
        def remove_tree(self, path: Path) -> None:
            raise StoreError(f"{path}: it does not go")

    fill(box)
    store = box.new(Stubborn())
    store.open()
    with pytest.raises(StoreError, match="does not go"):
        store.delete_topic(IDLE)
    store.close()
    (box.root / "abort").touch()
    store = box.open()
    assert IDLE not in store.topics()
    assert len(bodies(store)) == 20


def test_a_deletion_that_cannot_be_noted_is_none(box: Box) -> None:
    class Full(Disk):
        full = False

        def write(self, path: Path, data: bytes) -> None:
            if self.full:
                raise StoreError(f"{path}: no room")
            super().write(path, data)

    fill(box)
    disk = Full()
    store = box.new(disk)
    store.open()
    disk.full = True
    with pytest.raises(StoreError, match="no room"):
        store.delete_topic(IDLE)
    assert len(bodies(store, IDLE)) == 12
    # A stop does not need the note.
    store.close()
    assert not (box.root / "abort").exists()
    assert len(bodies(box.open(), IDLE)) == 12


def test_messages_of_the_new_life_survive_a_log_that_lost_its_tail(tmp_path: Path) -> None:
    """A power loss takes what was not flushed; what is stored next may lie before the offset of the
    deletion.
    """
    box = Box(tmp_path / "s", mapped_file_size_commit_log=16 * LOG_FILE)
    disk = VirtualDisk(Randomness(1))
    store = box.new(disk)
    store.open()
    put(store, b"flushed", topic="t")
    store.flush_all()
    for _ in range(30):
        put(store, bytes(1000), topic="t")
    store.delete_topic("t")
    end = store.commit_log.end
    disk.lose_power()
    store.abandon()
    store = box.new(disk)
    store.open()
    assert store.topics() == {}
    assert store.commit_log.end < end
    for number in range(3):
        assert put(store, b"new", topic="t")[0] == number
    store.flush_all()
    disk.lose_power()
    store.abandon()
    store = box.new(disk)
    store.open()
    assert bodies(store, "t") == [b"new"] * 3


def test_deletions_are_forgotten_with_their_records(box: Box) -> None:
    delete_and_begin_anew(box)
    store = box.open()
    while len(box.log_files) < 6:
        put(store, bytes(800))
    store.close()
    for path in box.log_files[:4]:
        path.unlink()
    (box.root / "abort").touch()
    box.open().close()
    assert '"deleted": {}' in (box.root / "queues.json").read_text()
