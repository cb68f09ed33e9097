"""Make Arrow columns of the topics and properties of many records."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.protocol.record_columns import Ints, RecordColumns, Window
from cometmq.spark.arrow_slices import binary, every, slices, texts_of
from cometmq.store.reading.record_texts import Entries, RecordTexts


class TextColumns:
    """The texts of records: at least one record, and all `fit`."""

    def __init__(self, window: Window, columns: RecordColumns) -> None:
        self._texts = RecordTexts(window, columns)
        self._buffer = pa.py_buffer(self._texts.joined)
        self._is_ascii = self._texts.is_ascii()
        self._take_entries(self._texts.entries())

    def __len__(self) -> int:
        return len(self._texts)

    @cached_property
    def topics(self) -> Any:
        pieces = slices(self._buffer, self._texts.starts, self._texts.topic_ends)
        return texts_of(pieces, is_ascii=self._is_ascii)

    @cached_property
    def properties(self) -> Any:
        """Return the properties as maps."""
        bounds = np.searchsorted(self._owners, np.arange(len(self) + 1))
        names = texts_of(self._names, is_ascii=self._is_ascii)
        return pa.MapArray.from_arrays(pa.array(bounds.astype(np.int32)), names, self._values)

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

    def _take_entries(self, entries: Entries) -> None:
        self._owners = entries.owners
        pieces = np.empty((len(self._owners), 4), np.int64)
        pieces[:, 0] = entries.starts
        pieces[:, 1] = entries.names_end
        pieces[:, 2] = entries.names_end + 1
        pieces[:, 3] = entries.ends
        column = binary(self._buffer, pieces.reshape(-1)) if len(pieces) else _nothing()
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
