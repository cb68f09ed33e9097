"""Ask a name server behind a real socket, as brokers, clients and operators ask."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.waits import WAIT_S, until

from cometmq.errors import ConfigError
from cometmq.model.route import ClusterInfo, QueueData, TopicRouteData
from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.protocol import headers
from cometmq.protocol.bodies.cluster import (
    GetBrokerMemberGroupResponseBody,
    KVTable,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    TopicList,
)
from cometmq.protocol.bodies.registration import body_crc, encode_register_body
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, request
from cometmq.protocol.fastjson.dialect import decode_body, encode_body
from cometmq.protocol.header import Header
from cometmq.remoting.client import RemotingClient


class Peer:
    """Keeps one connection to the name server."""

    def __init__(self, port: int) -> None:
        self._address = f"127.0.0.1:{port}"
        self.client = RemotingClient()

    async def ask(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        version: int | None = None,
        ext: dict[str, str] | None = None,
    ) -> RemotingCommand:
        command = request(code, header, body)
        command.ext.update(ext or {})
        if version is not None:
            command.version = version
        return await self.client.call(self._address, command, WAIT_S)

    async def register(
        self,
        topics: list[str],
        *,
        name: str = "broker-a",
        broker_id: int = 0,
        address: str = "10.0.0.1:10911",
        counter: int = 1,
        compressed: bool = False,
        said_compressed: bool | None = None,
        crc: int | None = None,
        timeout_ms: int | None = None,
    ) -> RemotingCommand:
        wrapper = TopicConfigSerializeWrapper(
            DataVersion(counter), topic_config_table={t: TopicConfig(t) for t in topics}
        )
        body = encode_register_body(RegisterBrokerBody([], wrapper), compressed=compressed)
        header = headers.RegisterBrokerRequestHeader(
            broker_name=name,
            broker_addr=address,
            cluster_name="C",
            ha_server_addr=f"{address}0",
            broker_id=broker_id,
            heartbeat_timeout_millis=timeout_ms,
            compressed=compressed if said_compressed is None else said_compressed,
            body_crc32=body_crc(body) if crc is None else crc,
        )
        return await self.ask(RequestCode.REGISTER_BROKER, header, body)

    async def route(self, topic: str) -> TopicRouteData | None:
        answer = await self.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequestHeader(topic=topic)
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert answer.code == ResponseCode.SUCCESS
        return decode_body(bytes(answer.body), TopicRouteData)

    async def topics(self) -> list[str]:
        answer = await self.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return decode_body(bytes(answer.body), TopicList).topic_list

    async def close(self) -> None:
        await self.client.close()


@asynccontextmanager
async def running(directory: Path, **settings: Any) -> AsyncIterator[tuple[NameServer, Peer]]:
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        kv_config_path=directory / "kvConfig.json",
        config_store_path=directory / "namesrv.properties",
        **settings,
    )
    server = NameServer(config, properties={"aJavaKey": "x", "sslPassword": "s3cret"})
    await server.start()
    peer = Peer(server.port)
    try:
        yield server, peer
    finally:
        await peer.close()
        await server.close()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[NameServer, Peer]]:
    async with running(tmp_path) as both:
        yield both


@pytest.fixture
def peer(pair: tuple[NameServer, Peer]) -> Peer:
    return pair[1]


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_broker_registers_and_a_client_finds_it(peer: Peer, compressed: bool) -> None:
    answer = await peer.register(["t1", "t2"], compressed=compressed)
    assert (answer.code, answer.remark, bytes(answer.body)) == (0, None, b"")
    route = await peer.route("t1")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    assert route.queue_datas == [QueueData("broker-a", 16, 16, 6)]
    assert await peer.topics() == ["t1", "t2"]
    slave = await peer.register(["t1", "t2"], broker_id=1, address="10.0.0.2:10911")
    assert slave.header(headers.RegisterBrokerResponseHeader) == (
        headers.RegisterBrokerResponseHeader(
            ha_server_addr="10.0.0.1:109110", master_addr="10.0.0.1:10911"
        )
    )


async def test_a_compressed_registration_that_java_calls_plain_is_taken(peer: Peer) -> None:
    answer = await peer.register(["t1", "t2"], compressed=True, said_compressed=False)
    assert answer.code == ResponseCode.SUCCESS
    assert await peer.topics() == ["t1", "t2"]


async def test_an_unknown_topic_is_code_17(peer: Peer) -> None:
    answer = await peer.ask(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequestHeader(topic="nope")
    )
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == "No topic route info in name server for the topic: nope"


async def test_a_client_with_a_namespace_of_the_second_kind_is_refused(peer: Peer) -> None:
    """It got the route of the topic without its namespace, and two namespaces were mixed."""
    registered = await peer.register(["orders", "t2"])
    assert registered.code == 0, registered.remark
    route = RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequestHeader(topic="orders")
    assert (await peer.ask(*route, ext={"nsd": "false"})).code == 0
    refused = await peer.ask(*route, ext={"nsd": "true", "ns": "tenant-a"})
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "'tenant-a'" in (refused.remark or "")


async def test_an_unknown_code_is_code_3(peer: Peer) -> None:
    answer = await peer.ask(4711)
    assert (answer.code, answer.remark) == (3, " request type 4711 not supported")


async def test_what_does_not_decode_is_refused_and_harms_nothing(peer: Peer) -> None:
    await peer.register(["t1", "t2"])
    answer = await peer.register(["t1", "t2"], crc=zlib.crc32(b"other") & 0x7FFFFFFF)
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    header = headers.RegisterBrokerRequestHeader(
        broker_name="b", broker_addr="x:1", cluster_name="C", ha_server_addr="", broker_id=0
    )
    answer = await peer.ask(RequestCode.REGISTER_BROKER, header, b'{"topicConfig')
    assert answer.code == ResponseCode.SYSTEM_ERROR
    answer = await peer.ask(RequestCode.REGISTER_BROKER, None, b"{}")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "brokerName" in (answer.remark or "")
    answer = await peer.register(["t9"], name="new")
    assert (answer.code, answer.remark) == (1, "register broker failed")
    assert await peer.topics() == ["t1", "t2"]


async def test_older_clients_get_broker_ids_without_quotes(peer: Peer) -> None:
    await peer.register(["t1", "t2"])
    header = headers.GetRouteInfoRequestHeader(topic="t1")
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    old = await peer.ask(code, header, version=317)
    assert b'"brokerAddrs":{0:"10.0.0.1:10911"}' in bytes(old.body)
    for answer in (
        await peer.ask(code, header, version=401),
        await peer.ask(code, header, version=317, ext={"acceptStandardJsonOnly": "true"}),
    ):
        assert b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in bytes(answer.body)


async def test_a_broker_leaves_by_request(peer: Peer) -> None:
    await peer.register(["t1", "t2"])
    header = headers.UnRegisterBrokerRequestHeader(
        broker_name="broker-a", broker_addr="10.0.0.1:10911", cluster_name="C", broker_id=0
    )
    assert (await peer.ask(RequestCode.UNREGISTER_BROKER, header)).code == 0
    assert await peer.route("t1") is None


async def test_a_broker_goes_at_once_when_its_connection_closes(
    pair: tuple[NameServer, Peer],
) -> None:
    server, client = pair
    broker = Peer(server.port)
    await broker.register(["t1", "t2"])
    assert await client.route("t1") is not None
    await broker.close()
    await until(lambda: server.table.topics() == [])
    assert await client.route("t1") is None


async def test_the_scan_drops_a_silent_broker_and_its_connection(tmp_path: Path) -> None:
    async with running(tmp_path, scan_not_active_broker_interval=10) as (server, client):
        broker = Peer(server.port)
        # Taken first: this would make another one if the scan had closed it already.
        connection = await broker.client.connection(f"127.0.0.1:{server.port}")
        await broker.register(["t1", "t2"], timeout_ms=20)
        await until(lambda: connection.closed)
        assert await client.route("t1") is None
        await broker.close()


async def test_data_versions_are_compared(peer: Peer) -> None:
    header = headers.QueryDataVersionRequestHeader(
        broker_name="broker-a", broker_addr="10.0.0.1:10911", cluster_name="C", broker_id=0
    )

    async def query(counter: int) -> tuple[bool, bytes]:
        answer = await peer.ask(
            RequestCode.QUERY_DATA_VERSION, header, encode_body(DataVersion(counter))
        )
        changed = answer.header(headers.QueryDataVersionResponseHeader).changed
        return changed, bytes(answer.body)

    assert await query(1) == (True, b"")
    await peer.register(["t1", "t2"], counter=1)
    ours = encode_body(DataVersion(1))
    assert await query(1) == (False, ours)
    assert await query(2) == (True, ours)
    answer = await peer.ask(
        RequestCode.BROKER_HEARTBEAT,
        headers.BrokerHeartbeatRequestHeader(
            cluster_name="C", broker_addr="10.0.0.1:10911", broker_name="broker-a"
        ),
    )
    assert answer.code == 0


async def test_cluster_and_members(peer: Peer) -> None:
    await peer.register(["t1", "t2"])
    answer = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    info = decode_body(bytes(answer.body), ClusterInfo)
    assert info.cluster_addr_table == {"C": ["broker-a"]}
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: "10.0.0.1:10911"}
    answer = await peer.ask(
        RequestCode.GET_BROKER_MEMBER_GROUP,
        headers.GetBrokerMemberGroupRequestHeader(cluster_name="C", broker_name="broker-a"),
    )
    group = decode_body(bytes(answer.body), GetBrokerMemberGroupResponseBody).broker_member_group
    assert group.broker_addrs == {0: "10.0.0.1:10911"}


async def test_write_permission_is_wiped_and_added(peer: Peer) -> None:
    await peer.register(["t1", "t2"])
    answer = await peer.ask(
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        headers.WipeWritePermOfBrokerRequestHeader(broker_name="broker-a"),
    )
    assert answer.ext["wipeTopicCount"] == "2"
    route = await peer.route("t1")
    assert route is not None
    assert route.queue_datas[0].perm == 4
    answer = await peer.ask(
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        headers.AddWritePermOfBrokerRequestHeader(broker_name="broker-a"),
    )
    assert answer.ext["addTopicCount"] == "2"


async def test_topic_lists(peer: Peer) -> None:
    await peer.register(["t1", "t2"])

    async def topics(code: int, header: Header | None = None) -> list[str]:
        answer = await peer.ask(code, header)
        return decode_body(bytes(answer.body), TopicList).topic_list

    code = RequestCode
    by_cluster = headers.GetTopicsByClusterRequestHeader(cluster="C")
    assert await topics(code.GET_TOPICS_BY_CLUSTER, by_cluster) == ["t1", "t2"]
    assert await topics(code.GET_SYSTEM_TOPIC_LIST_FROM_NS) == ["C", "broker-a"]
    assert await topics(code.GET_UNIT_TOPIC_LIST) == []
    assert await topics(code.GET_HAS_UNIT_SUB_TOPIC_LIST) == []
    assert await topics(code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == []


async def test_topics_are_set_and_deleted_by_hand(peer: Peer) -> None:
    await peer.register(["t1", "t2"])
    body = encode_body(TopicRouteData(queue_datas=[QueueData("broker-a", 1, 1, 6)]))
    header = headers.RegisterTopicRequestHeader(topic="new")
    assert (await peer.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, header, body)).code == 0
    assert await peer.topics() == ["new", "t1", "t2"]
    for topic, cluster in (("new", None), ("t1", "C"), ("t2", "D")):
        answer = await peer.ask(
            RequestCode.DELETE_TOPIC_IN_NAMESRV,
            headers.DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster),
        )
        assert answer.code == 0
    assert await peer.topics() == ["t2"]


async def test_lists_can_be_switched_off(tmp_path: Path) -> None:
    async with running(tmp_path, enable_all_topic_list=False, enable_topic_list=False) as (_, peer):
        for code in (
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            RequestCode.GET_UNIT_TOPIC_LIST,
        ):
            answer = await peer.ask(code)
            assert (answer.code, answer.remark) == (1, "disable")


async def test_key_value_entries_outlive_a_restart(tmp_path: Path) -> None:
    entry = headers.GetKVConfigRequestHeader(namespace="N", key="k")
    async with running(tmp_path) as (_, peer):
        put = headers.PutKVConfigRequestHeader(namespace="N", key="k", value="v")
        assert (await peer.ask(RequestCode.PUT_KV_CONFIG, put)).code == 0
    async with running(tmp_path) as (_, peer):
        answer = await peer.ask(RequestCode.GET_KV_CONFIG, entry)
        assert answer.header(headers.GetKVConfigResponseHeader).value == "v"
        by_namespace = headers.GetKVListByNamespaceRequestHeader(namespace="N")
        answer = await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, by_namespace)
        assert decode_body(bytes(answer.body), KVTable).table == {"k": "v"}
        delete = headers.DeleteKVConfigRequestHeader(namespace="N", key="k")
        assert (await peer.ask(RequestCode.DELETE_KV_CONFIG, delete)).code == 0
        answer = await peer.ask(RequestCode.GET_KV_CONFIG, entry)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.remark == "No config item, Namespace: N Key: k"
        other = headers.GetKVListByNamespaceRequestHeader(namespace="M")
        answer = await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, other)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_an_entry_that_cannot_be_saved_is_no_success(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, peer):
        (tmp_path / "kvConfig.json.tmp").mkdir()
        put = headers.PutKVConfigRequestHeader(namespace="N", key="k", value="v")
        answer = await peer.ask(RequestCode.PUT_KV_CONFIG, put)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "kvConfig.json could not be written" in (answer.remark or "")


async def test_order_topics_go_to_brokers_and_into_routes(tmp_path: Path) -> None:
    async with running(tmp_path, order_message_enable=True) as (_, peer):
        put = headers.PutKVConfigRequestHeader(
            namespace="ORDER_TOPIC_CONFIG", key="t1", value="broker-a:4"
        )
        await peer.ask(RequestCode.PUT_KV_CONFIG, put)
        answer = await peer.register(["t1", "t2"])
        assert decode_body(bytes(answer.body), KVTable).table == {"t1": "broker-a:4"}
        route = await peer.route("t1")
        assert route is not None
        assert route.order_topic_conf == "broker-a:4"
        assert len(route.publish_queues("t1")) == 4


async def test_the_configuration_is_shown_and_updated(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, peer):
        shown = bytes((await peer.ask(RequestCode.GET_NAMESRV_CONFIG)).body).decode()
        assert "aJavaKey=x\n" in shown
        assert "sslPassword=******\n" in shown
        assert "enableTopicList=true\n" in shown
        code = RequestCode.UPDATE_NAMESRV_CONFIG
        answer = await peer.ask(code, body=b"enableTopicList=false\norderMessageEnable=true")
        assert answer.code == 0
        assert (server.config.enable_topic_list, server.config.order_message_enable) == (
            False,
            True,
        )
        assert "enableTopicList=false\n" in (tmp_path / "namesrv.properties").read_text()
        answer = await peer.ask(code, body=b"kvConfigPath=/etc/passwd")
        assert (answer.code, answer.remark) == (16, "Can not update config in black list.")
        # Not black-listed, and no key for requests all the same.
        for line in (
            b"metricsFrom=::/0",
            b"protectedMode=false",
            b"bindAddress=0.0.0.0",
            b"a.b=/c",
        ):
            answer = await peer.ask(code, body=line)
            assert answer.code != 0
            assert answer.remark
        for body in (b"listenPort=99999", b"x=\\u12", b"\xff"):
            assert (await peer.ask(code, body=body)).code == ResponseCode.SYSTEM_ERROR
        assert (await peer.ask(code)).code == 0


async def test_routes_wait_for_the_brokers_after_a_start_when_configured(tmp_path: Path) -> None:
    async with running(tmp_path, need_wait_for_service=True) as (server, peer):
        header = headers.GetRouteInfoRequestHeader(topic="t1")
        answer = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        assert (answer.code, answer.remark) == (1, "name server not ready")
        server.config.wait_seconds_for_service = 0
        assert await peer.route("t1") is None


async def test_a_taken_port_is_named(pair: tuple[NameServer, Peer], tmp_path: Path) -> None:
    port = pair[0].port
    config = NamesrvConfig(
        listen_port=port, bind_address="127.0.0.1", kv_config_path=tmp_path / "other.json"
    )
    second = NameServer(config)
    with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: another process has the port"):
        await second.start()
    await second.close()
