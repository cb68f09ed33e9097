"""Brokers of one side at name servers of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.interop.clients import CometClient, JavaClient
from tests.interop.comet_servers import CometBroker, CometNamesrv
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker, JavaNamesrv, broker_registered
from tests.waits import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.interop.clients import ClientProgram

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COUNT = 16


def check_traffic(namesrv: str) -> None:
    """Each client's messages reach the other client, on a topic that the broker creates."""
    clients: list[ClientProgram] = [JavaClient(5), JavaClient(4), CometClient()]
    for producer, consumer in zip(clients, clients[1:] + clients[:1], strict=True):
        base = {"namesrv": namesrv, "topic": f"from-{producer.label}"}
        producer.produce(**base, count=COUNT)
        events = consumer.run("consume", **base, group=f"of-{consumer.label}", expected=COUNT)
        received = [event for event in events if event["event"] == "message"]
        assert {int(event["properties"]["index"]) for event in received} == set(range(COUNT))


def test_our_broker_at_a_java_name_server() -> None:
    need("java", "mvn")
    with JavaNamesrv() as namesrv, CometBroker(namesrv.address) as broker:
        check_traffic(namesrv.address)
        broker.stop()
        # A Java name server strikes brokers out behind the answers.
        eventually(lambda: not broker_registered(namesrv.address, broker.broker_name))


def test_a_java_broker_at_our_name_server() -> None:
    need("java", "mvn")
    with CometNamesrv() as namesrv, JavaBroker(namesrv.address) as broker:
        check_traffic(namesrv.address)
        broker.stop()
        eventually(lambda: not broker_registered(namesrv.address, broker.broker_name))


def test_both_brokers_serve_one_topic_at_both_name_servers(tmp_path: Path) -> None:
    need("java", "mvn")
    with JavaNamesrv() as java, CometNamesrv() as comet:
        both = f"{java.address};{comet.address}"
        with (
            JavaBroker(both, broker_name="java-side") as java_broker,
            CometBroker(both, broker_name="comet-side") as comet_broker,
        ):
            client = JavaClient(5)
            base = {"namesrv": java.address, "topic": "TBW102"}
            assert {event["brokerName"] for event in client.run("offsets", **base)[:-1]} == {
                java_broker.broker_name,
                comet_broker.broker_name,
            }
            for namesrv in (java.address, comet.address):
                assert broker_registered(namesrv, java_broker.broker_name)
                assert broker_registered(namesrv, comet_broker.broker_name)
