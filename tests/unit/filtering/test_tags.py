from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.errors import IllegalArgumentError
from cometmq.filtering.tags import accepts, build_subscription, tag_matcher
from cometmq.model.java.hashing import java_hash
from cometmq.model.subscription import SubscriptionData


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything_is_selected_by_no_expression(expression: str | None) -> None:
    subscription = build_subscription("t", expression)
    assert subscription == SubscriptionData("t", "*", [], [], 0, "TAG")
    assert tag_matcher(subscription) is None
    assert accepts(subscription, None)
    assert accepts(subscription, "TagA")


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TagA", ["TagA"]),
        ("TagA || TagB", ["TagA", "TagB"]),
        ("TagB||TagA||TagB", ["TagB", "TagA"]),
        ("  TagA  ||  ", ["TagA"]),
        ("|| TagA", ["TagA"]),
        ("Tag A", ["Tag A"]),
        ("TagA | TagB", ["TagA | TagB"]),
        ("* || TagA", ["*", "TagA"]),
    ],
)
def test_tags_are_cut_and_trimmed(expression: str, tags: list[str]) -> None:
    subscription = build_subscription("t", expression, sub_version=7)
    assert subscription.tags_set == tags
    assert subscription.code_set == [java_hash(tag) for tag in tags]
    assert (subscription.sub_string, subscription.sub_version) == (expression, 7)


@pytest.mark.parametrize("expression", ["||", " || ", "||||", "  "])
def test_an_expression_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(IllegalArgumentError, match="names no tag"):
        build_subscription("t", expression)


@pytest.mark.parametrize("expression_type", [None, "", "TAG"])
def test_a_missing_type_means_tags(expression_type: str | None) -> None:
    subscription = build_subscription("t", "TagA", expression_type)
    assert subscription.expression_type == "TAG"
    assert subscription.code_set == [2598919]


def test_codes_as_they_stand_in_the_consume_queue_decide_on_the_broker() -> None:
    matches = tag_matcher(build_subscription("t", "TagA || order-refunded"))
    assert matches is not None
    assert matches(2598919)
    assert matches(java_hash("order-refunded"))
    assert java_hash("order-refunded") < 0  # which the queue holds sign-extended
    assert not matches(2598920)
    assert not matches(0)


def test_a_client_of_old_leaves_the_type_empty() -> None:
    matches = tag_matcher(SubscriptionData("t", "TagA", ["TagA"], [2598919], 0, ""))
    assert matches is not None
    assert not matches(1)


def test_tags_that_share_a_code_are_told_apart_by_the_client() -> None:
    subscription = build_subscription("t", "Aa")
    matches = tag_matcher(subscription)
    assert matches is not None
    assert java_hash("Aa") == java_hash("BB")
    assert matches(java_hash("BB"))
    assert not accepts(subscription, "BB")
    assert accepts(subscription, "Aa")
    assert not accepts(subscription, None)


def test_other_expressions_are_carried_as_they_stand() -> None:
    subscription = build_subscription("t", "a > 5", "SQL92", 3)
    assert subscription == SubscriptionData("t", "a > 5", [], [], 3, "SQL92")
    assert tag_matcher(subscription) is None
    assert accepts(subscription, "any")
    with pytest.raises(IllegalArgumentError, match="SQL92 may not be empty"):
        build_subscription("t", "", "SQL92")


tags = st.text(st.characters(codec="utf-8", exclude_characters="|"), min_size=1, max_size=8).filter(
    lambda tag: tag == tag.strip() != "*"
)


@given(st.lists(tags, min_size=1, max_size=5), tags)
def test_broker_and_client_agree_but_for_shared_codes(chosen: list[str], tag: str) -> None:
    subscription = build_subscription("t", " || ".join(chosen))
    matches = tag_matcher(subscription)
    assert matches is not None
    assert accepts(subscription, tag) == (tag in chosen)
    assert matches(java_hash(tag)) or tag not in chosen
