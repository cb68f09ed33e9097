"""Records and units on disk after appends."""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.store.store_box import (
    CLIENT,
    HOST,
    LOG_FILE,
    Box,
    QuickDisk,
    bodies,
    put,
    records,
)

from cometmq.errors import MessageIllegalError, StoreClosedError, StoreError
from cometmq.model.sysflag import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.record import decode_record, encode_record


def test_a_record_is_what_the_codec_writes(box: Box) -> None:
    store = box.open()
    queue = store.queue("orders", 3)
    store.append(queue, b"first", b"", 0, 5, CLIENT)
    _, offset = store.append(
        queue, b"hello", b"TAGS\x01a\x02", 97, 123, CLIENT, flag=7, sys_flag=1,
        reconsume_times=2, prepared_transaction_offset=11,
    )  # fmt: skip
    record = store.record_at(offset)
    assert record is not None
    assert bytes(record) == encode_record(
        topic=b"orders", body=b"hello", properties=b"TAGS\x01a\x02", queue_id=3, queue_offset=1,
        physical_offset=offset, sys_flag=1, born_timestamp=123, born_host=CLIENT,
        store_timestamp=box.clock.value, store_host=HOST, flag=7, reconsume_times=2,
        prepared_transaction_offset=11,
    )  # fmt: skip


def test_an_empty_body_is_stored(box: Box) -> None:
    store = box.open()
    put(store, b"")
    assert bodies(store) == [b""]


def test_a_unit_names_offset_size_and_tags(box: Box) -> None:
    store = box.open()
    _, offset = put(store, b"x", tags="TagA")
    size = len(store.record_at(offset) or b"")
    data = (box.root / "consumequeue/orders/0/00000000000000000000").read_bytes()
    assert data[:20] == struct.pack(">qiq", offset, size, 2598919)
    assert not any(data[20:])


def test_a_negative_tags_code_is_sign_extended(box: Box) -> None:
    store = box.open()
    put(store, tags="polygenelubricants")
    data = (box.root / "consumequeue/orders/0/00000000000000000000").read_bytes()
    assert struct.unpack(">q", data[12:20]) == (-(2**31),)


def test_topics_longer_than_127_bytes_use_the_second_magic(box: Box) -> None:
    store = box.open()
    topic = "%RETRY%" + "g" * 200
    _, offset = put(store, topic=topic)
    record = decode_record(store.record_at(offset) or b"", check_crc=True)
    assert (record.version, record.topic) == (2, topic)


def test_ipv6_hosts_widen_the_record(box: Box) -> None:
    host, client = pack_host("::1", 10911), pack_host("fe80::1", 4000)
    store = box.new(host=host)
    store.open()
    queue = store.queue("orders", 0)
    store.append(queue, b"both", b"", 0, 1, client)
    store.append(queue, b"one", b"", 0, 1, CLIENT)
    both, one = records(store)
    assert (both.born_host, both.store_host) == (client, host)
    assert (both.sys_flag, one.sys_flag) == (BORN_HOST_V6 | STORE_HOST_V6, STORE_HOST_V6)
    assert store.store_timestamp("orders", 0, 0) == box.clock.value


def test_the_end_of_a_file_is_declared_by_a_blank_record(box: Box) -> None:
    store = box.open()
    _, first = put(store, bytes(3000))
    size = len(store.record_at(first) or b"")
    _, second = put(store, bytes(3000))
    assert second == LOG_FILE
    data = box.log_files[0].read_bytes()
    assert data[size : size + 8] == struct.pack(">iI", LOG_FILE - size, 0xCBD43194)
    assert not any(data[size + 8 :])
    assert [path.name for path in box.log_files] == [f"{0:020d}", f"{LOG_FILE:020d}"]
    assert {path.stat().st_size for path in box.log_files} == {LOG_FILE}


