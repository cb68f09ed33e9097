"""The first part: a producer, a broker that stores, and a group of two consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Final

from examples.demo.tally import Tally
from examples.order_events import OrderEvent, to_message
from examples.order_events.events import decode_event

from cometmq import ConsumeFromWhere, ConsumeResult, MessageExt, MessageQueue
from cometmq.admin import AdminClient
from cometmq.admin.groups.offsets import QueueOffsets
from cometmq.aio import Producer, PushConsumer

TOPIC: Final = "OrderEvents"
GROUP: Final = "order-archive"
CONSUMERS: Final = ("consumer-1", "consumer-2")
QUEUE_COUNT: Final = 8
IN_FLIGHT: Final = 64
# On a quiet machine none of this takes a second.
DEADLINE_S: Final = 120.0


async def run_messages(
    namesrv: str, events: Sequence[OrderEvent], tally: Tally
) -> list[QueueOffsets]:
    """Send `events`, consume them, count both in `tally`.

    The topic must exist, with QUEUE_COUNT queues. Returns the offsets that the broker names
    afterwards. Raises CometMQError when a send fails, TimeoutError when an event does not come.
    """
    feed = iter(events)
    async with AsyncExitStack() as clients:
        # On a busy machine a send may take longer than the default of three seconds.
        producer = Producer("order-shop", namesrv=namesrv, send_timeout_ms=int(DEADLINE_S * 1000))
        await clients.enter_async_context(producer)
        consumers = [_consumer(name, namesrv, tally) for name in CONSUMERS]
        for consumer in consumers:
            # A queue that changes hands while messages come may deliver some of them twice, so the
            # group assembles before the first one.
            await clients.enter_async_context(consumer)
        await _until_shared(consumers)
        await asyncio.gather(*(_send(producer, feed, tally) for _ in range(IN_FLIGHT)))
        async with asyncio.timeout(DEADLINE_S):
            await tally.complete.wait()
    # The consumers have left and committed, so these offsets come from the broker.
    async with AdminClient(namesrv) as admin:
        return await admin.offsets.of_topic(TOPIC, GROUP)


async def _send(producer: Producer, feed: Iterator[OrderEvent], tally: Tally) -> None:
    """One of the senders that share `feed`: together they keep IN_FLIGHT sends under way."""
    for event in feed:
        await _send_one(producer, event, tally)


async def _send_one(producer: Producer, event: OrderEvent, tally: Tally) -> None:
    message = to_message(event, TOPIC)
    tally.sending(event)
    # The key chooses the queue, so the events of one order stay in one queue, in order.
    result = await producer.send(message, key=event.order_id)
    tally.sent(event, result)


def _consumer(name: str, namesrv: str, tally: Tally) -> PushConsumer:
    consumer = PushConsumer(
        GROUP,
        _listener(name, tally),
        namesrv=namesrv,
        instance_name=name,
        consume_from=ConsumeFromWhere.FIRST_OFFSET,
        # One batch at a time, so the order within a queue is the order of arrival.
        concurrency=1,
        consume_message_batch_max_size=32,
    )
    consumer.subscribe(TOPIC)
    return consumer


def _listener(name: str, tally: Tally) -> Callable[[list[MessageExt]], Awaitable[ConsumeResult]]:
    async def listen(messages: list[MessageExt]) -> ConsumeResult:
        for message in messages:
            queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
            tally.came(decode_event(message.body), name, queue)
        return ConsumeResult.SUCCESS

    return listen


async def _until_shared(consumers: Sequence[PushConsumer]) -> None:
    """Wait until the group has shared the topic's queues evenly."""
    share = QUEUE_COUNT // len(consumers)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            held = [
                sum(queue.topic == TOPIC for queue in consumer.assigned_queues())
                for consumer in consumers
            ]
            if all(count == share for count in held):
                return
            await asyncio.sleep(0.01)
