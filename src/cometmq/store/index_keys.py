"""The index keys of many records at once, out of the bytes of the log (Java: IndexService.buildIndex).

The key texts of a message are `topic#id` for its unique id, then `topic#k` for each of its KEYS,
which are separated by blanks. Of a text only the hash is kept: abs(String.hashCode), and 0 where
that has no positive counterpart.

All that can be done for a whole batch is done by numpy, which lets go of the interpreter lock
meanwhile: a builder in a thread of its own then costs the loop's thread little.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.model.hashing import java_hash
from cometmq.model.properties import KEYS, UNIQ_CLIENT_MESSAGE_ID
from cometmq.model.sysflag import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
)
from cometmq.protocol.record import (
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    STORE_TIMESTAMP_OFFSET_V4,
    SYS_FLAG_OFFSET,
)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Hashes = npt.NDArray[np.uint32]

_SIZE: Final = struct.Struct(">I")
_MAGIC_OFFSET: Final = 4
_PHYSICAL_OFFSET_OFFSET: Final = 28
_BODY_LENGTH_OFFSET_V4: Final = 84
_V6_WIDER: Final = 12
_NAME_END: Final = 1
_ENTRY_END: Final = 2
_BLANK: Final = 0x20
# Longer keys are hashed one by one: a row of the matrix that hashes the others has this width.
_LONGEST: Final = 128
_POWERS: Final = np.array(
    [pow(31, _LONGEST - 1 - place, 1 << 32) for place in range(_LONGEST)], np.uint32
)
# By the length of what follows; the longest property is shorter than this.
_SHIFTS: Final = np.array([pow(31, length, 1 << 32) for length in range(_LONGEST + 1)], np.uint32)


class IndexKeys(NamedTuple):
    """Keys in the order in which they enter the index, as columns of equal length.

    `hashes` (int64, 0 to 2^31-1), `offsets` in the commit log, `timestamps` of storing in ms.
    """

    hashes: Ints
    offsets: Ints
    timestamps: Ints

    def part(self, start: int, end: int) -> IndexKeys:
        return IndexKeys(
            self.hashes[start:end], self.offsets[start:end], self.timestamps[start:end]
        )


_NO_KEYS: Final = IndexKeys(*(np.zeros(0, np.int64) for _ in range(3)))


class KeyBatch(NamedTuple):
    """`consumed` is how many bytes of the window belong to whole records, all of them looked at."""

    keys: IndexKeys
    consumed: int


def hash_of(topic: str, key: str) -> int:
    """The hash under which the index knows a key of a topic."""
    return _positive(java_hash.__wrapped__(f"{topic}#{key}"))


def _positive(value: int) -> int:
    return 0 if value == -(1 << 31) else abs(value)


def find_keys(window: bytearray, base: int) -> KeyBatch:
    """The keys of the records that stand in `window` one after the other, from its start on.

    `base` is the commit-log offset of the window. Stops in front of anything that is no whole
    record; a record whose fields contradict each other is passed over.
    """
    starts, ends = _walk(window)
    magics = _gather(window, ">u4", starts + _MAGIC_OFFSET)
    own_offsets = _gather(window, ">i8", starts + _PHYSICAL_OFFSET_OFFSET)
    v2 = magics == MAGIC_V2
    bad = (~v2 & (magics != MAGIC_V1)) | (own_offsets != starts + base)
    count = int(np.argmax(bad)) if bad.any() else len(starts)
    if not count:
        return KeyBatch(_NO_KEYS, 0)
    records = _Records(window, starts[:count], ends[:count], v2[:count])
    return KeyBatch(records.keys(base), int(ends[count - 1]))


def _walk(window: bytearray) -> tuple[Ints, Ints]:
    """Where records would begin and end by the sizes they declare."""
    size_at = _SIZE.unpack_from
    last = len(window) - MIN_RECORD_SIZE
    limit = len(window)
    places = [0]
    place = 0
    while place <= last:
        (size,) = size_at(window, place)
        place += size
        if size < MIN_RECORD_SIZE or place > limit:
            break
        places.append(place)
    bounds = np.array(places, np.int64)
    return bounds[:-1], bounds[1:]


def _gather(window: bytearray | Bytes, kind: str, places: Ints) -> Ints:
    """The big-endian numbers at any places, as int64. A place too near the end gives another's."""
    dtype = np.dtype(kind)
    last = len(window) - dtype.itemsize
    if not len(places) or last < 0:
        return np.zeros(len(places), np.int64)
    if places.min() < 0 or places.max() > last:
        places = np.clip(places, 0, last)
    values: npt.NDArray[Any] = np.ndarray((last + 1,), dtype, window, strides=(1,))
    return values[places].astype(np.int64)


