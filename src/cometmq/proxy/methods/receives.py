"""Serve ReceiveMessage: pop, filter, renew, and make dead letters.

Java: ReceiveMessageActivity, ConsumerProcessor, ReceiveMessageResultFilter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.client.popping.received import Receipt, popped_messages
from cometmq.errors import CometMQError
from cometmq.filtering.tags import accepts, selects_all
from cometmq.logs.loggers import get_logger
from cometmq.model.message import MessageExt
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.pop.headers import INIT_MAX, PopMessageRequestHeader
from cometmq.proxy.calls import Caller
from cometmq.proxy.clients.clients import Clients, subscription_of
from cometmq.proxy.clients.handles import Handles
from cometmq.proxy.configuration.config import MAX_WAITING_RECEIVES
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.metadata import Metadata
from cometmq.proxy.methods.acknowledgements import send_to_dead_letters
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.messages import to_wire
from cometmq.proxy.wire.names import group_of, topic_of
from cometmq.proxy.wire.statuses import RefusedError, ok, status
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

_ANY_QUEUE: Final = -1
_ANSWER_S: Final = 5.0
_REQUEST_TIMEOUT_S: Final = 3.0
# This much of the time that the client waits is kept for the way back.
_WAY_BACK_S: Final = 0.5

_Popped = list[tuple[MessageExt, Receipt]]


class Receives:
    def __init__(
        self,
        instance: ClientInstance,
        metadata: Metadata,
        clients: Clients,
        handles: Handles,
        tasks: TaskOwner,
        settings: ProxySettings,
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._metadata = metadata
        self._clients = clients
        self._handles = handles
        self._tasks = tasks
        self.waiting = 0

    async def receive(
        self, caller: Caller, request: wire.ReceiveMessageRequest
    ) -> AsyncIterator[wire.ReceiveMessageResponse]:
        self._clients.check_owner(caller)
        topic, group = topic_of(request.message_queue.topic), group_of(request.group)
        subscription = subscription_of(topic, request.filter_expression)
        config = await self._metadata.group(group, topic)
        is_renewed = request.auto_renew and self._settings.enable_proxy_auto_renew
        hidden_ms = _hidden_ms(request, self._settings)
        # The messages of a client that has no stream here would be given back while it consumes them.
        if is_renewed and self._clients.is_gone(caller.client_id):
            raise RefusedError(
                wire.UNRECOGNIZED_CLIENT_TYPE,
                f"client {caller.client_id} has no Telemetry stream here; send its settings over one first, or "
                "receive without auto_renew",
            )
        if is_renewed and not self._handles.has_room:
            raise RefusedError(
                wire.TOO_MANY_REQUESTS,
                "too many messages are being consumed with auto_renew, the limit is MAX_RENEWED_HANDLES; "
                "start another proxy",
                "MAX_RENEWED_HANDLES",
            )
        if self.waiting >= MAX_WAITING_RECEIVES:
            raise RefusedError(
                wire.TOO_MANY_REQUESTS,
                f"{self.waiting} receives wait, the limit MAX_WAITING_RECEIVES is {MAX_WAITING_RECEIVES}; "
                "start another proxy",
                "MAX_WAITING_RECEIVES",
            )
        broker_name = await self._broker(request.message_queue.broker.name, topic)
        most = self._settings.grpc_client_consumer_long_polling_batch_size
        header = PopMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=_ANY_QUEUE,
            max_msg_nums=max(1, min(request.batch_size or 1, most)),
            invisible_time=hidden_ms,
            poll_time=int(_poll_s(caller, request, self._settings) * 1000),
            born_time=0,  # the broker's clock
            init_mode=INIT_MAX,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=config.consume_message_orderly,
            attempt_id=request.attempt_id or None,
        )
        self.waiting += 1
        try:
            popped = await self._pop(header, broker_name)
        finally:
            self.waiting -= 1
        wanted = await self._wanted(popped, group, subscription, config.retry_max_times + 1)
        async for answer in self._answers(caller, request, group, wanted):
            yield answer

    # Inside

    async def _answers(
        self, caller: Caller, request: wire.ReceiveMessageRequest, group: str, popped: _Popped
    ) -> AsyncIterator[wire.ReceiveMessageResponse]:
        left = [receipt for _, receipt in popped]
        try:
            first = ok() if popped else status(wire.MESSAGE_NOT_FOUND, "no new message")
            yield wire.ReceiveMessageResponse(status=first)
            for message, receipt in popped:
                text = _handle_text(message, receipt)
                answer = to_wire(message, request.message_queue.topic, text)
                yield wire.ReceiveMessageResponse(message=answer)
                left.remove(receipt)
                if request.auto_renew and self._settings.enable_proxy_auto_renew:
                    times = message.reconsume_times
                    self._handles.renew(caller.client_id, group, text, receipt, times)
            yield self.last()
        finally:
            if left:  # the client is gone
                self._tasks.spawn(self._handles.give_back(group, left), "give-back")

    def last(self) -> wire.ReceiveMessageResponse:
        """Return the answer that ends each stream."""
        answer = wire.ReceiveMessageResponse()
        answer.delivery_timestamp.FromMilliseconds(self._instance.clock.now_ms())
        return answer

    async def _broker(self, wanted: str, topic: str) -> str:
        if wanted:
            await self._metadata.broker_named(wanted, topic)
            return wanted
        route = await self._metadata.route(topic)
        names = sorted({queue.broker_name for queue in route.subscribe_queues(topic)})
        names = [name for name in names if self._instance.routes.master_address(name)]
        if not names:
            raise RefusedError(wire.FORBIDDEN, f"topic {topic} has no readable queue")
        return names[self._instance.randomness.randrange(len(names))]

    async def _pop(self, header: PopMessageRequestHeader, broker_name: str) -> _Popped:
        """Pop. If the client goes away meanwhile, give back the messages that the pop still brings."""
        task = self._tasks.spawn(self._pop_now(header, broker_name), "pop", log_failure=False)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: self._on_orphan(done, header.consumer_group))
            raise

    async def _pop_now(self, header: PopMessageRequestHeader, broker_name: str) -> _Popped:
        address = self._instance.need_master(broker_name, header.topic)
        timeout_s = header.poll_time / 1000 + _ANSWER_S
        try:
            answer = await self._instance.brokers.pop(address, header, timeout_s)
        except CometMQError as error:
            self._instance.report_failure(error, header.topic, address)
            raise
        if answer.is_full:
            raise RefusedError(
                wire.TOO_MANY_REQUESTS,
                f"broker {broker_name} has as many waiting pops as its limit allows; try again later",
            )
        return popped_messages(answer, header.topic, header.consumer_group, broker_name)

    def _on_orphan(self, task: asyncio.Task[_Popped], group: str) -> None:
        if task.cancelled() or task.exception() is not None or self._tasks.is_closed:
            return
        if receipts := [receipt for _, receipt in task.result()]:
            self._tasks.spawn(self._handles.give_back(group, receipts), "give-back")

    async def _wanted(
        self, popped: _Popped, group: str, subscription: SubscriptionData, most: int
    ) -> _Popped:
        """Acknowledge messages that the filter does not select; make dead letters of those out of deliveries.

        Brokers select tags by their hashes only. Our brokers make dead letters themselves; Java's do not.
        """
        everything = selects_all(subscription)
        wanted: _Popped = []
        for message, receipt in popped:
            try:
                if not everything and not accepts(subscription, message.tags):
                    await self._handles.of(group).ack(receipt)
                elif message.reconsume_times >= most and not receipt.handle.is_ordered:
                    place = message.commit_log_offset
                    await send_to_dead_letters(
                        self._instance, group, receipt, message.msg_id, place
                    )
                    await self._handles.of(group).ack(receipt)
                else:
                    wanted.append((message, receipt))
            except CometMQError as error:
                log.warning("a message comes again", group=group, reason=str(error))
        return wanted


def _handle_text(message: MessageExt, receipt: Receipt) -> str:
    handle = receipt.handle._replace(
        offset=receipt.offset, commit_log_offset=message.commit_log_offset
    )
    return handle.encode()


def _hidden_ms(request: wire.ReceiveMessageRequest, settings: ProxySettings) -> int:
    if request.auto_renew and settings.enable_proxy_auto_renew:
        return settings.default_invisible_time_mills
    hidden_ms: int = request.invisible_duration.ToMilliseconds()
    least_ms, most_ms = (
        settings.min_invisible_time_mills_for_recv,
        settings.max_invisible_time_mills,
    )
    if not least_ms <= hidden_ms <= most_ms:
        raise RefusedError(
            wire.ILLEGAL_INVISIBLE_TIME,
            f"the invisible duration is {hidden_ms} ms; choose {least_ms} to {most_ms} ms "
            "(minInvisibleTimeMillsForRecv, maxInvisibleTimeMills)",
        )
    return hidden_ms


def _poll_s(caller: Caller, request: wire.ReceiveMessageRequest, settings: ProxySettings) -> float:
    """Return how long the pop may wait (Java: ReceiveMessageActivity)."""
    least_s, most_s = settings.min_poll_s, settings.max_poll_s
    left_s = most_s + _REQUEST_TIMEOUT_S if caller.left_s is None else caller.left_s
    if request.HasField("long_polling_timeout"):
        wanted_s = request.long_polling_timeout.ToMilliseconds() / 1000
    else:
        wanted_s = left_s - _REQUEST_TIMEOUT_S / 2
    poll_s = min(max(wanted_s, least_s), most_s)
    if poll_s > left_s:
        if left_s < least_s:
            raise RefusedError(
                wire.ILLEGAL_POLLING_TIME,
                f"the call ends in {left_s:.1f} s; give a receive at least {least_s:g} s",
            )
        poll_s = left_s
    return min(poll_s, max(left_s - _WAY_BACK_S, 0.0))
