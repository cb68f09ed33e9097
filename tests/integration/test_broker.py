"""A broker seen from outside: who is a member, which offsets hold, what a restart keeps, and where
it is registered. Requests are bytes over a socket.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import (
    Command,
    RawClient,
    heartbeat_body,
    java_hash,
    pull_ext,
    send_ext,
)
from tests.integration.virtual import driven
from tests.waits import CLOCKS_APART_MS, eventually

from cometmq.broker.config import BrokerConfig
from cometmq.broker.server import Broker
from cometmq.errors import ConfigError
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.runtime.portal import LoopThread
from cometmq.store.config import StoreConfig
from cometmq.testing import Cluster
from cometmq.testing.ports import HeldPort

SEND, PULL, QUERY, UPDATE = 10, 11, 14, 15
SEARCH, MAX, MIN, EARLIEST = 29, 30, 31, 32
HEARTBEAT, UNREGISTER, CONSUMER_LIST, NOTIFY = 34, 35, 38, 40
ROUTE = 105
NOT_FOUND = 22
# Sooner, in virtual time, than a broker registers its topics without a change, which is every 30 s.
SOON_S = 25.0


def address_of(cluster: Cluster, index: int = 0) -> str:
    return cluster.brokers[index].address


@pytest.fixture
def connect(cluster: Cluster) -> Iterator[Callable[[], RawClient]]:
    """Opens connections to the broker."""
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(RawClient(address_of(cluster)))


@pytest.fixture
def client(connect: Callable[[], RawClient]) -> RawClient:
    return connect()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic and group name of this test's own."""
    return f"n{java_hash(request.node.name) & 0xFFFFFFFF}"


def stored(client: RawClient, topic: str, body: bytes = b"x", **fields: Any) -> Command:
    answer = client.ask(SEND, send_ext(topic, **fields), body)
    assert answer.code == 0, answer.remark
    return answer


def beat(client: RawClient, client_id: str, group: str, *topics: str, **more: Any) -> Command:
    answer = client.ask(HEARTBEAT, {}, heartbeat_body(client_id, {group: topics or ["t"]}, **more))
    assert answer.code == 0, answer.remark
    return answer


def members(client: RawClient, group: str) -> list[str]:
    answer = client.ask(CONSUMER_LIST, {"consumerGroup": group})
    if answer.code == 1:
        assert group in str(answer.remark)
        return []
    found: list[str] = json.loads(answer.body)["consumerIdList"]
    return sorted(found)


def offset(answer: Command) -> int:
    assert answer.code == 0, answer.remark
    return int(answer.ext["offset"])


# Members


def test_a_heartbeat_makes_a_member(client: RawClient, name: str) -> None:
    assert members(client, name) == []
    answer = beat(client, "c1", name)
    assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert members(client, name) == ["c1"]


def test_a_heartbeat_makes_the_groups_retry_topic(client: RawClient, name: str) -> None:
    beat(client, "c1", name)
    answer = client.ask(PULL, pull_ext(f"%RETRY%{name}", consumerGroup=name))
    assert answer.code == 19
    assert client.ask(PULL, pull_ext(f"%RETRY%{name}", queueId=1)).code == 29


def test_members_are_told_who_comes_and_goes(connect: Callable[[], RawClient], name: str) -> None:
    first, second = connect(), connect()
    beat(first, "c1", name)
    assert first.push(NOTIFY).ext == {"consumerGroup": name}
    beat(second, "c2", name)
    for member in (first, second):
        pushed = member.push(NOTIFY)
        assert pushed.flag == 2  # one way
        assert pushed.ext == {"consumerGroup": name}
    assert members(first, name) == ["c1", "c2"]
    second.ask(UNREGISTER, {"clientID": "c2", "consumerGroup": name})
    first.push(NOTIFY)
    assert members(first, name) == ["c1"]
    assert second.silent(0.05)


