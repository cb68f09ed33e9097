"""Answers to senders: in which order, with which codes, and which messages are stored."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import (
    ONEWAY,
    batch_body,
    json_frame,
    properties,
    pull_ext,
    send_ext,
)
from tests.unit.broker.broker_box import Client, records, running

from cometmq.broker.server import Broker
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.messages.ids import parse_offset_id

SEND, PULL, MAX_OFFSET, SEND_V2, SEND_BATCH = 10, 11, 30, 310, 320
ILLEGAL, INVALID, FORBIDDEN = (
    ResponseCode.MESSAGE_ILLEGAL,
    ResponseCode.INVALID_PARAMETER,
    ResponseCode.NO_PERMISSION,
)
LIMIT = 100_000
# The most that the properties of a stored message may take.
MAX_PROPERTIES = 32_767


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path, store={"max_message_size": LIMIT}) as broker:
        yield broker


def ends(broker: Broker, topic: str = "orders") -> list[int]:
    return [broker.store.max_offset(topic, queue_id) for queue_id in range(4)]


async def test_what_one_read_brings_is_answered_in_its_order(
    broker: Broker, client: Client
) -> None:
    wanted = [(0, 1), (INVALID, 99), (0, 1), (ILLEGAL, 2), (0, 2)]
    frames = [
        client.frame(SEND, send_ext("orders", queueId=queue), b"" if code == ILLEGAL else b"x")
        for code, queue in wanted
    ]
    answers = await client.ask_all(*frames)
    assert [answer.code for answer in answers] == [code for code, _ in wanted]
    assert [answer.opaque for answer in answers] == [101, 102, 103, 104, 105]
    places = [(a.ext["queueId"], a.ext["queueOffset"]) for a in answers if a.code == 0]
    assert places == [("1", "0"), ("1", "1"), ("2", "0")]
    assert ends(broker) == [0, 2, 1, 0]


async def test_sends_to_a_topic_that_is_made_for_them_keep_their_order(
    broker: Broker, client: Client
) -> None:
    frames = [client.frame(SEND, send_ext("new"), b"%d" % number) for number in range(5)]
    answers = await client.ask_all(*frames)
    assert [(a.code, a.opaque, a.ext["queueOffset"]) for a in answers] == [
        (0, 101 + number, str(number)) for number in range(5)
    ]
    topic = broker.topics.get("new")
    assert topic is not None
    assert topic.write_queue_nums == 4


async def test_a_body_may_have_the_limit_and_not_a_byte_more(
    broker: Broker, client: Client
) -> None:
    assert (await client.ask(SEND_V2, send_ext("orders", letters=True), b"x" * LIMIT)).code == 0
    refused = await client.ask(SEND_V2, send_ext("orders", letters=True), b"x" * (LIMIT + 1))
    assert refused.code == ILLEGAL
    assert f"{LIMIT + 1} bytes, the limit maxMessageSize is {LIMIT};" in str(refused.remark)
    assert ends(broker) == [1, 0, 0, 0]


async def test_properties_that_fit_only_without_those_of_the_broker_are_refused(
    broker: Broker, client: Client
) -> None:
    """The record has two bytes for their length: one byte more would spoil all records behind."""

    def text(length: int) -> str:
        own = properties({"UNIQ_KEY": "A" * 32, "k": ""})
        return own[:-1] + "v" * (length - len(own)) + "\x02"

    answer = await client.ask(SEND, send_ext("orders", properties=text(MAX_PROPERTIES)), b"x")
    assert answer.code == ILLEGAL
    assert (
        f"the limit MAX_PROPERTIES_LENGTH is {MAX_PROPERTIES}, those of the broker included"
        in str(answer.remark)
    )
    assert ends(broker) == [0, 0, 0, 0]
    assert (await client.ask(SEND, send_ext("orders", properties=text(32_000)), b"x")).code == 0


@pytest.mark.parametrize(
    ("topic", "code", "remark"),
    [
        ("SCHEDULE_TOPIC_XXXX", FORBIDDEN, "Sending message to topic[SCHEDULE_TOPIC_XXXX]"),
        ("rmq_sys_wheel_timer", FORBIDDEN, "is forbidden"),
        ("a b", INVALID, "a b"),
        ("%RETRY%nobody", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "nobody"),
    ],
)
async def test_topics_that_nobody_may_send_to(
    tmp_path: Path, topic: str, code: int, remark: str
) -> None:
    async with running(tmp_path, auto_create_subscription_group=False) as broker:
        answer = await Client(broker).ask(SEND, send_ext(topic), b"x")
        assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark
        assert broker.store.commit_log.end == 0


async def test_topics_are_not_made_when_the_operator_makes_them(tmp_path: Path) -> None:
    async with running(tmp_path, auto_create_topic_enable=False) as broker:
        answer = await Client(broker).ask(SEND, send_ext("new"), b"x")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert "autoCreateTopicEnable" in str(answer.remark)
        assert broker.topics.get("new") is None


async def test_a_sender_that_names_no_queue_gets_one_that_is_written_to(
    broker: Broker, client: Client
) -> None:
    for _ in range(20):
        assert (await client.ask(SEND, send_ext("narrow", queueId=-1), b"x")).ext["queueId"] == "0"
    # While a topic shrinks, senders with an old route still reach the queues that are read.
    assert (await client.ask(SEND, send_ext("narrow", queueId=3), b"x")).code == 0
    answer = await client.ask(SEND, send_ext("closed", queueId=-1), b"x")
    assert (answer.code, "no queues to write to" in str(answer.remark)) == (FORBIDDEN, True)
    assert ends(broker, "narrow") == [20, 0, 0, 1]


async def test_a_batch_is_one_answer_with_the_place_of_each_message(
    broker: Broker, client: Client
) -> None:
    await client.ask(SEND, send_ext("orders"), b"before")
    body = batch_body([(b"%d" % number, b"") for number in range(3)])
    answer = await client.ask(SEND_BATCH, send_ext("orders", letters=True, batch="true"), body)
    assert (answer.code, answer.ext["queueOffset"]) == (0, "1")
    offsets = [parse_offset_id(text).commit_log_offset for text in answer.ext["msgId"].split(",")]
    for number, offset in enumerate(offsets):
        record = broker.store.message_at(offset)
        assert record is not None
        assert b"%d" % number in bytes(record)
    assert len(offsets) == 3
    assert ends(broker) == [4, 0, 0, 0]


@pytest.mark.parametrize(
    ("topic", "last", "text", "remark"),
    [
        ("orders", b"x", {"DELAY": "3"}, "DELAY=3"),
        ("orders", b"x", {"TIMER_DELAY_SEC": "3"}, "TIMER_DELAY_SEC=3"),
        ("orders", b"x", {"TRAN_MSG": "true"}, "TRAN_MSG=true"),
        ("orders", b"", {}, "body is empty"),
    ],
)
async def test_one_bad_message_of_a_batch_spoils_it_all(
    broker: Broker, client: Client, topic: str, last: bytes, text: dict[str, str], remark: str
) -> None:
    body = batch_body([(b"good", b""), (last, properties(text).encode())])
    answer = await client.ask(SEND_BATCH, send_ext(topic, letters=True, batch="true"), body)
    assert (answer.code, remark in str(answer.remark)) == (ILLEGAL, True), answer.remark
    assert broker.store.commit_log.end == 0


def large_batch(last: tuple[bytes, bytes] = (b"last", b"")) -> bytes:
    """Return a batch of more messages than are taken in at once."""
    tagged = properties({"TAGS": "wanted"}).encode()
    return batch_body([*((b"%d" % number, tagged) for number in range(299)), last])


async def test_others_are_served_while_a_large_batch_is_taken_in(
    broker: Broker, client: Client
) -> None:
    other = Client(broker, 4712)
    waiting = other.send(PULL, pull_ext("orders", subscription="wanted", sysFlag=6))
    batch = client.send(SEND_BATCH, send_ext("orders", letters=True, batch="true"), large_batch())
    assert (await other.ask(MAX_OFFSET, {"topic": "orders", "queueId": 0})).ext["offset"] == "0"
    assert batch not in client.answers()
    assert (await other.ask(SEND, send_ext("orders"), b"between")).ext["queueOffset"] == "0"
    answer = await client.answer(batch)
    # All of it lies behind what came meanwhile, in one piece.
    assert (answer.code, answer.ext["queueOffset"]) == (0, "1")
    offsets = [parse_offset_id(text).commit_log_offset for text in answer.ext["msgId"].split(",")]
    found = [broker.store.stored_record(offset) for offset in offsets]
    assert [record and record.body for record in found] == [
        *(b"%d" % number for number in range(299)),
        b"last",
    ]
    assert [record and record.queue_offset for record in found] == list(range(1, 301))
    assert ends(broker) == [301, 0, 0, 0]
    # Who waited for the messages was told of them.
    assert records(await other.answer(waiting))[0].body == b"0"


@pytest.mark.parametrize("last", [(b"x", properties({"DELAY": "3"}).encode()), (b"", b"")])
async def test_one_bad_message_of_a_large_batch_spoils_it_all(
    broker: Broker, client: Client, last: tuple[bytes, bytes]
) -> None:
    ext = send_ext("orders", letters=True, batch="true")
    answer = await client.ask(SEND_BATCH, ext, large_batch(last))
    assert answer.code == ILLEGAL
    assert (await client.ask(SEND_BATCH, ext, large_batch()[:-1])).code == ILLEGAL
    assert broker.store.commit_log.end == 0


async def test_a_large_batch_whose_queue_was_removed_meanwhile_is_refused(
    broker: Broker, client: Client
) -> None:
    ext = send_ext("orders", letters=True, batch="true")
    batch = client.send(SEND_BATCH, ext, large_batch())
    broker.store.delete_topic("orders")
    answer = await client.answer(batch)
    assert (answer.code, "send it again" in str(answer.remark)) == (ResponseCode.SYSTEM_BUSY, True)
    assert broker.store.commit_log.end == 0


async def test_a_batch_that_lies_about_its_lengths_is_refused(
    broker: Broker, client: Client
) -> None:
    whole = batch_body([(b"first", b""), (b"second", b"")])
    for body in (whole[:-1], whole + b"\x00\x00", b"\xff" * 30):
        answer = await client.ask(SEND_BATCH, send_ext("orders", letters=True, batch="true"), body)
        assert answer.code == ILLEGAL
    assert broker.store.commit_log.end == 0
    assert not client.line.connection.closed


async def test_one_way_sends_are_never_answered(broker: Broker, client: Client) -> None:
    client.send(SEND, send_ext("orders"), b"x", flag=ONEWAY)
    client.send(SEND, send_ext("orders", queueId=99), b"x", flag=ONEWAY)
    client.send(SEND, send_ext("orders"), b"", flag=ONEWAY)
    last = await client.ask(SEND, send_ext("orders"), b"x")
    assert [command.opaque for command in client.line.received()] == [last.opaque]
    assert ends(broker) == [2, 0, 0, 0]


async def test_ids_that_must_be_escaped_are_answered_as_they_were_given(client: Client) -> None:
    for unique_id in ('quote"quote', "back\\slash", "%d%n", "ü"):
        ext: dict[str, Any] = send_ext("orders", properties=properties({"UNIQ_KEY": unique_id}))
        answer = await client.ask(RequestCode.SEND_MESSAGE, ext, b"x")
        assert (answer.code, answer.ext["transactionId"]) == (0, unique_id)


async def test_a_batch_waits_as_its_own_header_says(broker: Broker, client: Client) -> None:
    """It was delivered at once: only its messages' own properties were looked at."""
    body = batch_body(
        [
            (body, properties({"UNIQ_KEY": key * 32}).encode())
            for body, key in ((b"one", "A"), (b"two", "B"))
        ]
    )
    ext = send_ext(
        "orders", letters=True, batch="true", properties=properties({"TIMER_DELAY_SEC": "60"})
    )
    answer = await client.ask(SEND_BATCH, ext, body)
    assert answer.code == 0
    assert len(answer.ext["msgId"].split(",")) == 2
    assert ends(broker) == [0, 0, 0, 0]
    assert broker.store.max_offset("rmq_sys_wheel_timer", 0) == 2
    ids = [parse_offset_id(text) for text in answer.ext["msgId"].split(",")]
    waiting = [broker.store.stored_record(each.commit_log_offset) for each in ids]
    assert [record.body for record in waiting if record is not None] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"properties": properties({"DELAY": "3"})}, "DELAY=3"),
        ({"properties": properties({"TIMER_DELIVER_MS": "soon"})}, "TIMER_DELIVER_MS=soon"),
        ({"sysFlag": 4}, "sysFlag 4"),
    ],
)
async def test_a_batch_with_what_no_batch_has_is_refused(
    broker: Broker, client: Client, fields: dict[str, Any], named: str
) -> None:
    """A level in the batch's own header was ignored; Java refuses it with 13."""
    body = batch_body([(b"one", b""), (b"two", b"")])
    ext = send_ext("orders", letters=True, batch="true", **fields)
    answer = await client.ask(SEND_BATCH, ext, body)
    assert answer.code == ILLEGAL
    assert named in str(answer.remark)
    assert ends(broker) == [0, 0, 0, 0]
    assert broker.store.max_offset("rmq_sys_wheel_timer", 0) == 0


