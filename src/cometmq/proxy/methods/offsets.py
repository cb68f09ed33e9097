"""Serve PullMessage and the three calls for offsets, which Java's proxy leaves out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.client.pulling.received import wanted_messages
from cometmq.model.queue import MessageQueue
from cometmq.model.results import PullStatus
from cometmq.model.sysflag import PULL_SUBSCRIPTION, PULL_SUSPEND
from cometmq.protocol.headers import PullMessageRequestHeader
from cometmq.proxy.calls import Caller
from cometmq.proxy.clients.clients import subscription_of
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.metadata import Metadata
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.messages import to_wire
from cometmq.proxy.wire.names import group_of, topic_of
from cometmq.proxy.wire.statuses import RefusedError, ok, status
from cometmq.proxy.wire.times import milliseconds_of

_ANSWER_S: Final = 5.0
_WAY_BACK_S: Final = 0.5


class OffsetCalls:
    def __init__(
        self, instance: ClientInstance, metadata: Metadata, settings: ProxySettings
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._metadata = metadata

    async def pull(
        self, caller: Caller, request: wire.PullMessageRequest
    ) -> AsyncIterator[wire.PullMessageResponse]:
        group = group_of(request.group)
        address, queue = await self._queue(request.message_queue)
        subscription = subscription_of(queue.topic, request.filter_expression)
        if request.offset < 0:
            raise RefusedError(
                wire.ILLEGAL_OFFSET, f"the offset is {request.offset}; begin at 0 or later"
            )
        most = self._settings.grpc_client_consumer_long_polling_batch_size
        poll_s = request.long_polling_timeout.ToMilliseconds() / 1000
        longest_s = self._settings.max_poll_s
        left_s = longest_s if caller.left_s is None else caller.left_s - _WAY_BACK_S
        poll_s = max(0.0, min(poll_s, longest_s, left_s))
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=request.offset,
            max_msg_nums=max(1, min(request.batch_size or 1, most)),
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if poll_s else 0),
            commit_offset=0,
            suspend_timeout_millis=int(poll_s * 1000),
            subscription=subscription.sub_string,
            sub_version=0,
            expression_type=subscription.expression_type,
        )
        answer = await self._instance.brokers.pull(address, header, poll_s + _ANSWER_S)
        if answer.status is PullStatus.OFFSET_ILLEGAL:
            yield wire.PullMessageResponse(
                status=status(wire.ILLEGAL_OFFSET, f"the queue has no offset {request.offset}")
            )
        elif answer.status is PullStatus.FOUND:
            received = wanted_messages(answer, queue, request.offset, group, subscription)
            yield wire.PullMessageResponse(status=ok())
            for message in received.messages:
                yield wire.PullMessageResponse(
                    message=to_wire(message, request.message_queue.topic, None)
                )
        else:
            yield wire.PullMessageResponse(status=status(wire.MESSAGE_NOT_FOUND, "no new message"))
        yield wire.PullMessageResponse(next_offset=answer.header.next_begin_offset)

    async def update(
        self, _caller: Caller, request: wire.UpdateOffsetRequest
    ) -> wire.UpdateOffsetResponse:
        group = group_of(request.group)
        address, queue = await self._queue(request.message_queue)
        if request.offset < 0:
            raise RefusedError(
                wire.ILLEGAL_OFFSET, f"the offset is {request.offset}; commit 0 or more"
            )
        await self._instance.brokers.update_consumer_offset(address, group, queue, request.offset)
        return wire.UpdateOffsetResponse(status=ok())

    async def get(self, _caller: Caller, request: wire.GetOffsetRequest) -> wire.GetOffsetResponse:
        group = group_of(request.group)
        address, queue = await self._queue(request.message_queue)
        offset = await self._instance.brokers.query_consumer_offset(
            address, group, queue, is_stored=True
        )
        if offset is None:
            raise RefusedError(
                wire.OFFSET_NOT_FOUND, f"group {group} has committed no offset of this queue"
            )
        return wire.GetOffsetResponse(status=ok(), offset=offset)

    async def query(
        self, _caller: Caller, request: wire.QueryOffsetRequest
    ) -> wire.QueryOffsetResponse:
        address, queue = await self._queue(request.message_queue)
        brokers = self._instance.brokers
        if request.query_offset_policy == wire.BEGINNING:
            offset = await brokers.min_offset(address, queue)
        elif request.query_offset_policy == wire.END:
            offset = await brokers.max_offset(address, queue)
        elif request.HasField("timestamp"):
            at_ms = milliseconds_of(request.timestamp, "timestamp", wire.BAD_REQUEST)
            offset = await brokers.search_offset(address, queue, at_ms)
        else:
            raise RefusedError(
                wire.BAD_REQUEST, "the policy is TIMESTAMP, but the request has no timestamp"
            )
        return wire.QueryOffsetResponse(status=ok(), offset=offset)

    async def _queue(self, given: wire.MessageQueue) -> tuple[str, MessageQueue]:
        topic = topic_of(given.topic)
        address = await self._metadata.broker_named(given.broker.name, topic)
        return address, MessageQueue(topic, given.broker.name, given.id)
