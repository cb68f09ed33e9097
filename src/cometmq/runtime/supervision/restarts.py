"""Decide when a process that ended is started again."""

from __future__ import annotations

from typing import Final, NamedTuple

from cometmq.runtime.back_off import BackOff

# From this many deaths in a row on, the log calls a process one that dies at each start.
MANY: Final = 5


class Restart(NamedTuple):
    """When to start next, in seconds from now, and how many deaths in a row came before."""

    pause_s: float
    deaths: int
    # Says that this death made it one too many for a passing fault.
    is_hopeless: bool


class Restarts:
    """Counts one process's deaths. The pause doubles with each, up to `last_s`.

    A process that served for `steady_s` seconds begins again with `first_s`. All times are seconds
    of one steady clock.
    """

    def __init__(self, first_s: float, last_s: float, steady_s: float) -> None:
        self._back_off = BackOff(first_s, last_s)
        self._steady_s = steady_s
        self._deaths = 0
        self._ready_at: float | None = None

    def ready(self, now: float) -> None:
        """Note that the process serves."""
        self._ready_at = now

    def died(self, now: float) -> Restart:
        """Note that the process ended, and say when to start it again."""
        if self._ready_at is not None and now - self._ready_at >= self._steady_s:
            self._back_off.reset()
            self._deaths = 0
        self._ready_at = None
        self._deaths += 1
        return Restart(self._back_off.next_s(), self._deaths, self._deaths == MANY)
