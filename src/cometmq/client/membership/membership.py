"""Manage one membership in a consumer group: subscriptions, share of the queues, offsets.

Push and lite pull consumers are members alike (Java: DefaultMQPushConsumerImpl and
DefaultLitePullConsumerImpl each have all of this). The membership's host consumes the queues.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from cometmq.client.cluster.inspection import InspectedMember
from cometmq.client.hooks import HookList
from cometmq.client.instance import ClientInstance
from cometmq.client.membership.allocation import AllocationStrategy, allocate_averagely
from cometmq.client.membership.callbacks import QueueCallback, QueueCallbacks
from cometmq.client.membership.expressions import check_expression
from cometmq.client.membership.offset_store import (
    LocalOffsetStore,
    OffsetStore,
    RemoteOffsetStore,
    persist_periodically,
)
from cometmq.client.membership.positions import stored_offset
from cometmq.client.membership.rebalance import Assignments, Divider, Rebalancer, first_offset
from cometmq.client.namespaces import NO_NAMESPACE, Namespace
from cometmq.client.pulling.gates import Gates
from cometmq.client.pulling.process_queue import ProcessQueue, process_queue_info
from cometmq.client.pulling.puller import PullOptions
from cometmq.errors import (
    AccessDeniedError,
    CometMQError,
    RemoteError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from cometmq.filtering.tags import build_subscription
from cometmq.logs.loggers import get_logger
from cometmq.model.names import is_retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeFromWhere, DamagedMessage, MessageModel
from cometmq.model.subscription import ConsumerData, MessageSelector, SubscriptionData
from cometmq.protocol.bodies.consumers import ConsumerRunningInfo
from cometmq.protocol.fastjson.queue_table import queue_table
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

START_TIMEOUT_S: Final = 3.0
# How alike the name of a topic must be to be the one that is meant.
_NEAR: Final = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """Holds the options of every member; PushConsumer explains them.

    `offset_directory` is for broadcasting.
    """

    message_model: MessageModel = MessageModel.CLUSTERING
    offset_directory: Path | None = None
    consume_from: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: int = 0
    allocation: AllocationStrategy = allocate_averagely
    pull: PullOptions = field(default_factory=PullOptions)
    on_damaged: DamagedMessage = DamagedMessage.SKIP
    namespace: Namespace = NO_NAMESPACE
    hooks: HookList = field(default_factory=HookList)
    note_failures: bool = True
    on_assigned: QueueCallback | None = None
    on_revoked: QueueCallback | None = None
    callback_timeout_s: float = 30.0

    @property
    def clustering(self) -> bool:
        return self.message_model is MessageModel.CLUSTERING


class MembershipHost(Assignments, InspectedMember, Protocol):
    """Consumes the queues of a membership."""


class Membership:
    """Joins a client to its group, and gives `host` the queues to consume. For the instance's loop.

    `gates` hold back the pulls of `host`. `consume_type` is the type that brokers get to know.
    `begin_assigned` has the host begin the queues that the user assigned. With it the member shares no
    queues with others: brokers hear of no subscription, and the rebalance does not run. `on_rebalance` is
    called when the cluster may have changed. `divider` and `pops` are for the rebalance.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        host: MembershipHost,
        options: MemberOptions,
        owner: TaskOwner,
        *,
        gates: Gates,
        consume_type: str,
        begin_assigned: Callable[[], None] | None = None,
        on_rebalance: Callable[[], None] | None = None,
        divider: Divider | None = None,
        pops: Assignments | None = None,
    ) -> None:
        self._instance = instance
        self._group = group
        self._host = host
        self._options = options
        self._owner = owner
        self._consume_type = consume_type
        self._begin_assigned = begin_assigned
        self._warned = False
        self._rebalancing: asyncio.Task[None] | None = None
        self._on_rebalance = on_rebalance
        self._now_ms = instance.clock.now_ms
        self._started_ms = self._now_ms()
        self._subscriptions: dict[str, SubscriptionData] = {}
        self.offsets = self._offset_store()
        self.callbacks = QueueCallbacks(
            group,
            options.namespace,
            gates,
            options.on_assigned,
            options.on_revoked,
            options.callback_timeout_s,
        )
        self._rebalancer = Rebalancer(
            instance,
            group,
            options.allocation if options.clustering else None,
            self._subscriptions.keys,
            host,
            self.callbacks,
            divider,
            pops,
        )

    # Called by the instance

    @property
    def group(self) -> str:
        return self._group

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(
            self._group,
            consume_type=self._consume_type,
            message_model=self._options.message_model.value,
            consume_from_where=self._options.consume_from.value,
            subscription_data_set=[] if self.manual else self.subscriptions(),
        )

    def rebalance_soon(self) -> None:
        self._rebalancer.soon()
        if self._on_rebalance is not None:
            self._on_rebalance()

    def look_soon(self) -> None:
        """Have the next round of the rebalance begin at once."""
        self._rebalancer.soon()

    # Life

    async def start(
        self,
        topics: Iterable[str],
        persist_interval_s: float,
        on_failure: Callable[[], Awaitable[None]],
    ) -> None:
        """Fetch the routes of `topics` and join the group. If the cluster cannot be reached yet, go
        on joining in the background.

        Raises AccessDeniedError when a name server or broker does not let this client in, and
        RemoteError when a broker refuses a subscription, but first calls `on_failure`, which leaves the group again.
        """
        self._instance.add_consumer(self, self._host)
        self._owner.spawn(self._instance.look_for_servers(self._group), "look for servers")
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._join(topics)
        except RequestTimeoutError:  # of one call, as any other failure
            await on_failure()
            raise
        except TimeoutError:
            log.warning("the cluster does not answer, joining goes on", group=self._group)
        except BaseException:
            await on_failure()
            raise
        if not self.manual:
            self._rebalancing = self._owner.spawn(self._rebalancer.run(), "rebalance")
        self._owner.every(persist_interval_s, self._persist_periodically, "persist")

    async def finish(self, last: Awaitable[None], late: str) -> None:
        """Wait for `last`, the member's last calls to brokers, for START_TIMEOUT_S at most. Log
        `late` as a warning if they take longer.
        """
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await last
        except TimeoutError:
            log.warning(late, group=self._group)

    async def leave(self) -> None:
        await self.callbacks.close()
        await self._instance.remove_consumer(self._group)

    # Subscriptions

    @property
    def manual(self) -> bool:
        """True when the user assigns the queues."""
        return self._begin_assigned is not None

    def leave_to_user(self, begin_assigned: Callable[[], None]) -> None:
        """End the rebalance of a member without subscriptions, whose user assigns the queues from
        now on.
        """
        self._begin_assigned = begin_assigned
        if self._rebalancing is not None:
            self._rebalancing.cancel()

    def subscriptions(self) -> list[SubscriptionData]:
        return list(self._subscriptions.values())

    def warn_without_subscription(self, remedy: str) -> None:
        """Warn once that the consumer consumes nothing, if it has neither subscriptions nor assigned queues."""
        if self._warned or self.manual or not all(map(is_retry_topic, self._subscriptions)):
            return
        self._warned = True
        log.warning(
            "the consumer has no subscription, so it consumes nothing",
            group=self._group,
            remedy=remedy,
        )

    def subscription(self, topic: str) -> SubscriptionData | None:
        """Return the topic's subscription, if any: to everything if the user assigns the queues."""
        known = self._subscriptions.get(topic)
        if known is None and self.manual:
            return build_subscription(topic, None)
        return known

    def set_subscription(self, topic: str, selector: MessageSelector) -> None:
        """Add or change a subscription before the start."""
        known = self._subscriptions.get(topic)
        # Brokers keep the newest version, so it must grow even if the clock was set back.
        version_ms = max(self._now_ms(), known.sub_version + 1 if known else 0)
        self._subscriptions[topic] = build_subscription(topic, *selector, sub_version=version_ms)

    def subscribe(self, topic: str, selector: MessageSelector) -> None:
        """Add or change a subscription while running."""
        self.set_subscription(topic, selector)
        self._owner.spawn(self._announce_subscriptions(topic), f"subscribe-{topic}")

    def unsubscribe(self, topic: str) -> None:
        """End a subscription while running, and give up its queues."""
        if self._subscriptions.pop(topic, None) is not None:
            self._owner.spawn(self._announce_subscriptions(None), f"unsubscribe-{topic}")

    # Offsets

    async def first_offset(self, queue: MessageQueue) -> int:
        """Return the offset at which this member begins a queue. Raises CometMQError."""
        return await first_offset(
            self._instance,
            self.offsets,
            queue,
            self._options.consume_from,
            self._options.consume_timestamp_ms,
        )

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that this member commits next for a queue of its own, else the stored one."""
        known = self.offsets.get(queue)
        if (known is not None and queue in self._host.assigned()) or not self._options.clustering:
            return known
        return await stored_offset(self._instance, self._group, queue)

    def known_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """See InspectedMember."""
        offsets = {q: self.offsets.get(q) for q in self._host.assigned() if q.topic == topic}
        return {queue: offset for queue, offset in offsets.items() if offset is not None}

    # Shown by consoles

    @property
    def not_begun(self) -> Mapping[MessageQueue, str]:
        """Why queues of this member's share could not be begun."""
        return self._rebalancer.not_begun

    def properties(self) -> dict[str, str]:
        """Return the properties that every member shows, under the names of Java's beans."""
        options = self._options
        return {
            "PROP_CONSUME_TYPE": self._consume_type,
            "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
            "consumerGroup": self._group,
            "messageModel": options.message_model.value,
            "consumeFromWhere": options.consume_from.value,
            "pullBatchSize": str(options.pull.batch_size),
        }

    def running_info(
        self, process_queues: Iterable[ProcessQueue], properties: Mapping[str, str]
    ) -> ConsumerRunningInfo:
        """Describe the member, its queues and its own `properties`."""
        queues = {p.queue: process_queue_info(p, self.offsets.get(p.queue)) for p in process_queues}
        return ConsumerRunningInfo(
            mq_table=queue_table(queues),
            properties={**self.properties(), **properties},
            subscription_set=self.subscriptions(),
        )

    # Inside

    def _offset_store(self) -> OffsetStore:
        if self._options.clustering:
            return RemoteOffsetStore(self._instance, self._group)
        directory = self._options.offset_directory
        assert directory is not None, "given with broadcasting"
        return LocalOffsetStore(directory, self._instance.client_id, self._group)

    async def _join(self, topics: Iterable[str]) -> None:
        for topic in topics:
            try:
                await self._instance.routes.refresh(topic)
            except CometMQError as error:
                if isinstance(error, AccessDeniedError) and not is_retry_topic(topic):
                    raise
                if isinstance(error, RouteNotFoundError):
                    self._owner.spawn(self._say_near(topic), f"look for {topic}")
                if self.manual:  # else the rebalance below logs it
                    log.warning("no route yet", group=self._group, topic=topic, reason=str(error))
                self._instance.routes.refresh_soon(topic)
        await self._check_expressions()
        await self._instance.heartbeats.join()
        if self._begin_assigned is not None:
            self._begin_assigned()
        else:
            await self._rebalancer.round()

    async def _say_near(self, topic: str) -> None:
        """Warn if another topic has almost the name of one without a route."""
        try:
            names = await self._instance.routes.topic_names()
        except CometMQError as error:
            log.debug("the topics cannot be listed", group=self._group, reason=str(error))
            return
        near = difflib.get_close_matches(topic, names, 1, _NEAR)
        if near and topic not in names:
            log.warning(
                "no topic has that name", group=self._group, topic=topic, did_you_mean=near[0]
            )

    async def _check_expressions(self) -> None:
        for subscription in self.subscriptions():
            await check_expression(self._instance, self._group, subscription)

    async def _announce_subscriptions(self, topic: str | None) -> None:
        if topic is not None and self._instance.routes.route(topic) is None:
            self._instance.routes.refresh_soon(topic)
        try:
            await self._check_expressions()
        except RemoteError as error:
            # No caller waits for the outcome. The broker refuses the topic's pulls from here on.
            log.error("subscription refused", group=self._group, reason=str(error))  # noqa: TRY400 - the reason says it all
        await self._instance.heartbeats.beat_all()
        self._rebalancer.soon()

    async def _persist_periodically(self) -> None:
        await persist_periodically(self.offsets, list(self._host.assigned()))
