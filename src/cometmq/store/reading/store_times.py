"""Look up in the files of a store when single messages were stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cometmq.errors import ProtocolError
from cometmq.protocol.messages.record import decode_record
from cometmq.store.reading.files import LogFile, QueueFiles
from cometmq.store.reading.units import is_message


def store_time_ms(queue: QueueFiles, offset: int, log: Sequence[LogFile]) -> int | None:
    """Return when the message at this offset of a queue was stored, in ms since the epoch; None if
    the files have no such message.
    """
    units = queue.units(offset, offset + 1)
    if not is_message(units).all():
        return None
    place, size = int(units["physical_offset"][0]), int(units["size"][0])
    for file in log:
        if file.base <= place and place + size <= file.end:
            with Path(file.path).open("rb") as opened:
                opened.seek(place - file.base)
                data = opened.read(size)
            try:
                record = decode_record(data, check_crc=False)
            except ProtocolError:
                return None
            return record.store_timestamp if record.queue_offset == offset else None
    return None
