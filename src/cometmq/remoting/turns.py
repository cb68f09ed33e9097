"""Let connections that bring many requests at once take turns on the loop.

One read may bring thousands of requests, and a loop that served them all would keep everybody else
waiting for as long. So a connection serves the requests of a read for one slice. What is left waits,
and the connection reads no more meanwhile. Who asks for least of the loop's time goes first, but in
every second turn the one that has waited longest does. After one turn the loop sees to all that has
come in the meantime. Who brings few requests is so served at once, whatever others bring.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from cometmq.runtime.clock import SYSTEM_CLOCK, work_clock
from cometmq.runtime.garbage import collect_young

# For how long a connection is served without a break, and how much it may cost: a request costs 1,
# one that begins a task TASK_COST, because the task's work comes in the next turn, with that of all
# others that began. Time does not pass within a turn where it is virtual; the cost bounds it there.
SLICE_S: Final = 0.0005
SLICE_COST: Final = 128
TASK_COST: Final = 32
# What a connection was given of the loop is forgotten by and by: after so many seconds a third is left.
# Who was given no more than MODEST_S, 2.5 percent, is modest; a few hundred small messages a second
# are.
LATELY_S: Final = 0.2
MODEST_S: Final = 0.005
# What is read is served at once if it is expected to take no longer, else when all that is ready has
# been read: each read served at once keeps others waiting that may be shorter.
AT_ONCE_S: Final = SLICE_S / 4
# What a request is expected to take before any was measured: a small send takes about this long.
FIRST_REQUEST_S: Final = 0.00002
# A measured request changes what the next one is expected to take by this part of the difference.
LEARNED_PART: Final = 0.125
# What a byte of a large request takes: its checksum and two copies.
BYTE_S: Final = 1e-9
# What the kernel takes for a byte of answers: it copies them within the write.
WRITTEN_BYTE_S: Final = 3e-10
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
# How many are asked in a turn whether they may be served as the oldest.
MOST_PASSED_OVER: Final = 64


class Waiting(Protocol):
    """The part of a connection that this module needs."""

    # Seconds that it may still be served as the oldest; less than none if its last request took longer.
    credit_s: float

    def serve_slice(self) -> int:
        """Serve what waits for one slice; return its cost."""

    @property
    def has_work(self) -> bool:
        """Whether something waits that can be served now."""

    @property
    def expected_s(self) -> float:
        """How long it is expected to take to serve all that waits."""

    def given_s(self, now_s: float) -> float:
        """Return what it was given of the loop's time within LATELY_S or so."""


class ServingTurns:
    """The order in which the connections of one server are served. For the loop's thread only.

    In each turn those go first who ask for least: in what they were given lately and in what waits now,
    taken together. A client that is late, because the loop was, so keeps its place: it was given the less.
    All who were given less than MODEST_S count as equal, so that many clients who ask for little each, or
    new ones, do not pass over one who asks for a little more. Every second turn begins with the one that
    has waited longest, so that nobody starves; if a request of it took longer than a slice, it is passed
    over there until it has been given as much less.

    Slices and turns end by the clock `monotonic`. What a connection is charged for is the processor
    time of the loop's thread, so that it does not pay for a disk, another thread or another process
    that held up the loop meanwhile. Where time is virtual it is charged by that clock.
    """

    def __init__(self, monotonic: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self.monotonic = monotonic
        self.work_s = work_clock(monotonic)
        # Those that wait, the oldest first, by a number that grows; and what each asks for.
        self._waiting: OrderedDict[int, tuple[float, Waiting]] = OrderedDict()
        # A heap of the same, who asks for least first, then by number. Who was served as the oldest is
        # still in it.
        self._by_asked: list[tuple[float, int]] = []
        self._joined = 0
        self._is_for_oldest = True  # so the first turn is not
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
        self._put(connection)
        self._arm()

    def _put(self, connection: Waiting) -> None:
        asked_s = max(connection.given_s(self.monotonic()), MODEST_S) + connection.expected_s
        self._joined += 1
        self._waiting[self._joined] = (asked_s, connection)
        heapq.heappush(self._by_asked, (asked_s, self._joined))

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
        self._is_for_oldest = not self._is_for_oldest
        if self._is_for_oldest:
            left -= self._serve_oldest()
            now_s = self.monotonic()
        while self._waiting and left > 0 and now_s < until_s:
            left -= self._serve_one(self._take_modest())
            now_s = self.monotonic()
        collect_young()
        if self._waiting:
            self._arm()

    def _take_modest(self) -> Waiting:
        """Take out the one that asks for least."""
        _, number = heapq.heappop(self._by_asked)
        while number not in self._waiting:
            _, number = heapq.heappop(self._by_asked)
        return self._waiting.pop(number)[1]

    def _serve_oldest(self) -> int:
        """Serve the one that has waited longest and has time left for that; return its cost."""
        cost = 0
        for number, (_, connection) in list(
            itertools.islice(self._waiting.items(), MOST_PASSED_OVER)
        ):
            connection.credit_s = min(connection.credit_s + SLICE_S, SLICE_S)
            if connection.credit_s <= 0:
                self._waiting.move_to_end(number)
                continue
            del self._waiting[number]
            began_s = self.work_s()
            cost = self._serve_one(connection)
            spent_s = self.work_s() - began_s
            connection.credit_s = max(connection.credit_s - spent_s, -MOST_DEBT_S)
            break
        if len(self._by_asked) > 2 * len(self._waiting) + MOST_PASSED_OVER:
            self._by_asked = [(asked_s, number) for number, (asked_s, _) in self._waiting.items()]
            heapq.heapify(self._by_asked)
        return cost

    def _serve_one(self, connection: Waiting) -> int:
        """Serve a slice; return its cost."""
        cost = connection.serve_slice()
        if connection.has_work:
            self._put(connection)
        return cost
