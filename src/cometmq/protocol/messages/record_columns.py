"""Read many records of the log at once, as columns of numbers (`record_layout` has their layout).

One Python step per record finds where the record begins; numpy does the rest for a whole window at
a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cometmq.model.sysflag import BORN_HOST_V6, STORE_HOST_V6
from cometmq.protocol.messages.record import MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from cometmq.protocol.messages.record_layout import (
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
_SIZES: Final = FIELDS["size"].kind
# With so many runs it takes less time to find the first records of all of them, then the second ones
# and so on, than to go from record to record in Python.
_FEW_RUNS: Final = 16


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


def read_runs(window: Window, runs: Sequence[tuple[int, int]]) -> RecordColumns | None:
    """Return the records of runs, each of which is records one after the other from a place in `window`
    to below another, as the answer to a pull is. The runs stand in the order of their places.

    Return None if there is anything else in a run.
    """
    places = np.array(runs, np.int64).reshape(-1, 2)
    if not len(places):
        return _columns(window, *_walk(window, 0, 0), np.zeros(0, bool))
    found = _walk_together(window, places[:, 0], places[:, 1])
    if found is None:
        return None
    starts = np.sort(np.concatenate(found))
    ends = np.append(starts[1:], 0)
    ends[np.searchsorted(starts, places[:, 1]) - 1] = places[:, 1]
    columns = columns_at(window, starts, ends, None)
    return columns if len(columns) == len(starts) and columns.fit.all() else None


def columns_at(window: Window, starts: Ints, ends: Ints, base: int | None) -> RecordColumns:
    """Return the columns of records whose places are known, for example from a consume queue.

    Stop as `read_columns` does.
    """
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


def _walk_together(window: Window, starts: Ints, ends: Ints) -> list[Ints] | None:
    """Return where the records of several runs begin, None if one does not end with its run."""
    found: list[Ints] = []
    if len(starts) < _FEW_RUNS:
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            of_one, ends_of_one = _walk(window, start, end)
            if not len(of_one) or ends_of_one[-1] != end:
                return None
            found.append(of_one)
        return found
    sizes_at = _at_any_place(window, _SIZES)
    lasts = np.minimum(ends, len(window)) - MIN_RECORD_SIZE
    while len(starts):
        if (starts > lasts).any():
            return None
        found.append(starts)
        sizes = sizes_at[starts].astype(np.int64)
        if sizes.min() < MIN_RECORD_SIZE:
            return None
        starts = starts + sizes
        more = starts != ends
        if not more.all():
            starts, ends, lasts = starts[more], ends[more], lasts[more]
    return found


def field(window: Window | Bytes, name: str, starts: Ints) -> Ints:
    """Gather a number of each record that begins at `starts`, as int64: a field of FIELDS, which
    nothing wider than an IPv4 host may stand in front of.
    """
    at, _ = found = FIELDS[name]
    return gather(window, found.kind, starts + at)


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
    return _at_any_place(window, kind)[places].astype(np.int64)


def _at_any_place(window: Window | Bytes, kind: str) -> npt.NDArray[Any]:
    """Return the numbers that begin at each place of the window: they overlap."""
    dtype = np.dtype(kind)
    return np.ndarray((len(window) - dtype.itemsize + 1,), dtype, window, strides=(1,))
