"""After a power loss, what was flushed is there, what is there is right, and offsets continue."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.store.store_box import CLIENT, Box, bodies, put, records

from cometmq.errors import StoreCorruptError, StoreFullError
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.protocol.messages.record import StoredRecord, decode_record
from cometmq.runtime.randomness import Randomness
from cometmq.store.files.disk import Disk
from cometmq.store.log.scan import LogScan
from cometmq.store.offline.repair import check
from cometmq.store.queues.dispatch import tags_code_of
from cometmq.store.store import MessageStore
from cometmq.testing.virtual.storage.disk import VirtualDisk

QUEUES = [("a", 0), ("a", 1), ("b", 0)]
Stored = dict[int, tuple[str, int, int, bytes, str]]


def contents(record: StoredRecord) -> tuple[str, int, int, bytes, str]:
    return record.topic, record.queue_id, record.queue_offset, record.body, record.properties


def check_flushed(store: MessageStore, stored: Stored, flushed: int) -> None:
    """Check that every message stored below `flushed` is found by its queue offset and by its log
    offset.
    """
    for place, message in stored.items():
        if place >= flushed:
            continue
        data = store.record_at(place)
        assert data is not None
        record = decode_record(data, check_crc=True)
        assert contents(record) == message
        assert store.max_offset(record.topic, record.queue_id) > record.queue_offset


def check_queues(store: MessageStore, stored: Stored) -> None:
    """Check that the queues equal a replay of the log, have no gaps, and hold only what was
    sent.
    """
    expected: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for record in LogScan(store.commit_log.files, 0, check_crc=True):
        units = expected.setdefault((record.topic, record.queue_id), [])
        assert record.queue_offset == len(units)
        units.append((record.offset, record.size, tags_code_of(record, ())))
    for topic, queue_id in QUEUES:
        units = expected.get((topic, queue_id), [])
        queue = store.queue(topic, queue_id)
        assert [tuple(queue.unit(n) or ()) for n in range(queue.next_offset)] == units
        for found in records(store, topic, queue_id):
            assert stored[found.physical_offset] == contents(found)


class Life:
    """One run of a broker's storage, from start to power loss."""

    def __init__(self, box: Box, disk: VirtualDisk, rng: random.Random, stored: Stored) -> None:
        self.box, self.disk, self.rng, self.stored = box, disk, rng, stored
        self.store = box.open(disk)

    def run(self) -> int:
        """Run until the power is lost; return the flushed offset at the end."""
        store = self.store
        actions: list[Callable[[], object]] = [self.put, self.put, self.put, self.put] * 5
        actions += [self.put_batch] * 2
        actions += [store.flush_commit_log] * 2 + [store.flush_consume_queues, store.flush_all]
        actions += [store.prepare_next]
        for _ in range(self.rng.randrange(60)):
            self.box.clock.value += self.rng.choice((0, 1, 500, 2000))
            try:
                self.rng.choice(actions)()
            except StoreFullError:
                self.disk.mend()
        return self.store.flushed_offset

    def put(self) -> None:
        topic, queue_id = self.rng.choice(QUEUES)
        body = self.rng.randbytes(self.rng.choice((0, 10, 700)))
        tags = "t" * self.rng.choice((1, 30, 1000))
        offset, place = put(self.store, body, topic=topic, queue_id=queue_id, tags=tags)
        self.stored[place] = (topic, queue_id, offset, body, f"TAGS\x01{tags}\x02")

    def put_batch(self) -> None:
        topic, queue_id = self.rng.choice(QUEUES)
        entries = [BatchEntry(0, self.rng.randbytes(200), b"") for _ in range(5)]
        queue = self.store.queue(topic, queue_id)
        first, places = self.store.append_batch(queue, entries, [0] * 5, 1, CLIENT)
        for number, place in enumerate(places):
            self.stored[place] = (topic, queue_id, first + number, entries[number].body, "")


def lives(box: Box, seed: int) -> None:
    rng = random.Random(seed)
    disk = VirtualDisk(Randomness(seed))
    stored: Stored = {}
    for _ in range(rng.randrange(2, 5)):
        room = rng.choice((1, 5, None))
        if room is not None:
            disk.fail("allocate", "ENOSPC", after=room, times=None)
        try:
            life = Life(box, disk, rng, stored)
        except StoreFullError:
            disk.mend()
            life = Life(box, disk, rng, stored)
        flushed = life.run()
        if rng.random() < 0.2:
            life.store.close()
            flushed = life.store.commit_log.end
        else:
            disk.lose_power()
            drop(life.store)
        disk.mend()
        store = box.open(disk)
        check_flushed(store, stored, flushed)
        for place in [place for place in stored if place >= store.commit_log.end]:
            del stored[place]
        check_queues(store, stored)
        disk.lose_power()
        drop(store)


def drop(store: MessageStore) -> None:
    """Forget a store whose process died: only its lock must be released."""
    store.abandon()


