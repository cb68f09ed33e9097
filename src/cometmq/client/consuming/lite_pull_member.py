"""Provide the group member that callers poll.

Java: DefaultLitePullConsumerImpl, AssignedMessageQueue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cometmq.client.cluster.inspection import thread_stacks
from cometmq.client.consuming.listeners.consume_hooks import Admission
from cometmq.client.consuming.listeners.send_back import Returns
from cometmq.client.consuming.popped_queues import level_of
from cometmq.client.consuming.pulled_message import PulledMessage
from cometmq.client.instance import ClientInstance
from cometmq.client.membership.membership import MemberOptions, Membership
from cometmq.client.pulling.damage import DamageControl
from cometmq.client.pulling.gates import Gates
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.client.pulling.puller import PullContext, QueuePuller, damaged_error
from cometmq.client.pulling.received import DamagedRecord
from cometmq.errors import (
    ClientStateError,
    CometMQError,
    DamagedMessageError,
)
from cometmq.logs.loggers import get_logger
from cometmq.model.message import MessageExt
from cometmq.model.names import retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.results import (
    DamageCounts,
)
from cometmq.model.subscription import MessageSelector
from cometmq.protocol.bodies.consumers import ConsumerRunningInfo
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

BEGIN_RETRY_S: Final = 1.0
# The delay after which this member itself returns a message again, where nobody chose another.
LOCAL_RETRY_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullOptions:
    """Holds the options of a lite pull member; LitePullConsumer explains them."""

    member: MemberOptions = field(default_factory=MemberOptions)
    auto_commit: bool = True
    auto_commit_interval_s: float = 5.0
    pull_threshold_for_all: int = 10_000


@dataclass(slots=True)
class _Assignment:
    """Holds an assigned queue, its pulling task, and its position.

    `position` is the offset behind the messages that polls returned, or None before the queue is
    begun.
    """

    process_queue: ProcessQueue
    task: asyncio.Task[None]
    position: int | None


class LitePullMember:
    """Pulls its queues ahead of the polls. For the loop of its instance.

    With `assigned` queues the member consumes those, and knows of no other member. Else it shares
    the queues of its `subscriptions` with the rest of the group.
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
        self._wanted = set(assigned or ())
        self._owner = TaskOwner(f"lite-pull-{group}")
        self.gates = Gates()
        self.membership = Membership(
            instance,
            group,
            self,
            options.member,
            self._owner,
            gates=self.gates,
            consume_type="CONSUME_ACTIVELY",
            begin_assigned=self._begin_wanted if assigned is not None else None,
        )
        self._offsets = self.membership.offsets
        self._assignments: dict[MessageQueue, _Assignment] = {}
        self._ready: deque[tuple[ProcessQueue, list[MessageExt]]] = deque()
        self._ready_count = 0
        # The errors that polls have to raise for queues that were stopped.
        self._stops: dict[ProcessQueue, DamagedMessageError] = {}
        self._damage = DamageControl(
            options.member.on_damaged,
            group,
            namespace=options.member.namespace,
            clock=instance.clock,
        )
        self._arrived = asyncio.Event()
        self._closing = False
        self._returns = Returns(
            instance,
            group,
            None,
            options.member.namespace,
            note_failures=options.member.note_failures,
        )
        visible_group = options.member.namespace.unwrap(group)
        self._pulls = PullContext(
            instance=instance,
            group=group,
            options=options.member.pull,
            offsets=self._offsets,
            subscription=self.membership.subscription,
            deliver=self._deliver,
            on_offset_moved=self._offset_moved,
            damage=self._damage,
            overfull=self._overfull,
            admit=Admission(options.member.hooks, visible_group, options.member.namespace),
            on_stopped=self._on_stopped,
        )
        for topic, selector in subscriptions.items():
            self.membership.set_subscription(topic, selector)

    # Life

    async def start(self) -> None:
        """Join the group. If the cluster cannot be reached yet, go on joining in the background.

        Raises AccessDeniedError when a broker does not let this client in.
        """
        topics = {subscription.topic for subscription in self.membership.subscriptions()}
        await self.membership.start(
            topics | {queue.topic for queue in self._wanted},
            self._options.auto_commit_interval_s,
            self.close,
        )

    async def drain(self) -> None:
        """Stop pulling, return no more messages, and say that the queues go. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._arrived.set()
        for assignment in self._assignments.values():
            self._hold_back(assignment)
        await self.membership.callbacks.revoke(list(self._assignments))

    async def close(self) -> None:
        """Drain, store the offsets that are committed, leave the group."""
        await self.drain()
        await self._owner.close()
        await self.membership.finish(
            self._offsets.persist(list(self._assignments)), "offsets not committed in time"
        )
        for assignment in self._assignments.values():
            assignment.process_queue.dropped = True
        self._assignments.clear()
        await self.membership.leave()

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Consume these queues and no others from now on. Queues that stay go on where they are."""
        if not self.membership.manual:
            self.membership.leave_to_user(self._begin_wanted)
        self._wanted = set(queues)
        self._begin_wanted()

    def _begin_wanted(self) -> None:
        for queue in [queue for queue in self._assignments if queue not in self._wanted]:
            self._drop(queue)
        for queue in sorted(self._wanted - self._assignments.keys()):
            self._begin(queue, None)

    # Polling

    async def poll(self, timeout_s: float) -> list[MessageExt]:
        """Return the next messages of some queue, or an empty list when none come in time."""
        if self._options.auto_commit:
            self._take_over_positions(self._assignments)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    messages = self._next()
                    if messages:
                        return messages
                    await self._arrival()
        except TimeoutError:
            return self._next()

    async def _arrival(self) -> None:
        """Wait until something has arrived since the last look, or the consumer closes."""
        self.membership.warn_without_subscription("call subscribe(topic) or assign(queues)")
        self._arrived.clear()
        await self._arrived.wait()

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

    # Iterating

    def follow_retries(self) -> None:
        """Consume the group's retry topic as well, unless the user assigns the queues, or in broadcasting."""
        topic = retry_topic(self._group)
        if self._sends_back and self.membership.subscription(topic) is None:
            self.membership.subscribe(topic, MessageSelector())

    @property
    def is_closing(self) -> bool:
        """True once no more messages are returned. For any thread."""
        return self._closing

    async def next_messages(self, most: int) -> list[PulledMessage]:
        """Wait for messages, and return what `take_ready` does, or none when the consumer closes."""
        while not self._closing:
            taken = self.take_ready(most)
            if taken:
                return taken
            await self._arrival()
        return []

    def take_ready(self, most: int) -> list[PulledMessage]:
        """Return the next messages, at most `most`, without waiting.

        The offsets of their queues do not advance until the messages are acknowledged or given
        back. Raises DamagedMessageError for a queue that was stopped.
        """
        taken: list[PulledMessage] = []
        ready = self._ready
        # Other threads may iterate as well, and have nothing to do if one takes all.
        most = max(1, min(most, self._ready_count // 2))
        while ready and len(taken) < most and not self._closing:
            process_queue, messages = ready[0]
            if process_queue.dropped:
                ready.popleft()
                self._ready_count -= len(messages)
                continue
            if not messages:
                if taken:
                    break  # the next call raises the error of this queue
                ready.popleft()
                error = self._stops.pop(process_queue, None)
                if error is not None:
                    raise error
                continue
            room = most - len(taken)
            if len(messages) <= room:
                ready.popleft()
                part = messages
            else:
                part = messages[:room]
                del messages[:room]
            self._ready_count -= len(part)
            taken += [PulledMessage.of(message, process_queue, self) for message in part]
        return taken

    def put_back(self, messages: Sequence[PulledMessage]) -> None:
        """Take back messages that nobody got, to return them before all others."""
        kept = [message for message in messages if not message.is_withdrawn]
        for message in reversed(kept):
            self._ready.appendleft((message.process_queue, [message]))
        self._ready_count += len(kept)
        self._arrived.set()

    def acknowledge(self, process_queue: ProcessQueue, message: MessageExt) -> None:
        """Count a message as consumed, and commit below the lowest one that is not."""
        if process_queue.dropped:
            log.info(
                "an acknowledged message will come again, its queue was given up or begun again",
                group=self._group,
                queue=str(process_queue.queue),
                offset=message.queue_offset,
            )
            return
        below = process_queue.remove([message.queue_offset])
        self._assignments[process_queue.queue].position = below
        if self._options.auto_commit:
            self._offsets.update(process_queue.queue, below, increase_only=False)

    async def give_back(
        self,
        process_queue: ProcessQueue,
        message: MessageExt,
        delay_ms: int | None,
        error: BaseException | None,
    ) -> None:
        """Have a message come again later: by the group's retry topic, else from this member.

        Raises CometMQError when no broker takes it.
        """
        if self._sends_back:
            level = 0 if delay_ms is None else level_of(delay_ms)
            await self._returns.send_back(message, level, error or "nack")
            self.acknowledge(process_queue, message)
            return
        message.reconsume_times += 1
        delay_s = (LOCAL_RETRY_MS if delay_ms is None else delay_ms) / 1000
        self._owner.spawn(self._again(process_queue, message, delay_s), "local-retry")

    async def return_undecodable(
        self, message: MessageExt, level: int, error: CometMQError
    ) -> None:
        """Give back a message that does not fit. Raises CometMQError if nobody takes it."""
        if not self._sends_back:
            raise ClientStateError("there are no retries with assigned queues and in broadcasting")
        await self._returns.send_back(message, level, error)

    async def _again(
        self, process_queue: ProcessQueue, message: MessageExt, delay_s: float
    ) -> None:
        await asyncio.sleep(delay_s)
        if not process_queue.dropped:
            self._ready.appendleft((process_queue, [message]))
            self._ready_count += 1
            self._arrived.set()

    @property
    def _sends_back(self) -> bool:
        return self._options.member.clustering and not self.membership.manual

    def damage_counts(self) -> DamageCounts:
        return self._damage.counts()

    # Positions

    def all_assigned(self) -> Collection[MessageQueue]:
        return self.assigned()

    def assigned(self) -> Collection[MessageQueue]:
        return self._assignments.keys()

    def consumed_queues(self) -> Collection[MessageQueue]:
        return self.assigned()

    async def go_to(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Have the polls of queues go on at these offsets. Ignore queues that this member does not
        have.
        """
        for queue in offsets:
            if queue in self._assignments:
                self._go_to(queue, offsets[queue])

    async def commit(self, offsets: Mapping[MessageQueue, int] | None, *, wait: bool) -> None:
        """Commit the offsets behind the messages that polls returned, or the given offsets."""
        if offsets is None:
            queues = list(self._assignments)
            self._take_over_positions(queues)
        else:
            queues = list(offsets)
            for queue, offset in offsets.items():
                self._offsets.update(queue, offset, increase_only=False)
        await (self._offsets.persist(queues) if wait else self._offsets.persist_oneway(queues))

    # Called by the rebalancer

    async def take(self, queue: MessageQueue) -> None:
        self._offsets.remove(queue)
        self._begin(queue, await self.membership.first_offset(queue))

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        held = [queue for queue in queues if queue in self._assignments]
        for queue in held:
            self._hold_back(self._assignments[queue])
        await self.membership.callbacks.revoke(held)
        for queue in held:
            if queue in self._assignments:
                self._drop(queue)
        await self._offsets.persist(held)
        for queue in held:
            self._offsets.remove(queue)

    # Asked by brokers

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """See InspectedMember."""
        queues = [queue for queue in offsets if queue in self._assignments]
        for queue in queues:
            self._go_to(queue, offsets[queue])
            self._offsets.update(queue, offsets[queue], increase_only=False)
        await self._offsets.persist(queues)

    def known_offsets(self, topic: str) -> dict[MessageQueue, int]:
        return self.membership.known_offsets(topic)

    def process_queues(self) -> list[ProcessQueue]:
        """Return the queues that are pulled. For any thread."""
        return [assignment.process_queue for assignment in list(self._assignments.values())]

    def running_info(self) -> ConsumerRunningInfo:
        queues = [assignment.process_queue for assignment in self._assignments.values()]
        own = {**self.gates.properties(self.assigned()), **self._damage.properties()}
        return self.membership.running_info(queues, own)

    async def stacks(self) -> str:
        return thread_stacks()

    async def consume_directly(self, _message: MessageExt) -> None:
        """Return None: there is no listener."""

    # Inside

    def _begin(self, queue: MessageQueue, offset: int | None) -> None:
        process_queue = ProcessQueue(queue, clock=self._instance.clock)
        task = self._owner.spawn(self._pull(process_queue, offset), f"pull-{queue}")
        self._assignments[queue] = _Assignment(process_queue, task, offset)

    async def _pull(self, process_queue: ProcessQueue, offset: int | None) -> None:
        queue = process_queue.queue
        while offset is None:
            try:
                offset = await self.membership.first_offset(queue)
            except CometMQError as error:
                log.info("a queue cannot be begun yet", queue=str(queue), reason=str(error))
                self._instance.routes.refresh_soon(queue.topic)
                await asyncio.sleep(BEGIN_RETRY_S)
        self._assignments[queue].position = offset
        await QueuePuller(self._pulls, process_queue, offset, self.gates.gate(queue)).run()

    def _overfull(self) -> bool:
        return self._ready_count > self._options.pull_threshold_for_all

    def _deliver(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        self._ready.append((process_queue, messages))
        self._ready_count += len(messages)
        self._arrived.set()

    def _on_stopped(self, process_queue: ProcessQueue, damaged: DamagedRecord) -> None:
        self._stops[process_queue] = damaged_error(damaged)
        self._deliver(process_queue, [])

    def _go_to(self, queue: MessageQueue, offset: int) -> None:
        self._drop(queue)
        self._begin(queue, offset)

    def _offset_moved(self, queue: MessageQueue, next_offset: int) -> None:
        """Begin the queue again at `next_offset`. The queue's own puller calls this, and ends when
        it sees its queue dropped.
        """
        if queue in self._assignments:
            self._go_to(queue, next_offset)

    def _drop(self, queue: MessageQueue) -> None:
        assignment = self._assignments.pop(queue)
        assignment.process_queue.dropped = True
        self._hold_back(assignment)

    def _hold_back(self, assignment: _Assignment) -> None:
        """Pull no more of a queue, and return no more of the messages that were pulled."""
        process_queue = assignment.process_queue
        process_queue.withheld = True
        if assignment.task is not asyncio.current_task():
            assignment.task.cancel()
        self._stops.pop(process_queue, None)
        kept = [entry for entry in self._ready if entry[0] is not process_queue]
        self._ready = deque(kept)
        self._ready_count = sum(len(messages) for _, messages in kept)

    def _take_over_positions(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            position = self._assignments[queue].position
            if position is not None:
                self._offsets.update(queue, position, increase_only=False)
