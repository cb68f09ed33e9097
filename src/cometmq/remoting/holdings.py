"""How many bytes the connections of a server hold, and which of them has to go when it is too much.

What counts: frames that have begun and not ended, requests that wait (for what they ask for, or until
their peer takes answers), and answers that the kernel has not taken. Each connection bounds its own;
this is the bound of all.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import structlog

log = structlog.get_logger(__name__)

DEFAULT_LIMIT_BYTES: Final = 256 * 1024 * 1024
# A peer that is slower, in sending a frame or in taking answers, counts as one that stands still.
SLOW_BYTES_PER_S: Final = 16 * 1024
MEASURE_PERIOD_S: Final = 1.0
# Smaller requests that are answered later are not counted, and so little that was written is not
# told of yet: requests that wait, and connections, are bounded by number too.
WORTH_COUNTING_BYTES: Final = 4096
# Cutting goes on until this part of the limit is free, so that the next read does not begin it anew.
_FREED_PART: Final = 8
# Unsent bytes are measured when this part of the limit may have come since, and each second.
_UNMEASURED_PART: Final = 8


class Holder(Protocol):
    """A connection, as far as it matters here."""

    peer: str
    holding: Holding

    @property
    def unsent_bytes(self) -> int: ...

    def cut(self, reason: str) -> None: ...


class Holding:
    """What one connection holds, and since when. The connection tells what changes, and names itself:
    a reference to it from here would keep its memory until the garbage collector comes.
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
        # Bytes of all that was received, among them those of requests to be answered later; bytes of
        # answers as last measured.
        self.received = 0
        self.kept = 0
        self.unsent = 0
        self._over = False
        # When the first byte of the unfinished frame came, 0 if there is none.
        self.frame_began = 0.0
        self._of_all = of_all
        self._unsent_since = self._measured_at = 0.0
        # What the transport was given, and how much of it the peer has taken.
        self._written = self._taken = 0

    def receives(
        self, holder: Holder, unfinished: int, deferred: int, now: float, *, new_frame: bool
    ) -> None:
        """After a read: what is held of a frame, which began with this read if it is a new one, and
        of requests that wait.
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
        """So many bytes more, or fewer, are those of requests that will be answered later."""
        if self._of_all is not None and not self._over:
            self.kept += more
            self.received += more
            self._of_all.received(holder, more)

    def writes(self, holder: Holder, size: int) -> None:
        """So many bytes were handed to the transport, which may keep them."""
        if self._of_all is not None and not self._over:
            self._written += size
            self._of_all.wrote(holder, size)

    def forget(self, holder: Holder) -> None:
        """The connection is lost or cut. Idempotent."""
        if self._of_all is not None:
            self._of_all.gone(holder)
        self.received = self.kept = self.unsent = 0
        self.frame_began = 0.0
        self._over = True

    def measure(self, unsent: int, now: float) -> None:
        """Tell how many bytes the transport has kept; shows whether the peer takes what it gets."""
        taken = self._written - unsent
        if not self.unsent or taken - self._taken >= SLOW_BYTES_PER_S * (now - self._measured_at):
            self._unsent_since = now
        self._taken, self._measured_at, self.unsent = taken, now, unsent

    def byte_seconds(self, now: float) -> float:
        """What it holds, times how long: of a frame since its first byte, of answers since the peer
        last took any. Requests that are answered later count as if they came a second ago.
        """
        unsent_s = now - self._unsent_since
        received_s = now - self.frame_began if self.frame_began else unsent_s
        # A hundredth of a second more: of those that began at this moment the largest is meant.
        arriving = (self.received - self.kept) * (received_s + 0.01)
        return arriving + self.kept + self.unsent * (unsent_s + 0.01)


class Holdings:
    """Of one server, or of listeners that share their memory. For the loop's thread only.

    Whoever has held most for longest goes first (bytes times seconds): a sender whose frame arrives
    at the speed of its link holds nothing for long, however large the frame.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.received_bytes = 0
        self.unsent_bytes = 0
        self._unmeasured = 0
        self._measure_due = False
        self._holders: set[Holder] = set()

    @property
    def total_bytes(self) -> int:
        """What is held; of unsent bytes what `measure` found last."""
        return self.received_bytes + self.unsent_bytes

    def received(self, holder: Holder, more: int) -> None:
        """So many bytes more are held of what was received, or fewer."""
        self.received_bytes += more
        self._holders.add(holder)
        if more > 0 and self.total_bytes > self.limit_bytes:
            self.measure()  # what was unsent may have been taken meanwhile

    def wrote(self, holder: Holder, size: int) -> None:
        """So many bytes more may be unsent."""
        self._holders.add(holder)
        self._unmeasured += size
        if self._unmeasured * _UNMEASURED_PART > self.limit_bytes and not self._measure_due:
            self._measure_due = True
            asyncio.get_running_loop().call_soon(self.measure)

    def gone(self, holder: Holder) -> None:
        """Forget what it holds. Idempotent."""
        if holder in self._holders:
            self._holders.remove(holder)
            self.received_bytes -= holder.holding.received
            self.unsent_bytes -= holder.holding.unsent

    def measure(self) -> None:
        """See what transports have kept, and cut connections if all hold too much."""
        self._measure_due = False
        self._unmeasured = self.unsent_bytes = 0
        now = asyncio.get_running_loop().time()
        for holder in tuple(self._holders):
            unsent = holder.unsent_bytes
            holder.holding.measure(unsent, now)
            self.unsent_bytes += unsent
            if not unsent and not holder.holding.received:
                self._holders.remove(holder)
        if self.total_bytes > self.limit_bytes:
            self._cut(now)

    def _cut(self, now: float) -> None:
        total = self.total_bytes
        goal = self.limit_bytes - self.limit_bytes // _FREED_PART
        by_guilt = sorted(
            self._holders, key=lambda each: each.holding.byte_seconds(now), reverse=True
        )
        for holder in by_guilt:
            if self.total_bytes <= goal:
                break
            log.warning(
                "connection closed: too many bytes in flight",
                peer=holder.peer,
                held=holder.holding.received + holder.holding.unsent,
                held_by_all=total,
                limit=f"maxBytesInFlight={self.limit_bytes}",
                remedy="see why that peer does not finish its frames or read its answers, or raise "
                "the limit",
            )
            holder.cut(
                f"the connections to this server hold {total} bytes, the limit is "
                f"maxBytesInFlight={self.limit_bytes}, and this one has held most for longest; "
                "send again in a moment"
            )
