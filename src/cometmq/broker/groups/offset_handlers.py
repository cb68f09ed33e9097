"""Serve the offsets of groups and queues: codes 14, 15, 29, 30, 31 and 32.

Java: ConsumerManageProcessor, AdminBrokerProcessor.
"""

from __future__ import annotations

from cometmq.broker.groups.groups import GroupManager
from cometmq.broker.groups.offsets import ConsumerOffsetManager, check_clients_may_commit
from cometmq.broker.refusal import Refused
from cometmq.broker.topics.topics import TopicManager
from cometmq.protocol import requests
from cometmq.protocol.codes import OFFSET_WAS_RESET, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.store.store import Boundary, MessageStore


class OffsetHandlers:
    """Serves requests about offsets. For the loop's thread only."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicManager,
        groups: GroupManager,
        offsets: ConsumerOffsetManager,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.QUERY_CONSUMER_OFFSET, self.query)
        handlers.register(requests.UPDATE_CONSUMER_OFFSET, self.update)
        handlers.register(requests.GET_MAX_OFFSET, self.max_offset)
        handlers.register(requests.GET_MIN_OFFSET, self.min_offset)
        handlers.register(requests.SEARCH_OFFSET_BY_TIMESTAMP, self.search)
        handlers.register(requests.GET_EARLIEST_MSG_STORETIME, self.earliest_store_time)

    def query(
        self, connection: Connection, call: Request[QueryConsumerOffsetRequestHeader]
    ) -> RemotingCommand:
        """Return a group's stored offset.

        A group without one begins at 0 if the queue's first message is still in memory. A slave does
        not say so: its master may have an offset that is not copied yet.
        """
        header = call.header
        offset = self._offsets.query_of(
            header.consumer_group, header.topic, header.queue_id, connection
        )
        if offset < 0:
            if (
                header.set_zero_if_not_found is False
                or self._offsets.is_copy
                or not self._begins_in_memory(header.topic, header.queue_id)
            ):
                return response(  # no refusal: every group's first start passes here
                    ResponseCode.QUERY_NOT_FOUND,
                    f"Not found, group {header.consumer_group} has no offset for "
                    f"{header.topic} queue {header.queue_id}; it begins by its own policy",
                )
            offset = 0
        return response(ResponseCode.SUCCESS, header=OffsetResponseHeader(offset=offset))

    def _begins_in_memory(self, topic: str, queue_id: int) -> bool:
        return self._store.min_offset(topic, queue_id) <= 0 and self._store.is_in_memory(
            topic, queue_id, 0
        )

    def update(
        self, _connection: Connection, call: Request[UpdateConsumerOffsetRequestHeader]
    ) -> RemotingCommand:
        """Store a group's offset, or say in the remark that it is ignored because of a reset.

        The code is SUCCESS even then, as in Java: a member commits what it consumed before.
        """
        header = call.header
        check_clients_may_commit(header.consumer_group)
        if self._groups.get(header.consumer_group) is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                self._groups.unknown(header.consumer_group),
            )
        self._need_topic(header.topic)
        if header.queue_id is None or header.commit_offset is None:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId is {header.queue_id} and commitOffset {header.commit_offset}; give both",
            )
        self._check_place(header.topic, header.queue_id, header.commit_offset)
        if self._offsets.awaits_pull(header.consumer_group, header.topic, header.queue_id):
            return response(ResponseCode.SUCCESS, OFFSET_WAS_RESET)
        if not self._offsets.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        ):
            raise Refused(
                ResponseCode.SYSTEM_ERROR, too_many(self._offsets), limit="maxConsumerOffsets"
            )
        return response(ResponseCode.SUCCESS)

    def _check_place(self, topic: str, queue_id: int, offset: int) -> None:
        """Refuse an unknown queue, and an offset outside the queue.

        Java stores any offset of any queue; a group that went on from there would miss messages.
        """
        end = self._store.queue_end(topic, queue_id)
        if end is None:
            if not self._topics.has_queue(topic, queue_id):
                raise Refused(
                    ResponseCode.INVALID_PARAMETER,
                    f"queueId[{queue_id}] is illegal: topic[{topic}] has no such queue",
                )
            end = 0
        if not 0 <= offset <= end:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"commitOffset[{offset}] is illegal: queue {queue_id} of topic[{topic}] ends at "
                f"{end}; commit an offset from 0 to {end}",
            )

    def max_offset(
        self, _connection: Connection, call: Request[GetMaxOffsetRequestHeader]
    ) -> RemotingCommand:
        header = call.header
        return _offset(self._store.max_offset(header.topic, header.queue_id))

    def min_offset(
        self, _connection: Connection, call: Request[GetMinOffsetRequestHeader]
    ) -> RemotingCommand:
        header = call.header
        return _offset(self._store.min_offset(header.topic, header.queue_id))

    def search(
        self, _connection: Connection, call: Request[SearchOffsetRequestHeader]
    ) -> RemotingCommand:
        """Return the offset at a store time.

        The boundary says which end of equal times is meant.
        """
        header = call.header
        upper = (header.boundary_type or "").lower() == Boundary.UPPER.value
        return _offset(
            self._store.offset_by_time(
                header.topic,
                header.queue_id,
                header.timestamp,
                Boundary.UPPER if upper else Boundary.LOWER,
            )
        )

    def earliest_store_time(
        self, _connection: Connection, call: Request[GetEarliestMsgStoretimeRequestHeader]
    ) -> RemotingCommand:
        """Return when the oldest message of a queue was stored, in ms; -1 for an empty queue."""
        header = call.header
        timestamp = self._store.earliest_store_time(header.topic, header.queue_id)
        return response(
            ResponseCode.SUCCESS,
            header=GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp),
        )

    def _need_topic(self, topic: str) -> None:
        if self._topics.get(topic) is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )


def too_many(offsets: ConsumerOffsetManager) -> str:
    """Return the remark that refuses a group's first offset in a queue: too many are stored."""
    return (
        f"{offsets.count} consumer offsets are stored, the limit maxConsumerOffsets is "
        f"{offsets.max_count}; raise it (mqadmin updateBrokerConfig, or code 25)"
    )


def _offset(offset: int) -> RemotingCommand:
    return response(ResponseCode.SUCCESS, header=OffsetResponseHeader(offset=offset))
