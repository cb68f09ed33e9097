"""Read what lies in queues: messages, and the units of consume queues that lead to them.

Commands of mqadmin: queryMsgByOffset, printMsg, printMsgByQueue, consumeMessage, queryCq.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from cometmq.admin.messages.reading import TOOLS_GROUP, MessageReader, check_queue
from cometmq.admin.room import Room
from cometmq.admin.routed import reader_of
from cometmq.errors import IllegalArgumentError
from cometmq.model.message import MessageExt
from cometmq.model.names import check_group
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol import requests
from cometmq.protocol.bodies.overview import ConsumeQueueData, QueryConsumeQueueResponseBody
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.headers import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumeQueueRequestHeader,
)
from cometmq.protocol.redrive import NO_END_MS


@dataclass(frozen=True, slots=True)
class QueueUnits:
    """Holds units of a consume queue, from the offset asked for on.

    Each unit has the place and length of a message in the commit log, and the code of its tags.
    `subscription` is the subscription of the named group, if it is online; `filter` is the
    broker's description of the filter, or of the reason why it cannot select messages.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    units: tuple[ConsumeQueueData, ...]
    subscription: SubscriptionData | None
    filter: str | None


class QueueContents(Room):
    """Reads queues without a trace in any group's offsets."""

    async def by_offset(self, queue: MessageQueue, offset: int) -> MessageExt | None:
        """Return the message of a queue at an offset, or None if there is none any more or yet.

        Raises RouteNotFoundError if the topic has no such queue.
        """
        return await MessageReader(self._servers).at(queue, offset)

    async def stored(
        self, topic: str, *, begin_ms: int = 0, end_ms: int = NO_END_MS, tags: str = "*"
    ) -> AsyncIterator[MessageExt]:
        """Yield the messages of a topic that were stored from `begin_ms` to `end_ms`.

        Both times are included, in ms since the epoch. `tags` selects by tag (`TagA || TagB`).
        Queues follow each other, and each begins with its oldest message. Messages that are stored
        during the call are left out.
        """
        async for message in MessageReader(self._servers).stored(topic, begin_ms, end_ms, tags):
            yield message

    async def stored_in(
        self,
        queue: MessageQueue,
        *,
        begin_offset: int = 0,
        begin_ms: int = 0,
        end_ms: int = NO_END_MS,
        tags: str = "*",
        group: str = TOOLS_GROUP,
    ) -> AsyncIterator[MessageExt]:
        """Yield the messages of one queue like `stored`, those before `begin_offset` left out.

        The broker checks whether `group` may read; its offsets stay as they are. Raises
        RouteNotFoundError if the topic has no such queue.
        """
        check_group(group)
        async for message in MessageReader(self._servers, group).stored_in(
            queue, begin_offset, begin_ms, end_ms, tags
        ):
            yield message

    async def units(
        self, queue: MessageQueue, offset: int, *, count: int = 10, group: str | None = None
    ) -> QueueUnits:
        """Return up to `count` units of a consume queue, from `offset` on.

        With a `group` that is online the broker says what the group selects of the topic, too.
        Raises RouteNotFoundError if the topic has no such queue.
        """
        if type(count) is not int or count < 1:
            raise IllegalArgumentError(f"count is {count!r:.80}; give a number of units, 1 or more")
        route = await self._servers.route(queue.topic)
        header = QueryConsumeQueueRequestHeader(
            topic=queue.topic,
            queue_id=queue.queue_id,
            index=offset,
            count=count,
            consumer_group=group,
        )
        address = reader_of(route, queue.topic, queue.broker_name)
        check_queue(route, queue)
        what = f"the units of {queue} from {offset} on"
        answer = await self._servers.ask(address, requests.QUERY_CONSUME_QUEUE, header, what=what)
        if not answer.body:  # so a Java broker says that no unit is there
            return QueueUnits(queue, *await self._ends(address, queue), (), None, None)
        body = decode_body(answer.body, QueryConsumeQueueResponseBody)
        return QueueUnits(
            queue,
            body.min_queue_index,
            body.max_queue_index,
            tuple(body.queue_data or ()),
            body.subscription_data,
            body.filter_data,
        )

    # Inside

    async def _ends(self, address: str, queue: MessageQueue) -> tuple[int, int]:
        low = await self._servers.ask(
            address,
            requests.GET_MIN_OFFSET,
            GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
            what=f"the min offset of {queue}",
        )
        high = await self._servers.ask(
            address,
            requests.GET_MAX_OFFSET,
            GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id),
            what=f"the max offset of {queue}",
        )
        return low.header.offset, high.header.offset
