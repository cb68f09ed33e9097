"""Measure and limit the bytes that a connection transfers per second (Java: FlowMonitor)."""

from __future__ import annotations

from typing import Final

_WINDOW_S: Final = 1.0
# Bytes that may be sent at once after a pause, as a part of a second's bytes.
_BURST_S: Final = 0.1
_LEAST_WAIT_S: Final = 0.001


class Speed:
    """Says how many bytes were counted in the last full second."""

    __slots__ = ("_began_s", "_count", "_last", "total")

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._count = self._last = 0
        # All bytes since the connection was made.
        self.total = 0

    def add(self, count: int, now_s: float) -> None:
        """Count bytes that were transferred now."""
        self._roll(now_s)
        self._count += count
        self.total += count

    def bytes_per_s(self, now_s: float) -> int:
        """Return the bytes of the last full second, 0 if nothing was counted in it."""
        self._roll(now_s)
        return self._last

    def _roll(self, now_s: float) -> None:
        passed_s = now_s - self._began_s
        if passed_s < _WINDOW_S:
            return
        self._last = self._count if passed_s < 2 * _WINDOW_S else 0
        self._count = 0
        self._began_s += passed_s // _WINDOW_S * _WINDOW_S


class Allowance:
    """Holds a connection to a number of bytes per second, which may change from call to call."""

    __slots__ = ("_left", "_seen_s")

    def __init__(self, now_s: float) -> None:
        self._seen_s = now_s
        self._left = 0.0

    def wait_s(self, size: int, bytes_per_s: int, now_s: float) -> float:
        """Return for how many seconds `size` bytes have to wait, 0 if they may be sent now.

        More than a tenth of a second's bytes are let through once the debt of the former ones is
        paid. So a batch that is larger than the limit passes, too, and the next one waits longer.
        """
        most = bytes_per_s * _BURST_S
        self._left = min(self._left + (now_s - self._seen_s) * bytes_per_s, most)
        self._seen_s = now_s
        missing = min(size, most) - self._left
        # Not for parts of a byte: a timer that short may find that no time has passed.
        return max(missing / bytes_per_s, _LEAST_WAIT_S) if missing >= 1 else 0.0

    def take(self, size: int) -> None:
        """Count bytes that are sent now."""
        self._left -= size
