"""The memory that requests leave occupied in a server has a bound, whatever names their senders
invent.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.raw_client import Command, RawClient, heartbeat_body, json_frame

from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.cluster import RegisterBrokerBody, TopicConfigSerializeWrapper
from cometmq.protocol.bodies.registration import encode_register_body
from cometmq.protocol.limits import MAX_NAME_LENGTH
from cometmq.testing import Cluster

HEARTBEAT, REGISTER, UNREGISTER, ROUTE, SET_TOPIC, PRODUCERS = 34, 103, 104, 105, 217, 328
LONG = "n" * (MAX_NAME_LENGTH + 1)
TOPIC = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(namesrv_properties={"maxRoutes": "9000"}) as cluster:
        yield cluster


@pytest.fixture
def peer(cluster: Cluster) -> Iterator[RawClient]:
    with RawClient(cluster.namesrv) as client:
        yield client


def registration(*topics: str, **wrapper: Any) -> bytes:
    table = {name: {"topicName": name, **TOPIC} for name in topics}
    version = {"counter": len(table), "stateVersion": 0, "timestamp": 1}
    return json.dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": version,
                "topicConfigTable": table,
                **wrapper,
            },
        }
    ).encode()


def register(client: RawClient, body: bytes, **fields: str) -> Command:
    ext = {
        "brokerName": "kept",
        "brokerAddr": "127.0.0.1:7",
        "clusterName": "c",
        "haServerAddr": "127.0.0.1:8",
        "brokerId": "0",
        "compressed": str(body[:1] == b"x").lower(),
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        **fields,
    }
    return client.ask(REGISTER, ext, body)


def refused_for_its_length(answer: Command) -> bool:
    remark = answer.remark or ""
    return answer.code != 0 and f"the limit MAX_NAME_LENGTH is {MAX_NAME_LENGTH}; use a" in remark


@pytest.mark.parametrize(
    "field", ["brokerName", "brokerAddr", "clusterName", "haServerAddr", "__ZONE_NAME"]
)
def test_a_broker_has_short_names(peer: RawClient, field: str) -> None:
    assert refused_for_its_length(register(peer, registration("a", "b"), **{field: LONG}))


@pytest.mark.parametrize("count", [2, 6_000], ids=["small", "in steps"])
@pytest.mark.parametrize("form", ["plain", "compressed"])
def test_a_registered_topic_has_a_short_name(peer: RawClient, form: str, count: int) -> None:
    names = [f"t-{i:040d}" for i in range(count)] + [LONG]
    body = registration(*names)
    if form == "compressed":
        configs = {name: TopicConfig(name) for name in names}
        wrapper = TopicConfigSerializeWrapper(topic_config_table=configs)
        body = encode_register_body(RegisterBrokerBody([], wrapper), compressed=True)
    assert refused_for_its_length(register(peer, body))
    assert peer.ask(ROUTE, {"topic": names[0]}).code != 0, "all or nothing"


def test_a_topic_that_is_set_has_a_short_name(peer: RawClient) -> None:
    assert register(peer, registration("a", "b")).code == 0
    body = json.dumps({"queueDatas": [{"brokerName": "kept", **TOPIC}], "brokerDatas": []})
    assert refused_for_its_length(peer.ask(SET_TOPIC, {"topic": LONG}, body.encode()))


def mapped(*topics: str, **mapping: Any) -> bytes:
    maps = {name: {"bname": "kept", "topic": name, **mapping} for name in topics}
    return registration("a", *topics, topicQueueMappingInfoMap=maps)


def test_mappings_of_other_brokers_are_not_kept(cluster: Cluster, peer: RawClient) -> None:
    """They would stay in the table for ever: nobody of that name goes."""
    table = cluster.name_servers[0].table

    def kept() -> set[str]:
        routes = {topic: table.route(topic) for topic in ("m", *(f"m-{n}" for n in range(4)))}
        return {
            topic
            for topic, route in routes.items()
            if route is not None and route.topic_queue_mapping_by_broker
        }

    for number in range(3):
        body = mapped(f"m-{number}", "m", bname="nobody")
        assert register(peer, body).code == 0
    assert kept() == set()
    assert register(peer, mapped("m-1", "m-2", "m-3")).code == 0
    assert kept() == {"m-1", "m-2", "m-3"}
    peer.ask(
        UNREGISTER,
        {"brokerName": "kept", "brokerAddr": "127.0.0.1:7", "clusterName": "c", "brokerId": 0},
    )
    assert kept() == set()
    assert not {"a", "m-1", "m-2", "m-3"} & set(table.topics())


def test_mappings_count_as_routes_by_their_length(peer: RawClient) -> None:
    long = {str(number): number for number in range(15_000)}
    names = [f"m-{number}" for number in range(10)]
    assert register(peer, mapped(*names[:4], currIdMap=long)).code == 0
    assert register(peer, mapped(*names[:6], currIdMap=long)).code == 0, "four of them were there"
    answer = register(peer, mapped(*names, currIdMap=long))
    assert answer.code != 0
    assert "limit maxRoutes is 9000; " in (answer.remark or "")


@pytest.mark.parametrize("odd", [[1], {"a": {"b": 1}}, 1.5, {"a": [1]}], ids=repr)
def test_a_mapping_that_would_spoil_a_route_is_refused(
    cluster: Cluster, peer: RawClient, odd: Any
) -> None:
    answer = register(peer, mapped("m", "n", currIdMap=odd))
    assert answer.code != 0
    assert "currIdMap" in (answer.remark or "")


def test_a_client_has_a_language_that_java_knows(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    header = {"code": HEARTBEAT, "opaque": 1, "language": "x" * 500_000, "version": 479}
    with RawClient(broker.address) as client:
        client.socket.sendall(json_frame(header, heartbeat_body("c@kept", {"kept": ["T"]})))
        assert client.answer(1).code == 0
        [member] = broker.clients.consumers("kept")
        assert member.language == "OTHER"
