"""Decode an answer to a pull at once, if there is nothing unusual about any of its records.

Nearly all answers are such: one topic's messages, whole, in IPv4 hosts' records, with bodies as they were
sent. `record` reads all others, and says what is wrong with them; so here any doubt ends the work.
"""

from __future__ import annotations

from typing import Final

from zlib_ng.zlib_ng import crc32

from cometmq.model.message import MessageExt
from cometmq.model.properties import MAX_OFFSET, MIN_OFFSET, UNIQ_CLIENT_MESSAGE_ID
from cometmq.model.sysflag import COMPRESSED
from cometmq.protocol.messages.ids import unpack_host
from cometmq.protocol.messages.record import (
    CRC_MASK,
    MAGIC_V1,
    MAX_TOPIC_LENGTH_V1,
    MIN_RECORD_SIZE,
)
from cometmq.protocol.messages.record_layout import BODY_AT, FIXED_V4, HOSTS_V6

_UNUSUAL: Final = COMPRESSED | HOSTS_V6


def plain_messages(
    records: bytes,
    topic: str,
    broker_name: str,
    queue_id: int,
    first: int,
    end: int,
    min_offset: str,
    max_offset: str,
) -> list[MessageExt] | None:
    """Return the messages in `records`, or None if any of them is not plain.

    A plain record is a whole one of version 1, of this topic and queue, with IPv4 hosts, a queue offset from
    `first` to below `end`, a body that is not compressed and agrees with its CRC, and at most one unique id.
    The messages get the properties MIN_OFFSET and MAX_OFFSET.
    """
    name = topic.encode()
    if len(name) > MAX_TOPIC_LENGTH_V1:
        return None
    name = bytes((len(name),)) + name
    name_length = len(name)
    length = len(records)
    messages: list[MessageExt] = []
    born_packed = store_packed = b""
    born_host = store_host = store_hex = ""
    position = 0
    # Declared, so that their compiled form works on numbers.
    size: int
    magic: int
    body_crc: int
    record_queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born: bytes
    store: bytes
    body_length: int
    while position < length:
        if length - position < MIN_RECORD_SIZE:
            return None
        (
            size,
            magic,
            body_crc,
            record_queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born,
            store_timestamp,
            store,
            reconsume_times,
            prepared_transaction_offset,
            body_length,
        ) = FIXED_V4.unpack_from(records, position)
        following = position + size
        name_at = position + BODY_AT + body_length
        text_at = name_at + name_length + 2
        if (
            magic != MAGIC_V1
            or sys_flag & _UNUSUAL
            or record_queue_id != queue_id
            or not first <= queue_offset < end
            or body_length < 0
            or following > length
            or text_at > following
            or records[name_at : text_at - 2] != name
            or text_at + int.from_bytes(records[text_at - 2 : text_at], "big") != following
        ):
            return None
        body = records[position + BODY_AT : name_at]
        if body_length and crc32(body) & CRC_MASK != body_crc:
            return None
        properties = _properties(records[text_at:following])
        if properties is None:
            return None
        if born != born_packed:
            born_packed, born_host = born, unpack_host(born)
        if store != store_packed:
            store_packed, store_host, store_hex = store, unpack_host(store), store.hex().upper()
        offset_id = f"{store_hex}{physical_offset:016X}"
        unique_id = properties.get(UNIQ_CLIENT_MESSAGE_ID)
        properties[MIN_OFFSET] = min_offset
        properties[MAX_OFFSET] = max_offset
        messages.append(
            MessageExt.of_record(
                topic, body, properties, flag, unique_id or offset_id, offset_id, broker_name,
                queue_id, queue_offset, physical_offset, size, sys_flag, body_crc, born_timestamp,
                born_host, store_timestamp, store_host, reconsume_times, prepared_transaction_offset,
            )
        )  # fmt: skip
        position = following
    return messages


def _properties(text: bytes) -> dict[str, str] | None:
    """Return the properties as `decode_properties` does, or None if it may have to look closer."""
    properties: dict[str, str] = {}
    try:
        entries = text.decode().split("\x02")
    except UnicodeDecodeError:
        return None
    for entry in entries:
        if len(entry) >= 3:
            name, separator, value = entry.partition("\x01")
            if separator and name and value:
                if name in properties:
                    return None
                properties[name] = value
    return properties
