"""Count the work that a scan may do before it has to let others in.

A unit stands for about a nanosecond of work at its slowest. Work is counted rather than timed, so
that the same request is cut at the same places on every machine.
"""

from __future__ import annotations


class OutOfWorkError(Exception):
    """The budget is spent: the scan answers with its findings so far and goes on later.

    This error never leaves the broker.
    """


class WorkBudget:
    """Counts the units of work that may still be spent, `left`; the last charge may exceed them."""

    __slots__ = ("left",)

    def __init__(self, units: int) -> None:
        self.left = units

    def charge(self, units: int) -> None:
        """Pay for work that begins now. Raises OutOfWorkError when nothing is left."""
        if self.left <= 0:
            raise OutOfWorkError
        self.left -= units
