"""Hand what a TLS connection has read to OpenSSL some records at a time.

OpenSSL goes through all records that it has before it returns, and a peer can ask by a record of 27
bytes for new keys (RFC 8446, 4.6.3), which takes 20 to 40 microseconds and yields nothing that a server
would see. A read of 256 KiB of them held the loop for 175 to 360 ms, and a peer after its handshake can
send them without end. So OpenSSL gets RECORDS_AT_ONCE of them at a time. In each turn the records
of all connections of a server are opened for TURN_S of the loop's thread, and for as long again
those of connections from which bytes have just come. Bulk data comes in records of 16 KiB, which
are given as they come.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from cometmq.logs.loggers import get_logger

log = get_logger(__name__)

RECORDS_AT_ONCE: Final = 8
TURN_S: Final = 0.0005
# Records of bulk data are not counted: a read of the socket has 32 of them at most.
_LONG: Final = 8 * 1024
# Type, version, and the length of what follows.
_HEAD: Final = 5


class RecordTurns:
    """Lets the connections of a server take turns. For the loop's thread only.

    `work_s` is the processor time of the loop's thread.
    """

    def __init__(self, work_s: Callable[[], float] = time.thread_time) -> None:
        self._work_s = work_s
        self._left_s = TURN_S
        self._waiting: deque[RecordReader] = deque()
        self._is_counting = False

    @property
    def is_over(self) -> bool:
        """Whether no more records are opened in this turn of the loop."""
        return self._left_s <= 0

    def open(self, feed: Callable[[], None]) -> float:
        """Open some records, and return how long that took."""
        self._count()
        began_s = took_s = self._work_s()
        try:
            feed()
        finally:
            took_s = self._work_s() - began_s
            self._left_s -= took_s
        return took_s

    def join(self, reader: RecordReader) -> None:
        """Have a connection go on in a later turn."""
        self._waiting.append(reader)
        self._count()

    def _count(self) -> None:
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_counting = False
        self._left_s = TURN_S
        while self._waiting and not self.is_over:
            reader = self._waiting.popleft()
            try:
                reader.go_on()
            except Exception:  # the edge between a connection and all others
                log.exception("connection closed: its TLS records cannot be opened")
                reader.abort()
        if self._waiting:
            self._count()
        # For those of which something has just come.
        self._left_s = TURN_S


class RecordReader(asyncio.Protocol):
    """Stands between the transport of a socket and the protocol of TLS over it.

    The loop's own TLS reads on while its user does not, until it has kept 256 KiB. With this reader it
    is given nothing meanwhile.
    """

    def __init__(self, turns: RecordTurns, under: asyncio.Transport) -> None:
        self._turns = turns
        self._under = under
        # That of uvloop has the methods of this class and not the class.
        self._tls = cast("asyncio.BufferedProtocol", under.get_protocol())
        self._unread = b""
        # The processor time that its records have taken.
        self.work_s = 0.0
        # How many bytes of the record that was begun are still to come.
        self._missing = 0
        self._is_held = self._is_paused = self._is_in_turns = self._has_ended = False
        under.set_protocol(self)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if self._is_held or self._is_in_turns:
            self._pause()  # the loop's TLS may have had it go on
        else:
            self._read()

    def eof_received(self) -> bool | None:
        if self._is_held or self._is_in_turns:
            self._has_ended = True
            return True
        return self._tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread = b""
        self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        self._tls.resume_writing()

    # Calls by the user of TLS

    def hold(self) -> None:
        """Give TLS nothing until `release`."""
        self._is_held = True
        self._pause()

    def release(self) -> None:
        """Go on."""
        if self._is_held:
            self._is_held = False
            self._mind_rest()

    def go_on(self) -> None:
        """Give TLS some more of the bytes that were read: it is this connection's turn."""
        self._is_in_turns = False
        if not self._is_held and not self._under.is_closing():
            self._read()

    def abort(self) -> None:
        """Close the connection at once."""
        self._under.abort()

    # -- inside --

    def _read(self) -> None:
        """Give TLS the next records, if some may be opened now."""
        if not self._turns.is_over and (end := self._end_of_records()):
            self.work_s += self._turns.open(partial(self._feed_first, end))
        self._mind_rest()

    def _feed_first(self, end: int) -> None:
        # Taking them off a long read takes time, too, which counts.
        data, self._unread = self._unread[:end], self._unread[end:]
        self._feed(data)

    def _end_of_records(self) -> int:
        """Return how many of the unread bytes are given to TLS at once."""
        data, size = self._unread, len(self._unread)
        at, count = self._missing, 0
        while at + _HEAD <= size and count < RECORDS_AT_ONCE:
            length = data[at + 3] << 8 | data[at + 4]
            at += _HEAD + length
            count += length < _LONG
        self._missing = max(0, at - size)
        return min(at, size)

    @property
    def _has_rest(self) -> bool:
        """Whether records wait, or a part of one that is more than the beginning of its head."""
        return len(self._unread) >= _HEAD or (self._missing > 0 and len(self._unread) > 0)

    def _mind_rest(self) -> None:
        if self._is_held:
            return
        if self._has_rest and not self._under.is_closing():
            self._pause()
            if not self._is_in_turns:
                self._is_in_turns = True
                self._turns.join(self)
        elif self._has_ended:
            self._has_ended = False
            if not self._tls.eof_received():
                self._under.close()
        elif self._is_paused and not self._under.is_closing():
            self._is_paused = False
            self._under.resume_reading()

    def _pause(self) -> None:
        self._is_paused = True
        self._under.pause_reading()

    def _feed(self, data: bytes) -> None:
        left = memoryview(data)
        while left and not self._under.is_closing():
            room = memoryview(self._tls.get_buffer(len(left)))
            count = min(len(room), len(left))
            room[:count] = left[:count]
            left = left[count:]
            self._tls.buffer_updated(count)
