"""The requests that a connection of a server has brought, and what becomes of them.

    requests wait   blocked   the connection is
    no              no        read
    yes             no        in a line of `ServingTurns`, and not read
    no, it rests    no        the same: in the middle of a large frame, in a turn whose reads took long
    any             yes       neither: its peer does not read its answers, or it holds too many bytes

What a read brings is served at once, for a slice, if nothing waits and the connection owes no time. When
the peer is gone, the requests that wait are served before the connection counts as lost: a consumer
commits offsets by one-way requests before it ends.

For the loop's thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cometmq.errors import ProtocolError
from cometmq.protocol.command import peek_code
from cometmq.protocol.frame import Frame
from cometmq.remoting.dispatch import Handlers
from cometmq.remoting.turns import (
    ADMINISTRATION,
    FEW,
    MANY,
    SLICE_BYTES,
    SLICE_COST,
    SLICE_S,
    TASK_COST,
    ServingTurns,
    owed_s,
)

if TYPE_CHECKING:
    from cometmq.remoting.connection import Connection

# So few requests of so few bytes mostly take less than a slice.
_SMALL_COUNT: Final = 32
_SMALL_BYTES: Final = 65536
# A read that seems to exceed its slice may have waited for the disk or another thread. So it has the
# next reads timed exactly instead of being charged: a peer has one such read in so many for nothing.
_TIMED_READS: Final = 16
# A connection with so many bytes of an unfinished frame may rest.
_LARGE_BYTES: Final = 65536
# The memory of a request that waits, besides its bytes.
_FRAME_BYTES: Final = 128
# Why a connection is blocked.
CONGESTED: Final = 1
FULL: Final = 2


class Serving:
    """The requests of one connection. Each method gets the connection: a reference to it would be a
    cycle, whose memory the garbage collector has to find.
    """

    def __init__(self, turns: ServingTurns, handlers: Handlers) -> None:
        self.turns = turns
        self._administration = handlers.administration
        # Requests of a read, of which those from `_next` on wait, and how many bytes of memory they take.
        self._frames: list[Frame] = []
        self._next = 0
        self.waiting_bytes = 0
        self.blocked = 0
        # The rest of SLICE_COST in the slice that is served.
        self._slice_left = 0
        self._in_line = self._administers = False
        self.is_reading = True
        # How many reads to come are timed by the clock of the processor, which takes ten times as long
        # to read as the other one: the first ones, and those behind one that seemed to exceed its slice.
        self._timed_reads = _TIMED_READS
        # Whether it reads no more of a large frame until it is its turn.
        self._rests = False

    @property
    def waits(self) -> bool:
        """Whether requests wait."""
        return self._next < len(self._frames)

    def read(self, connection: Connection, frames: list[Frame], now_s: float) -> None:
        """Serve what a read has brought, for a slice; the rest waits.

        Raises ProtocolError for the first request whose header is none.
        """
        if self._next < len(self._frames):  # TLS may bring more than was asked for
            self._frames += frames
            self.waiting_bytes += _bytes_of(frames)
            return
        self._frames = frames
        self._next = 0
        self._administers = False
        # Few small requests do not wait, whatever others bring.
        if (
            not self.blocked
            and connection.debt_s <= SLICE_S
            and (_are_few(frames) or not self.turns.is_spent(now_s))
        ):
            connection.debt_s -= SLICE_S
            if self._timed_reads:
                self._timed_reads -= 1
                used_s = self._serve_timed(connection, now_s)
            else:
                self._serve(connection, now_s)
                used_s = self.turns.monotonic() - now_s
                connection.debt_s = max(connection.debt_s, 0.0)
            if used_s > SLICE_S:
                self._timed_reads = _TIMED_READS
        if self._next < len(self._frames):
            self._forget_served()
            self.settle(connection)

    def rest(self, connection: Connection, unfinished: int) -> None:
        """If the reads of this turn have taken READS_S, read the rest of a frame, of which
        `unfinished` bytes are there, only when it is the connection's turn.
        """
        if unfinished > _LARGE_BYTES and self.turns.is_spent(self.turns.monotonic()):
            self._rests = True
            self.settle(connection)

    def serve_slice(self, connection: Connection) -> bool:
        """Serve the requests that wait for a slice; return whether any did. Raises ProtocolError as
        `read` does.
        """
        self._in_line = self._rests = False
        if connection.closed or not self.waits:
            return False
        self._serve_timed(connection, self.turns.monotonic())
        return True

    def _serve_timed(self, connection: Connection, now_s: float) -> float:
        """Serve for a slice; charge the connection for the seconds of the processor, and return them."""
        began_s = self.turns.worked()
        try:
            self._serve(connection, now_s)
        finally:
            used_s = self.turns.worked() - began_s
            connection.debt_s = owed_s(connection.debt_s + used_s)
        return used_s

    def _serve(self, connection: Connection, now_s: float) -> None:
        frames, end = self._frames, len(self._frames)
        until_s = now_s + SLICE_S
        self._slice_left = SLICE_COST
        try:
            while self._next < end and not self.blocked:
                frame = frames[self._next]
                code = peek_code(frame)
                if (code in self._administration) != self._administers:
                    break
                self._next += 1
                connection.serve(frame, code)
                if connection.closed:
                    break
                self._slice_left -= 1
                if self._next < end and (
                    self._slice_left <= 0
                    or connection.out_bytes >= SLICE_BYTES
                    or self.turns.monotonic() >= until_s
                ):
                    break
        finally:
            self._forget_served()

    def _forget_served(self) -> None:
        """Let go of the requests that were served, and count the others."""
        frames, served = self._frames, self._next
        if served >= len(frames):
            self.drop()
            return
        if self.waiting_bytes:
            self.waiting_bytes -= _bytes_of(frames[:served])
        else:
            self.waiting_bytes = _bytes_of(frames[served:])
        del frames[:served]
        self._next = 0

    def begins_task(self) -> None:
        """Note that a request has begun a task, whose work comes in a later turn."""
        self._slice_left -= TASK_COST

    def drop(self) -> None:
        """Forget the requests that wait."""
        self._frames = []
        self._next = self.waiting_bytes = 0

    def block(self, connection: Connection, reason: int) -> None:
        """Neither read nor serve, because of CONGESTED or FULL."""
        self.blocked |= reason
        self.settle(connection)

    def unblock(self, connection: Connection, reason: int) -> None:
        """Go on, unless there is another reason not to."""
        self.blocked &= ~reason
        self.settle(connection)

    def settle(self, connection: Connection) -> None:
        """Have the connection read, or wait in a line, or neither, as the table of this module says."""
        if connection.closed:
            return
        waits = self._rests or self._next < len(self._frames)
        if waits and not self.blocked and not self._in_line:
            self._in_line = True
            self._administers = self._first_administers()
            self.turns.join(connection, self._line())
        reads = not waits and not self.blocked
        if reads != self.is_reading:
            self.is_reading = reads
            connection.set_reading(reads)

    def _line(self) -> int:
        if self._administers:
            return ADMINISTRATION
        return MANY if self._rests or not _are_few(self._frames) else FEW

    def _first_administers(self) -> bool:
        """Return whether the first request that waits runs or inspects the cluster."""
        if not self.waits:
            return False
        try:
            return peek_code(self._frames[self._next]) in self._administration
        except ProtocolError:  # it is raised again when it is the request's turn
            return False


def _are_few(frames: list[Frame]) -> bool:
    """Return whether requests are as few, and as small, as those of a client that waits for answers."""
    return len(frames) <= _SMALL_COUNT and _bytes_of(frames) < _SMALL_BYTES


def _bytes_of(frames: list[Frame]) -> int:
    """Return how much memory requests take."""
    size = len(frames) * _FRAME_BYTES
    for frame in frames:
        size += len(frame.header) + len(frame.body)
    return size
