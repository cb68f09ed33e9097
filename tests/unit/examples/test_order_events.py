"""The order events: made from their seed alone, whole lifecycles, each one a message."""

from __future__ import annotations

import gzip
from collections import defaultdict

import pytest
from examples.order_events import OrderEvent, load_events, to_message
from examples.order_events.events import DATA_FILE, decode_event
from examples.order_events.generate import generate_events, lines

# What may follow what in the life of an order.
FOLLOWERS = {
    None: {"created"},
    "created": {"paid", "cancelled"},
    "paid": {"packed", "cancelled"},
    "packed": {"shipped"},
    "shipped": {"delivered"},
    "delivered": {"refunded"},
    "cancelled": {"refunded"},
    "refunded": set(),
}


@pytest.fixture(scope="module")
def events() -> list[OrderEvent]:
    return list(load_events())


def test_the_seed_gives_the_committed_file_byte_for_byte() -> None:
    # The unpacked bytes: another zlib may pack the same text differently.
    assert gzip.decompress(DATA_FILE.read_bytes()) == b"".join(lines(generate_events()))


def test_the_file_is_small_and_has_ten_thousand_events(events: list[OrderEvent]) -> None:
    assert DATA_FILE.stat().st_size < 1_000_000
    assert len(events) == len({event.event_id for event in events}) == 10_000
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert len({event.customer.city for event in events}) == 12
    assert {event.event for event in events} == FOLLOWERS.keys() - {None}


def test_every_order_lives_a_possible_life(events: list[OrderEvent]) -> None:
    orders: dict[str, list[OrderEvent]] = defaultdict(list)
    for event in events:
        orders[event.order_id].append(event)
    assert len(orders) > 2000
    for order in orders.values():
        assert [event.sequence for event in order] == list(range(1, len(order) + 1))
        before = None
        for event in order:
            assert event.event in FOLLOWERS[before]
            before = event.event
        first = order[0]
        assert first.amount_cents == sum(i.quantity * i.price_cents for i in first.items) > 0
        for refund in (event for event in order if event.event == "refunded"):
            assert 0 < (refund.amount_cents or 0) <= first.amount_cents


def test_nights_are_quiet(events: list[OrderEvent]) -> None:
    hours = [int(event.at[11:13]) for event in events if event.event == "created"]
    assert sum(1 <= hour < 6 for hour in hours) * 10 < sum(17 <= hour < 22 for hour in hours)


def test_an_event_is_a_message_with_key_tag_and_properties(events: list[OrderEvent]) -> None:
    event = events[3]
    message = to_message(event, "orders")
    assert message.topic == "orders"
    assert message.keys == (event.order_id,)
    assert message.tags == event.event
    assert message.properties["region"] == event.region
    assert message.properties["customerTier"] == event.customer.tier
    assert decode_event(message.body) == event
