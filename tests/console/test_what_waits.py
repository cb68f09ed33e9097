"""Delayed messages and transactions: what waits, when it is due, and ending it by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tests.console.actors import FIRST, QUICK_CHECKS, Actors, Bank
from tests.console.running import Visitor, running_console
from tests.waits import eventually

from cometmq import AdminClient, ConsumeResult, LocalTransactionState, Message, MessageExt
from cometmq.testing import Cluster


class Place(NamedTuple):
    admin: AdminClient
    actors: Actors
    operator: Visitor
    reader: Visitor


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with (
        Cluster(brokers=2, properties=QUICK_CHECKS) as cluster,
        running_console(cluster.namesrv, tmp_path_factory.mktemp("waits")) as served,
        AdminClient(cluster.namesrv) as admin,
        Actors(cluster.namesrv) as actors,
    ):
        yield Place(admin, actors, Visitor(served), Visitor(served, "reader"))


def test_timed_messages_are_shown_in_the_order_of_their_times(place: Place) -> None:
    place.admin.topics.create("timed-topic")
    producer = place.actors.producer("timed-sender")
    for hours, key in ((5, "timed-last"), (1, "timed-first"), (3, "timed-middle")):
        producer.send(Message("timed-topic", b"x", keys=[key], delay_ms=hours * 3_600_000))
    recalled = producer.send(Message("timed-topic", b"x", keys=["timed-gone"], delay_ms=7_200_000))
    assert recalled.recall_handle is not None
    producer.recall("timed-topic", recalled.recall_handle)
    page = place.reader.get("/delayed", q="timed-")
    assert re.findall(r"timed-(first|middle|last|gone)", page.html) == ["first", "middle", "last"]
    assert "in 59 min" in page.text
    assert "within an hour" in page.text
    assert place.reader.get("/delayed", q="timed-middle").text.count("timed-topic") == 1
    waiting = [
        each
        for name in ("broker-a", "broker-b")
        for each in place.admin.messages.timed(name).messages
        if each.topic == "timed-topic"
    ]
    assert len(waiting) == 3


def test_levels_tell_what_waits_and_when_it_is_due(place: Place) -> None:
    place.admin.topics.create("levels-topic")
    producer = place.actors.producer("levels-sender")
    queue = producer.queues("levels-topic")[0]
    for number in range(3):
        message = Message("levels-topic", b"x", keys=[f"levels-{number}"], delay_level=18)
        producer.send(message, queue=queue)
    levels = place.admin.messages.delay_levels(broker=queue.broker_name)
    level = next(each for each in levels if each.level == 18)
    assert (level.pending, level.delay_ms) == (3, 7_200_000)
    wanted = f"18 2 h {queue.broker_name} 3 in 1 h 59 min in 1 h 59 min"
    # An earlier page's answer may be shown for two seconds.
    assert eventually(lambda: wanted in place.reader.get("/delayed").text)
    inside = place.reader.get("/delayed", broker=queue.broker_name, level=18)
    assert re.findall(r"<td>levels-(\d)</td>", inside.html) == ["0", "1", "2"]
    assert "levels-topic" in inside.text
    empty = place.reader.get("/delayed", broker=queue.broker_name, level=3)
    assert "Nothing waits in this level" in empty.text
    assert place.reader.get("/delayed", broker="127.0.0.1:1", level=3).status == 404
    assert place.reader.get("/delayed", broker="no-such-broker").status == 404


def test_a_transaction_that_waits_is_committed_by_an_operator(place: Place) -> None:
    place.admin.topics.create("open-topic")
    sent = place.actors.leave_waiting("open-group", "open-topic", b"paid")
    member = place.actors.member("open-readers", "open-topic")
    page = place.operator.get("/transactions", q=sent.msg_id)
    assert f"{sent.msg_id} waiting open-topic open-group 0" in page.text
    half = re.search(r'name="id" value="(\w+)"', page.html)
    assert half is not None
    fields = {"id": half[1], "verdict": "commit"}
    asked = place.operator.post("/transactions/end", **fields)
    assert "All groups of topic open-topic get the message, at once" in asked.text
    assert place.reader.post("/transactions/end", **fields).status == 403
    done = place.operator.act("/transactions/end", **fields, confirm=sent.msg_id)
    assert f"commit transaction {sent.msg_id}: committed" in done.text
    assert [message.body for message in member.wait_for(1)] == [b"paid"]
    assert ended(place, sent.msg_id)


def test_a_transaction_that_waits_is_discarded(place: Place) -> None:
    place.admin.topics.create("discard-topic")
    sent = place.actors.leave_waiting("discard-group", "discard-topic", b"never")
    other = place.actors.leave_waiting("discard-group-2", "discard-topic", b"stays")
    halves = place.admin.messages.halves(sent.queue.broker_name)
    [half] = [each for each in halves.messages if each.message.msg_id == sent.msg_id]
    assert (half.topic, half.producer_group, half.checks) == ("discard-topic", "discard-group", 0)
    fields = {"id": half.message.offset_msg_id, "verdict": "discard"}
    done = place.operator.act("/transactions/end", **fields, confirm=sent.msg_id)
    assert "discarded" in done.text
    assert ended(place, sent.msg_id)
    assert other.msg_id in place.operator.get("/transactions").text
    stats = place.admin.topics.stats("discard-topic")
    assert sum(queue.max_offset for queue in stats.queues) == 0


def test_a_transaction_that_was_given_up_is_resumed(place: Place) -> None:
    place.admin.topics.create("given-up-topic")
    bank = Bank()
    sent = place.actors.forget("given-up-group", "given-up-topic", b"late", bank)
    page = place.operator.get("/transactions", kind="given-up")
    assert sent.msg_id in page.text
    assert "given-up-group" in page.text
    row = re.search(rf'id="half-(\w+)">(?:(?!</tr>).)*{sent.msg_id}', page.html, re.DOTALL)
    assert row is not None
    wrong = place.operator.post("/transactions/end", id=row[1], verdict="commit")
    assert (wrong.status, "can only be resumed" in wrong.text) == (409, True)
    bank.verdict = LocalTransactionState.COMMIT
    received: list[bytes] = []

    def keep(messages: list[MessageExt]) -> ConsumeResult:
        received.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    place.actors.consumer("given-up-readers", "given-up-topic", keep, consume_from=FIRST)
    asked = place.operator.post("/transactions/resume", id=row[1])
    assert "begins a new transaction" in asked.text
    done = place.operator.act("/transactions/resume", id=row[1], confirm=sent.msg_id)
    assert "its producers are asked again" in done.text
    assert eventually(lambda: received) == [b"late"]


def test_ids_of_strangers_are_refused(place: Place) -> None:
    for given in ("C0A8010100002A9F" + "0" * 16, "nonsense", "a b"):
        for path in ("/transactions/resume", "/transactions/end"):
            answer = place.operator.post(path, id=given, verdict="discard")
            assert answer.status in (400, 409), answer.text


def ended(place: Place, msg_id: str) -> bool:
    """Return whether the page shows the half message no more; brokers take a moment to note it."""
    return eventually(lambda: msg_id not in place.operator.get("/transactions").text)