@pytest.mark.parametrize(("spare", "rolls"), [(8, False), (7, True)])
def test_eight_bytes_are_kept_for_the_blank_record(box: Box, spare: int, rolls: bool) -> None:
    store = box.open()
    overhead = 91 + len("orders")
    put(store, bytes(LOG_FILE - 2 * overhead - 100 - spare))
    _, offset = put(store, bytes(100))
    assert (offset == LOG_FILE) is rolls
    store.close()
    reopened = box.open()
    assert len(bodies(reopened)) == 2
    _, offset = put(reopened)
    assert offset >= LOG_FILE


def test_store_timestamps_never_go_back(box: Box) -> None:
    store = box.open()
    put(store)
    box.clock.value -= 1000
    put(store)
    put(store, now_ms=5)
    assert {record.store_timestamp for record in records(store)} == {box.clock.value + 1000}


def test_prepared_and_rollback_records_take_no_queue_offset(box: Box) -> None:
    store = box.open()
    put(store, b"a")
    assert put(store, b"half", sys_flag=TRANSACTION_PREPARED)[0] == 0
    _, rolled_back = put(store, b"no", sys_flag=TRANSACTION_ROLLBACK)
    assert put(store, b"b", sys_flag=TRANSACTION_COMMIT)[0] == 1
    assert bodies(store) == [b"a", b"b"]
    assert decode_record(store.record_at(rolled_back) or b"").queue_offset == 0


def test_each_readable_message_is_announced(box: Box) -> None:
    store = box.open()
    put(store, tags="TagA", queue_id=2)
    put(store, b"half", sys_flag=TRANSACTION_PREPARED)
    assert box.arrivals == [("orders", 2, 1, 2598919, box.clock.value, b"TAGS\x01TagA\x02")]


def test_a_batch_lies_in_one_file_one_record_after_the_other(box: Box) -> None:
    store = box.open()
    put(store, bytes(2000))
    entries = [BatchEntry(flag, bytes([flag]) * 500, b"") for flag in range(6)]
    first, offsets = store.append_batch(
        store.queue("orders", 0), entries, [0] * 6, 1, CLIENT, sys_flag=0
    )
    assert first == 1
    assert offsets[0] == LOG_FILE
    sizes = {b - a for a, b in itertools.pairwise(offsets)}
    assert sizes == {500 + 91 + len("orders")}
    found = records(store)[1:]
    assert [record.queue_offset for record in found] == [1, 2, 3, 4, 5, 6]
    assert [record.flag for record in found] == list(range(6))


@pytest.mark.parametrize("born_host", [CLIENT, pack_host("2001:db8::7", 50000)])
@pytest.mark.parametrize("settings", [{}, {"enable_consume_queue_ext": True}])
def test_a_batch_that_was_encoded_before_is_stored_as_any_other(
    make_box: Callable[..., Box], born_host: bytes, settings: dict[str, bool]
) -> None:
    entries = [
        BatchEntry(flag, bytes([flag]) * (100 + flag), b"TAGS\x01t%d\x02" % flag)
        for flag in range(6)
    ]
    seen = []
    for encoded_before in (True, False):
        box = make_box(**settings)
        store = box.open()
        put(store, bytes(2900))
        queue = store.queue("orders", 0)
        batch = store.batch_records(queue, 1, born_host, sys_flag=2, reconsume_times=2)
        for tags_code, entry in enumerate(entries):
            batch.add(entry, tags_code)
        put(store, b"meanwhile")
        box.clock.value += 5
        if encoded_before:
            first, begin = store.append_records(batch)
            offsets = [begin + start for start in batch.starts]
            assert list(store.announce(batch, first)) == [None] * 6
        else:
            first, offsets = store.append_batch(
                queue, entries, list(range(6)), 1, born_host, sys_flag=2, reconsume_times=2
            )
        put(store, b"behind")
        units = [queue.unit(number) for number in range(queue.next_offset)]
        totals = queue.totals
        seen.append(
            (
                (first, offsets, units, box.arrivals),
                [bytes(file.view) for file in store.commit_log.files.files],
                (totals.message_count, totals.byte_count, totals.batch_rest, store.appended_count),
            )
        )
    assert seen[0] == seen[1]
    first, offsets, *_ = seen[0][0]
    assert (first, offsets[0]) == (2, LOG_FILE)


