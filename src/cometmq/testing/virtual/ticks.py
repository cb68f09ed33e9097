"""Leave out the calls of periodic work that would find nothing to do.

An idle broker looks twenty times a second whether there is something to flush, to index or to
count. In virtual time such looks would be nearly all that happens: two hours of a delay would be
150,000 of them. Periodic work says until when it needs no call unless something happens. As long as
nothing does, the loop moves its next call on by whole periods. So the time of each call that is made
is the same as without.

What happens is every callback of the loop, except those of periodic work itself: what that causes, a
flush or a message, has callbacks of its own. What it changes without any callback is seen by other
periodic work because a call that was made after something happened is followed by one more round.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from contextvars import Context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.testing.virtual.loop import VirtualLoop


class _Sleeper:
    """Is one piece of periodic work that waits for its next call."""

    __slots__ = ("echoes", "events", "future", "period_s", "quiet_until_s")

    def __init__(
        self,
        future: asyncio.Future[None],
        period_s: float,
        quiet_until_s: float,
        events: int,
        echoes: int,
    ) -> None:
        self.future = future
        self.period_s = period_s
        self.quiet_until_s = quiet_until_s
        self.events = events
        self.echoes = echoes


class Ticks:
    """Wakes the periodic work of all nodes of a loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._sleepers: list[tuple[float, int, _Sleeper]] = []
        self._slept = 0
        # Contexts of periodic work, by their addresses, which nothing but `is_event` looks at.
        self._contexts: dict[int, Context] = {}
        self.events = 0
        self._echoes = 0

    def is_event(self, context: Context) -> bool:
        """Return whether a callback in this context is more than periodic work."""
        return id(context) not in self._contexts

    def sleep(self, period_s: float, quiet_until_s: float) -> asyncio.Future[None]:
        """Return a future that is done after a period, or after more if nothing happens.

        Both are in the time of the loop. Until `quiet_until_s` calls may be left out.
        """
        loop = self._loop
        future: asyncio.Future[None] = loop.create_future()
        sleeper = _Sleeper(future, period_s, quiet_until_s, self.events, self._echoes)
        self._push(loop.now_s + period_s, sleeper)
        return future

    def wake_next(self, before_s: float) -> bool:
        """Wake whatever is to be called next, if that is before `before_s`; say whether there was.

        The time of the loop goes on to that of the call.
        """
        sleepers = self._sleepers
        while sleepers and sleepers[0][0] <= before_s:
            when_s, _, sleeper = heapq.heappop(sleepers)
            if sleeper.future.done():
                continue  # it was cancelled
            if sleeper.events != self.events:
                self._echoes += 1
            elif sleeper.echoes == self._echoes and when_s < sleeper.quiet_until_s:
                self._put_off(when_s, sleeper, before_s)
                continue
            self._wake(when_s, sleeper)
            return True
        return False

    def _put_off(self, when_s: float, sleeper: _Sleeper, before_s: float) -> None:
        needed_s = min(before_s, sleeper.quiet_until_s)
        if needed_s == math.inf:
            return  # nothing will ever happen
        periods = max(1, math.ceil((needed_s - when_s) / sleeper.period_s))
        self._push(when_s + periods * sleeper.period_s, sleeper)

    def _wake(self, when_s: float, sleeper: _Sleeper) -> None:
        self._loop.now_s = max(self._loop.now_s, when_s)
        sleeper.future.set_result(None)
        context = self._loop.newest_context()
        self._contexts[id(context)] = context

    def _push(self, when_s: float, sleeper: _Sleeper) -> None:
        self._slept += 1
        heapq.heappush(self._sleepers, (when_s, self._slept, sleeper))
