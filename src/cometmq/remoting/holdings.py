"""Bound the bytes that all connections of a server hold, and close those that hold too many.

A connection holds: the bytes of a frame that has not arrived completely; requests that wait for
their answer, or until the peer reads earlier answers; answers that the kernel has not taken yet.
Each connection has limits of its own; this module adds a limit for all of them together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from cometmq.logs.loggers import get_logger

log = get_logger(__name__)

DEFAULT_LIMIT_BYTES: Final = 256 * 1024 * 1024
# A peer that sends a frame or takes answers more slowly than this counts as standing still.
SLOW_BYTES_PER_S: Final = 16 * 1024
MEASURE_PERIOD_S: Final = 1.0
# Requests of fewer bytes are not counted while they wait for their answer, and a connection reports
# written bytes only when they are this many. The number of waiting requests and of connections is
# bounded, too, so the bytes that are not counted are bounded as well.
WORTH_COUNTING_BYTES: Final = 4096
# Connections are closed until one eighth of the limit is free, so that the next read does not exceed
# it again.
_FREED_PART: Final = 8
# So many are closed at once if that is enough to hold the limit, the others in the next turns of the
# loop: each gets an answer and a line in the log.
_CUT_AT_ONCE: Final = 8
# Unsent bytes are measured each second, and when one eighth of the limit was written meanwhile.
_UNMEASURED_PART: Final = 8


class Holder(Protocol):
    """The part of a connection that this module needs."""

    peer: str
    holding: Holding

    @property
    def unsent_bytes(self) -> int: ...

    def cut(self, reason: str, *, limit: str) -> None: ...


class Holding:
    """Counts what one connection holds, and since when.

    The connection reports each change and passes itself along. A `Holding` keeps no reference to its
    connection: such a cycle would keep the memory until the garbage collector runs.
    """

    __slots__ = (
        "_measured_at",
        "_of_all",
        "_over",
        "_taken",
        "_unsent_since",
        "_written",
        "frame_began",
        "kept",
        "received",
        "unsent",
    )

    def __init__(self, of_all: Holdings | None) -> None:
        # In bytes: what was received; the part of it in requests that will be answered later; the
        # unsent answers when they were measured last.
        self.received = 0
        self.kept = 0
        self.unsent = 0
        self._over = False
        # When the first byte of the unfinished frame came; 0 if no frame is unfinished.
        self.frame_began = 0.0
        self._of_all = of_all
        self._unsent_since = self._measured_at = 0.0
        # Bytes handed to the transport, and how many of them it has passed on.
        self._written = self._taken = 0

    def receives(
        self, holder: Holder, unfinished: int, deferred: int, now: float, *, new_frame: bool
    ) -> None:
        """Note how many bytes of an unfinished frame and of deferred requests are held after a read.

        With `new_frame` the unfinished frame began with this read.
        """
        if not unfinished:
            self.frame_began = 0.0
        elif new_frame or not self.frame_began:
            self.frame_began = now
        more = unfinished + deferred + self.kept - self.received
        self.received += more
        if more and self._of_all is not None:
            self._of_all.received(holder, more)

    def keeps(self, holder: Holder, more: int) -> None:
        """Add `more` bytes of requests that will be answered later, or subtract with a minus."""
        if self._of_all is not None and not self._over:
            self.kept += more
            self.received += more
            self._of_all.received(holder, more)

    def writes(self, holder: Holder, size: int) -> None:
        """Note that `size` bytes were handed to the transport, which may not pass them on at once."""
        if self._of_all is not None and not self._over:
            self._written += size
            self._of_all.wrote(holder, size)

    def forget(self, holder: Holder) -> None:
        """Drop all counts, because the connection is lost or closed. Idempotent."""
        if self._of_all is not None:
            self._of_all.gone(holder)
        self.received = self.kept = self.unsent = 0
        self.frame_began = 0.0
        self._over = True

    def measure(self, unsent: int, now: float) -> None:
        """Note that the transport holds `unsent` bytes, and judge whether the peer takes answers."""
        taken = self._written - unsent
        if not self.unsent or taken - self._taken >= SLOW_BYTES_PER_S * (now - self._measured_at):
            self._unsent_since = now
        self._taken, self._measured_at, self.unsent = taken, now, unsent

    def byte_seconds(self, now: float) -> float:
        """Return the bytes that are held, each times the seconds for which they have been held.

        A frame counts from its first byte. Answers, and requests that wait until the peer reads
        them, count from the moment when the peer last took any. Requests that will be answered
        later count as one second.
        """
        unsent_s = now - self._unsent_since
        received_s = now - self.frame_began if self.frame_began else unsent_s
        # The hundredth of a second orders those that began just now by their size.
        arriving = (self.received - self.kept) * (received_s + 0.01)
        return arriving + self.kept + self.unsent * (unsent_s + 0.01)


class Holdings:
    """The bound on the bytes that all connections of a server, or of several listeners, hold.

    If they hold too much, the connections with the most bytes times seconds are closed first. A
    sender whose frame arrives at the speed of its link holds nothing for long, however large the
    frame is. For the loop's thread only.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.received_bytes = 0
        self.unsent_bytes = 0
        self._unmeasured = 0
        self._measure_due = False
        # A dict, because it has an order: a set would order them by their addresses.
        self._holders: dict[Holder, None] = {}
        # Is called when a connection holds something and none did before.
        self.on_use: list[Callable[[], None]] = []
        # Holders that are being cut, the one with most bytes for longest first, and the bytes that all
        # held when these were found.
        self._guilty: deque[Holder] = deque()
        self._found_bytes = 0
        self._cut_due = False

    @property
    def total_bytes(self) -> int:
        """Return the bytes that are held; the unsent ones are those that `measure` found last."""
        return self.received_bytes + self.unsent_bytes

    def received(self, holder: Holder, more: int) -> None:
        """Add `more` bytes that were received and are held, or subtract with a minus."""
        self.received_bytes += more
        self._use(holder)
        if more > 0 and self.total_bytes > self.limit_bytes:
            if self._guilty:
                self._cut()
            if self.total_bytes > self.limit_bytes:
                self.measure()  # peers may have taken answers meanwhile

    def wrote(self, holder: Holder, size: int) -> None:
        """Note that up to `size` more bytes are unsent."""
        self._use(holder)
        self._unmeasured += size
        if self._unmeasured * _UNMEASURED_PART > self.limit_bytes and not self._measure_due:
            self._measure_due = True
            asyncio.get_running_loop().call_soon(self.measure)

    def _use(self, holder: Holder) -> None:
        if not self._holders:
            for call in self.on_use:
                call()
        self._holders[holder] = None

    def gone(self, holder: Holder) -> None:
        """Forget what `holder` holds. Idempotent."""
        if holder in self._holders:
            del self._holders[holder]
            self.received_bytes -= holder.holding.received
            self.unsent_bytes -= holder.holding.unsent

    @property
    def is_idle(self) -> bool:
        """Whether `measure` has nothing to do until a connection holds something."""
        return not self._holders

    def measure(self) -> None:
        """Ask the transports for their unsent bytes, and cut connections if all hold too much."""
        self._measure_due = False
        self._unmeasured = self.unsent_bytes = 0
        now = asyncio.get_running_loop().time()
        for holder in tuple(self._holders):
            unsent = holder.unsent_bytes
            holder.holding.measure(unsent, now)
            self.unsent_bytes += unsent
            if not unsent and not holder.holding.received:
                del self._holders[holder]
        if self.total_bytes > self.limit_bytes:
            self._found_bytes = self.total_bytes
            self._guilty = deque(
                sorted(self._holders, key=lambda each: each.holding.byte_seconds(now), reverse=True)
            )
            self._cut()

    def _cut_later(self) -> None:
        self._cut_due = False
        self._cut()

    def _cut(self) -> None:
        """Cut connections until the limit holds, and then some more in the next turns."""
        goal = self.limit_bytes - self.limit_bytes // _FREED_PART
        count = 0
        while self._guilty and self.total_bytes > goal:
            if count >= _CUT_AT_ONCE and self.total_bytes <= self.limit_bytes:
                if not self._cut_due:
                    self._cut_due = True
                    asyncio.get_running_loop().call_soon(self._cut_later)
                return
            holder = self._guilty.popleft()
            if holder not in self._holders:
                continue  # its connection is gone
            count += 1
            log.warning(
                "connection closed: too many bytes in flight",
                peer=holder.peer,
                held=holder.holding.received + holder.holding.unsent,
                held_by_all=self._found_bytes,
                limit=f"maxBytesInFlight={self.limit_bytes}",
                remedy="see why that peer does not finish its frames or read its answers, or raise "
                "the limit",
            )
            holder.cut(
                f"the connections to this server hold {self._found_bytes} bytes, the limit "
                f"maxBytesInFlight is {self.limit_bytes}, and this one has held most for longest; "
                "send again in a moment",
                limit="maxBytesInFlight",
            )
        self._guilty.clear()
