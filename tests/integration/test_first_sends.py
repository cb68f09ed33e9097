"""A send that creates its topic is acknowledged when name servers know the topic."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from tests.integration.raw_client import ONEWAY, RawClient, pull_ext, send_ext
from tests.waits import WAIT_S

from cometmq.broker.operation import registration
from cometmq.testing import Cluster

SEND, PULL, MAX_OFFSET, ROUTE = 10, 11, 30, 105
TOPIC_COUNT = 50


def route(client: RawClient, topic: str) -> Any:
    answer = client.ask(ROUTE, {"topic": topic})
    return json.loads(answer.body) if answer.code == 0 else None


def test_whoever_has_the_answer_finds_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    # After a second a broker waits no longer for a name server, which on a busy machine only seems to
    # be silent.
    monkeypatch.setattr(registration, "_ANNOUNCEMENT_WAIT_S", WAIT_S)
    with Cluster(name_servers=2, brokers=2) as cluster:
        name_servers = [RawClient(address) for address in cluster.namesrv.split(";")]
        senders = [RawClient(broker.address) for broker in cluster.brokers]
        for number in range(TOPIC_COUNT):
            topic = f"orders-{number}"
            for count, sender in enumerate(senders, 1):
                assert sender.ask(SEND, send_ext(topic), b"x").code == 0
                for name_server in name_servers:
                    found = route(name_server, topic)
                    assert found is not None, topic
                    assert len(found["queueDatas"]) == count
        for client in (*name_servers, *senders):
            client.close()


def test_messages_keep_their_order_and_none_costs_another_its_answer() -> None:
    # A name server that takes connections and never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        with (
            Cluster(properties={"namesrvAddr": address}) as cluster,
            RawClient(cluster.brokers[0].address) as client,
        ):
            sent = [client.send(SEND, send_ext("orders"), b"%d" % at) for at in range(20)]
            client.send(SEND, send_ext("orders"), b"20", flag=ONEWAY)
            refused = client.send(SEND, send_ext("orders", queueId=99), b"no such queue")
            last = client.send(SEND, send_ext("orders"), b"21")
            other = client.send(SEND, send_ext("others"), b"another topic")
            answers = [client.answer(opaque) for opaque in sent]
            assert [answer.code for answer in answers] == [0] * 20
            assert [answer.ext["queueOffset"] for answer in answers] == [
                str(at) for at in range(20)
            ]
            answer = client.answer(refused)
            assert answer.code != 0
            assert "queueId[99]" in (answer.remark or "")
            assert client.answer(last).ext["queueOffset"] == "21"
            assert client.answer(other).code == 0
            # From now on no send has to wait.
            assert client.ask(SEND, send_ext("orders"), b"22").ext["queueOffset"] == "22"
            assert client.ask(MAX_OFFSET, {"topic": "orders", "queueId": 0}).ext["offset"] == "23"
            pulled = client.ask(PULL, pull_ext("orders")).body
            assert pulled.index(b"\x00\x00\x00\x0220") < pulled.index(b"\x00\x00\x00\x0221")
