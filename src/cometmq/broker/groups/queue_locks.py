"""Lock queues for the group member that consumes them in order (Java: RebalanceLockManager)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.runtime.clock import Clock

log = get_logger(__name__)

# Java: rocketmq.broker.rebalance.lockMaxLiveTime.
LOCK_MAX_LIVE_MS: Final = 60_000
MAX_LOCKS_PER_GROUP: Final = 65_536
MAX_LOCKING_GROUPS: Final = 65_536
MAX_LOCKS: Final = 1_048_576
# At most one search for expired locks in this time, because it goes through all locks.
_SWEEP_PERIOD_S: Final = 10.0
# So many locks are looked at in a sweep; those of one group are, however many.
_SWEPT_AT_ONCE: Final = 1_024


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_at: float  # seconds of the monotonic clock


class QueueLocks:
    """Keeps the locks by group and queue. For the loop's thread only.

    A lock expires LOCK_MAX_LIVE_MS after its holder asked for it the last time. Until then no other
    client gets it; afterwards the first that asks does. As in Java, the locks are lost when the
    broker stops. A lock for which the limits leave no room is refused, as if another client held
    it.
    """

    def __init__(self, clock: Clock) -> None:
        # Called with the name of the limit for each lock that one does not allow.
        self.on_limit: Callable[[str], None] = lambda _limit: None
        self._clock = clock
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._count = 0
        self._swept_at = -_SWEEP_PERIOD_S
        self._to_sweep: list[str] = []

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Lock the free ones of `queues` for the client, and renew the locks that it has.

        Returns those of `queues` whose locks the client holds now.
        """
        now = self._clock.monotonic()
        if len(self._groups) >= MAX_LOCKING_GROUPS or self._count >= MAX_LOCKS:
            self._sweep(now)
        locks = self._groups.get(group, {})
        held: set[MessageQueue] = set()
        full = taken_over = 0
        for queue in queues:
            lock = locks.get(queue)
            if lock is None:
                if limit := self._exceeded(group, locks):
                    full += 1
                    self.on_limit(limit)
                    continue
                locks[queue] = _Lock(client_id, now)
                self._groups[group] = locks
                self._count += 1
            elif lock.client_id == client_id:
                lock.renewed_at = now
            elif _expired(lock, now):
                taken_over += 1
                lock.client_id, lock.renewed_at = client_id, now
            else:
                continue
            held.add(queue)
        if taken_over:
            log.warning(
                "expired queue locks change hands",
                group=group,
                client_id=client_id,
                queues=taken_over,
            )
        if full:
            log.warning(
                "queue locks not given: there are too many",
                group=group,
                client_id=client_id,
                queues=full,
                limits=f"MAX_LOCKS_PER_GROUP={MAX_LOCKS_PER_GROUP}, MAX_LOCKS={MAX_LOCKS}, "
                f"MAX_LOCKING_GROUPS={MAX_LOCKING_GROUPS}",
            )
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of `queues` that the client holds."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._groups.pop(group, None)

    def holds_any(self, group: str) -> bool:
        """Say whether a member of the group holds a lock that has not expired."""
        now = self._clock.monotonic()
        locks = self._groups.get(group)
        if locks is None:
            return False
        if any(not _expired(lock, now) for lock in locks.values()):
            return True
        self._forget(group)  # the next call need not look through the expired locks again
        return False

    def _exceeded(self, group: str, locks: dict[MessageQueue, _Lock]) -> str:
        """Return the name of the limit that allows the group no further lock, "" if none does."""
        if len(locks) >= MAX_LOCKS_PER_GROUP:
            return "MAX_LOCKS_PER_GROUP"
        if self._count >= MAX_LOCKS:
            return "MAX_LOCKS"
        if group not in self._groups and len(self._groups) >= MAX_LOCKING_GROUPS:
            return "MAX_LOCKING_GROUPS"
        return ""

    def _sweep(self, now: float) -> None:
        """Forget groups whose locks have all expired; look at some of the locks, and at others next time.

        Go through all groups once in _SWEEP_PERIOD_S at most.
        """
        if not self._to_sweep:
            if now - self._swept_at < _SWEEP_PERIOD_S:
                return
            self._swept_at = now
            self._to_sweep = list(self._groups)
        left = _SWEPT_AT_ONCE
        while self._to_sweep and left > 0:
            group = self._to_sweep.pop()
            locks = self._groups.get(group)
            if locks is None:
                continue
            left -= 1
            for lock in locks.values():
                if not _expired(lock, now):
                    break
                left -= 1
            else:
                self._forget(group)

    def _forget(self, group: str) -> None:
        self._count -= len(self._groups.pop(group))


def _expired(lock: _Lock, now: float) -> bool:
    return (now - lock.renewed_at) * 1000 > LOCK_MAX_LIVE_MS
