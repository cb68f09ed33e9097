"""Lose a master in virtual time, and make its slave the master by hand."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from tests.waits import until

from cometmq.testing import Cluster

MASTER: Final = "broker-a"
SLAVE: Final = "broker-a-slave-1"

Story = Callable[[Cluster], Coroutine[Any, Any, Any]]


def play(story: Story, *, role: str = "SYNC_MASTER", seed: int = 7, **properties: str) -> Any:
    """Run a story on a cluster of a master and a slave, in virtual time."""
    given = {"defaultTopicQueueNums": "4", "metricsExporterType": "DISABLE", **properties}
    with Cluster(
        clock="virtual", slaves=1, seed=seed, master_role=role, properties=given
    ) as cluster:
        return cluster.run(story(cluster))


async def in_step(cluster: Cluster) -> None:
    """Wait until the slave has everything that its master has."""
    copies = cluster.broker(MASTER).copies.master
    assert copies is not None
    await until(copies.slaves_in_step, pause_s=0.1)


async def switch(cluster: Cluster, how: str) -> None:
    """Kill the master, stop the slave by `how` ("kill" or "power_off"), if at all, and promote it."""
    cluster.kill(MASTER)
    if how == "kill":
        cluster.kill(SLAVE)
    elif how == "power_off":
        # Everything that no disk has by then is lost, in any role.
        store = cluster.broker(SLAVE).store
        await until(lambda: store.flushed_offset >= store.commit_log.end, pause_s=0.01)
        cluster.power_off(SLAVE)
    await cluster.promote(SLAVE)
