"""Encode and read delivery notes: which waiting records the records behind a note are copies of.

A note is a record of the log that no consumer sees. It has the flag of a transaction that was rolled
back, so no broker, ours or Java's, puts it into a consume queue or the index:

    topic                         rmq_sys_delivery_note
    sys flag                      0xC, rolled back
    prepared transaction offset   -1: no other record has a negative number there, and clients set none
    body                          commit-log offsets of waiting records, int64 each

The records behind a note, up to the next note, may be copies of these waiting records, in their
order. The note is written first, so it may name more records than were copied before a kill or a
refusal. So readers compare each record with the one that it may be a copy of
(`cometmq.broker.delays.state`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from cometmq.model.names import DELIVERY_NOTE_TOPIC
from cometmq.model.sysflag import TRANSACTION_ROLLBACK
from cometmq.protocol.messages.record import StoredRecord, encode_record, record_size

MARK: Final = -1
_TOPIC: Final = DELIVERY_NOTE_TOPIC.encode()
_PLACE_SIZE: Final = 8


def note_size(count: int, store_host: bytes) -> int:
    """Return how many bytes a note about `count` copies takes."""
    return record_size(_PLACE_SIZE * count, len(_TOPIC), 0, store_host, store_host)


def encode_note(
    origins: Sequence[int], *, physical_offset: int, now_ms: int, store_host: bytes
) -> bytes:
    """Encode the note that belongs at `physical_offset`, in front of copies of `origins`."""
    return encode_record(
        topic=_TOPIC,
        body=struct.pack(f">{len(origins)}q", *origins),
        properties=b"",
        queue_id=0,
        queue_offset=0,
        physical_offset=physical_offset,
        sys_flag=TRANSACTION_ROLLBACK,
        born_timestamp=now_ms,
        born_host=store_host,
        store_timestamp=now_ms,
        store_host=store_host,
        prepared_transaction_offset=MARK,
    )


def named_origins(record: StoredRecord) -> tuple[int, ...]:
    """Return the commit-log offsets that a note names; none for any other record."""
    if record.topic != DELIVERY_NOTE_TOPIC or record.prepared_transaction_offset != MARK:
        return ()
    count = len(record.body) // _PLACE_SIZE
    return struct.unpack_from(f">{count}q", record.body)
