"""Cuts a schedule that fails down to a short one that still fails (delta debugging)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
from tests.simulation.schedule import Schedule

T = TypeVar("T")

# How many runs a shrink may take. What is found by then is short enough to be read.
RUNS: Final = 200


class _OutOfRunsError(Exception):
    """The shrink may run nothing more."""


class Shrinker:
    """Runs ever smaller schedules. `fails` says whether a schedule still fails in the same way."""

    def __init__(self, fails: Callable[[Schedule], bool], runs: int = RUNS) -> None:
        self._fails = fails
        self._runs_left = runs
        self.runs = 0

    def shrink(self, schedule: Schedule) -> Schedule:
        """Return the smallest schedule found: fewer workloads, fewer faults, less time, fewer
        messages.
        """
        self.best = schedule
        try:
            while self._round():
                pass
        except _OutOfRunsError:
            pass
        return self.best

    def _round(self) -> bool:
        """Try each kind of cut once. Return whether any of them made the schedule smaller."""
        before = self.best
        self._cut_list("workloads", self.best.workloads)
        self._cut_list("faults", self.best.faults)
        self._cut_list("switches", self.best.switches)
        self._cut_time()
        self._cut_messages()
        return self.best != before

    def _cut_list(self, field: str, items: Sequence[T]) -> None:
        """Leave out halves, then quarters, then single items, as long as the run still fails."""
        size = max(1, len(items) // 2)
        while items:
            at = 0
            while at < len(items):
                fewer = (*items[:at], *items[at + size :])
                if self._keep(msgspec.structs.replace(self.best, **{field: fewer})):
                    items = fewer
                else:
                    at += size
            if size == 1:
                return
            size //= 2

    def _cut_time(self) -> None:
        """End the run earlier, with only what began by then."""
        for share in (0.25, 0.5, 0.75):
            seconds = self.best.seconds * share
            shorter = msgspec.structs.replace(
                self.best,
                seconds=seconds,
                workloads=tuple(
                    msgspec.structs.replace(each, seconds=min(each.seconds, seconds - each.start_s))
                    for each in self.best.workloads
                    if each.start_s < seconds
                ),
                faults=tuple(each for each in self.best.faults if each.at_s < seconds),
                switches=tuple(each for each in self.best.switches if each.at_s < seconds),
            )
            if self._keep(shorter):
                return

    def _cut_messages(self) -> None:
        for at in range(len(self.best.workloads)):
            for field in ("messages", "clients"):
                while (count := getattr(self.best.workloads[at], field)) > 1:
                    less = msgspec.structs.replace(self.best.workloads[at], **{field: count // 2})
                    workloads = (*self.best.workloads[:at], less, *self.best.workloads[at + 1 :])
                    if not self._keep(msgspec.structs.replace(self.best, workloads=workloads)):
                        break

    def _keep(self, smaller: Schedule) -> bool:
        if self._runs_left == 0:
            raise _OutOfRunsError
        self._runs_left -= 1
        self.runs += 1
        if not self._fails(smaller):
            return False
        self.best = smaller
        return True
