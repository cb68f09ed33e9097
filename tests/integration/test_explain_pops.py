"""Ask where a popped message is: hidden, acknowledged, waiting in the retry topic, dead, or not popped yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from tests.waits import until

from cometmq.admin.explain.records import Cause, MessageExplanation
from cometmq.aio import AdminClient, Producer, PushConsumer, SimpleConsumer
from cometmq.model.message import Message, MessageExt
from cometmq.model.results import ConsumeResult
from cometmq.protocol import requests
from cometmq.protocol.pop.handle import pop_retry_topic
from cometmq.testing import Cluster

GROUP, TOPIC = "billing", "orders"
Scenario = Callable[[AdminClient, Producer, SimpleConsumer], Awaitable[None]]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(clock="virtual", seed=11) as cluster:
        yield cluster


def run(cluster: Cluster, scenario: Scenario, *, retries: int = 16, ordered: bool = False) -> None:
    async def all_of_it() -> None:
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            await admin.topics.create(
                TOPIC, read_queues=1, write_queues=1, cluster="DefaultCluster"
            )
            await admin.groups.create(
                GROUP,
                retry_max_times=retries,
                consume_message_orderly=ordered,
                cluster="DefaultCluster",
            )
            consumer = SimpleConsumer(
                GROUP, namesrv=cluster.namesrv, invisible_ms=60_000, ordered=ordered
            )
            consumer.subscribe(TOPIC)
            async with Producer("shop", namesrv=cluster.namesrv) as producer, consumer:
                await scenario(admin, producer, consumer)

    cluster.run(all_of_it())


async def asked(admin: AdminClient, producer: Producer, body: bytes) -> str:
    """Send a message and return its id once the index has it."""
    result = await producer.send(Message(TOPIC, body))
    assert result.msg_id
    return result.msg_id


async def reported(admin: AdminClient, message_id: str, cause: Cause) -> MessageExplanation:
    """Wait until a message has met this fate."""
    found: list[MessageExplanation] = []

    async def is_told() -> bool:
        found[:] = [await admin.explain.message(message_id, TOPIC, group=GROUP)]
        return found[0].causes == (cause,)

    try:
        await until(is_told)
    except AssertionError as error:
        raise AssertionError(f"{cause} is wanted, told is {found}") from error
    return found[0]


def test_a_message_in_flight_is_told_with_its_client_its_time_and_its_delivery(
    cluster: Cluster,
) -> None:
    async def scenario(admin: AdminClient, producer: Producer, consumer: SimpleConsumer) -> None:
        message_id = await asked(admin, producer, b"1")
        (message,) = await consumer.receive()
        found = await reported(admin, message_id, Cause.INVISIBLE)
        assert "invisible until" in found.answer
        assert "delivery 1" in found.answer
        assert "held by client" in found.answer
        assert found.deliveries[0].next_ms is not None
        evidence = {each.figure: each for each in found.reasons[0].evidence}
        assert evidence["handed to"].value in found.answer
        assert evidence["handed to"].request == "GET_POP_PROGRESS (30005)"

        # Hidden for longer, it is still held by the client that asked for it.
        before_ms = found.deliveries[0].next_ms
        await message.extend(600_000)
        found = await reported(admin, message_id, Cause.INVISIBLE)
        assert found.deliveries[0].next_ms is not None
        assert found.deliveries[0].next_ms > before_ms + 400_000
        assert "held by client" in found.answer

        await message.ack()
        found = await reported(admin, message_id, Cause.CONSUMED)
        assert found.answer.startswith("group billing has acknowledged")

    run(cluster, scenario)


def test_a_message_that_comes_again_is_told_in_the_retry_topic_and_counts_its_deliveries(
    cluster: Cluster,
) -> None:
    async def scenario(admin: AdminClient, producer: Producer, consumer: SimpleConsumer) -> None:
        message_id = await asked(admin, producer, b"1")
        (message,) = await consumer.receive()
        await message.nack(1000)
        await asyncio.sleep(5)
        found = await reported(admin, message_id, Cause.RETRIED)
        assert pop_retry_topic(GROUP, TOPIC) in found.answer
        assert "delivery 2, 0 messages before it" in found.answer
        (progress,) = await admin.groups.popped(GROUP) or []
        assert (progress.topic, progress.retry_count, progress.revived_count) == (TOPIC, 1, 1)

        (again,) = await consumer.receive()
        found = await reported(admin, message_id, Cause.INVISIBLE)
        assert "delivery 2" in found.answer
        (progress,) = await admin.groups.popped(GROUP) or []
        assert (progress.in_flight, progress.retry_count, progress.late_ms) == (1, 0, 0)
        await again.ack()
        found = await reported(admin, message_id, Cause.CONSUMED)
        assert "at delivery 2" in found.answer

    run(cluster, scenario)


def test_a_message_that_failed_for_the_last_time_is_told_as_dead(cluster: Cluster) -> None:
    async def scenario(admin: AdminClient, producer: Producer, consumer: SimpleConsumer) -> None:
        message_id = await asked(admin, producer, b"1")
        for _ in range(2):
            (message,) = await consumer.receive()
            await message.nack(1000)
            await asyncio.sleep(5)
        await reported(admin, message_id, Cause.DEAD_LETTERED)

    run(cluster, scenario, retries=1)


def test_acknowledged_out_of_order_and_not_popped_yet_are_told(cluster: Cluster) -> None:
    async def scenario(admin: AdminClient, producer: Producer, consumer: SimpleConsumer) -> None:
        ids = [await asked(admin, producer, b"%d" % number) for number in range(5)]
        first, second = await consumer.receive(2)
        await second.ack()
        found = await reported(admin, ids[1], Cause.ACKNOWLEDGED)
        assert "at offset 0" in found.answer
        found = await reported(admin, ids[4], Cause.NOT_POPPED)
        assert "2 messages before it in queue 0" in found.answer
        await reported(admin, ids[0], Cause.INVISIBLE)
        await first.ack()
        await reported(admin, ids[1], Cause.CONSUMED)

    run(cluster, scenario)


def test_a_java_broker_that_does_not_know_the_request_leaves_it_unknown(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(admin: AdminClient, producer: Producer, consumer: SimpleConsumer) -> None:
        message_id = await asked(admin, producer, b"1")
        (message,) = await consumer.receive()
        await message.nack(1000)
        await asyncio.sleep(5)
        await reported(admin, message_id, Cause.RETRIED)
        monkeypatch.setattr(requests.GET_POP_PROGRESS, "code", 30_099)
        found = await reported(admin, message_id, Cause.NOT_REPORTED)
        assert "is not known, because broker" in found.answer
        assert await admin.groups.popped(GROUP) is None

    run(cluster, scenario)


def test_in_order_a_message_is_told_with_its_delivery_and_what_is_behind_it(
    cluster: Cluster,
) -> None:
    async def scenario(admin: AdminClient, producer: Producer, consumer: SimpleConsumer) -> None:
        ids = [await asked(admin, producer, b"%d" % number) for number in range(4)]
        first, second = await consumer.receive(2)
        found = await reported(admin, ids[0], Cause.INVISIBLE)
        assert "delivery 1" in found.answer
        found = await reported(admin, ids[3], Cause.NOT_POPPED)
        assert "1 message before it in queue 0" in found.answer

        # The second message comes again with the first one, though it was acknowledged, as in Java.
        await second.ack()
        await first.nack(1000)
        await asyncio.sleep(5)
        await consumer.receive(2)
        found = await reported(admin, ids[0], Cause.INVISIBLE)
        assert "delivery 2" in found.answer

    run(cluster, scenario, ordered=True)


def test_a_group_whose_simple_consumers_hold_messages_is_told_so(cluster: Cluster) -> None:
    async def scenario(admin: AdminClient, producer: Producer, consumer: SimpleConsumer) -> None:
        for number in range(5):
            await asked(admin, producer, b"%d" % number)
        held = await consumer.receive(2)
        found = await admin.explain.group(GROUP)
        assert Cause.INVISIBLE in found.causes
        assert "have popped 2 messages and not acknowledged them" in found.answer
        assert Cause.QUEUE_WITHOUT_OWNER not in found.causes
        for message in held:
            await message.ack()
        found = await admin.explain.group(GROUP)
        assert Cause.INVISIBLE not in found.causes

    run(cluster, scenario)


def test_members_that_pop_by_push_own_no_queues_and_miss_none(cluster: Cluster) -> None:
    """Queues were said to have no owner."""

    async def scenario(admin: AdminClient, producer: Producer, consumer: SimpleConsumer) -> None:
        await consumer.close()
        never = asyncio.Event()

        async def work(messages: list[MessageExt]) -> ConsumeResult:
            await never.wait()
            return ConsumeResult.SUCCESS

        async with PushConsumer(GROUP, work, namesrv=cluster.namesrv, mode="pop") as pushed:
            pushed.subscribe(TOPIC)
            await asked(admin, producer, b"1")
            # Longer than members may take to share queues.
            await asyncio.sleep(60)
            found = await admin.explain.group(GROUP)
            assert Cause.INVISIBLE in found.causes, found
            assert not {Cause.QUEUE_WITHOUT_OWNER, Cause.REBALANCING} & set(found.causes), found
            never.set()

    run(cluster, scenario)
