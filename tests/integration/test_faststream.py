"""FastStream's applications over a virtual cluster, and in memory: what becomes of a handler's messages."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.exceptions import NackMessage, RejectMessage
from faststream.redis import RedisRouter
from faststream.specification import AsyncAPI
from pydantic import BaseModel, ValidationError

from cometmq import Message
from cometmq.aio import Producer, ReceivedMessage, SimpleConsumer
from cometmq.client.hooks import ConsumeContext, ConsumeMessageHook
from cometmq.errors import (
    ClientStateError,
    ConnectionLostError,
    IllegalArgumentError,
    RequestTimeoutError,
)
from cometmq.faststream import (
    RocketMQBroker,
    RocketMQMessage,
    RocketMQResponse,
    RocketMQRouter,
    TestRocketMQBroker,
)
from cometmq.faststream.annotations import RawMessage
from cometmq.faststream.annotations import RocketMQBroker as TheBroker
from cometmq.otel import OpenTelemetryHook


class Order(BaseModel):
    id: str
    cents: int = 0


async def test_handlers_get_selected_messages_and_what_they_return_is_published(
    cometmq_cluster: Any,
) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    billed: list[Order] = []

    @broker.subscriber("orders", group="billing", tags="paid || refunded")
    @broker.publisher("invoices", tags="new", headers={"source": "billing"})
    async def bill(
        order: Order,
        message: RocketMQMessage,
        raw: RawMessage,
        mine: TheBroker,
    ) -> RocketMQResponse:
        billed.append(order)
        assert message.headers == {"trace": "t-1"}
        assert raw is message.raw_message
        assert mine is broker
        return RocketMQResponse({"of": order.id}, keys=order.id, headers={"more": "1"})

    async with broker:
        await broker.start()
        for tag in ("paid", "draft", "refunded"):
            result = await broker.publish(
                Order(id=tag), "orders", tags=tag, headers={"trace": "t-1"}, keys=("a", "b")
            )
            assert result.queue.topic == "orders"
        await asyncio.sleep(5)
    assert sorted(order.id for order in billed) == ["paid", "refunded"]
    invoices = await cometmq_cluster.messages("invoices")
    assert sorted(json.loads(message.body)["of"] for message in invoices) == ["paid", "refunded"]
    for message in invoices:
        assert message.tags == "new"
        assert (message.properties["source"], message.properties["more"]) == ("billing", "1")
        assert message.properties["content-type"] == "application/json"
        assert message.keys in {("paid",), ("refunded",)}


async def test_a_message_comes_again_after_an_exception_until_it_is_a_dead_letter(
    cometmq_cluster: Any,
) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    loop = asyncio.get_running_loop()
    tries: list[float] = []

    @broker.subscriber("orders", group="billing", retry_delay_ms=30_000)
    async def bill(order: Order) -> None:
        tries.append(loop.time())
        if len(tries) == 2:
            raise NackMessage(delay_ms=5_000)
        if len(tries) < 4:
            raise ValueError(order.id)

    async with broker:
        await broker.start()
        await broker.publish(Order(id="O-1"), "orders")
        await asyncio.sleep(300)
    waits = [round((later - before) / 5) * 5 for before, later in pairwise(tries)]
    assert waits == [30, 5, 30]


async def test_a_rejected_message_is_a_dead_letter_with_the_reason(cometmq_cluster: Any) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    seen: list[str] = []

    @broker.subscriber("orders", group="by-hand", ack_policy=AckPolicy.MANUAL)
    async def judge(order: Order, message: RocketMQMessage) -> None:
        seen.append(order.id)
        await (message.ack() if order.id == "good" else message.reject("bad order"))
        await message.nack()  # it is settled already: nothing happens

    @broker.subscriber("orders", group="by-policy", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def fail(order: Order) -> None:
        seen.append(order.id)
        if order.id != "good":
            raise ValueError(order.id)

    async with broker:
        await broker.start()
        for name in ("good", "bad"):
            await broker.publish(Order(id=name), "orders")
        await asyncio.sleep(600)
    assert sorted(seen) == ["bad", "bad", "good", "good"]
    [letter] = await cometmq_cluster.dead_letters("by-hand")
    assert json.loads(letter.body)["id"] == "bad"
    assert letter.failure.type == "bad order"
    [letter] = await cometmq_cluster.dead_letters("by-policy")
    assert letter.origin_topic == "orders"
    assert letter.failure[:2] == ("ValueError", "bad")


async def test_a_dead_letter_has_the_exception_for_which_its_handler_rejected_it(
    cometmq_cluster: Any,
) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)

    async def fail() -> None:
        await asyncio.sleep(0.1)
        raise ValueError("no such article")

    @broker.subscriber("orders", group="by-hand", ack_policy=AckPolicy.MANUAL)
    async def judge(order: Order, message: RocketMQMessage) -> None:
        try:
            await fail()
        except ValueError:
            await message.reject()

    @broker.subscriber("orders", group="by-raising")
    async def translate(order: Order) -> None:
        try:
            await fail()
        except ValueError as error:
            raise RejectMessage from error

    @broker.subscriber("orders", group="for-nothing")
    async def refuse(order: Order) -> None:
        raise RejectMessage

    @broker.subscriber("orders", group="in-silence")
    async def hide(order: Order) -> None:
        try:
            await fail()
        except ValueError:
            raise RejectMessage from None

    async with broker:
        await broker.start()
        await broker.publish(Order(id="O-1"), "orders")
        await asyncio.sleep(30)
    for group in ("by-hand", "by-raising"):
        [letter] = await cometmq_cluster.dead_letters(group)
        assert letter.failure[:2] == ("ValueError", "no such article")
    for group in ("for-nothing", "in-silence"):
        [letter] = await cometmq_cluster.dead_letters(group)
        assert letter.failure[:2] == ("rejected", "")


async def test_bodies_that_do_not_validate_come_again_and_disturb_no_others(
    cometmq_cluster: Any,
) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    billed: list[str] = []

    @broker.subscriber("orders", group="billing", ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def bill(order: Order) -> None:
        billed.append(order.id)

    async with broker:
        await broker.start()
        await broker.publish(b"no JSON", "orders")
        await broker.publish(Order(id="O-2"), "orders")
        await asyncio.sleep(30)
    assert billed == ["O-2"]
    assert [letter.body for letter in await cometmq_cluster.dead_letters("billing")] == [b"no JSON"]


async def test_workers_work_at_once_and_long_work_is_hidden(cometmq_cluster: Any) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    at_once = most = 0
    done: list[str] = []

    @broker.subscriber("orders", group="billing", max_workers=3, invisible_ms=10_000)
    async def bill(order: Order) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(60)
        at_once -= 1
        done.append(order.id)

    async with broker:
        await broker.start()
        for number in range(7):
            await broker.publish(Order(id=f"O-{number}"), "orders")
        await asyncio.sleep(200)
    assert most == 3
    assert sorted(done) == [f"O-{number}" for number in range(7)]


async def test_requests_are_answered_by_handlers_and_by_other_clients(cometmq_cluster: Any) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)

    @broker.subscriber("prices", group="pricing")
    async def price(article: str) -> dict[str, int]:
        return {article: 240}

    async with broker, Producer("asking", namesrv=cometmq_cluster.namesrv) as producer:
        await broker.start()
        reply = await broker.request("espresso", "prices", timeout_ms=10_000)
        assert await reply.decode() == {"espresso": 240}
        raw = await producer.request(Message("prices", b"tea"), timeout_ms=10_000)
        assert json.loads(raw.body) == {"tea": 240}


async def test_a_handler_that_returns_nothing_publishes_nothing_and_replies_null(
    cometmq_cluster: Any,
) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    seen: list[str] = []

    @broker.subscriber("orders", group="billing")
    @broker.publisher("invoices")
    async def bill(order: Order) -> None:
        seen.append(order.id)

    async with broker:
        await broker.start()
        reply = await broker.request(Order(id="O-1"), "orders", timeout_ms=10_000)
        await broker.publish(Order(id="O-2"), "orders")
        await asyncio.sleep(60)
        with pytest.raises(IllegalArgumentError, match="body"):
            await broker.publish(None, "orders")
    assert (reply.body, await reply.decode()) == (b"null", None)
    assert seen == ["O-1", "O-2"]
    assert await cometmq_cluster.messages("invoices") == []


async def test_a_message_whose_acknowledgement_fails_comes_again(
    cometmq_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    tries: list[float] = []
    acknowledge = ReceivedMessage.ack

    async def fail_once(message: ReceivedMessage) -> None:
        if len(tries) == 1:
            raise ConnectionLostError("the broker went away", address="10.0.0.3:10911")
        await acknowledge(message)

    monkeypatch.setattr(ReceivedMessage, "ack", fail_once)

    @broker.subscriber("orders", group="billing", invisible_ms=10_000)
    async def bill(order: Order) -> None:
        tries.append(asyncio.get_running_loop().time())

    async with broker:
        await broker.start()
        await broker.publish(Order(id="O-1"), "orders")
        await asyncio.sleep(120)
    first, second = tries
    assert 9 < second - first < 12


async def test_batches_delays_and_order_of_what_is_published(cometmq_cluster: Any) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    loop = asyncio.get_running_loop()
    came: list[tuple[str, float]] = []

    @broker.subscriber("orders", group="billing")
    async def bill(order: Order) -> None:
        came.append((order.id, loop.time()))

    async with broker:
        await broker.start()
        began = loop.time()
        await broker.publish_batch(Order(id="a"), Order(id="b"), topic="orders", tags="paid")
        await broker.publish(Order(id="later"), "orders", delay_ms=60_000)
        places = [
            await broker.publish(Order(id=f"{number}"), "keyed", ordering_key="O-1")
            for number in range(5)
        ]
        await asyncio.sleep(120)
    assert {name for name, _ in came} == {"a", "b", "later"}
    [later] = [at - began for name, at in came if name == "later"]
    assert 60 <= later < 65
    assert len({place.queue for place in places}) == 1


async def test_a_subscriber_without_a_handler_is_read_by_the_program(cometmq_cluster: Any) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    subscriber = broker.subscriber("orders", group="billing")

    @broker.subscriber("orders", group="other")
    async def handler(order: Order) -> None: ...

    [handled] = [each for each in broker.subscribers if each is not subscriber]
    async with broker:
        await broker.start()
        for name in ("O-1", "O-2"):
            await broker.publish(Order(id=name), "orders")
        one = await subscriber.get_one(timeout=10)
        assert one is not None
        await one.ack()
        async for other in subscriber:
            await other.ack()
            break
        assert {json.loads(one.body)["id"], json.loads(other.body)["id"]} == {"O-1", "O-2"}
        assert await subscriber.get_one(timeout=1) is None
        with pytest.raises(ClientStateError, match="has a handler"):
            await handled.get_one()


class Outcomes(ConsumeMessageHook):
    """Notes how each poll, and the work on each message, ended."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def after_consume(self, context: ConsumeContext) -> None:
        self.seen.append(context.status)


