"""Show monitoring systems how far the copies of a broker's log are."""

from __future__ import annotations

from cometmq.broker.replication.service import Replication
from cometmq.metrics import catalogue as m
from cometmq.metrics.exposition import Exposition


def collect_replication(copies: Replication, out: Exposition) -> None:
    """Write the figures of a master, or of a slave. For the loop's thread only."""
    master, slave = copies.master, copies.slave
    if master is not None:
        end = master.store.commit_log.end
        in_step, slaves = len(master.slaves_in_step()), master.slaves
        out.begin(m.REPLICATION_SLAVES)
        out.sample(in_step, "in_step")
        out.sample(len(slaves) - in_step, "behind")
        # A port is another one after each connection, and would be a new series.
        lags: dict[str, int] = {}
        for each in slaves:
            host = each.peer.rpartition(":")[0]
            lags[host] = max(lags.get(host, 0), end - each.acknowledged)
        out.begin(m.REPLICATION_LAG)
        for host, lag in lags.items():
            out.sample(max(lag, 0), host)
        out.one(m.REPLICATION_SENT, master.sent_bytes)
    if slave is not None:
        out.one(m.REPLICATION_RECEIVED, slave.speed.total)
        out.one(m.REPLICATION_CONNECTED, int(slave.is_connected))
        out.one(m.REPLICATION_DIVERGED, int(slave.divergence is not None))
