"""Ask brokers where queues begin and end, and for the offsets that a group has committed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.errors import CometMQError
from cometmq.model.queue import MessageQueue
from cometmq.model.results import QueueLag

# How many queues are asked about at a time.
_AT_A_TIME: Final = 64


async def address_of(instance: ClientInstance, queue: MessageQueue) -> str:
    """Return the address of a broker that answers for the queue. Raises RouteNotFoundError, RemotingError."""
    if not instance.routes.read_addresses(queue.broker_name):
        await instance.routes.refresh(queue.topic)
    return instance.need_reader(queue.broker_name, queue.topic)


async def min_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    return await instance.brokers.min_offset(await address_of(instance, queue), queue)


async def max_offset(instance: ClientInstance, queue: MessageQueue) -> int:
    return await instance.brokers.max_offset(await address_of(instance, queue), queue)


async def offset_at(instance: ClientInstance, queue: MessageQueue, timestamp_ms: int) -> int:
    """Return the first offset whose message was stored at or after `timestamp_ms`."""
    address = await address_of(instance, queue)
    return await instance.brokers.search_offset(address, queue, timestamp_ms)


async def stored_offset(instance: ClientInstance, group: str, queue: MessageQueue) -> int | None:
    """Return the offset that the broker has of a group, or None if it has none."""
    address = await address_of(instance, queue)
    return await instance.brokers.query_consumer_offset(address, group, queue)


async def lag_of(
    instance: ClientInstance,
    queues: Collection[MessageQueue],
    committed: Callable[[MessageQueue], Awaitable[int | None]],
) -> dict[MessageQueue, QueueLag]:
    """Return the lag of each of `queues`. A broker that does not answer leaves its queues unknown."""
    ordered = sorted(queues)
    lags: dict[MessageQueue, QueueLag] = {}
    for start in range(0, len(ordered), _AT_A_TIME):
        part: Sequence[MessageQueue] = ordered[start : start + _AT_A_TIME]
        found = await asyncio.gather(*(_lag(instance, queue, committed) for queue in part))
        lags.update(zip(part, found, strict=True))
    return lags


async def _lag(
    instance: ClientInstance,
    queue: MessageQueue,
    committed: Callable[[MessageQueue], Awaitable[int | None]],
) -> QueueLag:
    end: int | None = None
    try:
        # First the offset that lags behind: the other one only grows, so the difference is not below 0.
        done = await committed(queue)
        end = await max_offset(instance, queue)
    except CometMQError as error:
        return QueueLag(unknown=str(error))
    if done is None:
        return QueueLag(max_offset=end, unknown="the group has committed no offset of this queue")
    return QueueLag(max_offset=end, committed=done)
