"""A part of a store becomes a store of its own, in which every offset is what it was."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.unit.store.store_box import Box, ManualClock, put, records
from tests.unit.store.test_store_replica import copy_all

from cometmq.errors import ConfigError, StoreError, StoreFullError, StoreUnusableError
from cometmq.runtime.randomness import Randomness
from cometmq.store.config import StoreConfig
from cometmq.store.files.disk import Disk
from cometmq.store.offline.repair import check
from cometmq.store.offline.slice import Selection, Slice, make_slice
from cometmq.store.offline.store import open_offline
from cometmq.store.store import MessageStore
from cometmq.testing.virtual.storage.disk import VirtualDisk

QUEUES = [("a", 0), ("a", 1), ("b", 0)]
SOURCE, TARGET = Path("/source"), Path("/slice")


class Message(NamedTuple):
    physical_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    body: bytes


def messages(store: MessageStore, topic: str, queue_id: int = 0) -> list[Message]:
    return [
        Message(*(getattr(record, name) for name in Message._fields))
        for record in records(store, topic, queue_id)
    ]


class Sliced:
    """A store with messages in files of 16 KiB, on a disk in memory, and its slices."""

    def __init__(self, count: int = 300, seed: int = 1) -> None:
        self.disk = VirtualDisk(Randomness(seed))
        self.box = Box(SOURCE, disk=self.disk, mapped_file_size_commit_log=4 * 4096)
        self.sent: list[Message] = []
        rng = random.Random(seed)
        store = self.box.open()
        put(store, b"only one", topic="idle")
        for number in range(count):
            self.box.clock.value += 1000
            topic, queue_id = rng.choice(QUEUES)
            put(store, b"%d" % number * rng.randrange(1, 60), topic=topic, queue_id=queue_id)
        for topic, queue_id in [*QUEUES, ("idle", 0)]:
            self.sent += messages(store, topic, queue_id)
        self.sent.sort()
        self.end = store.commit_log.end
        store.close()
        self.disk.make_directory(SOURCE / "config")
        self.disk.files.write_new(SOURCE / "config" / "topics.json", [b"{}"])

    def slice(self, selection: Selection, target: Path = TARGET) -> Slice:
        with open_offline(StoreConfig(store_path_root_dir=SOURCE), self.disk) as store:
            return make_slice(store, target, selection, clock=self.box.clock, disk=self.disk)

    def opened(self, made: Slice) -> MessageStore:
        return MessageStore(made.config, clock=ManualClock(), store_host=bytes(8), disk=self.disk)

    def verify(self, made: Slice, expected: list[Message]) -> MessageStore:
        """Compare a slice with the records that it should have; return its store, open."""
        _, report = check(made.config, self.disk)
        assert report.findings == []
        assert report.clean_stop
        assert made.record_count == len(expected)
        store = self.opened(made)
        store.open()
        found = [record for queue in QUEUES for record in messages(store, *queue)]
        found += messages(store, "idle")
        assert sorted(found) == expected
        return store


@pytest.fixture
def sliced() -> Sliced:
    return Sliced()


def test_a_part_of_the_log_has_the_messages_that_begin_in_it_at_the_offsets_they_had() -> None:
    for seed in range(6):
        sliced = Sliced(seed=seed)
        rng = random.Random(seed)
        first, end = sorted(rng.sample(range(sliced.end), 2))
        made = sliced.slice(Selection(first_offset=first, end_offset=end))
        expected = [
            record
            for record in sliced.sent
            if made.first_offset <= record.physical_offset < min(end, made.end_offset)
        ]
        begun = [r for r in sliced.sent if first <= r.physical_offset < end]
        # A record too near the beginning of a file to leave room for a filler brings those before.
        assert expected[-len(begun) :] == begun
        assert len(expected) - len(begun) <= 1
        sliced.verify(made, expected).close()


def test_a_whole_store_is_a_slice_of_itself(sliced: Sliced) -> None:
    made = sliced.slice(Selection())
    assert (made.first_offset, made.end_offset) == (0, sliced.end)
    store = sliced.verify(made, sliced.sent)
    assert made.idle_queues == []
    store.close()


def test_a_topic_brings_all_between_its_first_and_its_last_message() -> None:
    sliced = Sliced(count=0)
    store = sliced.box.open()
    for topic in ("a", "b", "a", "b", "a", "b"):
        put(store, b"body", topic=topic)
    sliced.sent += [record for topic in "ab" for record in messages(store, topic)]
    store.close()
    made = sliced.slice(Selection(topic="b"))
    expected = sorted(sliced.sent)[2:]
    # What lies before, the one message of `idle` and one of `a`, leaves room for a filler.
    sliced.verify(made, expected).close()
    assert [(topic, queue.message_count) for (topic, _), queue in sorted(made.queues.items())] == [
        ("a", 2),
        ("b", 3),
    ]


def test_times_choose_messages_by_when_they_were_stored(sliced: Sliced) -> None:
    middle = sliced.sent[100:200]
    begin, end = middle[0].store_timestamp, middle[-1].store_timestamp + 1
    for selection in (
        Selection(begin_ms=begin, end_ms=end),
        Selection(topic=middle[0].topic, begin_ms=begin, end_ms=end),
    ):
        target = Path(f"/{selection.topic}")
        made = sliced.slice(selection, target)
        assert made.first_offset == middle[0].physical_offset
        assert made.last_timestamp <= end
    sliced.verify(sliced.slice(Selection(begin_ms=begin, end_ms=end)), middle).close()


def test_one_queue_is_chosen_by_its_id(sliced: Sliced) -> None:
    of_queue = [record for record in sliced.sent if (record.topic, record.queue_id) == ("a", 1)]
    made = sliced.slice(Selection(topic="a", queue_id=1))
    assert made.first_offset == of_queue[0].physical_offset
    following = [r for r in sliced.sent if r.physical_offset >= made.end_offset]
    assert of_queue[-1] == sliced.sent[-1 - len(following)]


def test_new_messages_get_the_next_offsets_also_in_queues_without_any(sliced: Sliced) -> None:
    middle = sliced.sent[150:]
    made = sliced.slice(Selection(first_offset=middle[0].physical_offset))
    assert made.idle_queues == [("idle", 0)]
    store = sliced.verify(made, middle)
    assert put(store, b"new", topic="idle") == (1, sliced.end)
    for topic, queue_id in QUEUES:
        last = [r for r in sliced.sent if (r.topic, r.queue_id) == (topic, queue_id)][-1]
        assert put(store, b"new", topic=topic, queue_id=queue_id)[0] == last.queue_offset + 1
    store.close()


def test_a_queue_whose_messages_lie_in_front_in_the_same_file_keeps_its_next_offset() -> None:
    sliced = Sliced()
    store = sliced.box.open()
    put(store, b"late", topic="idle")
    places = [put(store, bytes(1000), topic="a")[1] for _ in range(3)]
    store.close()
    made = sliced.slice(Selection(first_offset=places[1]))
    assert made.idle_queues == [("a", 1), ("b", 0), ("idle", 0)]
    store = sliced.opened(made)
    store.open()
    assert put(store, b"new", topic="idle")[0] == 2
    store.close()
    assert check(made.config, sliced.disk)[1].findings == []


def test_deleted_topics_do_not_come_back(sliced: Sliced) -> None:
    store = sliced.box.open()
    store.delete_topic("a")
    store.close()
    made = sliced.slice(Selection(end_offset=sliced.end))
    store = sliced.opened(made)
    store.open()
    assert sorted(store.topics()) == ["b", "idle"]
    store.close()


def test_the_slice_of_a_slave_has_a_queue_that_began_anew_from_its_beginning(
    sliced: Sliced,
) -> None:
    """The copied log does not record the deletion; the rule that copies follow does."""
    master = sliced.box.open()
    master.delete_topic("a")
    put(master, b"new 0", topic="a")
    put(master, b"new 1", topic="a")
    copied = Box(Path("/slave"), disk=sliced.disk, mapped_file_size_commit_log=4 * 4096)
    copy = copied.open()
    copy_all(master, copy)
    copy.close()
    with open_offline(copied.config, sliced.disk) as store:
        made = make_slice(store, TARGET, Selection(), clock=copied.clock, disk=sliced.disk)
    store_of_slice = sliced.opened(made)
    store_of_slice.open()
    assert [record.body for record in messages(store_of_slice, "a")] == [b"new 0", b"new 1"]
    store_of_slice.close()
    master.close()


def test_keys_are_found_in_the_slices_index() -> None:
    sliced = Sliced(count=0)
    store = sliced.box.open()
    queue = store.queue("a", 0)
    _, place = store.append(queue, b"body", b"KEYS\x01order-7\x02", 0, 1, bytes(8))
    store.close()
    store = sliced.opened(sliced.slice(Selection(first_offset=place)))
    store.open()
    assert store.index.query("a", "order-7", 32, 0, 2**62).offsets == [place]
    store.close()


def test_a_slice_of_a_slice_is_one_too(sliced: Sliced) -> None:
    first = sliced.slice(Selection(first_offset=sliced.sent[100].physical_offset))
    with open_offline(first.config, sliced.disk) as store:
        middle = sliced.sent[150:200]
        made = make_slice(
            store,
            Path("/again"),
            Selection(middle[0].physical_offset, sliced.sent[200].physical_offset),
            clock=sliced.box.clock,
            disk=sliced.disk,
        )
    sliced.verify(made, middle).close()


def test_state_files_come_along_and_unfinished_ones_do_not(sliced: Sliced) -> None:
    sliced.disk.files.write_new(SOURCE / "config" / "topics.json.tmp", [b"half"])
    made = sliced.slice(Selection())
    assert made.state_files == ["topics.json"]
    assert sliced.disk.names(TARGET / "config") == ["topics.json"]


def test_the_source_is_only_read(sliced: Sliced) -> None:
    def contents() -> list[tuple[Path, bytes, int]]:
        return [
            (path, file.read(0, file.size), file.modified_ms)
            for path, file in sliced.disk.system.files(SOURCE)
        ]

    before = contents()
    sliced.slice(Selection(first_offset=5000, end_offset=20000))
    assert contents() == before


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        (Selection(first_offset=10, end_offset=10), "the part from 10 to 10 is empty"),
        (Selection(first_offset=1 << 40), "no record begins in the log from 1099511627776 to its"),
        (Selection(topic="c"), "no topic c; it has a, b, idle"),
        (Selection(topic="b", queue_id=7), "no message is of topic b, in queue 7"),
        (Selection(queue_id=7), "queue 7 is of no topic"),
        (Selection(begin_ms=1 << 50), "stored at 1125899906842624 ms or later"),
        (Selection(first_offset=1, topic="a"), "not both"),
    ],
)
def test_a_selection_of_nothing_is_refused(sliced: Sliced, selection: Selection, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sliced.slice(selection)
    assert sliced.disk.owner(TARGET) is None


def test_a_target_that_cannot_be_one_is_refused(sliced: Sliced) -> None:
    for target in (SOURCE, SOURCE / "slice", Path("/")):
        with pytest.raises(ConfigError, match="lie in each other"):
            sliced.slice(Selection(), target)
    sliced.disk.make_directory(TARGET / "mine")
    with pytest.raises(ConfigError, match="is not empty, it has mine"):
        sliced.slice(Selection())
    assert sliced.disk.names(TARGET) == ["mine"]


def test_a_target_inside_of_the_store_is_refused_however_it_is_named(tmp_path: Path) -> None:
    box = Box(tmp_path / "store", store_path_commit_log=tmp_path / "elsewhere" / "log")
    store = box.open()
    put(store)
    store.close()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    (tmp_path / "other").mkdir()
    for target in (
        tmp_path / "link" / "slice",
        tmp_path / "other" / ".." / "store" / "slice",
        tmp_path / "elsewhere" / "log" / "slice",
    ):
        with (
            open_offline(box.config) as source,
            pytest.raises(ConfigError, match="lie in each other"),
        ):
            make_slice(source, target, Selection(), clock=box.clock)
        assert not target.exists()


def test_damage_in_the_part_is_named_and_damage_elsewhere_does_no_harm(sliced: Sliced) -> None:
    hurt = sliced.sent[100]
    base = hurt.physical_offset - hurt.physical_offset % (4 * 4096)
    path = SOURCE / "commitlog" / f"{base:020d}"
    sliced.disk.flip_bit(path, hurt.physical_offset - base + 90, 0)
    with pytest.raises(StoreUnusableError, match=r"is damaged at .* choose a part without"):
        sliced.slice(Selection(end_offset=sliced.sent[120].physical_offset))
    after = sliced.sent[110:]
    made = sliced.slice(Selection(first_offset=after[0].physical_offset))
    sliced.verify(made, after).close()


def test_a_missing_file_in_the_part_is_named_and_one_elsewhere_does_no_harm(
    sliced: Sliced,
) -> None:
    size = 4 * 4096
    base = 2 * size
    sliced.disk.remove(SOURCE / "commitlog" / f"{base:020d}")
    said = rf"no file for the offsets from {base} to {base + size}, .* --to {base} or --from {base + size}"
    with pytest.raises(StoreUnusableError, match=said):
        sliced.slice(Selection())
    after = [record for record in sliced.sent if record.physical_offset >= base + size]
    made = sliced.slice(Selection(first_offset=base + size))
    sliced.verify(made, after).close()


@pytest.mark.parametrize(
    "operation", ["allocate", "write_at", "sync", "sync_directory", "overwrite"]
)
def test_a_failure_leaves_nothing_behind(sliced: Sliced, operation: str) -> None:
    sliced.disk.fail(operation, "ENOSPC", path="/slice/*", after=1)
    with pytest.raises(StoreError) as raised:
        sliced.slice(Selection())
    assert isinstance(raised.value, StoreFullError) or "sync" in operation
    assert sliced.disk.names(Path("/")) == ["source"]
    sliced.disk.mend()
    sliced.verify(sliced.slice(Selection()), sliced.sent).close()


def test_what_lies_before_the_first_record_takes_no_room(path_on_disk: Path) -> None:
    """The last file has all its room, as a broker needs it."""
    box = Box(path_on_disk / "store", mapped_file_size_commit_log=4 << 20)
    store = box.open()
    places = [put(store, bytes(1 << 20))[1] for _ in range(2)]
    places += [put(store, b"small")[1]]
    places += [put(store, bytes(1 << 20))[1] for _ in range(2)]
    store.close()
    with open_offline(box.config) as source:
        made = make_slice(
            source, path_on_disk / "slice", Selection(first_offset=places[2]), clock=box.clock
        )
    first, _ = sorted((path_on_disk / "slice" / "commitlog").iterdir())
    assert first.stat().st_size == 4 << 20
    assert first.stat().st_blocks * 512 < (1 << 20) + 100_000
    assert made.record_count == 3
    assert check(made.config, Disk())[1].is_sound
