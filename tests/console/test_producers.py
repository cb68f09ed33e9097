"""The page of producers."""

from __future__ import annotations

from tests.console.running import Visitor
from tests.waits import eventually

from cometmq import AdminClient, Message, Producer
from cometmq.testing import Cluster


def test_producers_are_found_by_client_group_and_topic(
    cluster: Cluster, admin: AdminClient, reader: Visitor
) -> None:
    for topic in ("made-of-one", "made-of-two"):
        admin.topics.create(topic)
    with (
        Producer("makes-one", namesrv=cluster.namesrv) as one,
        Producer("makes-two", namesrv=cluster.namesrv) as two,
    ):
        one.send(Message("made-of-one", b"x"))
        two.send(Message("made-of-two", b"x"))

        def shown(**query: str) -> set[str]:
            text = reader.get("/producers", **query).text
            # The group is also in the fields of the search.
            return {group for group in ("makes-one", "makes-two") if f"{group} 127" in text}

        both = {"makes-one", "makes-two"}
        eventually(shown, both.__eq__)
        assert shown(q="MAKES-ONE") == {"makes-one"}
        assert shown(group="makes-two") == {"makes-two"}
        assert shown(topic="made-of-one") == both, "brokers know producers by group"
        assert shown(group="makes-one", topic="made-of-one") == {"makes-one"}
        assert shown(group="makes") == set()


def test_producers_of_programs_come_before_those_of_clients(
    cluster: Cluster, admin: AdminClient, reader: Visitor
) -> None:
    admin.topics.create("made-with-trace")
    with Producer("z-makes-traced", namesrv=cluster.namesrv, enable_trace=True) as producer:
        producer.send(Message("made-with-trace", b"x"))
        text = eventually(
            lambda: reader.get("/producers").text,
            lambda text: "_INNER_TRACE_PRODUCER-z-makes" in text and "z-makes-traced 127" in text,
        )
    assert text.index("z-makes-traced 127") < text.index("_INNER_TRACE_PRODUCER")


def test_what_cannot_be_told_of_producers_is_said(reader: Visitor) -> None:
    page = reader.get("/producers", topic="no-such-topic")
    assert "knows no route of topic no-such-topic" in page.text
    offline = reader.get("/producers", group="nobody", topic="TBW102")
    assert "producer group nobody is not online" in offline.text
    assert reader.get("/producers", group="<script>", topic="TBW102").status == 200
    assert "No producer is connected" in reader.get("/producers", q="no such client").text
