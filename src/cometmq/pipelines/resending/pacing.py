"""Limit the messages sent per second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

# How many seconds' worth of messages may be sent at once in one lane.
BURST_S: Final = 0.25


class Pacer:
    """Lets through `rate` messages a second (None: all), from its first request on.

    An unused share is lost: after a wait for a broker, the pacer does not exceed the rate to catch
    up. For one loop; `clock` (in seconds) and `sleep` are asyncio's by default.
    """

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._free_at: float | None = None

    def most(self, limit: int) -> int:
        """Return how many messages may go together without a noticeable burst."""
        return limit if self._rate is None else max(1, min(limit, int(self._rate * BURST_S)))

    async def take(self, count: int) -> None:
        """Wait until `count` more messages may be sent."""
        if self._rate is None:
            return
        now = self._now()
        begin = now if self._free_at is None else max(now, self._free_at)
        # These messages use up their time from `begin` on, and the next ones begin after it.
        self._free_at = begin + count / self._rate
        if begin > now:
            await self._sleep(begin - now)

    def _now(self) -> float:
        return asyncio.get_running_loop().time() if self._clock is None else self._clock()


def share_rate(
    rate: float | None, lanes: Sequence[tuple[int, ...]], counts: Mapping[int, int]
) -> list[float | None]:
    """Divide `rate` among the lanes, such that all finish at the same time and the parts sum to
    `rate`.
    """
    if rate is None:
        return [None] * len(lanes)
    loads = [sum(counts[target] for target in lane) for lane in lanes]
    return [rate * load / sum(loads) for load in loads]
