"""Finds the first and last offsets of queues and the offsets of groups (Java: MQAdminImpl)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from cometmq.admin.servers import AdminClient, master_of
from cometmq.model.queue import MessageQueue
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
)


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """The first and last offsets of a queue, and the offset that a group has committed there.

    Offsets count messages; the next message gets `max_offset`. `committed_offset` is None if the
    group has no offset, or if the caller named no group.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    committed_offset: int | None = None

    @property
    def lag(self) -> int:
        """Return the number of messages that the group has not consumed yet."""
        begin = self.min_offset if self.committed_offset is None else self.committed_offset
        return max(0, self.max_offset - begin)


class OffsetsAdmin(AdminClient):
    """Asks the brokers for offsets and caches none.

    Use it as an asynchronous context manager, on one loop. A call raises RouteNotFoundError when
    the topic does not exist, RemotingError when a server does not answer, RemoteError when a
    server refuses.
    """

    async def topic_offsets(self, topic: str, group: str | None = None) -> list[QueueOffsets]:
        """Return the offsets of every readable queue of `topic`, in the order of the queues."""
        route = await self._route(topic)
        addresses = {
            queue: master_of(route, topic, queue.broker_name)
            for queue in route.subscribe_queues(topic)
        }
        return list(
            await asyncio.gather(
                *(
                    self._queue_offsets(address, queue, group)
                    for queue, address in addresses.items()
                )
            )
        )

    async def _queue_offsets(
        self, address: str, queue: MessageQueue, group: str | None
    ) -> QueueOffsets:
        topic, queue_id = queue.topic, queue.queue_id
        lowest = await self._remoting.ask(
            address,
            requests.GET_MIN_OFFSET,
            GetMinOffsetRequestHeader(topic=topic, queue_id=queue_id),
            what=f"the min offset of {queue}",
        )
        highest = await self._remoting.ask(
            address,
            requests.GET_MAX_OFFSET,
            GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id),
            what=f"the max offset of {queue}",
        )
        committed = None
        if group is not None:
            stored = await self._remoting.ask(
                address,
                requests.QUERY_CONSUMER_OFFSET,
                QueryConsumerOffsetRequestHeader(
                    consumer_group=group, topic=topic, queue_id=queue_id
                ),
                what=f"the offset of group {group} at {queue}",
                also=(ResponseCode.QUERY_NOT_FOUND,),
            )
            if stored.code == ResponseCode.SUCCESS:
                committed = stored.header.offset
        return QueueOffsets(queue, lowest.header.offset, highest.header.offset, committed)


def stored(offsets: Iterable[QueueOffsets]) -> int:
    """Return how many messages these queues have taken since they were created."""
    return sum(queue.max_offset for queue in offsets)
