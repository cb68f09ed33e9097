"""A slave's store, made from its master's log: records, queues and refusals."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tests.cleaning import clean, remove_first
from tests.unit.store.store_box import LOG_FILE, QUEUE_FILE, Box, bodies, put

from cometmq.errors import StoreError, StoreFullError
from cometmq.model.sysflag import TRANSACTION_PREPARED
from cometmq.protocol.messages.record import MAGIC_V1
from cometmq.protocol.messages.record_layout import FIELDS, HEAD
from cometmq.store.files.disk import Disk
from cometmq.store.log.replica import ReplicaLog
from cometmq.store.queues.consume_queue import UNIT_SIZE
from cometmq.store.store import MessageStore

LARGE_FILE = 1 << 20


@pytest.fixture
def slave(make_box: Callable[..., Box]) -> Box:
    return make_box()


def fill(store: MessageStore, count: int, *, queues: int = 3, seed: int = 0) -> None:
    chance = random.Random(seed)
    for number in range(count):
        put(
            store,
            bytes(chance.randrange(300)),
            topic=f"topic{chance.randrange(2)}",
            queue_id=chance.randrange(queues),
            tags=f"tag{chance.randrange(4)}",
            sys_flag=TRANSACTION_PREPARED if number % 17 == 0 else 0,
        )


def copy_all(
    master: MessageStore, copy: MessageStore, *, part: int = 1 << 30, limit: int = 1 << 30
) -> None:
    """Give `copy` what it lacks, in parts of `part` bytes that each lie in one file."""
    size = master.commit_log.file_size
    while (start := copy.replicated_end) < master.commit_log.end:
        base, end, view = master.commit_log.window(start)
        end = min(end, start + part, base + size)
        copy.append_replicated(start, view[start - base : end - base], limit)


def feed(copy: MessageStore, data: bytes, part: int) -> None:
    for at in range(0, len(data), part):
        copy.append_replicated(at, data[at : at + part])


def queue_ends(store: MessageStore) -> dict[tuple[str, int], tuple[int, int]]:
    return {
        (queue.topic, queue.queue_id): (queue.min_offset, queue.next_offset)
        for queue in store.queues
        if queue.next_offset
    }


def test_many_records_get_the_same_units_and_arrivals_as_one_after_the_other(
    make_box: Callable[..., Box],
) -> None:
    box, at_once, singly = (
        make_box(mapped_file_size_commit_log=LARGE_FILE, mapped_file_size_consume_queue=2000)
        for _ in range(3)
    )
    master = box.open()
    fill(master, 4500)
    assert len(box.log_files) > 1
    for copied, part in ((at_once, 200_000), (singly, 3000)):
        copy = copied.open()
        copy_all(master, copy, part=part)
        assert queue_ends(copy) == queue_ends(master)
        assert copy.commit_log.dispatched_end == copy.commit_log.end == master.commit_log.end
        assert sorted(copied.arrivals) == sorted(box.arrivals)
        for topic, queue_id in queue_ends(master):
            assert bodies(copy, topic, queue_id) == bodies(master, topic, queue_id)
        copy.close()
    master.close()
    for path in (box.root / "consumequeue").rglob("0" * 20):
        for copied in (at_once, singly):
            assert (copied.root / path.relative_to(box.root)).read_bytes() == path.read_bytes()


def test_arrivals_of_queues_that_nobody_waits_for_are_left_out(
    make_box: Callable[..., Box],
) -> None:
    box, copied = (make_box(mapped_file_size_commit_log=LARGE_FILE) for _ in range(2))
    master = box.open()
    fill(master, 1500)
    copy = MessageStore(
        copied.config,
        clock=copied.clock,
        store_host=bytes(8),
        on_arrival=lambda *arrival: copied.arrivals.append(arrival),
        is_awaited=lambda topic, queue_id: (topic, queue_id) == ("topic1", 2),
    )
    copy.open()
    try:
        copy_all(master, copy)
        wanted = [arrival for arrival in box.arrivals if arrival[:2] == ("topic1", 2)]
        assert copied.arrivals == wanted
    finally:
        copy.close()


@pytest.mark.parametrize("count", [50, 3000])
def test_a_call_does_a_bounded_part_of_the_work_and_others_go_on(
    make_box: Callable[..., Box], count: int
) -> None:
    box, copied = (make_box(mapped_file_size_commit_log=LARGE_FILE) for _ in range(2))
    master, copy = box.open(), copied.open()
    fill(master, count)
    base, end, view = master.commit_log.window(0)
    assert copy.append_replicated(0, view[: end - base], 0)
    assert (copy.commit_log.end, copy.commit_log.dispatched_end) == (end, 0)
    assert queue_ends(copy) == {}
    seen = [0]
    while copy.publish(10):
        seen.append(copy.commit_log.dispatched_end)
    # A window of numpy's is the least that is worth its fixed costs.
    assert all(0 < after - before <= 300_000 for before, after in pairwise(seen))
    assert queue_ends(copy) == queue_ends(master)


def test_a_queue_begins_where_its_first_record_says(make_box: Callable[..., Box]) -> None:
    """As when Java's master sends an empty slave the beginning of its last file."""
    box, copied = make_box(), make_box()
    master, copy = box.open(), copied.open()
    for number in range(60):
        put(master, f"body {number}".encode(), queue_id=number % 2)
    start = master.commit_log.end - master.commit_log.end % LOG_FILE
    base, end, view = master.commit_log.window(start)
    copy.append_replicated(start, view[: end - base])
    for store in (copy, copied.new()):
        if store is not copy:
            copy.close()
            store.open()
        assert (store.commit_log.min_offset, store.commit_log.end) == (start, end)
        for queue_id in range(2):
            first, behind = (
                store.min_offset("orders", queue_id),
                store.max_offset("orders", queue_id),
            )
            assert 0 < first < behind == master.max_offset("orders", queue_id)
            assert bodies(store, queue_id=queue_id) == bodies(master, queue_id=queue_id)[first:]


