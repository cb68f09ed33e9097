"""Receive the answers of one broker into windows, in which their bodies stay where they arrive.

A window is some megabytes of memory. The bytes of a read go into it behind those of the reads before,
and whole frames are handed out as places in it (layout: `cometmq.protocol.frame`). When the frame that
is arriving does not fit into the rest of the window, it moves to the start of a new one.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final, Protocol, cast

import numpy as np

from cometmq.protocol.frame import MAX_FRAME_LENGTH, MAX_HEADER_LENGTH

WINDOW_BYTES: Final = 4 * 1024 * 1024
_PREFIX: Final = struct.Struct(">II")
_LENGTH_BITS: Final = 0xFF_FFFF


class Receiver(Protocol):
    """Takes the frames that a WindowConnection receives."""

    def frame_received(
        self, serialize_type: int, header: bytes, window: memoryview, start: int, end: int
    ) -> None:
        """Take a frame, whose body lies in `window` from `start` to below `end`. Nothing ever changes
        it there.
        """

    def read_ended(self) -> None:
        """Learn that all frames of a read have been handed out."""

    def connection_ended(self) -> None:
        """Learn that no more frames come: the connection is gone, or its bytes are no frames."""


class WindowConnection(asyncio.BufferedProtocol):
    """The protocol object of one connection; see the module. For the loop's thread only."""

    def __init__(self) -> None:
        self.receiver: Receiver | None = None
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._window = _new_window(WINDOW_BYTES)
        # How far the window is filled, where the frame that is arriving begins, and how many bytes
        # it has, as far as that is known.
        self._filled = self._begun = 0
        self._frame_bytes = _PREFIX.size

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self.closed:
            self._transport.write(data)

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, _sizehint: int) -> memoryview:
        if self._begun + self._frame_bytes > len(self._window):
            self._turn_over()
        return self._window[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        while self._filled - self._begun >= _PREFIX.size and not self.closed:
            total, type_and_length = _PREFIX.unpack_from(self._window, self._begun)
            header_length = type_and_length & _LENGTH_BITS
            if (
                total > MAX_FRAME_LENGTH
                or header_length > MAX_HEADER_LENGTH
                or header_length + 4 > total
            ):
                self._end()
                return
            self._frame_bytes = 4 + total
            end = self._begun + 4 + total
            if end > self._filled:
                break
            start = self._begun + _PREFIX.size + header_length
            header = bytes(self._window[self._begun + _PREFIX.size : start])
            self._begun, self._frame_bytes = end, _PREFIX.size
            if self.receiver is not None:
                self.receiver.frame_received(
                    type_and_length >> 24, header, self._window, start, end
                )
        if self.receiver is not None:
            self.receiver.read_ended()

    def data_received(self, data: bytes) -> None:
        """Take bytes from a network that gives them as asyncio.Protocol takes them."""
        rest = memoryview(data)
        while rest and not self.closed:
            place = self.get_buffer(len(rest))
            count = min(len(place), len(rest))
            place[:count] = rest[:count]
            rest = rest[count:]
            self.buffer_updated(count)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._end()

    # Inside

    def _end(self) -> None:
        self.close()
        receiver, self.receiver = self.receiver, None
        if receiver is not None:
            receiver.connection_ended()

    def _turn_over(self) -> None:
        """Go on in a new window: receivers may still look at bytes in the old one."""
        rest = self._window[self._begun : self._filled]
        self._window = _new_window(max(WINDOW_BYTES, self._frame_bytes))
        self._window[: len(rest)] = rest
        self._begun, self._filled = 0, len(rest)


def _new_window(size: int) -> memoryview:
    # Unlike a bytearray's, its bytes are not set to zero first.
    return np.empty(size, np.uint8).data
