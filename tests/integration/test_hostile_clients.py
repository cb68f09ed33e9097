"""Clients that lie about who they are and what is theirs, beside one that behaves well.

Without access control some of it works, as with Java's brokers: whoever may send requests may commit
another group's offsets, unlock its queues and speak under a member's id. SECURITY.md says so. The tests
here hold without access control, too.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator

import pytest
from tests.integration.raw_client import (
    ONEWAY,
    RESPONSE,
    RawClient,
    batch_body,
    heartbeat_body,
    json_frame,
    json_request,
    properties,
    pull_ext,
    send_ext,
)
from tests.waits import eventually

from cometmq.testing import Cluster

QUERY = 12
SEND, SEND_BATCH, PULL, HEARTBEAT, UNREGISTER, SEND_BACK, END = 10, 320, 11, 34, 35, 36, 37
MEMBERS, LOCK, UNLOCK, QUERY_OFFSET, COMMIT, RECALL = 38, 41, 42, 14, 15, 370
REGISTER, ROUTE = 103, 105


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def address(cluster: Cluster) -> str:
    return f"127.0.0.1:{cluster.brokers[0].port}"


@pytest.fixture
def victim(address: str) -> Iterator[RawClient]:
    with RawClient(address) as client:
        yield client
        # The well-behaved client goes on.
        assert client.ask(SEND, send_ext("behaves"), b"x").code == 0


@pytest.fixture
def attacker(address: str) -> Iterator[RawClient]:
    with RawClient(address) as client:
        yield client


def members(client: RawClient, group: str) -> list[str]:
    body = client.ask(MEMBERS, {"consumerGroup": group}).body
    ids: list[str] = json.loads(body)["consumerIdList"] if body else []
    return ids


# Frames that are no requests


@pytest.mark.parametrize("before", [0, 1, 8, 200])
def test_a_header_that_is_none_stops_nobody_who_pipelines(
    victim: RawClient, address: str, before: int
) -> None:
    """Eight QUERY_MESSAGEs and `{"code":D}` ended a turn of the loop; nobody in line was served again."""
    query = {"topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "1"}
    for _ in range(4):
        with RawClient(address) as attacker:
            requests = [json_request(QUERY, query, opaque=number) for number in range(before)]
            attacker.socket.sendall(b"".join([*requests, json_frame(b'{"code":D}')]))
            sends = [json_request(SEND, send_ext("pipelined"), b"x", opaque=n) for n in range(256)]
            victim.socket.sendall(b"".join(sends))
            assert {victim.receive().code for _ in sends} == {0}
            # The attacker is answered what came before it, and is cut off.
            assert attacker.closed_by_peer()


# Members of groups


def test_nobody_takes_a_member_out_over_another_connection(
    victim: RawClient, attacker: RawClient
) -> None:
    assert victim.ask(HEARTBEAT, body=heartbeat_body("v@1", {"bills": ["T"]})).code == 0
    for group in ("bills", "others"):
        for as_producer in (None, "p"):
            leave = {"clientID": "v@1", "consumerGroup": group, "producerGroup": as_producer}
            ext = {key: value for key, value in leave.items() if value is not None}
            assert attacker.ask(UNREGISTER, ext).code == 0
    assert members(victim, "bills") == ["v@1"]
    assert victim.ask(UNREGISTER, {"clientID": "v@1", "consumerGroup": "bills"}).code == 0
    assert members(victim, "bills") == []


def test_a_member_is_back_with_its_next_heartbeat_after_one_spoke_under_its_id(
    victim: RawClient, address: str
) -> None:
    beat = heartbeat_body("v@2", {"bills-2": ["T"]})
    assert victim.ask(HEARTBEAT, body=beat).code == 0
    with RawClient(address) as attacker:
        posed = heartbeat_body("v@2", {"bills-2": ["T", "other"]}, sub_version=0)
        assert attacker.ask(HEARTBEAT, body=posed).code == 0
    victim.pushed.clear()
    assert victim.ask(HEARTBEAT, body=beat).code == 0
    eventually(lambda: members(victim, "bills-2") == ["v@2"])


def test_a_queue_stays_locked_for_its_holder(victim: RawClient, attacker: RawClient) -> None:
    def ask(client: RawClient, code: int, client_id: str) -> bytes:
        queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
        body = {"clientId": client_id, "consumerGroup": "locking", "mqSet": [queue]}
        return client.ask(code, body=json.dumps(body).encode()).body

    assert json.loads(ask(victim, LOCK, "v"))["lockOKMQSet"]
    for client_id in ("a", "", "V", "v ", "v\0"):
        assert not json.loads(ask(attacker, LOCK, client_id) or b'{"lockOKMQSet":[]}')[
            "lockOKMQSet"
        ]
        ask(attacker, UNLOCK, client_id)
    assert json.loads(ask(victim, LOCK, "v"))["lockOKMQSet"]


@pytest.mark.parametrize("offset", [-1, 10**6, 2**62, -(2**63)])
def test_no_offset_leaves_its_queue(victim: RawClient, attacker: RawClient, offset: int) -> None:
    queue = {"topic": "behaves-too", "queueId": 0, "consumerGroup": "bills-3"}
    assert victim.ask(SEND, send_ext("behaves-too"), b"x").code == 0
    assert victim.ask(HEARTBEAT, body=heartbeat_body("v@4", {"bills-3": ["T"]})).code == 0
    assert victim.ask(COMMIT, {**queue, "commitOffset": 1}).code == 0
    attacker.ask(COMMIT, {**queue, "commitOffset": offset})
    assert 0 <= int(victim.ask(QUERY_OFFSET, queue).ext["offset"]) <= 1


# What is not theirs


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "rmq_sys_wheel_timer",
        "rmq_sys_delivery_note",
        "OFFSET_MOVED_EVENT",
        "SELF_TEST_TOPIC",
    ],
)
def test_the_brokers_own_topics_take_nothing_from_clients(
    victim: RawClient, attacker: RawClient, topic: str
) -> None:
    for body, code, batch in (
        (b"x", SEND, "false"),
        (batch_body([(b"x", b"")]), SEND_BATCH, "true"),
    ):
        letters = code == SEND_BATCH
        answer = attacker.ask(code, send_ext(topic, batch=batch, letters=letters), body)
        assert answer.code != 0
        assert answer.remark


def test_properties_of_the_broker_are_not_believed(victim: RawClient, attacker: RawClient) -> None:
    """A client cannot have its message delivered to a system topic, or as another's dead letter."""
    for names in (
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0", "DELAY": "1"},
        {"REAL_TOPIC": "stolen", "REAL_QID": "7", "TIMER_OUT_MS": "1", "TIMER_DELAY_MS": "1"},
        {"DLQ_ORIGIN_TOPIC": "x", "INNER_NUM": "9", "CLUSTER": "x", "TRAN_OP": "1"},
    ):
        answer = attacker.ask(SEND, send_ext("mine", properties=properties(names)), b"x")
        assert answer.remark is None or answer.code != 0
    assert int(victim.ask(30, {"topic": "stolen", "queueId": 7}).ext.get("offset", "0")) == 0


