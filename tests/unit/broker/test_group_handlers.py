"""Consumer groups that operators make, change, list and delete."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import heartbeat_body, pull_ext
from tests.unit.broker.broker_box import GROUP, SILENT_GROUP, Client, running

from cometmq.broker.server import Broker
from cometmq.protocol.codes import ResponseCode

PULL = 11
HEARTBEAT = 34
MAKE, ALL, DELETE, MAKE_LIST, GET, FORBID = 200, 201, 207, 225, 352, 353
DELETE_TOPIC = 215
# The client's address.
ADMIN: dict[str, Any] = {"admin_from": "10.0.0.9"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path, auto_create_subscription_group=False, **ADMIN) as broker:
        yield broker


def body(name: str, **changes: Any) -> bytes:
    return json.dumps({"groupName": name, **changes}).encode()


async def config(client: Client, group: str) -> dict[str, Any]:
    answer = await client.ask(GET, {"group": group})
    assert answer.code == 0, answer.remark
    found: dict[str, Any] = json.loads(bytes(answer.body))
    return found


async def test_a_group_is_made_changed_and_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, **ADMIN) as broker:
        client = Client(broker)
        assert (await client.ask(MAKE, {}, body("new", retryMaxTimes=3))).code == 0
        assert (await config(client, "new"))["retryMaxTimes"] == 3
        changes = {"consumeEnable": False, "attributes": {"+priority.factor": "5"}}
        assert (await client.ask(MAKE, {}, body("new", **changes))).code == 0
        changed = await config(client, "new")
        assert (changed["retryMaxTimes"], changed["consumeEnable"]) == (16, False)
        assert changed["attributes"] == {"priority.factor": "5"}
        # The answer came when the disk had it.
        table = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
        assert table["subscriptionGroupTable"]["new"] == changed
    async with running(tmp_path, **ADMIN) as broker:
        assert await config(Client(broker), "new") == changed


async def test_a_group_that_may_not_consume_is_refused_until_it_may(broker: Broker) -> None:
    client = Client(broker)
    pull = pull_ext("orders", consumerGroup=SILENT_GROUP, queueOffset=0)
    assert (await client.ask(PULL, pull)).code == ResponseCode.NO_PERMISSION
    assert (await client.ask(MAKE, {}, body(SILENT_GROUP))).code == 0
    assert (await client.ask(PULL, pull)).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (body(""), "blank"),
        (body("a b"), "characters outside"),
        (body("g" * 121), "the limit is 120"),
        (body("new", retryQueueNums=-1), "cannot have -1 retry queues"),
        (body("new", attributes={"+colour": "red"}), "no attribute 'colour'"),
    ],
)
async def test_a_group_that_cannot_be_is_refused(broker: Broker, group: bytes, why: str) -> None:
    client = Client(broker)
    before = broker.groups.table.data_version.counter
    answer = await client.ask(MAKE, {}, group)
    assert answer.code == ResponseCode.INVALID_PARAMETER, answer.remark
    assert why in str(answer.remark)
    assert broker.groups.table.data_version.counter == before


async def test_a_list_is_made_whole_or_not_at_all(broker: Broker) -> None:
    client = Client(broker)
    good = [{"groupName": f"g{i}", "retryMaxTimes": i} for i in range(250)]
    bad = {"groupName": "bad", "retryQueueNums": -1}
    lists = [json.dumps({"groupConfigList": groups}).encode() for groups in ([*good, bad], good)]
    assert (await client.ask(MAKE_LIST, {}, lists[0])).code == ResponseCode.INVALID_PARAMETER
    assert broker.groups.get("g1") is None
    assert (await client.ask(MAKE_LIST, {}, lists[1])).code == 0
    assert (await config(client, "g249"))["retryMaxTimes"] == 249
    many = json.dumps({"groupConfigList": [{"groupName": "g"}] * 1_025}).encode()
    assert "MAX_GROUPS is 1024" in str((await client.ask(MAKE_LIST, {}, many)).remark)


async def test_asking_for_a_group_makes_it_where_use_makes_groups(
    tmp_path: Path, broker: Broker
) -> None:
    """Java's tools ask for a group before its first member comes, and stopped at the refusal."""
    answer = await Client(broker).ask(GET, {"group": "absent"})
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "does not exist" in str(answer.remark)
    assert broker.groups.get("absent") is None
    async with running(tmp_path / "made") as maker:
        assert (await config(Client(maker), "absent"))["groupName"] == "absent"
        assert maker.groups.get("absent") is not None


async def test_all_groups_are_listed_with_their_version(broker: Broker) -> None:
    found = json.loads(bytes((await Client(broker).ask(ALL, {})).body))
    assert (
        found["subscriptionGroupTable"].keys()
        == broker.groups.table.subscription_group_table.keys()
    )
    assert found["subscriptionGroupTable"][GROUP]["groupName"] == GROUP
    assert found["dataVersion"]["counter"] == broker.groups.table.data_version.counter
    assert found["forbiddenTable"] == {}


@pytest.mark.parametrize("switch", ["cleanOffset", "removeOffset", None])
async def test_a_deleted_group_keeps_its_offsets_unless_asked(
    broker: Broker, switch: str | None
) -> None:
    client = Client(broker)
    broker.offsets.commit(GROUP, "orders", 1, 0)
    header = {"groupName": GROUP} | ({switch: "true"} if switch else {})
    assert (await client.ask(DELETE, header)).code == 0
    assert broker.groups.get(GROUP) is None
    assert broker.offsets.query(GROUP, "orders", 1) == (0 if switch is None else -1)
    # One that is gone is deleted again, as in Java.
    assert (await client.ask(DELETE, header)).code == 0


