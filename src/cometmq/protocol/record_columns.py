"""Many records of the log at once, as columns of numbers (layout: `cometmq.protocol.record_layout`).

One Python step per record finds where each begins; all else is numpy, for a whole window at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cometmq.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from cometmq.protocol.record import MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from cometmq.protocol.record_layout import (
    BODY_LENGTH_AT,
    FIELDS,
    HOSTS_V6,
    STORE_TIMESTAMP_AT,
    V6_WIDER,
    record_struct,
)

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Window = bytes | bytearray | memoryview

_SIZE: Final = record_struct("size")


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records by their places in a window: `ends` are those of their properties too.

    `fit` says whether the lengths of a record's fields make up its size; where they do not, the
    places inside of it mean nothing.
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
    """The records that stand in `window` one after the other from `start` on, whole below `limit`.

    `base` is the commit-log offset of the window, None where it is no part of the log but an answer
    to a pull. Stops in front of what is no record by its size, its magic or the offset that it
    claims for itself.
    """
    return columns_at(window, *_walk(window, start, limit), base)


def columns_at(window: Window, starts: Ints, ends: Ints, base: int | None) -> RecordColumns:
    """As `read_columns`, of records whose places are known, from a consume queue say."""
    magics = field(window, "magic", starts)
    v2 = magics == MAGIC_V2
    bad = ~v2 & (magics != MAGIC_V1)
    if base is not None:
        bad |= field(window, "physical_offset", starts) != starts + base
    if bad.any():
        count = int(np.argmax(bad))
        starts, ends, v2 = starts[:count], ends[:count], v2[:count]
    return _columns(window, starts, ends, v2)


def _columns(window: Window, starts: Ints, ends: Ints, v2: Bools) -> RecordColumns:
    flags = field(window, "sys_flag", starts)
    timestamps_at = starts + STORE_TIMESTAMP_AT
    body_lengths_at = starts + BODY_LENGTH_AT
    if (flags & HOSTS_V6).any():
        born_wider = np.where(flags & BORN_HOST_V6, V6_WIDER, 0)
        timestamps_at += born_wider
        body_lengths_at += born_wider + np.where(flags & STORE_HOST_V6, V6_WIDER, 0)
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
    """Where records would begin and end by the sizes they declare."""
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


def field(window: Window | Bytes, name: str, starts: Ints) -> Ints:
    """Gather a number of each record that begins at `starts`, as int64: a field of FIELDS, which
    nothing wider than an IPv4 host may stand in front of.
    """
    at, _ = found = FIELDS[name]
    return gather(window, found.kind, starts + at)


def gather(window: Window | Bytes, kind: str, places: Ints) -> Ints:
    """The big-endian numbers at any places, as int64. A place too near the end gives another's."""
    dtype = np.dtype(kind)
    last = len(window) - dtype.itemsize
    if not len(places) or last < 0:
        return np.zeros(len(places), np.int64)
    if places.min() < 0 or places.max() > last:
        places = np.clip(places, 0, last)
    values: npt.NDArray[Any] = np.ndarray((last + 1,), dtype, window, strides=(1,))
    return values[places].astype(np.int64)