def test_a_repeated_heartbeat_disturbs_nobody(connect: Callable[[], RawClient], name: str) -> None:
    first, second = connect(), connect()
    beat(first, "c1", name)
    beat(second, "c2", name)
    for _ in range(2):
        first.push(NOTIFY)
    second.push(NOTIFY)
    for _ in range(3):
        beat(first, "c1", name)
        beat(second, "c2", name)
    assert not first.pushed
    assert first.silent(0.05)
    beat(first, "c1", name, "t", "another")
    first.push(NOTIFY)
    second.push(NOTIFY)


def test_a_lost_connection_takes_its_members_along(
    connect: Callable[[], RawClient], name: str
) -> None:
    first, lost = connect(), connect()
    beat(first, "c1", name)
    first.push(NOTIFY)
    beat(lost, "c2", name)
    beat(lost, "c3", name)
    for _ in range(2):
        first.push(NOTIFY)
    lost.close()
    first.push(NOTIFY)
    eventually(lambda: members(first, name) == ["c1"])


def test_a_client_that_reconnects_stays_a_member(
    connect: Callable[[], RawClient], name: str
) -> None:
    old, new = connect(), connect()
    beat(old, "c1", name)
    beat(new, "c1", name)
    old.close()
    assert new.silent(0.1)
    assert members(new, name) == ["c1"]


def test_one_client_may_be_in_several_groups(client: RawClient, name: str) -> None:
    body = heartbeat_body("c1", {f"{name}-a": ["t"], f"{name}-b": ["t"], "an illegal group": ["t"]})
    assert client.ask(HEARTBEAT, {}, body).code == 0
    client.ask(UNREGISTER, {"clientID": "c1", "consumerGroup": f"{name}-a"})
    assert members(client, f"{name}-a") == []
    assert members(client, f"{name}-b") == ["c1"]
    assert members(client, "an illegal group") == []


@pytest.mark.parametrize("body", [b"", b"{nonsense", b"[]", b'{"clientID":7,"consumerDataSet":5}'])
def test_a_heartbeat_that_is_none_is_refused(client: RawClient, name: str, body: bytes) -> None:
    answer = client.ask(HEARTBEAT, {}, body)
    assert answer.code == 1
    assert "HeartbeatData" in str(answer.remark)
    beat(client, "c1", name)


def test_a_group_may_want_no_notice(tmp_path: Path) -> None:
    with Cluster(properties={"notifyConsumerIdsChangedEnable": "false"}) as cluster:  # noqa: SIM117 - one step of the set-up a line
        with RawClient(address_of(cluster)) as client:
            beat(client, "c1", "g")
            assert client.silent(0.05)
            assert members(client, "g") == ["c1"]


def test_a_silent_client_is_dropped() -> None:
    with Cluster(properties={"channelExpiredTimeout": "1"}) as cluster:
        broker = cluster.brokers[0]

        async def scan() -> None:
            await broker.clients.remove_expired(broker.config.channel_expired_timeout)

        with RawClient(address_of(cluster)) as client:
            beat(client, "c1", "g")
            client.push(NOTIFY)
            time.sleep(0.01)
            cluster.run(scan())
            assert client.closed_by_peer()
        with RawClient(address_of(cluster)) as client:
            assert members(client, "g") == []


# Offsets


def ask_offset(client: RawClient, code: int, topic: str, **more: Any) -> Command:
    ext = {"consumerGroup": "raw-group", "topic": topic, "queueId": 0, **more}
    return client.ask(code, {key: value for key, value in ext.items() if value is not None})


def test_a_new_group_begins_at_zero_while_the_queue_is_young(client: RawClient, name: str) -> None:
    stored(client, name)
    assert ask_offset(client, QUERY, name, setZeroIfNotFound="false").code == NOT_FOUND
    assert offset(ask_offset(client, QUERY, name)) == 0
    assert offset(ask_offset(client, QUERY, name, setZeroIfNotFound="true")) == 0
    for queue_id in (1, 99):
        assert ask_offset(client, QUERY, name, queueId=queue_id).code == NOT_FOUND
    assert ask_offset(client, QUERY, "unknown").code == NOT_FOUND


