"""Tell which of the records that `read_columns` finds are whole."""

from __future__ import annotations

import numpy as np
from zlib_ng.zlib_ng import crc32

from cometmq.protocol.messages.record import CRC_MASK
from cometmq.protocol.messages.record_columns import Bools, RecordColumns, field


def crc_holds(view: memoryview, columns: RecordColumns) -> Bools:
    """Say whether the CRC of each record is that of its body; empty bodies are not checked."""
    expected = field(view, "body_crc", columns.starts)
    places = zip(
        columns.body_starts.tolist(), columns.body_ends.tolist(), columns.fit.tolist(), strict=True
    )
    # Where the fields of a record do not fit, nobody knows where its body is.
    sums = np.array(
        [crc32(view[start:end]) & CRC_MASK if fits else -1 for start, end, fits in places], np.int64
    )
    holds: Bools = (sums == expected) | (columns.body_starts == columns.body_ends)
    return holds


def up_to_first(columns: RecordColumns, good: Bools) -> RecordColumns:
    """Return the records in front of the first one that is not `good`."""
    return columns if good.all() else columns.select(slice(int(np.argmin(good))))
