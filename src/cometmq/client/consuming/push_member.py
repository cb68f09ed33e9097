"""Provide the group member that calls a listener (Java: DefaultMQPushConsumerImpl).

Longer than 500 lines: it wires the parts of a member together, and each part has a module of its own.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from cometmq.client.cluster.inspection import thread_stacks
from cometmq.client.consuming.consume_stats import SAMPLE_INTERVAL_S, ConsumeStats
from cometmq.client.consuming.leftovers import LEFTOVERS_INTERVAL_S, Leftovers
from cometmq.client.consuming.listeners.batches import Batches, Key
from cometmq.client.consuming.listeners.consume_hooks import Admission, ConsumeHooks
from cometmq.client.consuming.listeners.consumption import (
    CONSUME_TIMEOUT_S,
    LOCAL_RETRY_S,
    Cause,
    Consumption,
    Finish,
    QueueConsumption,
    committing,
)
from cometmq.client.consuming.listeners.inspected import direct_result
from cometmq.client.consuming.listeners.listening import ConsumeJob, Listener, consume_one
from cometmq.client.consuming.listeners.orderly import (
    SUSPEND_MS,
    UNLIMITED_RECONSUME_TIMES,
    OrderlyConsumption,
    committing_in_order,
)
from cometmq.client.consuming.listeners.send_back import Returns
from cometmq.client.consuming.popped_queues import PopDivider, PoppedQueues
from cometmq.client.instance import ClientInstance
from cometmq.client.membership.membership import MemberOptions, Membership
from cometmq.client.membership.queue_locks import QueueLocks
from cometmq.client.popping.popper import PopOptions
from cometmq.client.popping.requests import ANY_QUEUE
from cometmq.client.pulling.damage import DamageControl
from cometmq.client.pulling.gates import Gates
from cometmq.client.pulling.process_queue import Lock, ProcessQueue, failures_text
from cometmq.client.pulling.puller import PullContext, QueuePuller
from cometmq.errors import ClientStateError
from cometmq.logs.loggers import get_logger
from cometmq.model.message import MessageExt
from cometmq.model.names import is_retry_topic, retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.results import (
    ConsumeFromWhere,
    DamageCounts,
)
from cometmq.model.subscription import MessageSelector, SubscriptionData
from cometmq.protocol.bodies.consumers import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.protocol.fastjson.queue_table import queue_table
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

PERSIST_INTERVAL_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Holds the options of a push member; PushConsumer explains them."""

    member: MemberOptions = field(default_factory=MemberOptions)
    orderly: bool = False
    suspend_ms: int = SUSPEND_MS
    consume_timeout_s: float = CONSUME_TIMEOUT_S
    concurrency: int = 20
    batch_max_size: int = 1
    batch_max_age_s: float = 0.0
    # Messages with equal keys may go to the listener together; None: all may.
    together: Key | None = None
    max_reconsume_times: int = -1
    local_retry_s: float = LOCAL_RETRY_S
    # None: this member only pulls, and divides the queues itself.
    division: Literal["pop", "ask"] | None = None
    pop: PopOptions = field(default_factory=PopOptions)


@dataclass(slots=True)
class _Assignment:
    process_queue: ProcessQueue
    puller: QueuePuller
    task: asyncio.Task[None]