def test_an_empty_log_begins_at_a_file_only(box: Box) -> None:
    store = box.open()
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        store.append_replicated(LOG_FILE + 1, b"bytes")
    assert store.commit_log.files.files == []


def test_a_topic_that_its_master_deleted_and_made_again_is_read_from_its_new_beginning(
    box: Box, slave: Box
) -> None:
    master, copy = box.open(), slave.open()
    for number in range(12):
        put(master, f"old {number}".encode(), queue_id=number % 2)
    put(master, b"other", topic="others")
    copy_all(master, copy)
    master.delete_topic("orders")
    # The other queue of the topic gets messages first.
    put(master, b"new 0", queue_id=2)
    put(master, b"new 1", queue_id=1)
    put(master, b"new 2", queue_id=1)
    put(master, b"new 3", queue_id=0)
    copy_all(master, copy)

    def check(store: MessageStore) -> None:
        for queue_id in range(3):
            assert bodies(store, queue_id=queue_id) == bodies(master, queue_id=queue_id)
        assert bodies(store, "others") == [b"other"]

    check(copy)
    slave.crash(copy)
    copy = slave.open()
    check(copy)
    copy.close()
    for path in (slave.root / "consumequeue").rglob("0" * 20):
        path.unlink()
    check(slave.open())


def test_a_queue_whose_old_messages_left_the_log_begins_anew(
    make_box: Callable[..., Box],
) -> None:
    """Placeholders stand in front of them, since the slave began behind the queue's beginning."""
    box, copied = make_box(), make_box()
    master, copy = box.open(), copied.open()
    for number in range(30):
        put(master, f"old {number}".ljust(200).encode())
    put(master, b"other", topic="others")
    start = LOG_FILE
    base, end, view = master.commit_log.window(start)
    copy.append_replicated(start, view[: end - base])
    master.delete_topic("orders")
    for _ in range(40):
        put(master, bytes(200), topic="others")
    copy_all(master, copy)
    while copy.commit_log.min_offset < 3 * LOG_FILE:
        remove_first(copy.commit_log.files)
    queue = copy.queues.find("orders", 0)
    assert queue is not None
    queue.correct_min_offset(copy.commit_log.min_offset)
    assert queue.min_offset == queue.next_offset
    put(master, b"new 0")
    put(master, b"new 1")
    copy_all(master, copy)
    assert bodies(copy) == [b"new 0", b"new 1"]


