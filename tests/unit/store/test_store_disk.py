"""The lock, a full disk, a failing disk, what is flushed and when."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.unit.store.store_box import CLIENT, LOG_FILE, Box, bodies, put
from tests.waits import WAIT_S

from cometmq.errors import StoreClosedError, StoreError, StoreFullError, StoreLockedError
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.store.files.disk import Disk
from cometmq.store.queues.consume_queue import UNIT_SIZE

HOLDER = """
import sys, pathlib
from cometmq.store.files.disk import Disk
lock = Disk().lock(pathlib.Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.readline()
"""


def test_a_second_store_in_this_process_is_refused(box: Box) -> None:
    store = box.open()
    with pytest.raises(StoreLockedError, match=r"this process.*storePathRootDir"):
        box.open()
    put(store)
    store.close()
    box.open()


def test_a_second_process_is_refused(box: Box) -> None:
    box.root.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(box.root / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(StoreLockedError, match="another process"):
            box.open()
        assert sorted(path.name for path in box.root.iterdir()) == ["lock"]
    box.open()


def test_the_lock_is_free_after_a_failed_open(box: Box) -> None:
    (box.root / "commitlog").mkdir(parents=True)
    wrong = box.root / "commitlog" / f"{0:020d}"
    wrong.write_bytes(b"x")
    with pytest.raises(StoreError):
        box.open()
    wrong.unlink()
    box.open()


class FullDisk(Disk):
    """A disk that takes only so many more files."""

    def __init__(self, room: int) -> None:
        self.room = room

    def allocate(self, path: Path, size: int, *, reserved: int | None = None) -> None:
        if not path.exists():
            if self.room == 0:
                raise StoreFullError(f"{path}: the disk has no room for {size} bytes")
            self.room -= 1
        super().allocate(path, size, reserved=reserved)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("room", range(5))
def test_a_full_disk_refuses_whole_messages(box: Box, room: int, batch: bool) -> None:
    # One file is the checkpoint, made at the start.
    disk = FullDisk(room + 1)
    store = box.open(disk)
    entries = [BatchEntry(0, bytes(500), b"")] * (6 if batch else 1)
    queue = store.queue("orders", 0)

    def fill_up() -> None:
        while True:
            store.append_batch(queue, entries, [0] * len(entries), 1, CLIENT)

    with pytest.raises(StoreFullError, match="no room"):
        fill_up()
    stored = store.max_offset("orders", 0)
    assert stored % len(entries) == 0
    assert len(bodies(store)) == stored
    disk.room = 100
    assert put(store)[0] == stored
    box.crash(store)
    assert len(bodies(box.open())) == stored + 1


def test_a_queue_that_gets_no_more_room_refuses_whole_messages(
    make_box: Callable[..., Box],
) -> None:
    class FullLater(Disk):
        full = False

        def reserve(self, path: Path, start: int, end: int) -> None:
            if self.full:
                raise StoreFullError(f"{path}: the disk has no room")
            super().reserve(path, start, end)

    box = make_box(mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=200_000)
    disk = FullLater()
    store = box.open(disk)
    put(store, b"")
    disk.full = True
    for _ in range(4096 // UNIT_SIZE - 1):
        put(store, b"")
    end = store.commit_log.end
    with pytest.raises(StoreFullError):
        put(store, b"")
    assert store.commit_log.end == end
    disk.full = False
    assert put(store, b"last")[0] == 4096 // UNIT_SIZE
    assert len(bodies(store)) == 4096 // UNIT_SIZE + 1


def test_consume_queues_take_little_of_the_disk(make_box: Callable[..., Box]) -> None:
    box = make_box(mapped_file_size_consume_queue=6_000_000)
    put(box.open())
    stats = (box.root / "consumequeue/orders/0" / f"{0:020d}").stat()
    assert stats.st_size == 6_000_000
    assert stats.st_blocks * 512 <= 8192


def test_a_full_disk_is_named_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(StoreFullError, match=r"file: the disk has no room for 4096 bytes; free"):
        Disk().allocate(tmp_path / "file", 4096)
    assert not (tmp_path / "file").exists()


class CountingDisk(Disk):
    """A disk that counts syncs by file name, and fails them all on request."""

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.broken = False

    def sync(self, path: Path) -> None:
        if self.broken:
            raise StoreError(f"{path}: Input/output error") from OSError(errno.EIO, "x")
        self.synced.append(path.parent.name)
        super().sync(path)


def test_nothing_is_synced_twice(box: Box) -> None:
    disk = CountingDisk()
    store = box.open(disk)
    put(store)
    assert store.flushed_offset == 0
    assert store.flush_commit_log() == store.commit_log.end == store.flushed_offset
    store.flush_commit_log()
    store.flush_consume_queues()
    store.flush_consume_queues()
    assert disk.synced == ["commitlog", "0"]


def test_few_pages_wait_until_they_are_enough_or_a_file_is_full(box: Box) -> None:
    disk = CountingDisk()
    store = box.open(disk)
    put(store, bytes(3000))
    store.flush_commit_log(2)
    assert not disk.synced
    put(store, bytes(3000))
    assert store.flush_commit_log(2) == store.commit_log.end
    assert disk.synced == ["commitlog", "commitlog"]


def test_the_flushed_offset_does_not_claim_what_came_meanwhile(box: Box) -> None:
    class SlowDisk(Disk):
        def __init__(self) -> None:
            self.started, self.go_on = threading.Event(), threading.Event()

        def sync(self, path: Path) -> None:
            self.started.set()
            assert self.go_on.wait(WAIT_S)
            super().sync(path)

    disk = SlowDisk()
    store = box.open(disk)
    put(store)
    end = store.commit_log.end
    flush = threading.Thread(target=store.flush_commit_log)
    flush.start()
    assert disk.started.wait(WAIT_S)
    put(store, bytes(LOG_FILE - 200))
    disk.go_on.set()
    flush.join()
    assert store.flushed_offset == end
    assert store.flush_commit_log() == store.commit_log.end > end


def test_a_failed_flush_stops_the_store(box: Box) -> None:
    disk = CountingDisk()
    store = box.open(disk)
    put(store)
    disk.broken = True
    with pytest.raises(StoreError, match="Input/output error"):
        store.flush_commit_log()
    assert store.flushed_offset == 0
    with pytest.raises(StoreClosedError, match=r"Input/output error.*restart"):
        put(store)
    assert bodies(store) == [b"body"]
    with pytest.raises(StoreError, match="Input/output error"):
        store.close()
    assert (box.root / "abort").exists()
    assert bodies(box.open()) == [b"body"]


def test_a_topic_deleted_during_a_flush_is_no_error(box: Box) -> None:
    store = box.open()
    put(store)
    queue = store.queue("orders", 0)
    store.delete_topic("orders")
    assert queue.flush(0)


def test_an_unusable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file"):
        Box(tmp_path / "file").open()


def test_works_side_by_side_all_end_before_one_that_failed_is_told() -> None:
    done: set[int] = set()

    def work(number: int) -> None:
        done.add(number)
        if number == 3:
            raise StoreError("the third one")

    with pytest.raises(StoreError, match="the third one"):
        Disk().side_by_side([partial(work, number) for number in range(50)])
    assert done == set(range(50))
    Disk().side_by_side([])


WITHOUT_DESCRIPTORS = """
import os, resource, sys
from cometmq.errors import StoreStarvedError
from cometmq.store.files.descriptors import make_sure_of_numpy
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 3, hard))
try:
    make_sure_of_numpy()
