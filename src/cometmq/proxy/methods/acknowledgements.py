"""Serve a client's three answers to a received message: acknowledge, hide for longer, make a dead letter.

Java: AckMessageActivity, ChangeInvisibleDurationActivity, ForwardMessageToDLQActivity.
"""

from __future__ import annotations

import asyncio

from cometmq.client.instance import ClientInstance
from cometmq.client.popping.received import Receipt
from cometmq.errors import CometMQError
from cometmq.protocol import requests
from cometmq.protocol.headers import ConsumerSendMsgBackRequestHeader
from cometmq.protocol.pop.handle import PopHandle
from cometmq.proxy.calls import Caller
from cometmq.proxy.clients.handles import Handles
from cometmq.proxy.configuration.config import MAX_ENTRIES
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.metadata import Metadata
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.names import group_of, topic_of
from cometmq.proxy.wire.statuses import RefusedError, of_all, ok, status_of


async def send_to_dead_letters(
    instance: ClientInstance, group: str, receipt: Receipt, message_id: str, place: int
) -> None:
    """Have the broker copy a message to %DLQ%<group>; `place` is its commit-log offset."""
    header = ConsumerSendMsgBackRequestHeader(
        offset=place,
        group=group,
        delay_level=-1,
        origin_msg_id=message_id,
        origin_topic=receipt.real_topic(group),
        unit_mode=False,
        max_reconsume_times=0,
    )
    address = instance.need_master(receipt.broker_name, receipt.topic)
    await instance.remoting.ask(
        address,
        requests.CONSUMER_SEND_MSG_BACK,
        header,
        what=f"making a dead letter of a message of {receipt.topic}",
    )


class AckCalls:
    def __init__(
        self,
        instance: ClientInstance,
        metadata: Metadata,
        handles: Handles,
        settings: ProxySettings,
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._metadata = metadata
        self._handles = handles

    async def ack(
        self, _caller: Caller, request: wire.AckMessageRequest
    ) -> wire.AckMessageResponse:
        topic, group = topic_of(request.topic), group_of(request.group)
        if not 0 < len(request.entries) <= MAX_ENTRIES:
            raise RefusedError(
                wire.BAD_REQUEST,
                f"the request acknowledges {len(request.entries)} messages, the limit MAX_ENTRIES is "
                f"{MAX_ENTRIES}; acknowledge at least one and at most that many in a request",
                "MAX_ENTRIES",
            )
        await self._metadata.route(topic)
        statuses = await asyncio.gather(
            *(self._ack(topic, group, entry) for entry in request.entries)
        )
        entries = [
            wire.AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=each
            )
            for entry, each in zip(request.entries, statuses, strict=True)
        ]
        return wire.AckMessageResponse(status=of_all(statuses), entries=entries)

    async def change(
        self, _caller: Caller, request: wire.ChangeInvisibleDurationRequest
    ) -> wire.ChangeInvisibleDurationResponse:
        topic, group = topic_of(request.topic), group_of(request.group)
        _check_lite(request.lite_topic)
        if request.suspend:
            raise RefusedError(
                wire.UNSUPPORTED, "suspend needs lite topics, which this proxy does not serve"
            )
        hidden_ms = request.invisible_duration.ToMilliseconds()
        most_ms = self._settings.max_invisible_time_mills
        if not 0 <= hidden_ms <= most_ms:
            raise RefusedError(
                wire.ILLEGAL_INVISIBLE_TIME,
                f"the invisible duration is {hidden_ms} ms; choose 0 to {most_ms} ms "
                "(maxInvisibleTimeMills)",
            )
        await self._metadata.route(topic)
        given = request.receipt_handle
        held = await self._handles.take(group, topic, given)
        receipt = held.receipt
        try:
            # Brokers refuse a time of 0.
            await self._handles.of(group).hide(receipt, max(hidden_ms, 1))
        except CometMQError:
            self._handles.keep(given, held)
            raise
        place = PopHandle.decode(given).commit_log_offset
        handle = receipt.handle._replace(offset=receipt.offset, commit_log_offset=place)
        return wire.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=handle.encode())

    async def forward(
        self, _caller: Caller, request: wire.ForwardMessageToDeadLetterQueueRequest
    ) -> wire.ForwardMessageToDeadLetterQueueResponse:
        topic, group = topic_of(request.topic), group_of(request.group)
        _check_lite(request.lite_topic)
        await self._metadata.route(topic)
        given = request.receipt_handle
        held = await self._handles.take(group, topic, given)
        receipt = held.receipt
        place = PopHandle.decode(given).commit_log_offset
        if place < 0:
            raise RefusedError(
                wire.INVALID_RECEIPT_HANDLE,
                "the receipt handle has no commit-log offset; use the one that came with the message",
            )
        try:
            await send_to_dead_letters(self._instance, group, receipt, request.message_id, place)
            await self._handles.of(group).ack(receipt)
        except CometMQError:
            self._handles.keep(given, held)
            raise
        return wire.ForwardMessageToDeadLetterQueueResponse(status=ok())

    # Inside

    async def _ack(self, topic: str, group: str, entry: wire.AckMessageEntry) -> wire.Status:
        try:
            _check_lite(entry.lite_topic)
            held = await self._handles.take(group, topic, entry.receipt_handle)
            try:
                await self._handles.of(group).ack(held.receipt)
            except CometMQError:
                self._handles.keep(entry.receipt_handle, held)
                raise
        except CometMQError as error:
            return status_of(error)
        return ok()


def _check_lite(lite_topic: str) -> None:
    if lite_topic:
        raise RefusedError(
            wire.UNSUPPORTED, "the request names a lite topic, which this proxy does not serve"
        )
