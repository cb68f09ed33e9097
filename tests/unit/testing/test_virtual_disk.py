"""A disk in memory does what a real one does, and loses, tears and fails on request."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.store.store_box import Box, put

from cometmq.errors import StoreError, StoreFullError, StoreLockedError, StoreStarvedError
from cometmq.runtime.randomness import Randomness
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.store.files.disk import Disk
from cometmq.testing.virtual.storage.disk import OPERATIONS, VirtualDisk
from cometmq.testing.virtual.storage.file_system import PAGE, SECTOR

ROOT = Path("/store")
FILE = ROOT / "file"


def new_disk(seed: int = 1, size: int = 4 * PAGE) -> VirtualDisk:
    """Return a disk with one file of zeros that is durable."""
    disk = VirtualDisk(Randomness(seed))
    disk.make_directory(ROOT)
    disk.allocate(FILE, size)
    disk.sync(FILE)
    disk.sync_directory(ROOT)
    return disk


# What survives which end


def test_bytes_written_through_a_mapping_are_read_at_once() -> None:
    disk = new_disk()
    mapping = disk.map(FILE, 4 * PAGE)
    mapping[5:8] = b"abc"
    disk.write_at(FILE, 8, memoryview(b"def"))
    target = bytearray(6)
    assert disk.read_into(FILE, 5, memoryview(target)) == 6
    assert target == b"abcdef" == mapping[5:11]


def test_a_crash_of_the_process_keeps_what_no_sync_has_written() -> None:
    disk = new_disk()
    disk.map(FILE, 4 * PAGE)[:3] = b"abc"
    disk.write(ROOT / "new", b"text")
    disk.crash_process()
    assert disk.read(FILE)[:3] == b"abc"
    assert disk.read(ROOT / "new") == b"text"


@pytest.mark.parametrize("seed", range(20))
def test_synced_bytes_survive_a_loss_of_power(seed: int) -> None:
    disk = new_disk(seed)
    disk.map(FILE, 4 * PAGE)[:3] = b"abc"
    disk.sync(FILE)
    disk.lose_power()
    assert disk.read(FILE) == b"abc".ljust(4 * PAGE, b"\0")


def test_pages_that_no_sync_has_written_are_lost_kept_or_torn_at_sectors() -> None:
    found = set()
    for seed in range(60):
        disk = new_disk(seed)
        disk.map(FILE, 4 * PAGE)[: 4 * PAGE] = b"n" * (4 * PAGE)
        disk.lose_power()
        data = disk.read(FILE)
        for start in range(0, len(data), PAGE):
            page = data[start : start + PAGE]
            sectors = [page[at : at + SECTOR] for at in range(0, PAGE, SECTOR)]
            assert all(len(set(sector)) == 1 for sector in sectors), "torn inside a sector"
            new = {sector[:1] == b"n" for sector in sectors}
            found.add("torn" if len(new) == 2 else "kept" if new == {True} else "lost")
    assert found == {"lost", "kept", "torn"}


def test_a_file_that_was_growing_ends_at_a_sector() -> None:
    """Tails torn at any byte had zeros in records where no disk leaves them: crash seeds 19, 152."""
    sizes = set()
    for seed in range(200):
        disk = new_disk(seed)
        disk.allocate(ROOT / "new", 3 * SECTOR + 20)
        disk.map(ROOT / "new", 3 * SECTOR + 20)[:] = b"x" * (3 * SECTOR + 20)
        disk.lose_power()
        sizes.add(disk.size(ROOT / "new"))
    assert sizes == {None, 0, SECTOR, 2 * SECTOR, 3 * SECTOR, 3 * SECTOR + 20}


def test_a_mapping_from_before_the_loss_of_power_is_the_disks_no_more() -> None:
    disk = new_disk()
    before = disk.map(FILE, 4 * PAGE)
    disk.lose_power()
    before[:3] = b"abc"
    assert disk.read(FILE)[:3] == bytes(3)


def test_names_may_go_until_their_directory_is_synced_and_then_stay() -> None:
    kept, synced = 0, 0
    for seed in range(40):
        for sync in (False, True):
            disk = new_disk(seed)
            disk.write(ROOT / "new", b"text")
            if sync:
                disk.sync_directory(ROOT)
            disk.lose_power()
            there = disk.names(ROOT) == ["file", "new"]
            assert there or disk.names(ROOT) == ["file"]
            kept, synced = kept + (there and not sync), synced + (there and sync)
    assert 0 < kept < 40
    assert synced == 40


def test_changes_of_one_directory_are_lost_from_the_last_one_on() -> None:
    names = [f"{number}" for number in range(5)]
    seen = set()
    for seed in range(60):
        disk = new_disk(seed)
        for name in names:
            disk.write(ROOT / name, b"")
        disk.lose_power()
        found = disk.names(ROOT)[:-1]
        assert found == names[: len(found)]
        seen.add(len(found))
    assert seen == set(range(6))


def test_a_file_that_was_renamed_has_one_name_or_the_other() -> None:
    seen = set()
    for seed in range(40):
        disk = new_disk(seed)
        disk.write(ROOT / "a", b"text")
        disk.sync_directory(ROOT)
        disk.make_directory(ROOT / "other")
        disk.rename(ROOT / "a", ROOT / "other" / "b")
        disk.lose_power()
        places = [path for path, file in disk.system.files() if file.size == 4]
        assert len(places) == 1, "lost, or there twice"
        assert disk.read(places[0]) == b"text"
        seen.add(places[0].name)
    assert seen == {"a", "b"}


def test_a_removed_file_may_come_back() -> None:
    seen = set()
    for seed in range(40):
        disk = new_disk(seed)
        disk.remove(FILE)
        assert disk.names(ROOT) == []
        disk.lose_power()
        seen.add(tuple(disk.names(ROOT)))
    assert seen == {(), ("file",)}


def test_one_seed_loses_the_same_each_time() -> None:
    def run(seed: int) -> list[tuple[Path, bytes]]:
        disk = new_disk(seed)
        disk.map(FILE, 4 * PAGE)[: 4 * PAGE] = b"n" * (4 * PAGE)
        for number in range(10):
            disk.write(ROOT / str(number), b"text")
        disk.lose_power()
        return [(path, disk.read(path)) for path, _ in disk.system.files()]

    assert run(7) == run(7)
    assert len({tuple(run(seed)) for seed in range(5)}) > 1


# Failures


def calls(disk: VirtualDisk) -> dict[str, Callable[[], object]]:
    files = disk.files
    directory = ROOT / "made"
    return {
        "allocate": lambda: disk.allocate(ROOT / "a", 10),
        "append": lambda: files.append_to(FILE).append(b"x"),
        "cut": lambda: disk.cut(FILE, 5, PAGE, reserve=True),
        "link": lambda: files.link(FILE, ROOT / "second"),
        "lock": lambda: disk.lock(ROOT / "lock"),
        "make_directory": lambda: disk.make_directory(directory),
        "map": lambda: disk.map(FILE, PAGE),
        "overwrite": lambda: disk.overwrite(FILE, b"abc", PAGE),
        "read": lambda: disk.read(FILE),
        "read_into": lambda: disk.read_into(FILE, 0, memoryview(bytearray(4))),
        "remove": lambda: disk.remove(ROOT / "nothing"),
        "rename": lambda: disk.rename(FILE, FILE),
        "reserve": lambda: disk.reserve(FILE, 0, PAGE),
        "sync": lambda: disk.sync(FILE),
        "sync_directory": lambda: disk.sync_directory(ROOT),
        "write": lambda: disk.write(ROOT / "w", b"abc"),
        "write_at": lambda: disk.write_at(FILE, 0, memoryview(b"abc")),
    }


def test_every_operation_that_can_fail_is_tested_here() -> None:
    assert set(calls(new_disk())) | {"any"} == set(OPERATIONS)


@pytest.mark.parametrize("operation", sorted(set(OPERATIONS) - {"any"}))
def test_an_operation_fails_at_the_call_that_is_named_and_only_there(operation: str) -> None:
    disk = new_disk()
    disk.fail(operation, "EIO", after=2, times=2)
    outcomes = []
    for _ in range(6):
        try:
            calls(disk)[operation]()
            outcomes.append(True)
        except (StoreError, OSError) as error:
            assert "Input/output error" in str(error)  # noqa: PT017 - others may pass
            outcomes.append(False)
        with disk.at_peace():
            disk.remove_tree(ROOT / "made")
            for name in ("a", "second"):
                disk.remove(ROOT / name)
        disk.crash_process()  # frees the lock
    assert outcomes == [True, True, False, False, True, True]
    assert [strike.split()[:2] for strike in disk.faults.strikes] == [["EIO", operation]] * 2


@pytest.mark.parametrize(
    ("name", "kind"), [("ENOSPC", StoreFullError), ("EMFILE", StoreStarvedError)]
)
def test_an_error_becomes_the_one_that_a_real_disk_gives(name: str, kind: type[StoreError]) -> None:
    disk = new_disk()
    disk.fail("write_at", name)
    with pytest.raises(kind):
        disk.write_at(FILE, 0, memoryview(b"abc"))


def test_state_files_fail_by_the_same_rules_as_oserrors() -> None:
    disk = new_disk()
    disk.fail("rename", "EIO", path="*.tmp")
    with pytest.raises(OSError, match="Input/output error") as raised:
        JsonFile(ROOT / "config" / "topics.json", files=disk.files).write("{}")
    assert raised.value.errno == errno.EIO


def test_a_path_limits_a_failure_to_the_files_that_it_fits() -> None:
    disk = new_disk()
    disk.fail("sync", times=None, path="*/other")
    disk.sync(FILE)
    disk.write(ROOT / "other", b"")
    with pytest.raises(StoreError):
        disk.sync(ROOT / "other")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"operation": "fsink"}, "no operation 'fsink'; it has any, allocate, "),
        ({"operation": "sync", "error": "EWRONG"}, "no error 'EWRONG'; name one as errno does"),
        ({"operation": "sync", "after": -1}, "after=-1 and times=1"),
        ({"operation": "sync", "times": 0}, "after=0 and times=0"),
    ],
)
def test_a_failure_that_cannot_be_is_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        new_disk().fail(**arguments)  # type: ignore[arg-type]  # that is what is refused


def test_a_sync_after_a_failed_one_says_that_all_is_well_and_loses_pages() -> None:
    """Linux takes pages for clean that it could not write."""
    lost = 0
    for seed in range(20):
        disk = new_disk(seed)
        disk.map(FILE, 4 * PAGE)[:3] = b"abc"
        disk.fail("sync")
        with pytest.raises(StoreError):
            disk.sync(FILE)
        assert disk.read(FILE)[:3] == b"abc"
        disk.sync(FILE)
        disk.lose_power()
        lost += disk.read(FILE)[:3] != b"abc"
    assert 0 < lost < 20


def test_a_full_disk_refuses_what_needs_room_and_does_the_rest() -> None:
    disk = new_disk()
    disk.fill(2 * PAGE)
    disk.allocate(ROOT / "fits", 2 * PAGE)
    assert disk.usage(ROOT).free_bytes == 0
    with pytest.raises(StoreFullError, match="no room"):
        disk.allocate(ROOT / "more", PAGE)
    assert disk.size(ROOT / "more") is None
    with pytest.raises(StoreFullError):
        disk.write(ROOT / "text", b"text")
    disk.map(FILE, 4 * PAGE)[:3] = b"abc"  # it has its room
    disk.sync(FILE)
    disk.remove(ROOT / "fits")
    disk.allocate(ROOT / "more", PAGE)
    disk.free()
    disk.allocate(ROOT / "yet more", 100 * PAGE)


def test_a_sparse_file_needs_room_when_that_is_reserved() -> None:
    disk = new_disk()
    disk.fill(2 * PAGE)
    disk.allocate(ROOT / "sparse", 100 * PAGE, reserved=PAGE)
    disk.reserve(ROOT / "sparse", PAGE, 2 * PAGE)
    with pytest.raises(StoreFullError):
        disk.reserve(ROOT / "sparse", 2 * PAGE, 3 * PAGE)


def test_a_flipped_bit_is_seen_and_stays() -> None:
    disk = new_disk()
    mapping = disk.map(FILE, 4 * PAGE)
    mapping[:3] = b"abc"
    disk.sync(FILE)
    disk.flip_bit(FILE, 1, 0)
    assert mapping[:3] == b"acc"
    disk.lose_power()
    assert disk.read(FILE)[:3] == b"acc"


def test_a_bit_that_is_not_there_is_refused() -> None:
    disk = new_disk(size=10)
    with pytest.raises(ValueError, match="has 10 bytes, there is none at 10"):
        disk.flip_bit(FILE, 10)
    with pytest.raises(ValueError, match="bits 0 to 7, not 8"):
        disk.flip_bit(FILE, 1, 8)
    with pytest.raises(StoreError, match="No such file"):
        disk.flip_bit(ROOT / "none", 0)


def test_a_wiped_disk_has_nothing_also_after_a_loss_of_power() -> None:
    disk = new_disk()
    disk.wipe()
    disk.lose_power()
    assert disk.names(Path("/")) == []
    assert disk.size(FILE) is None


def test_mending_ends_all_faults() -> None:
    disk = new_disk()
    disk.fail("any", times=None)
    disk.fill()
    disk.slow(3.0)
    disk.mend()
    disk.allocate(ROOT / "new", PAGE)
    assert disk.slow_s == 0


def test_faults_are_told_to_whoever_records_them() -> None:
    reported: list[str] = []
    disk = VirtualDisk(Randomness(1), record=reported.append)
    disk.fail("make_directory", "EIO")
    with pytest.raises(StoreError):
        disk.make_directory(ROOT)
    disk.lose_power()
    assert reported == [
        "disk: make_directory is to fail with EIO",
        "disk fails: EIO make_directory /store",
        "disk: lost its power",
    ]


# Locks


@pytest.mark.parametrize("end", ["crash_process", "lose_power", "wipe"])
def test_a_lock_keeps_a_second_holder_out_until_its_process_ends(end: str) -> None:
    disk = new_disk()
    former = disk.lock(ROOT / "lock")
    with pytest.raises(StoreLockedError, match="in use by this process"):
        disk.lock(ROOT / "lock")
    with pytest.raises(StoreLockedError, match="in use by a broker"):
        disk.lock_for_reading(ROOT / "lock")
    getattr(disk, end)()
    disk.make_directory(ROOT)
    disk.lock(ROOT / "lock")
    former.release()  # frees nothing of the next life
    with pytest.raises(StoreLockedError):
        disk.lock(ROOT / "lock")


def test_readers_share_a_lock_and_keep_a_broker_out() -> None:
    disk = new_disk()
    assert disk.lock_for_reading(ROOT / "lock") is None
    disk.lock(ROOT / "lock").release()
    locks = [disk.lock_for_reading(ROOT / "lock") for _ in range(2)]
    with pytest.raises(StoreLockedError):
        disk.lock(ROOT / "lock")
    for lock in locks:
        assert lock is not None
        lock.release()
    disk.lock(ROOT / "lock")


# Beside a real disk


@pytest.mark.parametrize("is_virtual", [False, True])
def test_it_answers_as_a_real_disk_does(tmp_path: Path, *, is_virtual: bool) -> None:
    """Each line is true of both."""
    disk: Disk = VirtualDisk() if is_virtual else Disk()
    root = tmp_path / "store"
    file = root / "file"
    assert disk.names(root) == []
    assert disk.size(file) is None
    assert not disk.is_directory(root)
    assert disk.owner(root) is None
    disk.make_directory(root / "a" / "b")
    assert disk.is_directory(root / "a")
    assert not disk.is_open_to_others(root)
    with pytest.raises(StoreError, match="No such file or directory"):
        disk.read(file)
    with pytest.raises(StoreError, match="No such file or directory"):
        disk.map(file, 1)
    disk.allocate(file, 10)
    disk.allocate(file, 5)
    assert disk.size(file) == 10
    disk.write_at(file, 2, memoryview(b"abc"))
    disk.cut(file, 3, 10, reserve=True)
    assert disk.read(file) == b"\0\0a" + bytes(7)
    disk.overwrite(file, b"xyz", 12)
    assert disk.read(file) == b"xyza".replace(b"a", b"\0") + bytes(8)
    target = bytearray(8)
    assert disk.read_into(file, 9, memoryview(target)) == 3
    assert disk.read_into(file, 99, memoryview(target)) == 0
    with pytest.raises(ValueError, match="map"):
        disk.map(file, 13)
    disk.write(file, b"short")
    assert disk.size(file) == 5
    disk.rename(file, root / "b")
    assert disk.names(root) == ["a", "b"]
    disk.remove(file)
    disk.sync(file)
    with pytest.raises(StoreError, match="Is a directory"):
        disk.read(root / "a")
    disk.remove_tree(root / "a")
    disk.remove_tree(root / "a")
    assert disk.names(root) == ["b"]
    assert disk.access_fault(root, write=True) is None
    assert "is no directory" in str(disk.access_fault(root / "b", write=True))
    assert disk.modified_ms(root / "b") >= 0


# Copies


def test_a_store_is_saved_and_loaded_and_opens_on_either_disk(tmp_path: Path) -> None:
    box = Box(tmp_path / "store")
    disk = VirtualDisk()
    store = box.open(disk)
    for number in range(20):
        put(store, b"%d" % number, topic="orders")
    store.close()
    assert not (tmp_path / "store").exists()
    disk.save(tmp_path / "store", root=tmp_path / "store")
    store = box.open(Disk())
    assert store.max_offset("orders", 0) == 20
    put(store, b"20", topic="orders")
    store.close()
    copy = VirtualDisk()
    copy.load(tmp_path / "store")
    copy.lose_power()  # all of it is durable
    store = box.open(copy)
    assert store.max_offset("orders", 0) == 21
    store.close()


def test_holes_of_a_file_take_no_room_on_either_side(tmp_path: Path) -> None:
    disk = VirtualDisk()
    disk.make_directory(ROOT)
    disk.allocate(FILE, 1 << 30)
    disk.map(FILE, 1 << 30)[5 << 20 : (5 << 20) + 3] = b"abc"
    disk.sync(FILE)
    disk.save(tmp_path / "copy", root=ROOT)
    stats = (tmp_path / "copy" / "file").stat()
    assert stats.st_size == 1 << 30
    assert stats.st_blocks * 512 < 1 << 20
    again = VirtualDisk()
    again.load(tmp_path / "copy", root=ROOT)
    assert again.system.file(FILE).room < 1 << 20
    assert list(again.system.file(FILE).pages()) == list(disk.system.file(FILE).pages())


def test_saving_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        new_disk().save(tmp_path, root=ROOT)
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_loading_what_is_not_there_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        VirtualDisk().load(tmp_path / "nothing")
