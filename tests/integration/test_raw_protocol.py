"""Test sends and pulls as bytes over a socket: what is taken or refused, in which words."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.integration.raw_client import (
    ONEWAY,
    Command,
    RawClient,
    batch_body,
    heartbeat_body,
    java_hash,
    json_frame,
    json_request,
    properties,
    pull_ext,
    send_ext,
)
from tests.waits import WAIT_S, eventually

from cometmq.broker.pulls.waiter import State
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import StoredRecord, decode_records
from cometmq.testing import Cluster

SEND, SEND_V2, SEND_BATCH = 10, 310, 320
PULL, LITE_PULL, HEARTBEAT = 11, 361, 34
QUERY_OFFSET, MAX_OFFSET = 14, 30
MIB = 1024 * 1024
# The broker's loop reckons in whole milliseconds, so a wait may end so much early.
LOOP_S = 0.001


def address_of(cluster: Cluster) -> str:
    return f"127.0.0.1:{cluster.brokers[0].port}"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run a broker that makes nothing by itself, with the topics and groups that its files name.

    The files are as Java writes them, integer keys without quotes.
    """
    directory = tmp_path_factory.mktemp("strict")
    config = directory / "broker-a" / "config"
    config.mkdir(parents=True)
    special: dict[str, dict[str, Any]] = {
        "t": {},
        "unreadable": {"perm": 2},
        "unwritable": {"perm": 4},
        "narrow": {"readQueueNums": 2},
        "wide": {"writeQueueNums": 2},
        "tags": {"topicFilterType": "MULTI_TAG"},
    }
    topics = {
        name: {"topicName": name, "perm": 6, "readQueueNums": 4, "writeQueueNums": 4, **more}
        for name, more in special.items()
    }
    (config / "topics.json").write_text(
        json.dumps({"dataVersion": {"counter": 5, "timestamp": 1}, "topicConfigTable": topics})
    )
    groups = {
        name: {"groupName": name, **more}
        for name, more in {
            "g": {},
            "disabled": {"consumeEnable": False},
            "alone": {"consumeBroadcastEnable": False},
        }.items()
    }
    (config / "subscriptionGroup.json").write_text(
        json.dumps({"dataVersion": {"counter": 5}, "subscriptionGroupTable": groups})
    )
    (config / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:3,1:0}}}')
    with Cluster(
        directory=directory,
        properties={
            "autoCreateTopicEnable": "false",
            "autoCreateSubscriptionGroup": "false",
            "litePullMessageEnable": "false",
            "longPollingEnable": "false",
            "shortPollingTimeMills": "100",
        },
    ) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[RawClient]:
    with RawClient(address_of(cluster)) as connected:
        yield connected


@pytest.fixture
def strict_client(strict: Cluster) -> Iterator[RawClient]:
    with RawClient(address_of(strict)) as connected:
        yield connected


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a topic that no other test uses."""
    return f"t{java_hash(request.node.name) & 0xFFFFFFFF}"


@pytest.fixture
def bystander(cluster: Cluster) -> Iterator[None]:
    """Keep a connection that sends, pulls and waits, and must not notice what the test does."""
    with RawClient(address_of(cluster)) as sender, RawClient(address_of(cluster)) as puller:
        first = sender.ask(SEND, send_ext("bystander"), b"before")
        end = int(first.ext["queueOffset"]) + 1
        waits = {"queueOffset": end, "sysFlag": 4 + 2, "suspendTimeoutMillis": 600_000}
        waiting = puller.send(PULL, pull_ext("bystander", **waits))
        yield
        assert puller.silent(0)
        assert sender.ask(SEND, send_ext("bystander"), b"after").code == 0
        answer = puller.answer(waiting)
        assert [record.body for record in decode_records(answer.body)] == [b"after"]


def pulled(client: RawClient, topic: str, **fields: Any) -> list[StoredRecord]:
    answer = client.ask(PULL, pull_ext(topic, **fields))
    assert answer.code == 0, answer.remark
    return list(decode_records(answer.body))


def stored(client: RawClient, topic: str, body: bytes = b"x", **fields: Any) -> Command:
    answer = client.ask(SEND, send_ext(topic, **fields), body)
    assert answer.code == 0, answer.remark
    return answer


def complaints(client: RawClient, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the levels of the log lines about the connection that report something unusual."""
    return [line["log_level"] for line in complaining(client.peer_name, lines)]


