"""Read and write the messages between a master and its slave (Java: DefaultHAConnection,
DefaultHAClient).

Layout, big-endian. A slave of ours whose master wants a proof begins with a token that the master
gave it over another connection:

    offset  size  field
    0       8     the mark ff 63 6d 71 74 6f 6b 6e, as an offset negative
    8       16    token

A slave sends nothing else but reports:

    offset  size  field
    0       8     offset behind the last byte that its commit log has

A master answers the first report by frames, which carry its commit log as it lies there:

    offset  size  field
    0       8     offset of the body's first byte in the commit log
    8       4     size of the body; 0 in a heartbeat
    12      n     body: any part of one commit-log file; records may begin and end anywhere

There is no handshake, no version and no checksum, so every field is checked here. This module does
no I/O: the readers take the bytes of reads, in parts of any size, and hold 23 of them at most.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from cometmq.errors import FrameTooLargeError, ProtocolError

_REPORT: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">qi")
REPORT_SIZE: Final = 8
HEAD_SIZE: Final = 12
assert _REPORT.size == REPORT_SIZE
assert _HEAD.size == HEAD_SIZE

# Java's slave reads into a buffer of 4 MiB and waits forever for a frame that does not fit.
MAX_BODY_SIZE: Final = 4 * 1024 * 1024 - HEAD_SIZE
_MAX_OFFSET: Final = 2**63 - 1
# The highest first byte of an offset that is not negative.
_MOST_SIGN: Final = 0x7F

TOKEN_SIZE: Final = 16
_TOKEN_MARK: Final = b"\xffcmqtokn"
_TOKEN_END: Final = len(_TOKEN_MARK) + TOKEN_SIZE

encode_report = _REPORT.pack
encode_head = _HEAD.pack


def encode_token(token: bytes) -> bytes:
    """Return what a slave sends in front of its first report."""
    assert len(token) == TOKEN_SIZE, "a token has its size"
    return _TOKEN_MARK + token


class Piece(NamedTuple):
    """Shows a part of a frame's body. `offset` is where it lies in the master's commit log.

    In a heartbeat `data` is empty. It is a view of the bytes that were fed.
    """

    offset: int
    data: memoryview


class ReportReader:
    """Reads the token, if there is one, and the reports of one slave."""

    __slots__ = ("_begins", "_pending", "token")

    def __init__(self) -> None:
        self._pending = b""
        self._begins = True
        self.token: bytes | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> int | None:
        """Return the offset of the last report that `data` completes, None if it completes none.

        As in Java, only the last of several reports counts. Raises ProtocolError for a negative
        offset in any of them; do not go on then.
        """
        if self._pending:
            data = self._pending + bytes(data)
        if self._begins and len(data) >= REPORT_SIZE:
            if bytes(data[:REPORT_SIZE]) == _TOKEN_MARK:
                if len(data) < _TOKEN_END:
                    self._pending = bytes(data)
                    return None
                self.token = bytes(data[REPORT_SIZE:_TOKEN_END])
                data = data[_TOKEN_END:]
            self._begins = False
        whole = len(data) - len(data) % REPORT_SIZE
        self._pending = bytes(data[whole:])
        if not whole:
            return None
        # The first byte of a negative offset is no ASCII. A read may have 32,000 reports.
        signs = bytes(data[:whole:REPORT_SIZE])
        at = whole - REPORT_SIZE
        if not signs.isascii():
            at = next(i for i, sign in enumerate(signs) if sign > _MOST_SIGN) * REPORT_SIZE
        offset: int = _REPORT.unpack_from(data, at)[0]
        if offset < 0:
            raise ProtocolError(f"a slave reports the negative commit-log offset {offset}")
        return offset


class FrameReader:
    """Reads the frames of one master, and gives the parts of their bodies as they come.

    So memory does not depend on the length that a frame declares. `max_body_size` bounds that
    anyway: bytes that are no frames are found out at once.
    """

    __slots__ = ("_fault", "_head", "_left", "_max_body_size", "_offset")

    def __init__(self, max_body_size: int = MAX_BODY_SIZE) -> None:
        self._max_body_size = max_body_size
        self._head = b""
        # Where the next byte of the body under way lies in the log, and how many are missing.
        self._offset = self._left = 0
        self._fault: ProtocolError | None = None

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Piece]:
        """Yield the parts of bodies in `data`, in their order. Take all of them, or feed no more.

        Raises ProtocolError for a head that cannot be one, and then in each further call.
        """
        if self._fault is not None:
            raise self._fault
        view = memoryview(data)
        at, end = 0, len(view)
        while at < end:
            if self._left:
                size = min(self._left, end - at)
                piece = Piece(self._offset, view[at : at + size])
                self._offset += size
                self._left -= size
                at += size
                yield piece
                continue
            wanted = HEAD_SIZE - len(self._head)
            self._head += bytes(view[at : at + wanted])
            at += wanted
            if len(self._head) == HEAD_SIZE:
                self._begin_frame()
                if not self._left:
                    yield Piece(self._offset, view[:0])

    def _begin_frame(self) -> None:
        offset, size = _HEAD.unpack(self._head)
        self._head = b""
        try:
            if offset < 0:
                raise ProtocolError(f"a frame of the master has the negative offset {offset}")
            if size < 0:
                raise ProtocolError(f"a frame of the master has the negative size {size}")
            if size > self._max_body_size:
                raise FrameTooLargeError(
                    f"a frame of the master declares {size} bytes, the limit is "
                    f"{self._max_body_size}: lower haTransferBatchSize of the master"
                )
            if offset > _MAX_OFFSET - size:
                raise ProtocolError(
                    f"a frame of the master with {size} bytes at the offset {offset} would end "
                    "behind the last possible offset"
                )
        except ProtocolError as fault:
            self._fault = fault
            raise
        self._offset, self._left = offset, size
