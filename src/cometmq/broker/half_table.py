"""The half messages without a verdict: which, and when to ask for it.

All that is kept in memory of a transaction; the rest is read from the log when it is needed. A message
that was never checked takes an entry here and a place in the list of its due time: about 95 bytes, up
to 280 when few messages share a due time. One that was copied takes 140 more.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

# Due times are kept in steps of so many bits of a millisecond.
_STEP_BITS: Final = 7


class HalfTable:
    """Queue offsets of unresolved half messages. For the loop's thread only.

    A transaction is known by the offset of its first copy (`first`), and checked through its newest.
    """

    def __init__(self) -> None:
        # Newest copy -> first copy. New copies lie behind all others, so this is in queue order.
        self._unresolved: dict[int, int] = {}
        # First copy -> newest copy, of those that were copied.
        self._moved: dict[int, int] = {}
        # Steps of time -> first copies.
        self._due: dict[int, array[int]] = {}

    def __len__(self) -> int:
        return len(self._unresolved)

    def __iter__(self) -> Iterator[int]:
        """The newest copies, in queue order."""
        return iter(self._unresolved)

    def add(self, offset: int, due_ms: int, first: int | None = None) -> None:
        """A half message came, or was found, at the end of the queue."""
        if first is None:
            first = offset
        elif first != offset:
            self._moved[first] = offset
        self._unresolved[offset] = first
        self.ask_at(first, due_ms)

    def newest(self, first: int) -> int | None:
        """The newest copy of an unresolved transaction, None when it has ended."""
        offset = self._moved.get(first, first)
        return offset if self._unresolved.get(offset) == first else None

    def first_of(self, newest: int) -> int:
        """The transaction whose newest copy this is; KeyError if it is none."""
        return self._unresolved[newest]

    def resolve(self, first: int) -> None:
        """The transaction has ended. Its entries in the due times go when they are due."""
        offset = self._moved.pop(first, first)
        del self._unresolved[offset]

    def move(self, first: int, offset: int) -> None:
        """A new copy was put at the end of the queue."""
        del self._unresolved[self._moved.get(first, first)]
        self._moved[first] = offset
        self._unresolved[offset] = first

    def ask_at(self, first: int, due_ms: int) -> None:
        """Name the transaction in `take_due` from `due_ms` on."""
        # Rounded up: nothing is asked for too early.
        step = -(-due_ms >> _STEP_BITS)
        offsets = self._due.get(step)
        if offsets is None:
            offsets = self._due[step] = array("q")
        offsets.append(first)

    def take_due(self, now_ms: int) -> list[int]:
        """First offsets of the transactions to ask for now, the oldest first, each once."""
        limit = now_ms >> _STEP_BITS
        steps = [step for step in self._due if step <= limit]
        due = {first for step in steps for first in self._due.pop(step)}
        return sorted(first for first in due if self.newest(first) is not None)

    def low_offset(self, default: int) -> int:
        """The first queue offset at which an unresolved message lies."""
        return next(iter(self._unresolved), default)