@pytest.mark.parametrize("old_ones_left", [0, 3])
def test_a_recovery_sees_that_a_queue_without_its_older_files_begins_anew(
    make_box: Callable[..., Box], old_ones_left: int
) -> None:
    """The recovery cuts all that the queue has left, and the queue still knows its next offset."""
    box, copied = make_box(), make_box()
    master, copy = box.open(), copied.open()
    for number in range(2 * QUEUE_FILE // UNIT_SIZE):
        put(master, f"old {number}".encode())
    while master.commit_log.end < LOG_FILE:
        put(master, bytes(200), topic="others")
    for number in range(3):
        put(master, f"late {number}".encode())
    if not old_ones_left:
        while master.commit_log.end < 2 * LOG_FILE:
            put(master, bytes(200), topic="others")
    copy_all(master, copy)
    while copy.commit_log.min_offset < (LOG_FILE if old_ones_left else 2 * LOG_FILE):
        remove_first(copy.commit_log.files)
    for path in sorted((copied.root / "consumequeue" / "orders" / "0").iterdir())[:2]:
        path.unlink()
    master.delete_topic("orders")
    put(master, b"new 0")
    put(master, b"new 1")
    copy_all(master, copy, limit=0)
    # As a kill leaves it: a stop would publish what waits.
    killed = make_box()
    shutil.copytree(copied.root, killed.root, dirs_exist_ok=True)
    assert bodies(killed.open()) == [b"new 0", b"new 1"]


def test_a_queue_that_begins_anew_alone_leaves_the_others_of_its_topic(
    box: Box, slave: Box
) -> None:
    """As behind `cleanExpiredCQ` on Java's master, or a queue offset that reads 0 by damage. The
    slave keeps old files longer than its master.
    """
    master, copy = box.open(), slave.open()
    for number in range(12):
        put(master, f"old {number}".encode(), queue_id=number % 2)
    copy_all(master, copy)
    master.queues.remove_queue("orders", 0)
    put(master, b"new 0", queue_id=0)
    put(master, b"more", queue_id=1)
    put(master, b"new 1", queue_id=0)
    copy_all(master, copy)

    def check(store: MessageStore) -> None:
        assert bodies(store) == [b"new 0", b"new 1"]
        assert bodies(store, queue_id=1) == bodies(master, queue_id=1)
        assert len(bodies(store, queue_id=1)) == 7
        # What the former queue had can be looked at, and compared.
        assert store.message_at(0) is not None

    check(copy)
    slave.crash(copy)
    copy = slave.open()
    check(copy)
    copy.close()
    for path in (slave.root / "consumequeue").rglob("0" * 20):
        path.unlink()
    check(slave.open())


def test_what_comes_twice_is_no_new_beginning(box: Box, slave: Box) -> None:
    master, copy = box.open(), slave.open()
    put(master, b"one")
    put(master, b"two")
    copy_all(master, copy)
    assert copy._filler is not None
    copy._filler.position = 0
    copy.publish()
    assert bodies(copy) == [b"one", b"two"]


def test_a_damaged_record_gets_no_place_and_the_next_ones_do(box: Box, slave: Box) -> None:
    """Its head is sound, so the log goes on behind it, as the master's does."""
    master, copy = box.open(), slave.open()
    places = [put(master, b"body", tags="t")[1] for _ in range(6)]
    whole = bytearray(master.commit_log.window(0)[2][: master.commit_log.end])
    # The length of the topic.
    whole[places[2] + 92] = 0xF0
    copy.append_replicated(0, bytes(whole))
    assert copy.max_offset("orders", 0) == 6
    assert copy.commit_log.end == copy.commit_log.dispatched_end == master.commit_log.end
    assert not copy.queues_lack_records


@pytest.mark.parametrize("count", [6, 700])
def test_the_time_does_not_follow_a_damaged_store_time(
    make_box: Callable[..., Box], count: int
) -> None:
    box, slave = (make_box(mapped_file_size_commit_log=LARGE_FILE) for _ in range(2))
    master, copy = box.open(), slave.open()
    for _ in range(count):
        put(master, b"body")
    data = bytearray(master.commit_log.window(0)[2][: master.commit_log.end])
    at = FIELDS["store_timestamp"][0]
    data[at : at + 8] = (1 << 55).to_bytes(8, "big")
    copy.append_replicated(0, bytes(data))
    assert copy.max_offset("orders", 0) == count
    assert copy.commit_log.last_store_timestamp <= box.clock.value


@pytest.mark.parametrize("count", [6, 700])
@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, (1 << 12).to_bytes(4, "big")),
        (0, (95).to_bytes(4, "big")),
        (0, (200).to_bytes(4, "big")),
        (4, b"\0"),
        (28, b"\1"),
        (0, bytes(96)),
    ],
    ids=["beyond the end", "too small", "into the next", "magic", "own offset", "zeros"],
)
def test_a_head_that_is_damaged_before_its_record_is_dispatched_does_not_hold_up_the_queues(
    make_box: Callable[..., Box], count: int, at: int, value: bytes
) -> None:
    box, slave = (make_box(mapped_file_size_commit_log=LARGE_FILE) for _ in range(2))
    master, copy = box.open(), slave.open()
    places = [put(master, b"%04d" % number)[1] for number in range(count)]
    copy.append_replicated(0, master.commit_log.window(0)[2][: master.commit_log.end], 0)
    file = copy.commit_log.files.files[0]
    for victim in (2, count - 1):
        file.map[places[victim] + at : places[victim] + at + len(value)] = value
    calls = 0
    while copy.publish(100):
        calls += 1
        assert calls < 20, "it goes round and round"
    assert copy.commit_log.dispatched_end == copy.commit_log.end
    # The unit of the next record stands in for the one that is passed over.
    assert copy.max_offset("orders", 0) == count - 1
    assert bodies(copy)[-1] == b"%04d" % (count - 2)


