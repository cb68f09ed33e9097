"""Hours of the shop in seconds: a cluster in virtual time, with faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq import LocalTransactionState, Message
from cometmq.aio import AdminClient
from cometmq.testing import Cluster

from .billing import TRIES_AFTER_THE_FIRST, Billing, Shop


class Bank:
    """Charges for every order, unless it is closed."""

    def __init__(self) -> None:
        self.is_open = True
        self.asked: list[str] = []

    async def __call__(self, number: str) -> None:
        self.asked.append(number)
        if not self.is_open:
            raise ConnectionError("the bank is closed")


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
async def shop(cometmq_cluster: Cluster) -> AsyncIterator[Shop]:
    async with Shop(cometmq_cluster.namesrv) as shop:
        yield shop


@pytest.fixture
async def billing(cometmq_cluster: Cluster, bank: Bank) -> AsyncIterator[Billing]:
    async with Billing(cometmq_cluster.namesrv, bank) as billing:
        yield billing


async def test_an_order_is_billed(cometmq_cluster: Cluster, shop: Shop, billing: Billing) -> None:
    await shop.order("O-1")
    [invoice] = await cometmq_cluster.messages("invoices", 1)
    assert invoice.keys == ("O-1",)
    assert billing.ledger == ["O-1"]


@pytest.mark.usefixtures("billing")
async def test_an_order_is_tried_again_until_the_bank_opens(
    cometmq_cluster: Cluster, shop: Shop, bank: Bank
) -> None:
    bank.is_open = False
    await shop.order("O-1")
    await asyncio.sleep(60)
    assert await cometmq_cluster.messages("invoices") == []
    bank.is_open = True
    await cometmq_cluster.wait_consumed("billing")
    assert len(await cometmq_cluster.messages("invoices")) == 1
    assert await cometmq_cluster.dead_letters("billing") == []


@pytest.mark.usefixtures("billing")
async def test_an_order_that_the_bank_never_takes_is_a_dead_letter(
    cometmq_cluster: Cluster, shop: Shop, bank: Bank
) -> None:
    bank.is_open = False
    await shop.order("O-1")
    [letter] = await cometmq_cluster.dead_letters("billing", 1, within_s=3600)
    assert letter.keys == ("O-1",)
    assert bank.asked == ["O-1"] * (1 + TRIES_AFTER_THE_FIRST)
    assert await cometmq_cluster.lag("billing") == 0


async def test_a_reminder_comes_after_two_hours(cometmq_cluster: Cluster, shop: Shop) -> None:
    await shop.order("O-1")
    await asyncio.sleep(2 * 3600 - 60)
    assert await cometmq_cluster.messages("reminders") == []
    [reminder] = await cometmq_cluster.messages("reminders", 1, within_s=120)
    assert reminder.keys == ("O-1",)


async def test_the_broker_asks_for_what_it_did_not_hear(
    cometmq_cluster: Cluster, shop: Shop, billing: Billing, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forgetful(_: Message, number: str) -> LocalTransactionState:
        billing.ledger.append(number)
        return LocalTransactionState.UNKNOWN

    monkeypatch.setattr(billing, "execute", forgetful)
    await shop.order("O-1")
    await asyncio.sleep(3)
    assert (billing.ledger, await cometmq_cluster.messages("invoices")) == (["O-1"], [])
    await cometmq_cluster.messages("invoices", 1, within_s=300)


@pytest.mark.cometmq_cluster(brokers=2, seed=7)
async def test_no_order_is_lost_with_a_broker(
    cometmq_cluster: Cluster, shop: Shop, billing: Billing
) -> None:
    async with AdminClient(cometmq_cluster.namesrv) as admin:
        for topic in ("orders", "reminders", "invoices"):
            await admin.topics.create(
                topic
            )  # at both brokers; else it is made where it is first sent
    numbers = [f"O-{number}" for number in range(20)]
    for number in numbers[:10]:
        await shop.order(number)
    cometmq_cluster.kill("broker-a")
    for number in numbers[10:]:
        await shop.order(number)  # the other broker takes it
    await cometmq_cluster.restart("broker-a")
    await cometmq_cluster.wait_consumed("billing", within_s=600)
    assert sorted(set(billing.ledger)) == sorted(numbers)
