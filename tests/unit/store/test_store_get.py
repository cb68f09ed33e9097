"""The answers to pulls: every status, the limits, the filters, the search by time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.unit.store.store_box import Box, bodies, put

from cometmq.protocol.messages.record import decode_records
from cometmq.protocol.messages.record_layout import BODY_AT
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.get import GetStatus
from cometmq.store.log.scan import read_record
from cometmq.store.queues.consume_queue import Unit
from cometmq.store.store import Boundary


def test_an_unknown_queue(box: Box) -> None:
    store = box.open()
    result = store.get("nowhere", 0, 7, 32)
    assert (result.status, result.next_begin_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)


def test_an_empty_queue(box: Box) -> None:
    store = box.open()
    store.queue("orders", 0)
    result = store.get("orders", 0, 7, 32)
    assert (result.status, result.next_begin_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (1, GetStatus.OFFSET_TOO_SMALL, 4),
        (10, GetStatus.OFFSET_OVERFLOW_ONE, 10),
        (11, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        (-1, GetStatus.OFFSET_TOO_SMALL, 4),
    ],
)
def test_offsets_outside_of_the_queue(
    box: Box, offset: int, status: GetStatus, following: int
) -> None:
    store = box.open()
    for _ in range(10):
        put(store, bytes(1000))
    store.close()
    box.log_files[0].unlink()
    store = box.open()
    # Three records of 1,097 bytes fit a file.
    assert store.min_offset("orders", 0) == 3
    store.queue("orders", 0).min_offset = 4
    result = store.get("orders", 0, offset, 32)
    assert (result.status, result.next_begin_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (4, 10)
    assert not result.slices


def test_messages_come_in_order_and_neighbours_as_one_slice(box: Box) -> None:
    store = box.open()
    for number in range(3):
        put(store, b"%d" % number)
    put(store, queue_id=1)
    put(store, b"3")
    result = store.get("orders", 0, 0, 32)
    assert (result.status, result.next_begin_offset) == (GetStatus.FOUND, 4)
    assert result.message_count == 4
    assert result.byte_count == sum(map(len, result.slices))
    assert [[r.body for r in decode_records(part)] for part in result.slices] == [
        [b"0", b"1", b"2"],
        [b"3"],
    ]


def test_slices_never_cross_a_file(box: Box) -> None:
    store = box.open()
    for _ in range(4):
        put(store, bytes(1000))
    result = store.get("orders", 0, 0, 32)
    assert [len(part) // 1000 for part in result.slices] == [3, 1]


def test_one_call_stays_within_a_file_of_the_queue(box: Box) -> None:
    store = box.open()
    for _ in range(7):
        put(store)
    # 100 bytes hold five units.
    assert store.get("orders", 0, 1, 32).next_begin_offset == 5
    assert store.get("orders", 0, 5, 32).next_begin_offset == 7


def test_a_missing_queue_file_sends_the_reader_to_the_next(box: Box) -> None:
    store = box.open()
    for _ in range(7):
        put(store)
    queue = store.queue("orders", 0)
    queue.files.remove_first()
    result = store.get("orders", 0, 1, 32)
    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_FOUND_NULL, 5)


def test_tags_that_do_not_match_are_passed_over(box: Box) -> None:
    store = box.open()
    for tag in "abab":
        put(store, tag.encode(), tags=tag)
    found = store.get("orders", 0, 0, 32, matches=lambda code: code == ord("b"))
    assert [r.body for part in found.slices for r in decode_records(part)] == [b"b", b"b"]
    assert found.next_begin_offset == 4
    nothing = store.get("orders", 0, 0, 32, matches=lambda code: False)
    assert (nothing.status, nothing.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 4)


def test_a_filter_can_see_the_record(box: Box) -> None:
    store = box.open()
    for body in (b"yes", b"no", b"yes"):
        put(store, body)
    found = store.get("orders", 0, 0, 32, matches_record=lambda record: b"yes" in bytes(record))
    assert found.message_count == 2
    assert len(found.slices) == 2


def test_messages_that_left_the_log(box: Box) -> None:
    store = box.open()
    for topic in ("orders", "orders", "orders", "other"):
        put(store, bytes(1000), topic=topic)
    store.commit_log.files.remove_first()
    result = store.get("orders", 0, 0, 32)
    assert (result.status, result.next_begin_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 3)
    put(store, b"still there")
    result = store.get("orders", 0, 0, 32)
    assert (result.status, result.next_begin_offset) == (GetStatus.FOUND, 4)
    assert result.message_count == 1


def test_limits_of_one_answer(make_box: Callable[..., Box]) -> None:
    box = make_box(
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=6000,
        max_transfer_count_on_message_in_memory=8,
        max_transfer_bytes_on_message_in_memory=5000,
    )
    store = box.open()
    for _ in range(20):
        put(store, bytes(10))
    for _ in range(8):
        put(store, bytes(900))
    put(store, bytes(9000))
    assert store.get("orders", 0, 0, 32).message_count == 8
    assert store.get("orders", 0, 0, 3).message_count == 3
    assert store.get("orders", 0, 20, 32).message_count == 5
    assert store.get("orders", 0, 20, 32, max_bytes=2000).message_count == 2
    assert store.get("orders", 0, 20, 32, max_bytes=1).message_count == 1
    assert store.get("orders", 0, 28, 32).message_count == 1


def test_far_behind_the_end_less_is_read_and_a_slave_suggested(
    make_box: Callable[..., Box],
) -> None:
    box = make_box(access_message_in_memory_max_ratio=0, max_transfer_count_on_message_in_disk=2)
    store = box.open()
    for _ in range(4):
        put(store)
    result = store.get("orders", 0, 0, 32)
    assert result.message_count == 2
    assert result.suggest_slave


def test_a_selective_filter_ends_after_its_share_of_units(make_box: Callable[..., Box]) -> None:
    box = make_box(mapped_file_size_consume_queue=6000, max_filter_message_size=200)
    store = box.open()
    for _ in range(50):
        put(store)
    result = store.get("orders", 0, 0, 4, matches=lambda code: False)
    assert result.next_begin_offset == 10


def test_views_outlive_the_store(box: Box) -> None:
    store = box.open()
    put(store, b"kept")
    result = store.get("orders", 0, 0, 32)
    store.close()
    assert [r.body for r in decode_records(result.slices[0])] == [b"kept"]


def test_views_outlive_the_file(box: Box) -> None:
    store = box.open()
    for _ in range(4):
        put(store, b"k" * 1000)
    result = store.get("orders", 0, 0, 32)
    store.commit_log.files.remove_first()
    assert len(list(decode_records(result.slices[0]))) == 3


TIMES = [10, 20, 20, 20, 30, 50, 50]


@pytest.mark.parametrize(
    ("time", "lower", "upper"),
    [(5, 0, 0), (10, 0, 0), (15, 1, 0), (20, 1, 3), (30, 4, 4), (40, 5, 4), (50, 5, 6), (60, 7, 6)],
)
def test_offsets_by_time(box: Box, time: int, lower: int, upper: int) -> None:
    store = box.open()
    for moment in TIMES:
        put(store, now_ms=moment)
    assert store.offset_by_time("orders", 0, time) == lower
    assert store.offset_by_time("orders", 0, time, Boundary.UPPER) == upper


def test_times_of_messages(box: Box) -> None:
    store = box.open()
    assert store.earliest_store_time("orders", 0) == -1
    assert store.offset_by_time("orders", 0, 5) == 0
    put(store, now_ms=10)
    put(store, now_ms=20)
    assert store.earliest_store_time("orders", 0) == 10
    assert [store.store_timestamp("orders", 0, offset) for offset in (0, 1, 2)] == [10, 20, -1]


def test_a_place_that_is_no_record(box: Box) -> None:
    store = box.open()
    _, offset = put(store, b"body")
    assert store.record_at(offset + 88) is None
    assert store.record_at(10**9) is None
    assert bodies(store) == [b"body"]


def test_the_record_at_an_offset_or_none(box: Box) -> None:
    store = box.open()
    _, first = put(store, b"first")
    data = bytes(store.record_at(first) or b"")
    # A body that looks like a record, which says that it belongs elsewhere.
    _, second = put(store, data)
    inner = second + BODY_AT
    assert bytes(store.record_at(inner) or b"") == data
    found = store.stored_record(first)
    assert found is not None
    assert (found.body, found.physical_offset, found.topic) == (b"first", first, "orders")
    assert store.stored_record(inner) is None
    for none in (-1, first + 1, store.commit_log.end, 10**12):
        assert store.stored_record(none) is None


def test_a_damaged_record_is_none(box: Box) -> None:
    store = box.open()
    _, offset = put(store, b"body")
    store.close()
    with box.log_files[0].open("r+b") as file:
        # The length of the topic.
        file.seek(BODY_AT + 4)
        file.write(b"\x7f")
    log = MappedFileQueue(
        Disk(), box.log_files[0].parent, box.log_files[0].stat().st_size, size_key="size"
    )
    log.load(repair=False)
    assert read_record(log, offset, check_crc=False) is None
    log.release()


def test_topics_and_their_deletion(box: Box) -> None:
    store = box.open()
    put(store, queue_id=1)
    put(store, queue_id=0)
    put(store, topic="other")
    assert store.topics() == {"orders": [0, 1], "other": [0]}
    assert sorted(store.delete_topic("orders")) == [0, 1]
    assert store.topics() == {"other": [0]}
    assert not (box.root / "consumequeue/orders").exists()
    assert store.max_offset("orders", 0) == 0


def test_a_search_by_time_reads_few_units_whatever_the_times_are(box: Box) -> None:
    store = box.open()
    count = 300
    queue = store.queue("orders", 0)
    put(store)
    queue.fill_to(count, Unit(0, 100, 0))
    random = Random(7)
    read: list[int] = []

    def any_time(_queue_offset: int) -> int:
        read.append(0)
        return random.choice((-1, 0, 1 << 62))

    for wanted in range(50):
        read.clear()
        assert 0 <= queue.find_offset(any_time, wanted) <= count
        assert len(read) <= count.bit_length()


def test_a_filter_without_work_left_ends_the_scan_before_its_message(box: Box) -> None:
    store = box.open()
    for number in range(6):
        put(store, b"%d" % number)
    asked: list[int] = []

    def until_third(record: memoryview) -> bool | None:
        asked.append(len(record))
        return None if len(asked) == 3 else True

    result = store.get("orders", 0, 1, 32, matches_record=until_third)
    assert (result.status, result.message_count, result.next_begin_offset) == (
        GetStatus.FOUND,
        2,
        3,
    )
    filters: tuple[dict[str, Any], ...] = (
        {"matches": lambda _: None},
        {"matches_record": lambda _: None},
    )
    for matches in filters:
        result = store.get("orders", 0, 4, 32, **matches)
        assert (result.status, result.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, 4)


def test_a_scan_that_was_cut_goes_on_with_what_it_found(box: Box) -> None:
    store = box.open()
    for number in range(8):
        put(store, b"%d" % number)
    asked = 0

    def two_at_once(record: memoryview) -> bool | None:
        nonlocal asked
        asked += 1
        return None if asked % 3 == 0 else True

    result = store.get("orders", 0, 1, 3, matches_record=two_at_once)
    counts = [result.message_count]
    while result.is_cut:
        result = store.get(
            "orders", 0, result.next_begin_offset, 3, matches_record=two_at_once, begun=result
        )
        counts.append(result.message_count)
    # The most messages of an answer are those of all parts together.
    assert (counts, result.status, result.next_begin_offset) == ([2, 3], GetStatus.FOUND, 4)
    records = decode_records(b"".join(result.slices))
    assert [record.body for record in records] == [b"1", b"2", b"3"]
    assert result.byte_count == sum(map(len, result.slices))
