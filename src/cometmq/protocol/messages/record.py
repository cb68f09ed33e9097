"""Encode and decode a stored message: one record of the commit log, and of the answer to a pull.

Java: MessageExtEncoder, MessageDecoder, MessageVersion. `record_layout` has the layout of its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from cometmq.errors import ProtocolError
from cometmq.model.message import MessageExt
from cometmq.model.properties import UNIQ_CLIENT_MESSAGE_ID
from cometmq.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from cometmq.protocol.messages.ids import encode_offset_id, unpack_host
from cometmq.protocol.messages.properties import (
    MAX_PROPERTIES_LENGTH,
    decode_properties,
    find_batch_id,
)
from cometmq.protocol.messages.record_layout import (
    BODY_AT,
    BODY_LENGTH_AT,
    BORN_HOST_AT,
    FIXED_V4,
    HOSTS_V6,
    MAGIC_AT,
    SYS_FLAG_AT,
    V4_HOST_SIZE,
    V6_HOST_SIZE,
    record_struct,
    wider_by,
)

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
CRC_MASK: Final = 0x7FFFFFFF

# A record with two IPv4 hosts, empty body, topic and properties.
MIN_RECORD_SIZE: Final = 91
assert MIN_RECORD_SIZE == BODY_AT + 1 + 2
MAX_TOPIC_LENGTH_V1: Final = 127
MAX_TOPIC_LENGTH_V2: Final = 32767

# The fixed part in front of the hosts, between them, and behind them.
_HEAD: Final = record_struct(
    "size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag",
    "born_timestamp",
)  # fmt: skip
_STORE_TIMESTAMP: Final = record_struct("store_timestamp")
_TAIL: Final = record_struct("reconsume_times", "prepared_transaction_offset", "body_length")
assert (_HEAD.size, _TAIL.size) == (BORN_HOST_AT, 16)
# Stands at MAGIC_AT of a record.
MAGIC: Final = re.compile(b"|".join(m.to_bytes(4, "big") for m in (MAGIC_V1, MAGIC_V2)), re.DOTALL)
_EFFORT: Final = 4


class StoredRecord:
    """A decoded record. Hosts are packed as on disk; `body` is as stored (perhaps compressed)."""

    __slots__ = (
        "body",
        "body_crc",
        "born_host",
        "born_timestamp",
        "flag",
        "physical_offset",
        "prepared_transaction_offset",
        "properties",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "store_host",
        "store_timestamp",
        "sys_flag",
        "topic",
        "total_size",
        "version",
    )

    total_size: int
    version: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: str

    def to_message(self, broker_name: str = "") -> MessageExt:
        """Return the message as consumers see it; the body stays as stored."""
        properties = decode_properties(self.properties)
        offset_id = encode_offset_id(self.store_host, self.physical_offset)
        return MessageExt(
            self.topic,
            self.body,
            properties=properties,
            flag=self.flag,
            msg_id=properties.get(UNIQ_CLIENT_MESSAGE_ID, offset_id),
            offset_msg_id=offset_id,
            batch_msg_id=find_batch_id(self.properties),
            broker_name=broker_name,
            queue_id=self.queue_id,
            queue_offset=self.queue_offset,
            commit_log_offset=self.physical_offset,
            store_size=self.total_size,
            sys_flag=self.sys_flag,
            body_crc=self.body_crc,
            born_timestamp_ms=self.born_timestamp,
            born_host=unpack_host(self.born_host),
            store_timestamp_ms=self.store_timestamp,
            store_host=unpack_host(self.store_host),
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
        )


def record_size(
    body_length: int, topic_length: int, properties_length: int, born_host: bytes, store_host: bytes
) -> int:
    """Return how many bytes a record takes. Lengths are in bytes, hosts packed."""
    return (
        MIN_RECORD_SIZE
        - 2 * V4_HOST_SIZE
        + len(born_host)
        + len(store_host)
        + body_length
        + topic_length
        + (1 if topic_length > MAX_TOPIC_LENGTH_V1 else 0)
        + properties_length
    )


def encode_record(
    *,
    topic: bytes,
    body: bytes | memoryview,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Encode one record. The lengths of the packed hosts decide the host bits of `sys_flag`.

    Raise ProtocolError when topic or properties are too long for their length fields.
    """
    if len(topic) > MAX_TOPIC_LENGTH_V2:
        raise ProtocolError(f"a topic of {len(topic)} bytes, the limit is {MAX_TOPIC_LENGTH_V2}")
    if len(properties) > MAX_PROPERTIES_LENGTH:
        raise ProtocolError(
            f"properties of {len(properties)} bytes, the limit is {MAX_PROPERTIES_LENGTH}"
        )
    v2 = len(topic) > MAX_TOPIC_LENGTH_V1
    sys_flag &= ~HOSTS_V6
    if len(born_host) == V6_HOST_SIZE:
        sys_flag |= BORN_HOST_V6
    if len(store_host) == V6_HOST_SIZE:
        sys_flag |= STORE_HOST_V6
    size = record_size(len(body), len(topic), len(properties), born_host, store_host)
    return b"".join(
        (
            _HEAD.pack(
                size,
                MAGIC_V2 if v2 else MAGIC_V1,
                crc32(body) & CRC_MASK if body else 0,
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                born_timestamp,
            ),
            born_host,
            _STORE_TIMESTAMP.pack(store_timestamp),
            store_host,
            _TAIL.pack(reconsume_times, prepared_transaction_offset, len(body)),
            body,
            len(topic).to_bytes(2 if v2 else 1, "big"),
            topic,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    )


def encode_moved(
    record: StoredRecord,
    *,
    topic: str,
    queue_id: int,
    properties: str,
    prepared_transaction_offset: int,
) -> bytes:
    """Encode a stored record once more, as one of another topic and queue with these properties."""
    return encode_record(
        topic=topic.encode(),
        body=record.body,
        properties=properties.encode(),
        queue_id=queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        store_timestamp=record.store_timestamp,
        store_host=record.store_host,
        flag=record.flag,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
    )


def decode_record(
    buffer: bytes | memoryview, position: int = 0, *, check_crc: bool = False
) -> StoredRecord:
    """Decode the record at `position`, which must lie completely in `buffer`.

    Raise ProtocolError for bytes that are no record: a wrong magic, or sizes that contradict each
    other or the buffer; with `check_crc`, also if the body is not the one that was stored.
    """
    available = len(buffer) - position
    if available < MIN_RECORD_SIZE:
        raise ProtocolError(f"{available} bytes are too few for a record at {position}")
    record = StoredRecord()
    (
        size,
        magic,
        record.body_crc,
        record.queue_id,
        record.flag,
        record.queue_offset,
        record.physical_offset,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.store_timestamp,
        record.store_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
        body_length,
    ) = FIXED_V4.unpack_from(buffer, position)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise ProtocolError(f"magic {magic:#x} at {position} is none of a record")
    if not MIN_RECORD_SIZE <= size <= available:
        raise ProtocolError(f"a record at {position} declares {size} of {available} bytes")
    record.total_size = size
    record.version = 1 if magic == MAGIC_V1 else 2
    cursor = _Cursor(buffer, position + BODY_AT, position + size)
    if record.sys_flag & HOSTS_V6:
        cursor.position = position + BORN_HOST_AT
        body_length = _decode_v6_part(record, cursor)
    record.body = cursor.take(body_length)
    try:
        record.topic = cursor.sized(record.version).decode()
        record.properties = cursor.sized(2).decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a record at {position} has text that is not UTF-8") from error
    if cursor.position != position + size:
        raise ProtocolError(
            f"the fields of a record at {position} end at {cursor.position - position}, "
            f"it declares {size} bytes"
        )
    if check_crc and not body_is_intact(record):
        raise ProtocolError(f"the body of a record at {position} contradicts its CRC")
    return record


def body_is_intact(record: StoredRecord) -> bool:
    """Return whether the body is the one that was stored, by its CRC."""
    return not record.body or crc32(record.body) & CRC_MASK == record.body_crc


def properties_text(record: memoryview) -> str:
    """Return the properties string of a whole record of one's own store; a damaged record may give
    any text.
    """
    from_bytes = int.from_bytes
    at = BODY_LENGTH_AT
    flags = record[SYS_FLAG_AT + 3]
    if flags & HOSTS_V6:
        at += wider_by(flags)
    at += 4 + from_bytes(record[at : at + 4], "big")
    # The last byte of the magic is the version, and so the width of the topic's length field.
    width = 1 if record[7] == MAGIC_V1 & 0xFF else 2
    at += width + from_bytes(record[at : at + width], "big")
    end = at + 2 + from_bytes(record[at : at + 2], "big")
    return str(record[at + 2 : end], "utf-8", "replace")


def _decode_v6_part(record: StoredRecord, cursor: _Cursor) -> int:
    """Decode what follows the born timestamp if a host has an IPv6 address; return the body's
    length.
    """
    record.born_host = cursor.take(V6_HOST_SIZE if record.sys_flag & BORN_HOST_V6 else V4_HOST_SIZE)
    (record.store_timestamp,) = _STORE_TIMESTAMP.unpack(cursor.take(_STORE_TIMESTAMP.size))
    record.store_host = cursor.take(
        V6_HOST_SIZE if record.sys_flag & STORE_HOST_V6 else V4_HOST_SIZE
    )
    tail = _TAIL.unpack(cursor.take(_TAIL.size))
    record.reconsume_times, record.prepared_transaction_offset, body_length = tail
    return int(body_length)


def decode_records(buffer: bytes | memoryview) -> Iterator[StoredRecord]:
    """Yield the records that stand in `buffer` one after the other (the body of a pull's
    answer).
    """
    position = 0
    while position < len(buffer):
        record = decode_record(buffer, position)
        yield record
        position += record.total_size


class NoRecord(NamedTuple):
    """Bytes from `start` to `end` among the records of an answer that are no record."""

    start: int
    end: int
    reason: str


def read_records(buffer: bytes) -> Iterator[StoredRecord | NoRecord]:
    """Do as `decode_records`, but continue after bytes that are no record: where the damaged record
    says that it ends, or at the next record that decodes.
    """
    position, end = 0, len(buffer)
    # Bounds what the search for records may decode in vain, so that crafted bytes cannot take long.
    effort = _EFFORT * end
    while position < end:
        try:
            record = decode_record(buffer, position)
        except ProtocolError as error:
            following, effort = _next_record(buffer, position, effort)
            yield NoRecord(position, following, str(error))
            position = following
        else:
            yield record
            position += record.total_size


def _next_record(buffer: bytes, start: int, effort: int) -> tuple[int, int]:
    """Return where the next record after `start` begins (the buffer's end if there is none), and
    what is left of `effort`.
    """
    end = len(buffer)
    declared = start + int.from_bytes(buffer[start : start + 4], "big")
    # The declared end is tried first, because bytes of the body may look like a record.
    if declared == end or (declared < end and _is_record(buffer, declared)):
        return declared, effort
    for found in MAGIC.finditer(buffer, start + MAGIC_AT + 1):
        position = found.start() - MAGIC_AT
        if effort <= 0:
            break
        if _is_record(buffer, position):
            return position, effort
        effort -= min(int.from_bytes(buffer[position : position + 4], "big"), end - position)
    return end, effort


def _is_record(buffer: bytes, position: int) -> bool:
    try:
        decode_record(buffer, position, check_crc=True)
    except ProtocolError:
        return False
    return True


class _Cursor:
    __slots__ = ("_buffer", "_end", "position")

    def __init__(self, buffer: bytes | memoryview, position: int, end: int) -> None:
        self._buffer = buffer
        self._end = end
        self.position = position

    def take(self, length: int) -> bytes:
        end = self.position + length
        if length < 0 or end > self._end:
            raise ProtocolError(
                f"a field of {length} bytes at {self.position} leaves its record, "
                f"which ends at {self._end}"
            )
        data = self._buffer[self.position : end]
        self.position = end
        return bytes(data)

    def sized(self, width: int) -> bytes:
        return self.take(int.from_bytes(self.take(width), "big"))
