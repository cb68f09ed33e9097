"""Count the messages that pass through a proxy, and derive their rates over the last minute."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

# How often `mark` is called.
MARK_S: Final = 10.0
_MARKS: Final = 6


class _Mark(NamedTuple):
    at_s: float
    stored: int
    delivered: int


class Throughput:
    """Counts messages that clients sent and received. For the loop's thread; `now_s` is the loop's time."""

    def __init__(self, now_s: float) -> None:
        self.stored = self.delivered = 0
        self._marks = deque([_Mark(now_s, 0, 0)], maxlen=_MARKS)

    def mark(self, now_s: float) -> None:
        """Remember the counts, and forget those of more than a minute ago."""
        self._marks.append(_Mark(now_s, self.stored, self.delivered))

    def rates(self, now_s: float) -> tuple[float, float]:
        """Return the messages a second, stored and delivered, of the last minute or since a later start."""
        begin = self._marks[0]
        seconds = max(now_s - begin.at_s, 1.0)
        return (self.stored - begin.stored) / seconds, (self.delivered - begin.delivered) / seconds
