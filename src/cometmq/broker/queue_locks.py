"""Which member of a group may consume a queue in order (Java: RebalanceLockManager)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from cometmq.model.queue import MessageQueue
from cometmq.runtime.clock import Clock

log = structlog.get_logger(__name__)

# Java: rocketmq.broker.rebalance.lockMaxLiveTime.
LOCK_MAX_LIVE_MS: Final = 60_000
MAX_LOCKS_PER_GROUP: Final = 65_536
MAX_GROUPS: Final = 65_536


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_at: float  # seconds of the monotonic clock


class QueueLocks:
    """Locks by group and queue. For the loop's thread only.

    A lock lives for LOCK_MAX_LIVE_MS after its holder asked for it the last time; until then nobody
    else gets it, and afterwards whoever asks first. Like Java's, the table does not outlive the
    broker.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Give `queues` to the client where they are free; those it holds afterwards, renewed."""
        now = self._clock.monotonic()
        locks = self._groups.get(group)
        if locks is None:
            if len(self._groups) >= MAX_GROUPS:
                self._forget_expired(now)
            if len(self._groups) >= MAX_GROUPS:
                log.warning("no locks for another group", group=group, limit=MAX_GROUPS)
                return set()
            locks = self._groups[group] = {}
        return {queue for queue in queues if self._lock_one(group, locks, queue, client_id, now)}

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of `queues` that the client holds."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
        if not locks:
            self._groups.pop(group, None)

    def holds_any(self, group: str) -> bool:
        """Whether a member of the group holds a lock that has not expired."""
        now = self._clock.monotonic()
        return any(not _expired(lock, now) for lock in self._groups.get(group, {}).values())

    def _lock_one(
        self,
        group: str,
        locks: dict[MessageQueue, _Lock],
        queue: MessageQueue,
        client_id: str,
        now: float,
    ) -> bool:
        lock = locks.get(queue)
        if lock is None:
            if len(locks) >= MAX_LOCKS_PER_GROUP:
                log.warning("no lock for another queue", group=group, limit=MAX_LOCKS_PER_GROUP)
                return False
            locks[queue] = _Lock(client_id, now)
            return True
        if lock.client_id != client_id:
            if not _expired(lock, now):
                return False
            log.warning(
                "an expired queue lock changes hands",
                group=group,
                queue=str(queue),
                holder=lock.client_id,
                client_id=client_id,
            )
            lock.client_id = client_id
        lock.renewed_at = now
        return True

    def _forget_expired(self, now: float) -> None:
        for group in [
            group
            for group, locks in self._groups.items()
            if all(_expired(lock, now) for lock in locks.values())
        ]:
            del self._groups[group]


def _expired(lock: _Lock, now: float) -> bool:
    return (now - lock.renewed_at) * 1000 > LOCK_MAX_LIVE_MS
