"""Units of a consume queue that contradict the log are found by reading, and repaired from the
log.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from tests.unit.store.store_box import LOG_FILE, Box, QuickDisk, bodies, put, records

from cometmq.errors import StoreBusyError, StoreError
from cometmq.model.java.hashing import java_hash
from cometmq.model.names import LMQ_PREFIX
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.messages.record import decode_records
from cometmq.store.get import GetStatus
from cometmq.store.offline.repair import check
from cometmq.store.queues import queue_mender
from cometmq.store.queues.consume_queue import PLACEHOLDER_SIZE, UNIT, UNIT_SIZE
from cometmq.store.store import Boundary, MessageStore

COUNT = 12
# Records of 256 bytes, and behind each one of another topic with as many: with one bit flipped, an
# offset is often that of another record.
BODY = 256 - 91 - len("orders") - len("TAGS\x01a\x02")
TAGS_AT_BIT = 96


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no search end early because a busy machine interrupted it."""
    monkeypatch.setattr(queue_mender, "_STEP_S", 60.0)
    monkeypatch.setattr(queue_mender, "_REST", 0)


@pytest.fixture
def big_box(make_box: Callable[..., Box]) -> Box:
    return make_box(
        mapped_file_size_commit_log=1 << 16,
        mapped_file_size_consume_queue=6400,
        disk=QuickDisk(),
    )


def body(number: int) -> bytes:
    return b"%08d" % number + bytes(BODY - 8)


def filled(box: Box) -> MessageStore:
    """Two topics whose records alternate, each message tagged `a`. Queue 1 of the second is as far
    as queue 0 of the first. The store was opened since, so it has written none of them itself."""
    written(box).close()
    return box.open()


def written(box: Box) -> MessageStore:
    """Return the store of `filled` before it was opened again."""
    store = box.open()
    for number in range(COUNT):
        put(store, body(number), topic="orders", tags="a")
        put(store, body(number), topic="stocks", queue_id=1, tags="a")
        box.clock.value += 1000
    return store


def unit_file(box: Box, topic: str = "orders") -> Path:
    return box.root / "consumequeue" / topic / "0" / f"{0:020d}"


def unit_bytes(box: Box, offset: int) -> bytes:
    return unit_file(box).read_bytes()[offset * UNIT_SIZE : (offset + 1) * UNIT_SIZE]


