"""Clocks that are passed as parameters, so that a test can pass its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

from cometmq.logs.loggers import get_logger

log = get_logger(__name__)

# How often a `SteadyClock` compares itself with the wall clock, in seconds.
_LOOK_EVERY_S: Final = 0.1
# Milliseconds by which a `SteadyClock` advances in a second. While it is ahead of the wall clock it
# goes slower, so that the two meet again: it makes up for an hour in four days, and meanwhile a
# delay of ten seconds takes a tenth of a second longer.
_RATE: Final = 1000.0
_CATCHING_UP_RATE: Final = 990.0
# A `SteadyClock` that is ahead by no more than this keeps its rate: two readings of the same clock
# can differ that much.
_NOISE_MS: Final = 5
# So many readings take longer than a millisecond: `_next_ms` stops waiting for the next one then.
_READINGS_OF_A_MS: Final = 20_000
# After so many readings a clock of the machine has moved on, by nanoseconds at least.
_READINGS_OF_A_MOMENT: Final = 20
# A smaller difference between the clocks is neither logged nor used to correct clients' times.
SKEW_MS: Final = 1000


class Clock(Protocol):
    """Reads the time. In a simulation `monotonic` is the loop's own `time`."""

    def now_ms(self) -> int:
        """Return the wall time in ms since the epoch."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never jumps."""


class BlockingClock(Clock, Protocol):
    def sleep(self, seconds: float, /) -> None:
        """Pause the calling thread. Not for a thread that runs a loop."""


class SystemClock:
    # The functions themselves, not methods around them: frequent callers save a call.
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


SYSTEM_CLOCK = SystemClock()


def work_clock(monotonic: Callable[[], float]) -> Callable[[], float]:
    """Return a function that returns the processor time of the calling thread in seconds.

    Unlike the clock it does not go on while the thread waits for the disk, the interpreter or a
    processor. A reading takes 0.3 µs, five times as long. Where time is virtual it is that time.
    """
    return time.thread_time if monotonic is SYSTEM_CLOCK.monotonic else monotonic


class SteadyClock:
    """Follows the wall clock forward and never goes back.

    This clock advances with `monotonic` and compares itself with the wall clock every 0.1 s. The
    comparison has one of these outcomes:

    - The wall clock is ahead, because somebody set it forward or the machine slept. This clock
      jumps forward to the same time.
    - The wall clock is behind, because somebody set it back. This clock goes on from where it is,
      one per cent slower until the two agree again. So a wait for a time that was computed with
      this clock ends when that much time has passed, although the wall clock was set back.

    To compare with times that others took from the wall clock, such as those of files, use the wall
    clock itself.
    """

    __slots__ = ("_base_ms", "_base_s", "_look_at_s", "_rate", "_wall", "monotonic", "sleep")

    def __init__(self, wall: BlockingClock) -> None:
        self._wall = wall
        self.monotonic = wall.monotonic
        self.sleep = wall.sleep
        self._base_ms = float(_next_ms(wall))
        self._base_s = self.monotonic()
        self._rate = _RATE
        self._look_at_s = self._base_s + _LOOK_EVERY_S

    def now_ms(self) -> int:
        """Return ms since the epoch: correct if the wall clock was when it was furthest ahead."""
        now_s = self.monotonic()
        if now_s >= self._look_at_s:
            now_s = self._look()
        return int(self._base_ms + (now_s - self._base_s) * self._rate)

    def start_from(self, reached_ms: int) -> None:
        """Go on from `reached_ms`, which an earlier run had reached, if that is ahead."""
        now_ms = self.now_ms()
        if reached_ms - now_ms >= SKEW_MS:
            log.warning(
                "the system's clock is behind the newest message; the broker's time goes on from "
                "that message, 1% slower until the clocks agree",
                behind=str(timedelta(milliseconds=reached_ms - now_ms)),
            )
        if reached_ms > now_ms:
            self._go_on_from(self.monotonic(), reached_ms, _CATCHING_UP_RATE)

    def ahead_ms(self) -> int:
        """Return the ms by which this clock is ahead of the wall clock, or 0 below SKEW_MS."""
        ahead_ms = self.now_ms() - self._wall.now_ms()
        return ahead_ms if ahead_ms >= SKEW_MS else 0

    def _look(self) -> float:
        """Compare this clock with the wall clock, and return the time of `monotonic` then."""
        began_s = self.monotonic()
        wall_ms = self._wall.now_ms()
        now_s = self.monotonic()
        if (now_s - began_s) * 1000 > _NOISE_MS:
            # The thread was held up between the readings, so they are not of one time. The next
            # call looks again. Otherwise this clock would go ahead by that time, and make up for a
            # second in two minutes, or it would say that somebody had set the wall clock.
            return now_s
        own_ms = self._base_ms + (now_s - self._base_s) * self._rate
        ahead_ms = own_ms - wall_ms
        if ahead_ms <= -SKEW_MS:
            log.warning(
                "the system's clock was set forward, or the machine slept; so is the broker's time",
                by=str(timedelta(milliseconds=-int(ahead_ms))),
            )
        elif ahead_ms >= SKEW_MS and self._rate == _RATE:
            log.warning(
                "the system's clock was set back; the broker's time goes on, 1% slower until the "
                "clocks agree",
                by=str(timedelta(milliseconds=int(ahead_ms))),
            )
        rate = _CATCHING_UP_RATE if ahead_ms > _NOISE_MS else _RATE
        self._go_on_from(now_s, max(own_ms, wall_ms), rate)
        return now_s

    def _go_on_from(self, now_s: float, now_ms: float, rate: float) -> None:
        self._base_s, self._base_ms, self._rate = now_s, now_ms, rate
        self._look_at_s = now_s + _LOOK_EVERY_S


def _next_ms(wall: Clock) -> int:
    """Wait until the wall clock's next millisecond begins and return it.

    A reading at any other moment is rounded down: a clock that starts from it would be up to 1 ms
    behind. A virtual clock stands still while code runs, so there is nothing to wait for.
    """
    first = now = wall.now_ms()
    began_s = wall.monotonic()
    for reading in range(_READINGS_OF_A_MS):
        if reading == _READINGS_OF_A_MOMENT and wall.monotonic() == began_s:
            break
        now = wall.now_ms()
        if now != first:
            break
    return now


def ahead_ms(clock: Clock) -> int:
    """Return the ms to add to a time that a client took from its own clock.

    The sum can be compared with the times of `clock`.
    """
    return clock.ahead_ms() if isinstance(clock, SteadyClock) else 0
