"""At most so many messages in a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

# Of one lane: so many seconds' worth may be sent at once.
BURST_S: Final = 0.25


class Pacer:
    """Lets through `rate` messages a second, None: all. It begins when the first one is asked for.

    A share of what is allowed that was not used is lost: after a wait for a broker the rate is not
    exceeded to catch up. For one loop; `clock` in seconds and `sleep` are asyncio's.
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
        """How many may go together at most, without a burst that anybody would notice."""
        return limit if self._rate is None else max(1, min(limit, int(self._rate * BURST_S)))

    async def take(self, count: int) -> None:
        """Return when `count` more messages may be sent."""
        if self._rate is None:
            return
        now = self._now()
        begin = now if self._free_at is None else max(now, self._free_at)
        # They take up their time from `begin` on, and the next ones begin behind it.
        self._free_at = begin + count / self._rate
        if begin > now:
            await self._sleep(begin - now)

    def _now(self) -> float:
        return asyncio.get_running_loop().time() if self._clock is None else self._clock()


def share_rate(
    rate: float | None, lanes: Sequence[tuple[int, ...]], counts: Mapping[int, int]
) -> list[float | None]:
    """Each lane's part of `rate`, so that all are done at the same time and their sum is `rate`."""
    if rate is None:
        return [None] * len(lanes)
    loads = [sum(counts[target] for target in lane) for lane in lanes]
    return [rate * load / sum(loads) for load in loads]
