"""Test sends that leave at once, without a task or a caller that waits, also when they fail afterwards."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.waits import WAIT_S, eventually

import cometmq
from cometmq import ConsumeFromWhere, Message, MessageExt, SendResult
from cometmq.aio import AdminClient, LitePullConsumer, Producer
from cometmq.errors import ClientStateError, IllegalArgumentError, RemoteError
from cometmq.testing import Cluster

FIRST = ConsumeFromWhere.FIRST_OFFSET


@pytest.fixture
def two() -> Iterator[Cluster]:
    with Cluster(clock="virtual", brokers=2) as cluster:
        yield cluster


async def known(producer: Producer, topic: str) -> None:
    """Send until the producer has a connection to each broker of the topic."""
    for queue in await producer.queues(topic):
        await producer.send(Message(topic, b"first"), queue=queue)


def test_messages_on_their_way_to_a_killed_broker_go_to_the_other_one(two: Cluster) -> None:
    async def scenario() -> None:
        await create(two, "orders")
        async with Producer("shop", namesrv=two.namesrv) as producer:
            await known(producer, "orders")
            futures = [producer.send_async(Message("orders", b"%d" % n)) for n in range(16)]
            assert producer.load().pending_sends == 16
            two.kill("broker-a")
            results = await asyncio.gather(*futures)
            assert {result.queue.broker_name for result in results} == {"broker-b"}
            assert producer.load().pending_sends == 0

    two.run(scenario())


async def create(cluster: Cluster, topic: str) -> None:
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.topics.create(topic, read_queues=4, write_queues=4, cluster="DefaultCluster")


def test_a_refusal_reaches_the_future_and_the_callback() -> None:
    async def scenario(cluster: Cluster) -> None:
        outcomes: list[Any] = []
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            await producer.send(Message("orders", b"small"))
            await asyncio.sleep(60)  # the route of the new topic is known
            future = producer.send_async(
                Message("orders", b"x" * 3000), lambda *outcome: outcomes.append(outcome)
            )
            with pytest.raises(RemoteError, match="MESSAGE_ILLEGAL"):
                await future
            assert outcomes == [(None, future.exception())]
            assert producer.load().pending_sends == 0

    with Cluster(clock="virtual", properties={"maxMessageSize": "2000"}) as cluster:
        cluster.run(scenario(cluster))


def test_a_cancelled_send_is_counted_no_longer_and_its_callback_gets_an_error(two: Cluster) -> None:
    async def scenario() -> None:
        outcomes: list[Any] = []
        await create(two, "orders")
        async with Producer("shop", namesrv=two.namesrv) as producer:
            await known(producer, "orders")
            future = producer.send_async(
                Message("orders", b"x"), lambda *outcome: outcomes.append(outcome)
            )
            assert future.cancel()
            assert producer.load().pending_sends == 0
            [(result, error)] = outcomes
            assert result is None
            assert isinstance(error, ClientStateError)
            assert (await producer.send_async(Message("orders", b"y"))).msg_id
        assert len(outcomes) == 1

    two.run(scenario())


def test_messages_leave_in_the_order_of_the_calls() -> None:
    """The first ones wait for the route of their topic; those that come when it is known do not pass them."""

    async def scenario(cluster: Cluster) -> None:
        options: dict[str, Any] = {"namesrv": cluster.namesrv}
        consumer = LitePullConsumer("billing", consume_from=FIRST, **options)
        consumer.subscribe("orders")
        async with (
            Producer("shop", default_topic_queue_nums=1, **options) as producer,
            consumer,
        ):
            futures: list[asyncio.Future[SendResult]] = []
            for number in range(300):
                futures.append(producer.send_async(Message("orders", b"%d" % number)))
                if number % 10 == 0:
                    await asyncio.sleep(0)
            await asyncio.gather(*futures)
            seen: list[bytes] = []
            async for message in consumer:
                seen.append(message.body)
                await message.ack()
                if len(seen) == 300:
                    break
        assert seen == [b"%d" % number for number in range(300)]

    with Cluster(clock="virtual") as cluster:
        cluster.run(scenario(cluster))


def test_threads_share_the_line_of_one_way_messages(name: str, namesrv: str) -> None:
    seen: list[bytes] = []

    def handle(messages: list[MessageExt]) -> None:
        seen.extend(message.body for message in messages)

    consumer = cometmq.PushConsumer(name, handle, namesrv=namesrv, consume_from=FIRST)
    consumer.subscribe(name)
    with cometmq.Producer(name, namesrv=namesrv) as producer:
        producer.send(Message(name, b"first"))

        def send(thread: int) -> None:
            for number in range(1000):
                producer.send_oneway(Message(name, b"%d-%d" % (thread, number)))

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(WAIT_S)
        with pytest.raises(IllegalArgumentError, match="is empty"):
            producer.send_oneway(Message(name, b""))
        with pytest.raises(IllegalArgumentError, match="names and values are text"):
            producer.send_oneway(Message(name, b"x", properties={"a": 1}))  # type: ignore[dict-item]  # the wrong type is the test
    assert producer.unsent == []
    with pytest.raises(ClientStateError, match="is closed"):
        producer.send_oneway(Message(name, b"x"))
    with consumer:
        eventually(lambda: len(seen) >= 4001)
    assert sorted(seen) == sorted(
        [b"first", *(b"%d-%d" % (thread, number) for thread in range(4) for number in range(1000))]
    )
