"""Say whether a record that the index names has the wanted key: the index keeps hashes of keys only.

Records are read through the file system, as the builder reads them, because a page fault in a
mapping blocks all threads, and without their bodies, which may have 4 MiB each.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cometmq.model.properties import KEYS, UNIQ_CLIENT_MESSAGE_ID
from cometmq.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from cometmq.protocol.messages.record import MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from cometmq.protocol.messages.record_layout import (
    BODY_AT,
    STORE_TIMESTAMP_AT,
    V6_WIDER,
    record_struct,
)
from cometmq.store.files.disk import Disk
from cometmq.store.log.commit_log import CommitLog

_HEAD: Final = record_struct(
    "size", "magic", "body_crc", "queue_id", "queue_offset", "physical_offset", "sys_flag"
)
_STORE_TIMESTAMP: Final = record_struct("store_timestamp")
_BODY_LENGTH: Final = record_struct("body_length")
_UNIQUE_ID: Final = UNIQ_CLIENT_MESSAGE_ID.encode()
_KEYS: Final = KEYS.encode()
# Most records are not longer than this, so one read is enough.
_FIRST_READ_BYTES: Final = 4096
_PROPERTIES_LENGTH_SIZE: Final = 2
# A topic, properties, and the lengths before them.
_MAX_TEXTS_LENGTH: Final = 2 * (_PROPERTIES_LENGTH_SIZE + 0xFFFF)


class Wanted(NamedTuple):
    """Holds the conditions of a query by key. Times are store times in ms, both included."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int


class _Texts(NamedTuple):
    store_timestamp: int
    topic: bytes
    properties: bytes


def fits(disk: Disk, log: CommitLog, offset: int, wanted: Wanted) -> bool:
    """Say whether the record at `offset` of the log has the wanted topic, key and store time. Blocks.

    A record that has left the log never fits.
    """
    record = _read_texts(disk, log, offset)
    return (
        record is not None
        and wanted.begin_ms <= record.store_timestamp <= wanted.end_ms
        and record.topic == wanted.topic.encode()
        and _has_key(record.properties, wanted.key.encode())
    )


def _has_key(properties: bytes, key: bytes) -> bool:
    """Say whether the properties have the key as a unique id, of the message or of its batch, or as
    one of the message's keys.
    """
    for entry in properties.split(b"\x02"):
        name, _, value = entry.partition(b"\x01")
        if name == _UNIQUE_ID and value == key:
            return True
        if name == _KEYS and key in value.split(b" "):
            return True
    return False


def _read_texts(disk: Disk, log: CommitLog, offset: int) -> _Texts | None:
    """Return topic and properties of the record at `offset`, None if there is none."""
    file = log.files.find(offset)
    if file is None:
        return None
    start, limit = offset - file.base, min(file.end, log.readable_end) - offset
    if limit < MIN_RECORD_SIZE:
        return None
    head = memoryview(bytearray(min(limit, _FIRST_READ_BYTES)))
    if disk.read_into(file.path, start, head) < len(head):
        return None
    size, magic, _, _, _, physical_offset, sys_flag = _HEAD.unpack_from(head)
    if magic not in (MAGIC_V1, MAGIC_V2) or physical_offset != offset:
        return None
    wider = V6_WIDER if sys_flag & BORN_HOST_V6 else 0
    (store_timestamp,) = _STORE_TIMESTAMP.unpack_from(head, STORE_TIMESTAMP_AT + wider)
    body_at = BODY_AT + wider + (V6_WIDER if sys_flag & STORE_HOST_V6 else 0)
    if not MIN_RECORD_SIZE <= size <= limit or body_at > len(head):
        return None
    (body_length,) = _BODY_LENGTH.unpack_from(head, body_at - _BODY_LENGTH.size)
    texts_at = body_at + body_length
    if body_length < 0 or not 0 < size - texts_at <= _MAX_TEXTS_LENGTH:
        return None
    if size <= len(head):
        texts = bytes(head[texts_at:size])
    else:
        rest = bytearray(size - texts_at)
        if disk.read_into(file.path, start + texts_at, memoryview(rest)) < len(rest):
            return None
        texts = bytes(rest)
    width = 1 if magic == MAGIC_V1 else 2
    topic_end = width + int.from_bytes(texts[:width], "big")
    properties_at = topic_end + _PROPERTIES_LENGTH_SIZE
    length = int.from_bytes(texts[topic_end:properties_at], "big")
    if properties_at + length != len(texts):
        return None
    return _Texts(store_timestamp, texts[width:topic_end], texts[properties_at:])
