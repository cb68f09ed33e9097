"""Log one line for all events of a kind within some seconds, such as refusals in a flood."""

from __future__ import annotations

import asyncio
import math
from typing import Final

EVERY_S: Final = 10.0


class RareLine:
    """Counts events, and says when to log a line for them: at once for the first, then every
    `every_s` seconds at most.
    """

    __slots__ = ("_count", "_every_s", "_logged_s")

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._count = 0
        self._logged_s = -math.inf

    def count(self, now_s: float | None = None) -> int:
        """Count an event; return how many the line stands for if one is due now, else 0."""
        self._count += 1
        now_s = asyncio.get_running_loop().time() if now_s is None else now_s
        if now_s - self._logged_s < self._every_s:
            return 0
        count, self._count = self._count, 0
        self._logged_s = now_s
        return count
