"""Limit the work that filters do in one turn of the loop.

One pull may select by 500 searches in 30 KB of properties, and one connection may send thousands of
such pulls at once. So the pulls of one turn share one budget. When it is spent, a pull goes on in the
next turn with the messages found so far, and the loop serves others in between. The cost of one pull is
bounded, too: a pull that reaches the bound is answered with the messages found so far, and its client
asks for the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cometmq.model.measures.work import WorkBudget

# In units of WorkBudget. Of a turn: about 80 messages of usual size before a usual expression. Of a
# pull: ten times as many, so that a client that is far away is not answered for every slice.
WORK_PER_TURN: Final = 500_000
WORK_PER_PULL: Final = 5_000_000


class FilterWork(WorkBudget):
    """The budget of filters. `on_turn` is called when a turn has its work again.

    For the loop's thread only.
    """

    __slots__ = ("_is_turning", "_per_turn", "on_turn", "turns")

    def __init__(self, per_turn: int = WORK_PER_TURN) -> None:
        super().__init__(per_turn)
        self._per_turn = per_turn
        self._is_turning = False
        self.on_turn: Callable[[], None] = lambda: None
        self.turns = 0

    def charge(self, units: int) -> None:
        """Pay for work in this turn. Raises OutOfWorkError when nothing is left."""
        if not self._is_turning:
            self.turn_soon()
        super().charge(units)

    def spend(self, units: int) -> None:
        """Count work that was done, even if the budget did not suffice for it."""
        if not self._is_turning:
            self.turn_soon()
        self.left -= units

    def turn_soon(self) -> None:
        """Have the work again in the next turn of the loop."""
        if not self._is_turning:
            self._is_turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turning = False
        self.left = self._per_turn
        self.turns += 1
        self.on_turn()
