"""Where the queues of a topic begin and end, and how far a group has come (Java: MQAdminImpl)."""

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
    """One queue's ends, and the group's offset there (None: it has none, or none was asked for).

    Offsets count messages: `max_offset` is the one that the next message will get.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    committed_offset: int | None = None

    @property
    def lag(self) -> int:
        """Messages that the group has still to consume."""
        begin = self.min_offset if self.committed_offset is None else self.committed_offset
        return max(0, self.max_offset - begin)


class OffsetsAdmin(AdminClient):
    """Asks the brokers themselves, each time anew. An asynchronous context manager; for its loop.

    Calls raise RouteNotFoundError when the topic does not exist, RemotingError when a server does
    not answer, RemoteError when it refuses.
    """

    async def topic_offsets(self, topic: str, group: str | None = None) -> list[QueueOffsets]:
        """The offsets of every readable queue of `topic`, in the order of the queues."""
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
    """How many messages these queues have taken since they exist."""
    return sum(queue.max_offset for queue in offsets)
