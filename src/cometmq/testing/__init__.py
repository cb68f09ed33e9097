"""Run a whole cluster inside a test, over real sockets or in virtual time.

with Cluster() as cluster:
    with Producer("group", namesrv=cluster.namesrv) as producer: ...

async with Cluster(brokers=2) as cluster: ...

with Cluster(clock="virtual", seed=7) as cluster:
    cluster.run(main(cluster))
"""

from cometmq.extras import needs

with needs("server", "cometmq.testing"):
    import h11 as _h11  # noqa: F401 - servers import it when they start; without it none does

    from cometmq.testing.accounts import Account
    from cometmq.testing.cluster import Cluster
    from cometmq.testing.faults import (
        FAULTS,
        Fault,
        FaultError,
        Nodes,
        draw_faults,
        faults_from_json,
        faults_to_json,
    )
    from cometmq.testing.virtual import (
        BlockingCallError,
        DeadlockError,
        LeftBehindError,
        Node,
        NodeKilledError,
        World,
        run,
    )

__all__ = [
    "FAULTS",
    "Account",
    "BlockingCallError",
    "Cluster",
    "DeadlockError",
    "Fault",
    "FaultError",
    "LeftBehindError",
    "Node",
    "NodeKilledError",
    "Nodes",
    "World",
    "draw_faults",
    "faults_from_json",
    "faults_to_json",
    "run",
]
