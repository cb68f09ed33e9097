"""Cut a byte stream into frames (Java: NettyEncoder, NettyDecoder).

Layout, big-endian:

    offset  size  field
    0       4     total length: bytes that follow = 4 + header length + body length
    4       1     serialize type of the header: 0 JSON, 1 ROCKETMQ
    5       3     header length
    8       n     header
    8+n     m     body

This module does no I/O: `FrameDecoder.feed` takes the bytes of a read and returns the frames that
they complete.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from cometmq.errors import FrameTooLargeError, ProtocolError

MAX_FRAME_LENGTH: Final = 16 * 1024 * 1024
# The longest headers carry a message's properties: 32,767 bytes, six times as many if a client
# escapes each of them.
MAX_HEADER_LENGTH: Final = 1024 * 1024
_PREFIX: Final = struct.Struct(">II")
_LENGTH_BITS: Final = 0xFF_FFFF
assert _PREFIX.size == 8


class SerializeType(IntEnum):
    JSON = 0
    ROCKETMQ = 1


class Frame(NamedTuple):
    serialize_type: int
    header: bytes
    body: bytes


class FrameDecoder:
    """Turns the bytes of reads into frames, and keeps an unfinished frame between reads.

    `max_frame_length` bounds the length that a frame may declare (bytes after the length field),
    and so what this object ever buffers: that much plus one read.
    """

    __slots__ = ("_fault", "_max", "_needed", "_pending")

    def __init__(self, max_frame_length: int = MAX_FRAME_LENGTH) -> None:
        self._max = max_frame_length
        self._pending = bytearray()
        self._needed = 0
        self._fault: ProtocolError | None = None

    @property
    def buffered(self) -> int:
        """Return how many bytes of an unfinished frame are held."""
        return len(self._pending)

    def unfinished_header(self) -> Frame | None:
        """Return the unfinished frame without its body, or None if its header has not arrived
        yet.
        """
        pending = self._pending
        if len(pending) < 8:
            return None
        end = 8 + int.from_bytes(pending[5:8], "big")
        return Frame(pending[4], bytes(pending[8:end]), b"") if len(pending) >= end else None

    def drop(self) -> None:
        """Drop the unfinished frame. The decoder cannot be used after that."""
        self._pending.clear()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, in order.

        Bytes that cannot be frames raise ProtocolError: the stream is lost. Frames that were
        complete before these bytes are returned first; `check` or the next call then raises.
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
            header_length = type_and_length & _LENGTH_BITS
            if total > self._max or header_length > MAX_HEADER_LENGTH or header_length + 4 > total:
                self._fault = self._refusal(total, header_length, type_and_length >> 24)
                break
            frame_end = position + 4 + total
            if frame_end > end:
                break
            body_start = position + 8 + header_length
            # This costs half of `Frame(...)`, which checks its arguments in Python.
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
        """Raise the ProtocolError of earlier bytes, if there is one."""
        if self._fault is not None:
            raise self._fault

    def _wanted(self) -> int:
        """Return how many bytes must be pending before another attempt can succeed.

        Check the lengths as soon as their bytes are there, so that a wrong length is found before
        the frame that it announces is buffered.
        """
        pending = self._pending
        if len(pending) < 4:
            return 4
        total = int.from_bytes(pending[:4], "big")
        # A header whose length is not there yet counts as empty: the total alone may be too large.
        header_length = int.from_bytes(pending[5:8], "big") if len(pending) >= 8 else 0
        if total > self._max or header_length > MAX_HEADER_LENGTH or header_length + 4 > total:
            self._fault = self._refusal(total, header_length, pending[4] if len(pending) > 4 else 0)
        return 4 + total if len(pending) >= 8 else 8

    def _refusal(self, total: int, header_length: int, serialize_type: int) -> ProtocolError:
        if serialize_type > SerializeType.ROCKETMQ:  # a request of HTTP, say: it meets no limit
            return ProtocolError(f"a frame declares a header of type {serialize_type}")
        if total > self._max:
            return FrameTooLargeError(
                f"a frame declares {total} bytes, the limit com.rocketmq.remoting.frameMaxLength is "
                f"{self._max}; send smaller messages or raise the limit on both sides",
                limit="com.rocketmq.remoting.frameMaxLength",
            )
        if header_length > MAX_HEADER_LENGTH:
            return FrameTooLargeError(
                f"a frame declares a header of {header_length} bytes, the limit MAX_HEADER_LENGTH is "
                f"{MAX_HEADER_LENGTH}; carry such data in the body",
                limit="MAX_HEADER_LENGTH",
            )
        return ProtocolError(
            f"a frame declares {total} bytes in all and a header of {header_length} bytes"
        )


def encode_frame(
    header: bytes, body: bytes | memoryview = b"", serialize_type: int = SerializeType.JSON
) -> bytes:
    """Return one frame. `header` must be shorter than 16 MiB."""
    return b"".join((frame_prefix(len(header), len(body), serialize_type), header, body))


def frame_prefix(
    header_length: int, body_length: int, serialize_type: int = SerializeType.JSON
) -> bytes:
    """Return the 8 bytes before a header, for senders that pass on header and body without joining
    them.
    """
    if header_length > _LENGTH_BITS:
        raise ProtocolError(
            f"a header of {header_length} bytes is too long, the limit is {_LENGTH_BITS}"
        )
    return _PREFIX.pack(4 + header_length + body_length, serialize_type << 24 | header_length)
