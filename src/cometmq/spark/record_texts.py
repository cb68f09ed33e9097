"""Read the topics and properties of many records at once, as Arrow columns.

Java: MessageDecoder.string2messageProperties; layout: `cometmq.protocol.properties`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.protocol.record_columns import Bytes, Ints, RecordColumns
from cometmq.spark.arrow_slices import binary, every, slices, texts_of

_NAME_END: Final = 1
_ENTRY_END: Final = 2


class RecordTexts:
    """The texts of records: at least one record, and all `fit`.

    The texts stand side by side in one array, each record's as `02 topic 02 02 properties`, with an
    02 at the end. So every entry of the properties has an 02 on both sides. (In the log, a byte of
    the topic's length and the length of the properties stand where these 02 are put.) Positions are
    positions in this array.
    """

    def __init__(self, window: Any, columns: RecordColumns) -> None:
        taken = slices(window, columns.topic_starts - 1, columns.ends)
        lengths = columns.ends - columns.topic_starts + 1
        ends = np.cumsum(lengths)
        self._starts: Ints = ends - lengths
        self._topic_ends: Ints = self._starts + 1 + columns.topic_ends - columns.topic_starts
        self._text: Bytes = np.empty(int(ends[-1]) + 1, np.uint8)
        self._text[:-1] = np.frombuffer(taken.buffers()[2], np.uint8, int(ends[-1]))
        self._text[-1] = _ENTRY_END
        self._text[self._starts] = _ENTRY_END
        self._text[self._topic_ends] = _ENTRY_END
        self._text[self._topic_ends + 1] = _ENTRY_END
        self._buffer = pa.py_buffer(self._text)
        self._is_ascii = bool(self._text.max() < 0x80)
        self._find_entries()

    def __len__(self) -> int:
        return len(self._starts)

    @cached_property
    def topics(self) -> Any:
        pieces = slices(self._buffer, self._starts + 1, self._topic_ends)
        return texts_of(pieces, is_ascii=self._is_ascii)

    @cached_property
    def properties(self) -> Any:
        """Return the properties as maps."""
        offsets = pa.array(self._bounds.astype(np.int32))
        names = texts_of(self._names, is_ascii=self._is_ascii)
        return pa.MapArray.from_arrays(offsets, names, self._values)

    def values(self, name: str) -> Any:
        """Return the property of each record as a string, null for a record without it."""
        at = pc.index(self._dictionary, pa.scalar(name.encode(), pa.binary())).as_py()
        if at < 0:
            return pa.nulls(len(self), pa.string())
        found = np.flatnonzero(self._codes == at)
        if len(found) == len(self):
            return self._values.take(pa.array(found))
        indices = np.full(len(self), -1, np.int64)
        indices[self._owners[found]] = found
        return self._values.take(pa.array(indices, mask=indices < 0))

    # Inside

    def _find_entries(self) -> None:
        separators = np.flatnonzero(self._text - np.uint8(_NAME_END) < _ENTRY_END)
        is_end = np.flatnonzero(self._text[separators] == _ENTRY_END)
        bounds = separators[is_end]
        starts, ends = bounds[:-1], bounds[1:]
        # Without an 01 between two 02, this is the second 02.
        names_end = separators[is_end[:-1] + 1]
        good = (names_end > starts + 1) & (names_end + 1 < ends)
        first = np.searchsorted(bounds, self._starts)
        good[first] = False  # this entry is the topic
        counts = np.concatenate((np.zeros(1, np.int64), np.cumsum(good)))
        self._bounds: Ints = np.append(counts[first], counts[-1])
        self._take_entries(starts[good], names_end[good], ends[good])

    def _take_entries(self, starts: Ints, names_end: Ints, ends: Ints) -> None:
        """Take names and values of the entries; each begins behind its `starts`."""
        self._owners: Ints = np.repeat(np.arange(len(self)), np.diff(self._bounds))
        pieces = np.empty((len(starts), 4), np.int64)
        pieces[:, 0] = starts + 1
        pieces[:, 1] = names_end
        pieces[:, 2] = names_end + 1
        pieces[:, 3] = ends
        column = binary(self._buffer, pieces.reshape(-1)) if len(starts) else _nothing()
        names, values = every(column, 0, 4), every(column, 2, 4)
        encoded = names.dictionary_encode()
        self._codes: Ints = encoded.indices.to_numpy().astype(np.int64)
        self._dictionary = encoded.dictionary
        twice = self._first_of_doubles()
        if len(twice):
            keep = np.ones(len(names), bool)
            keep[twice] = False
            mask = pa.array(keep)
            names, values = names.filter(mask), values.filter(mask)
            self._codes, self._owners = self._codes[keep], self._owners[keep]
            counts = np.bincount(self._owners, minlength=len(self))
            self._bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        self._names = names
        self._values = texts_of(values, is_ascii=self._is_ascii)

    def _first_of_doubles(self) -> Ints:
        """Return the entries whose name occurs again later in the same record: the last value
        counts.
        """
        kinds = len(self._dictionary)
        which = self._owners * kinds + self._codes
        count = len(which)
        if not count:
            return which
        if len(self) * kinds <= 16 * count and np.bincount(which).max() == 1:
            return which[:0]
        _, last = np.unique(which[::-1], return_index=True)
        return np.setdiff1d(np.arange(count), count - 1 - last)


def _nothing() -> Any:
    return pa.array([], pa.binary())
