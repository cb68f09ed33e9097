"""Test codes 41 and 42 as bytes over a socket, as a Java consumer sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.integration.raw_client import Command, RawClient

from cometmq.testing import Cluster

LOCK, UNLOCK = 41, 42


@pytest.fixture
def client() -> Iterator[RawClient]:
    with Cluster() as cluster, RawClient(f"127.0.0.1:{cluster.brokers[0].port}") as client:
        yield client


def ask(client: RawClient, code: int, client_id: str, *queue_ids: int) -> Command:
    queues = [{"brokerName": "broker-a", "queueId": i, "topic": "t"} for i in queue_ids]
    body = {"clientId": client_id, "consumerGroup": "g", "mqSet": queues, "onlyThisBroker": False}
    answer = client.ask(code, body=json.dumps(body).encode())
    assert answer.code == 0
    return answer


def locked(client: RawClient, client_id: str, *queue_ids: int) -> list[int]:
    body = json.loads(ask(client, LOCK, client_id, *queue_ids).body)
    assert set(body) == {"lockOKMQSet"}
    assert all(q["brokerName"] == "broker-a" and q["topic"] == "t" for q in body["lockOKMQSet"])
    return [queue["queueId"] for queue in body["lockOKMQSet"]]


def test_a_queue_is_one_clients_until_it_is_unlocked(client: RawClient) -> None:
    assert locked(client, "one", 0, 1) == [0, 1]
    assert locked(client, "two", 1, 2) == [2]
    ask(client, UNLOCK, "two", 1)
    assert locked(client, "two", 1) == []
    ask(client, UNLOCK, "one", 1)
    assert locked(client, "two", 1) == [1]


def test_a_damaged_body_is_refused(client: RawClient) -> None:
    for code in (LOCK, UNLOCK):
        answer = client.ask(code, body=b'{"clientId":7')
        assert answer.code != 0
        assert answer.remark


def test_as_many_queues_as_a_request_may_name_are_locked_all_or_none(client: RawClient) -> None:
    many = [{"brokerName": "broker-a", "queueId": i, "topic": "t"} for i in range(2_048)]
    body = {"clientId": "one", "consumerGroup": "g", "mqSet": many}
    few = {**body, "mqSet": many[:1]}
    held = client.send(LOCK, body=json.dumps(body).encode())
    freed = client.send(UNLOCK, body=json.dumps(few).encode())
    assert len(json.loads(client.answer(held).body)["lockOKMQSet"]) == 2_048
    assert client.answer(freed).code == 0
    assert locked(client, "two", 0, 1, 2_047) == [0]
    long = {**many[0], "topic": "t" * 256}
    body = {"clientId": "two", "consumerGroup": "h", "mqSet": [*many[:2_000], long]}
    assert "MAX_NAME_LENGTH" in (client.ask(LOCK, body=json.dumps(body).encode()).remark or "")
    body = {"clientId": "one", "consumerGroup": "h", "mqSet": many[:300]}
    answer = client.ask(LOCK, body=json.dumps(body).encode())
    assert len(json.loads(answer.body)["lockOKMQSet"]) == 300, "all or none was locked"
