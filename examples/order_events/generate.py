"""Makes the file of order events: `python -m examples.order_events.generate [FILE]`.

The same seed gives the same bytes on every platform and Python: only `Random.random` is drawn from,
whose sequence Python guarantees, and all arithmetic on what it gives is rounded to whole numbers.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import msgspec
from examples.order_events import catalogue
from examples.order_events.catalogue import City
from examples.order_events.events import (
    DATA_FILE,
    Customer,
    EventKind,
    Item,
    OrderEvent,
    encode_event,
)

SEED: Final = 20260302
EVENT_COUNT: Final = 10_000
CUSTOMER_COUNT: Final = 1400
# More orders than fit: the file is cut after EVENT_COUNT events, so some orders are still open.
ORDER_COUNT: Final = 2600
FIRST_DAY: Final = datetime(2026, 3, 2, tzinfo=UTC)
DAYS: Final = 14

T = TypeVar("T")


class Dice:
    """Whole numbers and weighted choices from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def between(self, low: int, high: int) -> int:
        """`low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def choose(self, choices: Sequence[tuple[T, int]]) -> T:
        """One of (value, weight)."""
        position = self.below(sum(weight for _, weight in choices))
        for value, weight in choices:
            position -= weight
            if position < 0:
                return value
        raise AssertionError("a position lies below the sum of the weights")


class Order:
    """Collects the events of one order; `now` moves from each to the next."""

    def __init__(self, number: int, now: datetime, customer: Customer, city: City) -> None:
        self.id = f"O-{FIRST_DAY.year}-{number:06d}"
        self.now = now
        self.customer = customer
        self.city = city
        self.events: list[OrderEvent] = []

    def add(
        self,
        event: EventKind,
        *,
        items: tuple[Item, ...] = (),
        amount_cents: int | None = None,
        payment_method: str | None = None,
        warehouse: str | None = None,
        carrier: str | None = None,
        tracking: str | None = None,
        reason: str | None = None,
    ) -> None:
        self.events.append(
            OrderEvent(
                event_id="",
                order_id=self.id,
                sequence=len(self.events) + 1,
                event=event,
                at=self.now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                customer=self.customer,
                region=self.city.region,
                currency=self.city.currency,
                items=items,
                amount_cents=amount_cents,
                payment_method=payment_method,
                warehouse=warehouse,
                carrier=carrier,
                tracking=tracking,
                reason=reason,
            )
        )

    def after(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)


def generate_events() -> list[OrderEvent]:
    """The events of the file, oldest first, numbered."""
    dice = Dice(SEED)
    customers = [_customer(dice, number) for number in range(1, CUSTOMER_COUNT + 1)]
    starts = sorted(_start(dice) for _ in range(ORDER_COUNT))
    events: list[OrderEvent] = []
    for number, start in enumerate(starts, 1):
        # The square favours low numbers: some customers come back often.
        customer, city = customers[dice.below(dice.between(1, CUSTOMER_COUNT))]
        order = Order(number, start, customer, city)
        _live(dice, order)
        events += order.events
    # Equal times happen; the order's id and sequence then decide, so the result is one.
    events.sort(key=lambda event: (event.at, event.order_id, event.sequence))
    return [
        msgspec.structs.replace(event, event_id=f"E{number:06d}")
        for number, event in enumerate(events[:EVENT_COUNT], 1)
    ]


def _customer(dice: Dice, number: int) -> tuple[Customer, City]:
    city = dice.choose([(city, city.weight) for city in catalogue.CITIES])
    tier = dice.choose(catalogue.TIERS)
    return Customer(f"C-{number:05d}", tier, city.name, city.country), city


def _start(dice: Dice) -> datetime:
    weights = [catalogue.ORDERS_BY_WEEKDAY[day % 7] for day in range(DAYS)]
    day = dice.choose(list(enumerate(weights)))
    hour = dice.choose(list(enumerate(catalogue.ORDERS_BY_HOUR)))
    return FIRST_DAY + timedelta(days=day, hours=hour, milliseconds=dice.below(3_600_000))


def _live(dice: Dice, order: Order) -> None:
    """The life of an order, from its creation to its last event."""
    items = _items(dice, order.city.currency)
    amount_cents = sum(item.quantity * item.price_cents for item in items)
    order.add("created", items=items, amount_cents=amount_cents)
    if dice.chance(6):
        order.after(dice.between(60, 7200))
        order.add("cancelled", reason=dice.choose(catalogue.CANCEL_REASONS))
        return
    method = dice.choose(catalogue.PAYMENT_METHODS)
    # A transfer takes a bank's working day, the others minutes.
    order.after(dice.between(20_000, 90_000) if method == "transfer" else dice.between(8, 900))
    order.add("paid", amount_cents=amount_cents, payment_method=method)
    if dice.chance(2):
        order.after(dice.between(600, 10_800))
        order.add("cancelled", reason="changed mind")
        order.after(dice.between(300, 3600))
        order.add("refunded", amount_cents=amount_cents, reason="cancelled")
        return
    _ship(dice, order)
    if dice.chance(5):
        order.after(dice.between(40_000, 200_000))
        part_cents = amount_cents if dice.chance(60) else items[0].price_cents
        order.add("refunded", amount_cents=part_cents, reason=dice.choose(catalogue.REFUND_REASONS))


def _ship(dice: Dice, order: Order) -> None:
    order.after(dice.between(1800, 30_000))
    order.add("packed", warehouse=catalogue.WAREHOUSES[order.city.region])
    order.after(dice.between(900, 14_400))
    carrier = dice.choose(catalogue.CARRIERS)
    order.add("shipped", carrier=carrier, tracking=f"{carrier}{dice.below(10**10):010d}")
    order.after(dice.between(50_000, 220_000))
    order.add("delivered")


def _items(dice: Dice, currency: str) -> tuple[Item, ...]:
    count = dice.choose([(1, 52), (2, 27), (3, 14), (4, 7)])
    chosen = {
        dice.choose([(product, product.weight) for product in catalogue.PRODUCTS]): None
        for _ in range(count)
    }
    return tuple(
        Item(
            product.sku,
            product.name,
            dice.choose([(1, 70), (2, 20), (3, 7), (6, 3)]),
            product.price_cents * catalogue.RATES[currency] // 100,
        )
        for product in chosen
    )


def lines(events: Sequence[OrderEvent]) -> Iterator[bytes]:
    for event in events:
        yield encode_event(event) + b"\n"


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA_FILE
    # No time and no name in the header: the same events give the same file.
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.writelines(lines(generate_events()))
    print(f"{path}: {EVENT_COUNT} events, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