async def test_clients_are_shown_to_watch_before_they_start_and_hooks_see_the_work(
    cometmq_cluster: Any,
) -> None:
    watched: list[str] = []
    telemetry, outcomes = OpenTelemetryHook(), Outcomes()

    def watch(client: Any) -> None:
        telemetry.watch(client)
        if isinstance(client, SimpleConsumer):
            client.add_hook(outcomes)
        watched.append(client.group)

    broker = RocketMQBroker(cometmq_cluster.namesrv, producer_group="shop", watch=watch)

    @broker.subscriber("orders", group="billing")
    async def bill(order: Order, message: RocketMQMessage) -> None:
        if not message.raw_message.reconsume_times:
            raise ValueError(order.id)

    async with broker:
        await broker.start()
        await broker.publish(Order(id="O-1"), "orders")
        await asyncio.sleep(60)
    assert watched == ["shop", "billing"]
    assert outcomes.seen == ["SUCCESS", "FAILED", "SUCCESS", "SUCCESS"]


async def test_a_request_whose_asker_is_gone_is_not_worked_on_again(cometmq_cluster: Any) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    asked: list[str] = []

    @broker.subscriber("prices", group="pricing")
    async def price(article: str) -> int:
        asked.append(article)
        await asyncio.sleep(30)
        return 240

    async with broker:
        await broker.start()
        async with Producer("asking", namesrv=cometmq_cluster.namesrv) as producer:
            with pytest.raises(RequestTimeoutError):
                await producer.request(Message("prices", b"tea"), timeout_ms=5_000)
        await asyncio.sleep(200)
    assert asked == ["tea"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_workers": 0}, "max_workers"),
        ({"prefetch": 33}, "prefetch"),
        ({"invisible_ms": 10}, "invisible_ms"),
        ({"group": "bad group"}, "group"),
        ({"tags": "a", "sql": "b = 1"}, "tags"),
    ],
)
def test_wrong_options_of_a_subscriber_are_refused_where_they_stand(
    options: dict[str, Any], text: str
) -> None:
    broker = RocketMQBroker("127.0.0.1:9876")
    with pytest.raises(IllegalArgumentError, match=text):
        broker.subscriber("orders", **({"group": "billing"} | options))


