"""Decode a large heartbeat in steps, so that a server's loop can serve others in between.

The largest one that is allowed has 16,384 subscriptions: to decode and check it at once holds the
loop for 20 to 60 ms. The first pass only finds where each group begins and ends (a tenth of the time).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from cometmq.model.ranges import Int32
from cometmq.model.subscription import ConsumerData, ProducerData
from cometmq.protocol.bodies import Body, HeartbeatData
from cometmq.protocol.json_dialect import decode_request
from cometmq.protocol.limits import HeartbeatTotals, check_heartbeat

# A shorter one is decoded within a millisecond.
_LARGE_BYTES: Final = 64 * 1024
_NOT_STRICT: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Go's clients send codes as texts.
_consumers: Final = msgspec.json.Decoder(ConsumerData, strict=False)
_producers: Final = msgspec.json.Decoder(ProducerData, strict=False)


class _Outline(Body):
    """A `HeartbeatData` whose groups are not decoded yet."""

    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: list[msgspec.Raw] | None = None
    heartbeat_fingerprint: Int32 | None = None
    producer_data_set: list[msgspec.Raw] | None = None
    without_sub: bool | None = None


_outlines: Final = msgspec.json.Decoder(_Outline, strict=False)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a heartbeat within its limits says. Groups can be gone through once."""

    client_id: str
    fingerprint: int
    without_subscriptions: bool
    consumers: Iterator[ConsumerData]
    producers: Iterator[ProducerData]


def decode_heartbeat(data: bytes) -> Generator[None, None, Heartbeat]:
    """Return a heartbeat that is within its limits; a large one in a step for each group.

    The groups of a large one are decoded once to check them, thrown away, and decoded again when the
    caller comes to them. To keep them in between takes 25 MB for each client, and makes Python's
    collector go through them, which takes longer than to decode them twice. Raises ProtocolError.
    """
    outline = _outline(data)
    if outline is None:
        return _decode_whole(data)
    consumers, producers = outline.consumer_data_set or [], outline.producer_data_set or []
    totals = HeartbeatTotals(outline.client_id, len(consumers) + len(producers))
    try:
        for raw in consumers:
            yield
            totals.add(_consumer(raw))
        for raw in producers:
            yield
            totals.add_producer(_producer(raw))
    except _NOT_STRICT:
        return _decode_whole(data)
    return Heartbeat(
        outline.client_id,
        outline.heartbeat_fingerprint or 0,
        bool(outline.without_sub),
        map(_consumer, consumers),
        map(_producer, producers),
    )


def _decode_whole(data: bytes) -> Heartbeat:
    heartbeat = decode_request(data, HeartbeatData)
    check_heartbeat(heartbeat)
    return Heartbeat(
        heartbeat.client_id,
        heartbeat.heartbeat_fingerprint,
        heartbeat.without_sub,
        iter(heartbeat.consumer_data_set),
        iter(heartbeat.producer_data_set),
    )


# Strict JSON only: in the dialect a group by itself may be another one than within its heartbeat, and
# access control has judged the whole. A reference, however it is escaped, is no group. Numbers as texts
# mean the same in both.
def _consumer(raw: msgspec.Raw) -> ConsumerData:
    return _consumers.decode(raw)


def _producer(raw: msgspec.Raw) -> ProducerData:
    return _producers.decode(raw)


def _outline(data: bytes) -> _Outline | None:
    """Return the outline of a large heartbeat in strict JSON, None for any other.

    A reference of fastjson's dialect may name an object of another group.
    """
    if len(data) < _LARGE_BYTES or b'"$ref"' in data:
        return None
    try:
        return _outlines.decode(data)
    except _NOT_STRICT:
        return None  # decoding it whole says what is wrong, or understands its nulls
