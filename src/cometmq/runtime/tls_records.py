"""Hands what a TLS connection has read to OpenSSL some records at a time.

OpenSSL goes through all records that it has before it returns, and a peer can ask by a record of 27
bytes for new keys (RFC 8446, 4.6.3), which takes 20 to 40 microseconds and yields nothing that a server
would see. A read of 256 KiB of them held the loop for 175 to 360 ms, and whoever has shaken hands can
send them without end. So all connections of a server together have RECORDS_PER_TURN of them opened in a
turn of the loop; bulk data comes in records of 16 KiB and never waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, cast

RECORDS_PER_TURN: Final = 64
# Type, version, and the length of what follows.
_HEAD: Final = 5


class RecordTurns:
    """Lets the connections of a server take turns. For the loop's thread only."""

    def __init__(self) -> None:
        self.left = RECORDS_PER_TURN
        self._waiting: deque[RecordReader] = deque()
        self._is_counting = False

    def spend(self, count: int) -> None:
        """Note that so many records are opened in this turn of the loop."""
        self.left -= count
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def join(self, reader: RecordReader) -> None:
        """Have a connection go on in a later turn."""
        self._waiting.append(reader)
        self.spend(0)

    def _next_turn(self) -> None:
        self._is_counting = False
        self.left = RECORDS_PER_TURN
        for _ in range(len(self._waiting)):
            self._waiting.popleft().go_on()
            if self.left <= 0:
                break
        if self._waiting:
            self.spend(0)


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
        # How many bytes of the record that was begun are still to come.
        self._missing = 0
        self._is_held = self._is_paused = self._is_in_turns = self._has_ended = False
        under.set_protocol(self)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        if self._unread:
            data = self._unread + data
        if self._is_held or self._is_in_turns:
            self._unread = data
            self._pause()  # the loop's TLS may have had it go on
        else:
            self._read(data)

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

    # What the user of TLS says

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
        """Give TLS some more of what was read: it is this connection's turn."""
        self._is_in_turns = False
        if not self._is_held and not self._under.is_closing():
            data, self._unread = self._unread, b""
            self._read(data)

    # -- inside --

    def _read(self, data: bytes) -> None:
        end, count = self._end_of(data)
        if count:
            self._turns.spend(count)
        if end < len(data):
            self._unread, data = data[end:], data[:end]
        else:
            self._unread = b""
        self._feed(data)
        self._mind_rest()

    def _end_of(self, data: bytes) -> tuple[int, int]:
        """Return how many bytes of `data` may be given to TLS now, and how many records begin there."""
        size, most = len(data), max(self._turns.left, 0)
        at, count = self._missing, 0
        while at + _HEAD <= size and count < most:
            at += _HEAD + (data[at + 3] << 8 | data[at + 4])
            count += 1
        self._missing = max(0, at - size)
        return min(at, size), count

    @property
    def _has_rest(self) -> bool:
        """Whether records, or more than the beginning of one, wait."""
        return len(self._unread) >= _HEAD

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
