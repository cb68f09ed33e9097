"""The pages of `/why`: each question, its answer with evidence, and what it cannot answer."""

from __future__ import annotations

import pytest
from tests.console.running import Visitor

from cometmq import AdminClient, Message, Producer
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