@pytest.mark.parametrize(("field", "value"), [("topic", b"/"), ("queue id", b"\x80")])
@pytest.mark.parametrize("count", [6, 600])
def test_a_record_of_an_impossible_queue_gets_no_place_and_the_next_ones_do(
    make_box: Callable[..., Box], field: str, value: bytes, count: int
) -> None:
    """No sum covers these fields; one flipped bit makes an o a slash."""
    box, slave = (make_box(mapped_file_size_commit_log=LARGE_FILE) for _ in range(2))
    master, copy = box.open(), slave.open()
    places = [put(master, b"body")[1] for _ in range(count)]
    at = places[2] + (12 if field == "queue id" else 93)
    master.commit_log.map[at : at + 1] = value
    copy_all(master, copy)
    assert not copy.queues_lack_records
    assert copy.max_offset("orders", 0) == count
    for crashed, store in ((box, master), (slave, copy)):
        crashed.crash(store)
        again = crashed.open()
        assert again.max_offset("orders", 0) == count
        assert again.commit_log.end == places[-1] + places[1]


@pytest.mark.parametrize(
    "name",
    [b"a\0b", b"\0", b"..", b".", b"../../../stolen", b"/tmp/stolen", b"a/../..", b"\xff\xfe"],
)
@pytest.mark.parametrize("count", [6, 600])
def test_a_topic_that_a_hostile_master_calls_so_leads_nowhere(
    make_box: Callable[..., Box], name: bytes, count: int
) -> None:
    """A master that somebody has taken over writes what it likes into its log."""
    box, slave = (make_box(mapped_file_size_commit_log=LARGE_FILE) for _ in range(2))
    master, copy = box.open(), slave.open()
    places = [
        put(master, b"body", topic="x" * len(name) if number % 3 == 2 else "orders")[1]
        for number in range(count)
    ]
    for place in places[2::3]:
        master.commit_log.map[place + 93 : place + 93 + len(name)] = name
    around = sorted(path for path in slave.root.parent.rglob("*") if slave.root not in path.parents)
    copy_all(master, copy)
    honest = count - len(places[2::3])
    assert copy.max_offset("orders", 0) == honest
    slave.crash(copy)
    again = slave.open()
    # A name that is no text looks like a torn record after a crash, so the log is copied from there.
    copy_all(master, again)
    assert again.max_offset("orders", 0) == honest
    assert {queue.topic for queue in again.queues} == {"orders"}
    assert [path.name for path in (slave.root / "consumequeue").iterdir()] == ["orders"]
    assert around == sorted(
        path for path in slave.root.parent.rglob("*") if slave.root not in path.parents
    )
    assert not list(Path("/tmp").glob("*stolen*"))


@pytest.mark.parametrize("part", [1, 7, 36, 4096])
def test_a_record_that_belongs_elsewhere_is_refused_and_leaves_all_as_it_was(
    box: Box, slave: Box, part: int
) -> None:
    master, copy = box.open(), slave.open()
    places = [put(master, b"body")[1] for _ in range(4)]
    whole = bytearray(master.commit_log.window(0)[2][: master.commit_log.end])
    whole[places[2] + 28 : places[2] + 36] = (12345).to_bytes(8, "big")
    with pytest.raises(StoreError, match=f"no record begins at the commit-log offset {places[2]}"):
        feed(copy, bytes(whole), part)
    assert copy.commit_log.end in (0, places[2])
    assert copy.replicated_end < places[3]
    copy.forget_partial_record()
    copy_all(master, copy)
    assert len(bodies(copy)) == 4


