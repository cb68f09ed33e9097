"""Leave out the calls of periodic work that would find nothing to do.

An idle broker looks 25 times a second whether there is something to flush, to index or to count. In
virtual time such looks would be nearly all that happens: two hours of a delay would be 180,000 of
them. Periodic work says, when its next call is due, for how long it would have nothing to do as
things are. Things stay as they are until the next timer of the loop. So the call is put off, by whole
periods, until then, and the calls that are made come at the same times as without.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING

from cometmq.testing.virtual.handles import NODE

if TYPE_CHECKING:
    from cometmq.testing.virtual.loop import VirtualLoop


class _Sleeper:
    """Is one piece of periodic work that waits for its next call. Times are those of the loop."""

    __slots__ = ("context", "future", "node", "period_s", "quiet_s")

    def __init__(
        self, future: asyncio.Future[None], period_s: float, quiet_s: Callable[[], float]
    ) -> None:
        self.future = future
        self.period_s = period_s
        self.quiet_s = quiet_s
        self.context = copy_context()
        self.node = NODE.get()


class Ticks:
    """Wakes the periodic work of all nodes of a loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._sleepers: list[tuple[float, int, _Sleeper]] = []
        self._slept = 0

    def sleep(self, period_s: float, quiet_s: Callable[[], float]) -> asyncio.Future[None]:
        """Return a future that is done after a period, or more of them if all is quiet then."""
        node = NODE.get()
        rate = 1.0 if node is None else node.clock.rate
        future: asyncio.Future[None] = self._loop.create_future()
        period_s /= rate
        self._push(self._loop.now_s + period_s, _Sleeper(future, period_s, quiet_s))
        return future

    def wake_next(self, before_s: float) -> bool:
        """Wake whatever is to be called next, if that is before `before_s`; say whether there was.

        The time of the loop goes on to that of the call.
        """
        sleepers = self._sleepers
        while sleepers and sleepers[0][0] <= before_s:
            when_s, _, sleeper = heapq.heappop(sleepers)
            node = sleeper.node
            if sleeper.future.done() or (node is not None and node.is_killed):
                continue  # nobody waits for it any more
            self._loop.now_s = max(self._loop.now_s, when_s)
            quiet_s = sleeper.context.run(sleeper.quiet_s)
            if quiet_s <= 0:
                sleeper.future.set_result(None)
                return True
            needed_s = min(before_s, when_s + quiet_s / (1.0 if node is None else node.clock.rate))
            if needed_s < math.inf:  # else nothing will ever happen
                periods = max(1, math.ceil((needed_s - when_s) / sleeper.period_s))
                self._push(when_s + periods * sleeper.period_s, sleeper)
        return False

    def _push(self, when_s: float, sleeper: _Sleeper) -> None:
        self._slept += 1
        heapq.heappush(self._sleepers, (when_s, self._slept, sleeper))