def complaining(peer: str, lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    # Other parts of this process may complain, too.
    return [
        line
        for line in lines
        if line.get("peer") == peer and line["log_level"] not in ("debug", "info")
    ]


# Sending


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("code", [SEND, SEND_V2])
def test_a_message_is_stored_as_it_was_sent(
    cluster: Cluster, topic: str, code: int, binary: bool
) -> None:
    text = properties({"KEYS": "k1 k2", "TAGS": "TagA", "own": "€", "UNIQ_KEY": "AB" * 16})
    fields = {
        "queueId": 2,
        "properties": text,
        "flag": 9,
        "sysFlag": 1,
        "bornTimestamp": 1_600_000_000_123,
        "reconsumeTimes": 4,
    }
    with RawClient(address_of(cluster), binary=binary) as client:
        for offset in range(3):
            ext = send_ext(topic, letters=code == SEND_V2, **fields)
            answer = client.ask(code, ext, b"body %d" % offset)
            assert (answer.code, answer.remark, answer.body) == (0, None, b"")
            assert answer.serialize_type == 0  # the server's own, whatever it was asked in
            assert answer.ext["queueId"] == "2"
            assert answer.ext["queueOffset"] == str(offset)
            assert answer.ext["transactionId"] == "AB" * 16
            assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")
        _, port = client.socket.getsockname()
        records = pulled(client, topic, queueId=2)
    assert [record.body for record in records] == [b"body 0", b"body 1", b"body 2"]
    last = records[-1]
    broker_host = bytes([127, 0, 0, 1]) + cluster.brokers[0].port.to_bytes(4, "big")
    assert answer.ext["msgId"] == f"{broker_host.hex().upper()}{last.physical_offset:016X}"
    assert last.store_host == broker_host
    assert last.born_host == bytes([127, 0, 0, 1]) + port.to_bytes(4, "big")
    assert (last.topic, last.queue_id, last.queue_offset, last.flag) == (topic, 2, 2, 9)
    assert (last.sys_flag, last.reconsume_times, last.born_timestamp) == (1, 4, 1_600_000_000_123)
    assert decode_properties(last.properties) == {
        "KEYS": "k1 k2",
        "TAGS": "TagA",
        "own": "€",
        "UNIQ_KEY": "AB" * 16,
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


def test_a_message_without_unique_id_gets_one(client: RawClient, topic: str) -> None:
    ids = [stored(client, topic).ext["transactionId"] for _ in range(2)]
    found = [decode_properties(record.properties) for record in pulled(client, topic)]
    assert [values["UNIQ_KEY"] for values in found] == ids
    assert len({*ids}) == 2
    assert all(len(unique_id) == 32 for unique_id in ids)


def test_what_the_broker_adds_replaces_what_was_there(client: RawClient, topic: str) -> None:
    text = properties(
        {"CLUSTER": "x", "MSG_REGION": "y", "TRACE_ON": "z", "POP_CK": "1 2", "a": "b"}
    )
    stored(client, topic, properties=text)
    (record,) = pulled(client, topic)
    found = decode_properties(record.properties)
    assert found.pop("UNIQ_KEY")
    assert found == {
        "a": "b",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert record.properties.count("CLUSTER") == 1


def test_a_oneway_send_is_stored_and_not_answered(client: RawClient, topic: str) -> None:
    client.send(SEND, send_ext(topic), b"silently", flag=ONEWAY)
    client.send(SEND, send_ext(topic, queueId=99), b"refused silently", flag=ONEWAY)
    deadline = time.monotonic() + WAIT_S
    while client.ask(PULL, pull_ext(topic)).code != 0:
        assert time.monotonic() < deadline, "what was sent one-way does not come"
    assert [record.body for record in pulled(client, topic)] == [b"silently"]


def test_flags_that_lie_about_the_hosts_do_no_harm(client: RawClient, topic: str) -> None:
    for flags in (0x10, 0x20, 0x30, -1):
        client.ask(SEND, send_ext(topic, sysFlag=flags), b"%d" % flags)
    stored(client, topic, b"last")
    records = pulled(client, topic)
    assert [record.body for record in records if record.body != b"-1"] == [
        b"16",
        b"32",
        b"48",
        b"last",
    ]


@pytest.mark.parametrize(("asked", "made"), [(1, 1), (4, 4), (8, 8), (100, 8)])
def test_a_topic_is_made_by_the_first_send(
    client: RawClient, topic: str, asked: int, made: int
) -> None:
    assert client.ask(PULL, pull_ext(topic)).code == 17
    stored(client, topic, defaultTopicQueueNums=asked)
    stored(client, topic, queueId=made - 1)
    refused = client.ask(SEND, send_ext(topic, queueId=made), b"x")
    assert refused.code == 29
    assert f"[{made}]" in str(refused.remark)
    assert f"0..{made - 1}" in str(refused.remark)


def test_a_negative_queue_id_means_any_queue(client: RawClient, topic: str) -> None:
    used = {int(stored(client, topic, queueId=-1).ext["queueId"]) for _ in range(60)}
    assert used == {0, 1, 2, 3}


@pytest.mark.parametrize("model", ["nowhere", "BenchmarkTest"])
def test_no_topic_is_made_after_what_is_no_model(client: RawClient, topic: str, model: str) -> None:
    answer = client.ask(SEND, send_ext(topic, defaultTopic=model), b"x")
    assert answer.code == 17
    assert topic in str(answer.remark)


def test_without_auto_creation_an_unknown_topic_is_refused(
    strict_client: RawClient, topic: str
) -> None:
    answer = strict_client.ask(SEND, send_ext(topic), b"x")
    assert answer.code == 17
    assert topic in str(answer.remark)
    assert "autoCreateTopicEnable" in str(answer.remark)
    stored(strict_client, "t")


def test_queues_count_by_the_larger_of_both_numbers(strict_client: RawClient) -> None:
    stored(strict_client, "narrow", queueId=3)
    stored(strict_client, "wide", queueId=3)
    assert strict_client.ask(SEND, send_ext("wide", queueId=4), b"x").code == 29
    any_queue = {int(stored(strict_client, "wide", queueId=-1).ext["queueId"]) for _ in range(30)}
    assert any_queue == {0, 1}


def test_a_topic_closed_for_writing_takes_what_late_senders_bring(strict_client: RawClient) -> None:
    # The permission works through the route; a sender whose route is old must not lose messages.
    stored(strict_client, "unwritable")


def test_a_multi_tag_topic_marks_its_messages(strict_client: RawClient) -> None:
    stored(strict_client, "tags")
    batch = batch_body([(b"x", b"")])
    strict_client.ask(SEND_BATCH, send_ext("tags", letters=True, batch="true"), batch)
    assert [record.sys_flag for record in pulled(strict_client, "tags", consumerGroup="g")] == [
        2,
        2,
    ]


REFUSED_SENDS: dict[str, tuple[dict[str, Any], bytes, int, list[str]]] = {
    "empty body": ({}, b"", 13, ["empty"]),
    "large body": ({}, b"x" * (4 * MIB + 1), 13, ["4194305", "4194304"]),
    "large properties": ({"properties": "p\x01" + "x" * 33000 + "\x02"}, b"x", 13, ["32767"]),
    "queue too high": ({"queueId": 4}, b"x", 29, ["[4]", "4 queues"]),
    "queue far too high": ({"queueId": 2**31 - 1}, b"x", 29, ["2147483647"]),
    "empty topic": ({"topic": ""}, b"x", 29, ["blank"]),
    "blank topic": ({"topic": " "}, b"x", 29, ["blank"]),
    "topic with a blank": ({"topic": "a b"}, b"x", 29, ["a b"]),
    "topic with a slash": ({"topic": "../etc"}, b"x", 29, ["../etc"]),
    "long topic": ({"topic": "x" * 128}, b"x", 29, ["128", "127"]),
    "schedule topic": ({"topic": "SCHEDULE_TOPIC_XXXX"}, b"x", 16, ["SCHEDULE_TOPIC_XXXX"]),
    "half topic": ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, b"x", 16, ["forbidden"]),
    "op topic": ({"topic": "RMQ_SYS_TRANS_OP_HALF_TOPIC"}, b"x", 16, ["forbidden"]),
    "check topic": ({"topic": "TRANS_CHECK_MAX_TIME_TOPIC"}, b"x", 16, ["forbidden"]),
    "self test": ({"topic": "SELF_TEST_TOPIC"}, b"x", 16, ["forbidden"]),
    "moved event": ({"topic": "OFFSET_MOVED_EVENT"}, b"x", 16, ["forbidden"]),
    "no topic": ({"topic": None}, b"x", 1, ["topic"]),
    "no queue": ({"queueId": None}, b"x", 1, ["queueId"]),
    "queue is a word": ({"queueId": "first"}, b"x", 1, ["queueId", "int"]),
    "queue of 41 bits": ({"queueId": 2**40}, b"x", 1, ["queueId", "2147483647"]),
    "flag is a word": ({"sysFlag": "none"}, b"x", 1, ["sysFlag"]),
    "batch is a word": ({"batch": "perhaps"}, b"x", 1, ["batch"]),
}


@pytest.mark.parametrize("name", REFUSED_SENDS)
def test_a_refused_send_names_limit_and_value(
    client: RawClient, bystander: None, topic: str, name: str
) -> None:
    fields, body, code, words = REFUSED_SENDS[name]
    stored(client, topic)
    with structlog.testing.capture_logs() as lines:
        answer = client.ask(SEND, send_ext(**{"topic": topic, **fields}), body)
    assert answer.code == code
    for word in words:
        assert word in str(answer.remark)
    assert complaints(client, lines) == ["warning"]
    assert len(pulled(client, topic)) == 1


def test_the_largest_message_is_taken(client: RawClient, topic: str) -> None:
    stored(client, topic, b"x" * 4 * MIB)
    (record,) = pulled(client, topic)
    assert len(record.body) == 4 * MIB


def test_properties_may_fill_their_limit_with_the_brokers_own(
    client: RawClient, topic: str
) -> None:
    own = properties(
        {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    )
    head = properties({"UNIQ_KEY": "A" * 32})
    room = 32767 - len(own) - len(head) - len("p\x01\x02")
    stored(client, topic, properties=head + f"p\x01{'x' * room}\x02")
    refused = client.ask(SEND, send_ext(topic, properties=head + f"p\x01{'x' * room}x\x02"), b"x")
    assert refused.code == 13
    assert "32768" in str(refused.remark)
    assert len(pulled(client, topic)) == 1


# Batches


def send_batch(
    client: RawClient, topic: str, body: bytes, code: int = SEND_BATCH, **fields: Any
) -> Command:
    return client.ask(code, send_ext(topic, letters=True, batch="true", **fields), body)


@pytest.mark.parametrize("code", [SEND_BATCH, SEND_V2])
def test_a_batch_becomes_messages_one_after_the_other(
    client: RawClient, topic: str, code: int
) -> None:
    stored(client, topic, b"before")
    sent = [(b"m%d" % n, properties({"TAGS": f"T{n % 2}", "n": str(n)}).encode()) for n in range(5)]
    header = properties({"UNIQ_KEY": "C" * 32, "WAIT": "true"})
    answer = send_batch(client, topic, batch_body(sent), code, properties=header, reconsumeTimes=2)
    assert answer.code == 0
    assert answer.ext["queueOffset"] == "1"
    assert answer.ext["transactionId"] == "C" * 32
    # A Java client would take it for the id of one record that holds the whole batch.
    assert "batchUniqId" not in answer.ext
    records = pulled(client, topic, queueOffset=1)
    assert [(r.body, r.properties.encode()) for r in records] == sent
    assert [r.queue_offset for r in records] == [1, 2, 3, 4, 5]
    assert {r.reconsume_times for r in records} == {2}
    ids = answer.ext["msgId"].split(",")
    assert [int(text[16:], 16) for text in ids] == [r.physical_offset for r in records]
    assert [r.body for r in pulled(client, topic, subscription="T1")] == [b"m1", b"m3"]


def test_a_batch_without_unique_id_is_answered_without_transaction_id(
    client: RawClient, topic: str
) -> None:
    answer = send_batch(client, topic, batch_body([(b"x", b"")]))
    assert answer.code == 0
    assert "transactionId" not in answer.ext


def test_the_batch_code_alone_makes_no_batch(client: RawClient, topic: str) -> None:
    body = batch_body([(b"x", b""), (b"y", b"")])
    assert client.ask(SEND_BATCH, send_ext(topic, letters=True), body).code == 0
    assert [record.body for record in pulled(client, topic)] == [body]


GOOD = batch_body([(b"one", b""), (b"two", b"")])
REFUSED_BATCHES: dict[str, tuple[dict[str, Any], bytes]] = {
    "empty": ({}, b""),
    "cut short": ({}, GOOD[:-1]),
    "too long": ({}, GOOD + b"x"),
    "lying total": ({}, struct.pack(">i", 2**31 - 1) + GOOD[4:]),
    "negative total": ({}, struct.pack(">i", -1) + GOOD[4:]),
    "lying body": ({}, GOOD[:16] + struct.pack(">i", 2**31 - 1) + GOOD[20:]),
    "negative body": ({}, GOOD[:16] + struct.pack(">i", -1) + GOOD[20:]),
    "no batch at all": ({}, b"hello"),
    "large": ({}, batch_body([(b"x" * MIB, b"")] * 4)),
    "empty message": ({}, batch_body([(b"one", b""), (b"", b"")])),
    "delayed": ({}, batch_body([(b"one", b"DELAY\x013\x02")])),
    "timed": ({}, batch_body([(b"one", b"TIMER_DELAY_MS\x01\xff\x02")])),
    "transactional": ({}, batch_body([(b"one", b"TRAN_MSG\x01true\x02")])),
    "large properties": ({}, batch_body([(b"one", b"p\x01" + b"x" * 33000)])),
    "retry topic": ({"topic": "%RETRY%g"}, GOOD),
}


@pytest.mark.parametrize("name", REFUSED_BATCHES)
def test_a_refused_batch_stores_nothing(
    client: RawClient, bystander: None, topic: str, name: str
) -> None:
    fields, body = REFUSED_BATCHES[name]
    stored(client, topic)
    answer = send_batch(client, body=body, **{"topic": topic, **fields})
    assert answer.code == 13
    assert answer.remark
    assert len(pulled(client, topic)) == 1


def test_properties_of_a_batch_that_are_no_text_are_stored_as_they_are(
    client: RawClient, topic: str
) -> None:
    answer = send_batch(client, topic, batch_body([(b"x", b"TAGS\x01\xff\x02")]))
    assert answer.code == 0
    raw = client.ask(PULL, pull_ext(topic)).body
    assert b"TAGS\x01\xff\x02" in raw


# Pulling

FOUND, NOT_FOUND, RETRY_AT_ONCE, MOVED = 0, 19, 20, 21

# Pulls of a queue with messages 0..4 (tags A B A B A), and their code, remark, next offset and
# messages.
PULLS: dict[str, tuple[dict[str, Any], int, str, int, list[int]]] = {
    "all": ({}, FOUND, "FOUND", 5, [0, 1, 2, 3, 4]),
    "the rest": ({"queueOffset": 3}, FOUND, "FOUND", 5, [3, 4]),
    "two": ({"maxMsgNums": 2}, FOUND, "FOUND", 2, [0, 1]),
    "none": ({"maxMsgNums": 0}, FOUND, "FOUND", 1, [0]),
    "few bytes": ({"maxMsgBytes": 1}, FOUND, "FOUND", 1, [0]),
    "by tag": ({"subscription": "A"}, FOUND, "FOUND", 5, [0, 2, 4]),
    "by two tags": ({"subscription": "A || B"}, FOUND, "FOUND", 5, [0, 1, 2, 3, 4]),
    "by tag, one": ({"subscription": "B", "maxMsgNums": 1}, FOUND, "FOUND", 2, [1]),
    "by nobody's tag": ({"subscription": "X"}, RETRY_AT_ONCE, "NO_MATCHED_MESSAGE", 5, []),
    "at the end": ({"queueOffset": 5}, NOT_FOUND, "OFFSET_OVERFLOW_ONE", 5, []),
    "behind the end": ({"queueOffset": 6}, MOVED, "OFFSET_OVERFLOW_BADLY", 5, []),
    "far behind": ({"queueOffset": 2**62}, MOVED, "OFFSET_OVERFLOW_BADLY", 5, []),
    "before all": ({"queueOffset": -1}, MOVED, "OFFSET_TOO_SMALL", 0, []),
    "long before": ({"queueOffset": -(2**62)}, MOVED, "OFFSET_TOO_SMALL", 0, []),
}


@pytest.mark.parametrize("code", [PULL, LITE_PULL])
@pytest.mark.parametrize("name", PULLS)
def test_a_pull_finds(client: RawClient, topic: str, name: str, code: int) -> None:
    for number in range(5):
        stored(client, topic, b"%d" % number, properties=properties({"TAGS": "AB"[number % 2]}))
    fields, wanted, remark, following, found = PULLS[name]
    answer = client.ask(code, pull_ext(topic, **fields))
    assert (answer.code, answer.remark) == (wanted, remark)
    assert answer.ext["nextBeginOffset"] == str(following)
    assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "5")
    assert answer.ext["suggestWhichBrokerId"] == "0"
    assert [int(record.body) for record in decode_records(answer.body)] == found


@pytest.mark.parametrize(("offset", "code"), [(0, NOT_FOUND), (7, MOVED), (-3, MOVED)])
def test_a_pull_of_an_empty_queue(client: RawClient, topic: str, offset: int, code: int) -> None:
    stored(client, topic)
    answer = client.ask(PULL, pull_ext(topic, queueId=1, queueOffset=offset))
    assert answer.code == code
    assert answer.ext["nextBeginOffset"] == "0"
    assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "0")


def test_a_pull_with_a_binary_header(cluster: Cluster, topic: str) -> None:
    with RawClient(address_of(cluster), binary=True) as client:
        stored(client, topic, b"x")
        assert [record.body for record in pulled(client, topic)] == [b"x"]


REFUSED_PULLS: dict[str, tuple[dict[str, Any], int, str]] = {
    "unknown topic": ({"topic": "unknown"}, 17, "unknown"),
    "queue too high": ({"queueId": 4}, 29, "readQueueNums:[4]"),
    "negative queue": ({"queueId": -1}, 29, "queueId[-1]"),
    "illegal group": ({"consumerGroup": "a b"}, 26, "a b"),
    "expression without a tag": ({"subscription": "||"}, 23, "names no tag"),
    "SQL": ({"subscription": "a = 1", "expressionType": "SQL92"}, 1, "SQL92"),
    "group offline": ({"sysFlag": 0, "consumerGroup": "nobody"}, 24, "nobody"),
    "no offset": ({"queueOffset": None}, 1, "queueOffset"),
    "offset is a word": ({"queueOffset": "begin"}, 1, "queueOffset"),
    "number of 33 bits": ({"maxMsgNums": 2**32}, 1, "maxMsgNums"),
}


@pytest.mark.parametrize("name", REFUSED_PULLS)
def test_a_refused_pull_says_why(client: RawClient, bystander: None, topic: str, name: str) -> None:
    stored(client, topic)
    fields, code, word = REFUSED_PULLS[name]
    with structlog.testing.capture_logs() as lines:
        answer = client.ask(PULL, pull_ext(**{"topic": topic, **fields}))
    assert answer.code == code
    assert word in str(answer.remark)
    assert complaints(client, lines) == ["warning"]
    assert len(pulled(client, topic)) == 1


STRICT_PULLS: dict[str, tuple[int, dict[str, Any], int, str]] = {
    "lite pull": (LITE_PULL, {}, 16, "litePullMessageEnable"),
    "unknown group": (PULL, {"consumerGroup": "h"}, 26, "autoCreateSubscriptionGroup"),
    "disabled group": (PULL, {"consumerGroup": "disabled"}, 16, "consumeEnable"),
    # The group is checked before the topic, and the topic before the queue.
    "disabled group, unknown topic": (
        PULL,
        {"consumerGroup": "disabled", "topic": "unknown"},
        16,
        "consumeEnable",
    ),
    "unreadable topic": (PULL, {"topic": "unreadable", "queueId": 99}, 16, "perm is 2"),
    "queue beyond those to read": (PULL, {"topic": "narrow", "queueId": 2}, 29, "[2]"),
}


# Java's ForbiddenType: 1 the broker, 2 the group, 3 the topic, 4 broadcasting. Other refusals have
# none.
FORBIDDEN_TYPES = {
    "lite pull": "1",
    "disabled group": "2",
    "disabled group, unknown topic": "2",
    "unreadable topic": "3",
}


@pytest.mark.parametrize("name", STRICT_PULLS)
def test_a_pull_is_refused_in_javas_order(strict_client: RawClient, name: str) -> None:
    code, fields, wanted, word = STRICT_PULLS[name]
    answer = strict_client.ask(code, pull_ext(**{"topic": "t", "consumerGroup": "g", **fields}))
    assert answer.code == wanted
    assert word in str(answer.remark)
    assert answer.ext.get("forbiddenType") == FORBIDDEN_TYPES.get(name)


def test_a_broker_that_may_not_be_read_says_so() -> None:
    with Cluster(properties={"brokerPermission": "2"}) as cluster:  # noqa: SIM117 - one step of the set-up a line
        with RawClient(address_of(cluster)) as client:
            stored(client, "t")
            answer = client.ask(PULL, pull_ext("t"))
            assert answer.code == 16
            assert "brokerPermission" in str(answer.remark)
            assert answer.ext == {"forbiddenType": "1"}


def test_a_pull_may_rely_on_the_heartbeats_subscription(client: RawClient, topic: str) -> None:
    group = f"g-{topic}"
    stored(client, topic)
    known = {"sysFlag": 0, "consumerGroup": group, "subscription": None}
    assert client.ask(PULL, pull_ext(topic, **known)).code == 24
    client.ask(HEARTBEAT, {}, heartbeat_body("c", {group: [topic]}, sub_version=7))
    assert client.ask(PULL, pull_ext(topic, subVersion=7, **known)).code == 0
    assert client.ask(PULL, pull_ext(topic, subVersion=6, **known)).code == 0
    assert client.ask(PULL, pull_ext(topic, subVersion=8, **known)).code == 25
    assert client.ask(PULL, pull_ext("bystander", **known)).code in (17, 24)
    assert client.ask(PULL, pull_ext("BenchmarkTest", **known)).code == 24


def test_a_broadcasting_group_needs_leave_to_broadcast(strict_client: RawClient) -> None:
    for group, code, kind in (("g", NOT_FOUND, None), ("alone", 16, "4")):
        body = heartbeat_body("c", {group: ["t"]}, messageModel="BROADCASTING")
        strict_client.ask(HEARTBEAT, {}, body)
        ext = pull_ext("t", sysFlag=0, consumerGroup=group, queueId=3)
        answer = strict_client.ask(PULL, ext)
        assert (answer.code, answer.ext.get("forbiddenType")) == (code, kind)


@pytest.mark.parametrize(("offset", "code"), [(0, NOT_FOUND), (5, 21)])
def test_a_queue_without_messages_is_no_unknown_queue(
    client: RawClient, topic: str, offset: int, code: int
) -> None:
    stored(client, topic)  # in queue 0; queue 3 has no file
    answer = client.ask(PULL, pull_ext(topic, queueId=3, queueOffset=offset))
    assert (answer.code, answer.remark) == (code, "NO_MESSAGE_IN_QUEUE")
    assert answer.ext["nextBeginOffset"] == "0"


@pytest.mark.parametrize("wanted", [32, 33, 64, 2**31 - 1])
def test_a_pull_brings_32_messages_at_most(client: RawClient, topic: str, wanted: int) -> None:
    for _ in range(34):
        stored(client, topic, b"x")
    assert len(pulled(client, topic, maxMsgNums=wanted)) == 32
    assert len(pulled(client, topic, maxMsgNums=wanted, queueOffset=1)) == 32
    assert len(pulled(client, topic, maxMsgNums=wanted, queueOffset=2)) == 32
    assert len(pulled(client, topic, maxMsgNums=wanted, queueOffset=3)) == 31


def offset_of(client: RawClient, topic: str, group: str = "raw-group") -> int:
    ext = {"consumerGroup": group, "topic": topic, "queueId": 0, "setZeroIfNotFound": "false"}
    answer = client.ask(QUERY_OFFSET, ext)
    return int(answer.ext["offset"]) if answer.code == 0 else -1


def test_a_pull_commits_when_asked_to(client: RawClient, topic: str) -> None:
    stored(client, topic)
    pulled(client, topic, sysFlag=4, commitOffset=1)
    assert offset_of(client, topic) == -1
    pulled(client, topic, sysFlag=4 + 1, commitOffset=1)
    assert offset_of(client, topic) == 1
    stored(client, topic)
    client.ask(PULL, pull_ext(topic, sysFlag=4 + 1, commitOffset=2, queueOffset=1))
    assert offset_of(client, topic) == 2
    # An impossible offset is not stored, but the pull is served.
    for illegal in (3, 2**60, -1):
        pulled(client, topic, sysFlag=4 + 1, commitOffset=illegal)
        assert offset_of(client, topic) == 2


# Long polling


def wait_for(client: RawClient, topic: str, **fields: Any) -> int:
    """Send a pull that waits; return when the broker has it."""
    opaque = client.send(PULL, pull_ext(topic, **{"sysFlag": 4 + 2, **fields}))
    # Requests of one connection are served in turn, so an answer to the pull would come before this
    # one.
    assert client.ask(MAX_OFFSET, {"topic": topic, "queueId": 0}).code == 0
    return opaque


def test_a_waiting_pull_is_answered_by_an_arrival(client: RawClient, topic: str) -> None:
    stored(client, topic)
    with RawClient(address_of_client(client)) as sender:
        waiting = wait_for(client, topic, queueOffset=1)
        stored(sender, topic, b"elsewhere", queueId=1)
        assert client.silent(0.05)
        stored(sender, topic, b"here")
        answer = client.answer(waiting)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (0, "2")
    assert [record.body for record in decode_records(answer.body)] == [b"here"]


def address_of_client(client: RawClient) -> str:
    host, port = client.socket.getpeername()
    return f"{host}:{port}"


def test_a_waiting_pull_may_begin_before_the_first_message(client: RawClient, topic: str) -> None:
    stored(client, topic, queueId=1)
    waiting = wait_for(client, topic)
    with RawClient(address_of_client(client)) as sender:
        stored(sender, topic, b"first")
    assert [r.body for r in decode_records(client.answer(waiting).body)] == [b"first"]


def test_a_batch_wakes_a_pull_once_with_all_its_messages(client: RawClient, topic: str) -> None:
    stored(client, topic)
    waiting = wait_for(client, topic, queueOffset=1)
    with RawClient(address_of_client(client)) as sender:
        send_batch(sender, topic, batch_body([(b"a", b""), (b"b", b""), (b"c", b"")]))
    assert [r.body for r in decode_records(client.answer(waiting).body)] == [b"a", b"b", b"c"]
    assert client.silent(0.05)


def test_only_a_wanted_tag_wakes_a_pull(client: RawClient, topic: str) -> None:
    stored(client, topic)
    waiting = wait_for(client, topic, queueOffset=1, subscription="A")
    with RawClient(address_of_client(client)) as sender:
        stored(sender, topic, b"b", properties=properties({"TAGS": "B"}))
        assert client.silent(0.05)
        stored(sender, topic, b"a", properties=properties({"TAGS": "A"}))
    answer = client.answer(waiting)
    assert [record.body for record in decode_records(answer.body)] == [b"a"]
    assert answer.ext["nextBeginOffset"] == "3"


def test_a_waiting_pull_ends_with_its_time(client: RawClient, topic: str) -> None:
    stored(client, topic)
    began = time.monotonic()
    waits = {"queueOffset": 1, "sysFlag": 4 + 2, "suspendTimeoutMillis": 300}
    answer = client.ask(PULL, pull_ext(topic, **waits))
    assert time.monotonic() - began >= 0.3 - LOOP_S
    assert (answer.code, answer.remark) == (NOT_FOUND, "OFFSET_OVERFLOW_ONE")
    assert answer.ext["nextBeginOffset"] == "1"


def test_a_pull_that_waited_tells_what_it_skipped(client: RawClient, topic: str) -> None:
    stored(client, topic)
    # On one connection, so that the message is stored right behind the pull, however slow all is.
    waits = {"sysFlag": 4 + 2, "suspendTimeoutMillis": 300}
    waiting = client.send(PULL, pull_ext(topic, queueOffset=1, subscription="A", **waits))
    sent = client.send(SEND, send_ext(topic, properties=properties({"TAGS": "B"})), b"x")
    assert client.answer(sent).code == 0
    answer = client.answer(waiting)
    assert (answer.code, answer.remark) == (RETRY_AT_ONCE, "NO_MATCHED_MESSAGE")
    assert answer.ext["nextBeginOffset"] == "2"


def test_a_pull_does_not_wait_unless_it_says_so(client: RawClient, topic: str) -> None:
    stored(client, topic)
    assert client.ask(PULL, pull_ext(topic, queueOffset=1)).code == NOT_FOUND
    # Only "nothing new" is worth waiting for.
    assert client.ask(PULL, pull_ext(topic, queueOffset=9, sysFlag=6)).code == MOVED
    assert client.ask(PULL, pull_ext(topic, subscription="X", sysFlag=6)).code == RETRY_AT_ONCE


def test_a_pull_that_waited_commits_once(client: RawClient, topic: str) -> None:
    stored(client, topic)
    waiting = wait_for(client, topic, queueOffset=1, sysFlag=4 + 2 + 1, commitOffset=1)
    with RawClient(address_of_client(client)) as sender:
        assert offset_of(sender, topic) == 1
        ext = {
            "consumerGroup": "raw-group",
            "topic": topic,
            "queueId": 0,
            "commitOffset": 0,
        }
        assert sender.ask(15, ext).code == 0
        stored(sender, topic)
        client.answer(waiting)
        assert offset_of(sender, topic) == 0


def test_many_pulls_may_wait_over_one_connection(client: RawClient, topic: str) -> None:
    stored(client, topic)
    opaques = [
        client.send(PULL, pull_ext(topic, queueId=queue, queueOffset=0, sysFlag=6))
        for queue in (1, 2, 3)
    ]
    with RawClient(address_of_client(client)) as sender:
        assert client.silent(0.05)
        for queue in (3, 1, 2):
            stored(sender, topic, queueId=queue)
            assert client.answer(opaques[queue - 1]).code == 0


def test_the_pulls_of_a_lost_connection_are_forgotten(cluster: Cluster, topic: str) -> None:
    waiting = cluster.brokers[0].parts.waiting
    with RawClient(address_of(cluster)) as sender:
        stored(sender, topic)
        with RawClient(address_of(cluster)) as lost:
            wait_for(lost, topic, queueOffset=1)
            # Other tests leave only the pulls of connections that are being closed.
            eventually(lambda: waiting.count(State.MESSAGES) == 1)
        eventually(lambda: waiting.count(State.MESSAGES) == 0)
        stored(sender, topic)


def test_a_pull_of_a_topic_that_is_removed_is_told(cluster: Cluster, topic: str) -> None:
    broker = cluster.brokers[0]

    async def remove() -> None:
        broker.topics.remove(topic)

    with RawClient(address_of(cluster)) as client:
        stored(client, topic)
        waiting = wait_for(client, topic, queueOffset=1)
        cluster.run(remove())
        answer = client.answer(waiting)
        assert answer.code == 17
        # And sends no longer use what was remembered of the topic.
        assert client.ask(SEND, send_ext(topic, defaultTopic="nowhere"), b"x").code == 17


def test_short_polling_waits_as_long_as_configured(strict_client: RawClient) -> None:
    began = time.monotonic()
    # The pull would wait as long as it says, longer than the client waits for an answer.
    ext = pull_ext("t", queueId=2, sysFlag=6, consumerGroup="g", suspendTimeoutMillis=600_000)
    assert strict_client.ask(PULL, ext).code == NOT_FOUND
    assert time.monotonic() - began >= 0.1 - LOOP_S


def test_no_more_pulls_wait_than_may() -> None:
    with Cluster(properties={"maxHeldPulls": "1"}) as cluster:  # noqa: SIM117 - one step of the set-up a line
        with RawClient(address_of(cluster)) as client:
            stored(client, "t")
            waiting = wait_for(client, "t", queueOffset=1)
            with RawClient(address_of(cluster)) as other:
                refused = other.ask(PULL, pull_ext("t", queueOffset=1, sysFlag=6))
                assert refused.code == NOT_FOUND
                stored(other, "t")
            assert client.answer(waiting).code == 0


def test_waiting_pulls_are_answered_when_the_broker_stops(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster, RawClient(address_of(cluster)) as client:
        stored(client, "t")
        waiting = wait_for(client, "t", queueOffset=1)
        cluster.call("stop_broker", 0)
        assert client.answer(waiting).code == NOT_FOUND
        assert client.closed_by_peer()


# Frames

UNREADABLE = {
    "frame above the limit": struct.pack(">II", 16 * MIB + 1, 10),
    "frame of two gigabytes": struct.pack(">II", 2**31 - 1, 10),
    "frame of negative length": struct.pack(">iI", -1, 10),
    "frame shorter than its prefix": struct.pack(">II", 3, 0),
    "header longer than its frame": struct.pack(">II", 100, 97),
    "header that is no JSON": json_frame(b"{nonsense"),
    "header that is no object": json_frame(b"[1]"),
    "header of nothing": json_frame(b""),
    "header that is no text": json_frame(b"\xff\xfe\xfd"),
    "header nested too deeply": json_frame(b'{"code":10,"x":' + b"[" * 100_000),
    "unknown kind of header": struct.pack(">II", 6, 5 << 24 | 2) + b"{}",
    "binary header cut short": struct.pack(">II", 9, 1 << 24 | 5) + b"\0\x0a\0\0\0",
    "binary header with a lying length": struct.pack(">II", 25, 1 << 24 | 21)
    + struct.pack(">HBHiiII", 10, 0, 0, 1, 0, 2**31 - 1, 0),
    "binary header with a negative length": struct.pack(">II", 25, 1 << 24 | 21)
    + struct.pack(">HBHiiiI", 10, 0, 0, 1, 0, -1, 0),
    "opaque that is a word": json_frame(b'{"code":10,"opaque":"x"}'),
    "another protocol": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
    "TLS": bytes.fromhex("16030100f8010000f40303") + bytes(32),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_is_no_frame_ends_its_connection_alone(
    cluster: Cluster, bystander: None, name: str
) -> None:
    with RawClient(address_of(cluster)) as client:
        client.ask(MAX_OFFSET, {"topic": "bystander", "queueId": 0})
        with structlog.testing.capture_logs() as lines:
            client.socket.sendall(UNREADABLE[name])
            assert client.closed_by_peer()
    assert complaints(client, lines) == ["warning"]


def test_a_refused_frame_is_told_by_limit_and_value(cluster: Cluster) -> None:
    with RawClient(address_of(cluster)) as client, structlog.testing.capture_logs() as lines:
        client.socket.sendall(struct.pack(">I", 16 * MIB + 1))
        assert client.closed_by_peer()
    (reason,) = (line["reason"] for line in complaining(client.peer_name, lines))
    assert "16777217" in reason
    assert "16777216" in reason


def test_a_connection_goes_on_after_an_unknown_code(client: RawClient, bystander: None) -> None:
    for code in (9999, 1, 0, -5, 2**31 - 1):
        answer = client.ask(code)
        assert answer.code == 3
        assert answer.remark == f" request type {code} not supported"


def test_requests_may_come_in_any_pieces(client: RawClient, topic: str) -> None:
    frames = b"".join(
        json_request(SEND, send_ext(topic), b"%d" % number, opaque=number) for number in range(20)
    )
    for size in (1, 7, 4096):
        for at in range(0, len(frames), size):
            client.socket.sendall(frames[at : at + size])
        assert [client.receive().opaque for _ in range(20)] == list(range(20))


def test_an_answer_is_no_request(client: RawClient, topic: str) -> None:
    client.socket.sendall(json_request(SEND, send_ext(topic), b"x", opaque=5, flag=1))
    client.socket.sendall(json_request(0, {}, opaque=6, flag=1))
    assert client.silent(0.05)
    assert client.ask(PULL, pull_ext(topic)).code == 17


HOSTILE = (
    *("", " ", "x", "-1", "4", "16", "2147483647", "-2147483648", "9223372036854775807"),
    *("true", "TBW102", "%RETRY%", "%RETRY%g", "../../etc", "a||b", "||", "SQL92", "upper"),
    *(
        "\0",
        "€" * 50,
        "😀",
        "x" * 40_000,
        "\x01",
        "\x02",
        "CLUSTER\x01a\x01b\x02",
        "DELAY\x01-3\x02",
    ),
    *("DELAY\x01" + "9" * 30 + "\x02", "TIMER_DELAY_MS\x01x\x02", 'UNIQ_KEY\x01"\\\x02', "1e3"),
)
WELL_FORMED: dict[int, tuple[dict[str, str], bytes]] = {
    SEND: (send_ext("hostile"), b"x"),
    SEND_V2: (send_ext("hostile", letters=True), b"x"),
    SEND_BATCH: (send_ext("hostile", letters=True, batch="true"), batch_body([(b"x", b"")])),
    PULL: (pull_ext("hostile", maxMsgBytes=100), b""),
    LITE_PULL: (pull_ext("hostile"), b""),
    QUERY_OFFSET: ({"consumerGroup": "g", "topic": "hostile", "queueId": "0"}, b""),
    15: ({"consumerGroup": "g", "topic": "hostile", "queueId": "0", "commitOffset": "1"}, b""),
    29: ({"topic": "hostile", "queueId": "0", "timestamp": "1", "boundaryType": "lower"}, b""),
    MAX_OFFSET: ({"topic": "hostile", "queueId": "0", "committed": "true"}, b""),
    31: ({"topic": "hostile", "queueId": "0"}, b""),
    32: ({"topic": "hostile", "queueId": "0"}, b""),
    35: ({"clientID": "c", "producerGroup": "p", "consumerGroup": "g"}, b""),
    38: ({"consumerGroup": "g"}, b""),
}


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("code", WELL_FORMED)
def test_no_value_of_a_field_makes_a_handler_fail(
    cluster: Cluster, bystander: None, code: int, binary: bool
) -> None:
    ext, body = WELL_FORMED[code]
    with (
        RawClient(address_of(cluster), binary=binary) as client,
        structlog.testing.capture_logs() as lines,
    ):
        stored(client, "hostile")
        for field in ext:
            for value in HOSTILE:
                answer = client.answer(client.send(code, {**ext, field: value}, body))
                assert answer.code == 0 or answer.remark
    assert set(complaints(client, lines)) <= {"warning"}
