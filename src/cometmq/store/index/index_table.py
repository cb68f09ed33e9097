"""Write many entries of an index file, and their slots, at once (layout:
`cometmq.store.index.index_file`).
"""

from __future__ import annotations

from mmap import mmap
from typing import Final

import numpy as np

from cometmq.protocol.messages.record_columns import Ints
from cometmq.store.index.index_keys import IndexKeys

_COLUMNS: Final = np.dtype(
    [("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
_INT32_MAX: Final = 2**31 - 1


class IndexTable:
    """Numpy arrays over the slots and entries of a mapping, which they keep open. For one thread at
    a time.
    """

    def __init__(
        self, mapping: mmap, slots_at: int, slot_count: int, entries_at: int, entry_count: int
    ) -> None:
        assert _COLUMNS.itemsize * entry_count + entries_at == len(mapping)
        self._slot_count = slot_count
        self._slots = np.ndarray((slot_count,), ">i4", mapping, slots_at)
        self._entries = np.ndarray((entry_count,), _COLUMNS, mapping, entries_at)

    def put(self, number: int, keys: IndexKeys, begin_ms: int, *, is_first: bool) -> int:
        """Write entries from `number` on; return how many slots they were the first to use.

        The seconds of entries count from `begin_ms`. With `is_first` only the first entry's do, and
        the others' count from the first entry: `begin_ms` is then the time of the last entry in the
        file's predecessor.
        """
        size = len(keys.hashes)
        numbers = np.arange(number, number + size, dtype=np.int64)
        previous = self._chain(keys.hashes % self._slot_count, numbers)
        seconds = _seconds(keys.timestamps, begin_ms)
        if is_first:
            seconds[1:] = _seconds(keys.timestamps[1:], int(keys.timestamps[0]))
        entries = np.empty(size, _COLUMNS)
        entries["hash"] = keys.hashes
        entries["offset"] = keys.offsets
        entries["seconds"] = seconds
        entries["previous"] = previous
        self._entries[number : number + size] = entries
        return int(np.count_nonzero(previous == 0))

    def _chain(self, slots: Ints, numbers: Ints) -> Ints:
        """Put new entries at the heads of their slots' chains.

        Returns for each entry the number of the one before it in its slot, 0 for none.
        """
        table = self._slots
        order = np.argsort(slots, kind="stable")
        grouped = slots[order]
        first = np.ones(len(slots), bool)
        first[1:] = grouped[1:] != grouped[:-1]
        last = np.ones(len(slots), bool)
        last[:-1] = first[1:]
        heads = order[first]
        before = table[slots[heads]].astype(np.int64)
        # As in Java: a number that no entry can have yet counts as none.
        before[(before <= 0) | (before > numbers[heads])] = 0
        chained = np.empty(len(slots), np.int64)
        chained[1:] = numbers[order[:-1]]
        chained[first] = before
        previous = np.empty(len(slots), np.int64)
        previous[order] = chained
        table[slots[heads]] = numbers[order[last]]
        return previous


def _seconds(timestamps: Ints, begin_ms: int) -> Ints:
    if begin_ms <= 0:
        return np.zeros(len(timestamps), np.int64)
    return np.clip((timestamps - begin_ms) // 1000, 0, _INT32_MAX)
