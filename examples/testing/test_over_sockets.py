"""The shop with a real broker: real sockets and files, and a fresh store for each test."""

from __future__ import annotations

import asyncio

from cometmq import Message, Producer
from cometmq.testing.local_broker import LocalBroker

from .billing import Billing, Shop


async def charge(number: str) -> None:
    """Stand for a bank that takes every order."""


def test_an_order_is_billed(cometmq_broker: LocalBroker) -> None:
    async def main() -> None:
        async with (
            Shop(cometmq_broker.namesrv) as shop,
            Billing(cometmq_broker.namesrv, charge) as billing,
        ):
            await shop.order("O-1")
            # The fixture's calls block.
            [invoice] = await asyncio.to_thread(cometmq_broker.messages, "invoices", 1)
            assert (invoice.keys, billing.ledger) == (("O-1",), ["O-1"])

    asyncio.run(main())


def test_an_order_outlives_a_restart(
    cometmq_broker: LocalBroker, cometmq_producer: Producer
) -> None:
    cometmq_producer.send(Message("orders", b"espresso", keys=["O-1"]))
    cometmq_broker.restart()
    [order] = cometmq_broker.messages("orders", 1)
    assert order.keys == ("O-1",)
