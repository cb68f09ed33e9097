"""Retries and dead letters that say why the delivery before failed, by both faces."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.client_faces import Face, Received
from tests.integration.test_lite_pull import queue_of

from cometmq import ConsumeFromWhere, ConsumeReport, ConsumeResult, Message, MessageExt
from cometmq.model.failure import MAX_FAILURE_BYTES

FIRST = ConsumeFromWhere.FIRST_OFFSET
pytestmark = [
    pytest.mark.cluster(
        properties={"accessMessageInMemoryMaxRatio": "0", "messageDelayLevel": "1s 1s 1s 1s"}
    )
]


class Failing:
    """Is a listener that raises at the first delivery; it keeps what came."""

    def __init__(self, error: Exception) -> None:
        self.received = Received()
        self._error = error

    def handle(self, messages: list[MessageExt]) -> ConsumeResult | None:
        self.received.handle(messages)
        if messages[0].reconsume_times == 0:
            raise self._error
        return None


def letters_of(face: Face, group: str) -> MessageExt:
    """Return the first dead letter of the group."""
    received = Received()
    topic = f"%DLQ%{group}"
    face.consumer(f"{group}-letters", topic, received.handle, consume_from=FIRST)
    return received.wait_for(1)[0]


def failure_of(message: Any, *, noted: bool) -> tuple[str, str]:
    """Return the type and the text of the note, two empty texts if there must be none."""
    assert (message.failure is not None) == noted
    return message.failure[:2] if noted else ("", "")


def test_a_retry_says_why_the_delivery_before_failed(
    face: Face, name: str, keeps_notes: bool
) -> None:
    listener = Failing(ConnectionError("the bank\x01 does not\x02 answer " + "ä" * 2000))
    consumer = face.consumer(name, name, listener.handle, consume_from=FIRST)
    face.producer(name).send(Message(name, b"O-1", properties={"mine": "kept"}))
    first, again = listener.received.wait_for(2)
    assert (first.failure, first.origin_topic) == (None, name)
    assert (again.failure is not None) == keeps_notes
    if again.failure is not None:
        assert again.failure.type == "ConnectionError"
        assert again.failure.text.startswith("the bank  does not  answer ää")
        assert again.failure.member == consumer.client_id
        assert 900 < len("".join(again.failure).encode()) <= MAX_FAILURE_BYTES
    assert (again.topic, again.origin_topic, again.reconsume_times) == (name, name, 1)
    assert again.properties["mine"] == "kept"


class OfTwoError(Exception):
    def __str__(self) -> str:
        return f"{self.args[0]} and {self.args[1]}"


@pytest.mark.parametrize("mode", ["pull", "pop"])
def test_a_message_comes_again_after_an_exception_whose_text_raises(
    face: Face, name: str, mode: str, keeps_notes: bool
) -> None:
    listener = Failing(OfTwoError("one"))
    face.consumer(name, name, listener.handle, consume_from=FIRST, mode=mode)
    face.producer(name).send(Message(name, b"O-1"))
    _, again = listener.received.wait_for(2)
    assert again.body == b"O-1"
    if mode == "pull" and keeps_notes:  # a pop comes again without a note
        text = "<no text: its __str__ raised IndexError>"
        assert failure_of(again, noted=True) == ("OfTwoError", text)


@pytest.mark.parametrize("mode", ["pull", "pop", "orderly"])
def test_a_dead_letter_says_why_the_last_delivery_failed(
    face: Face, name: str, mode: str, keeps_notes: bool
) -> None:
    options: dict[str, Any] = {"orderly": True} if mode == "orderly" else {"mode": mode}
    listener = Failing(ValueError("no such customer"))
    face.consumer(name, name, listener.handle, consume_from=FIRST, max_reconsume_times=0, **options)
    face.producer(name).send(Message(name, b"O-1"))
    letter = letters_of(face, name)
    # In order, the member itself sends the message to the dead letters.
    if keeps_notes or mode == "orderly":
        assert failure_of(letter, noted=True) == ("ValueError", "no such customer")
    assert (letter.topic, letter.origin_topic) == (f"%DLQ%{name}", name)
    assert letter.reconsume_times == 1


def test_a_refusal_without_an_exception_is_named_and_nothing_is_noted_if_that_is_wanted(
    face: Face, name: str, keeps_notes: bool
) -> None:
    def refuse(_messages: list[MessageExt]) -> Any:
        return ConsumeReport(ConsumeResult.RECONSUME_LATER, delay_level=-1)

    face.consumer(name, name, refuse, consume_from=FIRST)
    face.producer(name).send(Message(name, b"O-1"))
    letter = letters_of(face, name)
    assert failure_of(letter, noted=keeps_notes)[0] == ("RECONSUME_LATER" if keeps_notes else "")
    secret = f"{name}-secret"
    face.consumer(secret, name, refuse, consume_from=FIRST, note_failures=False)
    assert letters_of(face, secret).failure is None


def test_a_message_whose_block_raises_says_so_when_it_comes_again(
    face: Face, name: str, keeps_notes: bool
) -> None:
    face.producer(name).send(Message(name, b"0"), queue=queue_of(name))
    consumer = face.new_lite_pull_consumer(name, consume_from=FIRST)
    consumer.subscribe(name)
    following = face.following(face.started(consumer))
    with pytest.raises(KeyError), next(following):
        raise KeyError("price")
    again = next(following)
    if keeps_notes:
        assert failure_of(again, noted=True) == ("KeyError", "'price'")
    again.ack()
