"""Say how many copies a message of a SYNC_MASTER needs, and how far they are (Java: CommitLog,
HAService, GroupTransferService).

    inSyncReplicas        brokers that have a message before it is acknowledged, the master counted;
                          a SYNC_MASTER waits for one slave at least, as Java 4.9 does
    minInSyncReplicas     with fewer brokers in step, the master counted, no message is taken
    allAckInSyncStateSet  all slaves in step must have a message before it is acknowledged

A slave is in step as long as it lacks less than haMaxGapNotInSync bytes. Java 5 obeys the last two
keys only where a controller or an acting master counts the slaves.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.refusal import Refused
from cometmq.protocol.codes import ResponseCode
from cometmq.replication.config import ReplicationConfig
from cometmq.replication.master import ReplicationMaster


class NeededCopies:
    """Answers for one master. For the loop's thread only."""

    def __init__(self, master: ReplicationMaster, config: ReplicationConfig) -> None:
        self._master = master
        self._config = config
        self.on_change: list[Callable[[], None]] = master.on_acknowledged

    def check(self) -> None:
        """Raise Refused while fewer brokers are in step than minInSyncReplicas asks for."""
        least = self._config.min_in_sync_replicas
        if least <= 1:
            return
        in_step = 1 + len(self._master.slaves_in_step())
        if in_step < least:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"in-sync replicas not enough: {in_step} brokers of this name are in step, the "
                f"master counted, and minInSyncReplicas={least}; start more slaves, or lower it",
            )

    def is_available(self, end: int) -> bool:
        return self._master.acknowledged_by(self._slaves) > max(end - self._config.max_gap, -1)

    def reached(self) -> int:
        if self._config.all_ack_in_sync_state_set:
            in_step = [slave.acknowledged for slave in self._master.slaves_in_step()]
            if len(in_step) > self._slaves:
                return min(in_step)
        return self._master.acknowledged_by(self._slaves)

    def timeout_s(self) -> float:
        return self._config.slave_timeout / 1000

    @property
    def _slaves(self) -> int:
        """How many slaves must have a message at least."""
        return max(self._config.in_sync_replicas, 2) - 1
