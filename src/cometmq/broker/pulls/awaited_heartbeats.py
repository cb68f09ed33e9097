"""Hold pulls that run ahead of the heartbeat that announces their subscription.

A Java consumer gives its subscription a new version whenever its queues change. It sends the
heartbeat with the new version and the first pulls at the same time, over one connection but from
different threads. If the broker refused a pull that comes before the heartbeat, the consumer would
leave that queue alone for three seconds
(DefaultMQPushConsumerImpl.pullTimeDelayMillsWhenException).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.connection import Connection

HEARTBEAT_WAIT_S: Final = 1.0
MAX_PULLS_AHEAD: Final = 10_000
# Pulls tried in one turn of the loop; the answer to each may have some hundred kilobytes.
TRIED_PER_TURN: Final = 64

# A pull refused with one of these codes can be served once the heartbeat has come.
AHEAD: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_NOT_LATEST, ResponseCode.FILTER_DATA_NOT_LATEST}
)


# Called with `final`. Answers the pull and returns True, or returns False if the pull is still
# ahead of its heartbeat and `final` is false. An error that it raises closes the pull's connection.
Serve = Callable[[bool], bool]


class _Waiting:
    __slots__ = ("connection", "serve", "timer")

    def __init__(self, connection: Connection, serve: Serve) -> None:
        self.connection = connection
        self.serve = serve
        self.timer: asyncio.TimerHandle | None = None


class AwaitedHeartbeats:
    """Lets pulls wait for a heartbeat of their group, HEARTBEAT_WAIT_S at most.

    For the loop's thread only.
    """

    def __init__(self) -> None:
        # Called with the name of the limit for each pull that it does not allow to wait.
        self.on_limit: Callable[[str], None] = lambda _limit: None
        self._groups: dict[str, dict[_Waiting, None]] = {}
        # By group: the pulls still to be tried since its last heartbeat.
        self._to_try: dict[str, deque[_Waiting]] = {}
        self._heard_again: set[str] = set()
        self._count = 0

    def hold(self, group: str, connection: Connection, serve: Serve) -> bool:
        """Let a pull of `connection` wait. Return False if MAX_PULLS_AHEAD others wait: the caller refuses the pull."""
        if self._count >= MAX_PULLS_AHEAD:
            self.on_limit("MAX_PULLS_AHEAD")
            return False
        waiting = _Waiting(connection, serve)
        waiting.timer = asyncio.get_running_loop().call_later(
            HEARTBEAT_WAIT_S, self._give_up, group, waiting
        )
        self._groups.setdefault(group, {})[waiting] = None
        self._count += 1
        return True

    def heard(self, group: str) -> None:
        """Try the group's waiting pulls in the next turn: a heartbeat has been taken in."""
        if group in self._to_try:
            self._heard_again.add(group)
        elif group in self._groups:
            self._to_try[group] = deque(self._groups[group])
            asyncio.get_running_loop().call_soon(self._try, group)

    def _try(self, group: str) -> None:
        to_try = self._to_try[group]
        for _ in range(min(len(to_try), TRIED_PER_TURN)):
            waiting = to_try.popleft()
            if waiting in self._groups.get(group, ()) and self._is_served(waiting):
                assert waiting.timer is not None
                waiting.timer.cancel()
                self._forget(group, waiting)
        if to_try:
            asyncio.get_running_loop().call_soon(self._try, group)
            return
        del self._to_try[group]
        if group in self._heard_again:
            self._heard_again.discard(group)
            self.heard(group)

    @staticmethod
    def _is_served(waiting: _Waiting) -> bool:
        try:
            return waiting.serve(False)
        except Exception:  # noqa: BLE001 - the edge between a connection and all others
            waiting.connection.fail()
            return True

    def _give_up(self, group: str, waiting: _Waiting) -> None:
        self._forget(group, waiting)
        waiting.serve(True)

    def _forget(self, group: str, waiting: _Waiting) -> None:
        of_group = self._groups[group]
        del of_group[waiting]
        self._count -= 1
        if not of_group:
            del self._groups[group]
