"""A shop and its billing, the service that the tests beside this file test.

The shop sends each order, and a reminder that comes two hours later. Billing charges the customer's
bank for each order and sends an invoice. When the bank fails, the order comes again, each time later;
after the last try it is a dead letter. An invoice is sent in a transaction with the ledger: nobody gets
an invoice that the ledger does not have.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Self

from cometmq import ConsumeResult, LocalTransactionState, Message, MessageExt
from cometmq.aio import Producer, PushConsumer, TransactionProducer

REMINDER_AFTER_MS = 2 * 60 * 60 * 1000
TRIES_AFTER_THE_FIRST = 5

Bank = Callable[[str], Awaitable[None]]


class Shop:
    """Takes orders."""

    def __init__(self, namesrv: str) -> None:
        self._producer = Producer("shop", namesrv=namesrv)

    async def order(self, number: str) -> None:
        """Send an order, and a reminder that comes later."""
        await self._producer.send(Message("orders", b"espresso", keys=[number]))
        await self._producer.send(
            Message("reminders", b"how was it?", keys=[number], delay_ms=REMINDER_AFTER_MS)
        )

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.close()


class Billing:
    """Bills orders. `bank` charges for one, and raises when it cannot."""

    def __init__(self, namesrv: str, bank: Bank) -> None:
        self.ledger: list[str] = []
        self._bank = bank
        self._orders = PushConsumer(
            "billing", self._bill, namesrv=namesrv, max_reconsume_times=TRIES_AFTER_THE_FIRST
        )
        self._orders.subscribe("orders")
        self._invoices = TransactionProducer("invoices", self, namesrv=namesrv)

    async def _bill(self, messages: list[MessageExt]) -> ConsumeResult:
        for message in messages:
            [number] = message.keys
            if number not in self.ledger:  # it may come again although it was billed
                await self._bank(number)
                invoice = Message("invoices", b"2.40", keys=[number])
                await self._invoices.send_in_transaction(invoice, number)
        return ConsumeResult.SUCCESS

    async def execute(self, _: Message, number: Any) -> LocalTransactionState:
        """Write to the ledger: the broker has the invoice, and delivers it after a COMMIT."""
        self.ledger.append(number)
        return LocalTransactionState.COMMIT

    async def check(self, message: MessageExt) -> LocalTransactionState:
        """Look into the ledger: the broker has not heard the outcome of an invoice."""
        [number] = message.keys
        known = number in self.ledger
        return LocalTransactionState.COMMIT if known else LocalTransactionState.ROLLBACK

    async def __aenter__(self) -> Self:
        await self._invoices.start()
        await self._orders.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._orders.close()
        await self._invoices.close()
