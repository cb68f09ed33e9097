"""Cut pieces of a window of bytes into an Arrow column, without a Python object for any of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cometmq.protocol.messages.record_columns import Ints


def slices(window: Any, starts: Ints, ends: Ints) -> Any:
    """Return `window[start:end]` for each pair, copied side by side into a binary array.

    `window` is an Arrow buffer of less than 2 GiB. In an Arrow column of bytes, each value begins
    where the one before ends. So this describes a column over the whole window, in which pieces and
    the bytes between them alternate, and then takes every second value.
    """
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    if (starts[1:] < ends[:-1]).any():
        return _unordered(window, starts, ends)
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    return every(binary(window, bounds), 0, 2)


def every(column: Any, first: int, step: int) -> Any:
    """Return every `step`-th value from `first` on."""
    return column.take(pa.array(np.arange(first, len(column), step, dtype=np.int64)))


def binary(window: Any, bounds: Any) -> Any:
    """Return the bytes between each of `bounds` (int32, ascending) and the next."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds, np.int32)), window]
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)


def texts_of(column: Any, *, is_ascii: bool = False) -> Any:
    """Return the binary column as strings; bytes that are no UTF-8 become U+FFFD, as in Java."""
    if is_ascii and column.offset == 0:
        return pa.Array.from_buffers(pa.string(), len(column), column.buffers(), column.null_count)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        values = [value and value.decode("utf-8", "replace") for value in column.to_pylist()]
        return pa.array(values, pa.string())


def _unordered(window: Any, starts: Ints, ends: Ints) -> Any:
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    if (starts[1:] < ends[:-1]).any():
        # Records that occur twice or overlap are copied one by one.
        view = memoryview(window)
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        column = pa.array([bytes(view[start:end]) for start, end in places], pa.binary())
    else:
        column = slices(window, starts, ends)
    return column.take(pa.array(np.argsort(order)))