def test_an_offset_that_was_stored_is_found(client: RawClient, name: str) -> None:
    for _ in range(5):
        stored(client, name)
    client.ask(PULL, pull_ext(name))  # makes the group
    for value in (5, 2, 0):
        assert ask_offset(client, UPDATE, name, commitOffset=value).code == 0
        assert offset(ask_offset(client, QUERY, name, setZeroIfNotFound="false")) == value
    assert ask_offset(client, QUERY, name, queueId=1).code == NOT_FOUND


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"consumerGroup": "unknown-group"}, 26),
        ({"topic": "unknown"}, 17),
        ({"queueId": None}, 29),
        ({"commitOffset": None}, 29),
        ({"commitOffset": 2**60}, 29),
        ({"commitOffset": 2}, 29),
        ({"commitOffset": -1}, 29),
        ({"queueId": 99}, 29),
        ({"queueId": -1}, 29),
        ({"queueId": 1, "commitOffset": 1}, 29),
        ({"commitOffset": "end"}, 1),
    ],
)
def test_an_update_is_refused(
    client: RawClient, name: str, fields: dict[str, Any], code: int
) -> None:
    stored(client, name)
    client.ask(PULL, pull_ext(name))
    answer = client.ask(
        UPDATE,
        {
            key: value
            for key, value in {
                "consumerGroup": "raw-group",
                "topic": name,
                "queueId": 0,
                "commitOffset": 1,
                **fields,
            }.items()
            if value is not None
        },
    )
    assert answer.code == code
    assert answer.remark


def test_where_a_queue_begins_and_ends(client: RawClient, name: str) -> None:
    for _ in range(3):
        stored(client, name)
    for topic, queue_id, end in ((name, 0, 3), (name, 1, 0), (name, 99, 0), ("unknown", 0, 0)):
        ext = {"topic": topic, "queueId": queue_id}
        assert offset(client.ask(MAX, ext)) == end
        assert offset(client.ask(MIN, ext)) == 0


def test_what_lies_at_a_time(client: RawClient, name: str) -> None:
    # The broker's clock may be behind this one by less than these pauses.
    pause_s = 2 * CLOCKS_APART_MS / 1000
    times = []
    for _ in range(3):
        times.append(int(time.time() * 1000))
        time.sleep(pause_s)
        stored(client, name)
        time.sleep(pause_s)
    end = int(time.time() * 1000)

    def search(timestamp: int, boundary: str | None = None, queue_id: int = 0) -> int:
        ext = {"topic": name, "queueId": queue_id, "timestamp": timestamp}
        return offset(client.ask(SEARCH, ext | ({"boundaryType": boundary} if boundary else {})))

    assert [search(moment) for moment in (0, times[0], times[1], times[2], end)] == [0, 0, 1, 2, 3]
    assert [search(times[2], boundary) for boundary in ("lower", "LOWER", "middle")] == [2, 2, 2]
    assert [search(moment, "upper") for moment in (0, times[1] - 1, end)] == [0, 0, 2]
    assert [search(moment, queue_id=1) for moment in (0, end)] == [0, 0]
    earliest = client.ask(EARLIEST, {"topic": name, "queueId": 0})
    assert times[0] <= int(earliest.ext["timestamp"]) <= times[1]
    for queue_id in (1, 99):
        empty = client.ask(EARLIEST, {"topic": name, "queueId": queue_id})
        assert (empty.code, empty.ext["timestamp"]) == (0, "-1")


# What stays


def use(address: str) -> None:
    """Leave a topic, a group and an offset behind."""
    with RawClient(address) as client:
        stored(client, "t", defaultTopicQueueNums=3)
        beat(client, "c1", "g", "t")
        ext = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": 1}
        assert client.ask(UPDATE, ext).code == 0


def check_used(address: str) -> None:
    with RawClient(address) as client:
        ext = {"consumerGroup": "g", "topic": "t", "queueId": 0, "setZeroIfNotFound": "false"}
        assert offset(client.ask(QUERY, ext)) == 1
        answer = client.ask(PULL, pull_ext("t", consumerGroup="g"))
        assert (answer.code, answer.ext["maxOffset"]) == (0, "1")
        assert client.ask(PULL, pull_ext("t", queueId=3)).code == 29
        assert client.ask(PULL, pull_ext("%RETRY%g", consumerGroup="g")).code == 19


