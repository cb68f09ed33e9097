"""Ask brokers for the offsets that they have stored for groups."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from cometmq.admin.servers import Servers
from cometmq.model.queue import MessageQueue
from cometmq.protocol import requests
from cometmq.protocol.bodies.inspection import OffsetWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import QueryConsumerOffsetRequestHeader

# A broker is asked for this many queues at once.
_QUEUES_AT_ONCE: Final = 16


async def stored_offset(
    servers: Servers, address: str, group: str, queue: MessageQueue
) -> int | None:
    """Return the stored offset, None if there is none.

    A broker before 5.0 answers 0 for any group while the queue still begins in memory.
    """
    answer = await servers.ask(
        address,
        requests.QUERY_CONSUMER_OFFSET,
        QueryConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            # Otherwise every broker answers 0: a new member begins there.
            set_zero_if_not_found=False,
        ),
        what=f"the offset of group {group} at {queue}",
        also=(ResponseCode.QUERY_NOT_FOUND,),
    )
    return None if answer.code == ResponseCode.QUERY_NOT_FOUND else answer.header.offset


async def distinguish_none_from_zero(
    servers: Servers, address: str, group: str, table: Mapping[MessageQueue, OffsetWrapper]
) -> None:
    """Find the queues in which a group has no offset: for these a Java broker reports an offset of
    0.
    """
    begun = {queue.topic for queue, at in table.items() if at.consumer_offset}
    doubtful = [
        (queue, at)
        for queue, at in table.items()
        if at.has_offset is None and at.broker_offset and queue.topic not in begun
    ]

    async def ask(queue: MessageQueue, at: OffsetWrapper) -> None:
        if await stored_offset(servers, address, group, queue) is None:
            at.has_offset, at.waiting_offset = False, -1

    for begin in range(0, len(doubtful), _QUEUES_AT_ONCE):
        await asyncio.gather(*(ask(*each) for each in doubtful[begin : begin + _QUEUES_AT_ONCE]))
