"""Count the bytes of requests that a connection has begun to send and not finished, and its frames without any.

gRPC's library holds such a request in memory, and a client that begins a thousand of them and ends none
holds a thousand times grpcMaxInboundMessageSize. The library has no limit on their sum, so the relay counts
the bytes that pass (RFC 9113, gRPC over HTTP/2):

    connection: preface, 24 bytes | frames
    frame:      u24 length | u8 type | u8 flags | u32 stream | payload
    DATA of one stream, one after the other: messages, each u8 compressed | u32 length | bytes
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

_PREFACE_BYTES: Final = 24
_HEAD: Final = struct.Struct(">IBI")
_HEAD_BYTES: Final = 9
assert _HEAD.size == _HEAD_BYTES
_PREFIX_BYTES: Final = 5
_DATA, _HEADERS, _RST_STREAM = 0, 1, 3
_END_STREAM: Final = 1
# The cost of an open stream beside the bytes of its request.
STREAM_BYTES: Final = 256
# The relay reports frames without a part of a request when a read has had so many; a read may have 29,000.
_MANY_EMPTY: Final = 1_000


class _Request:
    """The message that a stream is sending: how many of its bytes are here, and how many are missing."""

    __slots__ = ("held", "is_counted", "missing", "prefix")

    def __init__(self) -> None:
        self.prefix = b""
        self.missing = 0
        self.held = 0
        self.is_counted = True


class RequestsBegun:
    """Counts for one connection. `held_bytes` may be more than the library holds, never less.

    A message longer than `longest_bytes` is not counted: the library refuses it by its length.
    `on_change` is called with each change of `held_bytes`, and `on_frames` with the numbers of frames that
    cancel a call (RST_STREAM) and of other frames without a part of a request (PING, SETTINGS, WINDOW_UPDATE, empty
    DATA, …), unless both are 0. For bytes that are not HTTP/2 the counts have no meaning; the library ends the
    connection.
    """

    def __init__(
        self,
        longest_bytes: int,
        on_change: Callable[[int], None],
        on_frames: Callable[[int, int], None],
    ) -> None:
        self.held_bytes = 0
        # The sum of the changes that `on_change` got: a close in the midst of a read takes back no more.
        self._reported_bytes = 0
        self._longest = longest_bytes
        self._on_change = on_change
        self._on_frames = on_frames
        self._cancels = self._empty = 0
        self._streams: dict[int, _Request] = {}
        self._head = b""
        # State of the frame that is being received.
        self._left = _PREFACE_BYTES
        self._kind = self._stream = -1
        self._ends = False
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def feed(self, data: bytes) -> None:
        """Count what a read brought."""
        if self._is_closed:
            return
        at, end = 0, len(data)
        while at < end:
            if self._left:
                size = min(self._left, end - at)
                if self._kind == _DATA:
                    self._take(data, at, size)
                at += size
                self._left -= size
            else:
                size = _HEAD_BYTES - len(self._head)
                self._head += data[at : at + size]
                at += size
                if len(self._head) < _HEAD_BYTES:
                    break
                at += self._begin_frame(end - at)
                if self._empty >= _MANY_EMPTY:
                    self._report_frames()
                    if self.is_closed:
                        return
            if not self._left and self._ends:
                self._end_stream()
        self._report_held()
        if self._cancels or self._empty:
            self._report_frames()

    def close(self) -> None:
        """Forget what was counted, because the connection is lost. Idempotent."""
        self.held_bytes, self._is_closed = 0, True
        self._streams.clear()
        self._report_held()

    # Inside

    def _report_held(self) -> None:
        change = self.held_bytes - self._reported_bytes
        self._reported_bytes = self.held_bytes
        if change:
            self._on_change(change)

    def _report_frames(self) -> None:
        cancels, empty = self._cancels, self._empty
        self._cancels = self._empty = 0
        self._on_frames(cancels, empty)

    def _begin_frame(self, here: int) -> int:
        """Begin the frame of `_head`; return how many of the `here` bytes behind it need no look."""
        length_and_kind, flags, stream = _HEAD.unpack(self._head)
        self._head = b""
        self._left, self._kind = length_and_kind >> 8, length_and_kind & 0xFF
        self._stream = stream & 0x7FFF_FFFF
        if self._kind in (_DATA, _HEADERS):
            self._ends = bool(flags & _END_STREAM)
            if self._left < (_PREFIX_BYTES if self._kind == _DATA else 1):
                self._empty += 1
        else:
            self._ends = self._kind == _RST_STREAM
            if self._ends:
                self._cancels += 1
            else:
                self._empty += 1
        if self._kind == _DATA and self._stream not in self._streams:
            if self._ends and self._left <= here:  # the whole request
                whole, self._left, self._ends = self._left, 0, False
                return whole
            self._streams[self._stream] = _Request()
            self.held_bytes += STREAM_BYTES
        return 0

    def _take(self, data: bytes, at: int, size: int) -> None:
        """Count a part of a DATA frame, which may hold ends and beginnings of messages."""
        request = self._streams[self._stream]
        while size:
            if request.missing:
                part = min(request.missing, size)
                request.missing -= part
                if request.is_counted:
                    request.held += part
                    self.held_bytes += part
            else:
                part = min(_PREFIX_BYTES - len(request.prefix), size)
                request.prefix += data[at : at + part]
                if len(request.prefix) == _PREFIX_BYTES:
                    request.missing = int.from_bytes(request.prefix[1:], "big")
                    request.is_counted = request.missing <= self._longest
                    request.prefix = b""
            if not request.missing:
                self.held_bytes -= request.held
                request.held = 0
            at += part
            size -= part

    def _end_stream(self) -> None:
        self._ends = False
        request = self._streams.pop(self._stream, None)
        if request is not None:
            self.held_bytes -= request.held + STREAM_BYTES