def test_a_record_that_is_said_to_be_huge_is_refused_before_it_comes(box: Box) -> None:
    store = box.open()
    log = ReplicaLog(store.commit_log, max_message_size=4096)
    store.commit_log.file_size = 1 << 30
    with pytest.raises(StoreError, match="the limit here is 67108864: set maxMessageSize"):
        log.append(0, HEAD.pack(1 << 27, MAGIC_V1) + bytes(100))
    assert log.end == 0


def test_half_a_record_can_be_forgotten(box: Box, slave: Box) -> None:
    master, copy = box.open(), slave.open()
    _, second = put(master, b"one")[1], put(master, b"two")[1]
    view = master.commit_log.window(0)[2]
    copy.append_replicated(0, view[: second + 10])
    assert copy.replicated_end == second + 10
    copy.forget_partial_record()
    assert copy.replicated_end == copy.commit_log.end == second
    copy_all(master, copy)
    assert bodies(copy) == [b"one", b"two"]


class QueueDiskFull(Disk):
    full = False

    def reserve(self, path: object, start: int, end: int) -> None:
        if self.full and "consumequeue" in str(path):
            raise StoreFullError("no room")


@pytest.mark.parametrize("count", [40, 3000])
def test_records_wait_for_queues_without_room_and_the_log_goes_on(
    make_box: Callable[..., Box], count: int
) -> None:
    """The position that the flush of the queues looks at stays where they are."""
    disk = QueueDiskFull()
    box = make_box(mapped_file_size_commit_log=LARGE_FILE)
    copied = make_box(mapped_file_size_commit_log=LARGE_FILE, disk=disk)
    master, copy = box.open(), copied.open()
    fill(master, count)
    disk.full = True
    copy_all(master, copy)
    assert copy.commit_log.end == master.commit_log.end
    assert copy.commit_log.dispatched_end < copy.commit_log.end
    with pytest.raises(StoreFullError):
        copy.publish()
    copy.flush_all()
    disk.full = False
    assert not copy.publish()
    assert queue_ends(copy) == queue_ends(master)
    assert copy.commit_log.dispatched_end == copy.commit_log.end


class QueueFilesDiskFull(Disk):
    full = False

    def allocate(self, path: Path, size: int, *, reserved: int | None = None) -> None:
        if self.full and "consumequeue" in str(path):
            raise StoreFullError("no room")
        super().allocate(path, size, reserved=reserved)


def test_a_queue_that_gets_no_first_file_stays_empty_until_there_is_room(
    make_box: Callable[..., Box],
) -> None:
    """It would begin behind offset 0, as its older messages left the master's log."""
    disk = QueueFilesDiskFull()
    master, copy = make_box().open(), make_box(disk=disk).open()
    for number in range(60):
        put(master, f"message {number}".encode())
    base, end, view = master.commit_log.window(LOG_FILE)
    disk.full = True
    copy.append_replicated(LOG_FILE, view[: end - base])
    assert queue_ends(copy) == {}
    clean(copy)
    copy.flush_all()
    disk.full = False
    assert not copy.publish()
    assert bodies(copy) == bodies(master)[-len(bodies(copy)) :]
    assert copy.max_offset("orders", 0) == 60


class LedgerDiskFull(Disk):
    full = True

    def write(self, path: Path, data: bytes) -> None:
        if self.full and "queues.json" in path.name:
            raise StoreFullError("no room")
        super().write(path, data)


def test_that_a_log_is_a_copy_is_noted_when_the_disk_has_room_again(box: Box, slave: Box) -> None:
    """Until then nothing is copied: a recovery would take the log for the store's own."""
    disk = LedgerDiskFull()
    master = box.open()
    put(master)
    slave.open().close()
    copy = slave.open(disk)
    with pytest.raises(StoreFullError):
        copy_all(master, copy)
    disk.full = False
    copy_all(master, copy)
    assert json.loads(slave.config.ledger_path.read_text())["replica"] is True


def test_the_next_file_is_made_ahead_of_need_and_taken(box: Box, slave: Box) -> None:
    master, copy = box.open(), slave.open()
    fill(master, 30)
    copy_all(master, copy, part=LOG_FILE * 3 // 4)
    copy_all(master, copy)
    end = copy.commit_log.end
    while not copy.commit_log.next_file_is_due:
        put(master, bytes(300))
        copy_all(master, copy)
    copy.prepare_next()
    assert len(slave.log_files) == len(copy.commit_log.files.files) + 1
    fill(master, 60, seed=1)
    copy_all(master, copy)
    assert copy.commit_log.end == master.commit_log.end > end