@pytest.mark.parametrize("seed", range(40))
def test_power_losses(tmp_path: Path, seed: int) -> None:
    lives(Box(tmp_path / "store", mapped_file_size_commit_log=4096 * 4), seed)


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_of_power_right_after_a_start_is_no_clean_stop(tmp_path: Path, seed: int) -> None:
    """The name of `abort` could be lost while the next file of the log was not."""
    box = Box(tmp_path / "store", mapped_file_size_commit_log=4096 * 4)
    disk = VirtualDisk(Randomness(seed))
    box.open(disk).close()
    store = box.open(disk)
    put(store, b"body")  # makes a file, of which any part may be there afterwards
    disk.lose_power()
    drop(store)
    assert disk.size(tmp_path / "store" / "abort") is not None
    store = box.open(disk)
    assert put(store, b"body")[0] in (0, 1)
    store.close()


def two_files_with_a_hole(box: Box) -> tuple[Path, Path]:
    """Store messages of one millisecond in two files, and lose the first one of the second file."""
    store = box.open()
    while len(store.commit_log.files.files) < 2:
        put(store, b"body")
    for _ in range(5):
        put(store, b"body")
    box.crash(store)
    first, second = sorted((box.root / "commitlog").iterdir())
    data = second.read_bytes()
    size = int.from_bytes(data[:4], "big")
    second.write_bytes(bytes(size) + data[size:])  # the page that the disk never got
    return first, second


def test_what_was_stored_in_the_millisecond_of_the_last_flush_may_not_be_on_disk(box: Box) -> None:
    """The messages before it had expired, so nothing showed that the hole was no damage (seed
    1775810986).
    """
    first, second = two_files_with_a_hole(box)
    first.unlink()
    store = box.open()
    assert store.commit_log.end == int(second.name)
    put(store, b"body")
    assert store.commit_log.end > int(second.name)


def test_a_hole_behind_older_messages_is_damage_also_before_the_last_flushed_millisecond(
    tmp_path: Path,
) -> None:
    """Else the last flushed message would come before the hole."""
    box = Box(tmp_path / "store")
    store = box.open()
    put(store, b"old")
    box.clock.value += 1_000
    _, lost = put(store, b"lost")
    put(store, b"flushed in the same millisecond")
    box.crash(store)
    file = next((box.root / "commitlog").iterdir())
    data = file.read_bytes()
    size = int.from_bytes(data[lost : lost + 4], "big")
    file.write_bytes(data[:lost] + bytes(size) + data[lost + size :])
    with pytest.raises(StoreCorruptError, match=rf"damaged at {lost}"):
        box.open()
    box.close()


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("older", [0, 100])
def test_a_queue_of_which_a_power_loss_left_an_empty_later_file_begins_at_its_first_message(
    tmp_path: Path, *, extended: bool, older: int
) -> None:
    """It began at the file that was left, and its messages in the log had no place (seed 1081647599)."""
    box = Box(tmp_path / "store", enable_consume_queue_ext=extended)
    store = box.open()
    for _ in range(older):
        put(store, topic="older")
    store.flush_all()
    box.clock.value += 1_000
    sent = [b"%d" % number for number in range(8)]
    for body in sent:
        put(store, body)
    store.flush_commit_log()
    drop(store)
    first, later = sorted((box.root / "consumequeue" / "orders" / "0").iterdir())
    # Names of a directory that was not synced: any of them may be lost.
    first.unlink()
    later.write_bytes(bytes(later.stat().st_size))
    for _ in range(2):
        store = box.open()
        assert bodies(store) == sent
        assert store.min_offset("orders", 0) == 0
        assert len(records(store, "older")) == older
        drop(store)
    store = box.open()
    assert put(store, b"next")[0] == len(sent)
    store.flush_all()
    box.crash(store)
    store = box.open()
    assert bodies(store) == [*sent, b"next"]
    box.close()
    _, report = check(box.config, Disk())
    assert report.findings == []


def test_a_queue_whose_messages_left_the_log_goes_on_behind_them_after_a_power_loss(
    tmp_path: Path,
) -> None:
    """Its newest file may be as empty, and its offset must not begin again."""
    box = Box(tmp_path / "store")
    store = box.open()
    for number in range(5):
        put(store, b"%d" % number)
    while len(store.commit_log.files.files) < 3:
        put(store, topic="newer")
    store.flush_all()
    offset, place = put(store, b"not on disk")
    drop(store)
    first, later = sorted((box.root / "consumequeue" / "orders" / "0").iterdir())
    first.unlink()
    later.write_bytes(bytes(later.stat().st_size))
    box.log_files[0].unlink()
    last = box.log_files[-1]
    kept = last.read_bytes()[: place - int(last.name)]
    last.write_bytes(kept.ljust(last.stat().st_size, b"\0"))
    store = box.open()
    assert store.max_offset("orders", 0) == offset == 5
    assert put(store, b"next")[0] == offset
    box.close()
