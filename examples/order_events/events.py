"""One order event, and the message that carries it.

A line of the file is one event as JSON. Which fields are there depends on the event:

| event | further fields |
| --- | --- |
| created | items, amount_cents |
| paid | amount_cents, payment_method |
| packed | warehouse |
| shipped | carrier, tracking |
| delivered | |
| cancelled | reason |
| refunded | amount_cents, reason |

Amounts are hundredths of the order's currency, times UTC. Events stand in the order of their time;
those of one order are numbered from 1 in `sequence`.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from cometmq import Message

DATA_FILE: Final = Path(__file__).with_name("order_events.jsonl.gz")

EventKind = Literal["created", "paid", "packed", "shipped", "delivered", "cancelled", "refunded"]


class Item(msgspec.Struct, frozen=True):
    sku: str
    name: str
    quantity: int
    price_cents: int


class Customer(msgspec.Struct, frozen=True):
    id: str
    tier: str
    city: str
    country: str


class OrderEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    event_id: str
    order_id: str
    sequence: int
    event: EventKind
    at: str
    customer: Customer
    region: str
    currency: str
    items: tuple[Item, ...] = ()
    amount_cents: int | None = None
    payment_method: str | None = None
    warehouse: str | None = None
    carrier: str | None = None
    tracking: str | None = None
    reason: str | None = None


_decoder: Final = msgspec.json.Decoder(OrderEvent)
_encoder: Final = msgspec.json.Encoder()


def load_events(path: Path = DATA_FILE) -> Iterator[OrderEvent]:
    """The events of the file, oldest first."""
    with gzip.open(path) as lines:
        for line in lines:
            yield decode_event(line)


def decode_event(body: bytes) -> OrderEvent:
    """An event from a line of the file or the body of a message. Raises msgspec.DecodeError."""
    return _decoder.decode(body)


def encode_event(event: OrderEvent) -> bytes:
    return _encoder.encode(event)


def to_message(event: OrderEvent, topic: str) -> Message:
    """The event as a message: found by its order's id, selected by its kind.

    The properties are what a consumer may want to see or filter by without reading the body.
    """
    return Message(
        topic,
        encode_event(event),
        tags=event.event,
        keys=event.order_id,
        properties={
            "eventId": event.event_id,
            "sequence": str(event.sequence),
            "region": event.region,
            "customerTier": event.customer.tier,
            "currency": event.currency,
        },
    )
