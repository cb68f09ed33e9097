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
from collections import deque
from enum import IntEnum
from io import BytesIO
from typing import Final, NamedTuple

from cometmq.errors import FrameTooLargeError, ProtocolError

MAX_FRAME_LENGTH: Final = 16 * 1024 * 1024
# The longest headers carry a message's properties: 32,767 bytes, six times as many if a client
# escapes each of them.
MAX_HEADER_LENGTH: Final = 1024 * 1024
_PREFIX: Final = struct.Struct(">II")
_LENGTH_BITS: Final = 0xFF_FFFF
# The body of a longer frame is kept in pieces until it is whole: one buffer that grows would be
# moved, and copied twice in the end, which takes milliseconds for a message of 4 MiB.
_LONG_FRAME: Final = 256 * 1024
_PIECE_BYTES: Final = 64 * 1024
assert _PREFIX.size == 8
# How the clients of other protocols begin, read as a frame's length: HTTP/2 (gRPC) and HTTP.
_HTTP2: Final = int.from_bytes(b"PRI ", "big")
_HTTP: Final = frozenset(
    int.from_bytes(word, "big")
    for word in (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC")
)


class SerializeType(IntEnum):
    JSON = 0
    ROCKETMQ = 1


class Frame(NamedTuple):
    serialize_type: int
    header: bytes
    body: bytes


class _LongFrame:
    """Collects the body of a frame of many reads.

    Until half of the body is there it is kept in pieces, so that no peer makes us take much more
    memory than the bytes that it has sent. Then there is a place for the whole, and with each read
    as many bytes of the pieces move there: the last read does not have to join megabytes, which
    would take ten milliseconds. Small reads are joined to pieces, so that a sender of single bytes
    takes no more memory than any.
    """

    __slots__ = (
        "_last",
        "_length",
        "_moved",
        "_pieces",
        "_place",
        "_to_move",
        "_view",
        "header",
        "missing",
        "received",
        "serialize_type",
    )

    def __init__(self, serialize_type: int, header: bytes, body_length: int) -> None:
        self.serialize_type = serialize_type
        self.header = header
        self.missing = body_length
        self.received = 8 + len(header)
        self._length = body_length
        self._pieces: deque[bytes | bytearray] = deque()
        self._last = bytearray()
        # Gives out the bytes that it was filled with without copying them: nobody else holds them.
        self._place: BytesIO | None = None
        self._view: memoryview | None = None
        # Bytes of the pieces that are in their place, and that are to move there before the next read.
        self._moved = self._to_move = 0

    def add(self, data: bytes) -> None:
        """Take bytes of the body, `missing` at most."""
        start = self._length - self.missing
        self.missing -= len(data)
        self.received += len(data)
        if self._view is None:
            self._keep(data)
            if 2 * (start + len(data)) >= self._length:
                self._place = BytesIO(bytes(self._length))
                self._view = self._place.getbuffer()
            return
        self._view[start : start + len(data)] = data
        self._to_move += len(data)
        while self._pieces and self._to_move > 0:
            self._move()

    def _keep(self, data: bytes) -> None:
        if len(data) < _PIECE_BYTES:
            self._last += data
            if len(self._last) < _PIECE_BYTES:
                return
            data = b""
        if self._last:
            self._pieces.append(self._last)
            self._last = bytearray()
        if data:
            self._pieces.append(data)

    def _move(self) -> None:
        piece = self._pieces.popleft()
        assert self._view is not None, "there is a place when pieces move"
        self._view[self._moved : self._moved + len(piece)] = piece
        self._moved += len(piece)
        self._to_move -= len(piece)

    def whole(self) -> Frame:
        """Return the frame once nothing is missing."""
        assert self._place is not None, "more than half of the body is there"
        assert self._view is not None, "it comes with the place"
        self._pieces.append(self._last)
        while self._pieces:
            self._move()
        self._view.release()
        return Frame(self.serialize_type, self.header, self._place.getvalue())


class FrameDecoder:
    """Turns the bytes of reads into frames, and keeps an unfinished frame between reads.

    `max_frame_length` bounds the length that a frame may declare (bytes after the length field),
    and so what this object ever buffers: that much plus one read.
    """

    __slots__ = ("_fault", "_long", "_max", "_needed", "_pending")

    def __init__(self, max_frame_length: int = MAX_FRAME_LENGTH) -> None:
        self._max = max_frame_length
        self._pending = bytearray()
        self._long: _LongFrame | None = None
        self._needed = 0
        self._fault: ProtocolError | None = None

    @property
    def buffered(self) -> int:
        """Return how many bytes of an unfinished frame are held."""
        return len(self._pending) if self._long is None else self._long.received

    def missing(self, data: bytes, position: int = 0) -> int:
        """Return how many bytes from `position` on belong to the frame that is unfinished, or begins
        there. That may be more than there are; lengths that are not there yet count as 0.
        """
        if self._long is not None:
            return self._long.missing
        if self._pending:
            return max(0, self._needed - len(self._pending))
        if len(data) - position < 4:
            return 0
        return 4 + int.from_bytes(data[position : position + 4], "big")

    def unfinished_header(self) -> Frame | None:
        """Return the unfinished frame without its body, or None if its header has not arrived
        yet.
        """
        if self._long is not None:
            return Frame(self._long.serialize_type, self._long.header, b"")
        pending = self._pending
        if len(pending) < 8:
            return None
        end = 8 + int.from_bytes(pending[5:8], "big")
        return Frame(pending[4], bytes(pending[8:end]), b"") if len(pending) >= end else None

    def drop(self) -> None:
        """Drop the unfinished frame. The decoder cannot be used after that."""
        self._pending.clear()
        self._long = None

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, in order.

        Bytes that cannot be frames raise ProtocolError: the stream is lost. Frames that were
        complete before these bytes are returned first; `check` or the next call then raises.
        """
        self.check()
        frames: list[Frame] = []
        position, end = 0, len(data)
        pending = self._pending
        if self._long is not None:
            position = min(self._long.missing, end)
            self._long.add(data[:position])
            if self._long.missing:
                return frames
            frames.append(self._long.whole())
            self._long = None
        elif pending:
            pending += data
            if len(pending) < self._needed:
                return frames
            data = bytes(pending)
            end = len(data)
            pending.clear()
        new_tuple = tuple.__new__
        while end - position >= 8:
            total, type_and_length = _PREFIX.unpack_from(data, position)
            header_length = type_and_length & _LENGTH_BITS
            if total > self._max or header_length > MAX_HEADER_LENGTH or header_length + 4 > total:
                self._fault = self._refusal(total, header_length, type_and_length >> 24)
                break
            frame_end = position + 4 + total
            if frame_end > end:
                if total > _LONG_FRAME and end - position - 8 >= header_length:
                    self._begin_long(data[position:], total, type_and_length)
                    return frames
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

    def _begin_long(self, data: bytes, total: int, type_and_length: int) -> None:
        """Keep a long frame's beginning, whose header is whole."""
        header_length = type_and_length & _LENGTH_BITS
        body_start = 8 + header_length
        self._long = _LongFrame(
            type_and_length >> 24, data[8:body_start], total - 4 - header_length
        )
        self._long.add(data[body_start:])

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
        if len(pending) < 8:
            return 8
        return 8 + header_length if total > _LONG_FRAME else 4 + total

    def _refusal(self, total: int, header_length: int, serialize_type: int) -> ProtocolError:
        if total == _HTTP2:
            return ProtocolError(
                "the bytes are HTTP/2, as a gRPC client of RocketMQ 5 sends them; this port speaks the "
                "remoting protocol: use a remoting client (Java: rocketmq-client), or let the gRPC "
                "client call an Apache RocketMQ proxy"
            )
        if total in _HTTP:
            return ProtocolError(
                "the bytes are an HTTP request; this port speaks RocketMQ's remoting protocol, and "
                "the console and the metrics have their own ports"
            )
        if serialize_type > SerializeType.ROCKETMQ:  # of another protocol: no limit is involved
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
