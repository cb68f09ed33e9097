"""Redrive chosen letters at brokers whose indexes and topics fail, and look at each outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from cometmq.admin import redriving
from cometmq.admin.letters import Redriven
from cometmq.admin.messages import Messages
from cometmq.admin.redriving import LetterOutcome, redrive_each
from cometmq.errors import RequestTimeoutError
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.protocol.redrive import REDRIVE_ID


class _Brokers:
    """Send so many letters of a redrive, and find the copies of `found`; None is an index that hangs."""

    def __init__(self, sent_count: int, skipped_count: int, found: Sequence[str] | None) -> None:
        self._done = Redriven("broker-a", sent_count, skipped_count)
        self._found = found

    async def redrive(self, *_: object, **__: object) -> list[Redriven]:
        return [self._done]

    async def by_unique_id(self, topic: str, unique_id: str) -> list[MessageExt]:
        if self._found is None:
            raise RequestTimeoutError("no answer within 3 s")
        if unique_id not in self._found:
            return []
        properties = {p.UNIQ_CLIENT_MESSAGE_ID: unique_id, REDRIVE_ID: "r"}
        return [MessageExt(topic, b"", broker_name="broker-a", properties=properties)]


def letter(unique_id: str, topic: str = "t") -> MessageExt:
    named = {p.RETRY_TOPIC: topic} if topic else {}
    return MessageExt(
        "%DLQ%g",
        b"",
        properties={p.UNIQ_CLIENT_MESSAGE_ID: unique_id, **named},
        msg_id=unique_id,
        offset_msg_id="7F00000100002A9F" + unique_id.encode().hex().rjust(16, "0"),
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
    sent, gone = await redriven(_Brokers(1, 0, ["a"]), letter("a"), letter("b"))
    assert (sent.broker_name, sent.fault) == ("broker-a", "")
    assert "did not send it" in gone.fault


async def test_a_letter_without_a_topic_does_not_stand_for_one_that_was_sent() -> None:
    sent, homeless = await redriven(_Brokers(1, 1, []), letter("a"), letter("b", ""))
    assert sent.fault == "", "its copy is in no index yet"
    assert "does not name its topic" in homeless.fault


async def test_which_of_several_letters_was_sent_may_be_unknown() -> None:
    outcomes = await redriven(_Brokers(1, 1, []), letter("a"), letter("b"))
    assert all("have sent 1; look whether" in each.fault for each in outcomes)
