from __future__ import annotations

import pytest

from cometmq.errors import IllegalArgumentError
from cometmq.model.names import (
    check_group,
    check_topic,
    dlq_topic,
    group_fault,
    groups_of_retry_topics,
    is_retry_topic,
    is_system_topic,
    retry_topic,
    topic_fault,
)


@pytest.mark.parametrize(
    "name", ["a", "Order_events-2", "%RETRY%g", "a|b", "x" * 127, "%RETRY%" + "g" * 248]
)
def test_legal_topics(name: str) -> None:
    assert topic_fault(name) is None
    check_topic(name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("a b", "outside"),
        ("a.b", "outside"),
        ("a\n", "outside"),
        ("Ä", "outside"),
        ("٣", "outside"),  # a digit, but none of ASCII
        ("x" * 128, "128 characters, the limit is 127"),
        ("%RETRY%" + "g" * 249, "256 characters, the limit is 255"),
        ("%DLQ%" + "g" * 251, "256 characters, the limit is 255"),
    ],
)
def test_illegal_topics_are_refused_with_limit_and_value(name: str, reason: str) -> None:
    with pytest.raises(IllegalArgumentError, match=reason):
        check_topic(name)


def test_groups_have_a_lower_limit() -> None:
    assert group_fault("g" * 120) is None
    with pytest.raises(IllegalArgumentError, match="121 characters, the limit is 120"):
        check_group("g" * 121)
    with pytest.raises(IllegalArgumentError, match="blank"):
        check_group(" ")


def test_topics_of_a_group() -> None:
    assert retry_topic("g") == "%RETRY%g"
    assert dlq_topic("g") == "%DLQ%g"
    assert is_retry_topic("%RETRY%g")
    assert not is_retry_topic("%DLQ%g")


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_anything"])
def test_system_topics(name: str) -> None:
    assert is_system_topic(name)
    assert not is_system_topic("my" + name)


def test_the_retry_topic_of_a_group_that_pops_is_no_groups_name() -> None:
    topics = [
        "orders",
        "%RETRY%g_orders",
        "%RETRY%g",
        "%RETRY%a_b_c",
        "%RETRY%x+orders",
        "%RETRY%gone",
    ]
    known = {"g", "a_b", "a", "x"}
    assert groups_of_retry_topics(topics, known) == ["g", "a_b", "x", "gone"]
    # Of a group whose name looks like that.
    assert groups_of_retry_topics(topics, {"g", "g_orders"})[:2] == ["g_orders", "g"]
