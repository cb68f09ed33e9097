"""Test transactions at the broker: its answers to good and bad peers, and its own checks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.integration.client_faces import BlockingFace
from tests.integration.raw_client import ONEWAY, RawClient, properties, pull_ext, send_ext
from tests.integration.transaction_faces import COMMIT, COMMITTED, QUICK, UNKNOWN, Face, unresolved
from tests.waits import CLOCK, eventually

from cometmq import ConsumeFromWhere, Message
from cometmq.model import names
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.messages.record import StoredRecord, decode_records
from cometmq.testing import Cluster

FIRST = ConsumeFromWhere.FIRST_OFFSET
ROLLED_BACK = 12
PRODUCERS = 204
_NUMBERS = itertools.count()
# A producer is asked this many times.
CHECKS = 8


pytestmark = [
    pytest.mark.faces("virtual"),
    pytest.mark.cluster(
        properties={
            "accessMessageInMemoryMaxRatio": "0",
            **QUICK,
            "transactionCheckMax": f"{CHECKS}",
        }
    ),
]


@pytest.fixture
def face(face: BlockingFace) -> Face:
    return Face(face)


@pytest.fixture
def raw(cluster: Cluster) -> Iterator[RawClient]:
    with RawClient(cluster.brokers[0].address) as raw:
        yield raw


def records(raw: RawClient, topic: str) -> list[StoredRecord]:
    raw.settle()
    answer = raw.ask(RequestCode.PULL_MESSAGE, pull_ext(topic, maxMsgNums=1000))
    return list(decode_records(answer.body)) if answer.code == 0 else []


def send_half(
    raw: RawClient, topic: str, group: str, born_ago_ms: int = 0, **more: str
) -> dict[str, str]:
    values = {"UNIQ_KEY": f"U{next(_NUMBERS)}", "TRAN_MSG": "true", "PGROUP": group, **more}
    ext = send_ext(
        topic,
        letters=True,
        properties=properties(values),
        producerGroup=group,
        sysFlag=4,
        bornTimestamp=CLOCK.now_ms() - born_ago_ms,
    )
    answer = raw.ask(RequestCode.SEND_MESSAGE_V2, ext, b"half of it")
    assert answer.code == 0, answer.remark
    return answer.ext


def end_ext(half: dict[str, str], group: str, verdict: int = COMMITTED, **more: Any) -> Any:
    return {
        "producerGroup": group,
        "tranStateTableOffset": half["queueOffset"],
        "commitLogOffset": str(int(half["msgId"][16:], 16)),
        "commitOrRollback": verdict,
        "fromTransactionCheck": "false",
        "msgId": half["transactionId"],
        "transactionId": half["transactionId"],
        **more,
    }


def test_a_verdict_that_does_not_fit_is_refused_with_the_reason(raw: RawClient, name: str) -> None:
    half = send_half(raw, name, "g1", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    for group, more, reason in [
        ("other", {}, "The producer group wrong"),
        ("g1", {"commitLogOffset": 1 << 40}, "The commit log offset wrong"),
        ("g1", {"tranStateTableOffset": 1 << 40}, "Find prepared transaction message failed"),
        ("g1", {"tranStateTableOffset": -1}, "Find prepared transaction message failed"),
    ]:
        answer = raw.ask(RequestCode.END_TRANSACTION, {**end_ext(half, group), **more})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert reason in (answer.remark or "")
    assert records(raw, name) == []
    # A message of another topic is no half message, wherever it lies.
    other = raw.ask(RequestCode.SEND_MESSAGE_V2, send_ext(name, letters=True), b"x").ext
    foreign = end_ext(half, "g1", commitLogOffset=int(other["msgId"][16:], 16))
    assert raw.ask(RequestCode.END_TRANSACTION, foreign).code == ResponseCode.SYSTEM_ERROR
    for _ in range(3):
        assert raw.ask(RequestCode.END_TRANSACTION, end_ext(half, "g1")).code == 0
    assert [record.body for record in records(raw, name)] == [b"x", b"half of it"]
    # It ended as committed, and a late change of mind changes nothing.
    assert raw.ask(RequestCode.END_TRANSACTION, end_ext(half, "g1", ROLLED_BACK)).code == 0
    assert len(records(raw, name)) == 2


def test_a_verdict_after_the_immunity_time_is_left_to_the_check(raw: RawClient, name: str) -> None:
    half = send_half(raw, name, "nobody", 5_000, CHECK_IMMUNITY_TIME_IN_SECONDS="4")
    answer = raw.ask(RequestCode.END_TRANSACTION, end_ext(half, "nobody"))
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    asked = end_ext(half, "nobody", fromTransactionCheck="true")
    assert raw.ask(RequestCode.END_TRANSACTION, asked).code == 0
    assert len(records(raw, name)) == 1


def test_no_verdict_is_not_answered(raw: RawClient, name: str) -> None:
    half = send_half(raw, name, "g1", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    raw.send(RequestCode.END_TRANSACTION, end_ext(half, "g1", 0))
    # The first answer that comes is that to the next request.
    answer = raw.ask(RequestCode.END_TRANSACTION, end_ext(half, "g1", 5))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "commitOrRollback field wrong: 5 is none of 8" in (answer.remark or "")
    raw.send(RequestCode.END_TRANSACTION, end_ext(half, "g1"), flag=ONEWAY)
    eventually(lambda: len(records(raw, name)) == 1)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"PGROUP": ""}, ResponseCode.MESSAGE_ILLEGAL),
        ({"DELAY": "3"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_MS": "5000"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_half_messages_that_cannot_be_kept_are_refused(
    raw: RawClient, name: str, more: dict[str, str], code: int
) -> None:
    values = {"UNIQ_KEY": "U1", "TRAN_MSG": "true", "PGROUP": "g", **more}
    ext = send_ext("refused", letters=True, properties=properties(values))
    answer = raw.ask(RequestCode.SEND_MESSAGE_V2, ext, b"x")
    assert answer.code == code, answer.remark


@pytest.mark.faces("virtual", "blocking", seeds=3)
def test_a_half_message_nobody_decides_is_given_up_listed_and_resumed(
    face: Face, name: str, raw: RawClient
) -> None:
    listener = face.listener(execute=UNKNOWN)
    producer = face.producer(name, listener)
    # Questions that the broker asks before it has heard of the producer count, too.
    eventually(lambda: raw.ask(PRODUCERS, {"producerGroup": name}).code == 0)
    result = producer.send_in_transaction(Message(name, b"forgotten"))

    def given_up() -> list[StoredRecord]:
        found = records(raw, names.TRANS_CHECK_MAX_TIME_TOPIC)
        return [record for record in found if result.msg_id in record.properties]

    discarded = eventually(given_up)[0]
    # The last question may reach the listener later than the message is listed.
    listener.wait_checked(CHECKS)
    assert len(listener.checked) == CHECKS
    late = end_ext(
        {
            "queueOffset": str(result.queue_offset),
            "msgId": result.offset_msg_id,
            "transactionId": result.msg_id,
        },
        name,
    )
    answer = raw.ask(RequestCode.END_TRANSACTION, late)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "resume it" in (answer.remark or "")
    listener.verdicts["check"] = COMMIT
    offset_id = f"{discarded.store_host.hex().upper()}{discarded.physical_offset:016X}"
    resume = {"msgId": offset_id, "topic": names.TRANS_CHECK_MAX_TIME_TOPIC}
    assert raw.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, resume).code == 0
    received = face.received(name)
    assert received.wait_for(1)[0].body == b"forgotten"


@pytest.mark.parametrize("msg_id", ["", "zz", "0" * 32, "7F000001" + "0" * 24])
def test_resuming_what_is_no_half_message_is_refused(raw: RawClient, msg_id: str) -> None:
    answer = raw.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": msg_id})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_one_that_was_ended_is_not_resumed(raw: RawClient, name: str) -> None:
    half = send_half(raw, name, "g1", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    assert raw.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": half["msgId"]}).code == 0
    assert raw.ask(RequestCode.END_TRANSACTION, end_ext(half, "g1")).code == 0
    answer = raw.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": half["msgId"]})
    assert "has ended" in (answer.remark or "")


def test_the_check_is_what_java_sends(raw: RawClient, name: str) -> None:
    """Code 39 has all its fields and the record in its real topic; live members take turns."""
    beat = json.dumps({"clientID": "raw@1", "producerDataSet": [{"groupName": name}]})
    raw.ask(RequestCode.HEART_BEAT, None, beat.encode())
    half = send_half(raw, name, name)
    question = raw.push(RequestCode.CHECK_TRANSACTION_STATE)
    assert question.flag & ONEWAY
    (record,) = decode_records(question.body)
    assert (record.topic, record.queue_id, record.body) == (name, 0, b"half of it")
    assert question.ext["msgId"] == question.ext["transactionId"] == half["transactionId"]
    assert question.ext["bname"] == "broker-a"
    assert question.ext["topic"] == names.TRANS_HALF_TOPIC
    assert int(question.ext["tranStateTableOffset"]) > int(half["queueOffset"])
    assert int(question.ext["offsetMsgId"][16:], 16) == int(question.ext["commitLogOffset"])
    answer = {
        "producerGroup": name,
        "commitOrRollback": ROLLED_BACK,
        "fromTransactionCheck": "true",
        **{key: question.ext[key] for key in ("tranStateTableOffset", "commitLogOffset", "msgId")},
    }
    raw.send(RequestCode.END_TRANSACTION, answer, flag=ONEWAY)
    assert not [pushed for pushed in drain(raw) if pushed.ext["msgId"] != half["transactionId"]]
    assert records(raw, name) == []


def drain(raw: RawClient) -> list[Any]:
    """Return what else the broker asks until it asks no more."""
    found = []
    while not raw.silent(0.5):
        found.append(raw.receive())
    return found


@pytest.fixture
def restartable() -> Iterator[Callable[..., Cluster]]:
    with ExitStack() as clusters:

        def make(**properties: str) -> Cluster:
            return clusters.enter_context(Cluster(properties={**QUICK, **properties}))

        yield make


def test_a_restart_forgets_no_transaction(restartable: Callable[..., Cluster]) -> None:
    cluster = restartable(transactionCheckInterval="600000")
    with RawClient(cluster.brokers[0].address) as raw:
        halves = [send_half(raw, "orders", "g1") for _ in range(20)]
        for half in halves[:5]:
            assert raw.ask(RequestCode.END_TRANSACTION, end_ext(half, "g1")).code == 0
        for half in halves[5:10]:
            raw.ask(RequestCode.END_TRANSACTION, end_ext(half, "g1", ROLLED_BACK))
        assert unresolved(cluster) == 10
    cluster.call("restart_broker", 0)
    assert unresolved(cluster) == 10
    offsets = cluster.brokers[0].offsets
    group = names.TRANSACTION_GROUP
    assert offsets.query(group, names.TRANS_HALF_TOPIC, 0) == 10
    assert offsets.query(group, names.TRANS_OP_HALF_TOPIC, 0) >= 1
    with RawClient(cluster.brokers[0].address) as raw:
        for half in halves:
            raw.ask(RequestCode.END_TRANSACTION, end_ext(half, "g1"))
        assert len(records(raw, "orders")) == 15
        assert unresolved(cluster) == 0


def test_transactions_can_be_forbidden_and_bounded(restartable: Callable[..., Cluster]) -> None:
    ext = send_ext(
        "t", letters=True, properties=properties({"TRAN_MSG": "true", "PGROUP": "g"}), sysFlag=4
    )
    cluster = restartable(rejectTransactionMessage="true")
    with RawClient(cluster.brokers[0].address) as raw:
        answer = raw.ask(RequestCode.SEND_MESSAGE_V2, ext, b"x")
    assert answer.code == ResponseCode.NO_PERMISSION
    cluster = restartable(maxUnresolvedTransactions="3", transactionCheckInterval="600000")
    with RawClient(cluster.brokers[0].address) as raw:
        codes = [raw.ask(RequestCode.SEND_MESSAGE_V2, ext, b"x").code for _ in range(5)]
    assert codes == [0, 0, 0, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY]
