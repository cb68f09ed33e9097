"""Keep the half messages that have no verdict yet, and when to ask their producers.

The broker keeps nothing else of a transaction in memory; the rest is read from the log when needed.
A half message that was never checked takes an entry here and a place in the list of its due time:
about 95 bytes, up to 280 when few messages share a due time. A copied one takes 140 more.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

# Due times are kept in steps of 2^_STEP_BITS ms.
_STEP_BITS: Final = 7


class HalfTable:
    """Holds the queue offsets of unresolved half messages. For the loop's thread only.

    A transaction is named by the offset of its first copy (`first`); a check uses its newest copy.
    """

    def __init__(self) -> None:
        # Newest copy -> first copy. New copies lie behind all others, so this is in queue order.
        self._unresolved: dict[int, int] = {}
        # All offsets of `_unresolved` are in range(_low, _end). To find its first entry, a dict
        # would pass the places of all entries that were deleted in front of it.
        self._low = self._end = 0
        # First copy -> newest copy, of the transactions that were copied.
        self._moved: dict[int, int] = {}
        # Half messages that ask to be left alone for longer than others.
        self._immune: set[int] = set()
        # Steps of time -> first copies.
        self._due: dict[int, array[int]] = {}

    def __len__(self) -> int:
        return len(self._unresolved)

    @property
    def immune_count(self) -> int:
        """How many half messages ask for an immunity time of their own."""
        return len(self._immune)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the newest copies, in queue order."""
        return iter(self._unresolved)

    def add(
        self, offset: int, due_ms: int, first: int | None = None, *, is_immune: bool = False
    ) -> None:
        """Take in a half message that arrived, or was found, behind all others of the queue."""
        if first is None:
            first = offset
        elif first != offset:
            self._moved[first] = offset
        if not self._unresolved:
            self._low = offset
        self._unresolved[offset] = first
        self._end = offset + 1
        if is_immune:
            self._immune.add(first)
        self.ask_at(first, due_ms)

    def newest(self, first: int) -> int | None:
        """Return the newest copy of a transaction; None if the transaction has ended."""
        offset = self._moved.get(first, first)
        return offset if self._unresolved.get(offset) == first else None

    def first_of(self, newest: int) -> int:
        """Return the transaction whose newest copy this is. Raises KeyError if it is none."""
        return self._unresolved[newest]

    def resolve(self, first: int) -> None:
        """Forget a transaction that has ended. Its due times are dropped when they are reached."""
        offset = self._moved.pop(first, first)
        self._immune.discard(first)
        del self._unresolved[offset]

    def move(self, first: int, offset: int) -> None:
        """Take in the offset of a new copy, at the end of the queue."""
        del self._unresolved[self._moved.get(first, first)]
        self._moved[first] = offset
        if not self._unresolved:
            self._low = offset
        self._unresolved[offset] = first
        self._end = offset + 1

    def ask_at(self, first: int, due_ms: int) -> None:
        """Have `take_due` return the transaction from `due_ms` on."""
        # Rounded up, so that no producer is asked too early.
        step = -(-due_ms >> _STEP_BITS)
        offsets = self._due.get(step)
        if offsets is None:
            offsets = self._due[step] = array("q")
        offsets.append(first)

    def take_due(self, now_ms: int) -> list[int]:
        """Return the transactions to check now, by first offset, the oldest first, each once."""
        limit = now_ms >> _STEP_BITS
        steps = [step for step in self._due if step <= limit]
        due = {first for step in steps for first in self._due.pop(step)}
        return sorted(first for first in due if self.newest(first) is not None)

    def low_offset(self, default: int) -> int:
        """Return the lowest queue offset of an unresolved message's newest copy, else `default`."""
        unresolved = self._unresolved
        if not unresolved:
            return default
        if self._low not in unresolved:
            # All calls together pass each offset of the queue once at most.
            self._low = next(filter(unresolved.__contains__, range(self._low, self._end)))
        return self._low
