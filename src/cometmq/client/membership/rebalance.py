"""Share a group's queues among its members (Java: RebalanceImpl, RebalancePushImpl)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from cometmq.client.instance import ClientInstance
from cometmq.client.membership.allocation import AllocationStrategy
from cometmq.client.membership.callbacks import QueueCallbacks
from cometmq.client.membership.offset_store import NoOffsetAtSlaveError, OffsetStore
from cometmq.errors import (
    AccessDeniedError,
    CometMQError,
    IllegalArgumentError,
    RouteNotFoundError,
)
from cometmq.logs.loggers import get_logger
from cometmq.model.names import is_retry_topic
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeFromWhere

log = get_logger(__name__)

REBALANCE_INTERVAL_S: Final = 20.0
# The pause after a round in which a broker could not be asked or a queue could not be begun.
REBALANCE_RETRY_S: Final = 1.0
# The member warns when no name server has answered for this long.
UNANSWERED_S: Final = 5.0


class Assignments(Protocol):
    """Holds the queues that this member consumes, which a rebalance changes."""

    def assigned(self) -> Collection[MessageQueue]: ...

    async def take(self, queue: MessageQueue) -> None:
        """Begin to consume a queue. Raises CometMQError when its offset cannot be determined."""

    async def give_up(self, queues: Sequence[MessageQueue]) -> None:
        """Stop consuming queues and commit their offsets. Passes over those that are no longer held."""


class Division(NamedTuple):
    """Holds the queues of a topic that this member consumes. A queue of `pops` with the id -1
    stands for all queues of its broker.
    """

    pulls: set[MessageQueue]
    pops: set[MessageQueue]


class Divider(Protocol):
    """Divides queues of a topic in another way than by the members' ids."""

    async def divide(self, topic: str, queues: list[MessageQueue]) -> Division | None:
        """Return this member's queues, or None if they stay as they are. Raises CometMQError."""

    def divides(self, topic: str) -> bool:
        """Return whether the topic is divided in this way."""


