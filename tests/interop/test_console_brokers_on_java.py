"""The console's pages of brokers on Java's of the newest and of 4.9: pages name the figures that one does
not give.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.console.running import Visitor, running_console
from tests.interop.java4 import Java4Broker, Java4Namesrv
from tests.interop.on_java import MARKS
from tests.interop.peers import JavaBroker, JavaNamesrv
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import AdminClient, Message, Producer

pytestmark = MARKS


@pytest.mark.parametrize(
    ("namesrv_class", "broker_class", "copies"),
    [
        (JavaNamesrv, JavaBroker, "No slave is connected"),
        (Java4Namesrv, Java4Broker, "Not known: how far its copies are"),
    ],
)
def test_pages_show_what_a_java_broker_tells(
    tmp_path: Path,
    namesrv_class: type[JavaNamesrv],
    broker_class: type[JavaBroker],
    copies: str,
) -> None:
    with (
        namesrv_class() as namesrv,
        broker_class(namesrv.address) as broker,
        running_console(namesrv.address, tmp_path) as served,
        AdminClient(namesrv.address, timeout_ms=SEND_WAIT_MS) as admin,
    ):
        admin.topics.create("java-lag", read_queues=1, write_queues=1)
        admin.groups.create("java-lag-group")
        with Producer(
            "java-lag", namesrv=namesrv.address, send_timeout_ms=SEND_WAIT_MS
        ) as producer:
            for _ in range(3):
                queue = producer.send(Message("java-lag", b"x")).queue
        admin.offsets.commit("java-lag-group", queue, 1)
        visitor = Visitor(served)
        eventually(
            lambda: visitor.get("/").text,
            lambda text: "java-lag-group 2" in text and "1 of 1" in text,
            wait_s=JVM_WAIT_S,
            pause_s=0.2,
        )

        def part(name: str) -> str:
            return visitor.get("/broker", address=broker.address, part=name).text

        assert "Producers choose it." in part("state")
        assert "maxHashSlotNum 10000 5000000" in part("settings")
        # Java's broker may refuse to describe itself in its first seconds (NoSuchElementException).
        eventually(
            lambda: part("files"),
            lambda text: "does not report when its files expire" in text,
            wait_s=JVM_WAIT_S,
            pause_s=0.2,
        )
        assert copies in part("replication")
        assert "brokerVersionDesc" in part("values")
