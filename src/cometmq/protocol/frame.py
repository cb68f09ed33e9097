"""Cutting a byte stream into frames (Java: NettyEncoder, NettyDecoder).

Layout, big-endian:

    offset  size  field
    0       4     total length: bytes that follow = 4 + header length + body length
    4       1     serialize type of the header: 0 JSON, 1 ROCKETMQ
    5       3     header length
    8       n     header
    8+n     m     body

No I/O: `FrameDecoder.feed` takes what a read brought and returns the frames it completed.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from cometmq.errors import FrameTooLargeError, ProtocolError

MAX_FRAME_LENGTH: Final = 16 * 1024 * 1024
_PREFIX: Final = struct.Struct(">II")
_MAX_HEADER_LENGTH: Final = 0xFF_FFFF
assert _PREFIX.size == 8


class SerializeType(IntEnum):
    JSON = 0
    ROCKETMQ = 1


class Frame(NamedTuple):
    serialize_type: int
    header: bytes
    body: bytes


class FrameDecoder:
    """Holds the tail of an unfinished frame between reads.

    `max_frame_length` bounds what one frame may declare (bytes after the length field), and so what
    this object ever buffers: that much plus one read.
    """

    __slots__ = ("_fault", "_max", "_needed", "_pending")

    def __init__(self, max_frame_length: int = MAX_FRAME_LENGTH) -> None:
        self._max = max_frame_length
        self._pending = bytearray()
        self._needed = 0
        self._fault: ProtocolError | None = None

    @property
    def buffered(self) -> int:
        """Bytes of an unfinished frame held back."""
        return len(self._pending)

    def unfinished_header(self) -> Frame | None:
        """The unfinished frame without its body, if its header is there."""
        pending = self._pending
        if len(pending) < 8:
            return None
        end = 8 + int.from_bytes(pending[5:8], "big")
        return Frame(pending[4], bytes(pending[8:end]), b"") if len(pending) >= end else None

    def drop(self) -> None:
        """Forget the unfinished frame; what comes next would not be understood."""
        self._pending.clear()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completed, in order.

        Bytes that cannot be frames raise ProtocolError: the stream is lost. What came whole before
        them is returned first; `check`, or the next call, then raises.
        """
        self.check()
        pending = self._pending
        if pending:
            pending += data
            if len(pending) < self._needed:
                return []
            data = bytes(pending)
            pending.clear()
        frames: list[Frame] = []
        new_tuple = tuple.__new__
        position, end = 0, len(data)
        while end - position >= 8:
            total, type_and_length = _PREFIX.unpack_from(data, position)
            header_length = type_and_length & _MAX_HEADER_LENGTH
            if total > self._max or header_length + 4 > total:
                self._fault = self._refusal(total, header_length)
                break
            frame_end = position + 4 + total
            if frame_end > end:
                break
            body_start = position + 8 + header_length
            # Half the cost of `Frame(...)`, which checks its arguments in Python.
            fields = (
                type_and_length >> 24,
                data[position + 8 : body_start],
                data[body_start:frame_end],
            )
            frames.append(new_tuple(Frame, fields))
            position = frame_end
        if position < end and self._fault is None:
            pending += data[position:] if position else data
            self._needed = self._wanted()
        if not frames:
            self.check()
        return frames

    def check(self) -> None:
        """Raise the ProtocolError of bytes fed before, if there was one."""
        if self._fault is not None:
            raise self._fault

    def _wanted(self) -> int:
        """How many bytes must be pending before another attempt can do more.

        Checks the lengths as soon as their bytes are there, so that a lie is found before the
        frame it announces is buffered.
        """
        pending = self._pending
        if len(pending) < 4:
            return 4
        total = int.from_bytes(pending[:4], "big")
        # Without its bytes the header counts as empty: the total alone may already lie.
        header_length = int.from_bytes(pending[5:8], "big") if len(pending) >= 8 else 0
        if total > self._max or header_length + 4 > total:
            self._fault = self._refusal(total, header_length)
        return 4 + total if len(pending) >= 8 else 8

    def _refusal(self, total: int, header_length: int) -> ProtocolError:
        if total > self._max:
            return FrameTooLargeError(
                f"a frame declares {total} bytes, the limit is {self._max}; "
                "send smaller messages or raise the limit on both sides"
            )
        return ProtocolError(
            f"a frame declares {total} bytes in all and a header of {header_length} bytes"
        )


def encode_frame(
    header: bytes, body: bytes | memoryview = b"", serialize_type: int = SerializeType.JSON
) -> bytes:
    """One frame. `header` must be shorter than 16 MiB."""
    return b"".join((frame_prefix(len(header), len(body), serialize_type), header, body))


def frame_prefix(
    header_length: int, body_length: int, serialize_type: int = SerializeType.JSON
) -> bytes:
    """The 8 bytes before a header, for senders that pass header and body on without joining them."""
    if header_length > _MAX_HEADER_LENGTH:
        raise ProtocolError(
            f"a header of {header_length} bytes is too long, the limit is {_MAX_HEADER_LENGTH}"
        )
    return _PREFIX.pack(4 + header_length + body_length, serialize_type << 24 | header_length)