def test_wrong_options_of_the_broker_and_foreign_routers_are_refused() -> None:
    with pytest.raises(IllegalArgumentError, match="no name-server address"):
        RocketMQBroker("no address")
    with pytest.raises(IllegalArgumentError, match="bootstrap_servers"):
        RocketMQBroker("127.0.0.1:9876", bootstrap_servers="127.0.0.1:9092")
    with pytest.raises(TypeError, match="RedisRouter"):
        RocketMQBroker("127.0.0.1:9876").include_router(RedisRouter())  # type: ignore[arg-type]  # the mistake


async def test_handlers_are_called_in_memory() -> None:
    broker = RocketMQBroker("127.0.0.1:9876")
    router = RocketMQRouter("shop-")
    invoices = broker.publisher("invoices")

    @router.subscriber("orders", group="billing", tags="paid")
    @invoices
    async def bill(order: Order) -> dict[str, str]:
        return {"of": order.id}

    @broker.subscriber("prices", group="pricing")
    async def price(article: str) -> int:
        return len(article)

    @broker.subscriber("nothing", group="silent")
    async def say_nothing(article: str) -> None: ...

    broker.include_router(router)
    async with TestRocketMQBroker(broker) as test_broker:
        await test_broker.publish(Order(id="O-1"), "shop-orders", tags="paid")
        await test_broker.publish(Order(id="O-2"), "shop-orders", tags="draft")
        bill.mock.assert_called_once_with({"id": "O-1", "cents": 0})
        invoices.mock.assert_called_once_with({"of": "O-1"})
        await test_broker.publish_batch({"id": "a"}, {"id": "b"}, topic="shop-orders", tags="paid")
        assert bill.mock.call_count == 3
        with pytest.raises(IllegalArgumentError, match="None as a message"):
            await test_broker.publish_batch(None, {"id": "a"}, topic="shop-orders")
        reply = await test_broker.request("tea", "prices")
        assert await reply.decode() == 3
        reply = await test_broker.request("tea", "nothing")
        assert (reply.body, await reply.decode()) == (b"null", None)
        for message, topic, text in (
            ("", "prices", "body of a message to prices is empty"),
            ("tea", "", "blank"),
            ("tea" * 2_000_000, "prices", "max_message_size_bytes is"),
        ):
            with pytest.raises(IllegalArgumentError, match=text):
                await test_broker.publish(message, topic)
            with pytest.raises(IllegalArgumentError, match=text):
                await test_broker.publish_batch("tea", message, topic=topic)
        assert price.mock.call_count == 1
        with pytest.raises(ValidationError):
            await test_broker.publish({"cents": 1}, "shop-orders", tags="paid")


