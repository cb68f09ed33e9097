"""Keep how much a counter grew in the last minute, hour and day, by sampling it (Java: StatsItem).

A counter is a tuple of totals that only grow. All counters are sampled together, as often as each
window says. An item keeps the totals only of those samples at which they had changed, so that a
counter that rests takes no work and little memory.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

Totals = tuple[int, ...]

SAMPLE_PERIOD_S: Final = 10.0


class WindowLength(NamedTuple):
    """Says how long a window is: so many periods of so many samples each."""

    samples: int
    periods: int


# Java samples a minute every 10 s, an hour every 10 minutes and a day every hour.
WINDOWS: Final = (WindowLength(1, 6), WindowLength(60, 6), WindowLength(360, 24))
# Places in WINDOWS.
MINUTE: Final = 0
HOUR: Final = 1
DAY: Final = 2


class Growth(NamedTuple):
    """How much the totals of a counter grew within `length_s`, 0 before the first sample."""

    totals: Totals
    length_s: float


class StatsItem:
    """Holds the samples of one counter of `width` totals, by window.

    The first sample of a window counts as if the totals had been 0 one period earlier, as in Java.
    """

    __slots__ = ("_samples", "width")

    def __init__(self, width: int) -> None:
        # Of each window, oldest first: the number of the sample and the totals.
        self._samples = tuple(array("q") for _ in WINDOWS)
        self.width = width

    def add(self, window: int, number: int, totals: Totals) -> None:
        """Keep the totals of sample `number` of a window, if they have changed."""
        samples, size = self._samples[window], self.width + 1
        if not samples:
            samples.extend((number - 1, *(0,) * self.width))
        elif tuple(samples[-self.width :]) == totals:
            return
        samples.extend((number, *totals))
        # A reader asks for the growth up to the sample before this one until all have this one.
        oldest = number - 1 - WINDOWS[window].periods
        while len(samples) > size and samples[size] <= oldest:
            del samples[:size]

    def last_change(self, window: int) -> int:
        """Return the number of the last sample at which the totals had changed; -1 if none."""
        samples = self._samples[window]
        return samples[-1 - self.width] if samples else -1

    def at(self, window: int, number: int) -> tuple[int, Totals] | None:
        """Return the newest sample kept up to `number`, else the oldest, as number and totals;
        None if there is none.
        """
        samples, size = self._samples[window], self.width + 1
        place = len(samples) - size
        if place < 0:
            return None
        while place and samples[place] > number:
            place -= size
        return samples[place], tuple(samples[place + 1 : place + size])


class Sampler:
    """Counts the samples of each window and knows when they were taken."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._count = 0
        # The number of each window's last complete sample, and the times of the last ones.
        self._numbers = [0] * len(WINDOWS)
        self._times_s = [deque[float](maxlen=window.periods + 1) for window in WINDOWS]

    def sample(self, counters: Iterator[tuple[StatsItem, Totals]]) -> Iterator[StatsItem]:
        """Sample the counters in the windows whose period is over; yield each item afterwards.

        The sample counts when all of them are done.
        """
        now_s = self._monotonic()
        due = [i for i, window in enumerate(WINDOWS) if self._count % window.samples == 0]
        for item, totals in counters:
            for window in due:
                item.add(window, self._numbers[window] + 1, totals)
            yield item
        for window in due:
            times_s = self._times_s[window]
            if not times_s:
                times_s.append(now_s - WINDOWS[window].samples * SAMPLE_PERIOD_S)
            times_s.append(now_s)
            self._numbers[window] += 1
        self._count += 1

    def rest(self, item: StatsItem) -> int:
        """Return for how many samples of the minute the totals have not changed."""
        changed = item.last_change(MINUTE)
        return self._numbers[MINUTE] - changed if changed >= 0 else 0

    def growth(self, item: StatsItem, window: int) -> Growth:
        """Return how much a counter has grown in a window, up to the window's last sample."""
        number, times_s = self._numbers[window], self._times_s[window]
        last = item.at(window, number)
        first = item.at(window, number - WINDOWS[window].periods)
        if last is None or first is None or not times_s:
            return Growth((0,) * item.width, 0.0)
        periods = min(WINDOWS[window].periods, number - first[0])
        grown = tuple(b - a for a, b in zip(first[1], last[1], strict=True))
        return Growth(grown, times_s[-1] - times_s[-1 - periods])
