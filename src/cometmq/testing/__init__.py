"""Runs a whole cluster inside a test: servers on loopback, stores in a temporary directory.

with Cluster() as cluster:
    with Producer("group", namesrv=cluster.namesrv) as producer: ...

async with Cluster(brokers=2) as cluster: ...
"""

from cometmq.testing.cluster import Cluster

__all__ = ["Cluster"]
