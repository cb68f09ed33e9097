"""transientStorePoolEnable: where messages are before and after a commit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from tests.unit.store.store_box import CLIENT, LOG_FILE, Box, bodies, put, records

from cometmq.errors import StoreBusyError, StoreError, StoreFullError
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.runtime.randomness import Randomness
from cometmq.store.files import memory
from cometmq.store.files.disk import Disk
from cometmq.store.refusals import RefusalCause
from cometmq.testing.virtual.storage.disk import VirtualDisk


@pytest.fixture
def pooled(make_box: Callable[..., Box]) -> Box:
    return make_box(transient_store_pool_enable=True)


def test_readers_see_committed_messages_only(pooled: Box) -> None:
    store = pooled.open()
    assert put(store, b"a", tags="x") == (0, 0)
    assert put(store, b"b")[0] == 1
    assert store.max_offset("orders", 0) == 0
    assert store.record_at(0) is None
    assert pooled.arrivals == []
    assert not any(pooled.log_files[0].read_bytes())
    assert store.flush_commit_log() == 0

    store.commit()
    assert store.record_at(0) is not None
    assert store.max_offset("orders", 0) == 0
    assert not store.publish()
    assert bodies(store) == [b"a", b"b"]
    assert [arrival[:4] for arrival in pooled.arrivals] == [
        ("orders", 0, 1, 120),
        ("orders", 0, 2, 0),
    ]
    assert pooled.arrivals[0][5] == b"TAGS\x01x\x02"
    assert store.flush_commit_log() == store.commit_log.end


def test_files_are_the_same_as_without_a_pool(pooled: Box, make_box: Callable[..., Box]) -> None:
    plain = make_box()
    for box in (pooled, plain):
        store = box.open()
        for number in range(40):
            put(store, b"%d" % number * 100, queue_id=number % 3, tags="t")
            if number % 7 == 0:
                store.commit()
        store.close()
    assert [path.read_bytes() for path in pooled.log_files] == [
        path.read_bytes() for path in plain.log_files
    ]
    queues = [
        {str(p.relative_to(box.root)): p.read_bytes() for p in box.root.rglob("consumequeue/*/*/*")}
        for box in (pooled, plain)
    ]
    assert queues[0] == queues[1]


def test_publishing_goes_on_where_it_stopped(pooled: Box) -> None:
    store = pooled.open()
    for number in range(25):
        put(store, b"%d" % number * 100)
    store.commit()
    assert store.publish(10)
    assert store.max_offset("orders", 0) == 10
    while store.publish(4):
        pass
    assert len(bodies(store)) == 25


def test_few_pages_wait(pooled: Box) -> None:
    store = pooled.open()
    put(store)
    store.commit(2)
    assert store.record_at(0) is None
    for _ in range(3):
        put(store, bytes(3500))
    store.commit(2)
    assert store.record_at(0) is not None


def test_without_a_free_buffer_the_append_commits(pooled: Box) -> None:
    store = pooled.open()
    for number in range(60):
        put(store, b"%03d" % number * 300)
    assert len(pooled.log_files) > 10
    store.commit()
    store.publish()
    assert [body[:3] for body in bodies(store)] == [b"%03d" % number for number in range(60)]


def test_or_refuses_when_that_is_wanted(make_box: Callable[..., Box]) -> None:
    box = make_box(
        transient_store_pool_enable=True,
        transient_store_pool_size=3,
        fast_fail_if_no_buffer_in_store_pool=True,
    )
    store = box.open()
    for _ in range(3):
        put(store, bytes(3000))
    with pytest.raises(
        StoreBusyError, match=r"\[REJECTREQUEST\].*transientStorePoolSize=3.*again in 200 ms"
    ) as caught:
        put(store, bytes(3000))
    assert caught.value.code == 2
    assert store.refusals.counts[RefusalCause.NO_BUFFER] == 1
    store.commit()
    assert put(store, bytes(3000))[0] == 3


def test_a_batch_is_pending_as_a_whole(pooled: Box) -> None:
    store = pooled.open()
    entries = [BatchEntry(0, b"%d" % number, b"") for number in range(5)]
    first, _ = store.append_batch(store.queue("orders", 0), entries, [0] * 5, 1, CLIENT)
    assert (first, store.max_offset("orders", 0)) == (0, 0)
    assert put(store, b"5")[0] == 5
    store.commit()
    store.publish()
    assert [int(body) for body in bodies(store)] == list(range(6))


@pytest.mark.parametrize("in_steps", [False, True])
def test_the_units_of_a_batch_were_written_before_its_records(
    make_box: Callable[..., Box], in_steps: bool
) -> None:
    """Units that lie in two files took the second one's room when the records were in the log: with a full
    disk the batch had queue offsets that the next message got again.
    """
    box = make_box(transient_store_pool_enable=True, mapped_file_size_consume_queue=60)
    store = box.open()
    put(store, b"0")
    queue = store.queue("orders", 0)
    entries = [BatchEntry(0, b"%d" % number, b"") for number in range(1, 6)]
    if in_steps:
        batch = store.batch_records(queue, 1, CLIENT)
        for entry in entries:
            batch.add(entry, 0)
        first, _ = store.append_records(batch)
    else:
        first, _ = store.append_batch(queue, entries, [0] * 5, 1, CLIENT)
    assert (first, store.max_offset("orders", 0)) == (1, 0)
    files = list(box.root.glob("consumequeue/orders/0/*"))
    assert not any(any(file.read_bytes()) for file in files)
    assert put(store, b"6")[0] == 6
    store.commit()
    store.publish()
    assert [int(body) for body in bodies(store)] == list(range(7))


def test_room_for_a_batch_whose_units_lie_in_two_files_was_asked_for_twice(
    make_box: Callable[..., Box], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = make_box(mapped_file_size_consume_queue=60)
    store = box.open()
    put(store, b"0")
    queue = store.queue("orders", 0)
    asked: list[str] = []
    reserve = Disk.reserve

    def ask(disk: Disk, path: Path, start: int, end: int) -> None:
        asked.append(f"{path.parent.parent.name}/{path.name[-3:]}")
        reserve(disk, path, start, end)

    monkeypatch.setattr(Disk, "reserve", ask)
    entries = [BatchEntry(0, b"x", b"")] * 3
    assert store.append_batch(queue, entries, [0] * 3, 1, CLIENT)[0] == 1
    rooms = [place for place in asked if place.startswith("orders")]
    assert rooms == sorted(set(rooms)) != []


def test_a_stop_commits(pooled: Box) -> None:
    store = pooled.open()
    put(store, b"a")
    store.close()
    again = pooled.open()
    assert bodies(again) == [b"a"]
    assert put(again, b"b")[0] == 1


def test_a_topic_that_is_deleted_does_not_come_back(pooled: Box) -> None:
    store = pooled.open()
    put(store, topic="gone")
    store.delete_topic("gone")
    store.commit()
    store.publish()
    assert "gone" not in store.topics()
    assert put(store, topic="gone")[0] == 0


class FullLater(Disk):
    """Has no room for consume queues while it is `full`."""

    full = False

    def allocate(self, path: Path, size: int, *, reserved: int | None = None) -> None:
        if self.full and "consumequeue" in path.parts:
            raise StoreFullError(f"{path}: the disk has no room")
        super().allocate(path, size, reserved=reserved)


def test_a_queue_without_room_is_filled_later(pooled: Box) -> None:
    disk = FullLater()
    store = pooled.open(disk)
    for number in range(8):
        put(store, b"%d" % number)
    store.commit()
    disk.full = True
    with pytest.raises(StoreFullError):
        store.publish()
    disk.full = False
    store.publish()
    assert [int(body) for body in bodies(store)] == list(range(8))


def test_a_failed_commit_stops_the_store(pooled: Box) -> None:
    class BrokenDisk(Disk):
        def write_at(self, path: Path, start: int, data: memoryview) -> None:
            raise StoreError(f"{path}: Input/output error")

    store = pooled.open(BrokenDisk())
    put(store)
    with pytest.raises(StoreError, match="Input/output error"):
        store.commit()
    with pytest.raises(StoreError, match="since a write to disk failed"):
        put(store)
    with pytest.raises(StoreError, match="Input/output error"):
        store.close()
    assert (pooled.root / "abort").exists()


def test_a_stop_commits_once_more_after_a_failure(pooled: Box) -> None:
    class BrokenDisk(Disk):
        works = False

        def write_at(self, path: Path, start: int, data: memoryview) -> None:
            if not self.works:
                raise StoreError(f"{path}: No space left on device")
            super().write_at(path, start, data)

    disk = BrokenDisk()
    store = pooled.open(disk)
    put(store, b"a")
    with pytest.raises(StoreError, match="No space left"):
        store.commit()
    disk.works = True
    with pytest.raises(StoreError, match="No space left"):
        store.close()
    assert bodies(pooled.open()) == [b"a"]


def test_with_sync_flush_there_is_no_pool(make_box: Callable[..., Box]) -> None:
    box = make_box(transient_store_pool_enable=True, flush_disk_type="SYNC_FLUSH")
    store = box.open()
    put(store)
    assert bodies(store) == [b"body"]


def test_memory_that_may_not_be_locked_is_a_warning(
    pooled: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "lock", lambda buffer: "RLIMIT_MEMLOCK allows 65536")
    # A client of an earlier test may have sent all lines to `logging`.
    with structlog.testing.capture_logs() as logs:
        store = pooled.open()
        put(store)
    assert any("may be swapped" in entry["event"] for entry in logs)
    store.close()
    assert bodies(pooled.open()) == [b"body"]


@pytest.mark.parametrize("seed", range(30))
def test_a_crash_takes_what_was_not_committed_and_nothing_else(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    box = Box(
        tmp_path / "store",
        transient_store_pool_enable=True,
        mapped_file_size_commit_log=LOG_FILE * 2,
    )
    disk = VirtualDisk(Randomness(seed))
    sent: dict[int, bytes] = {}
    for _ in range(3):
        store = box.open(disk)
        end = store.max_offset("orders", 0)
        sent = {offset: body for offset, body in sent.items() if offset < end}
        flushed_offset = 0
        for _ in range(rng.randrange(50)):
            body = rng.randbytes(rng.randrange(700))
            sent[put(store, body)[0]] = body
            if rng.random() < 0.2:
                store.commit(rng.randrange(2))
            if rng.random() < 0.2:
                store.publish(rng.randrange(1, 20))
            if rng.random() < 0.1:
                store.flush_commit_log()
                flushed_offset = store.flushed_offset
        disk.lose_power()
        store._let_go()
        store = box.open(disk)
        assert store.commit_log.end >= flushed_offset
        for record in records(store):
            assert record.body == sent[record.queue_offset]
        assert store.max_offset("orders", 0) == len(records(store))
        store.close()


def test_system_topics_are_readable_at_once(pooled: Box) -> None:
    store = pooled.open()
    put(store, b"a")
    assert put(store, b"half", topic="RMQ_SYS_TRANS_HALF_TOPIC")[0] == 0
    assert bodies(store, "RMQ_SYS_TRANS_HALF_TOPIC") == [b"half"]
    assert bodies(store) == [b"a"]
    assert put(store, b"op", topic="RMQ_SYS_TRANS_HALF_TOPIC")[0] == 1


def test_what_the_log_has_is_not_refused_for_want_of_room_in_a_queue(pooled: Box) -> None:
    disk = FullLater()
    store = pooled.open(disk)
    disk.full = True
    assert put(store, b"half", topic="RMQ_SYS_TRANS_HALF_TOPIC")[0] == 0
    disk.full = False
    store.publish()
    assert bodies(store, "RMQ_SYS_TRANS_HALF_TOPIC") == [b"half"]
