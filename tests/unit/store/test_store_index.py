"""The index as a whole: any life of a store leaves the same index as a plain model."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cleaning import remove_first
from tests.unit.store.index_model import Model
from tests.unit.store.store_box import CLIENT, Box

from cometmq.errors import StoreError, StoreFullError
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import decode_record
from cometmq.runtime.randomness import Randomness
from cometmq.store.files.disk import Disk
from cometmq.store.index.index_file import ENTRY_SIZE, HEADER_SIZE, hash_of
from cometmq.store.index.index_keys import IndexKeys
from cometmq.store.index.index_service import IndexAnswer
from cometmq.store.log.scan import LogScan
from cometmq.store.offline.check import Area
from cometmq.store.offline.repair import check
from cometmq.store.store import MessageStore
from cometmq.testing.virtual.storage.disk import VirtualDisk

SLOTS, ENTRIES = 7, 12
SMALL = {"max_hash_slot_num": SLOTS, "max_index_num": ENTRIES}
ALWAYS = 1 << 62


def put_keys(store: MessageStore, keys: str, *, topic: str = "orders", **fields: Any) -> int:
    properties = f"KEYS\x01{keys}\x02TAGS\x01a\x02".encode()
    return store.append(store.queue(topic, 0), b"b" * 60, properties, 0, 1, CLIENT, **fields)[1]


def build(store: MessageStore) -> None:
    while store.index.build():
        pass
    assert store.index.failure is None


def model_of(store: MessageStore) -> Model:
    """Return a model of the index, made from the whole log."""
    model = Model(SLOTS, ENTRIES)
    for found in LogScan(store.commit_log.files, 0, check_crc=True):
        data = store.record_at(found.offset)
        assert data is not None
        model.put(decode_record(data))
    return model


def paths(box: Box) -> list[Path]:
    return sorted((box.root / "index").glob("*"))


def files(box: Box) -> list[bytes]:
    return [path.read_bytes() for path in paths(box)]


def find(store: MessageStore, key: str, topic: str = "orders", **range_: int) -> list[int]:
    begin, end = range_.get("begin", 0), range_.get("end", ALWAYS)
    return store.index.query(topic, key, range_.get("limit", 64), begin, end).offsets


KEYS = st.lists(st.sampled_from(["a", "bb", "ä", "key-1", "key-2"]), max_size=3).map(" ".join)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.sampled_from([0, 4, 8, 12]), st.integers(0, 2500)),
    st.tuples(st.just("put"), KEYS, st.just(0), st.integers(0, 2500)),
    st.tuples(st.sampled_from(["build", "stop", "crash", "lose", "flush"])),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_any_life_leaves_the_index_of_the_model(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        box = Box(Path(directory) / "store", **SMALL)
        store = box.open()
        for kind, *details in steps:
            if kind == "put":
                keys, transaction, later_ms = details
                box.clock.value += later_ms
                put_keys(store, keys, sys_flag=transaction)
            elif kind == "build":
                store.index.build()
            elif kind == "flush":
                store.flush_all()
            else:
                box.crash(store) if kind == "crash" else store.close()
                if kind == "lose":
                    shutil.rmtree(box.root / "index", ignore_errors=True)
                store = box.open()
        build(store)
        model = model_of(store)
        store.close()
        assert files(box) == model.data()


def test_queries_equal_the_model(box: Box) -> None:
    rng = random.Random(5)
    store = Box(box.root, **SMALL).open()
    for _ in range(120):
        put_keys(store, rng.choice(["a", "b c", "c", "d e f"]), now_ms=box.clock.value)
        box.clock.value += rng.choice((0, 300, 4000))
    build(store)
    assert len(paths(box)) > 5
    for _ in range(200):
        key = rng.choice("abcdefx")
        begin, end = (box.clock.value - rng.randrange(200_000) for _ in range(2))
        limit = rng.choice((1, 3, 64, 1000))
        expected = expected_of(store, key, begin, end)[-limit:]
        assert find(store, key, begin=begin, end=end, limit=limit) == expected
    store.close()


def expected_of(store: MessageStore, key: str, begin: int, end: int) -> list[int]:
    """Read the whole log for the messages of a key and of a time range, both ends included."""
    return [
        record.offset
        for record in LogScan(store.commit_log.files, 0, check_crc=True)
        if begin <= record.store_timestamp <= end
        and key in decode_properties(record.properties.decode())["KEYS"].split()
    ]


def test_the_first_message_of_a_file_is_found_after_a_pause(make_box: Callable[..., Box]) -> None:
    # A crash test lost it on a busy machine: the seconds of a file's first entry count from the
    # last message of the file before.
    box = make_box(**SMALL)
    store = box.open()
    sent = []
    for number in range(3 * ENTRIES):
        box.clock.value += 5_000
        sent.append((put_keys(store, f"key-{number}", now_ms=box.clock.value), box.clock.value))
    build(store)
    assert len(paths(box)) > 2
    for number, (offset, at) in enumerate(sent):
        assert find(store, f"key-{number}", begin=at - 1000, end=at) == [offset], number


@pytest.mark.parametrize(
    ("topic", "key"),
    [("orders", "BB"), ("BB", "k"), ("orders", "Aa Aa")],
    ids=["same hash, other key", "same hash, other topic", "the key twice"],
)
def test_strangers_with_the_same_hash_used_up_the_limit_of_a_query(
    make_box: Callable[..., Box], topic: str, key: str
) -> None:
    # "Aa" and "BB" have one hash. 70 newer messages of the other hid all 40.
    store = make_box(max_hash_slot_num=SLOTS, max_index_num=2_000).open()
    mine, wanted = ("Aa", "k") if topic == "BB" else ("orders", "Aa")
    sent = [put_keys(store, wanted, topic=mine) for _ in range(40)]
    more = [put_keys(store, key, topic=topic) for _ in range(70)]
    build(store)
    expected = (sent + more)[-64:] if wanted in key.split() and topic == mine else sent
    assert find(store, wanted, mine) == expected


def test_a_key_query_was_off_by_up_to_a_second(make_box: Callable[..., Box]) -> None:
    # 29 of 30 were missed from their own time on, and found 1 ms before they were stored.
    box = make_box(max_hash_slot_num=SLOTS, max_index_num=2_000)
    store = box.open()
    sent = []
    for number in range(30):
        box.clock.value += 137
        sent.append((put_keys(store, f"k{number}", now_ms=box.clock.value), box.clock.value))
    build(store)
    for number, (offset, at) in enumerate(sent):
        key = f"k{number}"
        assert find(store, key, begin=at, end=at) == [offset], number
        assert find(store, key, begin=at - 5, end=at - 1) == [], number
        assert find(store, key, begin=at + 1, end=at + 5) == [], number


def test_a_query_reads_keys_behind_a_long_body(make_box: Callable[..., Box]) -> None:
    sizes = {"max_index_num": 2_000, "mapped_file_size_commit_log": 1 << 20}
    store = make_box(max_hash_slot_num=SLOTS, **sizes).open()
    properties = b"UNIQ_KEY\x01id\x02KEYS\x01a Aa\x02"
    store.append(store.queue("orders", 0), b"b" * 50_000, properties, 0, 1, CLIENT)
    build(store)
    assert find(store, "Aa") == find(store, "id") == find(store, "a") != []
    assert find(store, "BB") == find(store, "A") == find(store, "a Aa") == []


def test_a_query_reads_a_bounded_number_of_strangers(make_box: Callable[..., Box]) -> None:
    store = make_box(max_hash_slot_num=SLOTS, max_index_num=2_000).open()
    store.index.max_records_looked_at = 20
    first = put_keys(store, "Aa")
    for _ in range(18):
        put_keys(store, "BB")
    last = put_keys(store, "Aa")
    build(store)
    assert store.index.query("orders", "Aa", 64, 0, ALWAYS).ended_by == ""
    assert find(store, "Aa") == [first, last]
    put_keys(store, "BB")
    build(store)
    answer = store.index.query("orders", "Aa", 64, 0, ALWAYS)
    assert answer.offsets == [last]
    assert re.search(r"20 messages .* found 1 .*MAX_RECORDS_LOOKED_AT is 20", answer.ended_by)
    for _ in range(20):
        put_keys(store, "BB")
    build(store)
    with pytest.raises(StoreError, match=r"found none .*MAX_RECORDS_LOOKED_AT.*narrow the range"):
        store.index.query("orders", "Aa", 64, 0, ALWAYS)


def test_a_limit_of_nothing_finds_nothing(make_box: Callable[..., Box]) -> None:
    store = make_box(**SMALL).open()
    place = put_keys(store, "a")
    build(store)
    assert find(store, "a", limit=0) == find(store, "a", limit=-5) == []
    assert store.index.query("orders", "nothing", 64, 0, ALWAYS) == IndexAnswer([])
    answer = store.index.query("orders", "a", 64, 0, ALWAYS)
    assert answer == IndexAnswer([place], store.commit_log.last_store_timestamp, place)


def test_a_clean_start_goes_on_where_the_index_ended(make_box: Callable[..., Box]) -> None:
    box = make_box(**SMALL)
    store = box.open()
    put_keys(store, "a b c")
    store.close()
    before = paths(box)
    store = box.open()
    reached = store.index.position
    put_keys(store, "d")
    store.close()
    assert paths(box) == before
    assert reached == 0  # the last message with keys: its own keys may be there only in part
    store = box.open()
    assert files(box) == model_of(store).data()


def test_a_stop_in_the_middle_of_a_message(make_box: Callable[..., Box]) -> None:
    """The keys of one message lie in two files, of which a crash takes the second."""
    box = make_box(**SMALL)
    store = box.open()
    put_keys(store, " ".join("abcdefg"))
    put_keys(store, " ".join("hijklmn"))
    box.crash(store)
    assert len(paths(box)) == 2
    store = box.open()
    assert len(paths(box)) == 1
    build(store)
    assert files(box) == model_of(store).data()


@pytest.mark.parametrize("later_entries", [["T#a"], ["b", "c", "T#a", "b"]])
def test_entries_of_java_behind_the_last_message_hid_keys_of_the_next(
    make_box: Callable[..., Box], later_entries: list[str]
) -> None:
    """Java 5.5 indexes the tag behind the keys, and a broker that recovers indexes its last message again."""
    box = make_box(max_hash_slot_num=SLOTS, max_index_num=100)
    store = box.open()
    last = [put_keys(store, "a"), put_keys(store, "b c")][-1]
    build(store)
    hashes = np.array([hash_of("orders", key) for key in later_entries], np.int64)
    store.index._files[-1].put(
        IndexKeys(hashes, np.full_like(hashes, last), np.full_like(hashes, box.clock.value))
    )
    store.close()
    assert not any(each.area is Area.INDEX for each in check(box.config)[1].findings)
    store = box.open()
    added = put_keys(store, "d e")
    build(store)
    assert [find(store, key) for key in "bcde"] == [[last], [last], [added], [added]]
    store.close()


def test_a_dirty_start_keeps_what_the_checkpoint_vouches_for(
    make_box: Callable[..., Box],
) -> None:
    box = make_box(**SMALL)
    store = box.open()
    for number in range(3 * ENTRIES):
        box.clock.value += 1000
        put_keys(store, f"k{number}")
    build(store)
    full = store.checkpoint.index_msg_timestamp
    assert box.clock.value > full > 0
    names = paths(box)
    box.crash(store)
    store = box.open()
    kept = paths(box)
    assert kept == names[:-1]
    build(store)
    assert files(box) == model_of(store).data()
    box.crash(store)
    (box.root / "checkpoint").unlink()
    store = box.open()
    assert paths(box) == []
    build(store)
    assert files(box) == model_of(store).data()


@pytest.mark.parametrize("what", ["size", "header", "offset"])
def test_a_damaged_file_is_rebuilt_and_all_behind_it(
    make_box: Callable[..., Box], what: str
) -> None:
    box = make_box(**SMALL)
    store = box.open()
    for number in range(3 * ENTRIES):
        put_keys(store, f"k{number}")
    store.close()
    before = files(box)
    victim = paths(box)[1]
    if what == "size":
        victim.write_bytes(victim.read_bytes()[:-1])
    elif what == "header":
        victim.write_bytes(b"\xff" * HEADER_SIZE + victim.read_bytes()[HEADER_SIZE:])
    else:
        # The newest file points into the middle of a record.
        data = bytearray(paths(box)[-1].read_bytes())
        data[24:32] = (17).to_bytes(8, "big")
        paths(box)[-1].write_bytes(data)
    store = box.open()
    build(store)
    store.close()
    assert sorted(files(box)) == sorted(before)


def test_an_index_of_another_log_is_dropped(make_box: Callable[..., Box]) -> None:
    box = make_box(**SMALL)
    store = box.open()
    for number in range(30):
        put_keys(store, f"k{number}")
    store.close()
    shutil.rmtree(box.root / "commitlog")
    shutil.rmtree(box.root / "consumequeue")
    store = box.open()
    put_keys(store, "new")
    build(store)
    assert files(box) == model_of(store).data()


def test_a_changed_geometry_rebuilds(make_box: Callable[..., Box]) -> None:
    box = make_box(**SMALL)
    store = box.open()
    put_keys(store, "a b")
    store.close()
    store = Box(box.root, max_hash_slot_num=20, max_index_num=50).open()
    build(store)
    assert find(store, "a") == [0]
    store.close()


def test_a_disabled_index_is_not_built(make_box: Callable[..., Box]) -> None:
    box = make_box(message_index_enable=False, **SMALL)
    store = box.open()
    put_keys(store, "a")
    assert not store.index.build()
    assert store.index.lag_bytes == 0
    store.close()
    assert paths(box) == []


def test_enabled_later_it_catches_up(make_box: Callable[..., Box]) -> None:
    box = make_box(message_index_enable=False, **SMALL)
    store = box.open()
    put_keys(store, "a")
    store.close()
    store = Box(box.root, **SMALL).open()
    assert store.index.catch_up(store.commit_log.end, 60)
    assert find(store, "a") == [0]
    store.close()


class FullDisk(Disk):
    """A disk without room for index files while `full`; each step of making one can be the one that
    fails.
    """

    def __init__(self) -> None:
        self.full = False
        self.grants = 0

    def _grant(self, path: Path) -> None:
        if self.full and path.parent.name == "index":
            if not self.grants:
                raise StoreFullError(f"{path}: the disk has no room")
            self.grants -= 1

    def allocate(self, path: Path, size: int, *, reserved: int | None = None) -> None:
        self._grant(path)
        super().allocate(path, size, reserved=reserved)

    def reserve(self, path: Path, start: int, end: int) -> None:
        self._grant(path)
        super().reserve(path, start, end)

    def sync(self, path: Path) -> None:
        self._grant(path)
        super().sync(path)


@pytest.mark.parametrize("grants", range(8))
def test_a_full_disk_stops_the_index_and_not_the_sends(
    make_box: Callable[..., Box], grants: int
) -> None:
    """Once there is room, indexing continues, without a gap and without a key twice."""
    disk = FullDisk()
    box = make_box(**SMALL)
    store = box.open(disk)
    disk.full, disk.grants = True, grants
    for number in range(ENTRIES):
        put_keys(store, f"a{number} b{number} c{number}")
    while store.index.build():
        pass
    assert isinstance(store.index.failure, StoreError)
    assert not store.index.catch_up(store.commit_log.end, 60)
    disk.full = False
    build(store)
    expected = model_of(store).data()
    store.close()
    assert files(box) == expected


def test_a_real_size_takes_little_of_the_disk(make_box: Callable[..., Box]) -> None:
    box = make_box()
    store = box.open()
    put_keys(store, "a")
    build(store)
    (path,) = paths(box)
    stat = path.stat()
    assert stat.st_size == 420_000_040
    assert stat.st_blocks * 512 < 25_000_000


def test_retention_takes_files_but_the_newest(make_box: Callable[..., Box]) -> None:
    box = make_box(**SMALL)
    store = box.open()
    for number in range(4 * ENTRIES):
        put_keys(store, f"k{number}")
    build(store)
    names = paths(box)
    end = int.from_bytes(names[1].read_bytes()[24:32], "big")
    assert store.index.remove_expired(end) == names[:1]
    assert store.index.remove_expired(ALWAYS) == names[1:-1]
    assert find(store, f"k{4 * ENTRIES - 1}")


def test_a_part_that_retention_took_before_it_was_indexed(make_box: Callable[..., Box]) -> None:
    box = make_box(**SMALL)
    store = box.open()
    for number in range(40):
        put_keys(store, f"k{number}")
    remove_first(store.commit_log.files)
    build(store)
    assert find(store, "k0") == []
    assert find(store, "k39")


def test_an_index_with_a_gap_vouched_for_keys_that_it_lacked(make_box: Callable[..., Box]) -> None:
    """The disk did not let a file go that was indexed in part, and the next start found it again."""
    box = make_box(**SMALL)
    store = box.open()
    for number in range(40):
        put_keys(store, f"k{number}")
        if number == 4:
            build(store)
    left = store.commit_log.files.detach_first()
    build(store)
    assert find(store, "k39")
    store.close()
    assert left in box.log_files
    assert [each for each in check(box.config)[1].findings if each.area is Area.INDEX] == []
    assert find(box.open(), "k39")


def test_only_what_was_committed_is_indexed(make_box: Callable[..., Box]) -> None:
    """With the transient store pool the file lacks what is still in a buffer."""
    box = make_box(transient_store_pool_enable=True, mapped_file_size_commit_log=8192, **SMALL)
    store = box.open()
    for number in range(200):
        put_keys(store, f"k{number}")
        if number % 7 == 0:
            store.commit()
        build(store)
        assert store.index.position == store.commit_log.readable_end
    assert store.index.position < store.commit_log.end
    store.close()
    before = files(box)
    store = box.open()
    assert before == model_of(store).data()


def test_a_record_larger_than_the_window(make_box: Callable[..., Box]) -> None:
    box = make_box(mapped_file_size_commit_log=20 << 20, max_message_size=8 << 20, **SMALL)
    store = box.open()
    place = store.append(store.queue("big", 0), bytes(6 << 20), b"KEYS\x01a\x02", 0, 1, CLIENT)[1]
    build(store)
    assert find(store, "a", topic="big") == [place]


def test_damage_in_the_log_is_passed_over(make_box: Callable[..., Box]) -> None:
    box = make_box(**SMALL)
    store = box.open()
    places = [put_keys(store, f"k{number}") for number in range(60)]
    store.commit_log.files.files[0].map[places[3] + 4 : places[3] + 8] = b"oops"
    build(store)
    assert find(store, "k3") == []
    assert find(store, "k2") == [places[2]]
    assert find(store, "k4") == [places[4]]
    assert find(store, "k59") == [places[59]]


def test_a_chain_in_a_circle_ends(make_box: Callable[..., Box]) -> None:
    box = make_box(max_hash_slot_num=1, max_index_num=50)
    store = box.open()
    places = [put_keys(store, "a") for _ in range(4)]
    store.close()
    (path,) = paths(box)
    data = bytearray(path.read_bytes())
    entries = HEADER_SIZE + 4
    # Entry 2 says that 4 came before it.
    data[entries + 2 * ENTRY_SIZE + 16 : entries + 3 * ENTRY_SIZE] = (4).to_bytes(4, "big")
    path.write_bytes(data)
    store = box.open()
    assert find(store, "a") == places[1:]


def test_names_rise_when_the_clock_is_put_back(make_box: Callable[..., Box]) -> None:
    box = make_box(**SMALL)
    store = box.open()
    for _ in range(3):
        for number in range(ENTRIES):
            put_keys(store, f"k{number}")
        build(store)
        box.clock.value -= 3_600_000
    store.close()
    begins = [int.from_bytes(data[16:24], "big") for data in files(box)]
    assert begins == sorted(begins)
    store = box.open()
    assert files(box) == model_of(store).data()


@pytest.mark.parametrize("seed", range(30))
def test_power_losses(tmp_path: Path, seed: int) -> None:
    """After a crash the index is never wrong, and is completed."""
    rng = random.Random(seed)
    disk = VirtualDisk(Randomness(seed))
    box = Box(tmp_path / "store", mapped_file_size_commit_log=4096 * 4, **SMALL)
    for _ in range(4):
        store = box.open(disk)
        build(store)
        model = model_of(store)
        indexed = [disk.read(path) for path in index_paths(disk)]
        assert indexed == model.data()
        for _ in range(rng.randrange(40)):
            box.clock.value += rng.choice((0, 500, 2000))
            put_keys(store, " ".join(rng.sample("abcdef", rng.randrange(4))))
            actions: list[Callable[[], object]] = [store.flush_all, store.index.build]
            if rng.random() < 0.2:
                rng.choice([*actions, store.flush_commit_log])()
        if rng.random() < 0.3:
            store.close()
        disk.lose_power()
        store.abandon()


def index_paths(disk: VirtualDisk) -> list[Path]:
    return [path for path, _ in disk.system.files() if path.parent.name == "index"]


def test_a_query_looks_at_a_bounded_number_of_entries(make_box: Callable[..., Box]) -> None:
    box = make_box(**(SMALL | {"max_index_num": 2_000}))
    store = box.open()
    first = put_keys(store, "wanted")
    for _ in range(50):
        box.clock.value += 10_000
        put_keys(store, "wanted")
    build(store)
    store.index.max_entries_looked_at = 20
    assert len(store.index.query("orders", "wanted", 64, 0, ALWAYS).offsets) == 20
    begin_ms = 1_700_000_000_000
    # The first message lies further back than that: what was not looked for is not called missing.
    with pytest.raises(StoreError, match=r"20 entries .*MAX_ENTRIES_LOOKED_AT.*narrow the range"):
        store.index.query("orders", "wanted", 64, begin_ms, begin_ms + 1_000)
    store.index.max_entries_looked_at = 60
    assert store.index.query("orders", "wanted", 64, begin_ms, begin_ms + 1_000).offsets == [first]
    # Chains of other keys count too.
    store.index.max_entries_looked_at = 1
    for number in range(SLOTS * 3):
        put_keys(store, f"other{number}")
    build(store)
    with pytest.raises(StoreError, match="MAX_ENTRIES_LOOKED_AT"):
        store.index.query("orders", "wanted", 64, 0, ALWAYS)
