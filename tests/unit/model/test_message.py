from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from cometmq.errors import IllegalArgumentError
from cometmq.model.failure import MAX_FAILURE_BYTES, Failure, note_failure, noted_failure
from cometmq.model.message import Message, MessageExt


def test_tags_keys_and_wait_travel_as_properties() -> None:
    message = Message("t", b"body", tags="paid", keys=["O-1", "O-2"], wait_store_ok=False)
    assert message.properties == {"TAGS": "paid", "KEYS": "O-1 O-2", "WAIT": "false"}
    assert message.keys == ("O-1", "O-2")
    assert not message.wait_store_ok


def test_a_bare_message_has_no_properties() -> None:
    message = Message("t", b"")
    assert message.properties == {}
    assert (message.tags, message.keys, message.unique_id) == (None, (), None)
    assert message.wait_store_ok


def test_one_key_may_be_given_as_a_text() -> None:
    assert Message("t", b"", keys="O-1").keys == ("O-1",)
    message = Message("t", b"")
    message.keys = "O-1"
    assert message.keys == ("O-1",)


@pytest.mark.parametrize(
    "keys",
    ["order 17", ["a", "order 17"], ("tab\tbed",), {"end "}, [" "], "a\u00a0b", "two\nlines"],
)
def test_a_key_with_white_space_is_refused_and_not_split(keys: str | Iterable[str]) -> None:
    with pytest.raises(IllegalArgumentError, match=r"white space .* pass several keys as a list"):
        Message("t", b"", keys=keys)
    message = Message("t", b"", keys="before")
    with pytest.raises(IllegalArgumentError, match="has white space in it"):
        message.keys = keys
    assert message.keys == ("before",)


def test_keys_as_another_client_wrote_them_are_parted() -> None:
    assert Message("t", b"", properties={"KEYS": "a b"}).keys == ("a", "b")


def test_the_properties_given_are_not_shared() -> None:
    given = {"a": "1"}
    message = Message("t", b"", properties=given)
    message.tags = "x"
    assert given == {"a": "1"}


def test_a_copy_has_its_own_properties() -> None:
    message = MessageExt("t", b"body", properties={"a": "1"}, msg_id="ID", queue_offset=7)
    copy = message.copy()
    copy.properties["a"] = "2"
    copy.topic = "other"
    assert message.properties == {"a": "1"}
    assert message.topic == "t"
    assert type(copy) is MessageExt
    assert (copy.msg_id, copy.queue_offset, copy.body) == ("ID", 7, b"body")


def test_a_message_prints_without_its_body() -> None:
    assert "<1000 bytes>" in repr(Message("t", bytes(1000)))
    assert "<1000 bytes>" in repr(MessageExt("t", bytes(1000)))


@pytest.mark.parametrize(
    ("delay", "properties"),
    [
        ({"delay_level": 3}, {"DELAY": "3"}),
        ({"delay_level": 0}, {}),
        ({"delay_ms": 1500}, {"TIMER_DELAY_MS": "1500"}),
        ({"delay_ms": 0}, {"TIMER_DELAY_MS": "0"}),
        ({"deliver_at_ms": 1_700_000_000_000}, {"TIMER_DELIVER_MS": "1700000000000"}),
    ],
)
def test_delays_travel_as_properties(delay: dict[str, int], properties: dict[str, str]) -> None:
    message = Message("t", b"", **delay)  # type: ignore[arg-type]  # a dict of fields of several types
    assert message.properties == properties
    for name, value in delay.items():
        assert getattr(message, name) == value


def test_a_later_wish_takes_the_earlier_back() -> None:
    message = Message("t", b"", delay_level=3, tags="kept")
    message.delay_ms = 5
    assert (message.delay_level, message.delay_ms) == (0, 5)
    message.deliver_at_ms = 6
    assert (message.delay_ms, message.deliver_at_ms) == (None, 6)
    message.delay_level = 2
    assert message.deliver_at_ms is None
    message.delay_level = 0
    assert message.properties == {"TAGS": "kept"}


@pytest.mark.parametrize(
    "delays",
    [
        {"delay_level": 1, "delay_ms": 5},
        {"delay_ms": 1, "deliver_at_ms": 5},
        {"delay_level": -1},
        {"delay_level": 2**31},
        {"delay_ms": -1},
        {"delay_ms": 2**63},
        {"delay_ms": 1.5},
        {"deliver_at_ms": -1},
    ],
)
def test_delays_that_contradict_or_fit_nowhere_are_refused(delays: dict[str, Any]) -> None:
    with pytest.raises(IllegalArgumentError, match=next(iter(delays))):
        Message("t", b"", **delays)


def test_received_delays_are_read_and_nonsense_is_none() -> None:
    assert MessageExt("t", b"", properties={"TIMER_DELAY_SEC": "3"}).delay_ms == 3000
    message = MessageExt("t", b"", properties={"DELAY": "x", "TIMER_DELIVER_MS": "soon"})
    assert (message.delay_level, message.delay_ms, message.deliver_at_ms) == (0, None, None)


def test_the_first_topic_is_named_behind_retries_and_dead_letters() -> None:
    assert MessageExt("orders", b"x", properties={"RETRY_TOPIC": "other"}).origin_topic == "orders"
    for topic in ("%RETRY%g", "%DLQ%g"):
        assert (
            MessageExt(topic, b"x", properties={"RETRY_TOPIC": "orders"}).origin_topic == "orders"
        )
        assert (
            MessageExt(topic, b"x", properties={"DLQ_ORIGIN_TOPIC": "orders"}).origin_topic
            == "orders"
        )
        assert MessageExt(topic, b"x").origin_topic == topic


def test_an_exception_whose_text_raises_is_noted_by_its_class() -> None:
    class OfTwoError(Exception):
        def __str__(self) -> str:
            return f"{self.args[0]} and {self.args[1]}"

    properties: dict[str, str] = {}
    note_failure(properties, Failure.of(OfTwoError("one"), "m"))
    assert noted_failure(properties) == Failure(
        OfTwoError.__qualname__, "<no text: its __str__ raised IndexError>", "m"
    )


def test_a_note_of_a_failure_has_a_limit_and_ends_no_property() -> None:
    properties = {"FAILURE_TEXT": "of before", "mine": "kept"}
    note_failure(properties, Failure("E" * 5000, "ä\x01\x02\udc80" * 5000, "m" * 5000))
    noted = noted_failure(properties)
    assert noted is not None
    assert len("".join(noted).encode()) <= MAX_FAILURE_BYTES
    assert not {"\x01", "\x02"} & set("".join(noted))
    note_failure(properties, Failure("E", "", ""))
    assert properties == {"FAILURE_TYPE": "E", "mine": "kept"}
    note_failure(properties, None)
    assert properties == {"mine": "kept"}
    assert noted_failure(properties) is None
