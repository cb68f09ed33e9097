"""Reads whole batches, as brokers read them in parts."""

from __future__ import annotations

from cometmq.protocol.messages.batch import MAX_BATCH_MESSAGES, BatchEntry, decode_some


def decode_batch(data: bytes) -> list[BatchEntry]:
    """Return all sub-messages of a batch. Raise ProtocolError."""
    entries, end = decode_some(data, 0, 0, MAX_BATCH_MESSAGES + 1)
    assert end == len(data)
    return entries
