"""A whole cluster that talks TLS: clients, name server, brokers, replication."""

from __future__ import annotations

import pytest

from cometmq import Message, Producer
from cometmq.errors import CometMQError
from cometmq.testing import Cluster


def test_x():
    with Cluster(
        tls=True, slaves=1, master_role="SYNC_MASTER", properties={"inSyncReplicas": "2"}
    ) as cluster:
        with Producer("p", namesrv=cluster.namesrv, tls=cluster.tls) as producer:
            for i in range(3):
                print(producer.send(Message("orders", b"x" * 100_000)))
        print(cluster.slaves[0].slave.is_connected)
        print(cluster.brokers[0]._tls.handshakes.outcomes)
        with pytest.raises(CometMQError) as e:
            with Producer("p", namesrv=cluster.namesrv, max_send_attempts=1) as producer:
                producer.send(Message("orders", b"x"))
        print(e.value)
