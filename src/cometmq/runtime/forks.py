"""Which process this is: objects that were made before a fork belong to the parent.

A fork copies the memory of one thread: loops run no more, locks that others held stay locked for
ever, sockets and poll sets are the parent's. A child therefore leaves all that alone, does not even
close it (that would take the parent's sockets out of its poll set), and makes its own.
"""

from __future__ import annotations

import os
from typing import Any, Final


class Process:
    """`generation` counts the forks between the first process and this one.

    Comparing it costs less than asking for the process id.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._inherited: list[Any] = []

    def keep(self, inherited: Any) -> None:
        """Keep what a child must not use from being collected, which would close it."""
        self._inherited.append(inherited)

    def _forked(self) -> None:
        self.generation += 1


PROCESS: Final = Process()
# Before every other: hooks in a child run in the order of their registration.
os.register_at_fork(after_in_child=PROCESS._forked)  # noqa: SLF001 - its own module