class GroupMember:
    """Consumes its share of a group's queues with a listener. For the loop of its instance."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: dict[str, MessageSelector],
        listener: Listener,
        options: ConsumerOptions,
    ) -> None:
        self._instance = instance
        self._group = group
        self._options = options
        self._clustering = options.member.clustering
        self._assignments: dict[MessageQueue, _Assignment] = {}
        self._owner = TaskOwner(f"consumer-{group}")
        self._locks: QueueLocks | None = None
        if options.orderly and self._clustering:
            self._locks = QueueLocks(
                instance, group, self._lock_lost, self._still_current, instance.clock.monotonic
            )
        self.gates = Gates()
        self._drained = False
        self._returns = self._new_returns()
        visible_group = options.member.namespace.unwrap(group)
        self._admit = Admission(options.member.hooks, visible_group, options.member.namespace)
        divider: PopDivider | None = None
        self._popped: PoppedQueues | None = None
        if options.division is not None:
            divider = PopDivider(instance, group, pops=options.division == "pop")
            self._popped = PoppedQueues(
                instance,
                group,
                options.pop,
                self.gates,
                self._returns,
                self._owner,
                subscription=self._subscription,
                deliver=self._deliver_popped,
                admit=self._admit,
                max_reconsume_times=options.max_reconsume_times,
                ordered=options.orderly,
                from_newest=options.member.consume_from is not ConsumeFromWhere.FIRST_OFFSET,
                always=options.division == "pop",
            )
        self.membership = Membership(
            instance,
            group,
            self,
            options.member,
            self._owner,
            gates=self.gates,
            consume_type="CONSUME_PASSIVELY",
            # A broker that restarted has forgotten the locks.
            on_rebalance=self._locks.renew_soon if self._locks is not None else None,
            divider=divider,
            pops=self._popped,
        )
        self._offsets = self.membership.offsets
        self._stats = ConsumeStats(instance.clock.monotonic)
        # Dropped queues whose messages a listener here still has.
        self._leaving: dict[MessageQueue, ProcessQueue] = {}
        self._consume_hooks = ConsumeHooks(
            options.member.hooks, visible_group, options.member.namespace, options.consume_timeout_s
        )
        self._damage = DamageControl(
            options.member.on_damaged,
            group,
            namespace=options.member.namespace,
            offsets=self._offsets,
            bury=self._returns.send_damaged if self._clustering else None,
            tasks=self._owner,
            clock=instance.clock,
        )
        self._pulls = PullContext(
            instance=instance,
            group=group,
            options=options.member.pull,
            offsets=self._offsets,
            subscription=self.membership.subscription,
            deliver=self._deliver,
            on_offset_moved=self._offset_moved,
            damage=self._damage,
            queue_count=self._queue_count,
            admit=self._admit,
        )
        self._consumption = self._new_consumption(listener)
        self._batches = self._new_batches()
        self._submit = self._batches.add if self._batches is not None else self._consumption.submit
        for topic, selector in subscriptions.items():
            self.membership.set_subscription(topic, selector)
        if self._clustering:  # in broadcasting nothing is delivered again
            self.membership.set_subscription(retry_topic(group), MessageSelector())

    # Life

    async def start(self) -> None:
        """Join the group. If the cluster cannot be reached yet, go on joining in the background.

        Raises AccessDeniedError when a broker does not let this client in.
        """
        topics = [subscription.topic for subscription in self.membership.subscriptions()]
        # Brokers create retry topics when they hear of the group.
        ready = [topic for topic in topics if not is_retry_topic(topic)]
        self.membership.warn_without_subscription("call subscribe(topic)")
        await self.membership.start(ready, PERSIST_INTERVAL_S, lambda: self.close(0))
        self._owner.every(SAMPLE_INTERVAL_S, self._stats.sample, "stats")
        if self._popped is not None:
            self._popped.held.start()
        if self._clustering:
            leftovers = Leftovers(self._instance, self._group, self.membership, self._pops)
            self._owner.every(LEFTOVERS_INTERVAL_S, leftovers.look, "leftovers", first_s=0)
        if self._locks is not None:
            self._owner.spawn(self._locks.run(), "renew-locks")

    async def drain(self, timeout_s: float) -> None:
        """Stop pulling, let running listeners finish, and say that the queues go. Idempotent."""
        if self._drained:
            return
        self._drained = True
        for assignment in self._assignments.values():
            assignment.puller.stop()
            if self._locks is not None:
                assignment.process_queue.dropped = True
        if self._popped is not None:
            self._popped.stop()
        for assignment in list(self._assignments.values()):
            await assignment.puller.end(assignment.task)
        await self._owner.close()
        if self._batches is not None:
            self._batches.close()
        await self._consumption.close(timeout_s)
        await self.membership.callbacks.revoke([*self._assignments, *self._leaving])

    async def close(self, timeout_s: float) -> None:
        """Drain, commit, leave the group."""
        await self.drain(timeout_s)
        if self._popped is not None:
            running: defaultdict[ProcessQueue, set[int]] = defaultdict(set)
            for job in self._consumption.runner.running():
                running[job.process_queue].update(m.queue_offset for m in job.messages)
            await self.membership.finish(
                self._popped.held.close(running), "brokers do not take acknowledgements in time"
            )
            await self._popped.held.abandon()
        await self.membership.finish(
            self._hand_over_all(), "offsets not committed or queues not unlocked in time"
        )
        if self._locks is not None:
            await self._locks.close()
        for assignment in self._assignments.values():
            assignment.process_queue.dropped = True
        self._assignments.clear()
        await self.membership.leave()

    def damage_counts(self) -> DamageCounts:
        return self._damage.counts()

    def set_concurrency(self, concurrency: int) -> None:
        self._consumption.runner.concurrency = concurrency

    # Called by the rebalancer

    def assigned(self) -> Collection[MessageQueue]:
        return self._assignments.keys()

    def all_assigned(self) -> list[MessageQueue]:
        """Return the queues that this member pulls and those that it pops."""
        popped = [] if self._popped is None else self._popped.assigned()
        return [*self._assignments, *popped]

    def consumed_queues(self) -> list[MessageQueue]:
        """Return the queues whose messages this member consumes: all of a broker that it pops."""
        queues = list(self._assignments)
        for popped in [] if self._popped is None else self._popped.assigned():
            if popped.queue_id != ANY_QUEUE:
                queues.append(popped)
            elif (route := self._instance.routes.route(popped.topic)) is not None:
                queues += [
                    queue
                    for queue in route.subscribe_queues(popped.topic)
                    if queue.broker_name == popped.broker_name
                ]
        return queues

    async def take(self, queue: MessageQueue) -> None:
        if queue in self._leaving or self._consumption.busy(queue):
            raise ClientStateError(f"a listener still has messages of {queue} from before")
        lock = await self._locks.lock(queue) if self._locks is not None else None
        try:
            self._offsets.remove(queue)
            offset = await self.membership.first_offset(queue)
        except BaseException:
            if self._locks is not None:
                await self._locks.unlock([queue])
            raise
        self._begin(queue, offset, lock)

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        idle = []
        for queue in queues:
            if queue not in self._assignments:  # its lock was lost
                continue
            assignment = self._drop(queue)
            self._leaving[queue] = assignment.process_queue
            if self._consumption.busy(queue):
                # The listener may take long, and the other queues must not wait for it.
                self._owner.spawn(self._hand_over([assignment]), f"hand-over-{queue}")
            else:
                idle.append(assignment)
        if idle:
            await self._hand_over(idle)

    # Asked by brokers

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """See InspectedMember."""
        await self.go_to(offsets)

    async def go_to(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Begin queues again at these offsets. Skip queues that this member does not have, or loses meanwhile.

        Messages that listeners have at that time may come again or not. Raises ClientStateError if an
        orderly listener waits for this call, because the call would wait for the listener.
        """
        held = {q: self._assignments[q] for q in offsets if q in self._assignments}
        for queue in held:
            if self._consumption.held_by_caller(queue):
                raise ClientStateError(
                    f"a listener waits for a seek of {self._options.member.namespace.unwrap_queue(queue)}, and the "
                    "seek waits for the listener, because the consumer is orderly: seek in a task or a thread "
                    "of your own, and let the listener return"
                )
        for assignment in held.values():
            _forfeit(assignment.process_queue)
        for queue, assignment in held.items():
            await self._begin_again(assignment, offsets[queue])

    def known_offsets(self, topic: str) -> dict[MessageQueue, int]:
        return self.membership.known_offsets(topic)

    def process_queues(self) -> list[ProcessQueue]:
        """Return the queues that are pulled, and the batches that were popped. For any thread."""
        pulled = [assignment.process_queue for assignment in list(self._assignments.values())]
        return pulled if self._popped is None else pulled + self._popped.held.process_queues()

    def running_info(self) -> ConsumerRunningInfo:
        queues = [assignment.process_queue for assignment in self._assignments.values()]
        info = self.membership.running_info(queues, self._properties())
        if self._popped is not None:
            info.mq_pop_table = queue_table(self._popped.infos())
        info.status_table = {s.topic: self._stats.status(s.topic) for s in info.subscription_set}
        return info

    async def stacks(self) -> str:
        return thread_stacks()

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        message.topic = self._options.member.namespace.unwrap(message.topic)
        job = ConsumeJob(ProcessQueue(queue, clock=self._instance.clock), [message])
        await consume_one(self._consumption.runner, job)
        return direct_result(job, orderly=self._options.orderly)

    # Inside

    def _properties(self) -> dict[str, str]:
        """Return the properties that consoles show, under the names of Java's beans."""
        options = self._options
        concurrency = str(self._consumption.runner.concurrency)
        return {
            "messageRequestMode": self._mode(),
            "PROP_CONSUMEORDERLY": "true" if options.orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": concurrency,
            "consumeThreadMin": concurrency,
            "consumeThreadMax": concurrency,
            "consumeMessageBatchMaxSize": str(options.batch_max_size),
            "consumeMessageBatchMaxAge": str(int(options.batch_max_age_s * 1000)),
            "maxReconsumeTimes": str(options.max_reconsume_times),
            "pullInterval": str(options.member.pull.interval_ms),
            "pullThresholdForQueue": str(options.member.pull.flow.messages),
            "pullThresholdSizeForQueue": str(max(1, options.member.pull.flow.size_bytes >> 20)),
            "consumeConcurrentlyMaxSpan": str(options.member.pull.flow.span),
            **self.gates.properties(self.all_assigned()),
            "pullFailures": failures_text(
                {
                    queue: assignment.puller.failure
                    for queue, assignment in self._assignments.items()
                    if assignment.puller.failure
                }
            ),
            **({} if self._popped is None else self._popped.properties()),
            "queuesNotBegun": failures_text(self.membership.not_begun),
            **self._damage.properties(),
        }

    def _mode(self) -> str:
        """Return POP if this member pops any queue, even if it also pulls some, else PULL."""
        if self._options.division == "pop" or (self._popped and self._popped.assigned()):
            return "POP"
        return "PULL"

    def _subscription(self, topic: str) -> SubscriptionData | None:
        return self.membership.subscription(topic)

    def _deliver_popped(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        assert self._popped is not None, "delivers"
        self._stats.pulled(process_queue.queue.topic, len(messages), 0.0)
        self._popped.deliver(self._consumption, process_queue, messages)

    def _finish(self, commit: Finish) -> Finish:
        return commit if self._popped is None else self._popped.finishing(commit)

    def _pops(self, topic: str) -> bool:
        return self._popped is not None and self._popped.pops(topic)

    async def _send_back(
        self, process_queue: ProcessQueue, message: MessageExt, level: int, cause: Cause
    ) -> None:
        if self._popped is not None and process_queue in self._popped.held:
            await self._popped.refuse(process_queue, message, level, cause)
        else:
            await self._returns.send_back(message, level, cause)

    def _new_returns(self) -> Returns:
        times = self._options.max_reconsume_times
        return Returns(
            self._instance,
            self._group,
            None if times < 0 else times,
            self._options.member.namespace,
            note_failures=self._options.member.note_failures,
        )

    def _new_consumption(self, listener: Listener) -> QueueConsumption:
        options = self._options
        returns = self._returns
        if options.orderly:
            return OrderlyConsumption(
                self._group,
                listener,
                self._finish(committing_in_order(self._offsets)),
                returns.send_to_retry_topic if self._clustering else None,
                concurrency=options.concurrency,
                batch_max_size=options.batch_max_size,
                max_reconsume_times=(
                    options.max_reconsume_times
                    if options.max_reconsume_times >= 0
                    else UNLIMITED_RECONSUME_TIMES
                ),
                suspend_ms=options.suspend_ms,
                stats=self._stats,
                hooks=self._consume_hooks,
                clock=self._instance.clock,
                key=options.together,
            )
        return Consumption(
            self._group,
            listener,
            self._finish(committing(self._offsets)),
            self._send_back if self._clustering else None,
            concurrency=options.concurrency,
            batch_max_size=options.batch_max_size,
            local_retry_s=options.local_retry_s,
            consume_timeout_s=options.consume_timeout_s,
            stats=self._stats,
            hooks=self._consume_hooks,
            clock=self._instance.clock,
            key=options.together,
        )

    def _new_batches(self) -> Batches | None:
        options = self._options
        if not options.batch_max_age_s:
            return None
        # An orderly consumer keeps the order of messages that go to different handlers, too.
        key = None if options.orderly else options.together
        return Batches(
            self._consumption.submit, options.batch_max_size, options.batch_max_age_s, key
        )

    def _begin(self, queue: MessageQueue, offset: int, lock: Lock | None) -> None:
        process_queue = ProcessQueue(queue, lock, clock=self._instance.clock)
        puller = QueuePuller(self._pulls, process_queue, offset, self.gates.gate(queue))
        task = self._owner.spawn(puller.run(), f"pull-{queue}")
        self._assignments[queue] = _Assignment(process_queue, puller, task)

    def _deliver(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        self._stats.pulled(process_queue.queue.topic, len(messages), process_queue.last_pull_s)
        self._submit(process_queue, messages)

    def _queue_count(self, topic: str) -> int:
        return sum(queue.topic == topic for queue in self._assignments)

    async def _hand_over(self, assignments: Sequence[_Assignment]) -> None:
        """Commit and unlock dropped queues once no listener has their messages any more."""
        process_queues = {each.process_queue.queue: each.process_queue for each in assignments}
        await asyncio.gather(*(each.puller.end(each.task) for each in assignments))
        for process_queue in process_queues.values():
            await self._consumption.release(process_queue)
        await self.membership.callbacks.revoke(process_queues)
        await self._offsets.persist(
            [
                queue
                for queue, process_queue in process_queues.items()
                if not process_queue.forfeited
            ]
        )
        if self._locks is not None:
            await self._locks.unlock(list(process_queues))
        for queue in process_queues:
            self._offsets.remove(queue)
            self._leaving.pop(queue, None)

    async def _hand_over_all(self) -> None:
        leaving = [q for q, process_queue in self._leaving.items() if not process_queue.forfeited]
        await self._offsets.persist([*self._assignments, *leaving])
        if self._locks is not None:
            # A queue whose listener outlived the close keeps its lock until the lock expires.
            idle = [
                queue for queue in sorted(self._locks.held()) if not self._consumption.busy(queue)
            ]
            await self._locks.unlock(idle)

    async def _still_current(self, queue: MessageQueue) -> bool:
        """Say whether no other member consumed the queue while its lock was in doubt."""
        address = self._instance.need_master(queue.broker_name, queue.topic)
        stored = await self._instance.brokers.query_consumer_offset(address, self._group, queue)
        return stored is None or stored <= (self._offsets.get(queue) or 0)

    def _lock_lost(self, queue: MessageQueue) -> None:
        leaving = self._leaving.get(queue)
        if leaving is not None:
            leaving.forfeited = True
        if queue in self._assignments:
            assignment = self._drop(queue)
            assignment.task.cancel()
            assignment.process_queue.forfeited = True
            self._offsets.remove(queue)
            self._owner.spawn(self._begin_lost_again(assignment), f"lock-lost-{queue}")

    async def _begin_lost_again(self, assignment: _Assignment) -> None:
        await self._consumption.release(assignment.process_queue)
        await self.membership.callbacks.revoke([assignment.process_queue.queue])
        self.membership.look_soon()

    def _drop(self, queue: MessageQueue) -> _Assignment:
        assignment = self._assignments.pop(queue)
        assignment.process_queue.dropped = True
        return assignment

    def _offset_moved(self, queue: MessageQueue, next_offset: int) -> None:
        """Begin the queue again at `next_offset`. The queue's own puller calls this, and ends when
        it sees its queue dropped.
        """
        assignment = self._assignments.get(queue)
        if assignment is not None:
            _forfeit(assignment.process_queue)
            again = self._begin_again(assignment, next_offset)
            self._owner.spawn(again, f"offset-moved-{queue}")

    async def _begin_again(self, assignment: _Assignment, offset: int) -> None:
        """Begin a forfeited queue at `offset` once no listener has it, if it is still this member's."""
        queue = assignment.process_queue.queue
        await assignment.puller.end(assignment.task)
        await self._consumption.release(assignment.process_queue)
        if self._assignments.get(queue) is not assignment:
            return
        self._offsets.update(queue, offset, increase_only=False)
        await self._offsets.persist([queue])
        if self._assignments.get(queue) is assignment:
            self._begin(queue, offset, assignment.process_queue.lock)


def _forfeit(process_queue: ProcessQueue) -> None:
    """Have nothing more of a queue consumed or committed."""
    process_queue.dropped = process_queue.forfeited = True
