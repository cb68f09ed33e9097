"""SimpleConsumer: messages are received for a time, acknowledged one by one, and come again if they are not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.routes import wait_until_routed
from tests.waits import WAIT_S, until

import cometmq
from cometmq.aio import AdminClient, Producer, SimpleConsumer
from cometmq.client.tracing.codec import TraceType
from cometmq.errors import ClientStateError, IllegalArgumentError, RouteNotFoundError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.testing import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2, clock="virtual", seed=11) as cluster:
        yield cluster


def consumer_of(cluster: Cluster, topic: str, **options: Any) -> SimpleConsumer:
    consumer = SimpleConsumer("billing", namesrv=cluster.namesrv, **options)
    consumer.subscribe(topic)
    return consumer


async def create(cluster: Cluster, topic: str, queues: int) -> None:
    async with AdminClient(namesrv=cluster.namesrv) as admin:
        await admin.topics.create(
            topic, read_queues=queues, write_queues=queues, cluster="DefaultCluster"
        )


async def send(cluster: Cluster, topic: str, *bodies: bytes, tags: str | None = None) -> None:
    async with Producer("shop", namesrv=cluster.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, tags=tags))


def test_members_share_all_queues_of_all_brokers(cluster: Cluster) -> None:
    """More members than queues, and nobody waits for a rebalance."""

    async def scenario() -> None:
        await create(cluster, "orders", 1)
        bodies = [b"%d" % number for number in range(60)]
        await send(cluster, "orders", *bodies)
        seen: list[bytes] = []
        consumers = [
            consumer_of(cluster, "orders", instance_name=f"member-{number}") for number in range(5)
        ]
        for consumer in consumers:
            await consumer.start()
        while len(seen) < 60:
            for consumer in consumers:
                messages = await consumer.receive(5, wait_ms=1000)
                await asyncio.gather(*(message.ack() for message in messages))
                seen += [message.body for message in messages]
        assert sorted(seen) == sorted(bodies)
        await asyncio.sleep(120)
        assert await consumers[0].receive(wait_ms=1000) == []
        for consumer in consumers:
            await consumer.close()

    cluster.run(scenario())


def test_a_message_comes_again_when_its_time_is_over_or_it_is_given_back(cluster: Cluster) -> None:
    async def scenario() -> None:
        await send(cluster, "orders", b"O-1")
        async with consumer_of(cluster, "orders", invisible_ms=30_000) as consumer:
            loop = asyncio.get_running_loop()
            (first,) = await consumer.receive()
            assert first.reconsume_times == 0
            began_s = loop.time()
            (second,) = await consumer.receive(wait_ms=60_000)
            assert 30 <= loop.time() - began_s < 32
            assert (second.body, second.topic, second.reconsume_times) == (b"O-1", "orders", 1)
            await second.nack(delay_ms=5_000)
            with pytest.raises(
                ClientStateError, match=r"was (acknowledged|given back); it cannot be"
            ):
                await second.ack()
            began_s = loop.time()
            (third,) = await consumer.receive(wait_ms=60_000)
            assert 5 <= loop.time() - began_s < 7
            await third.extend(90_000)
            assert await consumer.receive(wait_ms=85_000) == []
            await third.ack()
            assert await consumer.receive(wait_ms=60_000) == []

    cluster.run(scenario())


def test_a_message_that_nobody_acknowledges_is_a_dead_letter(cluster: Cluster) -> None:
    async def scenario() -> None:
        await send(cluster, "orders", b"O-1")
        async with consumer_of(cluster, "orders", invisible_ms=1_000) as consumer:
            deliveries = 0
            while not await cluster.dead_letters("billing"):
                messages = await consumer.receive(wait_ms=5_000)
                deliveries += len(messages)
                for message in messages:
                    await message.nack()
                assert deliveries < 40
            assert deliveries == 17  # the first one, and retryMaxTimes of the group

    cluster.run(scenario())


def test_an_acknowledgement_during_an_extension_counts(cluster: Cluster) -> None:
    """The extension gives the message a new handle, and brokers take no other one."""

    async def scenario() -> None:
        await send(cluster, "orders", b"O-1", b"O-2")
        async with consumer_of(cluster, "orders", invisible_ms=30_000) as consumer:
            messages = await consumer.receive(2) + await consumer.receive(1)
            acked, given_back = messages[:2]
            await asyncio.gather(acked.extend(30_000), acked.ack())
            await asyncio.gather(given_back.extend(30_000), given_back.nack(5_000))
            (again,) = await consumer.receive(wait_ms=20_000)
            assert again.body == given_back.body
            await again.ack()
            assert await consumer.receive(wait_ms=120_000) == []

    cluster.run(scenario())


def test_a_message_is_made_a_dead_letter_with_the_reason(cluster: Cluster) -> None:
    async def scenario() -> None:
        await send(cluster, "orders", b"O-1")
        async with consumer_of(cluster, "orders", invisible_ms=10_000) as consumer:
            (message,) = await consumer.receive()
            await message.dead_letter("no such article")
            with pytest.raises(ClientStateError, match="was made a dead letter"):
                await message.ack()
            (letter,) = await cluster.dead_letters("billing", 1)
            assert (letter.body, letter.origin_topic) == (b"O-1", "orders")
            assert letter.failure is not None
            assert letter.failure.type == "no such article"
            assert await consumer.receive(wait_ms=60_000) == []

    cluster.run(scenario())


def test_a_message_is_made_a_dead_letter_with_an_exception(cluster: Cluster) -> None:
    async def scenario() -> None:
        await send(cluster, "orders", b"O-1")
        async with consumer_of(cluster, "orders") as consumer:
            (message,) = await consumer.receive()
            await message.dead_letter(ZeroDivisionError("no cents"))
            (letter,) = await cluster.dead_letters("billing", 1)
            assert letter.failure is not None
            assert letter.failure[:2] == ("ZeroDivisionError", "no cents")

    cluster.run(scenario())


def test_a_consumer_says_once_that_it_receives_nothing_and_goes_on_trying(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It logged a warning at each of its attempts, one in a second."""
    caplog.set_level(logging.INFO)

    def said(what: str) -> int:
        return sum(what in record.getMessage() for record in caplog.records)

    async def scenario() -> None:
        async with consumer_of(cluster, "orders") as consumer:
            lists = aiter(consumer)
            received = asyncio.ensure_future(anext(lists))
            await asyncio.sleep(300)  # the topic is not there
            assert said("no messages are received") == 1
            await send(cluster, "orders", b"O-1")
            assert (await received).body == b"O-1"
            assert said("no messages are received") == said("can be received again") == 1

    cluster.run(scenario())


