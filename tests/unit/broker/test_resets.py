"""A reset of offsets holds until a member has followed it, whatever is lost on the way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import pull_ext, send_ext
from tests.unit.broker.broker_box import GROUP, Client, records, running

from cometmq.broker.groups.offsets import ConsumerOffsetManager
from cometmq.broker.server import Broker
from cometmq.protocol.bodies.cluster import ConsumerOffsetSerializeWrapper
from cometmq.protocol.codes import OFFSET_WAS_RESET, ResponseCode

SEND, PULL, QUERY_OFFSET, COMMIT_OFFSET, ALL_OFFSETS, RESET = 10, 11, 14, 15, 43, 222
MOVED = ResponseCode.PULL_OFFSET_MOVED
COMMIT, STATED = 1, 4
MESSAGES = 10


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path) as broker:
        await fill(broker)
        yield broker


async def fill(broker: Broker) -> None:
    """Store messages that the group has consumed."""
    client = Client(broker)
    for number in range(MESSAGES):
        assert (await client.ask(SEND, send_ext("orders"), b"%d" % number)).code == 0
    broker.offsets.commit(GROUP, "orders", 0, MESSAGES)


async def reset(broker: Broker, offset: int = 0) -> None:
    operator = Client(broker, host="127.0.0.1")
    ext = {"topic": "orders", "group": GROUP, "timestamp": 0, "isForce": "true"}
    answer = await operator.ask(RESET, {**ext, "queueId": 0, "offset": offset})
    assert answer.code == 0, answer.remark


async def pulled(member: Client, position: int, **fields: Any) -> tuple[int, int]:
    """Pull from `position`; return the code, and where the answer says to go on."""
    ext = pull_ext("orders", consumerGroup=GROUP, queueOffset=position, **fields)
    answer = await member.ask(PULL, ext)
    return answer.code, int(answer.ext["nextBeginOffset"])


async def committed(member: Client, offset: int) -> str | None:
    ext = {"topic": "orders", "consumerGroup": GROUP, "queueId": 0, "commitOffset": offset}
    answer = await member.ask(COMMIT_OFFSET, ext)
    assert answer.code == 0, answer.remark
    return answer.remark


async def test_a_reset_is_not_lost_with_the_answer_that_names_it(broker: Broker) -> None:
    """0 of 900 messages were replayed: the member committed its old position, and nobody knew better."""
    first = Client(broker)
    await reset(broker, 3)
    assert await pulled(first, MESSAGES) == (MOVED, 3)
    # That answer was lost with its connection, and the member goes on where it was.
    again = Client(broker, port=4712)
    assert await committed(again, MESSAGES) == OFFSET_WAS_RESET
    code, _ = await pulled(again, MESSAGES, sysFlag=COMMIT | STATED, commitOffset=MESSAGES)
    assert code == MOVED
    assert broker.offsets.query(GROUP, "orders", 0) == 3
    # Until it pulls from the new offset, nothing that it commits counts.
    assert await committed(again, MESSAGES) == OFFSET_WAS_RESET
    assert await pulled(again, 3) == (0, MESSAGES)
    assert await committed(again, 5) is None
    assert broker.offsets.query(GROUP, "orders", 0) == 5


async def test_a_member_that_waits_at_the_new_offset_learns_of_the_reset_too(
    broker: Broker,
) -> None:
    """It may hold messages from before that offset, which it must drop."""
    member = Client(broker)
    await reset(broker, MESSAGES)
    assert await pulled(member, MESSAGES) == (MOVED, MESSAGES)
    code, _ = await pulled(member, MESSAGES)
    assert code == ResponseCode.PULL_NOT_FOUND
    assert await committed(member, 7) is None


async def test_a_member_that_asked_for_its_offset_is_served_from_there_at_once(
    broker: Broker,
) -> None:
    await reset(broker, 4)
    member = Client(broker)
    ext = {"topic": "orders", "consumerGroup": GROUP, "queueId": 0}
    assert (await member.ask(QUERY_OFFSET, ext)).ext["offset"] == "4"
    assert await pulled(member, 4) == (0, MESSAGES)
    assert await committed(member, 6) is None


async def test_a_program_that_keeps_its_own_offsets_is_not_held_up_for_ever(
    broker: Broker,
) -> None:
    await reset(broker, 0)
    member = Client(broker)
    codes = [(await pulled(member, 8))[0] for _ in range(4)]
    assert codes == [MOVED, MOVED, MOVED, 0]
    assert await committed(member, 9) is None


async def test_a_later_reset_replaces_one_that_was_not_followed(broker: Broker) -> None:
    member = Client(broker)
    await reset(broker, 3)
    assert await pulled(member, MESSAGES) == (MOVED, 3)
    await reset(broker, 5)
    assert await pulled(member, 3) == (MOVED, 5)
    assert await pulled(member, 5) == (0, MESSAGES)


async def test_a_reset_outlives_its_broker(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await fill(broker)
        await reset(broker, 2)
        # Written before it was answered: a kill may follow.
        saved = json.loads((tmp_path / "config" / "consumerOffset.json").read_text())
        assert saved["resetOffsetTable"] == {f"orders@{GROUP}": {"0": 2}}
    async with running(tmp_path) as broker:
        member = Client(broker)
        assert await committed(member, MESSAGES) == OFFSET_WAS_RESET
        assert await pulled(member, MESSAGES) == (MOVED, 2)
        assert await pulled(member, 2) == (0, MESSAGES)
    saved = json.loads((tmp_path / "config" / "consumerOffset.json").read_text())
    assert "resetOffsetTable" not in saved


async def test_a_slave_keeps_resets_for_the_day_when_it_is_promoted(broker: Broker) -> None:
    await reset(broker, 2)
    answer = await Client(broker, host="127.0.0.1").ask(ALL_OFFSETS, {})
    copied = json.loads(bytes(answer.body))
    assert copied["resetOffsetTable"] == {f"orders@{GROUP}": {"0": 2}}

    table = ConsumerOffsetSerializeWrapper(
        offset_table={f"orders@{GROUP}": {0: 2}}, reset_offset_table={f"orders@{GROUP}": {0: 2}}
    )
    slave = ConsumerOffsetManager()
    slave.is_copy = True
    list(slave.merge(table, 0))
    # As a slave it resets nobody: it would do so again after each copy of its master's table.
    assert slave.moved_to(GROUP, "orders", 0, 9, "a connection") is None
    assert slave.commit(GROUP, "orders", 0, 9)
    slave.is_copy = False
    assert slave.moved_to(GROUP, "orders", 0, 9, "a connection") == 2
    # Once the members have followed it at the master, the next copy has it no more.
    slave.is_copy = True
    list(slave.merge(ConsumerOffsetSerializeWrapper(offset_table={f"orders@{GROUP}": {0: 9}}), 0))
    slave.is_copy = False
    assert slave.moved_to(GROUP, "orders", 0, 9, "a connection") is None


async def test_a_member_that_leaves_commits_nothing_over_a_reset(broker: Broker) -> None:
    await reset(broker, 1)
    leaving = Client(broker)
    assert await pulled(leaving, MESSAGES) == (MOVED, 1)
    assert await committed(leaving, MESSAGES) == OFFSET_WAS_RESET
    joining = Client(broker, port=4712)
    ext = {"topic": "orders", "consumerGroup": GROUP, "queueId": 0}
    assert (await joining.ask(QUERY_OFFSET, ext)).ext["offset"] == "1"
    answer = await joining.ask(PULL, pull_ext("orders", consumerGroup=GROUP, queueOffset=1))
    assert len(records(answer)) == MESSAGES - 1
