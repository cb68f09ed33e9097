"""Let connections whose requests wait take turns on the loop: deficit round robin, in three lines.

A read is served at once, for a slice. The requests that are left wait in the line of clients, and their
connection reads no more meanwhile. In each turn of the loop the first in the line are served, for a slice
each, and go to its end. A slice ends behind the request that exceeds it, and the connection owes that
time: it is passed over until the others have been offered as much. Time is the processor's: a connection
pays neither for the disk nor for other threads that the loop happened to wait for meanwhile.

Each turn serves each line for a time of its own. A connection with few small requests left waits
in the first line, so it does not wait for a round of large requests. Requests that run or inspect the
cluster wait in the last line, behind those of clients; Java has threads of its own for them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from cometmq.runtime.clock import SYSTEM_CLOCK, work_clock
from cometmq.runtime.garbage import collect_young

# How long a connection is served without a break, and how much that may cost. A request costs 1.
# One that begins a task costs TASK_COST, because the task's work comes in the next turn, with that
# of all other tasks that began. Where time is virtual, only the cost ends a slice.
SLICE_S: Final = 0.0005
SLICE_COST: Final = 128
TASK_COST: Final = 32
# Answers of so many bytes end a slice, too: the kernel copies them when it ends.
SLICE_BYTES: Final = 256 * 1024
# A connection owes no more than this: a round of a hundred connections takes 50 ms.
MOST_DEBT_S: Final = 0.005
# The lines, and how long each is served before the loop reads again.
FEW: Final = 0
MANY: Final = 1
ADMINISTRATION: Final = 2
TURN_S: Final = 0.002
_LINES_S: Final = (TURN_S, TURN_S, 0.00025)
# A line is served for so many slices at most, and passes over so many connections that owe time.
TURN_SLICES: Final = 64
_MOST_PASSES: Final = 512
# How long reads are served at once in a turn of the loop; what is read later waits in line.
READS_S: Final = 0.002


class Guest(Protocol):
    """The part of a connection that this module needs. Its methods raise nothing."""

    # Seconds for which the connection was served beyond its slices.
    debt_s: float

    def flush(self) -> None:
        """Write the answers that are due."""

    def serve_slice(self) -> bool:
        """Serve the requests that wait for a slice, and count time beyond the slice as owed. Join a line
        again if some requests are left. Return False if none waited: then the connection reads on, which
        takes about a slice.
        """

    def fail(self) -> None:
        """Log the error that is being handled, and close the connection."""


class ServingTurns:
    """The turns of the connections of one server. For the loop's thread only.

    Connections that are read in one turn of the loop also write together, at its end. A write to a peer
    that sleeps has to wake it, which on a virtual machine costs more than anything else that a broker
    does for a message. If many peers ask at once, the first write wakes the core that runs them, and the
    other writes find it awake. A connection that is read alone writes at once: there is no other to
    wait for.
    """

    def __init__(self, monotonic: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self.monotonic = monotonic
        self.worked = work_clock(monotonic)
        self._lines: tuple[deque[Guest], ...] = (deque(), deque(), deque())
        self._reader: Guest | None = None
        self._writers: list[Guest] = []
        self._reads_until_s = 0.0
        self._is_due = False

    @property
    def count(self) -> int:
        """How many connections wait in the lines."""
        few, many, administration = self._lines
        return len(few) + len(many) + len(administration)

    def begin_read(self, connection: Guest, now_s: float) -> bool:
        """Note that a connection is read; return whether the turn flushes it at its end."""
        if self._reader is connection:
            return False
        self._reader = connection
        if not self._writers:
            self._reads_until_s = now_s + READS_S
            self._arm()
        self._writers.append(connection)
        return True

    def is_spent(self, now_s: float) -> bool:
        """Return whether reads of this turn have been served for READS_S."""
        return now_s > self._reads_until_s and bool(self._writers)

    def join(self, connection: Guest, line: int) -> None:
        """Serve a connection in a later turn, in the line FEW, MANY or ADMINISTRATION."""
        self._lines[line].append(connection)
        self._arm()

    def _arm(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_due = False
        try:
            self._flush()
            if self.count:
                for line, seconds in zip(self._lines, _LINES_S, strict=True):
                    self._serve(line, seconds)
                collect_young()
        finally:  # whatever failed, the others go on
            if self.count or self._writers:
                self._arm()

    def _flush(self) -> None:
        writers, self._writers = self._writers, []
        for connection in writers:
            try:
                connection.flush()
            except Exception:  # noqa: BLE001 - the answers of the others must leave
                connection.fail()

    def _serve(self, line: deque[Guest], seconds: float) -> None:
        """Serve the first in a line for some time, one at least."""
        now_s = self.monotonic()
        until_s = now_s + seconds
        slices = passes = 0
        while line and slices < TURN_SLICES and passes < _MOST_PASSES and now_s < until_s:
            connection = line.popleft()
            connection.debt_s -= SLICE_S
            if connection.debt_s > 0:
                line.append(connection)
                passes += 1
                continue
            slices += 1
            try:
                if not connection.serve_slice():  # its slice goes to what it reads next
                    connection.debt_s += SLICE_S
                    until_s -= SLICE_S
            except Exception:  # noqa: BLE001 - the edge between a connection and all others
                connection.fail()
            now_s = self.monotonic()


def owed_s(debt_s: float) -> float:
    """Return what a connection owes: from 0 to MOST_DEBT_S."""
    return min(max(debt_s, 0.0), MOST_DEBT_S)
