"""Where the queues of a topic begin and end, and how far a group has come (Java: MQAdminImpl)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from cometmq.admin.servers import TIMEOUT_S, AdminClient, master_of
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import request
from cometmq.protocol.header import Header
from cometmq.protocol.headers import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
)
from cometmq.remoting.credentials import refused


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
        lowest = await self._offset(
            address,
            RequestCode.GET_MIN_OFFSET,
            GetMinOffsetRequestHeader(topic=topic, queue_id=queue_id),
            f"the min offset of {queue}",
        )
        highest = await self._offset(
            address,
            RequestCode.GET_MAX_OFFSET,
            GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id),
            f"the max offset of {queue}",
        )
        committed = None
        if group is not None:
            committed = await self._offset(
                address,
                RequestCode.QUERY_CONSUMER_OFFSET,
                QueryConsumerOffsetRequestHeader(
                    consumer_group=group, topic=topic, queue_id=queue_id
                ),
                f"the offset of group {group} at {queue}",
            )
        assert lowest is not None, "only a group's offset may be missing"
        assert highest is not None, "only a group's offset may be missing"
        return QueueOffsets(queue, lowest, highest, committed)

    async def _offset(
        self, address: str, code: RequestCode, header: Header, what: str
    ) -> int | None:
        answer = await self._remoting.call(address, request(code, header), TIMEOUT_S)
        if (
            code == RequestCode.QUERY_CONSUMER_OFFSET
            and answer.code == ResponseCode.QUERY_NOT_FOUND
        ):
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise refused(answer, address, what)
        return answer.header(OffsetResponseHeader).offset


def stored(offsets: Iterable[QueueOffsets]) -> int:
    """How many messages these queues have taken since they exist."""
    return sum(queue.max_offset for queue in offsets)
