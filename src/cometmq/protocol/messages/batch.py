"""Encode and decode the body of a batch send (code 320): sub-messages one after the other (Java:
MessageDecoder).

size  field
4     total size
4     magic, 0
4     body CRC, 0
4     flag
4+n   body
2+p   properties string
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, final

from cometmq.errors import ProtocolError
from cometmq.protocol.messages.properties import (
    MANY_PROPERTIES_LENGTH,
    MAX_PROPERTIES,
    MAX_PROPERTIES_LENGTH,
    PROPERTY_SEPARATOR,
)

_HEAD: Final = struct.Struct(">i8xii")
_HEAD_SIZE: Final = 20
assert _HEAD.size == _HEAD_SIZE
# Each message costs a broker some microseconds, however small it is.
MAX_BATCH_MESSAGES: Final = 16_384
_FIXED: Final = _HEAD_SIZE + 2


@final
class BatchEntry:
    """Describes a message of a batch. A plain class: a named tuple takes compiled code longer to make."""

    __slots__ = ("body", "flag", "properties")

    def __init__(self, flag: int, body: bytes, properties: bytes) -> None:
        self.flag = flag
        self.body = body
        self.properties = properties

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchEntry) and (
            self.flag == other.flag
            and self.body == other.body
            and self.properties == other.properties
        )

    def __hash__(self) -> int:
        return hash((self.flag, self.body, self.properties))

    def __repr__(self) -> str:
        return f"BatchEntry({self.flag}, {self.body!r}, {self.properties!r})"


def batch_entry_size(body_length: int, properties_length: int) -> int:
    """Return how many bytes one sub-message takes in the body of a batch."""
    return _FIXED + body_length + properties_length


def encode_batch(entries: Iterable[BatchEntry]) -> bytes:
    """Encode the body of a batch. Raise ProtocolError when properties exceed 32767 bytes."""
    parts: list[bytes] = []
    for entry in entries:
        body, properties = entry.body, entry.properties
        if len(properties) > MAX_PROPERTIES_LENGTH:
            raise ProtocolError(
                f"properties of {len(properties)} bytes, the limit MAX_PROPERTIES_LENGTH is "
                f"{MAX_PROPERTIES_LENGTH}; move large values into the body",
                limit="MAX_PROPERTIES_LENGTH",
            )
        size = batch_entry_size(len(body), len(properties))
        parts += (
            _HEAD.pack(size, entry.flag, len(body)),
            body,
            len(properties).to_bytes(2, "big"),
            properties,
        )
    return b"".join(parts)


def decode_some(data: bytes, position: int, count: int, most: int) -> tuple[list[BatchEntry], int]:
    """Decode up to `most` sub-messages from `position` on, behind `count` others; return them and the
    position of the next one. Raise ProtocolError when the sizes contradict each other.
    """
    entries: list[BatchEntry] = []
    length = len(data)
    while position < length and len(entries) < most:
        if count + len(entries) == MAX_BATCH_MESSAGES:
            raise ProtocolError(
                f"a batch has more than {MAX_BATCH_MESSAGES} messages, the limit MAX_BATCH_MESSAGES "
                f"is {MAX_BATCH_MESSAGES}; divide it",
                limit="MAX_BATCH_MESSAGES",
            )
        if length - position < _FIXED:
            raise ProtocolError(f"{length - position} bytes end a batch, too few for a message")
        size, flag, body_length = _HEAD.unpack_from(data, position)
        end = position + size
        body_start = position + _HEAD_SIZE
        if body_length < 0 or size < _FIXED + body_length or end > length:
            raise ProtocolError(
                f"a batch message at {position} declares {size} bytes with a body of "
                f"{body_length}; {length - position} are left"
            )
        properties_start = body_start + body_length + 2
        properties_length = data[properties_start - 2] << 8 | data[properties_start - 1]
        if properties_start + properties_length != end:
            raise ProtocolError(
                f"a batch message at {position} declares {size} bytes, its fields take "
                f"{properties_start + properties_length - position}"
            )
        properties = data[properties_start:end]
        if properties_length > MANY_PROPERTIES_LENGTH:
            _check_count(properties)
        position = end
        entries.append(BatchEntry(flag, data[body_start : properties_start - 2], properties))
    return entries, position


def _check_count(properties: bytes) -> None:
    count = properties.count(PROPERTY_SEPARATOR.encode())
    if count > MAX_PROPERTIES:
        raise ProtocolError(
            f"{count} properties of a message in a batch, the limit MAX_PROPERTIES is "
            f"{MAX_PROPERTIES}; put them into the body",
            limit="MAX_PROPERTIES",
        )
