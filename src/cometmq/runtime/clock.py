"""Time as a parameter, so that a test can hand out its own."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final, Protocol

import structlog

log = structlog.get_logger(__name__)

# How often a `SteadyClock` compares itself with the wall clock, in seconds.
_LOOK_EVERY_S: Final = 0.1
# Milliseconds that pass on a `SteadyClock` in a second: as many, and while it is ahead of the wall
# clock, so that the two meet again: an hour is made up for in four days, and a delay of ten seconds
# takes a tenth of a second longer meanwhile.
_RATE: Final = 1000.0
_CATCHING_UP_RATE: Final = 990.0
# Two readings of the same clock differ by so much for no reason that matters.
_NOISE_MS: Final = 5
# Readings that take longer than a millisecond, while one waits for the next one to begin.
_READINGS_OF_A_MS: Final = 20_000
# A difference that is worth a line in the log, and that times given by clients are corrected by.
SKEW_MS: Final = 1000


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time, ms since the epoch."""

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps."""


class SystemClock:
    # A call less for those who ask often.
    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


SYSTEM_CLOCK = SystemClock()


class SteadyClock:
    """Tell a time that follows the wall clock forward and never goes back.

    Between two looks at the wall clock time passes as `monotonic` says. A look finds one of these:

    - The wall clock is ahead, because it was set forward or the machine slept. So is this one then.
    - The wall clock is behind, because it was set back. This clock goes on from where it is, one
      per cent slower until the two agree again. What waits for a time that was computed with this
      clock is due after the time that has passed, whatever became of the wall clock.

    Use the wall clock itself for what others have measured with it, such as the times of files.
    """

    __slots__ = ("_base_ms", "_base_s", "_look_at_s", "_rate", "_wall", "monotonic")

    def __init__(self, wall: Clock) -> None:
        self._wall = wall
        self.monotonic = wall.monotonic
        self._base_ms = float(_next_ms(wall))
        self._base_s = self.monotonic()
        self._rate = _RATE
        self._look_at_s = self._base_s + _LOOK_EVERY_S

    def now_ms(self) -> int:
        """Milliseconds since the epoch, as far as the wall clock was right when it was ahead most."""
        now_s = self.monotonic()
        if now_s >= self._look_at_s:
            self._look(now_s)
        return int(self._base_ms + (now_s - self._base_s) * self._rate)

    def start_from(self, reached_ms: int) -> None:
        """Go on from `reached_ms` if that is ahead: so far this clock had come in an earlier run."""
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
        """How far it is ahead of the wall clock; 0 for what is no more than noise."""
        ahead_ms = self.now_ms() - self._wall.now_ms()
        return ahead_ms if ahead_ms >= SKEW_MS else 0

    def _look(self, now_s: float) -> None:
        own_ms = self._base_ms + (now_s - self._base_s) * self._rate
        wall_ms = self._wall.now_ms()
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

    def _go_on_from(self, now_s: float, now_ms: float, rate: float) -> None:
        self._base_s, self._base_ms, self._rate = now_s, now_ms, rate
        self._look_at_s = now_s + _LOOK_EVERY_S


def _next_ms(wall: Clock) -> int:
    """The time just as a millisecond begins: by rounding a clock would be up to one behind."""
    first = now = wall.now_ms()
    for _ in range(_READINGS_OF_A_MS):
        now = wall.now_ms()
        if now != first:
            break
    return now


def ahead_ms(clock: Clock) -> int:
    """What to add to a time that a client took from its own clock, to compare it with `clock`'s."""
    return clock.ahead_ms() if isinstance(clock, SteadyClock) else 0
