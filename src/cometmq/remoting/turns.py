"""Let connections that bring many requests at once take turns on the loop.

One read may bring thousands of requests, and a loop that served them all would keep everybody else
waiting for as long. So a connection serves the requests of a read for one slice. What is left waits,
and the connection reads no more meanwhile. Those with little work go first, and of them those which
seldom have any waiting, the shortest one before all. The others are served in rotation: a slice each,
or as much time later for a request that took longer. After one turn the loop sees to all that has come
in the meantime. Who brings few requests is so served at once, whatever others bring.

Requests that run or inspect the cluster come behind those of its clients, as in Java, which has
threads of their own for them: a thousand connections that ask for figures, one request each, make a
round of a tenth of a second.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import OrderedDict, deque
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
# What waits is short if serving it is expected to take no longer. A client that sends a few hundred
# messages a second stays below it even if the loop was late by some 50 ms; a message of 4 MiB does not.
SHORT_S: Final = 0.004
# Over how long it is averaged for how much of the time requests of a connection have waited, and from
# which part of the time on it counts as always. A client that is served in time is at a fiftieth.
WAITED_S: Final = 0.5
WAITED_ALWAYS: Final = 0.2
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
# For how long requests that run or inspect the cluster are served in a turn. To read such a request and
# to write its answer takes twice as long again, in which the loop sees to nobody else.
ADMINISTRATION_S: Final = TURN_S / 4
# How many that were taken by age the other order may have beside twice as many as wait.
_MOST_TAKEN: Final = 64


class Standing:
    """What the turns remember of a connection."""

    __slots__ = ("_looked_s", "_waited", "_waits_since_s", "credit_s")

    def __init__(self) -> None:
        # Seconds that it may still be served in its round; less than none if its last request took
        # longer.
        self.credit_s = 0.0
        # For how much of the time up to `_looked_s` requests of it waited: from 0.0 to 1.0.
        self._waited = 0.0
        self._looked_s = 0.0
        self._waits_since_s: float | None = None

    def begin(self, now_s: float) -> None:
        """Note that requests wait from now on, if none did."""
        if self._waits_since_s is None:
            self._waits_since_s = now_s

    def end(self, now_s: float) -> None:
        """Note that no more requests wait."""
        self._waited = self.waited(now_s)
        self._looked_s = now_s
        self._waits_since_s = None

    def waited(self, now_s: float) -> float:
        """Return for how much of the last time requests waited, from 0.0 to 1.0.

        It is an average whose weights fall by the factor e for each WAITED_S that lies back.
        """
        before = self._waited * math.exp((self._looked_s - now_s) / WAITED_S)
        if self._waits_since_s is None:
            return before
        return before + 1.0 - math.exp((self._waits_since_s - now_s) / WAITED_S)


class Waiting(Protocol):
    """The part of a connection that this module needs."""

    standing: Standing

    def serve_slice(self) -> int:
        """Serve what waits for one slice; return its cost."""

    def fail(self) -> None:
        """Log the error that is being handled, and close the connection."""

    @property
    def is_of_administration(self) -> bool:
        """Whether what waits first is a request that runs or inspects the cluster."""

    @property
    def has_work(self) -> bool:
        """Whether something waits that can be served now."""

    @property
    def expected_s(self) -> float:
        """How long it is expected to take to serve all that waits."""


class _Short:
    """Connections whose work is short, in two orders: by what it is expected to take, and by age."""

    def __init__(self) -> None:
        # Those that wait and what each is expected to take, the oldest first, by a number that grows.
        self._waiting: OrderedDict[int, tuple[float, Waiting]] = OrderedDict()
        # A heap of the same, so that equals keep their order. Who was taken by age is still in it.
        self._by_length: list[tuple[float, int]] = []
        self._joined = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, connection: Waiting, expected_s: float) -> None:
        self._joined += 1
        self._waiting[self._joined] = (expected_s, connection)
        heapq.heappush(self._by_length, (expected_s, self._joined))

    def take_shortest(self) -> Waiting:
        """Take one out; raise IndexError if none waits."""
        _, number = heapq.heappop(self._by_length)
        while number not in self._waiting:
            _, number = heapq.heappop(self._by_length)
        return self._waiting.pop(number)[1]

    def take_oldest(self) -> Waiting:
        """Take one out; raise KeyError if none waits."""
        _, (_, connection) = self._waiting.popitem(last=False)
        if len(self._by_length) > 2 * len(self._waiting) + _MOST_TAKEN:
            self._by_length = [(each[0], number) for number, each in self._waiting.items()]
            heapq.heapify(self._by_length)
        return connection


class ServingTurns:
    """The order in which the connections of one server are served. For the loop's thread only.

    In each turn those with short work go first, the shortest one before all; but who has had requests
    waiting for much of the last time comes behind who has not. Even if the turn is over then, one more
    is served, so that nobody starves: by turns one of the others, and of the short ones that which has
    waited longest, because others that go before, and never end, keep it waiting. The others are in a
    rotation, each round of which gives them a slice's time. Who has used more, because a request took
    long, is passed over until it has been given as much. Behind all of them come connections with short
    work whose first request runs or inspects the cluster, one at least in each turn.

    Slices and turns end by the clock `monotonic`. What a connection is charged for is the processor
    time of the loop's thread, so that it does not pay for a disk, another thread or another process
    that held up the loop meanwhile. Where time is virtual it is charged by that clock.
    """

    def __init__(self, monotonic: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self.monotonic = monotonic
        self.work_s = work_clock(monotonic)
        self._short = _Short()
        self._rotation: deque[Waiting] = deque()
        self._administration = _Short()
        # Whether the one that is served behind the end of a turn is a short one.
        self._is_for_oldest = False
        # The same for the next of administration.
        self._administers_oldest = False
        self._is_due = False
        # When the reads of this turn of the loop have had TURN_S; 0 if none has begun.
        self._reads_until_s = 0.0

    @property
    def count(self) -> int:
        """How many connections wait."""
        return len(self._short) + len(self._rotation) + len(self._administration)

    def administration_waits(self) -> bool:
        """Say whether a request that runs or inspects the cluster has to wait for its turn.

        It has to when others do, or when reads of this turn of the loop have taken TURN_S.
        """
        return bool(self._administration) or self.is_spent()

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
        self._arm()
        self._put(connection)

    def _put(self, connection: Waiting) -> None:
        now_s = self.monotonic()
        connection.standing.begin(now_s)
        expected_s = connection.expected_s
        if expected_s <= SHORT_S:
            # What a slice will do is equal, so that who is served for a slice is not the next again.
            waited = min(connection.standing.waited(now_s) / WAITED_ALWAYS, 1.0)
            line = self._administration if connection.is_of_administration else self._short
            line.put(connection, max(expected_s, SLICE_S) + waited * SHORT_S)
        else:
            self._rotation.append(connection)

    def _arm(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._reads_until_s = 0.0
        self._is_due = False
        try:
            self._serve_turn()
        finally:  # whatever failed, the others go on
            if self.count:
                self._arm()

    def _serve_turn(self) -> None:
        now_s = self.monotonic()
        until_s = now_s + TURN_S
        left = TURN_COST
        while self._short and left > 0 and now_s < until_s:
            left -= self._serve_one(self._short.take_shortest())
            now_s = self.monotonic()
        if left > 0 and now_s < until_s:
            self._serve_rotation(left, until_s)
        else:
            if self._is_for_oldest and self._short:
                self._serve_one(self._short.take_oldest())
            else:
                self._serve_rotation(1, now_s + TURN_S)
            self._is_for_oldest = not self._is_for_oldest
        self._serve_administration()
        collect_young()

    def _serve_administration(self) -> None:
        """Serve those whose short work runs or inspects the cluster for a slice each, one at least: by
        turns the shortest one, and that which has waited longest.
        """
        until_s = self.monotonic() + ADMINISTRATION_S
        left = SLICE_COST
        while self._administration and left > 0:
            line = self._administration
            left -= self._serve_one(
                line.take_oldest() if self._administers_oldest else line.take_shortest()
            )
            self._administers_oldest = not self._administers_oldest
            if self.monotonic() >= until_s:
                return

    def _serve_rotation(self, left: int, until_s: float) -> None:
        """Serve those whose work is not short until they have cost `left`, or until that time."""
        now_s = self.monotonic()
        passed_over = 0
        while self._rotation and left > 0 and now_s < until_s and passed_over < TURN_COST:
            connection = self._rotation.popleft()
            connection.standing.credit_s = min(connection.standing.credit_s + SLICE_S, SLICE_S)
            if connection.standing.credit_s <= 0:
                self._rotation.append(connection)
                passed_over += 1
                continue
            began_s = self.work_s()
            left -= self._serve_one(connection)
            spent_s = self.work_s() - began_s
            connection.standing.credit_s = max(connection.standing.credit_s - spent_s, -MOST_DEBT_S)
            now_s = self.monotonic()

    def _serve_one(self, connection: Waiting) -> int:
        """Serve a slice; return its cost. A connection that fails is closed and harms no other."""
        try:
            cost = connection.serve_slice()
            if connection.has_work:
                self._put(connection)
            else:
                connection.standing.end(self.monotonic())
        except Exception:  # noqa: BLE001 - the edge between a connection and all others
            connection.fail()
            return SLICE_COST
        return cost
