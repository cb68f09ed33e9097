"""Read and write the prefixes that Avro, JSON and Protobuf bodies may have.

Confluent's wire format    0x00, schema id (4 bytes, big-endian); for Protobuf then the path to the message:
                           its length and indexes as zigzag varints, or one byte 0 for the path [0]
Avro's single object       0xC3 0x01, fingerprint of the schema (8 bytes, little-endian)

Source: "Wire format" in the documentation of Confluent's Schema Registry; "Single-object encoding" in
Avro's specification.
"""

from __future__ import annotations

import struct
from typing import Final

# Marker, and length of the whole prefix.
CONFLUENT: Final = (b"\x00", 5)
SINGLE_OBJECT: Final = (b"\xc3\x01", 10)
_ID: Final = struct.Struct(">I")
_MAX_PATH: Final = 100


def confluent_prefix(schema_id: int, message_path: list[int] | None = None) -> bytes:
    """Return the prefix of a body; `message_path` is for Protobuf."""
    prefix = CONFLUENT[0] + _ID.pack(schema_id)
    if message_path is None:
        return prefix
    if message_path == [0]:
        return prefix + b"\x00"
    return prefix + b"".join(map(_zigzag, [len(message_path), *message_path]))


def confluent_id(body: bytes) -> int | None:
    """Return the schema id in a body's prefix, or None if it has no such prefix."""
    marker, length = CONFLUENT
    if len(body) < length or not body.startswith(marker):
        return None
    found: int = _ID.unpack_from(body, len(marker))[0]
    return found


def without_prefix(body: bytes) -> bytes:
    """Return what follows the prefix of a body."""
    return body[CONFLUENT[1] :]


def split_path(body: bytes) -> tuple[list[int], bytes]:
    """Return the path to a Protobuf message, and the message. Raises ValueError for a path that is cut."""
    count, at = _read(body, 0)
    if count == 0:
        return [0], body[at:]
    if not 0 < count <= _MAX_PATH:
        raise ValueError(f"a path of {count} messages, the limit is {_MAX_PATH}")
    path = []
    for _ in range(count):
        index, at = _read(body, at)
        path.append(index)
    return path, body[at:]


def _zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(body) and shift <= 28:
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise ValueError("the path to the message is cut")
