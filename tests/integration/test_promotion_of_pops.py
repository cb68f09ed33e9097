"""A slave that is made the master while messages of its master are popped, in virtual time."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.integration.promotions import MASTER, SLAVE, in_step, play, switch
from tests.waits import until

from cometmq import Message
from cometmq.aio import AdminClient, Producer, SimpleConsumer
from cometmq.client.popping.message import ReceivedMessage
from cometmq.errors import CometMQError
from cometmq.testing import Cluster

HIDDEN_MS = 300_000


@pytest.mark.parametrize("how", ["kill", "power_off"])
def test_what_is_in_flight_is_the_same_at_the_promoted_slave(how: str) -> None:
    """Acknowledged messages are done, old handles acknowledge, and the rest comes again in its time."""

    async def story(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        await in_step(cluster)
        async with AdminClient(namesrv=cluster.namesrv) as admin:
            await admin.topics.create("orders", broker=cluster.broker(MASTER).address)
        bodies = [b"0", b"1", b"2", b"3", b"4", b"5"]
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for body in bodies:
                await producer.send(Message("orders", body))
        consumer = SimpleConsumer(
            "poppers", namesrv=cluster.namesrv, invisible_ms=HIDDEN_MS, wait_ms=2_000
        )
        consumer.subscribe("orders")
        async with consumer:
            begun_s = loop.time()
            held = sorted(await received(consumer, 6), key=lambda each: each.body)
            assert [each.body for each in held] == bodies
            for message in held[:2]:
                await message.ack()
            await switch(cluster, how)
            table = cluster.broker(SLAVE).pops.state.table
            assert table.count == 4
            # A SYNC_MASTER answers when a slave has its bytes.
            await cluster.demote(MASTER)
            for message in held[2:4]:
                await until(partial(acknowledged, message), pause_s=0.5)
            assert table.count == 2
            again = await received(consumer, 2)
            assert loop.time() - begun_s >= HIDDEN_MS / 1000
            assert {each.body: each.reconsume_times for each in again} == {b"4": 1, b"5": 1}
            for message in again:
                await message.ack()
            assert table.count == 0
            # This is longer than the time for which any of them was hidden.
            assert await consumer.receive(wait_ms=2 * HIDDEN_MS) == []

    play(story, flushDiskType="SYNC_FLUSH")


async def received(consumer: SimpleConsumer, count: int) -> list[ReceivedMessage]:
    """Receive until there are `count` messages, even if requests fail during a switch."""
    messages: list[ReceivedMessage] = []

    async def more() -> bool:
        try:
            messages.extend(await consumer.receive(32))
        except CometMQError:
            return False
        return len(messages) >= count

    await until(more, wait_s=3 * HIDDEN_MS / 1000, pause_s=0.5)
    return messages


async def acknowledged(message: ReceivedMessage) -> bool:
    """Acknowledge a message; return False while the client does not know the new master."""
    try:
        await message.ack()
    except CometMQError:
        return False
    return True