def test_reasons_that_brokers_give_in_turn_are_logged_once_each(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt begins at another broker, so two that were away were logged in turn, without end."""

    def reasons() -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if "no messages are received" in record.getMessage()
        ]

    async def scenario() -> None:
        await create(cluster, "orders", 1)
        async with consumer_of(cluster, "orders") as consumer:
            received = asyncio.ensure_future(anext(aiter(consumer)))
            await asyncio.sleep(10)
            for name in ("namesrv-0", "broker-a", "broker-b"):
                cluster.kill(name)
            await asyncio.sleep(100)
            assert len(reasons()) == len(set(reasons())) == 2
            received.cancel()

    cluster.run(scenario())


def test_a_block_acknowledges_or_gives_back(cluster: Cluster) -> None:
    async def scenario() -> None:
        await send(cluster, "orders", b"O-1")
        async with consumer_of(cluster, "orders") as consumer:
            (message,) = await consumer.receive()
            with pytest.raises(ZeroDivisionError):
                async with message:
                    raise ZeroDivisionError
            (again,) = await consumer.receive()
            assert again.reconsume_times == 1
            async with again:
                assert again.body == b"O-1"
            assert await consumer.receive(wait_ms=120_000) == []

    cluster.run(scenario())


def test_iteration_goes_on_over_a_broker_that_is_away(cluster: Cluster) -> None:
    async def scenario() -> None:
        await create(cluster, "orders", 2)
        await send(cluster, "orders", *(b"%d" % number for number in range(10)))
        seen: set[bytes] = set()

        async def work(consumer: SimpleConsumer) -> None:
            async for message in consumer:
                seen.add(message.body)
                await message.ack()

        async with consumer_of(cluster, "orders") as consumer:
            working = asyncio.ensure_future(work(consumer))
            await until(lambda: len(seen), lambda count: count == 10, wait_s=60)
            await cluster.stop_broker("broker-a")
            await asyncio.sleep(60)
            await cluster.start_broker("broker-a")
            await asyncio.sleep(60)
            await send(cluster, "orders", *(b"%d" % number for number in range(10, 20)))
            await until(lambda: len(seen), lambda count: count == 20, wait_s=60)
        await asyncio.wait_for(working, 60)

    cluster.run(scenario())


def test_a_subscription_selects_by_tag(cluster: Cluster) -> None:
    async def scenario() -> None:
        await send(cluster, "orders", b"paid", tags="paid")
        await send(cluster, "orders", b"new", tags="new")
        async with SimpleConsumer("billing", namesrv=cluster.namesrv) as consumer:
            consumer.subscribe("orders", "paid")
            (message,) = await consumer.receive()
            assert message.body == b"paid"
            await message.ack()
            assert await consumer.receive(wait_ms=60_000) == []

    cluster.run(scenario())


def test_messages_of_a_queue_come_in_order_and_in_batches(cluster: Cluster) -> None:
    async def scenario() -> None:
        await create(cluster, "orders", 1)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for number in range(6):
                queue = MessageQueue("orders", "broker-a", 0)
                await producer.send(Message("orders", b"%d" % number), queue=queue)
        async with consumer_of(cluster, "orders", ordered=True, max_messages=3) as consumer:
            batch = await consumer.receive()
            assert [message.body for message in batch] == [b"0", b"1", b"2"]
            await batch[0].ack()
            assert await consumer.receive(wait_ms=5_000) == []
            await batch[1].ack()
            await batch[2].ack()
            assert [each.body for each in await consumer.receive()] == [b"3", b"4", b"5"]

    cluster.run(scenario())


def test_each_delivery_is_traced_with_its_count_and_its_outcome(cluster: Cluster) -> None:
    """With enable_trace a simple consumer traced nothing."""

    async def scenario() -> None:
        await create(cluster, "orders", 1)
        async with (
            AdminClient(namesrv=cluster.namesrv) as admin,
            Producer("shop", namesrv=cluster.namesrv) as producer,
        ):
            sent = await producer.send(Message("orders", b"1"))
            assert sent.msg_id is not None
            async with consumer_of(cluster, "orders", enable_trace=True) as consumer:
                (message,) = await consumer.receive()
                await message.nack()
                (again,) = await consumer.receive()
                await again.ack()

            async def traced() -> bool:
                events = await admin.messages.trace(sent.msg_id)
                counts = {
                    event.request_id: event.retry_times
                    for event in events
                    if event.kind is TraceType.SUB_BEFORE
                }
                ended = {
                    (counts[event.request_id], event.success)
                    for event in events
                    if event.kind is TraceType.SUB_AFTER
                }
                return ended == {(0, False), (1, True)}

            await until(traced)

    cluster.run(scenario())


def test_two_calls_at_once_do_not_get_one_batch_in_order() -> None:
    """They had one attempt id, so the broker gave the batch of the first to the second as well."""

    async def scenario(cluster: Cluster) -> None:
        await create(cluster, "orders", 1)
        await send(cluster, "orders", b"0", b"1", b"2")
        async with consumer_of(cluster, "orders", ordered=True, max_messages=3) as consumer:
            received = await asyncio.gather(*(consumer.receive(wait_ms=0) for _ in range(2)))
            assert sorted(map(len, received)) == [0, 3]

    with Cluster(clock="virtual", seed=11) as cluster:
        cluster.run(scenario(cluster))


def test_what_is_wrong_is_said_at_once(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with SimpleConsumer("billing", namesrv=cluster.namesrv) as consumer:
            with pytest.raises(ClientStateError, match=r"call subscribe\(topic\) before receive"):
                await consumer.receive()
            consumer.subscribe("orders")
            with pytest.raises(RouteNotFoundError, match="orders"):
                await consumer.receive()
            with pytest.raises(IllegalArgumentError, match="max_messages is 33"):
                await consumer.receive(33)
            with pytest.raises(IllegalArgumentError, match="invisible_ms"):
                await consumer.receive(invisible_ms=5)

    cluster.run(scenario())


def test_the_blocking_face(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster:
        with cometmq.Producer("shop", namesrv=cluster.namesrv) as producer:
            for number in range(20):
                producer.send(cometmq.Message("orders", b"%d" % number))
        wait_until_routed(cluster.namesrv, "orders", "broker-a")
        consumer = cometmq.SimpleConsumer(
            "billing", namesrv=cluster.namesrv, invisible_ms=int(WAIT_S * 1000)
        )
        consumer.subscribe("orders")
        seen = set()
        with consumer:
            (first, *others) = consumer.receive(1)
            assert others == []
            first.extend(int(WAIT_S * 1000))
            first.nack()
            (letter,) = consumer.receive(1)
            letter.dead_letter()
            for message in consumer:
                with message:
                    seen.add(message.body)
                if len(seen) == 19:
                    break
        assert seen | {letter.body} == {b"%d" % number for number in range(20)}
        assert [each.body for each in cluster.call("dead_letters", "billing", 1)] == [letter.body]