class Rebalancer:
    """Runs rounds of the rebalance, periodically and on demand. For the loop's thread.

    Without a `strategy` (broadcasting) this member consumes every queue. A `divider`
    divides the topics that it serves, and `pops` are the queues that this member pops. `callbacks`
    are called for the queues that this member pulls.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        strategy: AllocationStrategy | None,
        topics: Callable[[], Collection[str]],
        assignments: Assignments,
        callbacks: QueueCallbacks,
        divider: Divider | None = None,
        pops: Assignments | None = None,
    ) -> None:
        self._callbacks = callbacks
        self._divider = divider
        self._pops = pops
        self._instance = instance
        self._group = group
        self._strategy = strategy
        self._topics = topics
        self._assignments = assignments
        self._asked = asyncio.Event()
        # Topics for which this member warned that they have no route.
        self._lacking: set[str] = set()
        # By topic, the loop's time since which no name server has answered for it.
        self._unanswered: dict[str, float] = {}
        # Why queues of this member's share could not be begun, for those who ask the member.
        self.not_begun: dict[MessageQueue, str] = {}

    def soon(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        """Run rounds for ever. Runs as a task of the consumer."""
        while True:
            self._asked.clear()
            complete = await self.round()
            wait_s = REBALANCE_INTERVAL_S if complete else REBALANCE_RETRY_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._asked.wait()
            except TimeoutError:
                pass

    async def round(self) -> bool:
        """Rebalance all topics once. Return False when the round has to be repeated soon."""
        topics = self._topics()
        complete = True
        for queue in [queue for queue in self.not_begun if queue.topic not in topics]:
            del self.not_begun[queue]
        for held in self._all_assignments():
            await self._give_up(held, [q for q in held.assigned() if q.topic not in topics])
        for topic in list(topics):
            try:
                complete &= await self._balance(topic)
            except CometMQError as error:
                log.info(
                    "queues stay as they are", group=self._group, topic=topic, reason=str(error)
                )
                complete = False
        return complete

    async def _balance(self, topic: str) -> bool:
        routes = self._instance.routes
        route = routes.route(topic)
        if route is None:
            routes.refresh_soon(topic)
            if not is_retry_topic(topic):
                self._say_lacking(topic, routes.failure(topic))
            return True  # the arrival of the route asks for a round
        self._unanswered.pop(topic, None)
        if topic in self._lacking:
            self._lacking.discard(topic)
            log.info("the topic has a route now", group=self._group, topic=topic)
        queues = route.subscribe_queues(topic)
        if self._divider is not None and self._divider.divides(topic):
            division = await self._divider.divide(topic, queues)
            if division is None:
                await self._instance.heartbeats.beat_all()
                return False
            assert self._pops is not None, "comes with the divider"
            parts = [(self._pops, division.pops), (self._assignments, division.pulls)]
            if division.pops:  # the offsets of pulls are committed before the first pop
                parts.reverse()
            return all([await self._settle(held, topic, share) for held, share in parts])
        if self._strategy is None:
            share = set(queues)
        else:
            client_ids = await self._client_ids(topic)
            if self._instance.client_id not in client_ids:
                # The broker restarted or does not know this client yet. Java would give up all
                # queues.
                await self._instance.heartbeats.beat_all()
                return False
            share = set(self._allocate(self._strategy, queues, client_ids))
        return await self._settle(self._assignments, topic, share)

    def _all_assignments(self) -> list[Assignments]:
        return [self._assignments] if self._pops is None else [self._assignments, self._pops]

    async def _settle(self, assignments: Assignments, topic: str, share: set[MessageQueue]) -> bool:
        """Begin the queues of a topic that this member is to have now, and give up the others."""
        held = {queue for queue in assignments.assigned() if queue.topic == topic}
        if assignments is self._assignments:
            for queue in [q for q in self.not_begun if q.topic == topic and q not in share]:
                del self.not_begun[queue]
        await self._give_up(assignments, held - share)
        outcomes = await asyncio.gather(
            *(self._take(assignments, queue) for queue in sorted(share - held))
        )
        await self._callbacks.announce()
        if held != share:
            log.info(
                "queues assigned",
                group=self._group,
                topic=topic,
                queues=[f"{queue.broker_name}:{queue.queue_id}" for queue in sorted(share)],
            )
        return all(outcomes)

    async def _give_up(self, assignments: Assignments, queues: Iterable[MessageQueue]) -> None:
        leaving = sorted(queues)
        if leaving:
            if assignments is self._assignments:
                self._callbacks.forget(leaving)
            await assignments.give_up(leaving)

    def _say_lacking(self, topic: str, failure: CometMQError | None) -> None:
        """Warn once that nothing is consumed from a topic, as soon as the reason is known."""
        if topic in self._lacking:
            return
        loop = asyncio.get_running_loop()
        if failure is None:
            loop.call_later(REBALANCE_RETRY_S, self.soon)
            return
        now = loop.time()
        unanswered_s = now - self._unanswered.setdefault(topic, now)
        # A name server that cannot be reached may come up in a moment, so wait before warning.
        is_answer = isinstance(failure, (RouteNotFoundError, AccessDeniedError))
        if is_answer or unanswered_s >= UNANSWERED_S:
            self._lacking.add(topic)
            log.warning(
                "the topic has no route yet, nothing is consumed from it",
                group=self._group,
                topic=topic,
                reason=str(failure),
            )

    def _allocate(
        self, strategy: AllocationStrategy, queues: list[MessageQueue], client_ids: list[str]
    ) -> Sequence[MessageQueue]:
        try:
            return strategy(self._group, self._instance.client_id, queues, client_ids)
        except Exception as error:  # the strategy may be the user's; its failure changes nothing
            raise IllegalArgumentError(
                f"the allocation strategy {strategy!r} of group {self._group} failed: {error!r}"
            ) from error

    async def _take(self, assignments: Assignments, queue: MessageQueue) -> bool:
        if assignments is self._assignments:
            self._callbacks.expect(queue)
        try:
            await assignments.take(queue)
        except CometMQError as error:
            self._callbacks.forget([queue])
            log.info("a queue cannot be begun yet", queue=str(queue), reason=str(error))
            self.not_begun[queue] = str(error)
            return False
        self.not_begun.pop(queue, None)
        return True

    async def _client_ids(self, topic: str) -> list[str]:
        """Return the group's members, sorted, as the first broker that answers knows them."""
        route = self._instance.routes.route(topic)
        assert route is not None, "checked by the caller"
        failure: CometMQError | None = None
        for data in route.broker_datas:
            if not data.broker_addrs:
                continue
            address = self._instance.need_reader(data.broker_name, topic)
            try:
                return sorted(await self._instance.brokers.consumer_ids(address, self._group))
            except CometMQError as error:
                self._instance.report_failure(error, topic, address)
                failure = error
        if failure is not None and failure.code is None:
            raise failure
        return []  # a broker answered that the group has no member there


async def first_offset(
    instance: ClientInstance,
    offsets: OffsetStore,
    queue: MessageQueue,
    where: ConsumeFromWhere,
    timestamp_ms: int,
) -> int:
    """Return the offset at which a member begins a queue: the stored one, else the one by `where`.

    Raises CometMQError when a broker could not be asked. If only a slave answers, a member that
    begins at the first message does so: it may get messages again that its group has consumed. A
    member that begins at the last message, or at a time, could skip messages that its group has not
    consumed, so it waits for the master.
    """
    retry = is_retry_topic(queue.topic)
    begins_first = where is ConsumeFromWhere.FIRST_OFFSET or (
        where is ConsumeFromWhere.LAST_OFFSET and retry
    )
    try:
        stored = await offsets.fetch(queue)
    except NoOffsetAtSlaveError as error:
        if begins_first:
            return 0
        if error.is_news:
            log.warning(
                "a queue is not consumed until its master is back",
                queue=str(queue),
                reason=str(error),
                remedy="start the master, or make the slave the master; or begin at the first message "
                "(ConsumeFromWhere.FIRST_OFFSET)",
            )
        raise
    if stored is not None:
        return stored
    if begins_first:
        return 0
    address = instance.need_master(queue.broker_name, queue.topic)
    if where is ConsumeFromWhere.LAST_OFFSET or retry:
        return await instance.brokers.max_offset(address, queue)
    return await instance.brokers.search_offset(address, queue, timestamp_ms)
