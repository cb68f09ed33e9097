"""Distinguish a forked child from its parent: objects that were made before the fork are the parent's.

Only the thread that forks goes on in the child. Loops no longer run there, locks that other threads
held stay locked for ever, and sockets and poll sets are the parent's. So a child leaves all these
objects alone and makes its own. It does not even close the old ones, which would take the parent's
sockets out of the parent's poll set.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final


class Process:
    """Counts in `generation` the forks between the first process and this one.

    Comparing generations costs less than asking for the process id.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._inherited: list[Any] = []

    def keep(self, inherited: Any) -> None:
        """Keep an object that a child must not use from being collected, which would close it."""
        self._inherited.append(inherited)

    def _forked(self) -> None:
        self.generation += 1


def in_each_child(run: Callable[[], object]) -> None:
    """Have `run` called in each forked child, in the order of these calls. Windows has no forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=run)


PROCESS: Final = Process()
# Before all other hooks.
in_each_child(PROCESS._forked)  # noqa: SLF001 - its own module
