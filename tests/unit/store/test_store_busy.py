"""A disk that is too slow, and the counters of all refusals."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.store.store_box import CLIENT, Box, put
from tests.waits import WAIT_S

from cometmq.errors import (
    MessageIllegalError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreFullError,
)
from cometmq.store.files.disk import Disk
from cometmq.store.refusals import RefusalCause


class SlowDisk(Disk):
    """A disk on which making a file takes `slow_ms` of the box's time."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.slow_ms = 0

    def allocate(self, path: Path, size: int, *, reserved: int | None = None) -> None:
        self.box.clock.value += self.slow_ms
        super().allocate(path, size, reserved=reserved)


def test_after_a_blocked_append_messages_are_refused_for_a_while(box: Box) -> None:
    disk = SlowDisk(box)
    store = box.open(disk)
    disk.slow_ms = 700  # one for the log, one for the queue
    put(store)
    disk.slow_ms = 0
    with pytest.raises(
        StoreBusyError,
        match=r"^\[PCBUSY_CLEAN_QUEUE\]broker busy, start flow control for a while: an append has "
        r"been blocked for 1400 ms, the limit is osPageCacheBusyTimeOutMills=1000; "
        r"send again in 1000 ms$",
    ) as caught:
        put(store)
    assert caught.value.code == 2
    assert caught.value.retriable
    box.clock.value += 999
    with pytest.raises(StoreBusyError):
        put(store)
    box.clock.value += 1
    assert put(store)[0] == 1
    assert store.refusals.counts[RefusalCause.PAGE_CACHE_BUSY] == 2


def test_an_append_that_waits_less_is_no_matter(box: Box) -> None:
    disk = SlowDisk(box)
    store = box.open(disk)
    disk.slow_ms = 500
    put(store)
    put(store)


def test_while_a_flush_is_blocked_messages_are_refused(box: Box) -> None:
    class HangingDisk(Disk):
        def __init__(self) -> None:
            self.started, self.go_on = threading.Event(), threading.Event()

        def sync(self, path: Path) -> None:
            self.started.set()
            assert self.go_on.wait(WAIT_S)
            super().sync(path)

    disk = HangingDisk()
    store = box.open(disk)
    put(store)
    flush = threading.Thread(target=store.flush_commit_log)
    flush.start()
    assert disk.started.wait(WAIT_S)
    box.clock.value += 1000
    store.watch_page_cache()
    put(store)
    box.clock.value += 1
    store.watch_page_cache()
    with pytest.raises(StoreBusyError, match="a flush has been blocked for 1001 ms"):
        put(store)
    disk.go_on.set()
    flush.join()
    put(store)
    assert store.refusal is None


def test_every_cause_has_its_counter(box: Box, make_box: Callable[..., Box]) -> None:
    store = box.new()
    with pytest.raises(StoreClosedError, match="is not open"):
        put(store)
    store.open()
    queue = store.queue("orders", 0)
    for body, properties in ((bytes(5_000_000), b""), (b"", bytes(40_000))):
        with pytest.raises(MessageIllegalError):
            store.append(queue, body, properties, 0, 1, CLIENT)
    with pytest.raises(MessageIllegalError):
        store.append_batch(queue, [], [], 1, CLIENT)
    counts = {cause.value: count for cause, count in store.refusals.counts.items() if count}
    assert counts == {"store_closed": 1, "message_illegal": 3}

    class FullDisk(Disk):
        def allocate(self, path: Path, size: int, *, reserved: int | None = None) -> None:
            if "commitlog" in path.parts:
                raise StoreFullError(f"{path}: the disk has no room")
            super().allocate(path, size, reserved=reserved)

    full = make_box().open(FullDisk())
    with pytest.raises(StoreFullError):
        put(full)
    assert full.refusals.counts[RefusalCause.NO_SPACE] == 1


def test_a_failed_disk_is_told_before_a_busy_one(box: Box) -> None:
    class BrokenDisk(Disk):
        def sync(self, path: Path) -> None:
            raise StoreError(f"{path}: Input/output error")

    store = box.open(BrokenDisk())
    put(store)
    store.refusals.set(RefusalCause.PAGE_CACHE_BUSY, StoreBusyError("busy"))
    with pytest.raises(StoreError, match="Input/output error"):
        store.flush_commit_log()
    with pytest.raises(StoreClosedError, match="since a write to disk failed"):
        put(store)
    with pytest.raises(StoreClosedError, match="Input/output error"):
        store.close()


def test_a_refusal_raised_often_does_not_grow(box: Box) -> None:
    store = box.new()
    lengths = set()
    for _ in range(5):
        with pytest.raises(StoreClosedError) as caught:
            put(store)
        lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(lengths) == 1
