"""A get that may not block ends before what is not in memory, and says what brings it there."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from tests.unit.store.cold_disk import ColdDisk
from tests.unit.store.store_box import Box, put

from cometmq.errors import StoreError
from cometmq.protocol.messages.record import decode_records
from cometmq.store.files.disk import Disk
from cometmq.store.get import GetResult, GetStatus
from cometmq.store.store import MessageStore

LARGE = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 200_000}


@pytest.fixture
def disk() -> ColdDisk:
    return ColdDisk()


def cold_store(root: Path, disk: ColdDisk, bodies: list[bytes], queues: int = 1) -> MessageStore:
    """Return a store that was opened again with these messages, in turns in its queues."""
    box = Box(root, disk=disk, **LARGE)
    store = box.open()
    for number, body in enumerate(bodies):
        put(store, body, queue_id=number % queues)
    store.close()
    return box.open()


def get(store: MessageStore, offset: int, count: int = 32, **how: object) -> GetResult:
    return store.get("orders", 0, offset, count, may_block=False, **how)  # type: ignore[arg-type]  # its filters


def read(result: GetResult) -> None:
    assert result.status is GetStatus.NOT_IN_MEMORY
    assert result.absent
    assert not result.slices
    for bring_in in result.absent:
        bring_in()


def read_all(store: MessageStore, offset: int, count: int = 32, **how: object) -> GetResult:
    """Get as often as something must be read first; that is at least once."""
    read(get(store, offset, count, **how))
    for _ in range(2):
        result = get(store, offset, count, **how)
        if result.status is not GetStatus.NOT_IN_MEMORY:
            return result
        read(result)
    return get(store, offset, count, **how)


def found(result: GetResult) -> list[bytes]:
    return [record.body for part in result.slices for record in decode_records(part)]


def test_old_messages_are_found_once_they_were_read(tmp_path: Path, disk: ColdDisk) -> None:
    bodies = [b"%06d" % number * 700 for number in range(40)]
    store = cold_store(tmp_path, disk, bodies)
    assert get(store, 0).next_begin_offset == 0
    result = read_all(store, 0)
    assert found(result) == bodies[: result.message_count]
    assert result.message_count >= 10
    # What lies side by side is read ahead, so the next one need not wait.
    assert get(store, result.next_begin_offset).status is GetStatus.FOUND


def test_who_may_block_is_asked_for_nothing(tmp_path: Path, disk: ColdDisk) -> None:
    store = cold_store(tmp_path, disk, [b"x" * 5_000] * 10)
    assert store.get("orders", 0, 0, 32).status is GetStatus.FOUND
    assert disk.brought == []


def test_what_was_appended_since_the_start_needs_no_look(tmp_path: Path, disk: ColdDisk) -> None:
    store = cold_store(tmp_path, disk, [b"old" * 2_000] * 3)
    put(store, b"new")
    assert found(get(store, 3)) == [b"new"]


def test_messages_of_other_queues_in_between_are_not_read(tmp_path: Path, disk: ColdDisk) -> None:
    bodies = [b"%d" % number * 20_000 for number in range(8)]
    store = cold_store(tmp_path, disk, bodies, queues=4)
    assert found(read_all(store, 0)) == [bodies[0], bodies[4]]
    assert sum(end - start for _, start, end in disk.brought_of_log) < 60_000, disk.brought


def test_messages_that_a_filter_skips_are_not_read(tmp_path: Path, disk: ColdDisk) -> None:
    box = Box(tmp_path, disk=disk, **LARGE)
    store = box.open()
    for number in range(20):
        put(store, b"%02d" % number * 5_000, tags="rare" if number % 10 == 0 else "often")
    store.close()
    store = box.open()
    rare = next(store.queue("orders", 0).units(0, 1) or iter(()))[2]
    result = read_all(store, 0, matches=lambda code: code == rare)
    assert found(result) == [b"00" * 5_000, b"10" * 5_000]
    assert result.next_begin_offset == 20
    assert sum(end - start for _, start, end in disk.brought_of_log) < 40_000, disk.brought


def test_a_scan_that_has_passed_messages_keeps_its_place(tmp_path: Path, disk: ColdDisk) -> None:
    # 400 records of 1,100 bytes: more than one look covers.
    store = cold_store(tmp_path, disk, [b"%04d" % number * 250 for number in range(400)])
    offset, rounds, seen = 0, 0, 0

    def never(_record: memoryview) -> bool:
        nonlocal seen
        seen += 1
        return False

    while offset < 400:
        result = get(store, offset, matches_record=never)
        rounds += 1
        assert rounds < 100
        if result.status is GetStatus.NOT_IN_MEMORY:
            assert result.next_begin_offset == offset
            read(result)
        else:
            assert result.status is GetStatus.NO_MATCHED_MESSAGE
            assert result.next_begin_offset > offset
            offset = result.next_begin_offset
    assert seen == 400, "no message was looked at twice"


def test_units_are_read_first_and_looked_for_once(tmp_path: Path, disk: ColdDisk) -> None:
    store = cold_store(tmp_path, disk, [b"x"] * 9_000)
    read(get(store, 0))
    assert disk.brought == [("0", 0, 65_536)]
    read(get(store, 0))
    assert get(store, 0).status is GetStatus.FOUND
    assert get(store, 32).status is GetStatus.FOUND
    read(get(store, 4_000))
    assert disk.brought[-1][:2] == ("0", 4_000 * 20 // 4_096 * 4_096)


def test_the_end_of_a_queue_needs_no_second_look(
    tmp_path: Path, disk: ColdDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cold_store(tmp_path, disk, [b"x"] * 10)
    assert read_all(store, 9).message_count == 1
    looks: list[int] = []

    def look(_mapping: mmap.mmap, start: int, _end: int) -> bool:
        looks.append(start)
        return True

    monkeypatch.setattr(disk, "is_cached", look)
    for number in range(10, 20):
        put(store, b"new")
        assert get(store, number).message_count == 1
    assert looks == []


def test_a_file_that_is_deleted_meanwhile_can_still_be_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"m" * 65_536)
    disk = Disk()
    mapping = disk.map(path, 65_536)
    path.unlink()
    disk.bring_in(path, mapping, 0, 65_536)
    assert disk.is_cached(mapping, 0, 65_536)


def test_pages_that_the_kernel_dropped_are_not_cached(path_on_disk: Path) -> None:
    path = path_on_disk / "file"
    size = 64 * mmap.PAGESIZE
    path.write_bytes(os.urandom(size))
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, size, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    disk = Disk()
    mapping = disk.map(path, size)
    if disk.is_cached(mapping, 0, size):
        pytest.skip("this file system keeps everything in memory")
    disk.bring_in(path, mapping, 0, size)
    assert disk.is_cached(mapping, 0, size)


def test_a_kernel_that_cannot_populate_reads_through_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.store.files.memory.populate", lambda *_: False)
    path = tmp_path / "file"
    path.write_bytes(b"m" * 10_000)
    disk = Disk()
    mapping = disk.map(path, 10_000)
    disk.bring_in(path, mapping, 0, 10_000)
    monkeypatch.setattr(os, "preadv", _failing)
    with pytest.raises(StoreError, match="Input/output error"):
        disk.bring_in(path, mapping, 0, 10_000)


def _failing(*_: object) -> int:
    raise OSError(5, "Input/output error")
