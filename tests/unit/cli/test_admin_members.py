"""What members of a group tell is judged, and many things are asked for a few at once."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from cometmq.admin.group_records import RunningInfo
from cometmq.cli.admin.command import Run
from cometmq.cli.admin.many import ask_each
from cometmq.cli.admin.members import judge
from cometmq.cli.admin.output import Form, Output
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.consumer_bodies import ConsumeStatus, ProcessQueueInfo

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
    told = {f"c{number}": each for number, each in enumerate(members)}
    return [finding.text for finding in judge("billing", told, NOW_MS)]


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


def test_a_queue_that_cannot_be_locked_is_found() -> None:
    unlocked = ProcessQueueInfo(locked=False, last_lock_timestamp=NOW_MS - 7_000)
    [text] = found(member(orderly=True, queue=unlocked))
    assert "cannot lock it, for 7000 ms" in text
    kept = ProcessQueueInfo(locked=True, droped=True, try_unlock_times=4)
    [text] = found(member(orderly=True, queue=kept))
    assert "tried 4 times to unlock it" in text


def test_messages_that_fail_are_found() -> None:
    assert found(member(failed=12)) == ["topic orders: 12 messages failed in the last hour"]


def test_many_things_are_asked_a_few_at_once_and_kept_in_order() -> None:
    run = Run(cast(Any, None), Output(Form.JSON), cast(Any, None), False, False)
    under_way = most = 0

    async def ask(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return number * 2

    answers = asyncio.run(ask_each(run, "numbers", range(500), ask))
    assert answers == [number * 2 for number in range(500)]
    assert 1 < most <= 16
