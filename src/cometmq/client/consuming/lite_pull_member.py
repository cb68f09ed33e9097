"""A group's member that is asked for messages (Java: DefaultLitePullConsumerImpl, AssignedMessageQueue).

Longer than 500 lines: the calls of a user and the pulls of each queue change the same few tables.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from cometmq.client.consuming.consume_hooks import Admission
from cometmq.client.consuming.inspected import process_queue_info
from cometmq.client.hooks import HookList
from cometmq.client.instance import ClientInstance
from cometmq.client.membership.allocation import AllocationStrategy, allocate_averagely
from cometmq.client.membership.expressions import check_expression
from cometmq.client.membership.offset_store import (
    LocalOffsetStore,
    OffsetStore,
    RemoteOffsetStore,
    persist_periodically,
)
from cometmq.client.membership.rebalance import Rebalancer, first_offset
from cometmq.client.namespaces import NO_NAMESPACE, Namespace
from cometmq.client.pulling.damage import DamageControl
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.client.pulling.puller import PullOptions, QueuePuller, damaged_error
from cometmq.client.pulling.received import DamagedRecord
from cometmq.errors import (
    ClientStateError,
    CometMQError,
    DamagedMessageError,
    IllegalArgumentError,
    RemoteError,
)
from cometmq.filtering.tags import build_subscription
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import (
    ConsumeFromWhere,
    DamageCounts,
    DamagedMessage,
    MessageModel,
)
from cometmq.model.subscription import ConsumerData, MessageSelector, SubscriptionData
from cometmq.protocol.consumer_bodies import ConsumerRunningInfo
from cometmq.protocol.queue_table import queue_table
from cometmq.runtime.tasks import TaskOwner

log = structlog.get_logger(__name__)

START_TIMEOUT_S: Final = 3.0
BEGIN_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class LitePullOptions:
    """See LitePullConsumer for the meaning of each; `offset_directory` is for broadcasting."""

    message_model: MessageModel = MessageModel.CLUSTERING
    offset_directory: Path | None = None
    consume_from: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: int = 0
    auto_commit: bool = True
    auto_commit_interval_s: float = 5.0
    allocation: AllocationStrategy = allocate_averagely
    pull: PullOptions = field(default_factory=PullOptions)
    pull_threshold_for_all: int = 10_000
    on_damaged: DamagedMessage = DamagedMessage.SKIP
    namespace: Namespace = NO_NAMESPACE
    hooks: HookList = field(default_factory=HookList)


@dataclass(slots=True)
class _Assignment:
    """`position` is the offset after what polls returned, None before the queue was begun."""

    process_queue: ProcessQueue
    task: asyncio.Task[None]
    position: int | None


class LitePullMember:
    """Keeps its queues pulled ahead of the polls. For the loop of its instance.

    With `assigned` queues it consumes those and knows of no other member; else it shares the queues
    of its `subscriptions` with the rest of the group.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: Mapping[str, MessageSelector],
        assigned: Collection[MessageQueue] | None,
        options: LitePullOptions,
    ) -> None:
        self._instance = instance
        self._group = group
        self._options = options
        self._started_ms = time.time_ns() // 1_000_000
        self._manual = assigned is not None
        self._wanted = set(assigned or ())
        self._owner = TaskOwner(f"lite-pull-{group}")
        self._offsets = self._offset_store()
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._assignments: dict[MessageQueue, _Assignment] = {}
        self._gates: dict[MessageQueue, asyncio.Event] = {}
        self._ready: deque[tuple[ProcessQueue, list[MessageExt]]] = deque()
        self._ready_count = 0
        # What polls have to tell of queues that were stopped.
        self._stops: dict[ProcessQueue, DamagedMessageError] = {}
        self._damage = DamageControl(options.on_damaged, group, namespace=options.namespace)
        self._arrived = asyncio.Event()
        visible_group = options.namespace.unwrap(group)
        self._admit = Admission(options.hooks, visible_group, options.namespace)
        self._rebalancer = Rebalancer(
            instance,
            group,
            options.allocation if self._clustering else None,
            self._subscriptions.keys,
            self,
        )
        for topic, selector in subscriptions.items():
            self._set_subscription(topic, selector)

    # What the instance asks for

    @property
    def group(self) -> str:
        return self._group

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            self._group,
            consume_type="CONSUME_ACTIVELY",
            message_model=self._options.message_model.value,
            consume_from_where=self._options.consume_from.value,
            subscription_data_set=[] if self._manual else list(self._subscriptions.values()),
        )

    def rebalance_soon(self) -> None:
        self._rebalancer.soon()

    # Life

    async def start(self) -> None:
        """Join the group; a cluster that cannot be reached yet is joined in the background.

        Raises AccessDeniedError when a broker does not let this client in.
        """
        self._instance.add_consumer(self, self)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._join()
        except TimeoutError:
            log.warning("the cluster does not answer, joining goes on", group=self._group)
        except BaseException:
            await self.close()
            raise
        if not self._manual:
            self._owner.spawn(self._rebalancer.run(), "rebalance")
        self._owner.every(
            self._options.auto_commit_interval_s, self._persist_periodically, "persist"
        )

    async def close(self) -> None:
        """Stop pulling, store the offsets that are committed, leave the group."""
        await self._owner.close()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._offsets.persist(list(self._assignments))
        except TimeoutError:
            log.warning("offsets not committed in time", group=self._group)
        for assignment in self._assignments.values():
            assignment.process_queue.dropped = True
        self._assignments.clear()
        self._arrived.set()
        await self._instance.remove_consumer(self._group)

    def subscribe(self, topic: str, selector: MessageSelector) -> None:
        self._set_subscription(topic, selector)
        self._owner.spawn(self._tell_subscriptions(topic), f"subscribe-{topic}")

    def unsubscribe(self, topic: str) -> None:
        if self._subscriptions.pop(topic, None) is not None:
            self._owner.spawn(self._tell_subscriptions(None), f"unsubscribe-{topic}")

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Consume these queues and no others from now on; those kept go on where they are."""
        self._wanted = set(queues)
        for queue in [queue for queue in self._assignments if queue not in self._wanted]:
            self._drop(queue)
        for queue in sorted(self._wanted - self._assignments.keys()):
            self._begin(queue, None)

    # Polling

    async def poll(self, timeout_s: float) -> list[MessageExt]:
        """The next messages of some queue; empty when none came in time."""
        if self._options.auto_commit:
            self._take_over_positions(self._assignments)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    messages = self._next()
                    if messages:
                        return messages
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return self._next()

    def _next(self) -> list[MessageExt]:
        while self._ready:
            process_queue, messages = self._ready.popleft()
            self._ready_count -= len(messages)
            error = None if messages else self._stops.pop(process_queue, None)
            if process_queue.dropped:
                continue
            if error is not None:
                raise error
            below = process_queue.remove([message.queue_offset for message in messages])
            self._assignments[process_queue.queue].position = below
            return messages
        return []

    def damage_counts(self) -> DamageCounts:
        return self._damage.counts()

    # Positions

    def assigned(self) -> Collection[MessageQueue]:
        return self._assignments.keys()

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at `offset`, which must lie within what the queue holds."""
        self._need(queue)
        low, high = await asyncio.gather(self.min_offset(queue), self.max_offset(queue))
        if not low <= offset <= high:
            raise IllegalArgumentError(
                f"the offset {offset} is none of {queue}, which holds {low} to {high}"
            )
        self._go_to(self._need(queue), offset)

    async def seek_to(self, queue: MessageQueue, *, end: bool) -> None:
        self._need(queue)
        offset = await (self.max_offset(queue) if end else self.min_offset(queue))
        self._go_to(self._need(queue), offset)

    async def min_offset(self, queue: MessageQueue) -> int:
        return await self._instance.brokers.min_offset(await self._address(queue), queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        return await self._instance.brokers.max_offset(await self._address(queue), queue)

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        address = await self._address(queue)
        return await self._instance.brokers.search_offset(address, queue, timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        known = self._offsets.get(queue)
        if known is not None and queue in self._assignments:
            return known
        if not self._clustering:
            return known
        address = await self._address(queue)
        return await self._instance.brokers.query_consumer_offset(address, self._group, queue)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None, *, wait: bool) -> None:
        """Store what polls returned, or the given offsets."""
        if offsets is None:
            queues = list(self._assignments)
            self._take_over_positions(queues)
        else:
            queues = list(offsets)
            for queue in queues:
                self._need(queue)
            for queue, offset in offsets.items():
                self._offsets.update(queue, offset, increase_only=False)
        await (self._offsets.persist(queues) if wait else self._offsets.persist_oneway(queues))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self._gate(queue).clear()

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            self._gate(queue).set()

    def paused(self) -> set[MessageQueue]:
        return {queue for queue, gate in self._gates.items() if not gate.is_set()}

    # What the rebalancer changes

    async def take(self, queue: MessageQueue) -> None:
        self._offsets.remove(queue)
        self._begin(queue, await self._first_offset(queue))

    async def give_up(self, queue: MessageQueue) -> None:
        self._drop(queue)
        await self._offsets.persist([queue])
        self._offsets.remove(queue)

    # What brokers ask

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """See InspectedMember."""
        queues = [queue for queue in offsets if queue in self._assignments]
        for queue in queues:
            self._go_to(queue, offsets[queue])
            self._offsets.update(queue, offsets[queue], increase_only=False)
        await self._offsets.persist(queues)

    def known_offsets(self, topic: str) -> dict[MessageQueue, int]:
        offsets = {q: self._offsets.get(q) for q in self._assignments if q.topic == topic}
        return {queue: offset for queue, offset in offsets.items() if offset is not None}

    def running_info(self) -> ConsumerRunningInfo:
        queues = {
            queue: process_queue_info(assignment.process_queue, self._offsets.get(queue))
            for queue, assignment in self._assignments.items()
        }
        return ConsumerRunningInfo(
            mq_table=queue_table(queues),
            properties={
                "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "consumerGroup": self._group,
                "messageModel": self._options.message_model.value,
                "consumeFromWhere": self._options.consume_from.value,
                "pullBatchSize": str(self._options.pull.batch_size),
                **self._damage.properties(),
            },
            subscription_set=list(self._subscriptions.values()),
        )

    async def consume_directly(self, _message: MessageExt) -> None:
        """Nobody listens here."""

    # Inside

    @property
    def _clustering(self) -> bool:
        return self._options.message_model is MessageModel.CLUSTERING

    def _offset_store(self) -> OffsetStore:
        if self._clustering:
            return RemoteOffsetStore(self._instance, self._group)
        directory = self._options.offset_directory
        assert directory is not None, "given with broadcasting"
        return LocalOffsetStore(directory, self._instance.client_id, self._group)

    async def _join(self) -> None:
        for topic in {*self._subscriptions, *(queue.topic for queue in self._wanted)}:
            try:
                await self._instance.routes.refresh(topic)
            except CometMQError as error:
                if self._manual:  # else the rebalance below says it
                    log.warning("no route yet", group=self._group, topic=topic, reason=str(error))
                self._instance.routes.refresh_soon(topic)
        await self._check_expressions()
        await self._instance.heartbeats.join()
        if self._manual:
            self.assign(self._wanted)
        else:
            await self._rebalancer.round()

    def _set_subscription(self, topic: str, selector: MessageSelector) -> None:
        known = self._subscriptions.get(topic)
        # Brokers take the newer of two, which this one is even if the clock was set back.
        version_ms = max(time.time_ns() // 1_000_000, known.sub_version + 1 if known else 0)
        self._subscriptions[topic] = build_subscription(topic, *selector, sub_version=version_ms)

    def _subscription(self, topic: str) -> SubscriptionData | None:
        known = self._subscriptions.get(topic)
        if known is None and self._manual:
            return build_subscription(topic, None)
        return known

    async def _tell_subscriptions(self, topic: str | None) -> None:
        if topic is not None and self._instance.routes.route(topic) is None:
            self._instance.routes.refresh_soon(topic)
        try:
            await self._check_expressions()
        except RemoteError as error:
            # Nobody waits for the outcome; the broker refuses the topic's pulls from here on.
            log.error("subscription refused", group=self._group, reason=str(error))  # noqa: TRY400 - the reason says it all
        await self._instance.heartbeats.beat_all()
        self._rebalancer.soon()

    async def _check_expressions(self) -> None:
        for subscription in list(self._subscriptions.values()):
            await check_expression(self._instance, self._group, subscription)

    async def _address(self, queue: MessageQueue) -> str:
        if self._instance.routes.master_address(queue.broker_name) is None:
            await self._instance.routes.refresh(queue.topic)
        return self._instance.need_master(queue.broker_name, queue.topic)

    async def _first_offset(self, queue: MessageQueue) -> int:
        options = self._options
        return await first_offset(
            self._instance,
            self._offsets,
            queue,
            options.consume_from,
            options.consume_timestamp_ms,
        )

    def _begin(self, queue: MessageQueue, offset: int | None) -> None:
        process_queue = ProcessQueue(queue)
        task = self._owner.spawn(self._pull(process_queue, offset), f"pull-{queue}")
        self._assignments[queue] = _Assignment(process_queue, task, offset)

    async def _pull(self, process_queue: ProcessQueue, offset: int | None) -> None:
        queue = process_queue.queue
        while offset is None:
            try:
                offset = await self._first_offset(queue)
            except CometMQError as error:
                log.info("a queue cannot be begun yet", queue=str(queue), reason=str(error))
                self._instance.routes.refresh_soon(queue.topic)
                await asyncio.sleep(BEGIN_RETRY_S)
        self._assignments[queue].position = offset
        puller = QueuePuller(
            self._instance,
            self._group,
            process_queue,
            offset,
            options=self._options.pull,
            offsets=self._offsets,
            subscription=self._subscription,
            deliver=self._deliver,
            on_offset_moved=self._offset_moved,
            gate=self._gate(queue),
            overfull=self._overfull,
            admit=self._admit,
            damage=self._damage,
            on_stopped=self._on_stopped,
        )
        await puller.run()

    def _overfull(self) -> bool:
        return self._ready_count > self._options.pull_threshold_for_all

    def _deliver(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        self._ready.append((process_queue, messages))
        self._ready_count += len(messages)
        self._arrived.set()

    def _on_stopped(self, process_queue: ProcessQueue, damaged: DamagedRecord) -> None:
        self._stops[process_queue] = damaged_error(damaged)
        self._deliver(process_queue, [])

    def _gate(self, queue: MessageQueue) -> asyncio.Event:
        gate = self._gates.get(queue)
        if gate is None:
            gate = self._gates[queue] = asyncio.Event()
            gate.set()
        return gate

    def _need(self, queue: MessageQueue) -> MessageQueue:
        if queue not in self._assignments:
            raise ClientStateError(
                f"{queue} is not assigned to this consumer of group {self._group}"
                + ("" if self._manual else "; another member may have it")
            )
        return queue

    def _go_to(self, queue: MessageQueue, offset: int) -> None:
        self._drop(queue)
        self._begin(queue, offset)

    def _offset_moved(self, queue: MessageQueue, next_offset: int) -> None:
        """Called by the queue's own puller, which ends when it sees its queue dropped."""
        if queue in self._assignments:
            self._go_to(queue, next_offset)

    def _drop(self, queue: MessageQueue) -> None:
        assignment = self._assignments.pop(queue)
        assignment.process_queue.dropped = True
        if assignment.task is not asyncio.current_task():
            assignment.task.cancel()
        self._stops.pop(assignment.process_queue, None)
        kept = [entry for entry in self._ready if not entry[0].dropped]
        self._ready = deque(kept)
        self._ready_count = sum(len(messages) for _, messages in kept)

    def _take_over_positions(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            position = self._assignments[queue].position
            if position is not None:
                self._offsets.update(queue, position, increase_only=False)

    async def _persist_periodically(self) -> None:
        await persist_periodically(self._offsets, list(self._assignments))
