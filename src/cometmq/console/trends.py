"""Keeps how the lags of groups go while somebody looks at them."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final


class LagTrends:
    """Keeps the lags of those groups that somebody looks at. For the loop's thread only."""

    GROUPS: Final = 200
    SAMPLES: Final = 720
    PERIOD_MS: Final = 4_000

    def __init__(self) -> None:
        self._trends: OrderedDict[str, deque[tuple[int, int]]] = OrderedDict()

    def add(self, group: str, at_ms: int, lag: int) -> None:
        """Keep a lag unless one was kept a moment ago."""
        trend = self._trends.setdefault(group, deque(maxlen=self.SAMPLES))
        if not trend or at_ms - trend[-1][0] >= self.PERIOD_MS:
            trend.append((at_ms, lag))
        self._trends.move_to_end(group)
        while len(self._trends) > self.GROUPS:
            self._trends.popitem(last=False)

    def of(self, group: str) -> list[list[float]]:
        """Return the points of a chart: seconds and lags."""
        trend = self._trends.get(group, ())
        return [[at_ms // 1000 for at_ms, _ in trend], [lag for _, lag in trend]]