def test_a_batch_that_was_encoded_before_is_refused_whole(box: Box) -> None:
    store = box.open()
    queue = store.queue("orders", 0)
    batch = store.batch_records(queue, 1, CLIENT)
    for _ in range(5):
        batch.add(BatchEntry(0, bytes(900), b""), 0)
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        store.append_records(batch)
    with pytest.raises(MessageIllegalError, match="transaction"):
        store.batch_records(queue, 1, CLIENT, sys_flag=TRANSACTION_PREPARED)
    batch.add(BatchEntry(0, bytes(4_300_000), b""), 0)
    with pytest.raises(MessageIllegalError, match="maxMessageSize is 4194304"):
        store.append_records(batch)
    assert store.max_offset("orders", 0) == 0
    assert put(store) == (0, 0)


def test_a_batch_that_fits_no_file_is_refused_whole(box: Box) -> None:
    store = box.open()
    entries = [BatchEntry(0, bytes(900), b"")] * 5
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        store.append_batch(store.queue("orders", 0), entries, [0] * 5, 1, CLIENT)
    assert store.max_offset("orders", 0) == 0
    assert put(store) == (0, 0)


def test_limits_are_named(box: Box) -> None:
    store = box.open()
    queue = store.queue("orders", 0)
    with pytest.raises(MessageIllegalError, match="maxMessageSize is 4194304") as caught:
        store.append(queue, bytes(4194305), b"", 0, 1, CLIENT)
    assert caught.value.code == 13
    with pytest.raises(MessageIllegalError, match="32767"):
        store.append(queue, b"", bytes(32768), 0, 1, CLIENT)
    with pytest.raises(MessageIllegalError, match="transaction"):
        store.append_batch(
            queue, [BatchEntry(0, b"", b"")], [0], 1, CLIENT, sys_flag=TRANSACTION_PREPARED
        )
    with pytest.raises(MessageIllegalError, match="without messages"):
        store.append_batch(queue, [], [], 1, CLIENT)
    with pytest.raises(StoreError, match="mappedFileSizeCommitLog"):
        store.append(queue, bytes(LOG_FILE), b"", 0, 1, CLIENT)
    assert store.max_offset("orders", 0) == 0


@pytest.mark.parametrize("topic", ["", "a/b", "..", "t" * 256])
def test_a_topic_that_is_no_directory_name_is_refused(box: Box, topic: str) -> None:
    store = box.open()
    with pytest.raises(MessageIllegalError, match="topic"):
        store.queue(topic, 0)


def test_a_store_that_is_not_open_takes_nothing(box: Box) -> None:
    store = box.new()
    with pytest.raises(StoreClosedError, match="not open"):
        put(store)
    store.open()
    put(store)
    store.close()
    with pytest.raises(StoreClosedError, match="closed") as caught:
        put(store)
    assert caught.value.code == 14


def test_the_next_file_can_be_made_ahead(box: Box) -> None:
    store = box.open()
    put(store)
    store.prepare_next()
    store.prepare_next()
    assert [path.name for path in box.log_files] == [f"{0:020d}", f"{LOG_FILE:020d}"]
    put(store, bytes(3900))
    put(store, bytes(3900))
    assert [len(body) for body in bodies(store)] == [4, 3900, 3900]


