"""All offsets of a broker, their comparison between groups, and groups that go on where others are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import heartbeat_body, send_ext
from tests.unit.broker.broker_box import GROUP, Client, running

from cometmq.broker.server import Broker
from cometmq.errors import AccessRefusedError
from cometmq.protocol.codes import ResponseCode

SEND, COMMIT, HEARTBEAT, ALL, RESET, CORRECTION, CLONE = 310, 15, 34, 43, 222, 308, 314
NO_CORRECTION = 2**63 - 1
MANY = 20_000


async def fill(client: Client, topic: str = "orders", count: int = 4) -> None:
    for queue_id in (0, 1):
        for _ in range(count):
            answer = await client.ask(
                SEND, send_ext(topic, letters=True, queueId=queue_id), b"hello"
            )
            assert answer.code == 0, answer.remark


async def commit(
    client: Client, group: str, offsets: dict[int, int], topic: str = "orders"
) -> None:
    for queue_id, offset in offsets.items():
        fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        answer = await client.ask(COMMIT, {**fields, "commitOffset": offset})
        assert answer.code == 0, answer.remark


@pytest.fixture
async def filled(broker: Broker) -> Broker:
    client = Client(broker)
    await fill(client)
    for group in ("fast", "slow", "other"):
        await client.ask(HEARTBEAT, {}, heartbeat_body("c", {group: ()}))
    return broker


async def clone(client: Client, source: str, group: str, **more: Any) -> tuple[int, str]:
    answer = await client.ask(CLONE, {"srcGroup": source, "destGroup": group, **more})
    return answer.code, answer.remark or ""


# All offsets


async def test_all_offsets_are_shown_as_the_file_has_them(filled: Broker, client: Client) -> None:
    await commit(client, "fast", {0: 4, 1: 3})
    await commit(client, "slow", {1: 1})
    answer = await client.ask(ALL, {})
    assert answer.code == 0, answer.remark
    body = json.loads(bytes(answer.body))
    assert body["offsetTable"] == {"orders@fast": {"0": 4, "1": 3}, "orders@slow": {"1": 1}}
    assert body["dataVersion"] == {"counter": 0, "stateVersion": 0, "timestamp": 0}, (
        "Java needs one"
    )


async def test_too_many_offsets_for_a_frame_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, max_frame_length=64 * 1024 + 40) as broker:
        client = Client(broker)
        await fill(client)
        await commit(client, GROUP, {0: 1, 1: 1})
        assert (await client.ask(ALL, {})).code == 0
        await client.ask(HEARTBEAT, {}, heartbeat_body("c", {"another": ()}))
        await commit(client, "another", {0: 1})
        answer = await client.ask(ALL, {})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "frameMaxLength" in str(answer.remark)
        assert "208" in str(answer.remark), "a remedy"


# Corrections


async def correction(client: Client, compared: str, **more: Any) -> dict[int, int]:
    answer = await client.ask(CORRECTION, {"topic": "orders", "compareGroup": compared, **more})
    assert answer.code == 0, answer.remark
    offsets = json.loads(bytes(answer.body))["correctionOffsets"]
    return {int(queue_id): offset for queue_id, offset in offsets.items()}


async def test_a_correction_is_the_lowest_offset_of_any_group(
    filled: Broker, client: Client
) -> None:
    await commit(client, "fast", {0: 4, 1: 3})
    await commit(client, "slow", {0: 2})
    assert await correction(client, "fast") == {0: 2, 1: 3}
    assert await correction(client, "nobody") == {0: 2, 1: 3}


async def test_a_group_that_is_left_out_keeps_its_offsets(filled: Broker, client: Client) -> None:
    """Java deletes them."""
    await commit(client, "fast", {0: 4})
    await commit(client, "slow", {0: 2, 1: 1})
    # It is lower than all that count, so there is nothing to correct.
    assert await correction(client, "slow", filterGroups="slow,other") == {0: NO_CORRECTION}
    assert filled.offsets.queues("slow", "orders") == {0: 2, 1: 1}


# Clones


async def test_a_correction_tells_nothing_of_groups_that_the_sender_may_not_ask_about(
    filled: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await commit(client, "slow", {0: 1})
    await commit(client, "fast", {0: 3})
    may_ask_about: list[str] = ["fast"]
    monkeypatch.setattr(filled.handlers, "permits", lambda *about: about[-1] in may_ask_about)
    assert await correction(client, "other") == {0: 3}
    may_ask_about.append("slow")
    assert await correction(client, "other") == {0: 1}


async def test_a_group_goes_on_where_another_one_is(filled: Broker, client: Client) -> None:
    await commit(client, "fast", {0: 4, 1: 3})
    await commit(client, "other", {0: 1})
    assert await clone(client, "fast", "other", topic="orders") == (0, "")
    assert filled.offsets.queues("other", "orders") == {0: 4, 1: 3}
    assert filled.offsets.count == 4
    await commit(client, "fast", {0: 1})
    assert filled.offsets.queues("other", "orders")[0] == 4, "a copy"


async def test_without_a_topic_all_topics_are_cloned(filled: Broker, client: Client) -> None:
    """Java clones nothing."""
    await fill(client, "narrow")
    await commit(client, "fast", {0: 2})
    await commit(client, "fast", {0: 3}, topic="narrow")
    assert await clone(client, "fast", "other", offline="false") == (0, "")
    assert filled.offsets.queues("other", "orders") == {0: 2}
    assert filled.offsets.queues("other", "narrow") == {0: 3}


async def test_the_retry_topic_of_the_source_is_not_cloned(filled: Broker, client: Client) -> None:
    await commit(client, "fast", {0: 2})
    filled.offsets.keep("fast", "%RETRY%fast", 0, 1)
    assert await clone(client, "fast", "other") == (0, "")
    assert filled.offsets.topics_of("other") == {"orders"}


async def test_topics_that_an_online_group_has_left_are_passed_over(
    filled: Broker, client: Client
) -> None:
    await fill(client, "narrow")
    await commit(client, "fast", {0: 2})
    await commit(client, "fast", {0: 3}, topic="narrow")
    await client.ask(HEARTBEAT, {}, heartbeat_body("c", {"fast": ("orders",)}))
    assert await clone(client, "fast", "other") == (0, "")
    assert filled.offsets.queues("other", "narrow") == {}
    assert await clone(client, "fast", "other", offline="true") == (0, "")
    assert filled.offsets.queues("other", "narrow") == {0: 3}


async def test_a_group_that_is_deleted_meanwhile_gets_no_more_offsets(
    filled: Broker, client: Client
) -> None:
    for number in range(MANY):
        filled.offsets.keep("fast", f"t{number}", 0, 1)
    request = client.send(CLONE, {"srcGroup": "fast", "destGroup": "other"})
    while not filled.offsets.topics_of("other"):  # noqa: ASYNC110 - slice by slice
        await asyncio.sleep(0)
    assert filled.groups.remove("other")
    done = len(filled.offsets.topics_of("other"))
    assert done < MANY
    answer = await client.answer(request)
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert answer.remark == (
        f"subscription group [other] was deleted when the offsets of {done} of {MANY} topics were "
        "cloned"
    )
    assert len(filled.offsets.topics_of("other")) == done
    assert filled.groups.get("other") is None


async def test_a_clone_replaces_a_reset_that_no_pull_was_told_of(
    filled: Broker, client: Client
) -> None:
    await commit(client, "fast", {0: 3, 1: 3})
    await commit(client, "other", {0: 1, 1: 1})
    reset = {"topic": "orders", "group": "other", "timestamp": "0", "isForce": "true"}
    assert (await client.ask(RESET, reset)).code == 0
    assert await clone(client, "fast", "other", topic="orders") == (0, "")
    await commit(client, "other", {0: 4})
    assert filled.offsets.queues("other", "orders") == {0: 4, 1: 3}


async def test_what_cannot_be_cloned_is_refused_with_the_reason(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"auto_create_subscription_group": False, "max_consumer_offsets": 3}
    async with running(tmp_path, **settings) as broker:
        client = Client(broker)
        await fill(client)
        await commit(client, GROUP, {0: 4, 1: 3})
        code, remark = await clone(client, GROUP, "unknown", topic="orders")
        assert (code, "unknown" in remark) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, True)
        code, remark = await clone(client, GROUP, GROUP, topic="nowhere")
        assert (code, "nowhere" in remark) == (ResponseCode.TOPIC_NOT_EXIST, True)
        code, remark = await clone(client, GROUP, "silent", topic="orders")
        assert (code, "maxConsumerOffsets is 3" in remark) == (ResponseCode.SYSTEM_ERROR, True)
        assert broker.offsets.queues("silent", "orders") == {}
        assert broker.offsets.count == 2
        assert await clone(client, GROUP, GROUP) == (0, "")


@pytest.fixture
async def crowded(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path) as broker:
        offsets = broker.offsets
        for number in range(MANY):
            offsets.keep("many", f"t-{number}", 0, 1)
        yield broker


async def test_clones_are_made_one_at_a_time(crowded: Broker) -> None:
    """Together, each turn of the loop would have a slice of each."""
    client = Client(crowded)
    async with crowded.parts.long_answers.turn(client.line.connection):
        under_way = client.send(CLONE, {"srcGroup": "many", "destGroup": GROUP})
        for _ in range(10):
            await asyncio.sleep(0)
        assert crowded.offsets.topics_of(GROUP) == set()
    assert (await client.answer(under_way)).code == 0
    assert len(crowded.offsets.topics_of(GROUP)) == MANY


async def test_a_group_that_is_deleted_before_a_clones_turn_gets_no_offsets(
    crowded: Broker,
) -> None:
    client = Client(crowded)
    await client.ask(HEARTBEAT, {}, heartbeat_body("c", {"brief": ()}))
    crowded.config.auto_create_subscription_group = False
    async with crowded.parts.long_answers.turn(client.line.connection):
        under_way = client.send(CLONE, {"srcGroup": "many", "destGroup": "brief"})
        for _ in range(10):
            await asyncio.sleep(0)
        crowded.groups.remove("brief")
    assert (await client.answer(under_way)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert crowded.offsets.topics_of("brief") == set()


async def test_a_clone_that_ends_half_way_says_how_far_it_came(tmp_path: Path) -> None:
    async with running(tmp_path, max_consumer_offsets=4) as broker:
        client = Client(broker)
        for number in range(3):
            broker.offsets.keep("source", f"t-{number}", 0, 1)
        code, remark = await clone(client, "source", GROUP)
        assert code == ResponseCode.SYSTEM_ERROR
        assert "maxConsumerOffsets is 4" in remark
        assert "1 of 3 topics were cloned before" in remark
        assert len(broker.offsets.topics_of(GROUP)) == 1


async def test_the_loop_does_other_work_while_many_topics_are_cloned(crowded: Broker) -> None:
    client = Client(crowded)
    under_way = client.send(CLONE, {"srcGroup": "many", "destGroup": GROUP})
    turns_with_some = 0
    while len(crowded.offsets.topics_of(GROUP)) < MANY:
        await asyncio.sleep(0)
        turns_with_some += bool(crowded.offsets.topics_of(GROUP))
    assert turns_with_some > 2, "in one piece it is one"
    assert (await client.answer(under_way)).code == 0


async def test_offsets_are_cloned_of_topics_that_the_sender_may_consume(
    filled: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a topic the request names none, and one with white space is another one."""
    checked: list[str] = []

    def check(*about: Any) -> None:
        checked.append(about[-1])
        raise AccessRefusedError("no", code=16, reason="permission", account="a")

    await commit(client, "fast", {0: 1})
    monkeypatch.setattr(filled.handlers, "check_resource", check)
    for topic in (" orders ", ""):
        code, _ = await clone(client, "fast", "other", topic=topic)
        assert code == 16
    assert checked == ["orders", "orders"]
    assert filled.offsets.query("other", "orders", 0) == -1
