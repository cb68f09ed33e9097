"""Redrive chosen letters at brokers whose indexes and topics fail, and look at each outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from cometmq.admin.messages import redriving
from cometmq.admin.messages.letters import Redriven
from cometmq.admin.messages.redriving import LetterOutcome, redrive_each
from cometmq.admin.messages.room import Messages
from cometmq.errors import RequestTimeoutError
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.protocol.redrive import REDRIVE_ID


class _Brokers:
    """Send so many letters of a redrive, and find the copies of `found`; None is an index that hangs."""

    def __init__(
        self, sent_count: int, skipped_count: int, found: Sequence[MessageExt] | None
    ) -> None:
        self._done = Redriven("broker-a", sent_count, skipped_count)
        self._found = found

    async def redrive(self, *_: object, **__: object) -> list[Redriven]:
        return [self._done]

    async def by_unique_id(self, topic: str, unique_id: str) -> list[MessageExt]:
        if self._found is None:
            raise RequestTimeoutError("no answer within 3 s")
        return [copy for copy in self._found if (copy.topic, copy.unique_id) == (topic, unique_id)]


def letter(
    unique_id: str, topic: str = "t", *, offset: int = 0, broker: str = "broker-a"
) -> MessageExt:
    named = {p.RETRY_TOPIC: topic} if topic else {}
    return MessageExt(
        "%DLQ%g",
        b"",
        broker_name=broker,
        properties={p.UNIQ_CLIENT_MESSAGE_ID: unique_id, **named},
        msg_id=unique_id,
        offset_msg_id=f"7F00000100002A9F{offset:016X}",
    )


def copy_of(letter: MessageExt, queue_offset: int = 0) -> MessageExt:
    """Return the copy that the letter's broker makes."""
    return MessageExt(
        letter.properties[p.RETRY_TOPIC],
        b"",
        broker_name=letter.broker_name,
        queue_offset=queue_offset,
        properties={p.UNIQ_CLIENT_MESSAGE_ID: letter.msg_id, REDRIVE_ID: "r"},
        prepared_transaction_offset=parse_offset_id(letter.offset_msg_id).commit_log_offset,
    )


async def redriven(brokers: _Brokers, *letters: MessageExt) -> list[LetterOutcome]:
    return await redrive_each(cast(Messages, brokers), "r", "g", letters, False)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redriving, "_PAUSE_S", 0.0)


async def test_a_letter_that_was_sent_has_no_fault_while_the_index_hangs() -> None:
    [outcome] = await redriven(_Brokers(1, 0, None), letter("a"))
    assert (outcome.topic, outcome.broker_name, outcome.fault) == ("t", None, "")


async def test_a_letter_that_its_broker_no_longer_has_is_not_told_as_sent() -> None:
    sent, gone = await redriven(_Brokers(1, 0, [copy_of(letter("a"))]), letter("a"), letter("b"))
    assert (sent.broker_name, sent.fault) == ("broker-a", "")
    assert "did not send it" in gone.fault


async def test_a_letter_without_a_topic_does_not_stand_for_one_that_was_sent() -> None:
    sent, homeless = await redriven(_Brokers(1, 1, []), letter("a"), letter("b", ""))
    assert sent.fault == "", "its copy is in no index yet"
    assert "does not name its topic" in homeless.fault


async def test_which_of_several_letters_was_sent_may_be_unknown() -> None:
    outcomes = await redriven(_Brokers(1, 1, []), letter("a"), letter("b"))
    assert all("have sent 1; look whether" in each.fault for each in outcomes)


async def test_letters_with_the_id_of_one_batch_are_not_taken_for_one_another() -> None:
    """Each was reported to lie where the first one's copy does, also one that was not sent."""
    letters = [letter("B", offset=100 * at) for at in range(3)]
    letters.append(letter("B", offset=100, broker="broker-b"))
    copies = [copy_of(each, queue_offset=at) for at, each in enumerate(letters)]
    del copies[1]
    outcomes = await redriven(_Brokers(3, 0, copies), *letters)
    assert [(each.broker_name, each.queue_offset) for each in outcomes] == [
        ("broker-a", 0),
        (None, None),
        ("broker-a", 2),
        ("broker-b", 3),
    ]
    assert [bool(each.fault) for each in outcomes] == [False, True, False, False]
