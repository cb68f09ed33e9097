"""Time as a parameter, so that a test can hand out its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time, ms since the epoch."""

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


SYSTEM_CLOCK = SystemClock()
