"""Take the topics and properties of many records apart at once, with numpy.

Java: MessageDecoder.string2messageProperties; layout: `cometmq.protocol.messages.properties`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.protocol.messages.record_columns import (
    Bools,
    Bytes,
    Ints,
    RecordColumns,
    Window,
    gather,
)

Hashes = npt.NDArray[np.uint32]
# Index of the record, start and end of a text, as columns of equal length.
Pieces = tuple[Ints, Ints, Ints]

_NAME_END: Final = 1
_ENTRY_END: Final = 2
_BLANK: Final = 0x20
# The longest text that is hashed here, as the matrix that hashes texts has rows of this width.
LONGEST: Final = 128
_POWERS: Final = np.array(
    [pow(31, LONGEST - 1 - place, 1 << 32) for place in range(LONGEST)], np.uint32
)


class Entries(NamedTuple):
    """Properties, as columns of equal length: the index of the record, where the name begins, where
    it ends (an 01 stands there, and the value behind it), where the value ends.
    """

    owners: Ints
    starts: Ints
    names_end: Ints
    ends: Ints


class RecordTexts:
    """The texts of at least one record. The columns must say of all records that they `fit`.

    The texts stand side by side in one array, as `topic 02 02 properties 02`, so that every
    property has an 02 on both sides. Starts, ends and places are indexes into this array.

    `pieces` are the bytes of all records from one in front of the topic on to their ends, side by
    side, where a caller has a quicker way to them.
    """

    def __init__(self, window: Window, columns: RecordColumns, pieces: Bytes | None = None) -> None:
        lengths = columns.ends - columns.topic_starts + 1
        self.starts = np.cumsum(lengths) - lengths + LONGEST
        # Zeros come first, because a row of `_rows` reaches so far back, and then an 02.
        if pieces is None:
            places = zip(columns.topic_starts.tolist(), columns.ends.tolist(), strict=True)
            texts = [window[start:end] for start, end in places]
            joined = bytearray((_ENTRY_END,)).join([bytes(LONGEST - 1), *texts, b""])
            self._text: Bytes = np.frombuffer(joined, np.uint8)
        else:
            joined = bytearray(LONGEST + len(pieces))
            self._text = np.frombuffer(joined, np.uint8)
            self._text[LONGEST - 1 : -1] = pieces
            self._text[self.starts - 1] = _ENTRY_END
            self._text[-1] = _ENTRY_END
        self.joined = joined
        self.topic_ends = self.starts + (columns.topic_ends - columns.topic_starts)
        # These two bytes held the length of the properties.
        self._text[self.topic_ends] = _ENTRY_END
        self._text[self.topic_ends + 1] = _ENTRY_END

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def _entries_end(self) -> Ints:
        return np.flatnonzero(self._text == _ENTRY_END)

    @cached_property
    def _first_letters(self) -> Ints:
        return gather(self._text, ">u4", self._entries_end[:-1] + 1)

    def is_ascii(self) -> bool:
        return bool(self._text.max() < 0x80)

    def owners(self, places: Ints) -> Ints:
        """Return the indexes of the records that the places belong to."""
        return np.searchsorted(self.starts, places, "right") - 1

    def with_zeros(self) -> Ints:
        """Return the indexes of the records whose topic or properties hold a zero byte."""
        return np.unique(self.owners(np.flatnonzero(self._text[LONGEST:] == 0) + LONGEST))

    def values(self, name: str) -> Pieces:
        """Return the property's value for each record that has it.

        `name` must have four letters or more.
        """
        encoded = name.encode()
        at = np.flatnonzero(self._first_letters == int.from_bytes(encoded[:4], "big"))
        for place, letter in enumerate(encoded[4:] + bytes((_NAME_END,)), 5):
            # Near the end of the text look at its last byte instead: it is no letter of any name.
            letters = np.minimum(self._entries_end[at] + place, len(self._text) - 1)
            at = at[self._text[letters] == letter]
        starts = self._entries_end[at] + len(encoded) + 2
        ends = self._entries_end[at + 1]
        owners = self.owners(starts)
        # If a property stands twice, the last one counts. A property without a value never counts.
        valued = (ends > starts) & (starts > self.topic_ends[owners])
        if not valued.all():
            owners, starts, ends = owners[valued], starts[valued], ends[valued]
        last = np.ones(len(owners), bool)
        last[:-1] = owners[1:] != owners[:-1]
        return (owners, starts, ends) if last.all() else (owners[last], starts[last], ends[last])

    def entries(self) -> Entries:
        """Return the properties of all records, in their order. Those without a name or a value
        are left out; those that stand twice are not.
        """
        separators = np.flatnonzero(self._text - np.uint8(_NAME_END) < _ENTRY_END)
        is_end = np.flatnonzero(self._text[separators] == _ENTRY_END)
        bounds = separators[is_end]
        starts, ends = bounds[:-1], bounds[1:]
        # Without an 01 between two 02, this is the second 02.
        names_end = separators[is_end[:-1] + 1]
        good = (names_end > starts + 1) & (names_end + 1 < ends)
        is_topic = np.zeros(len(starts), bool)
        is_topic[np.searchsorted(starts, self.starts - 1)] = True
        good &= ~is_topic
        owners = np.cumsum(is_topic) - 1
        return Entries(owners[good], starts[good] + 1, names_end[good], ends[good])

    def words(self, values: Pieces) -> Pieces:
        """Split values at blanks and return the words, without empty ones."""
        owners, starts, ends = values
        if not len(owners):
            return values
        blanks = np.flatnonzero(self._text == _BLANK)
        value = np.searchsorted(starts, blanks, "right") - 1
        inside = (value >= 0) & (blanks < ends[value])
        blanks = blanks[inside]
        owners = np.concatenate((owners, owners[value[inside]]))
        starts = np.concatenate((starts, blanks + 1))
        order = np.argsort(starts, kind="stable")
        owners, starts = owners[order], starts[order]
        ends = np.sort(np.concatenate((ends, blanks)))
        full = ends > starts
        return owners[full], starts[full], ends[full]

    def hashes(self, starts: Ints, ends: Ints) -> tuple[Hashes, Bools]:
        """Return Java's String.hashCode of pieces of text, and which of these hashes are wrong:
        those of pieces that are not ASCII or longer than LONGEST.
        """
        lengths = ends - starts
        units = self._rows(lengths, ends)
        strange = lengths > LONGEST
        if units.max(initial=0) >= 0x80:
            strange |= (units >= 0x80).any(axis=1)
        hashes: Hashes = units.astype(np.uint32) @ _POWERS[LONGEST - units.shape[1] :]
        return hashes, strange

    def _rows(self, lengths: Ints, ends: Ints) -> npt.NDArray[np.uint8]:
        """Return a matrix with a row for each piece: zeros, then the piece up to its end."""
        width = int(min(lengths.max(initial=1), LONGEST))
        rows: Bytes = np.ndarray(
            (len(self._text) - width + 1, width), np.uint8, self.joined, strides=(1, 1)
        )
        units = rows[ends - width]
        if (lengths != width).any():
            units *= np.arange(width) >= width - lengths[:, None]
        return units

    def same_topics(self, others: Ints) -> Bools:
        """Say of each record whether it has the same topic as the record with its index in
        `others`.

        Of longer topics only the last LONGEST bytes and the lengths are compared.
        """
        lengths = self.topic_ends - self.starts
        rows = self._rows(lengths, self.topic_ends)
        same: Bools = (rows == rows[others]).all(axis=1) & (lengths == lengths[others])
        return same

    def decode(self, start: int, end: int) -> str:
        return self.joined[start:end].decode("utf-8", "replace")
