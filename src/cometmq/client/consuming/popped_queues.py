"""Pop for a push member: choose its queues, hand messages to listeners, and give refused ones back.

Java: RebalancePushImpl and ConsumeMessagePopConcurrentlyService.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from cometmq.client.consuming.listeners.consume_hooks import Admission
from cometmq.client.consuming.listeners.consumption import Cause, Finish, QueueConsumption
from cometmq.client.consuming.listeners.send_back import Returns
from cometmq.client.instance import ClientInstance
from cometmq.client.membership.rebalance import Division
from cometmq.client.popping.held import HeldMessages
from cometmq.client.popping.popper import PopContext, PopOptions, QueuePopper
from cometmq.client.popping.requests import ANY_QUEUE, PopRequests
from cometmq.client.pulling.gates import Gates
from cometmq.client.pulling.process_queue import ProcessQueue, failures_text
from cometmq.errors import CometMQError, RemoteError
from cometmq.logs.loggers import get_logger
from cometmq.model.message import MessageExt
from cometmq.model.names import is_retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.bodies.consumers import PopProcessQueueInfo
from cometmq.protocol.codes import ResponseCode
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

# Seconds of the delay levels 1 to 18 (Java: messageDelayLevel). A message that failed for the n-th time waits as
# long as level 2 + n says, as in pull mode and as in Java (popDelayLevel).
_LEVELS_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)  # fmt: skip
_FIRST_LEVEL: Final = 3
# Java: DefaultMQPushConsumerImpl.getMaxReconsumeTimes, where -1 means 16.
_JAVAS_TIMES: Final = 16


def delay_ms(level: int, reconsume_times: int) -> int:
    """Return how long a refused message is hidden. Level 0 takes the level from the number of deliveries so far."""
    level = level or _FIRST_LEVEL + reconsume_times
    return _LEVELS_S[min(max(level, 1), len(_LEVELS_S)) - 1] * 1000


def level_of(delay_ms: int) -> int:
    """Return the lowest delay level that is at least as long, by the default delays; else the highest."""
    for level, seconds in enumerate(_LEVELS_S, 1):
        if seconds * 1000 >= delay_ms:
            return level
    return len(_LEVELS_S)


class PopDivider:
    """Decides which queues a member pops and which it pulls; see Divider. For the loop of its instance.

    With `pops` the member pops all queues of all brokers. Otherwise a broker is asked, as Java's consumers
    do with setClientRebalance(false). Messages that pull members have sent back are pulled in either case.
    """

    def __init__(self, instance: ClientInstance, group: str, *, pops: bool) -> None:
        self._instance = instance
        self._group = group
        self._pops = pops
        # Topics of brokers that do not know the request: members divide their queues.
        self._unknown: set[str] = set()

    def divides(self, topic: str) -> bool:
        return not is_retry_topic(topic) and topic not in self._unknown

    async def divide(self, topic: str, queues: list[MessageQueue]) -> Division | None:
        if self._pops:
            names = {queue.broker_name for queue in queues}
            return Division(set(), {MessageQueue(topic, name, ANY_QUEUE) for name in names})
        answer = await self._ask(topic)
        if answer is None:
            return None
        return Division(
            {queue for queue, mode in answer if mode != "POP"},
            {queue for queue, mode in answer if mode == "POP"},
        )

    async def _ask(self, topic: str) -> list[tuple[MessageQueue, str]] | None:
        """Return the answer of the first broker that gives one. Raises the error of the last one if none does."""
        instance = self._instance
        route = instance.routes.route(topic)
        assert route is not None, "checked by the rebalance"
        failure: CometMQError | None = None
        for data in route.broker_datas:
            if not data.broker_addrs:
                continue
            address = instance.need_reader(data.broker_name, topic)
            try:
                return await instance.brokers.query_assignment(
                    address, topic, self._group, instance.client_id
                )
            except CometMQError as error:
                instance.report_failure(error, topic, address)
                failure = error
        if (
            isinstance(failure, RemoteError)
            and failure.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        ):
            self._unknown.add(topic)
            log.warning(
                "the brokers divide no queues, so members do", group=self._group, topic=topic
            )
        if failure is not None:
            raise failure
        return None


@dataclass(slots=True)
class _Popped:
    popper: QueuePopper
    task: asyncio.Task[None]


class PoppedQueues:
    """Pops the queues of one member; see Assignments. For the loop of its instance."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        options: PopOptions,
        gates: Gates,
        returns: Returns,
        owner: TaskOwner,
        *,
        subscription: Callable[[str], SubscriptionData | None],
        deliver: Callable[[ProcessQueue, list[MessageExt]], None],
        admit: Admission,
        max_reconsume_times: int,
        ordered: bool,
        from_newest: bool,
        always: bool,
    ) -> None:
        self.held = HeldMessages(instance, group, options.invisible_ms / 1000)
        self._options = options
        self._context = PopContext(
            options=options,
            requests=PopRequests(
                instance=instance, group=group, ordered=ordered, from_newest=from_newest
            ),
            held=self.held,
            subscription=subscription,
            deliver=deliver,
            admit=admit,
        )
        self._gates = gates
        self._returns = returns
        self._owner = owner
        self._most_times = _JAVAS_TIMES if max_reconsume_times < 0 else max_reconsume_times
        self._ordered = ordered
        self._always = always
        self._queues: dict[MessageQueue, _Popped] = {}
        # For orderly listeners: the last batch of each queue, and batches that wait for the one before.
        self._last: dict[MessageQueue, ProcessQueue] = {}
        self._turns: dict[MessageQueue, asyncio.Lock] = {}

    def assigned(self) -> Collection[MessageQueue]:
        return self._queues.keys()

    async def take(self, queue: MessageQueue) -> None:
        popper = QueuePopper(self._context, queue, self._gates.gate(queue))
        self._queues[queue] = _Popped(popper, self._owner.spawn(popper.run(), f"pop-{queue}"))

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        """Stop popping queues. Their held messages are still consumed here."""
        for queue in queues:
            popped = self._queues.pop(queue)
            popped.popper.stop()
            popped.task.cancel()

    def stop(self) -> None:
        """Send no more pops."""
        for popped in self._queues.values():
            popped.popper.stop()

    def pops(self, topic: str) -> bool:
        """Return whether this member pops a topic; with `always` it pops every one."""
        return self._always or any(queue.topic == topic for queue in self._queues)

    def finishing(self, commit: Finish) -> Finish:
        """Return the function that finishes consumed messages: it acknowledges popped ones, and passes others to `commit`."""
        held = self.held

        def finish(process_queue: ProcessQueue, offsets: Sequence[int]) -> None:
            if process_queue in held:
                held.finish(process_queue, offsets)
            else:
                commit(process_queue, offsets)

        return finish

    def deliver(
        self,
        consumption: QueueConsumption,
        process_queue: ProcessQueue,
        messages: list[MessageExt],
    ) -> None:
        if self._ordered:
            turn = self._deliver_in_turn(consumption, process_queue, messages)
            self._owner.spawn(turn, f"in-order-{process_queue.queue}")
        else:
            consumption.submit(process_queue, messages)

    async def refuse(
        self, process_queue: ProcessQueue, message: MessageExt, level: int, cause: Cause = None
    ) -> None:
        """Have the group get a message again later, or make it a dead letter after the last try.

        CometMQ's brokers make dead letters themselves after the group's retryMaxTimes. Java's brokers do
        not, and Java's consumer drops the message. The `cause` goes with a dead letter only: the message of
        a retry is the one that was popped. Raises CometMQError.
        """
        if level < 0 or message.reconsume_times >= self._most_times:
            # A message that the broker takes here is acknowledged afterwards.
            await self._returns.send_back(message, level, cause)
            return
        await self.held.give_back(process_queue, message, delay_ms(level, message.reconsume_times))

    def properties(self) -> dict[str, str]:
        """Return the properties that consoles show, under the names of Java's beans."""
        failures = {q: each.popper.failure for q, each in self._queues.items()}
        return {
            "popInvisibleTime": str(self._options.invisible_ms),
            "popBatchNums": str(self._options.batch_size),
            "popThresholdForQueue": str(self._options.threshold_for_queue),
            "popFailures": failures_text({q: why for q, why in failures.items() if why}),
        }

    def infos(self) -> dict[MessageQueue, PopProcessQueueInfo]:
        """Describe the popped queues for brokers and consoles (Java: PopProcessQueueInfo)."""
        return {
            queue: PopProcessQueueInfo(
                wait_ack_count=source.messages,
                droped=queue not in self._queues,
                last_pop_timestamp=source.last_pop_ms,
            )
            for queue, source in self.held.sources().items()
            if queue in self._queues or source.messages
        }

    async def _deliver_in_turn(
        self,
        consumption: QueueConsumption,
        process_queue: ProcessQueue,
        messages: list[MessageExt],
    ) -> None:
        """Hand over a batch once no listener has an earlier batch of its queue. The broker gives the next
        batch only when the earlier one is done or visible again.
        """
        queue = process_queue.queue
        async with self._turns.setdefault(queue, asyncio.Lock()):
            before = self._last.get(queue)
            if before is not None:
                before.dropped = True
                await consumption.release(before)
            self._last[queue] = process_queue
            if process_queue.consumable:
                consumption.submit(process_queue, messages)
