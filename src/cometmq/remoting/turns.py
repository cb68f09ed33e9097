"""Let connections that bring many requests at once take turns on the loop.

One read may bring thousands of requests, and a loop that served them all would keep everybody else
waiting for as long. So a connection serves the requests of a read for one slice. What is left waits,
and the connection reads no more meanwhile. Connections with requests that wait are served in
rotation, a slice each, for one turn; then the loop sees to all that has come in the meantime. Who
brings few requests is so served at once, whatever others bring.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from cometmq.runtime.clock import SYSTEM_CLOCK

# For how long a connection is served without a break, and how much it may cost: a request costs 1,
# one that begins a task TASK_COST, because the task's work comes in the next turn, with that of all
# others that began. Time does not pass within a turn where it is virtual; the cost bounds it there.
SLICE_S: Final = 0.0005
SLICE_COST: Final = 128
TASK_COST: Final = 32
# A slice ends behind the request that exceeds it, which costs the connection as much time of later
# rounds, but no more than this.
MOST_DEBT_S: Final = 0.05
# Who uses less than this part of the loop's time has always some left, and may save up this much of
# it: what a few small requests cost that come together, because the loop was late.
EARNED_PART: Final = 0.05
MOST_CREDIT_S: Final = 0.002
# A connection that reads on within a large frame: the read comes in the next turn, too.
READ_COST: Final = 128
# Answers of so many bytes end a slice, too: the kernel copies them when it ends.
SLICE_BYTES: Final = 256 * 1024
# For how long connections are served in rotation before the loop reads again.
TURN_S: Final = 0.0005
TURN_COST: Final = 512


class Waiting(Protocol):
    """The part of a connection that this module needs."""

    # Seconds that it may still be served; less than none if its last request took longer.
    credit_s: float

    def serve_slice(self) -> int:
        """Serve what waits for one slice; return its cost."""

    @property
    def has_work(self) -> bool:
        """Whether something waits that can be served now."""

    @property
    def is_slow(self) -> bool:
        """Whether what comes next takes longer than others should wait for: a large request."""


class ServingTurns:
    """The rotation of one server. For the loop's thread only.

    Each round gives a connection a slice's time. Who has used more, because a request took long, is
    passed over until it has been given as much; who has used less is served before the others. If
    those take the whole turn, one of the others is served nevertheless, so that nobody starves.

    Slices and turns end by the clock `monotonic`. What a connection is charged for is the processor
    time of the loop's thread, so that it does not pay for a disk, another thread or another process
    that held up the loop meanwhile. Where time is virtual it is charged by that clock.
    """

    def __init__(self, monotonic: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self.monotonic = monotonic
        is_real = monotonic is SYSTEM_CLOCK.monotonic
        self.work_s = time.thread_time if is_real else monotonic
        self._waiting: deque[Waiting] = deque()
        # Those that have time left from earlier slices, and nothing large.
        self._first: deque[Waiting] = deque()
        self._is_due = False
        # When the reads of this turn of the loop have had TURN_S; 0 if none has begun.
        self._reads_until_s = 0.0

    @property
    def count(self) -> int:
        """How many connections wait."""
        return len(self._waiting) + len(self._first)

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
        goes_first = connection.credit_s > 0 and not connection.is_slow
        (self._first if goes_first else self._waiting).append(connection)
        self._arm()

    def _arm(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._reads_until_s = 0.0
        self._is_due = False
        now_s = self.monotonic()
        until_s = now_s + TURN_S
        left = TURN_COST
        while self._first and left > 0 and now_s < until_s:
            left -= self._serve_one(self._first.popleft())
            now_s = self.monotonic()
        if left <= 0 or now_s >= until_s:
            left, until_s = 1, now_s + TURN_S
        passed_over = 0
        while self._waiting and left > 0 and now_s < until_s and passed_over < TURN_COST:
            connection = self._waiting.popleft()
            connection.credit_s = min(connection.credit_s + SLICE_S, SLICE_S)
            if connection.credit_s <= 0:
                self._waiting.append(connection)
                passed_over += 1
                continue
            left -= self._serve_one(connection)
            now_s = self.monotonic()
        if self._first or self._waiting:
            self._arm()

    def _serve_one(self, connection: Waiting) -> int:
        """Serve a slice and charge the connection for it; return its cost."""
        began_s = self.work_s()
        cost = connection.serve_slice()
        self.charge(connection, began_s)
        if connection.has_work:
            self._waiting.append(connection)
        return cost

    def charge(self, connection: Waiting, began_s: float) -> None:
        """Take from a connection's credit the work done for it since `work_s` was `began_s`."""
        spent_s = self.work_s() - began_s
        connection.credit_s = max(connection.credit_s - spent_s, -MOST_DEBT_S)
