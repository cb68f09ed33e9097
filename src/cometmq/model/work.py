"""Counted work: what a scan may spend before it has to let others in.

A unit stands for about a nanosecond of what the work costs at its worst. Work is counted rather than
timed, so that the same request is cut at the same places on every machine.
"""

from __future__ import annotations


class OutOfWorkError(Exception):
    """The budget is spent: answer with what there is and go on later. Never leaves the broker."""


class WorkBudget:
    """`left` units may still be spent; the last charge may go beyond it."""

    __slots__ = ("left",)

    def __init__(self, units: int) -> None:
        self.left = units

    def charge(self, units: int) -> None:
        """Pay for work that begins now. Raises OutOfWorkError when nothing is left."""
        if self.left <= 0:
            raise OutOfWorkError
        self.left -= units
