"""Write what groups pop and acknowledge to an internal topic, so that a start finds it by reading a bounded tail.

Changes go to the topic before they count. From time to time the whole table is written between them, in parts: a
round of snapshots. Each record names the record with which the last complete round began, so the last record of the
topic says where a start has to begin to read. It reads at most about twice the length of a round, or
MIN_TAIL_BYTES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from cometmq.broker.pop.changes import AnyChange, Moved, decode_line, encode_line
from cometmq.broker.pop.table import Table

# A round begins when so much was written since the last one began, or three times as much as that took.
MIN_TAIL_BYTES: Final = 4 * 1024 * 1024
_ROUNDS: Final = 3


class PopLog:
    """Applies changes to `table` once they are written. For the loop's thread only.

    `append` stores the body of a record, or raises one of the store's errors; then nothing changes. `next_offset`
    returns the queue offset which the next record gets.
    """

    def __init__(
        self, table: Table, append: Callable[[bytes], object], next_offset: Callable[[], int]
    ) -> None:
        self._table = table
        self._append = append
        self._next_offset = next_offset
        # The queue offset at which a start begins to read.
        self.start = 0
        # Bytes that were written since then, and by the round itself.
        self._tail_bytes = 0
        self._round_bytes = 0
        # The round under way, and the values of `start` and the counts when it is complete.
        self._round: Iterator[list[AnyChange]] | None = None
        self._round_start = 0
        self._bytes_of_round = 0
        self._bytes_since_round = 0

    def replay(self, bodies: Iterable[bytes | memoryview]) -> None:
        """Apply the records from `start` on, which the last one names. Raises StoreError."""
        for body in bodies:
            line = decode_line(body)
            self.start = line.start
            self._tail_bytes += len(body)
            for change in line.changes:
                self._table.apply(change)

    def write(self, *changes: AnyChange) -> None:
        """Make changes, in one record: all of them are there after a kill, or none."""
        self._write(list(changes))
        for change in changes:
            self._table.apply(change)

    def announce(self, change: Moved) -> None:
        """Write that copies follow. Apply the change once they are there."""
        self._write([change])

    @property
    def wants_round(self) -> bool:
        """Whether `step` has something to do."""
        return self._round is not None or self._tail_bytes > max(
            MIN_TAIL_BYTES, _ROUNDS * self._round_bytes
        )

    def step(self) -> bool:
        """Write the next part of a round, of a new one if none is under way; return False after the last."""
        if self._round is None:
            self._round = self._table.snapshots()
            self._round_start = self._next_offset()
            self._bytes_of_round = self._bytes_since_round = 0
        part = next(self._round, None)
        if part is not None:
            try:
                self._bytes_of_round += self._write(part)
            except BaseException:
                self._round = None  # a part is missing: the next step begins a new one
                raise
            return True
        self._round = None
        self.start = self._round_start
        self._round_bytes = self._bytes_of_round
        self._tail_bytes = self._bytes_since_round
        self._write([])  # so that the topic names the new start
        return False

    def _write(self, changes: list[AnyChange]) -> int:
        body = encode_line(self.start, changes)
        self._append(body)
        self._tail_bytes += len(body)
        self._bytes_since_round += len(body)
        return len(body)
