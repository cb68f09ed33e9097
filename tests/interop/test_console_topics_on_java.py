"""The console's pages of topics and producers on Java's servers of the newest and of 4.9."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.console.running import Answer, Visitor, running_console
from tests.interop.java4 import Java4Broker, Java4Namesrv
from tests.interop.on_java import MARKS
from tests.interop.peers import JavaBroker, JavaNamesrv
from tests.waits import WAIT_S, eventually

from cometmq import AdminClient, Message, Producer
from cometmq.model.queue import MessageQueue

pytestmark = MARKS
# As brokers ship: without its timers Java 5 answers each deletion of a topic with an error.
TIMERS = {"timerWheelEnable": "true"}


@pytest.mark.parametrize(
    ("namesrv_class", "broker_class"),
    [(JavaNamesrv, JavaBroker), (Java4Namesrv, Java4Broker)],
    ids=["5", "4.9"],
)
def test_a_topic_of_a_java_broker_is_made_used_changed_and_deleted(
    tmp_path: Path, namesrv_class: type[JavaNamesrv], broker_class: type[JavaBroker]
) -> None:
    with (
        namesrv_class() as namesrv,
        broker_class(namesrv.address, conf=TIMERS),
        running_console(namesrv.address, tmp_path) as served,
        AdminClient(namesrv.address, timeout_ms=60_000) as admin,
    ):
        visitor = Visitor(served)

        def shown(path: str, text: str, **query: str) -> Answer:
            """Visit a page until it shows a text."""
            return eventually(
                lambda: visitor.get(path, **query), lambda page: text in page.text, wait_s=WAIT_S
            )

        (cluster,) = admin.brokers.clusters()
        made = visitor.act(
            "/topics/new", name="on-java", where=f"cluster:{cluster}", read_queues=4, write_queues=4
        )
        assert "create topic on-java: created" in made.text
        shown("/topic", "Messages stored 0", name="on-java")
        for number in range(3):
            sent = visitor.act(
                "/topic/send", name="on-java", body=f"{number}", tag="t", keys="k", count=2
            )
            assert "sent 2 messages" in sent.text
        shown("/topic", "Messages stored 6", name="on-java")
        # A Java broker writes down what it counts every ten seconds.
        eventually(
            lambda: visitor.get("/topic", name="on-java").text,
            lambda text: "In per second 0 " not in text,
            wait_s=WAIT_S,
        )
        shown("/topics", "on-java 6 ")
        system = visitor.get("/topics", kind="system", rows=100).text
        assert f" {cluster} " in system
        assert "SCHEDULE_TOPIC_XXXX" in visitor.get("/topics", kind="delayed").text
        brokers = visitor.get("/topic", name="on-java", tab="brokers").text
        assert " 4 4 read and write no " in brokers
        assert "Not known" not in brokers

        admin.groups.create("java-reads")
        for queue_id in range(4):
            (name,) = {at.broker_name for at in admin.brokers.addresses()}
            admin.offsets.commit("java-reads", MessageQueue("on-java", name, queue_id), 0)
        shown("/topic", "java-reads 6 0 0 0 Reset", name="on-java", tab="groups")

        with Producer("java-makes", namesrv=namesrv.address, send_timeout_ms=60_000) as producer:
            producer.send(Message("on-java", b"x"))
            shown("/producers", "java-makes 1", group="java-makes", topic="on-java")
            everybody = shown("/producers", "java-makes")
            assert "Not known" not in everybody.text
            shown("/topic", "java-makes", name="on-java", tab="producers")

        asked = visitor.post("/topic/change", name="on-java", read_queues=2, permission=4)
        assert "no longer read the queues from number 2 on" in asked.text
        fields = {"name": "on-java", "read_queues": 2, "permission": 4, "confirm": "on-java"}
        assert "change topic on-java: changed" in visitor.act("/topic/change", **fields).text
        (config,) = admin.topics.config("on-java").values()
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (2, 4, 4)
        gone = visitor.act("/topics/delete", name="on-java", confirm="on-java")
        assert "delete topic on-java: deleted" in gone.text, gone.text
        shown("/topic", "know no topic of this name", name="on-java")
