"""Remember the rates of topics while somebody looks at them: brokers keep no history of a topic."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

# For one topic: an hour at the rate at which a page refreshes.
_SAMPLES: Final = 720
_MOST_TOPICS: Final = 64
_SHORTEST_MS: Final = 4_000
# After a longer pause the line has a gap, because nobody looked.
_GAP_MS: Final = 15_000


class TopicTrends:
    """Keeps the newest rates of the topics that were looked at last. For the loop's thread only."""

    def __init__(self) -> None:
        self._samples: OrderedDict[str, deque[tuple[int, float | None]]] = OrderedDict()

    def add(self, topic: str, now_ms: int, per_s: float | None) -> list[list[float | None]]:
        """Note a rate, None if it is not known, and return the seconds and rates that are kept."""
        samples = self._samples.setdefault(topic, deque(maxlen=_SAMPLES))
        self._samples.move_to_end(topic)
        if len(self._samples) > _MOST_TOPICS:
            self._samples.popitem(last=False)
        pause_ms = now_ms - samples[-1][0] if samples else _SHORTEST_MS
        if pause_ms > _GAP_MS:
            samples.append((samples[-1][0] + 1000, None))
        if pause_ms >= _SHORTEST_MS:
            samples.append((now_ms, None if per_s is None else round(per_s, 1)))
        return [[at_ms // 1000 for at_ms, _ in samples], [rate for _, rate in samples]]
