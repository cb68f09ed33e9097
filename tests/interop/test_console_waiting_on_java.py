"""The console's pages of what waits, on Java servers of 4.9 and the newest."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from tests.console.actors import Actors
from tests.console.running import Visitor, running_console
from tests.interop.on_java import MARKS, name
from tests.interop.test_console_on_java import actors, admin, namesrv, operator, served
from tests.waits import JVM_WAIT_S, eventually

from cometmq import AdminClient, Message, MessageExt

__all__ = ["actors", "admin", "name", "namesrv", "operator", "served"]
pytestmark = MARKS


def test_chosen_letters_are_sent_again_one_by_one(
    actors: Actors, admin: AdminClient, operator: Visitor, name: str
) -> None:
    actors.bury(name, name, [b"stays", b"goes"])
    if not admin.messages.page(f"%DLQ%{name}").messages:
        admin.topics.update(f"%DLQ%{name}", permission=6)  # 4.9 makes it for writing only
    page = eventually(
        lambda: operator.get("/letters", group=name), lambda page: "letter-1" in page.text
    )
    ids = {letter.body: letter.offset_msg_id for letter in admin.messages.dead_letters(name)}
    assert ids[b"goes"] in page.html
    fields = {"group": name, "which": "chosen", "id": ids[b"goes"]}
    assert f"1 to topic {name}" in operator.post("/letters/redrive", **fields).text
    done = operator.act("/letters/redrive", **fields, confirm=name)
    assert "1 sent again, 0 not" in done.text
    assert f"sent to {name}, " in done.text
    stored = [message.body for message in admin.messages.stored(name)]
    assert sorted(stored) == [b"goes", b"goes", b"stays"]
    alone = operator.act("/letters/redrive", **fields, confirm=name, only_group="1")
    assert "0 sent again, 1 not" in alone.text
    assert "not supported" in alone.text


def test_delayed_messages_are_shown(
    actors: Actors, admin: AdminClient, operator: Visitor, name: str
) -> None:
    admin.topics.create(name)
    producer = actors.producer(name)
    producer.send(Message(name, b"x", delay_level=2))
    producer.send(Message(name, b"x", keys=[f"{name}-timed"], delay_ms=3_600_000))
    levels = eventually(admin.messages.delay_levels)
    # All levels of these brokers take a second.
    assert {(level.delay_ms, level.level <= 6) for level in levels} == {(1000, True)}
    page = operator.get("/delayed")
    assert "Not known: what waits in the levels" not in page.text
    if "4-9" in name:
        assert "Not known: what the timer" in page.text
    else:
        eventually(lambda: f"{name}-timed" in operator.get("/delayed", q=name).text)


def half_of(admin: AdminClient, broker: str, msg_id: str) -> MessageExt | None:
    found = [half.message for half in admin.messages.halves(broker).messages]
    return next((half for half in found if half.msg_id == msg_id), None)


def test_transactions_are_ended_by_hand(
    actors: Actors, admin: AdminClient, operator: Visitor, name: str
) -> None:
    admin.topics.create(name)
    [broker] = {at.broker_name for at in admin.brokers.addresses()}
    for verdict, body in (("commit", b"kept"), ("discard", b"dropped")):
        sent = actors.leave_waiting(f"{name}-{verdict}", name, body)
        # A broker of 4.9 gives even this one up two seconds later: there is no time for the page.
        half = eventually(partial(half_of, admin, broker, sent.msg_id))
        if "4-9" in name:
            admin.messages.end_half(half, commit=verdict == "commit")
        else:
            fields = {"id": half.offset_msg_id, "verdict": verdict}
            done = operator.act("/transactions/end", **fields, confirm=sent.msg_id)
            assert {"commit": "committed", "discard": "discarded"}[verdict] in done.text
    # These brokers check so often that they overlook some verdicts, give the messages up and list them.
    assert [message.body for message in admin.messages.stored(name)] == [b"kept"]
    assert operator.get("/transactions", kind="given-up").status == 200


def test_a_trace_is_drawn(actors: Actors, admin: AdminClient, operator: Visitor, name: str) -> None:
    sent = actors.trace(name, name, b"x")
    eventually(lambda: len(admin.messages.trace(sent.msg_id)) == 3)
    steps = re.findall(r"badge step-(\w+)", operator.get("/trace", id=sent.msg_id).html)
    assert steps == ["sent", "stored", "consumed"]


def test_the_first_page_counts_what_no_broker_tells_by_itself(
    actors: Actors, namesrv: str, name: str, tmp_path: Path
) -> None:
    actors.bury(f"{name}-dead", name, [b"1", b"2"])
    for number, tags in ((1, "a"), (2, "a || b")):
        actors.member(f"{name}-differ", name, tags, instance_name=f"{name}-{number}")
    with running_console(namesrv, tmp_path) as served:
        visitor = Visitor(served)
        text = eventually(
            lambda: visitor.get("/").text,
            lambda text: (
                f"{name}-dead New dead letters within 24 hours: 2, the last one 20" in text
                and f"{name}-differ Its members select topic {name} differently" in text
            ),
            wait_s=JVM_WAIT_S,
        )
        assert re.search(r"Transactions given up in 24 hours \d", text)
        assert f"{name}-differ" in visitor.get("/groups", kind="conflict").text
