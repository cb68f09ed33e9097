"""Parse requests, and refuse requests that would be much larger in memory than on the wire.

A message of two bytes takes 70 in memory: 16 MiB of them took 550 MB, and the loop stood still for seconds.
Only bodies may be long, so all else in a request is bounded before it is parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError

from cometmq.proxy.configuration import config
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError

_MESSAGES: Final = wire.SendMessageRequest.MESSAGES_FIELD_NUMBER
_BODY: Final = wire.Message.BODY_FIELD_NUMBER
# A field counts with its bytes and this size more.
_FIELD_BYTES: Final = 16
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5


def parsed(request_class: Any, raw: bytes) -> Any:
    """Return the request. Raises RefusedError for a damaged one, and for one with too many bytes besides bodies."""
    most = config.MAX_DETAIL_BYTES
    if len(raw) > most:
        is_send = request_class is wire.SendMessageRequest
        if not is_send or _detail_bytes(raw, most) > most:
            raise RefusedError(
                wire.PAYLOAD_TOO_LARGE,
                f"the request has {len(raw)} bytes, and without the bodies of messages more than the limit "
                f"MAX_DETAIL_BYTES of {most}; divide it among several requests",
                "MAX_DETAIL_BYTES",
            )
    try:
        return request_class.FromString(raw)
    except DecodeError as error:
        raise RefusedError(
            wire.BAD_REQUEST, f"the request is no {request_class.DESCRIPTOR.name}: {error}"
        ) from error


def _detail_bytes(raw: bytes, enough: int) -> int:
    """Return the size of a send without bodies, any number beyond `enough` if it is more."""
    size = 0
    for number, begin, end in _fields(raw, 0, len(raw)):
        size += _FIELD_BYTES
        if number != _MESSAGES:
            size += end - begin
        else:
            for inner, inner_begin, inner_end in _fields(raw, begin, end):
                size += _FIELD_BYTES + (0 if inner == _BODY else inner_end - inner_begin)
                if size > enough:
                    return size
        if size > enough:
            return size
    return size


def _fields(raw: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, begin and end of each field, up to damage, which the parser names."""
    while at < end:
        tag, at = _varint(raw, at, end)
        kind = tag & 7
        begin = at
        if kind == _VARINT:
            _, at = _varint(raw, at, end)
        elif kind == _LENGTH:
            length, begin = _varint(raw, at, end)
            at = begin + length
        elif kind == _FIXED64:
            at += 8
        elif kind == _FIXED32:
            at += 4
        else:
            return
        if at > end:
            return
        yield tag >> 3, begin, at


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number of at most ten bytes, and the place behind it."""
    value = shift = 0
    while at < end and shift < 70:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return value, end + 1
