"""The pages of `/why`: each question, its answer with evidence, and what it cannot answer."""

from __future__ import annotations

import pytest
from tests.console.running import Visitor
from tests.waits import eventually

from cometmq import AdminClient, Message, Producer, SimpleConsumer
from cometmq.testing import Cluster


def test_every_question_has_a_form(reader: Visitor) -> None:
    page = reader.get("/why")
    assert page.status == 200
    for name in ("group", "message", "write", "disk", "restart"):
        assert f'action="/why/{name}"' in page.html
        assert reader.get(f"/why/{name}").status == 200


def test_a_group_without_members_is_explained_with_evidence(
    cluster: Cluster, admin: AdminClient, reader: Visitor
) -> None:
    admin.topics.create("why-orders")
    admin.groups.create("why-billing")
    with Producer("why-shop", namesrv=cluster.namesrv) as producer:
        queue = producer.send(Message("why-orders", b"one")).queue
    admin.offsets.commit("why-billing", queue, 0)
    page = reader.get("/why/group", name="why-billing", topic="why-orders")
    assert page.status == 200
    assert "no-member" in page.text
    assert "Evidence" in page.text
    assert "GET_CONSUME_STATS" in page.text
    assert 'href="/group?name=why-billing"' in page.html


def test_a_message_is_followed(cluster: Cluster, admin: AdminClient, reader: Visitor) -> None:
    admin.topics.create("why-message")
    with Producer("why-shop", namesrv=cluster.namesrv) as producer:
        sent = producer.send(Message("why-message", b"one"))
    page = reader.get("/why/message", id=sent.msg_id, topic="why-message")
    assert "no-group" in page.text


def test_a_message_that_a_simple_consumer_holds_says_until_when_by_whom_and_which_delivery(
    cluster: Cluster, admin: AdminClient, reader: Visitor
) -> None:
    topic, group = "why-held", "why-holders"
    admin.topics.create(topic)
    with Producer("why-shop", namesrv=cluster.namesrv) as producer:
        sent = producer.send(Message(topic, b"one"))
    consumer = SimpleConsumer(group, namesrv=cluster.namesrv, invisible_ms=600_000)
    consumer.subscribe(topic)

    def shown() -> str:
        return reader.get("/why/message", id=sent.msg_id, topic=topic, group=group).text

    with consumer:
        (message,) = consumer.receive()
        # The broker knows the client's id from its heartbeat.
        held = f"held by client {consumer.client_id}, delivery"
        text = eventually(shown, lambda text: f"{held} 1" in text)
        assert f"group {group} has popped the message: invisible until" in text
        message.nack(0)
        (message,) = consumer.receive(wait_ms=10_000)
        text = eventually(shown, lambda text: f"{held} 2" in text)
        assert "invisible until" in text
        message.ack()
        text = eventually(shown, lambda text: "invisible until" not in text)
        assert f"group {group} has acknowledged" in text


def test_a_write_is_judged_by_its_size(admin: AdminClient, reader: Visitor) -> None:
    admin.topics.create("why-write")
    assert "accepted" in reader.get("/why/write", topic="why-write").text
    assert "message-too-large" in reader.get("/why/write", topic="why-write", size=10**8).text


@pytest.mark.parametrize("question", ["disk", "restart"])
def test_questions_that_need_nothing_are_answered_at_once(reader: Visitor, question: str) -> None:
    page = reader.get(f"/why/{question}")
    assert "Asked" in page.text
    assert "Ask again" in page.text


@pytest.mark.parametrize(
    ("question", "query"),
    [
        ("group", {"name": "nobody-knows"}),
        ("group", {"name": "no good name!"}),
        ("message", {"id": "not an id"}),
        ("message", {"id": "7F000001381ABEF592B6711C6F5B37EA"}),
        ("write", {"topic": "why-write", "size": "many"}),
        ("write", {"topic": "why-write", "size": "0"}),
        ("disk", {"broker": "nobody-knows"}),
    ],
)
def test_what_has_no_answer_says_why(reader: Visitor, question: str, query: dict[str, str]) -> None:
    page = reader.get(f"/why/{question}", **query)
    assert page.status == 200
    assert 'role="alert"' in page.html
