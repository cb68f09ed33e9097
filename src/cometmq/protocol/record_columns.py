"""Read many records of the log at once, as columns of numbers (layout: `cometmq.protocol.record`).

One Python step per record finds where the record begins; numpy does the rest for a whole window at
a time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cometmq.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from cometmq.protocol.record import (
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    STORE_TIMESTAMP_OFFSET_V4,
    SYS_FLAG_OFFSET,
)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Window = bytes | bytearray | memoryview

_SIZE: Final = struct.Struct(">I")
_MAGIC_OFFSET: Final = 4
_PHYSICAL_OFFSET_OFFSET: Final = 28
_BODY_LENGTH_OFFSET_V4: Final = 84
_V6_WIDER: Final = 12


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records by their places in a window; `ends` are also the ends of their properties.

    `fit` says whether the lengths of a record's fields make up its size. If they do not, the places
    inside the record mean nothing.
    """

    starts: Ints
    ends: Ints
    sys_flags: Ints
    store_timestamps: Ints
    body_starts: Ints
    body_ends: Ints
    topic_starts: Ints
    topic_ends: Ints
    fit: Bools

    def __len__(self) -> int:
        return len(self.starts)

    def select(self, which: Bools | slice) -> RecordColumns:
        return RecordColumns(
            self.starts[which],
            self.ends[which],
            self.sys_flags[which],
            self.store_timestamps[which],
            self.body_starts[which],
            self.body_ends[which],
            self.topic_starts[which],
            self.topic_ends[which],
            self.fit[which],
        )


def read_columns(window: Window, start: int, limit: int, base: int | None) -> RecordColumns:
    """Return the records that stand in `window` one after the other from `start` on and end by
    `limit`.

    `base` is the window's commit-log offset, or None if the window is not part of the log but the
    answer to a pull. Stop at the first record whose size, magic or own offset is wrong.
    """
    return columns_at(window, *_walk(window, start, limit), base)


def columns_at(window: Window, starts: Ints, ends: Ints, base: int | None) -> RecordColumns:
    """Return the columns of records whose places are known, for example from a consume queue.

    Stop as `read_columns` does.
    """
    magics = gather(window, ">u4", starts + _MAGIC_OFFSET)
    v2 = magics == MAGIC_V2
    bad = ~v2 & (magics != MAGIC_V1)
    if base is not None:
        bad |= gather(window, ">i8", starts + _PHYSICAL_OFFSET_OFFSET) != starts + base
    if bad.any():
        count = int(np.argmax(bad))
        starts, ends, v2 = starts[:count], ends[:count], v2[:count]
    return _columns(window, starts, ends, v2)


def _columns(window: Window, starts: Ints, ends: Ints, v2: Bools) -> RecordColumns:
    flags = gather(window, ">i4", starts + SYS_FLAG_OFFSET)
    timestamps_at = starts + STORE_TIMESTAMP_OFFSET_V4
    body_lengths_at = starts + _BODY_LENGTH_OFFSET_V4
    if (flags & (BORN_HOST_V6 | STORE_HOST_V6)).any():
        born_wider = np.where(flags & BORN_HOST_V6, _V6_WIDER, 0)
        timestamps_at += born_wider
        body_lengths_at += born_wider + np.where(flags & STORE_HOST_V6, _V6_WIDER, 0)
    body_lengths = gather(window, ">i4", body_lengths_at)
    body_starts = body_lengths_at + 4
    body_ends = body_starts + body_lengths
    topic_lengths = gather(window, "u1", body_ends)
    topic_starts = body_ends + 1
    if v2.any():
        topic_lengths[v2] = gather(window, ">u2", body_ends[v2])
        topic_starts += v2
    topic_ends = topic_starts + topic_lengths
    properties_ends = topic_ends + 2 + gather(window, ">u2", topic_ends)
    return RecordColumns(
        starts,
        ends,
        flags,
        gather(window, ">i8", timestamps_at),
        body_starts,
        body_ends,
        topic_starts,
        topic_ends,
        (body_lengths >= 0) & (properties_ends == ends),
    )


def _walk(window: Window, start: int, limit: int) -> tuple[Ints, Ints]:
    """Return where records would begin and end by the sizes that they declare."""
    size_at = _SIZE.unpack_from
    last = limit - MIN_RECORD_SIZE
    places = [start]
    place = start
    while place <= last:
        (size,) = size_at(window, place)
        place += size
        if size < MIN_RECORD_SIZE or place > limit:
            break
        places.append(place)
    bounds = np.array(places, np.int64)
    return bounds[:-1], bounds[1:]


def gather(window: Window | Bytes, kind: str, places: Ints) -> Ints:
    """Return the big-endian numbers at any places, as int64.

    For a place outside the window, or too near its end, return the number at the nearest place
    inside.
    """
    dtype = np.dtype(kind)
    last = len(window) - dtype.itemsize
    if not len(places) or last < 0:
        return np.zeros(len(places), np.int64)
    if places.min() < 0 or places.max() > last:
        places = np.clip(places, 0, last)
    values: npt.NDArray[Any] = np.ndarray((last + 1,), dtype, window, strides=(1,))
    return values[places].astype(np.int64)