async def test_fields_that_java_does_not_require_may_be_missing(
    broker: Broker, client: Client
) -> None:
    """Each was refused with code 1, and Java's brokers serve them all."""
    short = {"producerGroup": None, "defaultTopic": None, "defaultTopicQueueNums": None}
    for code, letters in ((SEND, False), (SEND_V2, True)):
        answer = await client.ask(code, send_ext("orders", letters=letters, **short), b"x")
        assert answer.code == 0, answer.remark
    pull = pull_ext("orders")
    for name in ("commitOffset", "subVersion", "suspendTimeoutMillis"):
        del pull[name]
    answer = await client.ask(PULL, pull)
    assert (answer.code, len(answer.body) > 0) == (0, True), answer.remark
    # The offset that is missing is none, although the pull says that it brings one.
    await client.ask(PULL, pull | {"sysFlag": "5"})
    assert broker.parts.offsets.query("g", "orders", 0) == -1
    operator = Client(broker, host="127.0.0.1")
    new = {"topic": "fresh", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    answer = await operator.ask(17, new | {"topicFilterType": "SINGLE_TAG", "order": "false"})
    assert answer.code == 0, answer.remark
    assert broker.topics.get("fresh") is not None


async def test_a_code_that_is_quoted_is_read_as_java_reads_it(
    broker: Broker, client: Client
) -> None:
    """It closed the connection."""
    for code, answered in ((MAX_OFFSET, 0), (9_999, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)):
        header = {"code": str(code), "opaque": str(code), "flag": "0", "version": "479"}
        fields = {"topic": "orders", "queueId": "0"}
        client.line.feed(json_frame({**header, "language": "JAVA", "extFields": fields}))
        assert (await client.answer(code)).code == answered


async def test_a_client_without_an_id_leaves_its_groups(broker: Broker, client: Client) -> None:
    """Java's brokers know it by its connection."""
    heartbeat = {"clientID": "c", "producerDataSet": [{"groupName": "shop"}], "consumerDataSet": []}
    assert (await client.ask(34, {}, json.dumps(heartbeat).encode())).code == 0
    assert broker.parts.clients.producers("shop")
    assert (await client.ask(35, {"producerGroup": "shop"})).code == 0
    assert not broker.parts.clients.producers("shop")
