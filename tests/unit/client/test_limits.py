"""Messages and names that a producer refuses before sending."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq import PushConsumer
from cometmq.client.limits import (
    MessageChecks,
    check_client_group,
    check_properties_text,
    parse_addresses,
)
from cometmq.errors import IllegalArgumentError, UnknownOptionError
from cometmq.model.message import Message, MessageExt


@pytest.mark.parametrize("size", [1, 4 * 1024 * 1024])
def test_bodies_up_to_the_limit_pass(size: int) -> None:
    MessageChecks().check(Message("t", bytes(size)))


@pytest.mark.parametrize("size", [0, 4 * 1024 * 1024 + 1])
def test_bodies_outside_the_limit_are_refused(size: int) -> None:
    with pytest.raises(IllegalArgumentError, match=str(size) if size else "empty"):
        MessageChecks().check(Message("t", bytes(size)))


def test_properties_are_measured_in_bytes() -> None:
    check_properties_text("x" * 32767, "t")
    check_properties_text("é" * 16383, "t")
    for text in ("x" * 32768, "é" * 16384):
        with pytest.raises(IllegalArgumentError, match="32768 bytes, the limit is 32767"):
            check_properties_text(text, "t")


def test_a_received_message_may_not_be_sent_on_with_the_brokers_properties() -> None:
    received = MessageExt("t", b"x", properties={"UNIQ_KEY": "A", "REAL_TOPIC": "other"})
    with pytest.raises(IllegalArgumentError, match="REAL_TOPIC belong"):
        MessageChecks().check(received)
    del received.properties["REAL_TOPIC"]
    MessageChecks().check(received)


def test_a_topic_found_legal_once_is_still_checked_for_others() -> None:
    checks = MessageChecks()
    checks.check(Message("good", b"x"))
    checks.check(Message("good", b"x"))
    with pytest.raises(IllegalArgumentError):
        checks.check(Message("not good", b"x"))


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", ["a:1"]),
        ("a:1;b:2", ["a:1", "b:2"]),
        (" a:1 , b:2 ; a:1;", ["a:1", "b:2"]),
        (["a:1", "b:2"], ["a:1", "b:2"]),
        ("[::1]:9876", ["[::1]:9876"]),
    ],
)
def test_name_server_addresses(text: str | list[str], addresses: list[str]) -> None:
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", ["", ";", "a", "a:", ":1", "a:0", "a:65536", "a:b", []])
def test_bad_name_server_addresses(text: str | list[str]) -> None:
    with pytest.raises(IllegalArgumentError, match="name-server address"):
        parse_addresses(text)


@pytest.mark.parametrize(
    "group", ["", " ", "a b", "g" * 121, "DEFAULT_PRODUCER", "DEFAULT_CONSUMER"]
)
def test_bad_groups(group: str) -> None:
    with pytest.raises(IllegalArgumentError):
        check_client_group(group)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"tag": "paid"}, "tags"),
        ({"key": "O-1"}, "keys"),
        ({"headers": {"a": "b"}}, "properties"),
        ({"delay": 5}, "delay_ms"),
        ({"propertis": {"a": "b"}}, "properties"),
    ],
)
def test_a_message_names_the_option_that_is_meant(given: dict[str, Any], meant: str) -> None:
    (name,) = given
    with pytest.raises(
        UnknownOptionError, match=f"Message has no '{name}'; did you mean {meant}. "
    ):
        Message("t", b"x", **given)
    nonsense: Any = {"xyz": 1}
    with pytest.raises(
        TypeError, match=r"Message has no 'xyz'. Beside topic and body it has tags,"
    ):
        Message("t", b"x", **nonsense)


def test_lists_where_a_text_is_wanted_say_what_is_meant() -> None:
    consumer = PushConsumer("g", namesrv="127.0.0.1:1")
    tags: Any = ["paid", "refunded"]
    with pytest.raises(IllegalArgumentError, match=r"did you mean 'paid \|\| refunded'"):
        consumer.subscribe("orders", tags)
    with pytest.raises(IllegalArgumentError, match="call subscribe once for each of them"):
        consumer.subscribe(tags)
    wrong: Any = "first-offset"
    with pytest.raises(IllegalArgumentError, match=r"did you mean ConsumeFromWhere.FIRST_OFFSET"):
        PushConsumer("g", namesrv="127.0.0.1:1", consume_from=wrong)
