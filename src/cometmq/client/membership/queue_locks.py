"""Take the brokers' locks that an orderly consumer needs.

Java: RebalanceImpl.lock, lockAll, unlock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from cometmq.client.instance import ClientInstance
from cometmq.errors import CometMQError, QueueLockedError
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.remoting.connection import Connection
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

T = TypeVar("T")

RENEWAL_INTERVAL_S: Final = 20.0
# The pause after a round of renewals in which a broker did not answer.
RENEWAL_RETRY_S: Final = 1.0
# Half of the time after which the broker would give the lock to another member.
VALIDITY_S: Final = 30.0


class QueueLock:
    """Says whether the holder of one lock may still rely on it. Any thread may read `valid`.

    A broker that restarts has forgotten its locks, and may give them to the member that reconnects
    first. So a lock is worth nothing once the connection is lost over which the broker gave it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._renewed_at = 0.0
        self._connection: Connection | None = None

    def renew(self, asked_at: float, connection: Connection | None) -> None:
        self._renewed_at = asked_at
        self._connection = connection

    def take_over(self, other: QueueLock) -> None:
        self.renew(other._renewed_at, other._connection)

    @property
    def valid(self) -> bool:
        connection = self._connection
        if connection is None or connection.closed:
            return False
        return self._clock() - self._renewed_at < VALIDITY_S


class QueueLocks:
    """Takes, renews and releases the locks of one member. For the loop's thread.

    When another member holds a queue's lock, this class forgets the lock and calls `on_lost` with
    the queue. When a lock had become invalid and was won again, this class awaits `still_current`,
    which says whether no other member consumed the queue meanwhile; if one did, the lock counts as
    lost.

    A Java broker serves the requests of one connection in several threads. It could serve a renewal
    after the release that followed it, and so lock the queue for a minute. Hence this class sends
    each broker one request at a time and waits for a request that it began, even when it is closed.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        on_lost: Callable[[MessageQueue], None],
        still_current: Callable[[MessageQueue], Awaitable[bool]],
        clock: Callable[[], float] = SYSTEM_CLOCK.monotonic,
    ) -> None:
        self._instance = instance
        self._group = group
        self._on_lost = on_lost
        self._still_current = still_current
        self._clock = clock
        self._owner = TaskOwner(f"queue-locks-{group}")
        self._turns: dict[str, asyncio.Lock] = {}
        self._held: dict[MessageQueue, QueueLock] = {}
        # Queues whose lock was asked for without an answer yet. The member may hold these locks, so
        # it must release them in the end.
        self._unsure: set[MessageQueue] = set()
        self._asked = asyncio.Event()

    def held(self) -> Collection[MessageQueue]:
        """Return the queues whose locks this member holds, or may hold, at present."""
        return self._held.keys() | self._unsure

    def renew_soon(self) -> None:
        self._asked.set()

    async def run(self) -> None:
        """Renew the locks for ever. Runs as a task of the consumer."""
        while True:
            self._asked.clear()
            complete = await self.renew_all()
            try:
                async with asyncio.timeout(RENEWAL_INTERVAL_S if complete else RENEWAL_RETRY_S):
                    await self._asked.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Wait for the requests under way, at most for the timeouts of their calls."""
        for turn in list(self._turns.values()):
            async with turn:  # an asyncio.Lock is fair, so all that asked before have had it
                pass
        await self._owner.close()

    async def lock(self, queue: MessageQueue) -> QueueLock:
        """Take the lock of a queue. Raises QueueLockedError while another member holds it."""
        lock = QueueLock(self._clock)
        self._unsure.add(queue)
        granted = await self._in_turn(queue.broker_name, lambda: self._ask({queue: lock}))
        self._unsure.discard(queue)
        if queue not in granted:
            raise QueueLockedError(
                f"another member of group {self._group} holds the lock of {queue}"
            )
        self._held[queue] = lock
        return lock

    async def renew_all(self) -> bool:
        """Renew every lock. Return False when a broker could not be asked."""
        brokers = sorted({queue.broker_name for queue in self._held})
        renewals = (self._in_turn(name, partial(self._renew, name)) for name in brokers)
        return all(await asyncio.gather(*renewals))

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks. A lock whose release does not reach the broker expires after a minute."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            if self._held.pop(queue, None) is not None or queue in self._unsure:
                # Unsure until the release is done: its caller may be cancelled before it begins.
                self._unsure.add(queue)
                by_broker.setdefault(queue.broker_name, []).append(queue)
        releases = (
            self._in_turn(name, partial(self._unlock, held)) for name, held in by_broker.items()
        )
        await asyncio.gather(*releases)

    # One at a time for each broker

    async def _in_turn(self, broker_name: str, step: Callable[[], Coroutine[Any, Any, T]]) -> T:
        turn = self._turns.setdefault(broker_name, asyncio.Lock())

        async def run() -> T:
            async with turn:
                return await step()

        task = self._owner.spawn(run(), f"turn-{broker_name}", log_failure=False)
        return await asyncio.shield(task)

    async def _renew(self, broker_name: str) -> bool:
        locks = {q: lock for q, lock in self._held.items() if q.broker_name == broker_name}
        if not locks:
            return True
        doubtful = [queue for queue, lock in locks.items() if not lock.valid]
        fresh = {queue: QueueLock(self._clock) for queue in doubtful}
        try:
            # Doubtful locks are renewed in `fresh` first: nobody may rely on them before the check.
            granted = await self._ask({**locks, **fresh})
            for queue in doubtful:
                if queue in granted and not await self._still_current(queue):
                    granted.discard(queue)
        except CometMQError as error:
            log.info("queue locks not renewed", broker=broker_name, reason=str(error))
            return False
        for queue, lock in locks.items():
            if self._held.get(queue) is not lock:
                continue  # released meanwhile
            if queue not in granted:
                log.warning("a queue lock is lost", group=self._group, queue=str(queue))
                del self._held[queue]
                self._on_lost(queue)
            elif queue in fresh:
                lock.take_over(fresh[queue])
        return True

    async def _ask(self, locks: dict[MessageQueue, QueueLock]) -> set[MessageQueue]:
        """Ask one broker for locks. Renew those that it grants, as of the time of asking."""
        first = next(iter(locks))
        address = self._instance.need_master(first.broker_name, first.topic)
        asked_at = self._clock()
        granted = await self._instance.brokers.lock_queues(
            address, self._group, self._instance.client_id, sorted(locks)
        )
        connection = self._instance.remoting.connected(address)
        for queue in granted & locks.keys():
            locks[queue].renew(asked_at, connection)
        return granted & locks.keys()

    async def _unlock(self, queues: list[MessageQueue]) -> None:
        try:
            address = self._instance.need_master(queues[0].broker_name, queues[0].topic)
            await self._instance.brokers.unlock_queues(
                address, self._group, self._instance.client_id, queues
            )
        except CometMQError as error:
            log.info("queue locks not released", group=self._group, reason=str(error))
        self._unsure.difference_update(queues)
