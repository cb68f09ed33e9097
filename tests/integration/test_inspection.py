"""Test what a broker answers operators about itself, its topics, its groups and its clients (codes
28, 202, 203, 204, 208, 300, 303, 315, 317, 343, 345 and 351), and what it answers a heartbeat of version 2.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
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
from tests.waits import eventually

from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.fastjson.queue_table import decode_queue_table, with_text_keys
from cometmq.testing import Cluster

SEND, PULL, UPDATE, RUNTIME_INFO, HEARTBEAT, UNREGISTER = 10, 11, 15, 28, 34, 35
SEND_BACK, DELETE_GROUP, DELETE_TOPIC = 36, 207, 215
TOPIC_STATS, CONSUMERS, PRODUCERS, CONSUME_STATS = 202, 203, 204, 208
TIME_SPAN, BROKER_STATS, ALL_CONSUME_STATS = 303, 315, 317
WHO_CONSUMES, TOPICS_OF, SUBSCRIPTION_OF, TOPIC_CONFIG = 300, 343, 345, 351
RATES = ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps")
POOLS = ("send", "pull", "litePull", "query", "ack")


@pytest.fixture
def connect(cluster: Cluster) -> Iterator[Callable[[], RawClient]]:
    with contextlib.ExitStack() as opened:
        address = cluster.brokers[0].address
        yield lambda: opened.enter_context(RawClient(address))


@pytest.fixture
def client(connect: Callable[[], RawClient]) -> RawClient:
    return connect()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"n{java_hash(request.node.name) & 0xFFFFFFFF}"


def send(client: RawClient, topic: str, queue_id: int = 0) -> None:
    answer = client.ask(SEND, send_ext(topic, queueId=queue_id), b"12345")
    assert answer.code == 0, answer.remark


def beat(client: RawClient, group: str, *topics: str, client_id: str = "c", **more: Any) -> Command:
    body = json.loads(heartbeat_body(client_id, {group: topics}))
    answer = client.ask(HEARTBEAT, {}, json.dumps(body | more).encode())
    assert answer.code == 0, answer.remark
    return answer


def commit(client: RawClient, group: str, topic: str, offset: int) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
    assert client.ask(UPDATE, fields).code == 0


def table(answer: Command) -> dict[int, dict[str, int | bool]]:
    """Return the values of an offsetTable by queue id; all must be of one topic."""
    assert answer.code == 0, answer.remark
    rows = decode_queue_table(answer.body, "offsetTable", dict[str, int | bool])
    assert len({(queue.topic, queue.broker_name) for queue in rows}) <= 1
    return {queue.queue_id: value for queue, value in rows.items()}


def info(client: RawClient) -> dict[str, str]:
    found: dict[str, str] = json.loads(client.ask(RUNTIME_INFO).body)["table"]
    return found


# Runtime information


def test_runtime_info_lacks_no_key_that_tools_read(client: RawClient) -> None:
    found = info(client)
    for key in (*RATES, "getTransferedTps"):
        assert re.fullmatch(r"(?:[0-9.e-]* ){2}[0-9.e-]*", found[key]), (key, found[key])
    for pool in POOLS:
        for field in ("Size", "Capacity", "HeadWaitTimeMills"):
            assert int(found[f"{pool}ThreadPoolQueue{field}"]) >= 0
    numbers = (
        "EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity dispatchMaxBuffer "
        "getMessageEntireTimeMax putMessageEntireTimeMax putMessageTimesTotal "
        "putMessageFailedTimes putMessageSizeTotal bootTimestamp dispatchBehindBytes "
        "pageCacheLockTimeMills earliestMessageTimeStamp startAcceptSendRequestTimeStamp "
        "timerReadBehind timerOffsetBehind timerCongestNum commitLogMinOffset commitLogMaxOffset"
    )
    assert all(re.fullmatch("-?[0-9]+", found[key]) for key in numbers.split())
    for key in ("putLatency99", "putLatency999", "putMessageAverageSize", "timerEnqueueTps"):
        float(found[key])
    assert found["putMessageDistributeTime"].startswith("[<=0ms]:")
    assert len(found["putMessageDistributeTime"].split()) == 13


def test_totals_count_what_users_send_and_take(client: RawClient, name: str) -> None:
    before = info(client)
    for _ in range(3):
        send(client, name)
    send(client, "RMQ_SYS_TRACE_TOPIC")
    assert client.ask(PULL, pull_ext(name)).code == 0
    after = info(client)

    def grown(key: str) -> int:
        return int(after[key]) - int(before[key])

    assert grown("msgPutTotalTodayNow") == grown("msgGetTotalTodayNow") == 3
    assert grown("putMessageSizeTotal") == grown("commitLogMaxOffset") > 0
    assert int(after["putMessageTimesTotal"]) >= 4
    assert after["msgPutTotalYesterdayMorning"] == "0"
    # Not 0 if midnight was a moment ago.
    assert int(after["msgPutTotalTodayMorning"]) <= int(after["msgPutTotalTodayNow"])


@pytest.mark.faces("virtual")
def test_rates_rise_with_traffic(client: RawClient, name: str) -> None:
    def first(key: str) -> float:
        return float(info(client)[key].split(" ")[0] or 0)

    def busy() -> bool:
        for _ in range(20):
            send(client, name)
        assert client.ask(PULL, pull_ext(name, maxMsgNums=32)).code == 0
        return all(first(key) > 0 for key in (*RATES[:2], *RATES[3:], "getTransferedTps"))

    # Rates are taken every 10 s.
    eventually(busy, pause_s=1.0)


# Topics


def test_topic_stats_tell_both_ends_and_when_the_last_came(client: RawClient, name: str) -> None:
    assert client.ask(TOPIC_STATS, {"topic": name}).code == 17
    for _ in range(3):
        send(client, name, 1)
    now_ms = time.time() * 1000
    answer = client.ask(TOPIC_STATS, {"topic": name})
    rows = table(answer)
    assert sorted(rows) == [0, 1, 2, 3]
    assert rows[0] == {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0}
    assert (rows[1]["minOffset"], rows[1]["maxOffset"]) == (0, 3)
    assert abs(rows[1]["lastUpdateTimestamp"] - now_ms) < 600_000
    # The rate is 0 until the next sample, which has all three, and the next samples make it less.
    # uvloop's timers may end a millisecond early.
    assert 0.0 <= json.loads(with_text_keys(answer.body))["topicPutTps"] <= 3 / 10 * 1.01


def test_topic_config_is_told_as_it_is(client: RawClient, name: str) -> None:
    assert client.ask(TOPIC_CONFIG, {"topic": name, "lo": "true"}).code == 17
    send(client, name)
    answer = client.ask(TOPIC_CONFIG, {"topic": name, "lo": "true"})
    config = json.loads(answer.body)
    assert (config["topicName"], config["perm"]) == (name, 6)
    assert (config["readQueueNums"], config["writeQueueNums"]) == (4, 4)


def test_groups_of_a_topic_are_those_online_and_those_with_an_offset(
    client: RawClient, name: str
) -> None:
    def groups() -> list[str]:
        answer = client.ask(WHO_CONSUMES, {"topic": name})
        assert answer.code == 0
        found: list[str] = json.loads(answer.body)["groupList"]
        return sorted(found)

    assert groups() == []
    send(client, name)
    beat(client, f"{name}-a", name)
    beat(client, f"{name}-b", "another", client_id="d")
    commit(client, f"{name}-b", name, 1)
    assert groups() == [f"{name}-a", f"{name}-b"]
    client.ask(UNREGISTER, {"clientID": "c", "consumerGroup": f"{name}-a"})
    assert groups() == [f"{name}-b"]
    topics = json.loads(client.ask(TOPICS_OF, {"group": f"{name}-b"}).body)
    assert topics["topicList"] == [name]
    assert topics["brokerAddr"].endswith(str(client.socket.getpeername()[1]))


# Groups


def test_consumer_connections_tell_members_and_subscriptions(client: RawClient, name: str) -> None:
    refused = client.ask(CONSUMERS, {"consumerGroup": name})
    assert (refused.code, refused.remark) == (206, f"the consumer group[{name}] not online")
    beat(client, name, "t", "u")
    found = json.loads(client.ask(CONSUMERS, {"consumerGroup": name}).body)
    assert found["connectionSet"] == [
        {"clientAddr": client.peer_name, "clientId": "c", "language": "JAVA", "version": 479}
    ]
    assert sorted(found["subscriptionTable"]) == ["t", "u"]
    assert found["subscriptionTable"]["t"]["subString"] == "*"
    assert (found["consumeType"], found["messageModel"], found["consumeFromWhere"]) == (
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_FIRST_OFFSET",
    )
    answer = client.ask(SUBSCRIPTION_OF, {"group": name, "topic": "t"})
    assert json.loads(answer.body)["subscriptionData"] == found["subscriptionTable"]["t"]
    none = json.loads(client.ask(SUBSCRIPTION_OF, {"group": name, "topic": "v"}).body)
    assert none == {"group": name, "topic": "v"}


def test_producer_connections_tell_members(client: RawClient, name: str) -> None:
    refused = client.ask(PRODUCERS, {"producerGroup": name})
    assert (refused.code, refused.remark) == (1, f"the producer group[{name}] not exist")
    beat(client, f"{name}-c", "t", producerDataSet=[{"groupName": name}])
    (found,) = json.loads(client.ask(PRODUCERS, {"producerGroup": name}).body)["connectionSet"]
    assert (found["clientId"], found["clientAddr"]) == ("c", client.peer_name)


def test_consume_stats_tell_what_was_consumed_and_what_was_handed_out(
    client: RawClient, name: str
) -> None:
    for _ in range(5):
        send(client, name)
    beat(client, name, name)
    assert client.ask(PULL, pull_ext(name, consumerGroup=name, maxMsgNums=4)).code == 0
    commit(client, name, name, 2)
    row = table(client.ask(CONSUME_STATS, {"consumerGroup": name, "topic": name}))[0]
    assert (row["brokerOffset"], row["consumerOffset"], row["pullOffset"]) == (5, 2, 4)
    assert row["lastTimestamp"] > 0
    assert table(client.ask(CONSUME_STATS, {"consumerGroup": name}))[0] == row
    client.ask(UNREGISTER, {"clientID": "c", "consumerGroup": name})
    offline = table(client.ask(CONSUME_STATS, {"consumerGroup": name}))[0]
    assert (offline["consumerOffset"], offline["pullOffset"]) == (2, 2)


def test_consume_stats_leave_out_what_an_online_group_no_longer_subscribes_to(
    client: RawClient, name: str
) -> None:
    send(client, name)
    assert client.ask(PULL, pull_ext(name, consumerGroup=name)).code == 0
    commit(client, name, name, 1)
    assert table(client.ask(CONSUME_STATS, {"consumerGroup": name}))[0]["consumerOffset"] == 1
    beat(client, name, "another")
    assert table(client.ask(CONSUME_STATS, {"consumerGroup": name})) == {}
    assert table(client.ask(CONSUME_STATS, {"consumerGroup": name, "topic": name})) == {}
    listed = {"consumerGroup": name, "topicList": f"{name};no-such-topic;"}
    assert sorted(table(client.ask(CONSUME_STATS, listed))) == [0, 1, 2, 3]


def test_consume_stats_of_all_groups_are_those_of_each(client: RawClient, name: str) -> None:
    topics = [name, f"{name}-other"]
    groups = [f"{name}-a", f"{name}-b"]
    for topic in topics:
        for _ in range(5):
            send(client, topic)
    for group in groups:
        for topic in topics:
            assert client.ask(PULL, pull_ext(topic, consumerGroup=group, maxMsgNums=4)).code == 0
            commit(client, group, topic, 2)
    beat(client, groups[1], name)
    answer = client.ask(ALL_CONSUME_STATS, {"isOrder": "false"})
    assert answer.code == 0, answer.remark
    body = decode_body(answer.body, dict[str, Any])
    assert body["brokerAddr"].endswith(str(client.socket.getpeername()[1]))
    found = {group: stats for entry in body["consumeStatsList"] for group, stats in entry.items()}
    stats = client.ask(CONSUME_STATS, {"consumerGroup": groups[1]})
    alone = [decode_body(stats.body, dict[str, Any])]
    # The group online subscribes to one of the topics only.
    assert [stats["offsetTable"] for stats in found[groups[1]]] == [
        stats["offsetTable"] for stats in alone
    ]
    assert len(found[groups[0]]) == 2
    rows = [row for entry in found.values() for s in entry for row in s["offsetTable"].values()]
    assert body["totalDiff"] == sum(row["brokerOffset"] - row["consumerOffset"] for row in rows)
    assert body["totalInflightDiff"] == sum(
        row["pullOffset"] - row["consumerOffset"] for row in rows
    )
    ordered = json.loads(client.ask(ALL_CONSUME_STATS, {"isOrder": "true"}).body)
    of_ordered = {g: stats for entry in ordered["consumeStatsList"] for g, stats in entry.items()}
    assert of_ordered.keys() == found.keys()
    assert of_ordered[groups[0]] == []


def test_consume_stats_of_all_groups_that_no_frame_holds_are_refused_with_the_limit(
    client: RawClient, cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(client, name)
    beat(client, name, name)
    commit(client, name, name, 1)
    config = cluster.brokers[0].config
    monkeypatch.setattr(config, "max_frame_length", 64 * 1024 + 100)
    answer = client.ask(ALL_CONSUME_STATS, {"isOrder": "false"})
    assert answer.code == 1
    remark = answer.remark or ""
    assert "longer than 100 bytes, the limit that" in remark
    assert "ask for the groups one by one, code 208" in remark


def test_time_spans_tell_from_when_to_when_messages_are_and_what_was_consumed(
    client: RawClient, name: str
) -> None:
    refused = client.ask(TIME_SPAN, {"topic": name, "group": name})
    assert (refused.code, refused.remark) == (17, f"topic[{name}] not exist")

    def spans() -> list[dict[str, Any]]:
        answer = client.ask(TIME_SPAN, {"topic": name, "group": name})
        assert answer.code == 0, answer.remark
        found: list[dict[str, Any]] = json.loads(answer.body)["consumeTimeSpanSet"]
        return found

    for _ in range(3):
        send(client, name, 1)
    first = spans()
    assert [span["messageQueue"]["queueId"] for span in first] == [0, 1, 2, 3]
    assert first[1]["messageQueue"]["topic"] == name
    empty = {key: first[0][key] for key in first[0] if key != "messageQueue"}
    assert empty == {
        "minTimeStamp": -1,
        "maxTimeStamp": -1,
        "consumeTimeStamp": -1,
        "delayTime": 0,
    }
    full = first[1]
    assert 0 < full["minTimeStamp"] <= full["maxTimeStamp"]
    assert full["consumeTimeStamp"] == full["minTimeStamp"]
    beat(client, name, name)
    fields = {"consumerGroup": name, "topic": name, "queueId": 1, "commitOffset": 3}
    assert client.ask(UPDATE, fields).code == 0
    done = spans()[1]
    assert (done["consumeTimeStamp"], done["delayTime"]) == (full["maxTimeStamp"], 0)


# Statistics


def stats(client: RawClient, name: str, key: str) -> Command:
    return client.ask(BROKER_STATS, {"statsName": name, "statsKey": key})


def test_statistics_are_kept_per_topic_and_group_until_these_are_deleted(
    client: RawClient, name: str
) -> None:
    group = f"{name}-g"
    unknown = stats(client, "TOPIC_PUT_NUMS", name)
    assert unknown.code == 1
    assert (unknown.remark or "").startswith(f"The stats <TOPIC_PUT_NUMS> <{name}> not exist")
    send(client, name)
    assert client.ask(PULL, pull_ext(name, consumerGroup=group)).code == 0
    counted = {
        "TOPIC_PUT_NUMS": name,
        "TOPIC_PUT_SIZE": name,
        "GROUP_GET_NUMS": f"{name}@{group}",
        "GROUP_GET_SIZE": f"{name}@{group}",
        "BROKER_PUT_NUMS": "DefaultCluster",
        "BROKER_GET_NUMS": "DefaultCluster",
    }
    for what, key in counted.items():
        answer = stats(client, what, key)
        assert answer.code == 0, answer.remark
        body = json.loads(answer.body)
        assert sorted(body) == ["statsDay", "statsHour", "statsMinute"]
        assert all(sorted(figures) == ["avgpt", "sum", "tps"] for figures in body.values())
    assert client.ask(DELETE_GROUP, {"groupName": group}).code == 0
    assert stats(client, "GROUP_GET_NUMS", f"{name}@{group}").code == 1
    assert client.ask(PULL, pull_ext(name, consumerGroup=group)).code == 0
    assert client.ask(DELETE_TOPIC, {"topic": name}).code == 0
    for what in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE", "GROUP_GET_NUMS"):
        assert stats(client, what, counted[what]).code == 1


def test_what_consumers_send_back_is_counted_by_topic_and_group(
    client: RawClient, name: str
) -> None:
    answer = client.ask(SEND, send_ext(name), b"12345")
    offset = int(answer.ext["msgId"][-16:], 16)
    back = {"offset": offset, "group": name, "delayLevel": 1, "originTopic": name}
    assert stats(client, "SNDBCK_PUT_NUMS", f"{name}@{name}").code == 1
    assert client.ask(SEND_BACK, back).code == 0
    assert stats(client, "SNDBCK_PUT_NUMS", f"{name}@{name}").code == 0


# Heartbeats of version 2


def changed(answer: Command) -> str:
    assert answer.ext["IS_SUPPORT_HEART_BEAT_V2"] == "true"
    return answer.ext["IS_SUB_CHANGE"]


def test_a_client_may_leave_out_subscriptions_that_its_group_said_last(
    client: RawClient, name: str
) -> None:
    assert changed(beat(client, name, "t", heartbeatFingerprint=7)) == "false"
    assert changed(beat(client, name, heartbeatFingerprint=7, withoutSub=True)) == "false"
    found = json.loads(client.ask(CONSUMERS, {"consumerGroup": name}).body)
    assert list(found["subscriptionTable"]) == ["t"]
    assert changed(beat(client, name, "u", heartbeatFingerprint=8)) == "true"
    assert changed(beat(client, name, "u", heartbeatFingerprint=8)) == "false"


def test_a_fingerprint_of_other_subscriptions_is_told_so(client: RawClient, name: str) -> None:
    beat(client, name, "t", heartbeatFingerprint=7)
    other = beat(client, name, client_id="d", heartbeatFingerprint=9, withoutSub=True)
    assert changed(other) == "true"
    assert changed(beat(client, name, "t", heartbeatFingerprint=0)) == "true"
    assert changed(beat(client, name, "t", heartbeatFingerprint=7)) == "true"


def test_a_broker_that_knows_no_subscriptions_asks_for_them(client: RawClient, name: str) -> None:
    """A broker knows none after its restart. Java's says false, and then the group's pulls fail."""
    assert changed(beat(client, name, heartbeatFingerprint=7, withoutSub=True)) == "true"
    found = json.loads(client.ask(CONSUMERS, {"consumerGroup": name}).body)
    assert [member["clientId"] for member in found["connectionSet"]] == ["c"]
    assert changed(beat(client, name, heartbeatFingerprint=7, withoutSub=True)) == "true"
    assert changed(beat(client, name, "t", heartbeatFingerprint=7)) == "false"
    assert changed(beat(client, name, heartbeatFingerprint=7, withoutSub=True)) == "false"
