"""`AdminClient.explain` against the Java servers of 4.9 and the newest: causes that they let it find."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.test_explain_brokers import (
    test_a_consumed_message_is_followed_by_either_id,
    test_a_dead_letter_is_told,
    test_a_message_in_a_listener_is_told_with_its_member,
    test_a_message_that_the_group_does_not_select_is_told,
    test_a_message_that_waits_for_a_member_is_told_with_the_cause,
)
from tests.integration.test_explain_groups import (
    address,
    admin,
    face,
    hold,
    test_a_group_that_has_consumed_all_is_caught_up,
    test_a_group_that_may_not_consume_is_told_with_its_refused_pulls,
    test_a_group_without_a_member_is_told,
    test_a_paused_member_is_told,
    test_a_slow_listener_is_told_by_what_its_member_holds,
    test_a_suspended_queue_of_an_orderly_group_is_told,
    test_a_topic_that_may_not_be_read_is_told,
    test_members_with_different_subscriptions_are_told,
    test_members_without_a_queue_are_told,
    test_retries_are_told_even_if_nothing_else_waits,
    topic,
)
from tests.interop.on_java import MARKS, name

from cometmq.admin.explain.records import Cause

__all__ = [
    "address",
    "admin",
    "face",
    "hold",
    "name",
    "test_a_consumed_message_is_followed_by_either_id",
    "test_a_dead_letter_is_told",
    "test_a_group_that_has_consumed_all_is_caught_up",
    "test_a_group_that_may_not_consume_is_told_with_its_refused_pulls",
    "test_a_group_without_a_member_is_told",
    "test_a_message_in_a_listener_is_told_with_its_member",
    "test_a_message_that_the_group_does_not_select_is_told",
    "test_a_message_that_waits_for_a_member_is_told_with_the_cause",
    "test_a_paused_member_is_told",
    "test_a_slow_listener_is_told_by_what_its_member_holds",
    "test_a_suspended_queue_of_an_orderly_group_is_told",
    "test_a_topic_that_may_not_be_read_is_told",
    "test_members_with_different_subscriptions_are_told",
    "test_members_without_a_queue_are_told",
    "test_retries_are_told_even_if_nothing_else_waits",
    "topic",
]
pytestmark = MARKS


@pytest.fixture(params=["4.9", "5"])
def namesrv(request: pytest.FixtureRequest) -> str:
    """The name server of the release line that a test asks; servers start once a session."""
    servers = {"4.9": "java4_servers", "5": "java_servers"}[request.param]
    address: str = request.getfixturevalue(servers)
    return address


def test_what_java_does_not_tell_is_said(admin: Any, address: str, topic: str) -> None:
    assert admin.explain.disk().causes == (Cause.NOT_REPORTED,)
    found = admin.explain.restart()
    assert found.causes == (Cause.NOT_REPORTED, Cause.NO_OTHER_BROKER)
    assert found.costs[address].clean_bytes is None
    assert admin.explain.write(topic).causes == (Cause.ACCEPTED,)
    admin.topics.update(topic, permission=4)
    assert Cause.TOPIC_UNWRITABLE in admin.explain.write(topic).causes
