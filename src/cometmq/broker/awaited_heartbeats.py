"""Pulls that run ahead of the heartbeat that announces their subscription.

A Java consumer gives its subscription a new version whenever its queues change, and sends the
heartbeat that says so and the first pulls at the same time, over one connection but from different
threads. A pull that comes first would be refused, and the consumer would then leave that queue alone
for three seconds (DefaultMQPushConsumerImpl.pullTimeDelayMillsWhenException).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.codes import ResponseCode

HEARTBEAT_WAIT_S: Final = 1.0
MAX_WAITING: Final = 10_000

# The refusals that a heartbeat which is on its way makes good.
AHEAD: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_LATEST, ResponseCode.FILTER_DATA_NOT_LATEST}
)


# Answers a pull, unless it is still ahead and may wait on (`final` is false): then it returns False.
# Must not raise.
Serve = Callable[[bool], bool]


class _Waiting:
    __slots__ = ("serve", "timer")

    def __init__(self, serve: Serve, timer: asyncio.TimerHandle) -> None:
        self.serve = serve
        self.timer = timer


class AwaitedHeartbeats:
    """Lets such pulls wait for heartbeats of their group, HEARTBEAT_WAIT_S at most. For the loop's
    thread only.
    """

    def __init__(self) -> None:
        self._groups: dict[str, list[_Waiting]] = {}
        self._count = 0

    def hold(self, group: str, serve: Serve) -> bool:
        """Let a pull wait; False when MAX_WAITING others do, and it is to be refused now."""
        if self._count >= MAX_WAITING:
            return False
        loop = asyncio.get_running_loop()
        timer = loop.call_later(HEARTBEAT_WAIT_S, self._give_up_oldest, group)
        self._groups.setdefault(group, []).append(_Waiting(serve, timer))
        self._count += 1
        return True

    def heard(self, group: str, _subscriptions: list[SubscriptionData]) -> None:
        """A heartbeat of the group is being taken in: what waits is tried when that is done."""
        if group in self._groups:
            asyncio.get_running_loop().call_soon(self._try, group)

    def _try(self, group: str) -> None:
        waiting = self._groups.pop(group, [])
        kept = [each for each in waiting if not each.serve(False)]
        for each in waiting:
            if each not in kept:
                each.timer.cancel()
        self._count -= len(waiting) - len(kept)
        if kept:
            self._groups[group] = kept

    def _give_up_oldest(self, group: str) -> None:
        """All wait equally long, so the timer that went off is that of the first."""
        waiting = self._groups[group]
        oldest = waiting.pop(0)
        if not waiting:
            del self._groups[group]
        self._count -= 1
        oldest.serve(True)
