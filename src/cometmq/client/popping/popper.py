"""Pop without end from one queue, or from all queues of a broker (Java: DefaultMQPushConsumerImpl.popMessage)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cometmq.client.consuming.listeners.consume_hooks import Admission
from cometmq.client.popping.held import HeldMessages
from cometmq.client.popping.received import Receipt
from cometmq.client.popping.requests import PopRequests
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.errors import CometMQError, RemoteError
from cometmq.filtering.tags import accepts, selects_all
from cometmq.logs.loggers import get_logger
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.codes import ResponseCode
from cometmq.runtime.back_off import BackOff

log = get_logger(__name__)

# Java: BROKER_SUSPEND_MAX_TIME_MILLIS of pops.
POLL_S: Final = 15.0
# A member that holds bodies of this size of one popped queue waits before it pops more.
MOST_HELD_BYTES: Final = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PopOptions:
    """Holds the options for pops, which PushConsumer explains."""

    batch_size: int = 32
    invisible_ms: int = 60_000
    threshold_for_queue: int = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class PopContext:
    """Holds the objects that all poppers of a member share; see PullContext."""

    options: PopOptions
    requests: PopRequests
    held: HeldMessages
    subscription: Callable[[str], SubscriptionData | None]
    deliver: Callable[[ProcessQueue, list[MessageExt]], None]
    admit: Admission


class QueuePopper:
    """Pops from one queue while there is room. `run` is a task of the consumer.

    A pop that waits at its broker when the popper stops goes on in a task of the instance, which
    gives back the messages of the answer.
    """

    def __init__(self, context: PopContext, queue: MessageQueue, gate: asyncio.Event) -> None:
        self._context = context
        self._queue = queue
        self._gate = gate
        self._stopped = False
        self._back_off = BackOff()
        # Why the last pop failed, for questions to the member; empty after a pop that succeeded.
        self.failure = ""

    async def run(self) -> None:
        options = self._context.options
        source = self._context.held.source(self._queue)
        tasks = self._context.requests.instance.tasks
        while not self._stopped:
            await self._gate.wait()
            room = options.threshold_for_queue - source.messages
            if room <= 0 or source.size_bytes >= MOST_HELD_BYTES:
                await source.wait_changed()
                continue
            subscription = self._context.subscription(self._queue.topic)
            if subscription is None:
                return
            pop = self._pop(subscription, min(options.batch_size, room))
            try:
                await asyncio.shield(tasks.spawn(pop, f"pop-{self._queue}", log_failure=False))
            except CometMQError as error:
                self._note(error)
                await self._back_off.wait()
            else:
                self.failure = ""
                self._back_off.reset()

    def stop(self) -> None:
        """Send no more pops."""
        self._stopped = True

    def _note(self, error: CometMQError) -> None:
        reason = str(error)
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            reason += '; brokers know pops from RocketMQ 5.0 on: pull, with mode="pull"'
        if reason != self.failure and isinstance(error, RemoteError):
            log.warning("a broker refuses pops", queue=str(self._queue), reason=reason)
        self.failure = reason

    async def _pop(self, subscription: SubscriptionData, most: int) -> None:
        context = self._context
        options = context.options
        popped = await context.requests.pop(
            self._queue, subscription, most, options.invisible_ms, POLL_S
        )
        if self._stopped:
            context.held.give_back_unseen(receipt for _, receipt in popped)
            return
        wanted = self._wanted(subscription, popped)
        for process_queue, messages in context.held.put(self._queue, wanted):
            context.deliver(process_queue, messages)

    def _wanted(
        self, subscription: SubscriptionData, popped: list[tuple[MessageExt, Receipt]]
    ) -> list[tuple[MessageExt, Receipt]]:
        """Return the messages for listeners, and acknowledge the others: brokers select tags by hashes only."""
        messages = [message for message, _ in popped]
        if not selects_all(subscription):
            messages = [message for message in messages if accepts(subscription, message.tags)]
        kept = {id(message) for message in self._context.admit(self._queue, messages)}
        if len(kept) < len(popped):
            self._context.held.acknowledge_unseen(
                receipt for message, receipt in popped if id(message) not in kept
            )
        return [each for each in popped if id(each[0]) in kept]
