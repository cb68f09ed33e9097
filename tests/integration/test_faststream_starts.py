"""FastStream's applications over a virtual cluster: how they start, stop, and start again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from faststream.exceptions import SetupError
from pydantic import BaseModel

from cometmq import Message, MessageExt
from cometmq.aio import ReceivedMessage, SimpleConsumer
from cometmq.errors import CometMQError, ConnectionLostError, IllegalArgumentError
from cometmq.faststream import RocketMQBroker, RocketMQRouter
from cometmq.faststream.message import RocketMQMessage as StreamedMessage


class Order(BaseModel):
    id: str


async def test_a_stop_waits_for_handlers_and_gives_back_the_rest(cometmq_cluster: Any) -> None:
    namesrv = cometmq_cluster.namesrv
    broker = RocketMQBroker(namesrv, graceful_timeout=30)
    done: list[str] = []

    @broker.subscriber("orders", group="billing", invisible_ms=600_000)
    async def bill(order: Order) -> None:
        await asyncio.sleep(20)
        done.append(order.id)

    await broker.start()
    for number in range(3):
        await broker.publish(Order(id=f"O-{number}"), "orders")
    await asyncio.sleep(5)
    assert await broker.ping()
    await broker.stop()
    assert not await broker.ping(0)
    assert len(done) == 1
    async with SimpleConsumer("billing", namesrv=namesrv, wait_ms=5_000) as consumer:
        consumer.subscribe("orders")
        left: set[str] = set()
        while received := await consumer.receive():  # long before ten minutes are over
            left |= {json.loads(message.body)["id"] for message in received}
            for message in received:
                await message.ack()
    assert left == {f"O-{number}" for number in range(3)} - set(done)


async def test_a_broker_starts_again_after_its_stop(cometmq_cluster: Any) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    billed: list[str] = []

    @broker.subscriber("orders", group="billing")
    async def bill(order: Order) -> None:
        billed.append(order.id)

    for name in ("first", "second"):
        await broker.start()
        await broker.publish(Order(id=name), "orders")
        await asyncio.sleep(5)
        await broker.stop()
    assert billed == ["first", "second"]


async def test_two_subscribers_of_one_group_are_refused_before_anything_starts(
    cometmq_cluster: Any,
) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    for topic in ("orders", "invoices"):
        broker.subscriber(topic, group="billing")
    with pytest.raises(IllegalArgumentError, match="2 subscribers are in the group 'billing'"):
        await broker.start()
    assert not await broker.ping(0)


async def test_a_subscriber_of_a_group_that_has_one_is_refused_after_the_start_too(
    cometmq_cluster: Any,
) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    billed: list[str] = []

    first = broker.subscriber("orders", group="billing")

    @first
    async def bill(order: Order) -> None:
        billed.append(order.id)

    async with broker:
        await broker.start()
        late = broker.subscriber("invoices", group="billing", persistent=False)
        with pytest.raises(
            IllegalArgumentError, match="of orders and invoices are both in the group 'billing'"
        ):
            await late.start()
        with pytest.raises(IllegalArgumentError, match="both in the group"):
            await late.get_one(timeout=1)
        await broker.publish(Order(id="O-1"), "orders")
        await asyncio.sleep(10)
        await first.stop()  # now the group is free
        await broker.publish(Order(id="I-1"), "invoices")
        assert await late.get_one(timeout=10) is not None
    assert billed == ["O-1"]


@pytest.mark.parametrize("policy", ["manual", True, None])
def test_a_wrong_ack_policy_is_refused(policy: Any) -> None:
    """With "manual" in place of AckPolicy.MANUAL, the subscriber settled no message at all."""
    for made in (
        lambda: RocketMQBroker("127.0.0.1:9876", ack_policy=policy),
        lambda: RocketMQRouter(ack_policy=policy),
        lambda: RocketMQRouter().subscriber("orders", group="billing", ack_policy=policy),
    ):
        with pytest.raises(IllegalArgumentError, match=f"ack_policy is {policy!r}; use .*MANUAL"):
            made()


async def test_a_start_that_failed_leaves_its_group_free(
    cometmq_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = SimpleConsumer.start
    refused: list[str] = []

    async def fail_once(consumer: SimpleConsumer) -> None:
        if not refused:
            refused.append(consumer.group)
            raise ConnectionLostError("not yet", address="10.0.0.3:10911")
        await start(consumer)

    monkeypatch.setattr(SimpleConsumer, "start", fail_once)
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    subscriber = broker.subscriber("orders", group="billing")
    async with broker:
        with pytest.raises(ConnectionLostError):
            await broker.start()
        await subscriber.start()
        await broker.publish(Order(id="O-1"), "orders")
        assert await subscriber.get_one(timeout=10) is not None


async def test_a_second_start_changes_nothing(cometmq_cluster: Any) -> None:
    """Applications start the broker in a hook, then FastStream starts it: handlers had twice their workers.

    A subscriber without handlers was refused, as if it were another one of its group.
    """
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    at_once = most = 0

    @broker.subscriber("orders", group="billing")
    async def bill(order: Order) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(1)
        at_once -= 1

    by_hand = broker.subscriber("invoices", group="accounting")
    async with broker:
        await broker.publish(Order(id="I-0"), "invoices")
        assert await by_hand.get_one(timeout=10) is not None
        await broker.start()
        await broker.start()
        for number in range(5):
            await broker.publish(Order(id=f"O-{number}"), "orders")
        await asyncio.sleep(20)
        await broker.publish(Order(id="I-1"), "invoices")
        assert await by_hand.get_one(timeout=10) is not None
    assert (at_once, most) == (0, 1)


async def test_an_application_starts_without_servers_and_works_when_they_come(
    cometmq_cluster: Any,
) -> None:
    await cometmq_cluster.stop_broker()
    await cometmq_cluster.stop_name_server()
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    billed: list[str] = []

    @broker.subscriber("orders", group="billing")
    async def bill(order: Order) -> None:
        billed.append(order.id)

    async with broker:
        await broker.start()
        assert not await broker.ping(1)
        with pytest.raises(CometMQError):
            await broker.publish(Order(id="lost"), "orders")
        await asyncio.sleep(300)
        await cometmq_cluster.start_name_server()
        await cometmq_cluster.start_broker()
        await asyncio.sleep(60)
        await broker.publish(Order(id="O-1"), "orders")
        await asyncio.sleep(60)
    assert billed == ["O-1"]


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        (Message, "RawMessage"),
        (MessageExt, "RawMessage"),
        (ReceivedMessage, "RawMessage"),
        (StreamedMessage, "RocketMQMessage"),
        (RocketMQBroker, "RocketMQBroker"),
    ],
)
async def test_a_handler_with_a_class_in_place_of_an_annotation_is_refused_at_the_start(
    cometmq_cluster: Any, kind: type, meant: str
) -> None:
    """Each message failed to validate, so all messages became dead letters."""
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    router = RocketMQRouter("shop-")

    async def bill(order: Order, other: Any) -> None: ...

    bill.__annotations__["other"] = kind
    router.subscriber("orders", group="billing")(bill)
    broker.include_router(router)
    async with broker:
        with pytest.raises(SetupError, match=f"cometmq.faststream.annotations import {meant}\n"):
            await broker.start()
