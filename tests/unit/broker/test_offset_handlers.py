"""Offsets that groups store and ask for: what is taken, and what would lose messages and is not."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.raw_client import send_ext
from tests.unit.broker.broker_box import Client

from cometmq.broker.server import Broker
from cometmq.model import names
from cometmq.protocol.codes import ResponseCode

SEND, QUERY, UPDATE, SEARCH, MAX, MIN, EARLIEST, RESET = 10, 14, 15, 29, 30, 31, 32, 222
INVALID = ResponseCode.INVALID_PARAMETER


def offset_ext(**fields: Any) -> dict[str, Any]:
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": 0, **fields}
    return {name: value for name, value in ext.items() if value is not None}


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"commitOffset": 4}, INVALID, "ends at 3; commit an offset from 0 to 3"),
        ({"commitOffset": -1}, INVALID, "commit an offset from 0 to 3"),
        ({"commitOffset": 1, "queueId": 1}, INVALID, "ends at 0"),
        ({"commitOffset": 0, "queueId": 9}, INVALID, "queueId[9] is illegal"),
        ({"commitOffset": None}, INVALID, "give both"),
        ({"commitOffset": 0, "topic": "absent"}, ResponseCode.TOPIC_NOT_EXIST, "absent"),
    ],
)
async def test_an_offset_that_is_no_place_is_not_stored(
    broker: Broker, client: Client, fields: dict[str, Any], code: int, remark: str
) -> None:
    for _ in range(3):
        assert (await client.ask(SEND, send_ext("orders"), b"x")).code == 0
    assert (await client.ask(UPDATE, offset_ext(commitOffset=2))).code == 0
    answer = await client.ask(UPDATE, offset_ext(**fields))
    assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark
    assert (await client.ask(QUERY, offset_ext())).ext["offset"] == "2"
    for queue_id in (1, 9):
        assert broker.offsets.query("g", "orders", queue_id) == -1
    # The end itself is the place of a group that has consumed all.
    assert (await client.ask(UPDATE, offset_ext(commitOffset=3))).code == 0


async def test_a_new_group_begins_at_the_start_of_a_young_queue_unless_it_asks(
    client: Client,
) -> None:
    await client.ask(SEND, send_ext("orders"), b"x")
    assert (await client.ask(QUERY, offset_ext())).ext["offset"] == "0"
    own = await client.ask(QUERY, offset_ext(setZeroIfNotFound="false"))
    assert (own.code, "group g has no offset" in str(own.remark)) == (22, True)


async def test_the_bounds_of_queues_that_hold_nothing_are_answered(client: Client) -> None:
    for code in (MAX, MIN):
        assert (await client.ask(code, offset_ext(queueId=3))).ext["offset"] == "0"
    assert (await client.ask(EARLIEST, offset_ext(queueId=3))).ext["timestamp"] == "-1"
    search = await client.ask(SEARCH, offset_ext(queueId=3, timestamp=1))
    assert (search.code, search.ext["offset"]) == (0, "0")


async def test_a_group_that_nobody_has_met_stores_no_offset(client: Client) -> None:
    answer = await client.ask(UPDATE, offset_ext(consumerGroup="unmet", commitOffset=0))
    assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert "subscription group [unmet] does not exist" in str(answer.remark)


async def test_who_commits_after_a_reset_is_told_that_it_is_ignored(client: Client) -> None:
    for _ in range(3):
        await client.ask(SEND, send_ext("orders"), b"x")
    taken = await client.ask(UPDATE, offset_ext(commitOffset=2))
    assert (taken.code, taken.remark) == (0, None)
    reset = {"topic": "orders", "group": "g", "timestamp": 0, "isForce": "true"}
    assert (await client.ask(RESET, reset)).code == 0
    ignored = await client.ask(UPDATE, offset_ext(commitOffset=3))
    # Java's code and remark.
    assert (ignored.code, ignored.remark) == (0, "Offset has been previously reset")
    assert (await client.ask(QUERY, offset_ext())).ext["offset"] == "0"


CLONE = 314
OWN = names.TRANSACTION_GROUP


async def test_nobody_sets_the_offsets_by_which_the_broker_finds_its_transactions(
    broker: Broker, client: Client
) -> None:
    """A client that may consume all topics could have transactions that had ended committed once more,
    after the broker was killed.
    """
    await client.ask(SEND, send_ext("orders"), b"x")
    reset = {"topic": "orders", "group": OWN, "timestamp": -1, "isForce": "true"}
    clone = {"srcGroup": "g", "destGroup": OWN, "topic": "orders"}
    for code, ext in (
        (UPDATE, offset_ext(consumerGroup=OWN, commitOffset=1)),
        (RESET, reset),
        (CLONE, clone),
    ):
        answer = await client.ask(code, ext)
        assert answer.code == ResponseCode.NO_PERMISSION, answer.remark
        assert f"the offsets of group {OWN} are the broker's own" in str(answer.remark)
    ignored = broker.offsets.ignored_count
    broker.offsets.commit_of_pull(OWN, "orders", 0, 1, 1)
    assert broker.offsets.ignored_count == ignored + 1
    assert broker.offsets.query(OWN, "orders", 0) == -1