class _Records:
    """Records of a window, at least one, as columns."""

    def __init__(
        self, window: bytearray, starts: Ints, ends: Ints, v2: npt.NDArray[np.bool_]
    ) -> None:
        flags = _gather(window, ">i4", starts + SYS_FLAG_OFFSET)
        timestamps_at = starts + STORE_TIMESTAMP_OFFSET_V4
        body_lengths_at = starts + _BODY_LENGTH_OFFSET_V4
        if (flags & (BORN_HOST_V6 | STORE_HOST_V6)).any():
            born_wider = np.where(flags & BORN_HOST_V6, _V6_WIDER, 0)
            timestamps_at += born_wider
            body_lengths_at += born_wider + np.where(flags & STORE_HOST_V6, _V6_WIDER, 0)
        body_lengths = _gather(window, ">i4", body_lengths_at)
        topic_lengths_at = body_lengths_at + 4 + body_lengths
        topic_lengths = _gather(window, "u1", topic_lengths_at)
        topics_at = topic_lengths_at + 1
        if v2.any():
            topic_lengths[v2] = _gather(window, ">u2", topic_lengths_at[v2])
            topics_at += v2
        lengths_at = topics_at + topic_lengths
        property_lengths = _gather(window, ">u2", lengths_at)
        sound = (
            (body_lengths >= 0)
            & (lengths_at + 2 + property_lengths == ends)
            & (flags & TRANSACTION_MASK != TRANSACTION_ROLLBACK)
        )
        if not sound.all():
            starts, ends, topics_at = starts[sound], ends[sound], topics_at[sound]
            timestamps_at, topic_lengths = timestamps_at[sound], topic_lengths[sound]
        self.offsets = starts
        self.timestamps = _gather(window, ">i8", timestamps_at)
        self._topic_lengths = topic_lengths
        self._cut_out(window, topics_at, ends)

    def _cut_out(self, window: bytearray, starts: Ints, ends: Ints) -> None:
        """Topics and properties side by side: `topic 02 02 properties 02`, so that every entry
        of the properties has an 02 on both sides.
        """
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        pieces = [window[start:end] for start, end in places]
        # In front of it all the room that a row of `_hash` reaches back, and an 02 behind it.
        joined = bytearray((_ENTRY_END,)).join([bytes(_LONGEST - 1), *pieces, b""])
        self._joined = joined
        self._text: Bytes = np.frombuffer(joined, np.uint8)
        lengths = ends - starts + 1
        self._starts = np.cumsum(lengths) - lengths + _LONGEST
        # The length of the properties stood there.
        lengths_at = self._starts + self._topic_lengths
        self._text[lengths_at] = _ENTRY_END
        self._text[lengths_at + 1] = _ENTRY_END

    def keys(self, base: int) -> IndexKeys:
        if not len(self.offsets):
            return _NO_KEYS
        entries_end = np.flatnonzero(self._text == _ENTRY_END)
        first_letters = _gather(self._text, ">u4", entries_end[:-1] + 1)
        owners, starts, ends = self._values(entries_end, first_letters, UNIQ_CLIENT_MESSAGE_ID)
        words = self._words(*self._values(entries_end, first_letters, KEYS))
        if len(words[0]):
            owners = np.concatenate((owners, words[0]))
            # Stable: a message's unique id comes first, then its keys in their order.
            order = np.argsort(owners, kind="stable")
            owners = owners[order]
            starts = np.concatenate((starts, words[1]))[order]
            ends = np.concatenate((ends, words[2]))[order]
        hashes = self._hash_keys(owners, starts, ends)
        return IndexKeys(hashes, self.offsets[owners] + base, self.timestamps[owners])

    def _values(self, entries_end: Ints, first_letters: Ints, name: str) -> tuple[Ints, Ints, Ints]:
        """Record, start and end of the property's value, for each record that has it."""
        encoded = name.encode()
        at = np.flatnonzero(first_letters == int.from_bytes(encoded[:4], "big"))
        for place, letter in enumerate(encoded[4:] + bytes((_NAME_END,)), 5):
            # Too long a name to be there leads past the end of the text at most to its last byte.
            letters = np.minimum(entries_end[at] + place, len(self._text) - 1)
            at = at[self._text[letters] == letter]
        starts = entries_end[at] + len(encoded) + 2
        ends = entries_end[at + 1]
        owners = np.searchsorted(self._starts, starts, "right") - 1
        # Of a property that stands twice the last one counts, but none without a value.
        valued = (ends > starts) & (starts > self._starts[owners] + self._topic_lengths[owners])
        if not valued.all():
            owners, starts, ends = owners[valued], starts[valued], ends[valued]
        last = np.ones(len(owners), bool)
        last[:-1] = owners[1:] != owners[:-1]
        return (owners, starts, ends) if last.all() else (owners[last], starts[last], ends[last])

    def _words(self, owners: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """The blank-separated words of values, without empty ones."""
        if not len(owners):
            return owners, starts, ends
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

    def _hash_keys(self, owners: Ints, starts: Ints, ends: Ints) -> Ints:
        topic_ends = self._starts + self._topic_lengths
        topics, strange_topics = self._hash(self._starts, topic_ends)
        keys, strange_keys = self._hash(starts, ends)
        # h("topic#" + key) = h("topic#") * 31^len(key) + h(key), all modulo 2^32.
        heads = topics * np.uint32(31) + np.uint32(ord("#"))
        shifts = _SHIFTS[np.minimum(ends - starts, _LONGEST)]
        signed = (heads[owners] * shifts + keys).view(np.int32).astype(np.int64)
        hashes: Ints = np.abs(signed)
        hashes[hashes == 1 << 31] = 0
        for at in np.flatnonzero(strange_keys | strange_topics[owners]).tolist():
            owner = owners[at]
            topic = self._decode(int(self._starts[owner]), int(topic_ends[owner]))
            hashes[at] = hash_of(topic, self._decode(int(starts[at]), int(ends[at])))
        return hashes

    def _hash(self, starts: Ints, ends: Ints) -> tuple[Hashes, npt.NDArray[np.bool_]]:
        """Hashes of pieces of text, and which of them are wrong: those not of ASCII, or too long.

        A row holds the bytes up to a piece's end, of which those before its start count as zeros.
        """
        lengths = ends - starts
        width = int(min(lengths.max(initial=1), _LONGEST))
        rows: Bytes = np.ndarray(
            (len(self._text) - width + 1, width), np.uint8, self._joined, strides=(1, 1)
        )
        units = rows[ends - width]
        if (lengths != width).any():
            units *= np.arange(width) >= width - lengths[:, None]
        strange = lengths > _LONGEST
        if units.max(initial=0) >= 0x80:
            strange |= (units >= 0x80).any(axis=1)
        hashes: Hashes = units.astype(np.uint32) @ _POWERS[_LONGEST - width :]
        return hashes, strange

    def _decode(self, start: int, end: int) -> str:
        return self._joined[start:end].decode("utf-8", "replace")
