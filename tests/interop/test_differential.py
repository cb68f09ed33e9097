"""The same raw requests, good and bad, to the Java broker and to ours; the answers compared.

`DIFFERENCES` names every answer in which ours is meant to differ, and why.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.integration.raw_client import (
    Command,
    RawClient,
    batch_body,
    heartbeat_body,
    json_frame,
    properties,
    pull_ext,
    send_ext,
)
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker, JavaNamesrv
from tests.record_fields import RECORD_FIELDS
from tests.waits import eventually

from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import StoredRecord, decode_records
from cometmq.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SEND, PULL, QUERY_OFFSET, UPDATE_OFFSET = 10, 11, 14, 15
GET_BROKER_RUNTIME_INFO = 28
SEARCH, MAX_OFFSET, MIN_OFFSET, EARLIEST = 29, 30, 31, 32
HEARTBEAT, UNREGISTER, CONSUMER_LIST = 34, 35, 38
DELETE_GROUP = 207
SEND_V2, SEND_BATCH, LITE_PULL = 310, 320, 361
SENDING = (SEND, SEND_V2, SEND_BATCH)

# What neither implementation can know beforehand: only its presence is compared.
UNPREDICTABLE = frozenset({"msgId", "transactionId", "timestamp"})


@dataclass(frozen=True)
class Step:
    """One request. `loose` are further ext entries of the answer that are compared by presence."""

    name: str
    code: int
    ext: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""
    binary: bool = False
    loose: frozenset[str] = frozenset()
    # The whole of what is sent instead, over a connection of its own.
    raw: bytes | None = None


@dataclass(frozen=True)
class Answer:
    """The parts of an answer that are compared; `records` are the messages of a pull."""

    closed: bool = False
    code: int | None = None
    has_remark: bool = False
    ext: Mapping[str, str] = field(default_factory=dict)
    records: tuple[Mapping[str, Any], ...] = ()
    body: Any = None


def send(name: str, topic: str, body: bytes = b"body", *, code: int = SEND, **fields: Any) -> Step:
    letters = code in (SEND_V2, SEND_BATCH)
    return Step(name, code, send_ext(topic, letters=letters, **fields), body)


def pull(name: str, topic: str, *, code: int = PULL, **fields: Any) -> Step:
    return Step(name, code, pull_ext(topic, **fields))


def without(step: Step, *fields: str) -> Step:
    return replace(step, ext={key: value for key, value in step.ext.items() if key not in fields})


def binary(step: Step) -> Step:
    return replace(step, binary=True)


def loose(step: Step, *fields: str) -> Step:
    return replace(step, loose=frozenset(fields))


def raw(name: str, data: bytes) -> Step:
    return Step(name, 0, raw=data)


KEYED = properties(
    {"UNIQ_KEY": "7F00000100010001000100010001ABCD", "KEYS": "k1 k2", "TAGS": "TagA"}
)
RESENT = properties(
    {"CLUSTER": "Elsewhere", "MSG_REGION": "r", "TRACE_ON": "false", "TAGS": "TagB"}
)
BATCH = batch_body(
    [(b"one", properties({"TAGS": "TagA"}).encode()), (b"two", properties({"K": "v"}).encode())]
)
MIB = 1024 * 1024
PADDING = b" " * 32

SENDS = [
    send("send makes the topic", "t"),
    send("send v2", "t", code=SEND_V2),
    binary(send("send with binary header", "t")),
    binary(send("send v2 with binary header", "t", code=SEND_V2)),
    send("send with keys, tags and unique id", "t", properties=KEYED),
    send("send of a message that was stored before", "t", properties=RESENT),
    send("send without trailing separator", "t", properties="a\x01b\x02TAGS\x01TagC"),
    send("send with broken properties", "t", properties="no separators at all"),
    send("send without properties", "t", properties=None),
    send("send with flag and reconsume times", "t", flag=7, reconsumeTimes=3),
    send("send with compression flags", "t", sysFlag=0x301),
    send("send with IPv6 flags over IPv4", "v6", sysFlag=0x30),
    send("send with a popped message's property", "t", properties=properties({"POP_CK": "1 2 3"})),
    send("send with non-ASCII properties", "t", "Bestellung €".encode(), properties="o\x01€\x02"),
    loose(send("send to any queue", "any", queueId=-1), "queueId"),
    send("send to the last queue", "t", queueId=3),
    send("send beyond the last queue", "t", queueId=4),
    send("send far beyond the last queue", "t", queueId=2**31 - 1),
    send("send wanting more queues than the model has", "many", defaultTopicQueueNums=100),
    send("send to the model's last queue", "many", queueId=7),
    send("send beyond the model's last queue", "many", queueId=8),
    send("send wanting no queues", "none", defaultTopicQueueNums=0),
    send("send wanting fewer than no queues", "fewer", defaultTopicQueueNums=-3),
    send("send to any of no queues", "none2", defaultTopicQueueNums=0, queueId=-1),
    send("send with an unknown model", "orphan", defaultTopic="nowhere"),
    send("send with a model that is no model", "orphan", defaultTopic="BenchmarkTest"),
    send("send modelled on the cluster", "child", defaultTopic="DefaultCluster"),
    send("send without a body", "t", b""),
    send("send of the largest body", "t", b"x" * (4 * MIB), queueId=2),
    send("send of too large a body", "t", b"x" * (4 * MIB + 1), queueId=2),
    send("send with too many properties", "t", properties=properties({"p": "x" * 32768})),
    send("send with an empty topic", ""),
    send("send with a blank topic", "   "),
    send("send with an illegal topic", "a b"),
    send("send with a dot in the topic", "a.b"),
    send("send with a topic of 127 characters", "x" * 127),
    send("send with a topic of 128 characters", "x" * 128),
    *(
        send(f"send to {topic}", topic)
        for topic in (
            "SCHEDULE_TOPIC_XXXX",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            "RMQ_SYS_TRANS_OP_HALF_TOPIC",
            "TRANS_CHECK_MAX_TIME_TOPIC",
            "SELF_TEST_TOPIC",
            "OFFSET_MOVED_EVENT",
            "TBW102",
            "BenchmarkTest",
            "DefaultCluster",
            "broker-a",
            "DefaultCluster_REPLY_TOPIC",
        )
    ),
    send("send to a group's retry topic", "%RETRY%maker", reconsumeTimes=1),
    send("send to an illegal group's retry topic", "%RETRY%" + "g" * 130),
    without(send("send without a topic", "t"), "topic"),
    without(send("send without a queue id", "t"), "queueId"),
    send("send with a queue id that is no number", "t", queueId="first"),
    send("send with a queue id beyond 32 bits", "t", queueId=2**40),
    binary(send("binary send with a queue id that is no number", "t", queueId="first")),
    Step("send without ext fields", SEND, {}, b"body"),
]

BATCHES = [
    send("batch", "b", BATCH, code=SEND_BATCH, batch="true"),
    send(
        "batch with header properties", "b", BATCH, code=SEND_BATCH, batch="true", properties=KEYED
    ),
    send("batch under code 310", "b", BATCH, code=SEND_V2, batch="true"),
    binary(send("batch with binary header", "b", BATCH, code=SEND_BATCH, batch="true")),
    send("code 320 that is no batch", "b2", BATCH, code=SEND_BATCH, batch="false"),
    send("code 320 that says nothing of batches", "b2", BATCH, code=SEND_BATCH, batch=None),
    send("batch to a retry topic", "%RETRY%maker", BATCH, code=SEND_BATCH, batch="true"),
    send("batch without a body", "b", b"", code=SEND_BATCH, batch="true"),
    send("batch cut short", "b", BATCH[:-3], code=SEND_BATCH, batch="true"),
    send("batch that is none", "b", b"what is this?", code=SEND_BATCH, batch="true"),
    send(
        "batch with an empty message", "b3", batch_body([(b"", b"")]), code=SEND_BATCH, batch="true"
    ),
    send(
        "batch too large",
        "b3",
        batch_body([(b"x" * MIB, b"")] * 4),
        code=SEND_BATCH,
        batch="true",
    ),
]

PULLS = [
    pull("pull all", "t"),
    pull("pull the rest", "t", queueOffset=10),
    binary(pull("pull with binary header", "t")),
    pull("lite pull", "t", code=LITE_PULL, sysFlag=4 + 16),
    pull("pull one", "t", maxMsgNums=1),
    pull("pull none", "t", maxMsgNums=0),
    pull("pull fewer than none", "t", maxMsgNums=-1),
    pull("pull a few bytes", "t", maxMsgBytes=10),
    pull("pull some bytes", "t", maxMsgBytes=600),
    pull("pull by tag", "t", subscription="TagA"),
    pull("pull by two tags", "t", subscription=" TagA || TagC"),
    pull("pull by a tag that nobody has", "t", subscription="TagX"),
    pull("pull by no tag", "t", subscription="||"),
    pull("pull by an empty expression", "t", subscription=""),
    pull("pull without an expression", "t", subscription=None),
    pull("pull without expression type", "t", expressionType=None),
    pull("pull by SQL", "t", subscription="a > 1", expressionType="SQL92"),
    pull("pull by an unknown kind of expression", "t", subscription="a", expressionType="XPATH"),
    pull("pull the large one", "t", queueId=2),
    pull("pull the batches", "b"),
    pull("pull what was sent as no batch", "b2"),
    pull("pull at the end", "t", queueId=3, queueOffset=1),
    pull("pull behind the end", "t", queueId=3, queueOffset=2),
    pull("pull far behind the end", "t", queueId=3, queueOffset=10_000),
    pull("pull before the beginning", "t", queueId=3, queueOffset=-1),
    pull("pull an empty queue", "t", queueId=1),
    pull("pull an empty queue further on", "t", queueId=1, queueOffset=5),
    pull("pull a queue beyond the last", "t", queueId=4),
    pull("pull a negative queue", "t", queueId=-1),
    pull("pull an unknown topic", "unknown"),
    pull("pull an unreadable topic", "unknown", consumerGroup="g"),
    pull("pull for an illegal group", "t", consumerGroup="g" * 256),
    pull("pull for a group with illegal characters", "t", consumerGroup="a b"),
    pull("pull of a group that is offline", "t", sysFlag=0, consumerGroup="offline"),
    without(pull("pull without an offset", "t"), "queueOffset"),
    pull("pull with an offset that is no number", "t", queueOffset="x"),
    pull("pull of a retry topic", "%RETRY%maker", consumerGroup="maker"),
]


def beat(name: str, client: str, groups: Mapping[str, list[str]], **consumer: Any) -> Step:
    return Step(name, HEARTBEAT, {}, heartbeat_body(client, groups, **consumer))


MEMBERS = [
    Step("consumer list of nobody", CONSUMER_LIST, {"consumerGroup": "g"}),
    beat("heartbeat", "c1", {"g": ["t"]}),
    beat("heartbeat once more", "c1", {"g": ["t"]}),
    Step("consumer list", CONSUMER_LIST, {"consumerGroup": "g"}),
    pull("pull by heartbeat's subscription", "t", sysFlag=0, consumerGroup="g", subVersion=1),
    pull("pull with an older subscription", "t", sysFlag=0, consumerGroup="g", subVersion=0),
    pull("pull with a newer subscription", "t", sysFlag=0, consumerGroup="g", subVersion=2),
    pull("pull of a topic not subscribed", "b", sysFlag=0, consumerGroup="g"),
    pull("pull of the retry topic made", "%RETRY%g", consumerGroup="g"),
    beat("heartbeat of an illegal group", "c1", {"a b": ["t"]}),
    Step("consumer list of an illegal group", CONSUMER_LIST, {"consumerGroup": "a b"}),
    Step("heartbeat without a body", HEARTBEAT),
    Step("heartbeat that is no JSON", HEARTBEAT, {}, b"{nonsense"),
    Step("heartbeat of nothing", HEARTBEAT, {}, b"{}"),
    Step("unregister", UNREGISTER, {"clientID": "c1", "consumerGroup": "g"}),
    Step("consumer list afterwards", CONSUMER_LIST, {"consumerGroup": "g"}),
    Step("unregister a stranger", UNREGISTER, {"clientID": "x", "consumerGroup": "y"}),
    Step("unregister no group", UNREGISTER, {"clientID": "x"}),
    Step("unregister nobody", UNREGISTER),
    Step("consumer list of no group", CONSUMER_LIST),
]


def offset(name: str, code: int, group: str = "raw-group", queue_id: int = 0, **more: Any) -> Step:
    ext = {"consumerGroup": group, "topic": "t", "queueId": queue_id, **more}
    return Step(name, code, {key: value for key, value in ext.items() if value is not None})


OFFSETS = [
    offset("query an offset never stored", QUERY_OFFSET),
    offset("query, but not zero", QUERY_OFFSET, setZeroIfNotFound="false"),
    offset("query, zero if need be", QUERY_OFFSET, setZeroIfNotFound="true"),
    offset("query of an empty queue", QUERY_OFFSET, queue_id=1),
    offset("query of a queue beyond the last", QUERY_OFFSET, queue_id=9),
    offset("query of an unknown topic", QUERY_OFFSET, topic="unknown"),
    offset("query of an unknown group", QUERY_OFFSET, "unknown-group"),
    offset("update", UPDATE_OFFSET, commitOffset=5),
    offset("query after update", QUERY_OFFSET),
    offset("update backwards", UPDATE_OFFSET, commitOffset=2),
    offset("query after update backwards", QUERY_OFFSET),
    offset("update of an unknown group", UPDATE_OFFSET, "unknown-group", commitOffset=5),
    offset("update of an unknown topic", UPDATE_OFFSET, topic="unknown", commitOffset=5),
    offset("update without a queue", UPDATE_OFFSET, queue_id=None, commitOffset=5),  # type: ignore[arg-type]  # None leaves the field out
    offset("update without an offset", UPDATE_OFFSET),
    pull("pull that commits", "t", sysFlag=4 + 1, commitOffset=1, queueId=3),
    offset("query after a pull that commits", QUERY_OFFSET, queue_id=3),
    *(
        Step(f"{word} {which}", code, {"topic": topic, "queueId": queue_id})
        for code, word in (
            (MAX_OFFSET, "max of"),
            (MIN_OFFSET, "min of"),
            (EARLIEST, "earliest of"),
        )
        for which, topic, queue_id in (
            ("a queue", "t", 0),
            ("an empty queue", "t", 1),
            ("a queue beyond the last", "t", 99),
            ("a negative queue", "t", -1),
            ("an unknown topic", "unknown", 0),
            ("an illegal topic", "../a b", 0),
        )
    ),
    *(
        Step(
            f"search {when} in {which} {boundary or ''}".strip(),
            SEARCH,
            {"topic": topic, "queueId": queue_id, "timestamp": time}
            | ({"boundaryType": boundary} if boundary else {}),
        )
        for when, time in (("before all", 0), ("after all", 2**42), ("negative", -1))
        for which, topic, queue_id in (("a queue", "t", 0), ("an empty queue", "t", 1))
        for boundary in (None, "lower", "upper", "UPPER", "middle")
    ),
    Step("max of nothing", MAX_OFFSET),
    Step("search without a time", SEARCH, {"topic": "t", "queueId": 0}),
]

COMMIT = {"consumerGroup": "gone", "topic": "t", "queueId": 0, "commitOffset": 0}
GROUPS = [
    Step("commit for no group", UPDATE_OFFSET, COMMIT),
    Step("delete a group", DELETE_GROUP, {"groupName": "gone"}),
    Step("commit for a deleted group", UPDATE_OFFSET, COMMIT),
    Step(
        "delete a group and its offsets", DELETE_GROUP, {"groupName": "gone", "cleanOffset": "true"}
    ),
    Step("commit for a group deleted with its offsets", UPDATE_OFFSET, COMMIT),
]

UNKNOWN = [
    Step("unknown code", 9999),
    binary(Step("unknown code in a binary header", 9999)),
    Step("code zero", 0),
]

BROKEN = [
    # Java looks at 12 bytes at least before it takes them for a frame.
    raw("frame of a declared 16 MiB and more", struct.pack(">II", 16 * MIB + 1, 10) + PADDING),
    raw("frame longer than any", struct.pack(">II", 0x7FFFFFFF, 10) + PADDING),
    raw("frame of negative length", struct.pack(">iI", -5, 10) + PADDING),
    raw("header longer than its frame", struct.pack(">II", 10, 100) + PADDING),
    raw("header that is no JSON", json_frame(b"{nonsense")),
    raw("unknown serialize type", struct.pack(">II", 4 + 10, 7 << 24 | 10) + b'{"code":0}'),
    raw("binary header cut short", struct.pack(">II", 4 + 5, 1 << 24 | 5) + b"\0\x0a\0\0\0"),
    raw("another protocol", b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"),
]

STEPS = [*SENDS, *BATCHES, *PULLS, *MEMBERS, *OFFSETS, *GROUPS, *UNKNOWN, *BROKEN]
assert len({step.name for step in STEPS}) == len(STEPS)

Change = Callable[[Answer], Answer]


def refused(code: int) -> Change:
    return lambda _: Answer(code=code, has_remark=True)


def first(count: int) -> Change:
    """So many messages of those that Java gave."""
    return lambda theirs: replace(
        theirs,
        records=theirs.records[:count],
        ext={**theirs.ext, "nextBeginOffset": str(count)},
    )


ILLEGAL = (
    "Java fails in its code (1, which makes a client send it to the next broker); 13 says that the"
    " message itself is at fault"
)
LIMITED = "Java ignores maxMsgBytes; asking for fewer bytes than a broker may send is honoured"
TOLD = "Java closes the connection; ours says first which limit the frame exceeds"
MADE_AGAIN = (
    "Java 5.5 asks behind the deletion whether the group is a lite one, which makes the group again"
    " (LiteMetadataUtil.isLiteGroupType); with cleanOffset it does not ask"
)
NAMELESS = "Java takes it for a request about nothing; ours names the field that is missing"

# How our answer follows from Java's, and why it is another.
DIFFERENCES: dict[str, tuple[Change, str]] = {
    "send to any of no queues": (refused(16), "Java divides by the number of queues and fails (1)"),
    "send without a body": (refused(13), ILLEGAL),
    "batch without a body": (refused(13), ILLEGAL),
    "batch cut short": (refused(13), ILLEGAL),
    "batch that is none": (refused(13), ILLEGAL),
    "batch too large": (refused(13), ILLEGAL),
    "batch with an empty message": (refused(13), "no message without a body, in a batch neither"),
    "pull a few bytes": (first(1), LIMITED),
    "pull some bytes": (first(3), LIMITED),
    "frame of a declared 16 MiB and more": (refused(1), TOLD),
    "frame longer than any": (refused(1), TOLD),
    "frame of negative length": (refused(1), TOLD),
    "heartbeat of nothing": (refused(1), NAMELESS),
    "commit for a deleted group": (refused(26), MADE_AGAIN),
}
assert DIFFERENCES.keys() <= {step.name for step in STEPS}


def run(address: str) -> dict[str, Answer]:
    answers = {}
    with RawClient(address) as client, RawClient(address, binary=True) as in_binary:
        for step in STEPS:
            if step.raw is not None:
                answers[step.name] = ask_raw(address, step.raw)
            else:
                connection = in_binary if step.binary else client
                answers[step.name] = seen(step, connection.ask(step.code, step.ext, step.body))
            if step.code in SENDING:
                settle(client)
    return answers


def settle(client: RawClient) -> None:
    """Wait until all that was sent can be pulled.

    A Java broker builds its queues behind the log. At a message with flags of IPv6 over IPv4 it skips
    everything that it has stored by then, so the wait comes after each message.
    """

    def has_all() -> bool:
        # A Java broker has no figures until it has sampled them once, a second after its start.
        body = client.ask(GET_BROKER_RUNTIME_INFO).body
        return bool(body) and int(json.loads(body)["table"]["dispatchBehindBytes"]) == 0

    eventually(has_all)


def ask_raw(address: str, data: bytes) -> Answer:
    with RawClient(address) as client:
        client.socket.sendall(data)
        try:
            return seen(Step("", 0), client.receive(timeout_s=10))
        except TimeoutError:
            return Answer()
        except ConnectionError:
            return Answer(closed=True)


def seen(step: Step, command: Command) -> Answer:
    hidden = UNPREDICTABLE | step.loose
    # Java leaves region and trace switch in a refusal too, where no client looks for them.
    ext = {
        key: ",".join("#" * len(value.split(","))) if key in hidden else value
        for key, value in command.ext.items()
        if command.code == 0 or key not in ("MSG_REGION", "TRACE_ON")
    }
    records: tuple[Mapping[str, Any], ...] = ()
    body: Any = None
    if step.code in (PULL, LITE_PULL):
        records = tuple(map(comparable, decode_records(command.body)))
    elif command.body:
        body = json.loads(command.body)
    return Answer(False, command.code, bool(command.remark), ext, records, body)


def comparable(record: StoredRecord) -> Mapping[str, Any]:
    """The fields of a record that two brokers must agree in."""
    hosts_and_times = {"born_host", "store_host", "store_timestamp", "physical_offset"}
    values: dict[str, Any] = {
        name: getattr(record, name) for name in RECORD_FIELDS if name not in hosts_and_times
    }
    if len(record.body) > 1000:
        values["body"] = len(record.body)
    found = decode_properties(record.properties)
    if found.get("UNIQ_KEY", KEYED) not in KEYED:  # the broker's own, whose address may be IPv6
        found["UNIQ_KEY"] = "#"
    values["properties"] = found
    values["total_size"] -= len(record.properties.encode())
    return values


@pytest.fixture(scope="module")
def answers() -> tuple[dict[str, Answer], dict[str, Answer]]:
    """All answers of the Java broker and of ours, by step."""
    need("java", "mvn")
    with JavaNamesrv() as namesrv, JavaBroker(namesrv.address) as broker:
        theirs = run(broker.address)
    with Cluster() as cluster:
        ours = run(f"127.0.0.1:{cluster.brokers[0].port}")
    return theirs, ours


@pytest.mark.parametrize("name", [step.name for step in STEPS])
def test_answers_as_java(name: str, answers: tuple[dict[str, Answer], dict[str, Answer]]) -> None:
    theirs, ours = answers[0][name], answers[1][name]
    if name in DIFFERENCES:
        change, _reason = DIFFERENCES[name]
        assert ours != theirs, "no difference any more: take it out of DIFFERENCES"
        theirs = change(theirs)
    assert ours == theirs
