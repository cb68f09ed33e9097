"""Locks of orderly consumers, as the broker's answers give them."""

from __future__ import annotations

import json

from tests.unit.broker.broker_box import Client

LOCK, UNLOCK = 41, 42


def body(client_id: str, *queue_ids: int, group: str = "g") -> bytes:
    queues = [{"topic": "orders", "brokerName": "b", "queueId": at} for at in queue_ids]
    wanted = {"consumerGroup": group, "clientId": client_id, "mqSet": queues}
    return json.dumps(wanted).encode()


async def locked(client: Client, client_id: str, *queue_ids: int, group: str = "g") -> list[int]:
    answer = await client.ask(LOCK, {}, body(client_id, *queue_ids, group=group))
    assert answer.code == 0, answer.remark
    return [queue["queueId"] for queue in json.loads(bytes(answer.body))["lockOKMQSet"]]


async def test_a_queue_is_held_by_one_member_of_a_group(client: Client) -> None:
    assert await locked(client, "first", 0, 1) == [0, 1]
    assert await locked(client, "second", 0, 1, 2) == [2]
    assert await locked(client, "first", 0, 1) == [0, 1]  # again, to renew them
    assert await locked(client, "second", 0, group="other") == [0]


async def test_only_who_holds_a_queue_gives_it_back(client: Client) -> None:
    assert await locked(client, "first", 0) == [0]
    assert (await client.ask(UNLOCK, {}, body("second", 0))).code == 0
    assert await locked(client, "second", 0) == []
    assert (await client.ask(UNLOCK, {}, body("first", 0))).code == 0
    assert await locked(client, "second", 0) == [0]


async def test_a_request_locks_no_more_than_the_limit(client: Client) -> None:
    assert len(await locked(client, "c", *range(2_048))) == 2_048
    for code in (LOCK, UNLOCK):
        answer = await client.ask(code, {}, body("c", *range(2_049)))
        assert (answer.code, "MAX_LOCKS_AT_ONCE is 2048" in str(answer.remark)) == (1, True)
