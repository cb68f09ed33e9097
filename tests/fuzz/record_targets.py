"""Fuzz targets of stored messages, and the readers that must agree about them: one by one and by
columns, the codec and the store, a log by records and by windows.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

import numpy as np
from tests.fuzz.golden_inputs import golden
from tests.fuzz.target import Target
from tests.fuzz.wire_targets import PROPERTIES

from cometmq.errors import ProtocolError
from cometmq.model.properties import KEYS, UNIQ_CLIENT_MESSAGE_ID
from cometmq.model.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.properties import decode_properties, encode_properties
from cometmq.protocol.messages.record import (
    MAGIC_BLANK,
    decode_record,
    decode_records,
    encode_record,
)
from cometmq.protocol.messages.record_columns import read_columns
from cometmq.protocol.messages.record_layout import HEAD
from cometmq.store.delivery_note import named_origins
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.index.index_file import hash_of
from cometmq.store.index.index_keys import find_keys
from cometmq.store.log.batch_scan import BatchScan
from cometmq.store.log.scan import BadRecord, LogScan, ScannedRecord, check_record
from cometmq.testing.virtual.storage.disk import VirtualDisk

_LOG: Final = Path("/store/commitlog")
_LOG_FILE_BYTES: Final = 8192
_FLUSHED: Final = 1_700_000_000_020


def record_bytes(
    topic: bytes = b"orders",
    properties: bytes | None = None,
    *,
    at: int = 3,
    born: bytes = pack_host("10.0.0.1", 10911),
    store: bytes = pack_host("10.0.0.1", 10911),
    body: bytes = b"body" * 5,
    queue_offset: int = 2,
    sys_flag: int = 0,
    stored_at: int = 5,
) -> bytes:
    if properties is None:
        properties = encode_properties({"TAGS": "TagA", "UNIQ_KEY": "0A"}).encode()
    return encode_record(
        topic=topic,
        body=body,
        properties=properties,
        queue_id=1,
        queue_offset=queue_offset,
        physical_offset=at,
        sys_flag=sys_flag,
        born_timestamp=4,
        born_host=born,
        store_timestamp=stored_at,
        store_host=store,
    )


def _records() -> list[bytes]:
    v4, v6 = pack_host("10.0.0.1", 10911), pack_host("fe80::1", 10911)
    return [
        record_bytes(topic, born=born, store=store)
        for topic in (b"orders", b"t" * 200)
        for born, store in ((v4, v4), (v4, v6), (v6, v6))
    ]


def _log() -> bytes:
    """Return what lies at the start of a log: records that know where they are, then a blank."""
    parts: list[bytes] = []
    at = 0
    for number, properties in enumerate(
        [
            b"",
            PROPERTIES,
            b"TAGS\x01a\x02",
            b"DELAY\x013\x02REAL_TOPIC\x01orders",
            b"K\x01" + b"v" * 600,
        ]
    ):
        parts.append(
            record_bytes(
                at=at,
                properties=properties,
                queue_offset=number,
                sys_flag=[0, 4, 12, 8, 0][number],
                stored_at=_FLUSHED - 3 + number,
            )
        )
        at += len(parts[-1])
    return b"".join(parts)


RECORDS: Final = [*_records(), *golden("record")]
LOG: Final = _log()


def run_records(random: Random, data: bytes) -> object:
    try:
        all_of_them = list(decode_records(memoryview(data)))
    finally:
        record = decode_record(data, check_crc=random.random() < 0.5)
        message = record.to_message("broker")
        assert message.store_size <= len(data)
        named_origins(record)
    return len(all_of_them), message


def run_log_record(_: Random, data: bytes) -> object:
    """The store's look at a record and the codec's reading of it agree."""
    offset = int.from_bytes(data[28:36], "big", signed=True)
    scanned = check_record(memoryview(data), 0, offset, check_crc=True)
    try:
        record = decode_record(data, check_crc=True)
    except ProtocolError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        # The store takes properties as bytes, for the consumer to decode.
        assert isinstance(scanned, BadRecord) or "not UTF-8" in refusal
        return refusal
    if not record.topic or "\0" in record.topic:
        # No broker stores such a topic: to the store it is a sector that never reached the disk.
        assert isinstance(scanned, BadRecord)
        return scanned
    assert isinstance(scanned, ScannedRecord)
    assert (scanned.size, scanned.queue_id) == (record.total_size, record.queue_id)
    assert (scanned.queue_offset, scanned.sys_flag) == (record.queue_offset, record.sys_flag)
    assert (scanned.topic, scanned.store_timestamp) == (record.topic, record.store_timestamp)
    assert scanned.properties == record.properties.encode()
    return scanned


def _sound(data: bytes, base: int) -> list[ScannedRecord]:
    """Return the records that stand one after the other from the start on, read one by one."""
    view, at, found = memoryview(data), 0, []
    while isinstance(one := check_record(view, at, base + at, check_crc=False), ScannedRecord):
        found.append(one)
        at += one.size
    return found


def _expected_keys(record: ScannedRecord) -> list[tuple[int, int, int]]:
    if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return []
    properties = decode_properties(record.properties.decode("utf-8", "replace"))
    keys = [properties[UNIQ_CLIENT_MESSAGE_ID]] if UNIQ_CLIENT_MESSAGE_ID in properties else []
    keys += [key for key in properties.get(KEYS, "").split(" ") if key]
    return [
        (hash_of(record.topic, key), record.offset, record.store_timestamp) for key in keys if key
    ]


def run_columns(_: Random, data: bytes) -> object:
    """Columns of numbers and keys say what is read record by record."""
    one_by_one = _sound(data, 0)
    columns = read_columns(data, 0, len(data), 0)
    count = len(one_by_one)
    assert len(columns) >= count
    some = columns.select(slice(count))
    assert bool(np.all(some.fit))
    assert some.starts.tolist() == [record.offset for record in one_by_one]
    assert some.ends.tolist() == [record.offset + record.size for record in one_by_one]
    assert some.sys_flags.tolist() == [record.sys_flag for record in one_by_one]
    assert some.store_timestamps.tolist() == [record.store_timestamp for record in one_by_one]
    topics = [bytes(data[a:b]) for a, b in zip(some.topic_starts, some.topic_ends, strict=True)]
    assert topics == [record.topic.encode() for record in one_by_one]
    end = int(some.ends[-1]) if count else 0
    keys = find_keys(bytearray(data), 0)
    assert keys.consumed >= end
    found = list(zip(*(column.tolist() for column in keys.keys), strict=True))
    assert [key for key in found if key[1] < end] == [
        key for record in one_by_one for key in _expected_keys(record)
    ]
    return len(columns), found


def run_log(_: Random, data: bytes) -> object:
    """A log read in windows has the records, the end and the reason of one read one by one."""
    disk = VirtualDisk()
    path = _LOG / f"{0:020d}"
    disk.make_directory(_LOG)
    disk.overwrite(path, data[1:][:_LOG_FILE_BYTES], _LOG_FILE_BYTES)
    files = MappedFileQueue(disk, _LOG, _LOG_FILE_BYTES, size_key="mappedFileSizeCommitLog")
    files.load()
    check_crc = bool(data[:1] and data[0] & 1)
    single = LogScan(files, 0, check_crc=check_crc, flushed_until=_FLUSHED)
    many = BatchScan(
        files,
        0,
        check_crc=check_crc,
        flushed_until=_FLUSHED,
        window_bytes=300 + 100 * (data[0] if data else 0),
    )
    expected = list(single)
    got = [batch.record(index) for batch in many for index in range(len(batch))]
    assert got == expected, (got, expected)
    assert (many.end, many.reason) == (single.end, single.reason)
    outcome = len(got), many.end, many.reason
    del got, expected
    return outcome


_BLANK: Final = HEAD.pack(_LOG_FILE_BYTES - len(LOG), MAGIC_BLANK)

TARGETS: Final = [
    Target("records", [*RECORDS, b"".join(_records()), *golden("records")], run_records),
    Target("log-record", [*RECORDS, *golden("commit-log-file")], run_log_record),
    Target("columns", [LOG, LOG[: len(LOG) - 20], *golden("commit-log-file")], run_columns),
    Target(
        "log",
        [b"\0" + LOG, b"\x01" + LOG, b"\x05" + LOG + _BLANK],
        run_log,
        cost=3,
        takes_long=False,
    ),
]
