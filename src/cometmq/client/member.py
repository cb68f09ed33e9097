"""One membership in a consumer group: subscriptions, queues, offsets (Java: DefaultMQPushConsumerImpl)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

import structlog

from cometmq.client.allocation import AllocationStrategy, allocate_averagely
from cometmq.client.consumption import LOCAL_RETRY_S, Consumption
from cometmq.client.encoding import MessageEncoder
from cometmq.client.instance import ClientInstance
from cometmq.client.listening import Listener
from cometmq.client.offset_store import RemoteOffsetStore
from cometmq.client.process_queue import ProcessQueue
from cometmq.client.pulling import PullOptions, QueuePuller
from cometmq.client.rebalance import Rebalancer, first_offset
from cometmq.client.sending import Sender, SendLimits
from cometmq.errors import CometMQError
from cometmq.filtering.tags import build_subscription
from cometmq.model import properties as p
from cometmq.model.message import Message, MessageExt
from cometmq.model.names import is_retry_topic, retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeFromWhere
from cometmq.model.subscription import ConsumerData, SubscriptionData
from cometmq.runtime.tasks import TaskOwner

log = structlog.get_logger(__name__)

PERSIST_INTERVAL_S: Final = 5.0
START_TIMEOUT_S: Final = 3.0
# The group under which a consumer sends (Java: MixAll.CLIENT_INNER_PRODUCER_GROUP).
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
# Java: DefaultMQPushConsumerImpl.getMaxReconsumeTimes, where -1 means 16.
DEFAULT_MAX_RECONSUME_TIMES: Final = 16


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """See PushConsumer for the meaning of each."""

    consume_from: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: int = 0
    concurrency: int = 20
    batch_max_size: int = 1
    max_reconsume_times: int = -1
    allocation: AllocationStrategy = allocate_averagely
    pull: PullOptions = field(default_factory=PullOptions)
    local_retry_s: float = LOCAL_RETRY_S


@dataclass(slots=True)
class _Assignment:
    process_queue: ProcessQueue
    task: asyncio.Task[None]


class GroupMember:
    """Consumes its share of a group's queues. For the loop of its instance."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: dict[str, str],
        listener: Listener,
        options: ConsumerOptions,
    ) -> None:
        self._instance = instance
        self._group = group
        self._options = options
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._assignments: dict[MessageQueue, _Assignment] = {}
        self._owner = TaskOwner(f"consumer-{group}")
        self._offsets = RemoteOffsetStore(instance, group)
        self._encoder = MessageEncoder(INNER_PRODUCER_GROUP, instance.unique_ids)
        self._sender = Sender(instance, SendLimits())
        self._consumption = Consumption(
            group,
            listener,
            self._offsets,
            self._send_back,
            concurrency=options.concurrency,
            batch_max_size=options.batch_max_size,
            local_retry_s=options.local_retry_s,
        )
        self._rebalancer = Rebalancer(
            instance, group, options.allocation, self._subscriptions.keys, self
        )
        for topic, tags in subscriptions.items():
            self._set_subscription(topic, tags)
        self._set_subscription(retry_topic(group), None)

    # What the instance asks for

    @property
    def group(self) -> str:
        return self._group

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            self._group,
            consume_from_where=self._options.consume_from.value,
            subscription_data_set=list(self._subscriptions.values()),
        )

    def rebalance_soon(self) -> None:
        self._rebalancer.soon()

    # Life

    async def start(self) -> None:
        """Join the group; a cluster that cannot be reached yet is joined in the background."""
        self._instance.add_consumer(self)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._join()
        except TimeoutError:
            log.warning("the cluster does not answer, joining goes on", group=self._group)
        except BaseException:
            await self.close(0)
            raise
        self._owner.spawn(self._rebalancer.run(), "rebalance")
        self._owner.every(PERSIST_INTERVAL_S, self._persist_periodically, "persist")

    async def close(self, timeout_s: float) -> None:
        """Stop pulling, let running listeners finish, commit, leave the group."""
        await self._owner.close()
        await self._consumption.close(timeout_s)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._offsets.persist(list(self._assignments))
        except TimeoutError:
            log.warning("offsets not committed in time", group=self._group)
        for assignment in self._assignments.values():
            assignment.process_queue.dropped = True
        self._assignments.clear()
        await self._instance.remove_consumer(self._group)

    def subscribe(self, topic: str, tags: str) -> None:
        """Add or change a subscription while running."""
        self._set_subscription(topic, tags)
        self._owner.spawn(self._tell_subscriptions(topic), f"subscribe-{topic}")

    def unsubscribe(self, topic: str) -> None:
        """End a subscription while running: its queues are given up."""
        if self._subscriptions.pop(topic, None) is not None:
            self._owner.spawn(self._tell_subscriptions(None), f"unsubscribe-{topic}")

    # What the rebalancer changes

    def assigned(self) -> Collection[MessageQueue]:
        return self._assignments.keys()

    async def take(self, queue: MessageQueue) -> None:
        self._offsets.remove(queue)
        offset = await first_offset(
            self._instance,
            self._offsets,
            queue,
            self._options.consume_from,
            self._options.consume_timestamp_ms,
        )
        process_queue = ProcessQueue(queue)
        puller = QueuePuller(
            self._instance,
            self._group,
            process_queue,
            offset,
            options=self._options.pull,
            offsets=self._offsets,
            subscription=self._subscriptions.get,
            deliver=self._consumption.submit,
            on_offset_moved=self._offset_moved,
        )
        task = self._owner.spawn(puller.run(), f"pull-{queue}")
        self._assignments[queue] = _Assignment(process_queue, task)

    async def give_up(self, queue: MessageQueue) -> None:
        self._drop(queue)
        await self._offsets.persist([queue])
        self._offsets.remove(queue)

    # Inside

    async def _join(self) -> None:
        for topic in list(self._subscriptions):
            if is_retry_topic(topic):
                continue  # brokers create it when they hear of the group
            try:
                await self._instance.routes.refresh(topic)
            except CometMQError as error:
                log.info("no route yet", group=self._group, topic=topic, reason=str(error))
                self._instance.routes.refresh_soon(topic)
        await self._instance.heartbeats.beat_all()
        await self._rebalancer.round()

    def _set_subscription(self, topic: str, tags: str | None) -> None:
        version_ms = time.time_ns() // 1_000_000
        self._subscriptions[topic] = build_subscription(topic, tags, sub_version=version_ms)

    async def _tell_subscriptions(self, topic: str | None) -> None:
        if topic is not None and self._instance.routes.route(topic) is None:
            self._instance.routes.refresh_soon(topic)
        await self._instance.heartbeats.beat_all()
        self._rebalancer.soon()

    def _drop(self, queue: MessageQueue) -> None:
        assignment = self._assignments.pop(queue)
        assignment.process_queue.dropped = True
        assignment.task.cancel()

    def _offset_moved(self, queue: MessageQueue, next_offset: int) -> None:
        """Called by the queue's own puller, which ends when it sees its queue dropped."""
        assignment = self._assignments.get(queue)
        if assignment is not None:
            assignment.process_queue.dropped = True
            self._offsets.update(queue, next_offset, increase_only=False)
            self._owner.spawn(self._begin_again(queue, assignment), f"offset-moved-{queue}")

    async def _begin_again(self, queue: MessageQueue, assignment: _Assignment) -> None:
        await self._offsets.persist([queue])
        if self._assignments.get(queue) is assignment:
            del self._assignments[queue]
            self._offsets.remove(queue)
            self._rebalancer.soon()

    async def _persist_periodically(self) -> None:
        await self._offsets.persist_oneway(list(self._assignments))

    async def _send_back(self, message: MessageExt) -> None:
        """Code 36, else an ordinary send to the retry topic. Raises CometMQError when both fail."""
        times = self._options.max_reconsume_times
        max_times = DEFAULT_MAX_RECONSUME_TIMES if times < 0 else times
        try:
            address = self._instance.need_master(message.broker_name, message.topic)
            await self._instance.brokers.send_back(address, self._group, message, max_times)
        except CometMQError as error:
            log.info(
                "not sent back, sending to the retry topic",
                group=self._group,
                msg_id=message.msg_id,
                reason=str(error),
            )
            await self._send_to_retry_topic(message, max_times)

    async def _send_to_retry_topic(self, message: MessageExt, max_times: int) -> None:
        times = message.reconsume_times
        retried = Message(
            retry_topic(self._group), message.body, flag=message.flag, properties=message.properties
        )
        properties = retried.properties
        for name in (p.TRANSACTION_PREPARED, p.MIN_OFFSET, p.MAX_OFFSET, p.CONSUME_START_TIMESTAMP):
            properties.pop(name, None)
        properties.setdefault(p.RETRY_TOPIC, message.topic)
        properties.setdefault(p.ORIGIN_MESSAGE_ID, message.msg_id)
        properties[p.DELAY_TIME_LEVEL] = str(3 + times)
        # The counts travel in the header; Java keeps them in properties until the producer sends.
        outgoing = await self._encoder.encode(retried, {"j": str(times + 1), "l": str(max_times)})
        await self._sender.send(outgoing, 3.0)
