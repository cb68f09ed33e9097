"""A whole cluster that talks TLS: clients, name server, brokers, replication."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.waits import eventually

from cometmq import Message, Producer
from cometmq.errors import CometMQError
from cometmq.testing import Cluster

TOPIC = "orders"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    properties = {"inSyncReplicas": "2", "metricsExporterType": "PROM"}
    with Cluster(tls=True, slaves=1, master_role="SYNC_MASTER", properties=properties) as running:
        master = running.brokers[0].copies.master
        assert master is not None
        eventually(lambda: master.slaves)
        yield running


def test_a_message_gets_to_the_slave_before_it_is_acknowledged(cluster: Cluster) -> None:
    with Producer("shop", namesrv=cluster.namesrv, tls=cluster.tls) as producer:
        assert producer.send(Message(TOPIC, b"x" * 300_000)).status.value == "SEND_OK"
    slave, master = cluster.slaves[0], cluster.brokers[0]
    assert slave.store.commit_log.end == master.store.commit_log.end > 0
    eventually(lambda: slave.slave is not None and slave.slave.is_connected)


def test_a_client_without_tls_is_refused(cluster: Cluster) -> None:
    with (
        pytest.raises(CometMQError, match="TLS"),
        Producer("plain", namesrv=cluster.namesrv) as producer,
    ):
        producer.send(Message(TOPIC, b"x"))


def test_metrics_tell_when_the_certificate_ends(cluster: Cluster) -> None:
    broker = cluster.brokers[0]

    async def scrape() -> str:
        return (await broker.monitoring.scrape()).decode()

    text = cluster.run(scrape())
    (left,) = [line for line in text.splitlines() if "_expires_in_seconds{" in line]
    assert 300 * 86_400 < float(left.split()[-1]) < 400 * 86_400
    assert 'outcome="completed"' in text


def test_virtual_time_has_no_tls() -> None:
    with pytest.raises(ValueError, match="virtual time"):
        Cluster(clock="virtual", tls=True)