async def test_publishers_are_called_as_mocks_over_real_servers(cometmq_cluster: Any) -> None:
    broker = RocketMQBroker(cometmq_cluster.namesrv)
    invoices, receipts = broker.publisher("invoices"), broker.publisher("receipts")

    @broker.subscriber("orders", group="billing")
    @invoices
    @receipts
    async def bill(order: Order) -> str:
        return order.id

    async with TestRocketMQBroker(broker, with_real=True) as test_broker:
        await test_broker.publish(Order(id="O-1"), "orders")
        await asyncio.sleep(30)
        bill.mock.assert_called_once_with({"id": "O-1", "cents": 0})
        for publisher in (invoices, receipts):
            publisher.mock.assert_called_once_with("O-1")


def test_asyncapi_describes_topics_and_models() -> None:
    broker = RocketMQBroker("127.0.0.1:9876", description="orders of the shop")

    @broker.subscriber("orders", group="billing")
    @broker.publisher("invoices")
    async def bill(order: Order) -> str:
        return order.id

    described = AsyncAPI(broker).to_specification().to_jsonable()
    assert described["servers"]["development"]["protocol"] == "rocketmq"
    assert {channel["address"] for channel in described["channels"].values()} == {
        "orders",
        "invoices",
    }
    assert "Order" in described["components"]["schemas"]
