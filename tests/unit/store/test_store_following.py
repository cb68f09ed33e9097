"""Following the log from a position, and appending what a master's log has."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cleaning import remove_first
from tests.unit.store.store_box import LOG_FILE, Box, bodies, put

from cometmq.errors import StoreError
from cometmq.model.sysflag import TRANSACTION_PREPARED
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.record_layout import MAGIC_AT, SIZE_AT
from cometmq.store.log.following import LogFollower
from cometmq.store.store import MessageStore


def offsets(follower: LogFollower) -> list[int]:
    return [glance.offset for glance in follower]


def fill(store: MessageStore, count: int, seed: int = 0) -> list[int]:
    """Messages of several sizes in several queues, over several files; where their records are."""
    chance = random.Random(seed)
    return [
        put(store, bytes(chance.randrange(900)), queue_id=chance.randrange(3), tags="t")[1]
        for _ in range(count)
    ]


def test_records_come_once_and_new_ones_when_asked_again(box: Box) -> None:
    store = box.open()
    follower = LogFollower(store.commit_log, 0)
    assert offsets(follower) == []
    first = fill(store, 30)
    assert len(box.log_files) > 3
    assert offsets(follower) == first
    assert offsets(follower) == []
    assert follower.position == store.commit_log.end
    more = fill(store, 30, seed=1)
    assert offsets(follower) == more
    assert offsets(LogFollower(store.commit_log, first[17])) == first[17:] + more


def test_a_loop_that_fails_begins_with_the_same_record_again(box: Box) -> None:
    store = box.open()
    places = fill(store, 12)
    follower = LogFollower(store.commit_log, 0)

    def fail_at_the_sixth() -> None:
        for glance in follower:
            if glance.offset == places[5]:
                raise StoreError("no room")

    with pytest.raises(StoreError):
        fail_at_the_sixth()
    assert offsets(follower) == places[5:]


def test_what_a_record_says_of_its_origin(box: Box) -> None:
    store = box.open()
    put(store)
    put(store, sys_flag=TRANSACTION_PREPARED, prepared_transaction_offset=77)
    wide = box.new(host=pack_host("::1", 10911))
    store.close()
    wide.open()
    put(wide, prepared_transaction_offset=78)
    found = [(glance.sys_flag & 0xC, glance.origin) for glance in LogFollower(wide.commit_log, 0)]
    assert found == [(0, 0), (TRANSACTION_PREPARED, 77), (0, 78)]


@pytest.mark.parametrize(("at", "value"), [(MAGIC_AT, b"\0\0\0\0"), (SIZE_AT, b"\x7f\0\0\0")])
def test_damage_is_passed_over_to_the_next_record(box: Box, at: int, value: bytes) -> None:
    store = box.open()
    places = fill(store, 30)
    bad = next(
        number
        for number in range(1, 29)
        if places[number - 1] // LOG_FILE == places[number + 1] // LOG_FILE
    )
    file = store.commit_log.files.find(places[bad])
    assert file is not None
    start = places[bad] - file.base + at
    file.map[start : start + 4] = value
    assert offsets(LogFollower(store.commit_log, 0)) == places[:bad] + places[bad + 1 :]


def test_what_retention_removed_is_not_waited_for(box: Box) -> None:
    store = box.open()
    places = fill(store, 30)
    remove_first(store.commit_log.files)
    left = [place for place in places if place >= store.commit_log.min_offset]
    assert 0 < len(left) < 30
    assert offsets(LogFollower(store.commit_log, 0)) == left


@pytest.fixture
def slave(make_box: Callable[..., Box]) -> Box:
    return make_box()


def log_bytes(box: Box) -> list[bytes]:
    return [path.read_bytes() for path in box.log_files]


def queue_bytes(box: Box) -> dict[Path, bytes]:
    root = box.root / "consumequeue"
    return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def send(
    master: MessageStore, slave: MessageStore, chance: random.Random, *, largest: int = 700
) -> None:
    """Yield the bytes that the slave's log lacks, in parts of any size that each lie in one file."""
    while (start := slave.replicated_end) < master.commit_log.end:
        _, end, view = master.commit_log.window(start)
        size = min(chance.randrange(1, largest), end - start)
        position = start % LOG_FILE
        slave.append_replicated(start, view[position : position + size])


