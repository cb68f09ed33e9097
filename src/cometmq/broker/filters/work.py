"""Limit the work that filters do in one turn of the loop, and hold pulls that wait for the next
turn.

One pull may select by 500 searches in 30 KB of properties, and one connection may send thousands of
such pulls at once. So the pulls of one turn share one budget. When it is spent, a pull goes on in the
next turn with the messages found so far, and the loop serves others in between. What one pull may
spend is bounded, too: it is then answered with what it found, and its client asks for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.model.work import WorkBudget
from cometmq.remoting.connection import Connection
from cometmq.runtime.rotation import Rotation

# In units of WorkBudget. Of a turn: about 80 messages of usual size before a usual expression. Of a
# pull: ten times as many, so that a client that is far away is not answered for every slice.
WORK_PER_TURN: Final = 500_000
WORK_PER_PULL: Final = 5_000_000


class FilterWork(WorkBudget):
    """The budget of filters. At most `max_deferred` pulls may wait.

    For the loop's thread only.
    """

    __slots__ = ("_deferred", "_is_turning", "_per_turn", "max_deferred", "turns")

    def __init__(self, max_deferred: int, per_turn: int = WORK_PER_TURN) -> None:
        super().__init__(per_turn)
        self._per_turn = per_turn
        self._deferred: Rotation[Connection, Callable[[], None]] = Rotation()
        self._is_turning = False
        self.max_deferred = max_deferred
        self.turns = 0

    @property
    def deferred_count(self) -> int:
        """How many pulls wait for a later turn."""
        return len(self._deferred)

    def charge(self, units: int) -> None:
        """Pay for work in this turn. Raises OutOfWorkError when nothing is left."""
        if not self._is_turning:
            self._turn_soon()
        super().charge(units)

    def spend(self, units: int) -> None:
        """Count work that was done, even if the budget did not suffice for it."""
        if not self._is_turning:
            self._turn_soon()
        self.left -= units

    def defer(self, connection: Connection, serve: Callable[[], None]) -> bool:
        """Call `serve` in a later turn, unless the connection is lost. Return False if too many
        wait.

        An error that `serve` raises closes the connection. Connections are served in rotation, so that
        one with many pulls does not hold up the others.
        """
        if len(self._deferred) >= self.max_deferred:
            return False
        self._deferred.add(connection, serve)
        if not self._is_turning:
            self._turn_soon()
        return True

    def _turn_soon(self) -> None:
        self._is_turning = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turning = False
        self.left = self._per_turn
        self.turns += 1
        while self._deferred and self.left > 0:
            connection, serve = self._deferred.take()
            if connection.closed:
                self._deferred.remove(connection)
                continue
            try:
                serve()
            except Exception:  # noqa: BLE001 - the edge between a connection and all others
                connection.fail()
        if self._deferred and not self._is_turning:
            self._turn_soon()