def all_units(box: Box) -> bytes:
    return unit_file(box).read_bytes()


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, bit: int) -> None:
    overwrite(path, bit // 8, bytes([path.read_bytes()[bit // 8] ^ (1 << bit % 8)]))


def flip_log(box: Box, position: int) -> None:
    flip(box.log_files[0], position * 8)


def telling_flips(units: bytes, offset: int, log_start: int, log_end: int) -> list[int]:
    """Return one bit of each kind of a unit's offset and size. A store that opens asks of an offset
    only on which side of zero and of the log's two ends it lies, and whether a record begins there;
    of a size it asks whether it is positive.
    """
    starts = {place for place, _, _ in UNIT.iter_unpack(units)}
    kinds: dict[tuple[bool, ...], int] = {}
    for bit in range(TAGS_AT_BIT):
        unit = bytearray(units[offset * UNIT_SIZE : (offset + 1) * UNIT_SIZE])
        unit[bit // 8] ^= 1 << bit % 8
        place, size, _ = UNIT.unpack(unit)
        begins = place in starts
        kind = (bit < 64, place < 0, place < log_start, place < log_end, begins, size > 0)
        kinds[kind] = bit
    # Some places become one in front of the log only in the units that are not far behind its start.
    assert len(kinds) >= 5
    return sorted(kinds.values())


def expected() -> list[bytes]:
    return [body(number) for number in range(COUNT)]


@pytest.mark.parametrize("offset", [0, 5, COUNT - 1])
def test_each_flipped_bit_of_a_unit_is_repaired_and_every_message_comes_once(
    big_box: Box, offset: int
) -> None:
    store = filled(big_box)
    good = unit_bytes(big_box, offset)
    for bit in range(TAGS_AT_BIT):
        flip(unit_file(big_box), offset * UNIT_SIZE * 8 + bit)
        assert unit_bytes(big_box, offset) != good
        with structlog.testing.capture_logs() as lines:
            assert bodies(store) == expected(), bit
            assert bodies(store) == expected(), bit
        assert unit_bytes(big_box, offset) == good, bit
        assert store.mender.mended_count == bit + 1
        said = [line for line in lines if "contradicted the log" in line["event"]]
        assert [(line["topic"], line["queue_offset"], line["count"]) for line in said] in (
            [("orders", offset, 1)],
            # Twenty lines a minute; later ones are counted.
            [],
        )
        assert bool(said) == (bit < 20)
    assert store.mender.lost_count == 0


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("offset", [0, 5, COUNT - 1])
def test_a_bit_that_flips_while_the_broker_is_down_is_repaired(
    big_box: Box, offset: int, clean: bool
) -> None:
    store = filled(big_box)
    good = unit_bytes(big_box, offset)
    log_end = store.commit_log.end
    store.close()
    for bit in telling_flips(all_units(big_box), offset, 0, log_end):
        flip(unit_file(big_box), offset * UNIT_SIZE * 8 + bit)
        if not clean:
            (big_box.root / "abort").write_text("1")
        store = big_box.open()
        assert bodies(store) == expected(), bit
        assert bodies(store, topic="stocks", queue_id=1) == expected(), bit
        assert unit_bytes(big_box, offset) == good, bit
        store.close()
    assert check(big_box.config)[1].is_sound


def test_a_repaired_unit_is_on_disk_after_the_next_flush(big_box: Box) -> None:
    store = filled(big_box)
    store.flush_all()
    flip(unit_file(big_box), 3 * UNIT_SIZE * 8 + 50)
    bodies(store)
    queue = store.queue("orders", 0)
    assert queue.files.rewritten
    store.flush_consume_queues()
    assert not queue.files.rewritten


def test_a_damaged_tags_code_is_found_by_the_check_alone(big_box: Box) -> None:
    """A consumer of all messages gets the message; a consumer by tag misses it until a repair."""
    store = filled(big_box)
    for bit in range(TAGS_AT_BIT, UNIT_SIZE * 8):
        flip(unit_file(big_box), 5 * UNIT_SIZE * 8 + bit)
        assert bodies(store) == expected()
        found = store.get("orders", 0, 5, 1, matches=lambda code: code == java_hash("a"))
        assert found.next_begin_offset == 7
        flip(unit_file(big_box), 5 * UNIT_SIZE * 8 + bit)
    assert store.mender.mended_count == 0
    flip(unit_file(big_box), 5 * UNIT_SIZE * 8 + TAGS_AT_BIT)
    store.close()
    (finding,) = check(big_box.config)[1].findings
    assert finding.text == "the unit has another tags code than its record (offset 5)"


@pytest.mark.parametrize(
    "unit",
    [
        (-1, 256, 97),
        (1 << 62, 256, 97),
        (0, 256, 97),
        (300, 256, 97),
        (5 * 512, 0, 97),
        (5 * 512, -1, 97),
        (5 * 512, PLACEHOLDER_SIZE, 97),
        (5 * 512, 512, 97),
        (0, 0, 0),
        (-1, -1, -1),
    ],
)
def test_a_unit_with_any_nonsense_is_repaired(big_box: Box, unit: tuple[int, int, int]) -> None:
    store = filled(big_box)
    good = unit_bytes(big_box, 5)
    overwrite(unit_file(big_box), 5 * UNIT_SIZE, UNIT.pack(*unit))
    assert bodies(store) == expected()
    assert unit_bytes(big_box, 5) == good


def test_a_page_of_garbage_is_repaired_by_one_search(big_box: Box) -> None:
    store = filled(big_box)
    good = unit_file(big_box).read_bytes()
    overwrite(unit_file(big_box), 2 * UNIT_SIZE, b"\xa5" * (8 * UNIT_SIZE))
    with structlog.testing.capture_logs() as lines:
        assert bodies(store) == expected()
    assert unit_file(big_box).read_bytes() == good
    assert [line["count"] for line in lines] == [8]
    assert store.mender.mended_count == 8


def test_a_long_search_is_done_in_parts_and_none_holds_the_loop(
    big_box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_mender, "_STEP_RECORDS", 64)
    store = big_box.open()
    put(store, b"first")
    for _ in range(1000):
        put(store, topic="busy")
    put(store, b"second")
    overwrite(unit_file(big_box), UNIT_SIZE, b"\xa5" * UNIT_SIZE)
    # What is in front of it is given out first.
    assert store.get("orders", 0, 0, 32).next_begin_offset == 1
    refused = 0
    while True:
        try:
            result = store.get("orders", 0, 1, 32)
        except StoreBusyError as error:
            busy = error
            refused += 1
        else:
            break
    assert busy.code == ResponseCode.FLOW_CONTROL
    assert "offset 1 in the consume queue orders/0 is damaged" in str(busy)
    assert (result.status, result.message_count) == (GetStatus.FOUND, 1)
    assert 10 <= refused <= 20  # 1,000 records in parts of 64
    assert bodies(store) == [b"first", b"second"]


def test_searches_leave_time_for_others(big_box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a client asks, the parts of a search pause in between."""
    monkeypatch.setattr(queue_mender, "_STEP_RECORDS", 64)
    store = big_box.open()
    put(store, b"first")
    for _ in range(500):
        put(store, topic="busy")
    put(store, b"second")
    overwrite(unit_file(big_box), UNIT_SIZE, b"\xa5" * UNIT_SIZE)
    places = set()
    store.mender._rest_until = big_box.clock.monotonic() + 1
    for _ in range(100):
        with pytest.raises(StoreBusyError) as caught:
            store.get("orders", 0, 1, 32)
        places.add(str(caught.value))
    assert len(places) == 1
    big_box.clock.value += 1000
    with pytest.raises(StoreBusyError) as caught:
        store.get("orders", 0, 1, 32)
    assert str(caught.value) not in places


@pytest.mark.parametrize(
    # What is not among these fields the client sees: see test_damaged_messages.
    "position",
    [0, 1, 3, 4, 7, 12, 15, 20, 27, 28, 35],
)
def test_a_record_with_a_damaged_head_is_passed_over_counted_and_named(
    big_box: Box, position: int
) -> None:
    store = filled(big_box)
    flip_log(big_box, 5 * 512 + position)
    good = unit_bytes(big_box, 5)
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            found = bodies(store)
            assert found == [*expected()[:5], *expected()[6:]]
    assert unit_bytes(big_box, 5) == good
    assert store.mender.lost_count == 1
    # The index, which another thread builds, may come across the record now and say so, too.
    (line,) = [line for line in lines if "passed over" in line["event"]]
    assert (line["log_level"], line["topic"], line["queue_offset"]) == ("error", "orders", 5)
    assert line["commit_log_offset"] == 5 * 512
    # Its neighbours in the log are not touched.
    assert bodies(store, topic="stocks", queue_id=1) == expected()


def test_a_damaged_unit_behind_a_damaged_record_is_still_found(big_box: Box) -> None:
    store = filled(big_box)
    # The record of the other topic between the two good neighbours: the chain is broken there.
    flip_log(big_box, 4 * 512 + 256 + 1)
    overwrite(unit_file(big_box), 5 * UNIT_SIZE, b"\xa5" * UNIT_SIZE)
    assert bodies(store) == expected()
    assert store.mender.mended_count == 1


def test_a_message_whose_topic_was_deleted_before_is_not_taken_for_one(big_box: Box) -> None:
    store = filled(big_box)
    store.delete_topic("orders")
    put(store, b"anew", tags="a")
    flip(unit_file(big_box), 3)
    assert bodies(store) == [b"anew"]
    assert [record.queue_offset for record in records(store)] == [0]


def test_a_search_by_time_meets_a_damaged_unit(big_box: Box) -> None:
    store = filled(big_box)
    times = [store.store_timestamp("orders", 0, offset) for offset in range(COUNT)]
    for offset in range(COUNT):
        for bit in (0, 9, 40, 63, 95):
            flip(unit_file(big_box), offset * UNIT_SIZE * 8 + bit)
            for wanted, when in enumerate(times):
                assert store.offset_by_time("orders", 0, when) == wanted
                assert store.offset_by_time("orders", 0, when, Boundary.UPPER) == wanted
            bodies(store)


def test_a_message_is_found_by_its_place_though_its_unit_is_damaged(big_box: Box) -> None:
    store = filled(big_box)
    flip(unit_file(big_box), 5 * UNIT_SIZE * 8 + 60)
    assert store.message_at(5 * 512) is not None
    assert store.mender.mended_count == 1


def test_the_beginning_of_a_queue_is_not_moved_by_a_damaged_unit(
    make_box: Callable[..., Box],
) -> None:
    box = make_box(mapped_file_size_consume_queue=6400, disk=QuickDisk())
    store = box.open()
    for number in range(20):
        put(store, b"%02d" % number + bytes(998))
    log_end = store.commit_log.end
    store.close()
    box.log_files[0].unlink()
    good = unit_file(box).read_bytes()
    for offset in range(4, 20):
        for bit in telling_flips(good, offset, LOG_FILE, log_end):
            unit_file(box).write_bytes(good)
            flip(unit_file(box), offset * UNIT_SIZE * 8 + bit)
            store = box.open()
            assert store.min_offset("orders", 0) == 3, (offset, bit)
            assert [found[:2] for found in bodies(store)] == [b"%02d" % n for n in range(3, 20)]
            store.close()


def test_a_light_queue_is_not_measured_by_the_records_of_other_topics(big_box: Box) -> None:
    """Units of %LMQ% queues point at records that name their first topic (Java: MultiDispatch)."""
    store = filled(big_box)
    light = store.queues.get(f"{LMQ_PREFIX}device", 0)
    for offset in (2, 5):
        light.put(*store.queue("orders", 0).unit(offset))  # type: ignore[misc]  # a unit is a tuple of the length that put wants
    assert [r.body for r in records(store, topic=f"{LMQ_PREFIX}device")] == [body(2), body(5)]
    assert (store.mender.mended_count, store.mender.lost_count) == (0, 0)


# -- what this process has written itself --


def serves_what_the_unit_says(box: Box, store: MessageStore, offset: int) -> bool:
    """Let the unit at `offset` point at the record of the other topic behind its own, and say whether a
    pull that begins in front of it serves that record. Mend the unit again.
    """
    good = unit_bytes(box, offset)
    place, size, code = UNIT.unpack(good)
    overwrite(unit_file(box), offset * UNIT_SIZE, UNIT.pack(place + size, size, code))
    (served,) = store.get("orders", 0, offset, 1).slices
    assert bytes(served) == bytes(store.record_at(place) or b"")
    overwrite(unit_file(box), offset * UNIT_SIZE, UNIT.pack(place + size, size, code))
    result = store.get("orders", 0, offset - 1, 2)
    overwrite(unit_file(box), offset * UNIT_SIZE, good)
    topics = [each.topic for data in result.slices for each in decode_records(data)]
    assert topics[0] == "orders"
    return "stocks" in topics


def test_what_a_process_wrote_is_compared_once_it_was_opened_again(big_box: Box) -> None:
    store = written(big_box)
    assert serves_what_the_unit_says(big_box, store, 5)
    store.close()
    assert not serves_what_the_unit_says(big_box, big_box.open(), 5)


def test_an_old_unit_that_points_at_a_new_record_is_repaired(big_box: Box) -> None:
    store = filled(big_box)
    good = all_units(big_box)[: COUNT * UNIT_SIZE]
    for number in range(COUNT, 2 * COUNT):
        put(store, body(number), topic="orders", tags="a")
        put(store, body(number), topic="stocks", queue_id=1, tags="a")
    everything = [body(number) for number in range(2 * COUNT)]
    new = [UNIT.unpack(all_units(big_box)[at * UNIT_SIZE :][:UNIT_SIZE]) for at in (COUNT, 20)]
    for offset in (0, 5, COUNT - 1):
        for unit in new:
            overwrite(unit_file(big_box), offset * UNIT_SIZE, UNIT.pack(*unit))
            assert bodies(store) == everything
            overwrite(unit_file(big_box), offset * UNIT_SIZE, UNIT.pack(*unit))
            result = store.get("orders", 0, offset, 32)
            assert [r.body for data in result.slices for r in decode_records(data)] == everything[
                offset:
            ]
            assert all_units(big_box)[: COUNT * UNIT_SIZE] == good


@pytest.mark.parametrize(
    "unit",
    [
        (-1, 256, 97),
        (1 << 62, 256, 97),
        (COUNT * 512 - 200, 256, 97),  # its end is not written yet
        (5 * 512, 0, 97),
        (5 * 512, -1, 97),
        (5 * 512, 1 << 20, 97),
        (-1, -1, -1),
    ],
)
def test_a_unit_that_no_process_writes_is_repaired_at_once(
    big_box: Box, unit: tuple[int, int, int]
) -> None:
    store = written(big_box)
    good = unit_bytes(big_box, 5)
    overwrite(unit_file(big_box), 5 * UNIT_SIZE, UNIT.pack(*unit))
    assert bodies(store) == expected()
    assert unit_bytes(big_box, 5) == good


class ForgetfulDisk(QuickDisk):
    """Its pages are in memory as long as `remembers` says so; a sync fails when `fails` does."""

    remembers = True
    fails = False

    def is_cached(self, mapping: mmap.mmap, start: int, end: int) -> bool:
        return self.remembers and super().is_cached(mapping, start, end)

    def sync(self, path: Path) -> None:
        if self.fails:
            raise StoreError(f"{path} cannot be synced: a test forbids it")


def test_what_memory_has_dropped_is_compared_again(make_box: Callable[..., Box]) -> None:
    disk = ForgetfulDisk()
    box = make_box(
        mapped_file_size_commit_log=1 << 26,
        mapped_file_size_consume_queue=6400,
        max_message_size=1 << 23,
        disk=disk,
    )
    store = written(box)
    behind = store.commit_log.end
    for _ in range(6):
        put(store, bytes(6 << 20), topic="large")
    assert serves_what_the_unit_says(box, store, 5)
    disk.remembers = False
    assert store.get("large", 0, 0, 32, may_block=False).status is GetStatus.NOT_IN_MEMORY
    disk.remembers = True
    assert behind < store.own_from < store.commit_log.end
    assert not serves_what_the_unit_says(box, store, 5)


def test_everything_is_compared_again_when_the_disk_has_failed(
    make_box: Callable[..., Box],
) -> None:
    disk = ForgetfulDisk()
    box = make_box(
        mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=6400, disk=disk
    )
    store = written(box)
    assert serves_what_the_unit_says(box, store, 5)
    disk.fails = True
    with pytest.raises(StoreError):
        store.flush_commit_log()
    assert not serves_what_the_unit_says(box, store, 5)
    store.abandon()


def test_without_memory_for_messages_every_unit_is_compared(make_box: Callable[..., Box]) -> None:
    box = make_box(
        mapped_file_size_commit_log=1 << 16,
        mapped_file_size_consume_queue=6400,
        access_message_in_memory_max_ratio=0,
        disk=QuickDisk(),
    )
    assert not serves_what_the_unit_says(box, written(box), 5)