def test_a_thousand_idle_queues_hold_no_mappings(box: Box) -> None:
    store = box.open()
    for queue_id in range(1000):
        store.queue("orders", queue_id)
    assert not (box.root / "consumequeue").exists()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@given(
    sizes=st.lists(st.integers(0, 700_000), min_size=1, max_size=8), reopened_at=st.integers(0, 8)
)
@settings(max_examples=25, deadline=None)
def test_pages_that_are_made_ready_ahead_hold_every_record(
    tmp_path_factory: pytest.TempPathFactory, flush: str, sizes: list[int], reopened_at: int
) -> None:
    """Zeros are written ahead of the records, so they must never meet one."""
    box = Box(
        tmp_path_factory.mktemp("store"),
        mapped_file_size_commit_log=1 << 21,
        flush_disk_type=flush,
        disk=QuickDisk(),
    )
    store = box.open()
    sent = [bytes([1 + number]) * size for number, size in enumerate(sizes)]
    for number, body in enumerate(sent):
        if number == reopened_at:
            box.crash(store)
            store = box.open()
        put(store, body)
        # The room that is left in the part that was made ready is used by a small record, too.
        put(store, b"small", queue_id=1)
    assert bodies(store) == sent
    assert bodies(store, queue_id=1) == [b"small"] * len(sent)
    box.close()


def test_zeros_of_a_thread_meet_no_record(tmp_path: Path) -> None:
    """The thread that makes pages ready goes on all the time, also where the file changes."""
    box = Box(
        tmp_path,
        mapped_file_size_commit_log=1 << 22,
        max_message_size=1 << 22,
        disk=QuickDisk(),
    )
    store = box.open()
    is_over = threading.Event()

    def write_ahead() -> None:
        while not is_over.is_set():
            store.commit_log.write_ahead()

    thread = threading.Thread(target=write_ahead)
    thread.start()
    try:
        # A file is left where it is full, and where a record of these sizes does not fit any more.
        sizes = [(1 << 21) - 61, 4_000, 1_300_000, 70_000, 333] * 12
        sent = [bytes([1 + number]) * size for number, size in enumerate(sizes)]
        for body in sent:
            put(store, body)
    finally:
        is_over.set()
        thread.join()
    assert bodies(store) == sent
    box.crash(store)
    assert bodies(box.open()) == sent
    box.close()


def test_pages_of_large_records_are_made_ready_before_they_come(tmp_path: Path) -> None:
    zeros: list[int] = []

    class WatchedDisk(QuickDisk):
        def write_zeros(self, path: Path, start: int, end: int) -> None:
            zeros.append(end - start)
            super().write_zeros(path, start, end)

    box = Box(
        tmp_path,
        mapped_file_size_commit_log=1 << 26,
        max_message_size=1 << 23,
        disk=WatchedDisk(),
    )
    store = box.open()
    asked: list[bool] = []
    store.commit_log.on_large = lambda: asked.append(True)
    put(store, bytes(4 << 20))
    assert asked
    for _ in range(8):
        if asked:
            store.commit_log.write_ahead()
        asked.clear()
        zeros.clear()
        put(store, bytes(4 << 20))
        assert sum(zeros) == 0, "the append had nothing to make ready"
    box.close()


def test_what_a_record_is_written_to_was_made_ready_as_a_whole(tmp_path: Path) -> None:
    """A record of 4 MiB on pages that are made one by one holds the loop for 8 ms."""
    zeros: list[tuple[int, int]] = []

    class WatchedDisk(QuickDisk):
        def write_zeros(self, path: Path, start: int, end: int) -> None:
            zeros.append((start, end))
            super().write_zeros(path, start, end)

    box = Box(
        tmp_path,
        mapped_file_size_commit_log=1 << 24,
        max_message_size=1 << 23,
        disk=WatchedDisk(),
    )
    store = box.open()
    for size in (100, 4 << 20, 300_000, 200):
        _, place = put(store, bytes(size))
        assert zeros[-1][1] >= place + size
    assert [start for start, _ in zeros[1:]] == [end for _, end in zeros[:-1]]
    box.close()
