"""A whole cluster inside a test: name servers and brokers on loopback, stores in a temporary place.

with Cluster() as cluster:
    with Producer("group", namesrv=cluster.namesrv) as producer: ...

async with Cluster(brokers=2) as cluster: ...
"""

from cometmq.testing.cluster import Cluster

__all__ = ["Cluster"]
