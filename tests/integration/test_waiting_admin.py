"""Test what lists waiting messages and ends them by hand: delays, half messages, dead letters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.console.actors import Actors
from tests.integration.routes import wait_until_routed
from tests.waits import eventually

from cometmq import AdminClient, Message
from cometmq.admin.messages import waiting
from cometmq.errors import IllegalArgumentError, RemoteError
from cometmq.model.queue import MessageQueue


@pytest.fixture
def admin(namesrv: str) -> Iterator[AdminClient]:
    with AdminClient(namesrv) as made:
        yield made


@pytest.fixture
def actors(namesrv: str) -> Iterator[Actors]:
    with Actors(namesrv) as made:
        yield made


def test_messages_of_a_level_are_listed_from_the_next_one_on(
    admin: AdminClient, actors: Actors, name: str
) -> None:
    admin.topics.create(name)
    producer = actors.producer(name)
    queue = producer.queues(name)[0]
    for number in range(3):
        producer.send(Message(name, b"%d" % number, delay_level=18), queue=queue)
    levels = admin.messages.delay_levels(broker=queue.broker_name)
    level = next(each for each in levels if each.level == 18)
    assert level.pending >= 3
    assert level.next_due_ms is not None
    waiting = admin.messages.in_delay_level(level, begin_offset=level.end_offset - 3)
    assert [each.message.body for each in waiting] == [b"0", b"1", b"2"]
    assert {each.topic for each in waiting} == {name}
    for each in waiting:
        assert each.due_ms == each.message.store_timestamp_ms + 7_200_000
    assert len(admin.messages.in_delay_level(level, count=2)) == 2


def test_a_timed_message_waits_until_it_is_recalled(
    admin: AdminClient, actors: Actors, name: str
) -> None:
    admin.topics.create(name)
    producer = actors.producer(name)
    sent = producer.send(Message(name, b"x", delay_ms=3_600_000))
    broker = sent.queue.broker_name

    def waiting() -> list[str]:
        found = admin.messages.timed(broker).messages
        return [each.message.msg_id for each in found if each.topic == name]

    assert waiting() == [sent.msg_id]
    place = MessageQueue("rmq_sys_wheel_timer", broker, 0)
    at = admin.offsets.of_queue(place)
    assert at.committed_offset is None
    before = admin.messages.timed(broker, before=at.max_offset - 1)
    assert sent.msg_id not in [each.message.msg_id for each in before.messages]
    assert sent.recall_handle is not None
    producer.recall(name, sent.recall_handle)
    assert waiting() == []


def test_a_half_message_is_ended_once(
    admin: AdminClient, actors: Actors, name: str, namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.topics.create(name)
    sent = actors.leave_waiting(name, name, b"x")
    broker = sent.queue.broker_name

    def halves() -> list[object]:
        found = admin.messages.halves(broker).messages
        return [half.message for half in found if half.message.msg_id == sent.msg_id]

    [half] = admin.messages.halves(broker).messages
    assert (half.topic, half.producer_group, half.checks) == (name, name, 0)
    wait_until_routed(namesrv, name, broker)
    admin.messages.end_half(half.message, commit=True)
    eventually(lambda: not halves())
    assert admin.messages.halves(broker).is_sure

    async def begin(*_: object) -> int:
        return 0

    # More transactions have ended than are read of.
    monkeypatch.setattr(waiting.WaitingMessages, "_begin_of_ops", begin)
    monkeypatch.setattr(waiting, "MAX_ENDED", 0)
    assert not admin.messages.halves(broker).is_sure
    monkeypatch.undo()
    with pytest.raises(IllegalArgumentError, match="has ended"):
        admin.messages.end_half(half.message, commit=False)
    [stored] = admin.messages.stored(name)
    assert stored.body == b"x"
    with pytest.raises(IllegalArgumentError, match="no half message"):
        admin.messages.end_half(stored, commit=True)


def test_chosen_letters_are_sent_again_with_an_outcome_for_each(
    admin: AdminClient, actors: Actors, name: str
) -> None:
    actors.bury(name, name, [b"a", b"b", b"c"])
    letters = sorted(admin.messages.dead_letters(name), key=lambda letter: letter.body)
    for _ in range(2):
        outcomes = admin.messages.redrive_letters(f"{name}-1", name, letters[:2])
        assert [(each.letter.body, each.topic, each.fault) for each in outcomes] == [
            (b"a", name, ""),
            (b"b", name, ""),
        ]
        for each in outcomes:
            queue = MessageQueue(name, each.broker_name or "", each.queue_id or 0)
            copy = admin.messages.by_offset(queue, each.queue_offset or 0)
            assert copy is not None
            assert copy.body == each.letter.body
    assert len(list(admin.messages.stored(name))) == 5, "no letter was sent twice"
    sent = admin.messages.resend_letter(letters[2])
    assert sent.queue.topic == name
    assert len(list(admin.messages.stored(name))) == 6
    with pytest.raises(IllegalArgumentError, match="give 1 to 1000"):
        admin.messages.redrive_letters("r", name, [])
    [stored, *_] = admin.messages.stored(name)
    with pytest.raises(IllegalArgumentError, match="does not name the topic"):
        admin.messages.resend_letter(stored)


def test_letters_of_another_redrive_keep_their_fault(
    admin: AdminClient, actors: Actors, name: str
) -> None:
    actors.bury(name, name, [b"a", b"b"])
    first, second = admin.messages.dead_letters(name)
    admin.messages.redrive_letters(name, name, [first])
    [outcome] = admin.messages.redrive_letters(name, name, [second])
    assert "choose a new id" in outcome.fault
    with pytest.raises(RemoteError, match="choose a new id"):
        admin.messages.redrive(name, name, ids=[second.offset_msg_id])
