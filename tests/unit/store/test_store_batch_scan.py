"""Records read and dispatched in batches equal those read and dispatched one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.seeds import examples

from cometmq.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.protocol.messages.record import MAGIC_BLANK, encode_record
from cometmq.protocol.messages.record_layout import HEAD, HEAD_SIZE
from cometmq.store.files.disk import Disk
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.log.batch_scan import BatchScan
from cometmq.store.log.scan import LogScan, ScannedRecord
from cometmq.store.queues.batch_dispatch import BatchDispatcher
from cometmq.store.queues.dispatch import Dispatcher, QueueBehindError
from cometmq.store.queues.queue_table import Extensions, QueueTable

FILE = 16 * 1024
QUEUE_FILE = 100
DELAYS = (1000, 5000)
FLUSHED = 1_700_000_000_020

# "Aa" and "BB" have one hash. What is not of ASCII, or long, is hashed on its own.
TOPICS = st.sampled_from(
    ["orders", "Aa", "BB", "thème", "y" * 128, SCHEDULE_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC]
)
NAMES = st.sampled_from(["TAGS", "TAGS", "TAGS2", "DELAY", "DELAY", "TIMER_OUT_MS", "TAG"])
VALUES = st.text(st.sampled_from("ab1é€😀\x00\x01 "), max_size=4) | st.sampled_from(
    ["1", "2", "3", "", "k" * 140, "\x00" * 1100]
)
HOSTS = st.sampled_from([bytes(8), bytes(8), bytes(20)])


@dataclass(frozen=True)
class Message:
    topic: str
    queue_id: int
    # How far its queue offset lies from the next one of its queue.
    step: int
    properties: bytes
    body_length: int
    born_host: bytes
    store_host: bytes
    sys_flag: int


def message(topic: str = "t", *, step: int = 0, body_length: int = 10) -> Message:
    return Message(topic, 0, step, b"", body_length, bytes(8), bytes(8), 0)


MESSAGES = st.lists(
    st.builds(
        Message,
        TOPICS,
        st.integers(0, 1),
        st.sampled_from([0] * 12 + [-1, 1, 3]),
        st.builds(
            lambda entries, end: ("\x02".join(map("\x01".join, entries)) + end).encode(),
            st.lists(st.tuples(NAMES, VALUES), max_size=4),
            st.sampled_from(["\x02", ""]),
        ),
        st.sampled_from([0, 1, 100, 3000]),
        HOSTS,
        HOSTS,
        st.sampled_from([0, 0, 0, 4, 8, 12]),
    ),
    max_size=25,
)
# Place as a share of the log, and what comes to lie there.
DAMAGE = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([b"\0", b"\xff", b"\0" * 512, b"\x80" * 3])),
    max_size=2,
)


def write_log(files: MappedFileQueue, messages: list[Message]) -> int:
    """Fill a log; return its end."""
    end = 0
    next_offsets: dict[tuple[str, int], int] = {}
    for number, message in enumerate(messages):
        queue = (message.topic, message.queue_id)
        queue_offset = max(next_offsets.get(queue, 0) + message.step, 0)
        next_offsets[queue] = max(next_offsets.get(queue, 0), queue_offset + 1)
        size = len(encoded(message, queue_offset, end, number))
        file = files.find(end) or files.append_file()
        if end + size + HEAD_SIZE > file.end:
            HEAD.pack_into(file.map, end - file.base, file.end - end, MAGIC_BLANK)
            end = file.end
            file = files.append_file()
        record = encoded(message, queue_offset, end, number)
        file.map[end - file.base : end - file.base + size] = record
        end += size
    return end


def encoded(message: Message, queue_offset: int, physical_offset: int, number: int) -> bytes:
    return encode_record(
        topic=message.topic.encode(),
        body=b"b" * message.body_length,
        properties=message.properties,
        queue_id=message.queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        sys_flag=message.sys_flag,
        born_timestamp=5,
        born_host=message.born_host,
        store_timestamp=FLUSHED - 10 + number,
        store_host=message.store_host,
    )


def damage_log(files: MappedFileQueue, end: int, damage: list[tuple[float, bytes]]) -> None:
    for share, data in damage:
        place = int(share * end)
        file = files.find(place)
        if file is not None:
            start = place - file.base
            stop = min(start + len(data), FILE)
            file.map[start:stop] = data[: stop - start]


@contextmanager
def log_of(messages: list[Message], damage: list[tuple[float, bytes]]) -> Iterator[MappedFileQueue]:
    with tempfile.TemporaryDirectory() as directory:
        files = MappedFileQueue(Disk(), Path(directory) / "commitlog", FILE, size_key="size")
        damage_log(files, write_log(files, messages), damage)
        yield files
        files.release()


def found_singly(
    files: MappedFileQueue, *, check_crc: bool, flushed_until: int
) -> tuple[list[ScannedRecord], int, str]:
    scan = LogScan(files, 0, check_crc=check_crc, flushed_until=flushed_until)
    return list(scan), scan.end, scan.reason


def found_in_batches(
    files: MappedFileQueue, *, check_crc: bool, flushed_until: int, window_bytes: int
) -> tuple[list[ScannedRecord], int, str]:
    scan = BatchScan(
        files, 0, check_crc=check_crc, flushed_until=flushed_until, window_bytes=window_bytes
    )
    records = [batch.record(index) for batch in scan for index in range(len(batch))]
    return records, scan.end, scan.reason


@settings(max_examples=examples(200), deadline=None)
@given(
    messages=MESSAGES,
    damage=DAMAGE,
    check_crc=st.booleans(),
    flushed_until=st.sampled_from([0, FLUSHED, 2**63 - 1]),
    # The smallest one holds no record at all.
    window_bytes=st.sampled_from([50, 700, 5000, FILE]),
)
def test_a_scan_in_batches_finds_the_same(
    messages: list[Message],
    damage: list[tuple[float, bytes]],
    check_crc: bool,
    flushed_until: int,
    window_bytes: int,
) -> None:
    with log_of(messages, damage) as files:
        expected = found_singly(files, check_crc=check_crc, flushed_until=flushed_until)
        found = found_in_batches(
            files, check_crc=check_crc, flushed_until=flushed_until, window_bytes=window_bytes
        )
        assert found == expected


class Queues:
    """A directory of consume queues, and what became of them."""

    def __init__(self, root: Path, *, extended: bool) -> None:
        self.root = root
        extensions = Extensions(root / "ext", 1 << 16, enabled=extended)
        self.table = QueueTable(Disk(), root / "queues", QUEUE_FILE, extensions=extensions)

    def contents(self) -> tuple[dict[tuple[str, int], int], dict[str, bytes]]:
        next_offsets = {(queue.topic, queue.queue_id): queue.next_offset for queue in self.table}
        self.table.release()
        files = {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file()
        }
        return next_offsets, files


def assert_same_units(
    messages: list[Message],
    *,
    fill_gaps: bool = True,
    extended: bool = False,
    known: int = 0,
    deleted: dict[str, int] | None = None,
    window_bytes: int = FILE,
) -> None:
    with log_of(messages, []) as files, tempfile.TemporaryDirectory() as directory:
        records = list(LogScan(files, 0, check_crc=True))
        singly = Queues(Path(directory) / "singly", extended=extended)
        batched = Queues(Path(directory) / "batched", extended=extended)
        # The queues hold part of it already, as at a clean start.
        for queues in (singly, batched):
            before = Dispatcher(queues.table.get, DELAYS, fill_gaps=True)
            for record in records[:known]:
                before.dispatch(record)
        one_by_one = Dispatcher(singly.table.get, DELAYS, fill_gaps=fill_gaps, deleted=deleted)
        at_once = BatchDispatcher(
            batched.table.get,
            DELAYS,
            fill_gaps=fill_gaps,
            log_min_offset=lambda: 0,
            deleted=deleted,
        )
        try:
            for record in records:
                one_by_one.dispatch(record)
            behind = False
        except QueueBehindError:
            behind = True
        try:
            for batch in BatchScan(
                files, 0, check_crc=True, flushed_until=2**63 - 1, window_bytes=window_bytes
            ):
                at_once.dispatch(batch)
            assert not behind
            assert at_once.dispatched_count == one_by_one.dispatched_count
            assert batched.contents() == singly.contents()
        except QueueBehindError:
            assert behind


@settings(max_examples=examples(150), deadline=None)
@given(
    messages=MESSAGES,
    fill_gaps=st.booleans(),
    extended=st.sampled_from([False, False, True]),
    known=st.sampled_from([0, 0, 1, 4]),
    deleted=st.dictionaries(TOPICS, st.integers(0, 2 * FILE), max_size=2),
    window_bytes=st.sampled_from([700, FILE]),
)
def test_units_written_in_batches_are_the_same(
    messages: list[Message],
    fill_gaps: bool,
    extended: bool,
    known: int,
    deleted: dict[str, int],
    window_bytes: int,
) -> None:
    assert_same_units(
        messages,
        fill_gaps=fill_gaps,
        extended=extended,
        known=known,
        deleted=deleted,
        window_bytes=window_bytes,
    )


def test_topics_of_one_hash_have_queues_of_their_own() -> None:
    assert_same_units([message("Aa"), message("BB", step=1)])


def test_a_record_without_a_topic_ends_the_log() -> None:
    with log_of([message("")], []) as files:
        expected = found_singly(files, check_crc=True, flushed_until=0)
        found = found_in_batches(files, check_crc=True, flushed_until=0, window_bytes=FILE)
        assert found == expected == ([], 0, "a topic that is no text")


def test_a_record_larger_than_a_window_is_a_batch_of_its_own() -> None:
    with log_of([message(), message(body_length=3000), message()], []) as files:
        scan = BatchScan(files, 0, check_crc=True, flushed_until=0, window_bytes=1000)
        assert [len(batch) for batch in scan] == [1, 1, 1]
        assert scan.reason == ""
