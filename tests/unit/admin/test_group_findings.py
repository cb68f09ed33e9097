"""Findings about a group from the reports of its members."""

from __future__ import annotations

from dataclasses import replace

from cometmq.admin.groups.findings import holders, judge, subscription_differences
from cometmq.admin.groups.records import RunningInfo
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.bodies.consumers import ConsumeStatus, ProcessQueueInfo

QUEUE = MessageQueue("orders", "broker-a", 3)
NOW_MS = 1_000_000


def member(
    expression: str = "*",
    *,
    kind: str = "CONSUME_PASSIVELY",
    orderly: bool = False,
    queue: ProcessQueueInfo | None = None,
    failed: int = 0,
) -> RunningInfo:
    return RunningInfo(
        "c",
        {"PROP_CONSUME_TYPE": kind, "PROP_CONSUMEORDERLY": str(orderly).lower()},
        (SubscriptionData("orders", sub_string=expression),),
        {} if queue is None else {QUEUE: queue},
        {"orders": ConsumeStatus(consume_failed_msgs=failed)},
        None,
    )


def found(*members: RunningInfo) -> list[str]:
    reported = {f"c{number}": each for number, each in enumerate(members)}
    return [finding.text for finding in judge("billing", reported, NOW_MS)]


def test_members_that_agree_and_consume_are_well() -> None:
    busy = ProcessQueueInfo(cached_msg_count=5, last_consume_timestamp=NOW_MS - 59_000)
    assert found(member(queue=busy), member()) == []


def test_members_with_different_subscriptions_are_found() -> None:
    [text] = found(member("a"), member("b"))
    assert "its members subscribe to different things" in text
    # Members that pull choose for themselves.
    assert found(member("a"), member("b", kind="CONSUME_ACTIVELY")) == []


def test_a_listener_that_is_blocked_is_found_with_its_queue() -> None:
    blocked = ProcessQueueInfo(cached_msg_count=5, last_consume_timestamp=NOW_MS - 61_000)
    [text] = found(member(queue=blocked))
    assert "topic orders, queue 3 of broker-a: consumed nothing for 61000 ms" in text
    idle = ProcessQueueInfo(cached_msg_count=0, last_consume_timestamp=0)
    assert found(member(queue=idle)) == []


def test_a_queue_of_which_nothing_was_consumed_yet_counts_since_its_member_started() -> None:
    new = ProcessQueueInfo(cached_msg_count=5, last_consume_timestamp=0)
    assert found(member(queue=new)) == []
    old = member(queue=new)
    started = {**old.properties, "PROP_CONSUMER_START_TIMESTAMP": str(NOW_MS - 61_000)}
    [text] = found(replace(old, properties=started))
    assert "consumed nothing for 61000 ms" in text


def test_a_queue_that_cannot_be_locked_is_found() -> None:
    unlocked = ProcessQueueInfo(locked=False, last_lock_timestamp=NOW_MS - 7_000)
    [text] = found(member(orderly=True, queue=unlocked))
    assert "cannot lock it, for 7000 ms" in text
    kept = ProcessQueueInfo(locked=True, droped=True, try_unlock_times=4)
    [text] = found(member(orderly=True, queue=kept))
    assert "tried 4 times to unlock it" in text


def test_messages_that_fail_are_found() -> None:
    assert found(member(failed=12)) == ["topic orders: 12 messages failed in the last hour"]


def test_what_members_select_differently_is_told_with_who_selects_it() -> None:
    reported = {
        "c1": member("a"),
        "c2": member("b"),
        "c3": member("a"),
        "pulls": member("c", kind="CONSUME_ACTIVELY"),
    }
    [difference] = subscription_differences(reported)
    assert difference.topic == "orders"
    assert difference.clients == {"a": ("c1", "c3"), "b": ("c2",)}
    assert subscription_differences({"c1": member(), "c2": member()}) == []


def test_a_queue_belongs_to_the_member_that_has_not_given_it_up() -> None:
    kept, given_up = ProcessQueueInfo(), ProcessQueueInfo(droped=True)
    reported = {"c1": member(queue=kept), "c2": member(queue=given_up)}
    assert holders(reported) == {QUEUE: "c1"}
