"""Carry one direction of a connection over a link, as TCP does.

Bytes arrive once and in order. While the link is lossy they wait to be sent again: after 0.2
seconds, then after twice as long each time, at most after two minutes. So after a link has healed
they wait for about as long again as it was lossy. After GIVE_UP_S the connection is given up. A reset
is never sent again: on a lossy link it vanishes, and the other end does not know.

Everything here runs in the context of no node: what is under way arrives at a paused process, too.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from enum import Enum
from typing import Final, Protocol

from cometmq.testing.virtual.wire.link import Link

# How many bytes that the reader has not read the two kernels hold; the rest waits in the process.
CAPACITY_BYTES: Final = 256 * 1024
# As Linux does with its default of 15 retries.
GIVE_UP_S: Final = 924.6
_FIRST_RETRY_S: Final = 0.2
_LONGEST_RETRY_S: Final = 120.0
# A slow link takes as many bytes of a connection at once as it carries in this time.
_PIECE_S: Final = 0.25


class End(Enum):
    """Follows the last byte."""

    OF_STREAM = "FIN"


Item = bytes | memoryview | End | OSError


class Socket(Protocol):
    """One end of a connection, as the kernel knows it."""

    # Whether this end's machine knows nothing of the connection.
    is_gone: bool
    # Whether this end will read no more, because it was closed.
    is_closed: bool

    def arrives(self, item: Item) -> None:
        """Take what has come over the link."""

    def drains(self) -> None:
        """Hear that fewer bytes wait than before."""

    def fails(self, error: OSError) -> None:
        """Hear that the connection does not exist any more."""


def os_error(number: int) -> OSError:
    """Return the error that the operating system raises for `number`."""
    return OSError(number, os.strerror(number))


class Flow:
    """Holds what one end of a connection has written and the other has not read."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        link: Link,
        back: Link,
        source: Socket,
        target: Socket,
    ) -> None:
        self.unread_bytes = 0
        self._loop = loop
        self._link = link
        self._back = back
        self._source = source
        self._target = target
        self._queue: deque[Item] = deque()
        self._wire: deque[tuple[float, Item]] = deque()
        self._last_at_s = 0.0
        self._arrival: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._paced = False
        # Bytes that the reader has read, which could not be acknowledged to the sender.
        self._unconfirmed_bytes = 0
        self._stalled_at_s: float | None = None

    def send(self, item: Item) -> None:
        """Send bytes or the end of the stream, after all that was sent before."""
        self._queue.append(item)
        if self._retry is None and not self._paced:
            self._transmit()

    def send_reset(self, *, drop: bool) -> None:
        """End the connection without the bytes that were not sent yet; `drop` also those under way."""
        self.drop(under_way=drop)
        if not self._link.is_lossy:
            self._put_on_wire(os_error(errno.ECONNRESET), self._loop.time())

    def drop(self, *, under_way: bool) -> None:
        """Forget what was not sent yet, and if so asked what has not arrived."""
        self._queue.clear()
        self.unread_bytes = self._unconfirmed_bytes = 0
        self._stalled_at_s = None
        if under_way:
            self._wire.clear()
            self._last_at_s = 0.0

    def read(self, size: int) -> None:
        """Note that the reader has taken `size` bytes, and acknowledge them to the sender."""
        if self._back.is_lossy:
            self._unconfirmed_bytes += size
            self._stall()
            return
        full = self.unread_bytes > CAPACITY_BYTES
        self.unread_bytes = max(0, self.unread_bytes - size)
        if full:
            at_s = self._loop.time() + self._back.draw_latency_s()
            self._loop.call_at(at_s, self._source.drains)

    def link_changed(self) -> None:
        """Hear that a fault of the link was made or undone."""
        if self._link.is_lossy or self._back.is_lossy:
            return
        self._hasten()
        if self._stalled_at_s is not None and self._retry is None:
            at_s = self._next_retry_s(self._stalled_at_s)
            self._retry = self._loop.call_at(at_s, self._send_again)

    def _transmit(self) -> None:
        while self._queue:
            if self._link.is_lossy or (self._back.is_lossy and self.unread_bytes > CAPACITY_BYTES):
                self._stall()
                return
            if not self._back.is_lossy:
                self._stalled_at_s = None
            item, now_s = self._queue.popleft(), self._loop.time()
            if self._link.bytes_per_s is None or not isinstance(item, bytes | memoryview):
                self._put_on_wire(item, now_s)
                continue
            piece_bytes = max(1, int(self._link.bytes_per_s * _PIECE_S))
            if len(item) > piece_bytes:
                self._queue.appendleft(memoryview(item)[piece_bytes:])
                item = memoryview(item)[:piece_bytes]
            left_at_s = max(now_s, self._link.free_at_s) + len(item) / self._link.bytes_per_s
            self._link.free_at_s = left_at_s
            self._put_on_wire(item, left_at_s)
            self._paced = True
            self._loop.call_at(left_at_s, self._next_piece)
            return

    def _next_piece(self) -> None:
        self._paced = False
        if self._retry is None:
            self._transmit()

    def _put_on_wire(self, item: Item, at_s: float) -> None:
        at_s = max(at_s + self._link.draw_latency_s(), self._last_at_s)
        self._last_at_s = at_s
        self._wire.append((at_s, item))
        if self._arrival is None:
            self._arrival = self._loop.call_at(at_s, self._arrive)

    def _arrive(self) -> None:
        self._arrival = None
        now_s = self._loop.time()
        while self._wire and self._wire[0][0] <= now_s:
            _, item = self._wire.popleft()
            if self._target.is_gone or (self._target.is_closed and item is not End.OF_STREAM):
                self._answer_by_reset(item)
            else:
                self._target.arrives(item)
        if self._wire:
            self._arrival = self._loop.call_at(self._wire[0][0], self._arrive)

    def _answer_by_reset(self, item: Item) -> None:
        """Send the sender a reset for an unknown connection, unless a reset has come from it."""
        if isinstance(item, OSError):
            return
        if self._back.is_lossy:  # the answer is lost, and so the sender sends again
            self._queue.appendleft(item)
            self._stall()
            return
        at_s = self._loop.time() + self._back.draw_latency_s()
        self._loop.call_at(at_s, self._source.fails, os_error(errno.ECONNRESET))

    # Lossy links

    def _stall(self) -> None:
        if self._stalled_at_s is None:
            now_s = self._stalled_at_s = self._loop.time()
            self._loop.call_at(now_s + GIVE_UP_S, self._give_up, now_s)

    def _give_up(self, stalled_at_s: float) -> None:
        if self._stalled_at_s == stalled_at_s:
            self._source.fails(os_error(errno.ETIMEDOUT))

    def _next_retry_s(self, stalled_at_s: float) -> float:
        at_s, wait_s, now_s = stalled_at_s, _FIRST_RETRY_S, self._loop.time()
        while at_s <= now_s:
            at_s += wait_s
            wait_s = min(2 * wait_s, _LONGEST_RETRY_S)
        return at_s

    def _send_again(self) -> None:
        self._retry = None
        if self._link.is_lossy or self._back.is_lossy:
            return
        self._stalled_at_s = None
        if self._unconfirmed_bytes:
            size, self._unconfirmed_bytes = self._unconfirmed_bytes, 0
            self.read(size)
        if not self._paced:
            self._transmit()

    def _hasten(self) -> None:
        """Let bytes that are under way arrive as if they had been sent now, where that is
        sooner.
        """
        latest_s = self._loop.time() + self._link.longest_latency_s()
        if self._last_at_s <= latest_s:
            return
        self._wire = deque((min(at_s, latest_s), item) for at_s, item in self._wire)
        self._last_at_s = latest_s
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = self._loop.call_at(self._wire[0][0], self._arrive)