except StoreStarvedError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
make_sure_of_numpy()
assert "numpy" not in sys.modules
import numpy
print(numpy.flatnonzero(numpy.arange(3)).tolist())
"""


def test_a_load_of_numpy_that_would_break_off_for_want_of_descriptors_is_not_begun() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS],
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    refused, loaded = run.stdout.splitlines()
    assert refused.startswith("numpy cannot be loaded: Too many open files; this process may have ")
    assert loaded == "[1, 2]"


def test_pages_for_the_log_are_made_and_none_behind_them(tmp_path: Path) -> None:
    disk, path, size, part = Disk(), tmp_path / "log", 16 << 20, 256 << 10
    disk.allocate(path, size)
    mapping = disk.map(path, size)
    disk.populate(mapping, 4096, part)
    # What read-ahead would bring is as long as the disk's read_ahead_kb says, and made on the loop.
    assert pages_in_memory(mapping) in (
        range(part // mmap.PAGESIZE),
        range(1, part // mmap.PAGESIZE),
    )
    mapping[4096:4102] = b"record"
    mapping.close()
    assert path.read_bytes()[4096:4102] == b"record"


def test_zeros_for_the_log_are_whole_pages_and_never_what_is_before_them(tmp_path: Path) -> None:
    disk, path = Disk(), tmp_path / "log"
    path.write_bytes(b"x" * (1 << 20))
    disk.write_zeros(path, 5_000, 300_000)
    written = path.read_bytes()
    page = mmap.PAGESIZE
    first = -(-5_000 // page) * page
    assert written == b"x" * first + bytes(300_000 - first) + b"x" * ((1 << 20) - 300_000)
    mapping = disk.map(path, 1 << 20)
    mapping[first : first + 6] = b"record"
    assert path.read_bytes()[first : first + 6] == b"record"
    mapping.close()


def test_zeros_for_a_file_that_is_gone_are_no_error(tmp_path: Path) -> None:
    Disk().write_zeros(tmp_path / "gone", 0, 4096)


def pages_in_memory(mapping: mmap.mmap) -> range:
    """Return the numbers of the pages that are in memory, which must follow each other."""
    flags = ctypes.create_string_buffer(len(mapping) // mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapping)), flags) == 0
    numbers = [number for number, flag in enumerate(flags.raw) if flag & 1]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    return range(numbers[0], numbers[-1] + 1)