@pytest.mark.parametrize("seed", range(5))
def test_a_slave_that_appends_a_masters_log_has_the_same_files(
    box: Box, slave: Box, seed: int
) -> None:
    chance = random.Random(seed)
    master, copy = box.open(), slave.open()
    for turn in range(4):
        fill(master, 10, seed=10 * seed + turn)
        put(master, sys_flag=TRANSACTION_PREPARED)
        send(master, copy, chance)
        assert slave.arrivals == box.arrivals
    for queue_id in range(3):
        assert bodies(copy, queue_id=queue_id) == bodies(master, queue_id=queue_id)
    master.close()
    copy.close()
    assert log_bytes(slave) == log_bytes(box)
    assert queue_bytes(slave) == queue_bytes(box)


def test_a_record_is_readable_when_its_last_byte_has_come(box: Box, slave: Box) -> None:
    master, copy = box.open(), slave.open()
    put(master, b"one")
    whole = bytes(master.commit_log.files.files[0].view[: master.commit_log.end])
    for number, byte in enumerate(whole):
        assert copy.max_offset("orders", 0) == 0
        copy.append_replicated(number, bytes([byte]))
    assert bodies(copy) == [b"one"]
    assert copy.commit_log.last_store_timestamp == box.clock.value


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("lacks", [1, 5, 20, 100])
def test_a_slave_goes_on_after_a_restart_in_the_middle_of_a_record(
    box: Box, slave: Box, lacks: int, is_clean: bool
) -> None:
    """Also in the middle of the properties, which no checksum covers."""
    master = box.open()
    places = fill(master, 20)
    copy = slave.open()
    half = next(after for after in places[12:] if after % LOG_FILE) - lacks
    last = max(place for place in places if place < half)
    for start in range(0, half, LOG_FILE):
        end = min(half, start + LOG_FILE)
        copy.append_replicated(start, master.commit_log.window(start)[2][: end - start])
    assert copy.replicated_end == half
    if is_clean:
        copy.close()
    else:
        slave.crash(copy)
    copy = slave.open()
    assert copy.commit_log.end == copy.replicated_end == last
    send(master, copy, random.Random(0))
    for queue_id in range(3):
        assert bodies(copy, queue_id=queue_id) == bodies(master, queue_id=queue_id)


def test_an_empty_slave_begins_where_the_masters_log_begins(box: Box, slave: Box) -> None:
    master, copy = box.open(), slave.open()
    fill(master, 20)
    remove_first(master.commit_log.files)
    start = master.commit_log.min_offset
    _, end, view = master.commit_log.window(start)
    copy.append_replicated(start, view[: end - start])
    assert copy.commit_log.min_offset == start == LOG_FILE
    send(master, copy, random.Random(0))
    assert copy.commit_log.end == master.commit_log.end
    assert copy.stored_record(start) is not None


def test_bytes_that_do_not_continue_the_log_are_refused(
    box: Box, make_box: Callable[..., Box]
) -> None:
    store = box.open()
    put(store)
    end = store.commit_log.end
    for offset in (0, end - 1, end + 1, LOG_FILE):
        with pytest.raises(StoreError, match=f"which ends at {end}"):
            store.append_replicated(offset, b"bytes")
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        store.append_replicated(end, bytes(LOG_FILE))
    with pytest.raises(StoreError, match=f"no record begins at the commit-log offset {end}"):
        store.append_replicated(end, b"no record at all")
    assert (store.commit_log.end, len(bodies(store))) == (end, 1)
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.append_replicated(end, b"bytes")
    pooled = make_box(transient_store_pool_enable=True).open()
    with pytest.raises(StoreError, match="transientStorePoolEnable"):
        pooled.append_replicated(0, b"bytes")


def test_the_index_of_a_slave_has_every_key_whenever_it_is_built(box: Box, slave: Box) -> None:
    """Also when it is built while a record has come in part."""
    master, copy = box.open(), slave.open()
    queue = master.queue("orders", 0)
    for number in range(12):
        text = f"KEYS\x01key{number} shared\x02".encode()
        master.append(queue, b"body", text, 0, 1, bytes(8))
    whole = bytes(master.commit_log.window(0)[2][: master.commit_log.end])
    for start in range(0, len(whole), 70):
        copy.append_replicated(start, whole[start : start + 70])
        assert copy.index.catch_up(copy.commit_log.end, 60)
    for number in range(12):
        assert len(copy.index.query("orders", f"key{number}", 64, 0, 2**62).offsets) == 1
    assert len(copy.index.query("orders", "shared", 64, 0, 2**62).offsets) == 12
