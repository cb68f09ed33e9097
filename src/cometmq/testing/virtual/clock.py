"""Keep the time of a node, whose clock may be set, and may go faster or slower than others."""

from __future__ import annotations

from typing import Final, Protocol

# 2023-11-14 22:13:20 UTC, the wall time at which every virtual loop begins.
EPOCH_MS: Final = 1_700_000_000_000


class LoopTime(Protocol):
    now_s: float


class NodeClock:
    """Follows the loop's time, `rate` times as fast; the wall clock is `skew_ms` ahead of that.

    The node's `loop.time()` and timers follow `monotonic`, too.
    """

    def __init__(self, loop: LoopTime) -> None:
        self._loop = loop
        self.rate = 1.0
        self.skew_ms = 0
        # The clock showed `_own_s` when the loop's time was `_loop_s`; it has drifted since.
        self._loop_s = 0.0
        self._own_s = 0.0

    def now_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return self._own_s + (self._loop.now_s - self._loop_s) * self.rate

    def at(self, loop_s: float) -> float:
        """Return what `monotonic` shows at a time of the loop, at the present rate."""
        return self._own_s + (loop_s - self._loop_s) * self.rate

    def sleep(self, seconds: float, /) -> None:
        """Return at once: there is one thread."""

    def loop_time(self, own_s: float) -> float:
        """Return the loop's time at which this clock will show `own_s`."""
        return self._loop_s + (own_s - self._own_s) / self.rate

    def skew(self, ms: int) -> None:
        """Make the wall clock jump by `ms`, back if that is negative."""
        self.skew_ms += ms

    def drift(self, rate: float) -> None:
        """Go `rate` times as fast as the loop's time from now on. Raises ValueError for a rate that
        is not above 0.
        """
        if not rate > 0:
            raise ValueError(f"a clock cannot go {rate!r} times as fast; give a rate above 0")
        self._own_s, self._loop_s = self.monotonic(), self._loop.now_s
        self.rate = rate
