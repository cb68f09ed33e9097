"""Make Arrow columns of the topics and properties of many records."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.model import properties as p
from cometmq.protocol.messages.record_columns import Bools, Ints, RecordColumns, Window
from cometmq.spark.rows.arrow_slices import binary, every, slices, texts_of
from cometmq.store.reading.record_texts import Entries, RecordTexts

# A table of this many cells per property finds those that stand twice; sorting does where names
# are so many that it would be larger.
_CELLS: Final = 16


class TextColumns:
    """The texts of records: at least one record, and all `fit`."""

    def __init__(self, window: Window, columns: RecordColumns) -> None:
        pieces = slices(pa.py_buffer(window), columns.topic_starts - 1, columns.ends)
        size = int((columns.ends - columns.topic_starts + 1).sum())
        self._texts = RecordTexts(
            window, columns, np.frombuffer(pieces.buffers()[2], np.uint8, count=size)
        )
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
        bounds = np.zeros(len(self) + 1, np.int32)
        np.cumsum(np.bincount(self._owners, minlength=len(self)), out=bounds[1:])
        names = texts_of(self._dictionary, is_ascii=self._is_ascii).take(pa.array(self._codes))
        values = self._texts_at(self._values_at)
        return pa.MapArray.from_arrays(pa.array(bounds), names, values)

    def values(self, name: str) -> Any:
        """Return the property of each record as a string, null for a record without it."""
        at = self._code_of(name)
        if at < 0:
            return pa.nulls(len(self), pa.string())
        found = np.flatnonzero(self._codes == at)
        places = self._values_at[found]
        if len(found) == len(self):
            return self._texts_at(places)
        indices = np.zeros(len(self), np.int64)
        absent = np.ones(len(self), bool)
        indices[self._owners[found]] = places
        absent[self._owners[found]] = False
        return self._texts_at(indices, absent)

    def batch_ids(self) -> Any:
        """Return for each record the last UNIQ_KEY, which is the id of the batch, if it is another
        text than the first, else null.
        """
        first, last = self._id_places
        if not len(first):
            return pa.nulls(len(self), pa.string())
        differ = np.asarray(
            pc.not_equal(self._pieces.take(pa.array(first)), self._pieces.take(pa.array(last)))
        )
        places = np.zeros(len(self), np.int64)
        absent = np.ones(len(self), bool)
        owners = self._id_owners[differ]
        places[owners] = last[differ]
        absent[owners] = False
        return self._texts_at(places, absent)

    # Inside

    def _code_of(self, name: str) -> int:
        """Return the number of a name in `_codes`, -1 for a name that no record has."""
        at: int = pc.index(self._dictionary, pa.scalar(name.encode(), pa.binary())).as_py()
        return at

    def _texts_at(self, places: Ints, absent: Bools | None = None) -> Any:
        pieces = self._pieces.take(pa.array(places, mask=absent))
        return texts_of(pieces, is_ascii=self._is_ascii)

    def _take_entries(self, entries: Entries) -> None:
        self._owners = entries.owners
        count = len(self._owners)
        bounds = np.empty((count, 4), np.int32)
        bounds[:, 0] = entries.starts
        bounds[:, 1] = entries.names_end
        bounds[:, 2] = entries.names_end + 1
        bounds[:, 3] = entries.ends
        # Names, separators, values, and what lies between values and the next names.
        self._pieces = binary(self._buffer, bounds.reshape(-1)) if count else _nothing()
        encoded = every(self._pieces, 0, 4).dictionary_encode()
        self._codes: npt.NDArray[np.int32] = encoded.indices.to_numpy()
        self._dictionary = encoded.dictionary
        self._values_at: Ints = np.arange(2, 4 * count + 2, 4)
        counting = self._counting()
        if not counting.all():
            self._owners, self._codes = self._owners[counting], self._codes[counting]
            self._values_at = self._values_at[counting]

    def _counting(self) -> Bools:
        """Mark the entries that count where a name occurs twice in a record: of UNIQ_KEY the first,
        of others the last. Note the first and the last UNIQ_KEY of records that have several.
        """
        counting = self._last_of_doubles()
        nothing = self._values_at[:0]
        self._id_owners: Ints = nothing
        self._id_places = (nothing, nothing)
        unique_id = -1 if counting.all() else self._code_of(p.UNIQ_CLIENT_MESSAGE_ID)
        if unique_id < 0:
            return counting
        ids = np.flatnonzero(self._codes == unique_id)
        begins = np.ones(len(ids), bool)
        begins[1:] = self._owners[ids[1:]] != self._owners[ids[:-1]]
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(ids)) - 1
        several = first < last
        self._id_owners = self._owners[ids[first[several]]]
        self._id_places = (
            self._values_at[ids[first[several]]],
            self._values_at[ids[last[several]]],
        )
        counting[ids] = begins
        return counting

    def _last_of_doubles(self) -> Bools:
        """Mark the entries whose name does not occur again later in the same record."""
        kinds, count = len(self._dictionary), len(self._owners)
        which = self._owners * kinds + self._codes
        order = np.arange(count)
        if len(self) * kinds <= _CELLS * count:
            table = np.zeros(len(self) * kinds, np.int64)
            np.maximum.at(table, which, order)
            last: Bools = table[which] == order
            return last
        last = np.zeros(count, bool)
        _, found = np.unique(which[::-1], return_index=True)
        last[count - 1 - found] = True
        return last


def _nothing() -> Any:
    return pa.array([], pa.binary())
