"""Extensions of consume queues: their files, and that addresses never point at another message."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cleaning import clean
from tests.golden.golden import of_kind
from tests.unit.store.store_box import CLIENT, Box, ManualClock, bodies, put

from cometmq.errors import StoreFullError
from cometmq.model.java.hashing import java_hash
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.runtime.randomness import Randomness
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.queues.consume_queue import UNIT
from cometmq.store.queues.consume_queue_ext import ConsumeQueueExt, ExtendedConsumeQueue, ExtUnit
from cometmq.store.store import MessageStore
from cometmq.testing.virtual.storage.disk import VirtualDisk

# As many units of 20 bytes and a bit map of 14 as a handful of messages make.
EXT_FILE = 0x7FFF + 4


def ext_files(directory: Path, size: int) -> MappedFileQueue:
    return MappedFileQueue(Disk(), directory, size, size_key="mappedFileSizeConsumeQueueExt")


def test_the_files_of_java_both_ways(tmp_path: Path) -> None:
    files = of_kind("consume-queue-ext")
    units = files[0].input["units"]
    size = files[0].input["fileSize"]
    ext = ConsumeQueueExt(ext_files(tmp_path / "ours", size))
    for unit in units:
        wanted = ExtUnit(
            unit["tagsCode"], unit["storeTimestamp"], bytes.fromhex(unit["bitMap"]) * 14
        )
        assert ext.put(wanted) == unit["address"]
        assert ext.get(unit["address"]) == wanted
    ours = [path.read_bytes() for path in sorted((tmp_path / "ours").iterdir())]
    assert ours == [file.data for file in files]
    reopened = ConsumeQueueExt(ext_files(tmp_path / "ours", size))
    reopened.files.load()
    reopened.recover(units[-1]["address"] + (1 << 63))
    assert reopened.end == ext.end
    assert reopened.get(units[0]["address"]) == ext.get(units[0]["address"])
    assert reopened.get(reopened.end - (1 << 63)) is None


def bit_map(topic: str, properties: bytes) -> bytes | None:
    return None if b"none" in properties else (topic.encode() + properties)[:14].ljust(14)


def open_ext(box: Box, disk: Disk | None = None, **settings: Any) -> MessageStore:
    enabled = Box(
        box.root,
        enable_consume_queue_ext=True,
        mapped_file_size_consume_queue_ext=EXT_FILE,
        mapped_file_size_commit_log=1 << 16,
        **settings,
    )
    enabled.clock = box.clock
    store = MessageStore(
        enabled.config,
        clock=box.clock,
        store_host=bytes(8),
        disk=disk,
        bit_map_of=bit_map,
        on_arrival=lambda *arrival: box.arrivals.append(arrival),
    )
    box.stores.append(store)
    store.open()
    return store


def queue_of(store: MessageStore, topic: str = "orders") -> ExtendedConsumeQueue:
    queue = store.queue(topic, 0)
    assert isinstance(queue, ExtendedConsumeQueue)
    return queue


def check(store: MessageStore, tags: list[str], topic: str = "orders") -> None:
    """Check that each unit has the tags code, the time and the bit map of its own message, or
    none.
    """
    queue = queue_of(store, topic)
    stored = list(stored_codes(queue))
    assert len(stored) == len(tags)
    for offset, (code, tag) in enumerate(zip(stored, tags, strict=True)):
        unit = queue.unit(offset)
        assert unit is not None
        found = queue.ext.get(code)
        if found is not None:
            properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
            time = store.store_timestamp(topic, 0, offset)
            assert found == ExtUnit(java_hash(tag), time, bit_map(topic, properties) or b"")
            assert unit.tags_code == java_hash(tag)


def stored_codes(queue: ExtendedConsumeQueue) -> list[int]:
    return [
        code
        for start in range(0, queue.next_offset, queue.units_per_file)
        for _, _, code in queue.stored_units(start, queue.units_per_file) or ()
    ]


def test_units_hold_addresses_and_readers_see_tags_codes(box: Box) -> None:
    store = open_ext(box)
    tags = ["a", "b", "", "none", "a"]
    for tag in tags:
        box.clock.value += 7
        put(store, tag.encode(), tags=tag)
    queue = queue_of(store)
    addresses = [place - (1 << 63) for place in (0, 34, 68, 102, 122)]
    assert stored_codes(queue) == addresses
    assert [code for _, _, code in queue.units(0, 10) or ()] == [java_hash(tag) for tag in tags]
    assert [arrival[3] for arrival in box.arrivals] == [java_hash(tag) for tag in tags]
    check(store, tags)
    data = (box.root / "consumequeue/orders/0" / f"{0:020d}").read_bytes()
    assert [unit[2] for unit in UNIT.iter_unpack(data)][:5] == addresses


def test_filters_see_what_is_behind_an_address(box: Box) -> None:
    store = open_ext(box)
    for tag in ["a", "b", "a", "none"]:
        put(store, tag.encode(), tags=tag)

    def got(**filters: Any) -> int:
        return store.get("orders", 0, 0, 32, **filters).message_count

    assert got() == 4
    assert got(matches=lambda code: code == java_hash("a")) == 2
    assert got(matches_ext=lambda unit: not unit.bit_map) == 1
    assert got(matches=lambda code: code == java_hash("a"), matches_ext=lambda _: False) == 0
    # A message whose unit is lost is for the client to filter.
    queue_of(store).ext.end = 0
    assert got(matches=lambda _: False, matches_ext=lambda _: False) == 4


def test_batches(box: Box) -> None:
    store = open_ext(box)
    entries = [BatchEntry(0, b"x", f"TAGS\x01t{number}\x02".encode()) for number in range(3)]
    codes = [java_hash(f"t{number}") for number in range(3)]
    store.append_batch(store.queue("orders", 0), entries, codes, 1, CLIENT)
    check(store, ["t0", "t1", "t2"])


def test_many_files_and_restarts(box: Box) -> None:
    tags = []
    store = open_ext(box)
    for number in range(2500):
        tags.append(f"tag{number}")
        put(store, b"", tags=tags[-1])
        if number % 900 == 500:
            store.close()
            store = open_ext(box)
    check(store, tags)
    assert all(queue_of(store).ext.get(code) for code in stored_codes(queue_of(store)))
    assert len(queue_of(store).ext.files.files) == 3
    box.crash(store)
    store = open_ext(box)
    check(store, tags)


def test_a_rebuilt_queue_has_the_same_extension(box: Box) -> None:
    store = open_ext(box)
    tags = [f"tag{number}" for number in range(50)]
    for tag in tags:
        put(store, b"", tags=tag)
    store.close()
    file = box.root / "consumequeue_ext/orders/0" / f"{0:020d}"
    before = file.read_bytes()
    shutil.rmtree(box.root / "consumequeue")
    store = open_ext(box)
    check(store, tags)
    assert file.read_bytes() == before


def test_a_deleted_extension_is_not_written_where_old_addresses_point(box: Box) -> None:
    store = open_ext(box)
    for number in range(20):
        put(store, b"", tags=f"old{number}")
    store.close()
    shutil.rmtree(box.root / "consumequeue_ext")
    store = open_ext(box)
    for number in range(20):
        put(store, b"", tags=f"new{number}")
    tags = [f"{age}{number}" for age in ("old", "new") for number in range(20)]
    check(store, tags)
    queue = queue_of(store)
    found = [queue.ext.get(code) is not None for code in stored_codes(queue)]
    assert found == [False] * 20 + [True] * 20
    assert queue.ext.files.min_offset == EXT_FILE
    store.close()
    store = open_ext(box)
    check(store, tags)


def test_a_damaged_extension_is_dropped(box: Box) -> None:
    store = open_ext(box)
    put(store, b"first", tags="a")
    store.close()
    (box.root / "consumequeue_ext/orders/0" / f"{0:020d}").write_bytes(b"x" * (EXT_FILE + 1))
    store = open_ext(box)
    put(store, b"second", tags="b")
    check(store, ["a", "b"])
    assert bodies(store) == [b"first", b"second"]


@pytest.mark.parametrize("damage", [b"\0\0", b"\xff\xff", b"\x00\x13", b"\x7f\xff"])
def test_a_damaged_unit_lets_its_message_pass(box: Box, damage: bytes) -> None:
    store = open_ext(box)
    for tag in ("a", "b", "c"):
        put(store, tag.encode(), tags=tag)
    queue_of(store).ext.files.files[0].map[34:36] = damage
    matches = lambda code: code == java_hash("a")  # noqa: E731 - one line says more here
    assert store.get("orders", 0, 0, 32, matches=matches).message_count == 2


def test_enabled_and_disabled_again(box: Box) -> None:
    plain = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue_ext": EXT_FILE}
    store = Box(box.root, **plain).open()
    put(store, b"1", tags="a")
    store.close()
    store = open_ext(box)
    put(store, b"2", tags="b")
    store.close()
    store = Box(box.root, **plain).open()
    put(store, b"3", tags="a")
    put(store, b"4", tags="b")
    matches = lambda code: code == java_hash("b")  # noqa: E731 - one line says more here
    assert store.get("orders", 0, 0, 32, matches=matches).message_count == 2
    store.close()
    store = open_ext(box)
    put(store, b"5", tags="b")
    assert store.get("orders", 0, 0, 32, matches=matches).message_count == 3
    check(store, ["a", "b", "a", "b", "b"])


class NoRoomForExtensions(Disk):
    def allocate(self, path: Path, size: int, *, reserved: int | None = None) -> None:
        if "consumequeue_ext" in path.parts:
            raise StoreFullError(f"{path}: the disk has no room")
        super().allocate(path, size, reserved=reserved)


def test_without_room_for_it_messages_are_stored_all_the_same(box: Box) -> None:
    store = open_ext(box, NoRoomForExtensions())
    put(store, b"1", tags="a")
    assert stored_codes(queue_of(store)) == [java_hash("a")]
    assert bodies(store) == [b"1"]


def test_a_deleted_topic_takes_its_extension_along(box: Box) -> None:
    store = open_ext(box)
    put(store, b"1", tags="a")
    assert (box.root / "consumequeue_ext/orders").exists()
    store.delete_topic("orders")
    assert not (box.root / "consumequeue_ext/orders").exists()


def test_retention_takes_files_of_the_extension(box: Box) -> None:
    store = open_ext(box, file_reserved_time=0, delete_when=";".join(map(str, range(24))))
    tags = [f"tag{number}" for number in range(3000)]
    for tag in tags:
        put(store, b"x" * 100, tags=tag)
    before = len(queue_of(store).ext.files.files)
    store.flush_all()
    box.clock.value = 4_000_000_000_000
    clean(store)
    assert store.min_offset("orders", 0) > 2000
    queue = queue_of(store)
    assert len(queue.ext.files.files) < before
    assert len(list((box.root / "consumequeue_ext/orders/0").iterdir())) == len(
        queue.ext.files.files
    )
    first = queue.stored_units(queue.min_offset, 1)
    assert first is not None
    assert all(queue.ext.get(code) for _, _, code in first)


@pytest.mark.parametrize("seed", range(30))
def test_power_losses(tmp_path: Path, seed: int) -> None:
    """No unit ever has the data of another message, whatever part of either file a crash took."""
    rng = random.Random(seed)
    disk = VirtualDisk(Randomness(seed))
    box = Box(tmp_path / "store")
    box.clock = ManualClock()
    tags: list[str] = []
    for _ in range(4):
        store = open_ext(box, disk)
        tags = tags[: store.max_offset("orders", 0)]
        check(store, tags)
        for _ in range(rng.randrange(60)):
            box.clock.value += rng.choice((0, 1, 500, 2000))
            tags.append(rng.choice(("", "none", "t" * rng.randrange(1, 30))))
            put(store, b"x", tags=tags[-1])
            actions: list[Callable[[], object]] = [store.flush_all, store.flush_consume_queues]
            if rng.random() < 0.1:
                rng.choice([*actions, store.flush_commit_log])()
        if rng.random() < 0.3:
            store.close()
        disk.lose_power()
        store.abandon()
