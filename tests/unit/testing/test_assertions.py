"""Questions of tests to a cluster: the answers, and how a question that fails describes the
cluster.
"""

from __future__ import annotations

import asyncio

import pytest

from cometmq import ConsumeResult, Message, MessageExt
from cometmq.aio import Producer, PushConsumer
from cometmq.testing import Cluster


async def send(producer: Producer, *bodies: bytes, topic: str = "orders") -> None:
    for body in bodies:
        await producer.send(Message(topic, body, tags="paid", keys=[body.decode()]))


def consumer(
    cluster: Cluster, *, failures: int = 0, tries: int = 16, topic: str = "orders"
) -> PushConsumer:
    """Return a consumer that fails with each message `failures` times."""

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        failed = any(message.reconsume_times < failures for message in messages)
        return ConsumeResult.RECONSUME_LATER if failed else ConsumeResult.SUCCESS

    made = PushConsumer("billing", listen, namesrv=cluster.namesrv, max_reconsume_times=tries)
    made.subscribe(topic)
    return made


async def test_messages_come_in_the_order_in_which_they_were_stored(
    cometmq_cluster: Cluster, cometmq_producer: Producer
) -> None:
    bodies = [b"%d" % number for number in range(12)]
    for body in bodies:
        await send(cometmq_producer, body)
        await asyncio.sleep(1)
    found = await cometmq_cluster.messages("orders")
    assert [message.body for message in found] == bodies
    assert len({message.queue_id for message in found}) > 1
    assert await cometmq_cluster.messages("none") == []


async def test_messages_are_waited_for(
    cometmq_cluster: Cluster, cometmq_producer: Producer
) -> None:
    loop = asyncio.get_running_loop()
    await cometmq_producer.send(Message("orders", b"late", delay_ms=40_000))
    assert await cometmq_cluster.messages("orders") == []
    [late] = await cometmq_cluster.messages("orders", 1)
    assert (late.body, 39 < loop.time() < 50) == (b"late", True)


async def test_a_failure_lists_the_messages_and_the_topics(
    cometmq_cluster: Cluster, cometmq_producer: Producer
) -> None:
    await send(cometmq_producer, b"tea")
    await send(cometmq_producer, b"x" * 100, topic="long")
    with pytest.raises(AssertionError) as raised:
        await cometmq_cluster.messages("orders", 2, within_s=30)
    first, message, topics = str(raised.value).splitlines()
    assert first == "topic orders has 1 message after 30 s, and 2 are expected"
    assert message.startswith("  broker-a/0@0 ")
    assert message.endswith("tags=paid keys=tea retries=0 b'tea'")
    assert topics == "topics: long, orders"
    before = asyncio.get_running_loop().time()
    with pytest.raises(
        AssertionError, match=r"topic long has 1 message, and 0 are expected"
    ) as raised:
        await cometmq_cluster.messages("long", 0)
    assert asyncio.get_running_loop().time() - before < 1
    assert f"b'{'x' * 60}'…" in str(raised.value)


async def test_a_long_list_is_cut(cometmq_cluster: Cluster, cometmq_producer: Producer) -> None:
    await send(cometmq_producer, *(b"%d" % number for number in range(25)))
    with pytest.raises(AssertionError, match="has 25 messages, and 3 are expected") as raised:
        await cometmq_cluster.messages("orders", 3)
    lines = str(raised.value).splitlines()
    assert lines[-2] == "  … and 5 more"
    assert len(lines) == 23


async def test_a_retry_that_waits_for_its_delay_is_not_consumed(
    cometmq_cluster: Cluster, cometmq_producer: Producer
) -> None:
    await send(cometmq_producer, b"tea")
    async with consumer(cometmq_cluster, failures=2):
        await asyncio.sleep(5)
        assert await cometmq_cluster.lag("billing") == 1
        with pytest.raises(AssertionError) as raised:
            await cometmq_cluster.wait_consumed("billing", within_s=3)
        first, retry, members = str(raised.value).splitlines()
        assert first == "group billing has 1 message to consume after 3 s"
        assert retry.startswith("  retry 1 of orders waits: msg_id=")
        assert retry.endswith("keys=tea")
        assert members.startswith("  members: 10.0.0.")
        await cometmq_cluster.wait_consumed("billing")
        assert asyncio.get_running_loop().time() > 40  # the delays are 10 s and 30 s
        assert (
            await cometmq_cluster.lag("billing")
            == await cometmq_cluster.lag("billing", "orders")
            == 0
        )


async def test_what_a_member_has_consumed_counts_before_it_is_committed(
    cometmq_cluster: Cluster, cometmq_producer: Producer
) -> None:
    async with consumer(cometmq_cluster):
        await send(cometmq_producer, b"first")
        await cometmq_cluster.wait_consumed("billing", "orders")
        await asyncio.sleep(60)
        await send(cometmq_producer, b"second")
        await cometmq_cluster.wait_consumed("billing", within_s=2)


async def test_a_lag_names_the_queues(cometmq_cluster: Cluster, cometmq_producer: Producer) -> None:
    await send(cometmq_producer, b"tea", b"milk", b"rice")
    async with consumer(cometmq_cluster):
        await cometmq_cluster.wait_consumed("billing")
    await send(cometmq_producer, b"wine", b"beer")
    assert await cometmq_cluster.lag("billing") == 2
    with pytest.raises(AssertionError) as raised:
        await cometmq_cluster.wait_consumed("billing", within_s=1)
    lines = str(raised.value).splitlines()
    assert lines[0] == "group billing has 2 messages to consume after 1 s"
    assert all("orders" in line and " consumed" in line for line in lines[1:-1])
    assert lines[-1] == "  members: nobody is online"


async def test_dead_letters_are_consumed(
    cometmq_cluster: Cluster, cometmq_producer: Producer
) -> None:
    await send(cometmq_producer, b"tea")
    async with consumer(cometmq_cluster, failures=9, tries=2):
        [letter] = await cometmq_cluster.dead_letters("billing", 1)
        assert letter.body == b"tea"
        await cometmq_cluster.wait_consumed("billing")
        with pytest.raises(AssertionError, match=r"topic %DLQ%billing has 1 message, and 0"):
            await cometmq_cluster.dead_letters("billing", 0)


async def test_a_group_that_nobody_knows_is_named(
    cometmq_cluster: Cluster, cometmq_producer: Producer
) -> None:
    await send(cometmq_producer, b"tea")
    with pytest.raises(AssertionError, match="no broker knows group biling, but none"):
        await cometmq_cluster.lag("biling")
    with pytest.raises(AssertionError, match=r"no broker knows group biling, but none after 2 s"):
        await cometmq_cluster.wait_consumed("biling", within_s=2)
    async with consumer(cometmq_cluster):
        await send(cometmq_producer, b"x", topic="other")
        with pytest.raises(AssertionError, match="group billing does not consume topic other"):
            await cometmq_cluster.lag("billing", "other")


async def test_an_answer_is_waited_for_while_the_broker_is_stopped(
    cometmq_cluster: Cluster, cometmq_producer: Producer
) -> None:
    await send(cometmq_producer, b"tea")
    await cometmq_cluster.stop_broker(0)
    with pytest.raises(AssertionError):
        await cometmq_cluster.messages("orders", 1, within_s=5)
    starting = asyncio.get_running_loop().call_later
    async with asyncio.TaskGroup() as tasks:
        starting(10, lambda: tasks.create_task(cometmq_cluster.start_broker(0)))
        looking = tasks.create_task(cometmq_cluster.messages("orders", 1))
        await looking
    assert [message.body for message in looking.result()] == [b"tea"]
