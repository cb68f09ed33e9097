"""Let connections that bring many requests at once take turns on the loop.

One read may bring thousands of requests, and a loop that served them all would keep everybody else
waiting for as long. So a connection serves the requests of a read for one slice. What is left waits,
and the connection reads no more meanwhile. Those that wait for little go first, the shortest one
before all. The others are served in rotation: a slice each, or as much time later for a request that
took longer. After one turn the loop sees to all that has come in the meantime. Who brings few
requests is so served at once, whatever others bring.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from cometmq.runtime.clock import SYSTEM_CLOCK, work_clock

# For how long a connection is served without a break, and how much it may cost: a request costs 1,
# one that begins a task TASK_COST, because the task's work comes in the next turn, with that of all
# others that began. Time does not pass within a turn where it is virtual; the cost bounds it there.
SLICE_S: Final = 0.0005
SLICE_COST: Final = 128
TASK_COST: Final = 32
# What waits is short if serving it is expected to take no longer. A client that sends a few hundred
# messages a second stays below it even if the loop was late by some 50 ms; a message of 4 MiB does not.
SHORT_S: Final = 0.004
# What is read is served at once if it is expected to take no longer, else when all that is ready has
# been read: each read served at once keeps others waiting that may be shorter.
AT_ONCE_S: Final = SLICE_S / 4
# What a request is expected to take before any was measured: a small send takes about this long.
FIRST_REQUEST_S: Final = 0.00002
# A measured request changes what the next one is expected to take by this part of the difference.
LEARNED_PART: Final = 0.125
# What a byte of a large request takes: its checksum and two copies.
BYTE_S: Final = 1e-9
# A slice ends behind the request that exceeds it, which costs the connection as much time of later
# rounds, but no more than this: a round of a hundred connections takes 50 ms.
MOST_DEBT_S: Final = 0.005
# A connection that reads on within a large frame: the read comes in the next turn, too.
READ_COST: Final = 128
# Answers of so many bytes end a slice, too: the kernel copies them when it ends.
SLICE_BYTES: Final = 256 * 1024
# For how long connections are served in rotation before the loop reads again.
TURN_S: Final = 0.0005
TURN_COST: Final = 512


class Waiting(Protocol):
    """The part of a connection that this module needs."""

    # Seconds that it may still be served in its round; less than none if its last request took longer.
    credit_s: float

    def serve_slice(self) -> int:
        """Serve what waits for one slice; return its cost."""

    @property
    def has_work(self) -> bool:
        """Whether something waits that can be served now."""

    @property
    def expected_s(self) -> float:
        """How long it is expected to take to serve all that waits."""


class ServingTurns:
    """The order in which the connections of one server are served. For the loop's thread only.

    In each turn those with short work go first, the shortest one before all; then one of the others
    is served, even if the turn is over, so that nobody starves. The others are in a rotation, each
    round of which gives them a slice's time. Who has used more, because a request took long, is
    passed over until it has been given as much.

    Slices and turns end by the clock `monotonic`. What a connection is charged for is the processor
    time of the loop's thread, so that it does not pay for a disk, another thread or another process
    that held up the loop meanwhile. Where time is virtual it is charged by that clock.
    """

    def __init__(self, monotonic: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self.monotonic = monotonic
        self.work_s = work_clock(monotonic)
        # A heap: what is expected, and a number that grows, so that equals keep their order.
        self._short: list[tuple[float, int, Waiting]] = []
        self._rotation: deque[Waiting] = deque()
        self._joined = 0
        self._is_due = False
        # When the reads of this turn of the loop have had TURN_S; 0 if none has begun.
        self._reads_until_s = 0.0

    @property
    def count(self) -> int:
        """How many connections wait."""
        return len(self._short) + len(self._rotation)

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
        self._put(connection)
        self._arm()

    def _put(self, connection: Waiting) -> None:
        expected_s = connection.expected_s
        if expected_s <= SHORT_S:
            self._joined += 1
            heapq.heappush(self._short, (expected_s, self._joined, connection))
        else:
            self._rotation.append(connection)

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
        while self._short and left > 0 and now_s < until_s:
            _, _, connection = heapq.heappop(self._short)
            left -= self._serve_one(connection)
            now_s = self.monotonic()
        if left <= 0 or now_s >= until_s:
            left, until_s = 1, now_s + TURN_S
        passed_over = 0
        while self._rotation and left > 0 and now_s < until_s and passed_over < TURN_COST:
            connection = self._rotation.popleft()
            connection.credit_s = min(connection.credit_s + SLICE_S, SLICE_S)
            if connection.credit_s <= 0:
                self._rotation.append(connection)
                passed_over += 1
                continue
            began_s = self.work_s()
            left -= self._serve_one(connection)
            spent_s = self.work_s() - began_s
            connection.credit_s = max(connection.credit_s - spent_s, -MOST_DEBT_S)
            now_s = self.monotonic()
        if self._short or self._rotation:
            self._arm()

    def _serve_one(self, connection: Waiting) -> int:
        """Serve a slice; return its cost."""
        cost = connection.serve_slice()
        if connection.has_work:
            self._put(connection)
        return cost