async def test_a_change_that_the_disk_refuses_is_said(tmp_path: Path) -> None:
    async with running(tmp_path, **ADMIN) as broker:
        (tmp_path / "config" / "subscriptionGroup.json.tmp").mkdir()
        answer = await Client(broker).ask(MAKE, {}, body("new"))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "subscriptionGroup.json" in str(answer.remark)
        (tmp_path / "config" / "subscriptionGroup.json.tmp").rmdir()
        assert (await Client(broker).ask(MAKE, {}, body("new", retryMaxTimes=1))).code == 0


async def test_who_is_no_administrator_makes_and_deletes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        for code, ext in ((MAKE, {}), (MAKE_LIST, {}), (DELETE, {"groupName": GROUP})):
            answer = await client.ask(code, ext, body("new"))
            assert answer.code == ResponseCode.NO_PERMISSION
        assert broker.groups.get("new") is None
        assert broker.groups.get(GROUP) is not None


async def test_a_group_that_cannot_be_written_keeps_no_other_from_the_disk(
    tmp_path: Path,
) -> None:
    # Its policy was deeper than JSON that the broker writes; it was taken, and no group was written
    # any more.
    async with running(tmp_path, **ADMIN) as broker:
        client = Client(broker)
        for depth in (61, 62, 63, 64, 70, 500):
            policy = b'{"a":' * depth + b"1" + b"}" * depth
            deep = b'{"groupName":"deep%d","groupRetryPolicy":%b}' % (depth, policy)
            answer = await client.ask(MAKE, {}, deep)
            if answer.code != 0:
                assert answer.code == ResponseCode.INVALID_PARAMETER, answer.remark
                assert broker.groups.get(f"deep{depth}") is None
        assert broker.groups.get("deep70") is None
        assert (await client.ask(MAKE, {}, body("later"))).code == 0
        assert (await client.ask(ALL, {})).code == 0
    async with running(tmp_path, **ADMIN) as broker:
        assert broker.groups.get("later") is not None


async def test_offsets_of_a_deleted_group_are_off_the_disk_before_the_answer(
    broker: Broker, tmp_path: Path
) -> None:
    broker.offsets.commit(GROUP, "orders", 1, 0)
    broker.offsets.commit("other", "orders", 1, 0)
    header = {"groupName": GROUP, "cleanOffset": "true"}
    assert (await Client(broker).ask(DELETE, header)).code == 0
    table = json.loads((tmp_path / "config" / "consumerOffset.json").read_text())
    assert table["offsetTable"] == {"orders@other": {"1": 0}}


# Topics that a group may not read


async def readable(client: Client, topic: str, **wanted: object) -> bool:
    answer = await client.ask(FORBID, {"group": GROUP, "topic": topic, **wanted})
    assert answer.code == 0, answer.remark
    found = json.loads(bytes(answer.body))
    assert (found["group"], found["topic"]) == (GROUP, topic)
    return bool(found["readable"])


async def test_a_group_is_forbidden_a_topic_and_allowed_it_again(tmp_path: Path) -> None:
    own_pull = pull_ext("orders", consumerGroup=GROUP, sysFlag=0, subVersion=0)
    async with running(tmp_path, **ADMIN) as broker:
        client = Client(broker)
        await client.ask(HEARTBEAT, {}, heartbeat_body("c", {GROUP: ("orders",)}))
        assert await readable(client, "orders")
        assert (await client.ask(PULL, own_pull)).code == ResponseCode.PULL_NOT_FOUND
        assert not await readable(client, "orders", readable="false")
        assert not await readable(client, "narrow", readable="false")
        refused = await client.ask(PULL, own_pull)
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "is forbidden for topic[orders]" in str(refused.remark)
        assert refused.ext["forbiddenType"] == "5"
        table = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
        assert table["forbiddenTable"] == {GROUP: {"orders": 4, "narrow": 4}}
    async with running(tmp_path, **ADMIN) as broker:
        client = Client(broker)
        await client.ask(HEARTBEAT, {}, heartbeat_body("c", {GROUP: ("orders",)}))
        assert (await client.ask(PULL, own_pull)).code == ResponseCode.NO_PERMISSION
        assert await readable(client, "orders", readable="true")
        assert (await client.ask(PULL, own_pull)).code == ResponseCode.PULL_NOT_FOUND
        assert not await readable(client, "narrow"), "Java allows all topics of the group again"


async def test_a_topic_made_anew_is_not_forbidden_to_those_of_the_old_one(tmp_path: Path) -> None:
    async with running(tmp_path, **ADMIN) as broker:
        client = Client(broker)
        await client.ask(HEARTBEAT, {}, heartbeat_body("c", {GROUP: ("orders",)}))
        before = broker.topics.get("orders")
        assert before is not None
        for topic in ("orders", "narrow"):
            assert not await readable(client, topic, readable="false")
        assert (await client.ask(DELETE_TOPIC, {"topic": "orders"})).code == 0
        broker.topics.put(before)
        assert await readable(client, "orders")
        assert not await readable(client, "narrow"), "another topic"
    table = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
    assert table["forbiddenTable"] == {GROUP: {"narrow": 4}}


@pytest.mark.parametrize(
    ("group", "topic", "code"),
    [
        ("unknown", "orders", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        (GROUP, "nowhere", ResponseCode.TOPIC_NOT_EXIST),
    ],
)
async def test_what_is_not_there_cannot_be_forbidden(
    broker: Broker, group: str, topic: str, code: int
) -> None:
    client = Client(broker)
    answer = await client.ask(FORBID, {"group": group, "topic": topic, "readable": "false"})
    assert answer.code == code
    assert broker.groups.table.forbidden_table == {}