def test_a_restart_keeps_topics_groups_offsets_and_messages(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path, properties={"autoCreateSubscriptionGroup": "true"}) as cluster:
        use(address_of(cluster))
        cluster.call("restart_broker", 0)
        check_used(address_of(cluster))


def test_the_tables_are_on_disk_soon_after_a_change(tmp_path: Path) -> None:
    config = tmp_path / "broker-a" / "config"

    def text(file: str) -> str:
        try:
            return (config / file).read_text()
        except FileNotFoundError:  # not yet, or it is being replaced just now
            return ""

    properties = {"flushConsumerOffsetInterval": "50"}
    with Cluster(directory=tmp_path, properties=properties) as cluster:
        use(address_of(cluster))
        eventually(lambda: '"t"' in text("topics.json"))
        eventually(lambda: '"g"' in text("subscriptionGroup.json"))
        eventually(lambda: '"t@g"' in text("consumerOffset.json"))


def test_the_tables_are_such_as_java_reads(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster:
        use(address_of(cluster))
    config = tmp_path / "broker-a" / "config"
    topics = json.loads((config / "topics.json").read_text())
    assert topics["topicConfigTable"]["t"] == {
        "attributes": {},
        "order": False,
        "perm": 6,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "t",
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }
    assert topics["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}
    assert {"TBW102", "%RETRY%g", "SELF_TEST_TOPIC"} <= topics["topicConfigTable"].keys()
    groups = json.loads((config / "subscriptionGroup.json").read_text())
    assert groups["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 16
    assert groups["dataVersion"]["counter"] == 1
    offsets = json.loads((config / "consumerOffset.json").read_text())
    assert offsets["offsetTable"] == {"t@g": {"0": 1}}


def test_the_tables_of_java_are_read(tmp_path: Path) -> None:
    config = tmp_path / "broker-a" / "config"
    config.mkdir(parents=True)
    # As fastjson writes them: integer keys without quotes, tabs, keys that we do not know.
    (config / "consumerOffset.json").write_text(
        '{\n\t"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},\n'
        '\t"offsetTable":{"t@g":{0:3,1:0},"%RETRY%g@g":{0:11\n\t\t}\n\t},\n\t"pullOffsetTable":{}\n}'
    )
    (config / "topics.json").write_text(
        '{"dataVersion":{"counter":9,"stateVersion":0,"timestamp":5},"topicConfigTable":{"old":{'
        '"attributes":{},"order":false,"perm":6,"readQueueNums":2,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"old","topicSysFlag":0,"writeQueueNums":2,"someday":[]}}}'
    )
    with Cluster(directory=tmp_path) as cluster, RawClient(address_of(cluster)) as client:
        stored(client, "old", queueId=1)
        assert client.ask(SEND, send_ext("old", queueId=2), b"x").code == 29
        ext = {"consumerGroup": "g", "topic": "%RETRY%g", "queueId": 0}
        assert offset(client.ask(QUERY, ext)) == 11


def test_a_group_skips_nothing_when_a_crash_took_what_it_had_consumed(tmp_path: Path) -> None:
    """The group's offset is beyond the end then; an attacker's offset is removed, too."""
    offsets = tmp_path / "broker-a" / "config" / "consumerOffset.json"
    table = {
        "t@g": {"0": 4, "1": 2**60, "9": 1},
        "t@h": {"0": 1},
        "gone@g": {"0": 2},
        "%RETRY%g@g": {"0": 0},
    }
    with Cluster(directory=tmp_path) as cluster:
        address = address_of(cluster)
        use(address)
        cluster.call("stop_broker", 0)
        offsets.write_text(json.dumps({"offsetTable": table}))
        cluster.call("start_broker", 0)
        with RawClient(address) as client:
            for body in (b"2", b"3", b"4"):
                client.ask(SEND, send_ext("t"), body)
            ext = {"consumerGroup": "g", "topic": "t", "queueId": 0}
            assert offset(client.ask(QUERY, ext)) == 1
        cluster.call("stop_broker", 0)
        corrected = json.loads(offsets.read_text())["offsetTable"]
        kept = json.loads(offsets.with_name("consumerOffset.uncorrected.json").read_text())
    assert corrected == {
        "t@g": {"0": 1, "1": 0},
        "t@h": {"0": 1},
        "%RETRY%g@g": {"0": 0},
    }
    assert kept["offsetTable"] == table


def test_offsets_stay_where_the_log_is_missing(tmp_path: Path) -> None:
    """The disk of the log may not be mounted, or its path be wrong: that is no reason to forget."""
    config = tmp_path / "broker-a" / "config"
    config.mkdir(parents=True)
    text = '{"offsetTable":{"t@g":{"0":3}}}'
    (config / "consumerOffset.json").write_text(text)
    with Cluster(directory=tmp_path) as cluster, RawClient(address_of(cluster)) as client:
        assert offset(client.ask(QUERY, {"consumerGroup": "g", "topic": "t", "queueId": 0})) == 3


def test_too_many_offsets_are_refused_and_those_known_move_on(tmp_path: Path) -> None:
    properties = {"maxConsumerOffsets": "2"}
    with (
        Cluster(directory=tmp_path, properties=properties) as cluster,
        RawClient(address_of(cluster)) as client,
    ):
        stored(client, "t")
        beat(client, "c1", "g", "t")

        def commit(queue_id: int, value: int) -> Command:
            ext = {"consumerGroup": "g", "topic": "t", "queueId": queue_id, "commitOffset": value}
            return client.ask(UPDATE, ext)

        assert [commit(queue_id, 0).code for queue_id in range(4)] == [0, 0, 1, 1]
        assert "maxConsumerOffsets is 2" in str(commit(3, 0).remark)
        assert commit(0, 1).code == 0


@pytest.mark.parametrize("file", ["topics.json", "subscriptionGroup.json", "consumerOffset.json"])
async def test_a_damaged_table_stops_the_start_and_nothing_is_overwritten(
    tmp_path: Path, file: str
) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / file).write_text('{"half of a')
    for _ in range(2):  # the second time shows that the store's lock was released
        broker = new_broker(tmp_path, "")
        with pytest.raises(ConfigError, match=file):
            await broker.start()
    assert (config / file).read_text() == '{"half of a'
    assert [path.name for path in config.iterdir()] == [file]
    (config / file).unlink()
    broker = new_broker(tmp_path, "")
    await broker.start()
    await broker.close()


def new_broker(directory: Path, namesrv: str) -> Broker:
    config = BrokerConfig(
        broker_name="broker-x",
        broker_ip1="127.0.0.1",
        bind_address="127.0.0.1",
        listen_port=0,
        namesrv_addr=namesrv,
    )
    store = StoreConfig(
        store_path_root_dir=directory,
        mapped_file_size_commit_log=1 << 20,
        # Sends are not refused because another process keeps the disk busy.
        os_page_cache_busy_time_out_mills=60_000,
    )
    return Broker(config, store)


# Registration


def route(address: str, topic: str) -> dict[str, Any] | None:
    """Return the route of a topic at one name server; None when it has none or does not answer."""
    try:
        with RawClient(address) as client:
            answer = client.ask(ROUTE, {"topic": topic, "acceptStandardJsonOnly": "true"})
    except OSError:
        return None
    found: dict[str, Any] | None = json.loads(answer.body) if answer.code == 0 else None
    return found


def test_a_broker_is_registered_when_it_has_started(cluster: Cluster) -> None:
    found = route(cluster.namesrv, "TBW102")
    assert found is not None
    (broker,) = found["brokerDatas"]
    assert broker["brokerName"] == "broker-a"
    assert broker["brokerAddrs"] == {"0": address_of(cluster)}
    (queues,) = found["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (8, 8, 7)


def test_without_auto_creation_no_route_invites_to_make_topics() -> None:
    with Cluster(properties={"autoCreateTopicEnable": "false"}) as cluster:
        assert route(cluster.namesrv, "SELF_TEST_TOPIC") is not None
        assert route(cluster.namesrv, "TBW102") is None


@pytest.mark.faces("virtual")
def test_a_new_topic_is_registered_at_once(client: RawClient, cluster: Cluster, name: str) -> None:
    assert route(cluster.namesrv, name) is None
    stored(client, name, defaultTopicQueueNums=3)
    eventually(lambda: route(cluster.namesrv, name) is not None, wait_s=SOON_S)
    found = route(cluster.namesrv, name)
    assert found is not None
    assert [queues["writeQueueNums"] for queues in found["queueDatas"]] == [3]
    # A change is announced by itself and takes nothing away.
    assert route(cluster.namesrv, "TBW102") is not None


def test_a_broker_that_stops_is_forgotten_at_once(tmp_path: Path) -> None:
    with Cluster(brokers=2, directory=tmp_path) as cluster:
        with RawClient(address_of(cluster, 1)) as client:
            stored(client, "t")
        eventually(lambda: route(cluster.namesrv, "t") is not None)
        cluster.call("stop_broker", 1)
        assert route(cluster.namesrv, "t") is None
        assert route(cluster.namesrv, "TBW102") is not None
        cluster.call("start_broker", 1)
        assert route(cluster.namesrv, "t") is not None


def test_a_name_server_that_restarts_knows_all_topics_within_seconds() -> None:
    cluster = Cluster(clock="virtual")
    with driven(cluster):
        with RawClient(address_of(cluster)) as client:
            stored(client, "t")
        eventually(lambda: route(cluster.namesrv, "t") is not None)
        cluster.call("restart_name_server", 0)
        eventually(lambda: route(cluster.namesrv, "t") is not None, wait_s=SOON_S)


def test_name_servers_do_without_each_other() -> None:
    cluster = Cluster(name_servers=2, clock="virtual")
    with driven(cluster), RawClient(address_of(cluster)) as client:
        first, second = cluster.namesrv.split(";")
        for address in (first, second):
            assert route(address, "TBW102") is not None
        cluster.call("stop_name_server", 0)
        stored(client, "t")
        eventually(lambda: route(second, "t") is not None, wait_s=SOON_S)
        cluster.call("start_name_server", 0)
        eventually(lambda: route(first, "t") is not None, wait_s=SOON_S)


def test_a_broker_starts_without_a_name_server_and_finds_it_later(tmp_path: Path) -> None:
    thread = LoopThread("test-servers")
    thread.start()

    async def name_server(port: int) -> NameServer:
        server = NameServer(
            NamesrvConfig(
                listen_port=port,
                bind_address="127.0.0.1",
                kv_config_path=tmp_path / "kv.json",
                config_store_path=tmp_path / "namesrv.properties",
            )
        )
        await server.start()
        return server

    async def start_broker(address: str) -> Broker:
        broker = new_broker(tmp_path / "store", address)
        await broker.start()
        return broker

    async def close(*servers: NameServer | Broker) -> None:
        for server in servers:
            await server.close()

    port = HeldPort()
    try:
        address = f"127.0.0.1:{port.port}"
        broker = thread.call(start_broker(address))
        with RawClient(f"127.0.0.1:{broker.port}") as client:
            stored(client, "t")
            server = thread.call(name_server(port.port))
            eventually(lambda: route(address, "t") is not None)
            stored(client, "t")
        thread.call(close(broker, server))
    finally:
        thread.stop()
        port.close()


def test_a_broker_is_back_on_its_port_with_all_its_routes(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster:
        before = address_of(cluster)
        with RawClient(before) as client:
            stored(client, "t")
        cluster.call("restart_broker", 0)
        assert address_of(cluster) == before
        found = route(cluster.namesrv, "t")
        assert found is not None
        assert found["brokerDatas"][0]["brokerAddrs"] == {"0": before}
