"""Let connections that bring many requests at once take turns on the loop.

One read may bring thousands of requests, and a loop that served them all would keep everybody else
waiting for as long. So a connection serves the requests of a read for one slice. What is left waits,
and the connection reads no more meanwhile. Connections with requests that wait are served in
rotation, a slice each, for one turn; then the loop sees to all that has come in the meantime. Who
brings few requests is so served at once, whatever others bring.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from cometmq.runtime.clock import SYSTEM_CLOCK

# For how long a connection is served without a break, and how much it may cost: a request costs 1,
# one that begins a task TASK_COST, because the task's work comes in the next turn, with that of all
# others that began. Time does not pass within a turn where it is virtual; the cost bounds it there.
SLICE_S: Final = 0.001
SLICE_COST: Final = 128
TASK_COST: Final = 32
# Answers of so many bytes end a slice, too: the kernel copies them when it ends.
SLICE_BYTES: Final = 256 * 1024
# For how long connections are served in rotation before the loop reads again.
TURN_S: Final = 0.002
TURN_COST: Final = 512


class Waiting(Protocol):
    """The part of a connection that this module needs."""

    def serve_slice(self) -> int:
        """Serve requests that wait for one slice; return their cost."""

    @property
    def has_work(self) -> bool:
        """Whether requests wait that can be served now."""


class ServingTurns:
    """The rotation of one server. For the loop's thread only."""

    def __init__(self, monotonic: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self.monotonic = monotonic
        self._waiting: deque[Waiting] = deque()
        self._is_due = False
        # When the reads of this turn of the loop have had TURN_S; 0 if none has begun.
        self._reads_until_s = 0.0

    @property
    def count(self) -> int:
        """How many connections wait."""
        return len(self._waiting)

    def is_spent(self) -> bool:
        """Begin to serve what a read brought; say whether it has to wait for its turn.

        It has to when other reads of this turn of the loop have taken TURN_S.
        """
        now_s = self.monotonic()
        if not self._reads_until_s:
            self._reads_until_s = now_s + TURN_S
            self._arm()
            return False
        return now_s >= self._reads_until_s

    def join(self, connection: Waiting) -> None:
        """Serve a connection in the next turn, and then again for as long as it has work."""
        self._waiting.append(connection)
        self._arm()

    def _arm(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._reads_until_s = 0.0
        self._is_due = False
        until_s = self.monotonic() + TURN_S
        left = TURN_COST
        while self._waiting and left > 0:
            connection = self._waiting.popleft()
            left -= connection.serve_slice()
            if connection.has_work:
                self._waiting.append(connection)
            if self.monotonic() >= until_s:
                break
        if self._waiting:
            self._arm()