@pytest.mark.parametrize(
    ("offset", "state"), [(0, 0), (1, 1), (-5, 0), (2**40, 2**40), (0, 10**6), (107, 3)]
)
def test_a_transaction_is_ended_by_its_own_group_only(
    victim: RawClient, attacker: RawClient, offset: int, state: int
) -> None:
    mark = properties(
        {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": "7F000001000100000000000000000001"}
    )
    half = send_ext("payments", sysFlag=4, properties=mark, producerGroup="shop")
    # So that the half message is not the first record, and no made-up place is its own.
    for _ in range(2):
        assert victim.ask(SEND, send_ext("payments"), b"paid").code == 0
        sent = victim.ask(SEND, half, b"pay")
        assert sent.code == 0
    before = int(victim.ask(30, {"topic": "payments", "queueId": 0}).ext["offset"])
    # The right places with another group's name, and made-up places.
    place = int(sent.ext["msgId"][16:], 16)
    for group, log_offset, table_offset in (
        ("thief", place, int(sent.ext["queueOffset"])),
        ("shop", offset, state),
        ("shop", place + 1, int(sent.ext["queueOffset"])),
    ):
        answer = attacker.ask(
            END,
            {
                "producerGroup": group,
                "tranStateTableOffset": table_offset,
                "commitLogOffset": log_offset,
                "commitOrRollback": 8,
                "msgId": "7F000001000100000000000000000001",
            },
        )
        assert answer.code != 0, (group, log_offset, table_offset)
    assert int(victim.ask(30, {"topic": "payments", "queueId": 0}).ext["offset"]) == before


@pytest.mark.parametrize("offset", [0, 1, 50, -1, 2**40, 2**63 - 1])
def test_a_message_is_sent_back_by_its_place_only(
    victim: RawClient, attacker: RawClient, offset: int
) -> None:
    assert victim.ask(HEARTBEAT, body=heartbeat_body("v@9", {"bills-9": ["T"]})).code == 0
    answer = attacker.ask(SEND_BACK, {"group": "nobody-knows", "offset": offset, "delayLevel": 0})
    assert (answer.code, answer.remark is None) != (0, False)
    if offset not in (0,):  # where a record begins
        answer = attacker.ask(SEND_BACK, {"group": "bills-9", "offset": offset, "delayLevel": 0})
        assert answer.code != 0
    # Not into the topics of the broker either.
    answer = attacker.ask(
        SEND_BACK,
        {
            "group": "bills-9",
            "offset": -7,
            "delayLevel": -1,
            "originTopic": "../x",
            "originMsgId": "x",
        },
    )
    assert answer.code != 0


@pytest.mark.parametrize(
    "handle",
    ["", "x", "djEgYSBiIGMgZA==", "v1 a b c d", "A" * 5000, "djEgVCBicm9rZXItYSA5OTk5OSB4"],
)
def test_a_made_up_recall_handle_recalls_nothing(
    victim: RawClient, attacker: RawClient, handle: str
) -> None:
    ext = {"topic": "mine", "recallHandle": handle, "producerGroup": "p"}
    assert attacker.ask(RECALL, ext).code != 0


# Frames


def test_answers_that_nobody_asked_for_change_nothing(
    victim: RawClient, attacker: RawClient
) -> None:
    assert victim.ask(HEARTBEAT, body=heartbeat_body("v@3", {"bills-4": ["T"]})).code == 0
    for opaque in (-1, 0, 1, 2**31 - 1):
        for flag in (RESPONSE, RESPONSE | ONEWAY):
            attacker.socket.sendall(json_request(0, {"x": "y"}, b"z", opaque=opaque, flag=flag))
            attacker.socket.sendall(
                json_request(SEND, send_ext("no"), b"z", opaque=opaque, flag=flag)
            )
    assert attacker.ask(PULL, pull_ext("no")).code != 0, "no such topic was made"


def test_an_answer_from_another_connection_is_nobodys(
    cluster: Cluster, victim: RawClient, attacker: RawClient
) -> None:
    """The broker asks a member for its state; a stranger answers with the number of that request."""
    assert victim.ask(HEARTBEAT, body=heartbeat_body("v@5", {"bills-5": ["T"]})).code == 0
    asked = attacker.send(
        307, {"consumerGroup": "bills-5", "clientId": "v@5", "jstackEnable": "false"}
    )
    while (relayed := victim.receive()).code != 307:
        assert not relayed.is_response
    for opaque in range(max(0, relayed.opaque - 3), relayed.opaque + 3):
        attacker.socket.sendall(json_request(0, body=b'{"stolen":1}', opaque=opaque, flag=RESPONSE))
    victim.socket.sendall(
        json_request(0, body=b'{"properties":{}}', opaque=relayed.opaque, flag=RESPONSE)
    )
    assert b"stolen" not in attacker.answer(asked).body


def test_two_requests_with_one_number_get_two_answers(
    victim: RawClient, attacker: RawClient
) -> None:
    for _ in range(3):
        attacker.socket.sendall(json_request(SEND, send_ext("twice"), b"x", opaque=77))
    answers = [attacker.receive() for _ in range(3)]
    assert [(each.opaque, each.code) for each in answers] == [(77, 0)] * 3
    assert len({each.ext["msgId"] for each in answers}) == 3


def test_one_byte_at_a_time_is_served_and_holds_up_nobody(
    victim: RawClient, attacker: RawClient
) -> None:
    frame = json_request(SEND, send_ext("slowly"), b"x", opaque=5)
    for at in range(len(frame) - 1):
        attacker.socket.sendall(frame[at : at + 1])
        if at % 50 == 0:
            assert victim.ask(SEND, send_ext("behaves"), b"x").code == 0
    attacker.socket.sendall(frame[-1:])
    assert attacker.receive().code == 0


LIES = {
    "size of nothing": struct.pack(">i", 0),
    "negative size": struct.pack(">iIIii", -5, 0, 0, 0, 1) + b"x\0\0",
    "size of two gibibytes": struct.pack(">iIIii", 2**31 - 1, 0, 0, 0, 1) + b"x\0\0",
    "body longer than its message": struct.pack(">iIIii", 25, 0, 0, 0, 2**31 - 1) + b"xxx",
    "body of negative length": struct.pack(">iIIii", 25, 0, 0, 0, -1) + b"xxx",
    "properties beyond the end": struct.pack(">iIIii", 23, 0, 0, 0, 1) + b"x" + b"\x7f\xff",
    "half a message": batch_body([(b"x", b"")])[:-3],
    "rest behind the last": batch_body([(b"x", b"")]) + b"\0",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_batch_that_lies_about_its_lengths_stores_nothing(
    victim: RawClient, attacker: RawClient, lie: str
) -> None:
    assert victim.ask(SEND, send_ext("batches"), b"x").code == 0
    before = victim.ask(30, {"topic": "batches", "queueId": 0}).ext["offset"]
    answer = attacker.ask(SEND_BATCH, send_ext("batches", letters=True, batch="true"), LIES[lie])
    assert answer.code != 0
    assert answer.remark
    assert victim.ask(30, {"topic": "batches", "queueId": 0}).ext["offset"] == before


@pytest.mark.parametrize(
    "text",
    [
        "KEYS",
        "KEYS\x01",
        "\x02\x02\x02",
        "A\x01" * 200,
        "DELAY\x01-1\x02",
        "DELAY\x019999999\x02",
        "TIMER_DELAY_MS\x01-1\x02",
        "TIMER_DELIVER_MS\x01x\x02",
        "CONSUME_START_TIME\x01x\x02",
        "INNER_NUM\x01-3\x02",
        "x" * 40000,
    ],
)
def test_properties_that_lie_are_refused_or_stored_as_they_are(
    victim: RawClient, attacker: RawClient, text: str
) -> None:
    answer = attacker.ask(SEND, send_ext("properties", properties=text), b"x")
    assert answer.code == 0 or answer.remark


# Name servers


def test_a_brokers_name_and_address_stay_its_own(cluster: Cluster, address: str) -> None:
    with RawClient(cluster.namesrv) as attacker, RawClient(address) as victim:
        assert victim.ask(SEND, send_ext("routed"), b"x").code == 0
        eventually(lambda: attacker.ask(ROUTE, {"topic": "routed"}).code == 0)
        body = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": {}}}).encode()
        answer = attacker.ask(
            REGISTER,
            {
                "brokerName": "broker-a",
                "brokerAddr": "127.0.0.1:1",
                "clusterName": "DefaultCluster",
                "haServerAddr": "127.0.0.1:2",
                "brokerId": 0,
                "compressed": "false",
                "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF,
            },
            body,
        )
        assert answer.code != 0
        assert address in attacker.ask(ROUTE, {"topic": "routed"}).body.decode()
