"""Decode what brokers report of queues: a table by queue beside a rate."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from cometmq.model.queue import MessageQueue
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.fastjson.queue_table import decode_queue_table, with_text_keys

T = TypeVar("T")


def queue_table_and_rate(
    body: bytes, type_: type[T], rate: str
) -> tuple[dict[MessageQueue, T], float]:
    """Return the table `offsetTable` and the number under `rate`, 0 if there is none."""
    body = with_text_keys(body)
    found = decode_body(body, dict[str, msgspec.Raw]).get(rate)
    per_s = 0.0 if found is None else decode_body(bytes(found), float)
    return decode_queue_table(body, "offsetTable", type_), per_s
