"""Read units of a consume queue, many at once.

offset in the log 8, size 4, tags code 8
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from cometmq.protocol.messages.record_columns import Bools
from cometmq.store.reading.layout import PLACEHOLDER_SIZE

UNIT_DTYPE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert UNIT_DTYPE.itemsize == 20

Units = npt.NDArray[np.void]


def is_message(units: Units) -> Bools:
    """Say which units stand for messages: not those that were never written, nor placeholders."""
    sizes = units["size"]
    found: Bools = (sizes > 0) & (sizes < PLACEHOLDER_SIZE)
    return found
