"""The fields of a stored record, whether its class is compiled, and so has no `__slots__`, or not."""

from __future__ import annotations

import inspect
from typing import Final

from cometmq.protocol.messages.record import StoredRecord

RECORD_FIELDS: Final = tuple(
    name
    for name, value in vars(StoredRecord).items()
    if inspect.isdatadescriptor(value) and not name.startswith("_")
)
assert {"body", "queue_offset", "total_size"} < set(RECORD_FIELDS)
