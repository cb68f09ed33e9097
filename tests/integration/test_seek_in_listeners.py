"""A listener of an orderly consumer that seeks in its own queue, which waits for the listener."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.waits import WAIT_S

import cometmq
from cometmq import ConsumeFromWhere, Message, MessageExt
from cometmq.aio import Producer, PushConsumer
from cometmq.errors import ClientStateError
from cometmq.testing import Cluster
from cometmq.testing.local_broker import LocalBroker

FIRST = ConsumeFromWhere.FIRST_OFFSET


async def test_a_coroutine_that_waits_for_its_own_seek_is_told(cometmq_cluster: Cluster) -> None:
    """It waited for ever, and its queue with it."""
    refused: list[ClientStateError] = []

    async def listen(messages: list[MessageExt]) -> None:
        try:
            await consumer.seek_to_begin("t")
        except ClientStateError as error:
            refused.append(error)

    consumer = PushConsumer(
        "g", listen, namesrv=cometmq_cluster.namesrv, consume_from=FIRST, orderly=True
    )
    consumer.subscribe("t")
    async with Producer("p", namesrv=cometmq_cluster.namesrv) as producer, consumer:
        await producer.send(Message("t", b"x"))
        await cometmq_cluster.wait_consumed("g")
    [error] = refused
    assert "a listener waits for a seek of t@broker-a:" in str(error)


async def test_a_task_that_a_listener_leaves_behind_seeks(cometmq_cluster: Cluster) -> None:
    bodies: list[bytes] = []
    seeks: list[asyncio.Task[None]] = []
    begun = asyncio.Event()

    async def listen(messages: list[MessageExt]) -> None:
        bodies.extend(message.body for message in messages)
        if not seeks:
            seeks.append(asyncio.create_task(consumer.seek_to_begin("t")))
            begun.set()
            await asyncio.sleep(1)  # the seek begins, and waits

    consumer = PushConsumer(
        "g", listen, namesrv=cometmq_cluster.namesrv, consume_from=FIRST, orderly=True
    )
    consumer.subscribe("t")
    async with Producer("p", namesrv=cometmq_cluster.namesrv) as producer, consumer:
        await producer.send(Message("t", b"x"))
        await begun.wait()
        await seeks[0]
        await cometmq_cluster.wait_consumed("g")
    assert bodies == [b"x", b"x"]


@pytest.mark.parametrize("orderly", [False, True])
def test_a_thread_that_waits_for_its_own_seek_is_told(
    cometmq_broker: LocalBroker, cometmq_producer: cometmq.Producer, *, orderly: bool
) -> None:
    """A consumer that keeps no order seeks at once."""
    outcomes: list[ClientStateError | None] = []
    begun, done = threading.Event(), threading.Event()

    def listen(messages: list[MessageExt]) -> None:
        # Messages that are read again may come in another thread before the seek has returned.
        if begun.is_set():
            return
        begun.set()
        try:
            consumer.seek_to_begin("t")
            outcomes.append(None)
        except ClientStateError as error:
            outcomes.append(error)
        done.set()

    cometmq_producer.send(Message("t", b"x"))
    consumer = cometmq.PushConsumer(
        "g", listen, namesrv=cometmq_broker.namesrv, consume_from=FIRST, orderly=orderly
    )
    consumer.subscribe("t")
    with consumer:
        assert done.wait(WAIT_S)
        cometmq_broker.wait_consumed("g")
    assert [type(each) for each in outcomes] == [ClientStateError if orderly else type(None)]
