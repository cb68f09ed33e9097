"""Replies: who gets them, how their senders are answered, and what is stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.integration.raw_client import properties, send_ext
from tests.unit.broker.broker_box import Client, Unanswered, running, turns
from tests.unit.remoting.line import answer_to
from tests.waits import WAIT_S, until

from cometmq.broker.groups.clients import Member
from cometmq.broker.server import Broker
from cometmq.errors import StoreError
from cometmq.model.java.hashing import java_hash
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import StoredRecord, decode_record

REPLY, REPLY_V2 = 324, 325
ERROR = ResponseCode.SYSTEM_ERROR
ASKER = "asks@1"
MAX_PROPERTIES = 32_767


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give clients all the time that a busy machine may need to take a reply."""
    monkeypatch.setattr("cometmq.broker.sends.reply._PUSH_TIMEOUT_S", WAIT_S)


@pytest.fixture
async def asker(broker: Broker) -> Client:
    """A client that waits for replies."""
    return await joined(broker, ASKER, 5000)


async def joined(broker: Broker, client_id: str, port: int) -> Client:
    """A producer that the broker knows by its heartbeat."""
    client = Client(broker, port)
    beat = {"clientID": client_id, "producerDataSet": [{"groupName": "asking"}]}
    assert (await client.ask(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())).code == 0
    return client


def reply_ext(
    client_id: str | None = ASKER,
    *,
    letters: bool = True,
    more: dict[str, str] | None = None,
    **fields: Any,
) -> dict[str, str]:
    values = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", **(more or {})}
    if client_id is not None:
        values["REPLY_TO_CLIENT"] = client_id
    return send_ext("orders", letters=letters, properties=properties(values), **fields)


async def push_to(asker: Client) -> RemotingCommand:
    """The reply that the broker hands over."""
    found: list[RemotingCommand] = await until(lambda: pushes(asker))
    return found[0]


def pushes(asker: Client) -> list[RemotingCommand]:
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    return [c for c in asker.line.received() if c.code == code and not c.is_response]


async def replied(
    client: Client, asker: Client, code: int = 0, ext: dict[str, str] | None = None
) -> tuple[RemotingCommand, RemotingCommand]:
    """Return the reply that the client that asked got, and the replier's answer when that client
    answers so.
    """
    opaque = client.send(REPLY_V2, reply_ext() if ext is None else ext, b"the answer")
    push = await push_to(asker)
    asker.line.feed(answer_to(push, code))
    return push, await client.answer(opaque)


def stored(broker: Broker, answer: RemotingCommand) -> StoredRecord:
    data = broker.store.record_at(parse_offset_id(answer.ext["msgId"]).commit_log_offset)
    assert data is not None
    return decode_record(data)


def ends(broker: Broker) -> list[int]:
    return [broker.store.max_offset("orders", queue_id) for queue_id in range(4)]


@pytest.mark.parametrize(("code", "letters"), [(REPLY, False), (REPLY_V2, True)])
async def test_a_reply_goes_to_the_client_that_asked(
    broker: Broker, client: Client, asker: Client, code: int, letters: bool
) -> None:
    other = await joined(broker, "asks@2", 5001)
    ext = reply_ext(letters=letters, flag=5, queueId=2, reconsumeTimes=1, sysFlag=8)
    client.send(code, ext, b"the answer")
    push = await push_to(asker)
    assert push.body == b"the answer"
    assert push.ext["topic"] == "orders"
    assert push.ext["producerGroup"] == "raw-producer"
    assert (push.ext["queueId"], push.ext["flag"], push.ext["sysFlag"]) == ("2", "5", "8")
    assert (push.ext["bornTimestamp"], push.ext["reconsumeTimes"]) == ("1700000000000", "1")
    assert push.ext["bornHost"] == "10.0.0.9:4711", "who sent the reply"
    assert push.ext["storeHost"] == broker.address
    given = decode_properties(push.ext["properties"])
    assert (given["CORRELATION_ID"], given["REPLY_TO_CLIENT"]) == ("c-1", ASKER)
    assert given["PUSH_REPLY_TIME"] == push.ext["storeTimestamp"]
    assert pushes(other) == []


async def test_the_replier_is_answered_when_the_client_took_it(
    client: Client, asker: Client
) -> None:
    opaque = client.send(REPLY_V2, reply_ext(), b"x")
    push = await push_to(asker)
    assert opaque not in client.answers()
    asker.line.feed(answer_to(push))
    answer = await client.answer(opaque)
    assert answer.code == 0
    assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0")
    assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")


async def test_a_reply_is_stored_as_it_was_sent(
    broker: Broker, client: Client, asker: Client
) -> None:
    # The bits that would make half a transaction of it do not count.
    ext = reply_ext(more={"TAGS": "quick"}, flag=5, queueId=3, sysFlag=4 | 8, reconsumeTimes=2)
    _, answer = await replied(client, asker, ext=ext)
    record = stored(broker, answer)
    assert (record.topic, record.queue_id, record.queue_offset) == ("orders", 3, 0)
    assert (record.body, record.flag, record.sys_flag) == (b"the answer", 5, 8 & ~12)
    assert (record.born_timestamp, record.reconsume_times) == (1_700_000_000_000, 2)
    kept = decode_properties(record.properties)
    assert "PUSH_REPLY_TIME" not in kept
    assert (kept["REPLY_TO_CLIENT"], kept["TAGS"]) == (ASKER, "quick")
    unit = broker.store.queue("orders", 3).unit(0)
    assert unit is not None
    assert unit.tags_code == java_hash("quick"), "consumers select it by its tag"
    assert ends(broker) == [0, 0, 0, 1]


async def test_the_client_may_have_come_over_another_connection_since(
    broker: Broker, client: Client, asker: Client
) -> None:
    again = await joined(broker, ASKER, 5002)
    push, answer = await replied(client, again)
    assert (push.body, answer.code) == (b"the answer", 0)
    assert pushes(asker) == []


@pytest.mark.parametrize(
    ("client_id", "reason"),
    [("gone@2", "channel of <gone@2> not found"), (None, "properties[REPLY_TO_CLIENT] is null")],
)
async def test_a_reply_for_nobody_is_stored_and_its_sender_told_why(
    broker: Broker, client: Client, client_id: str | None, reason: str
) -> None:
    answer = await client.ask(REPLY_V2, reply_ext(client_id), b"x")
    assert answer.code == ERROR
    assert answer.remark is not None
    assert reason in answer.remark
    assert ends(broker) == [1, 0, 0, 0]


async def test_a_client_whose_connection_closed_is_not_there(
    broker: Broker, client: Client, asker: Client
) -> None:
    asker.line.connection.close()
    answer = await client.ask(REPLY_V2, reply_ext(), b"x")
    assert answer.code == ERROR
    assert answer.remark is not None
    assert f"<{ASKER}> not found" in answer.remark
    assert ends(broker) == [1, 0, 0, 0]


async def test_a_client_that_does_not_take_it(
    broker: Broker, client: Client, asker: Client
) -> None:
    _, answer = await replied(client, asker, code=ERROR)
    assert answer.code == ERROR
    assert answer.remark is not None
    assert f"push reply message to {ASKER} fail: it answered 1" in answer.remark
    assert ends(broker) == [1, 0, 0, 0]


async def test_a_client_that_leaves_before_it_takes_it(
    broker: Broker, client: Client, asker: Client
) -> None:
    opaque = client.send(REPLY_V2, reply_ext(), b"x")
    await push_to(asker)
    asker.line.connection.close()
    answer = await client.answer(opaque)
    assert answer.code == ERROR
    assert answer.remark is not None
    assert "closed before the answer came" in answer.remark
    assert ends(broker) == [1, 0, 0, 0]


async def test_large_replies_for_a_client_that_does_not_read_are_encoded_one_by_one(
    broker: Broker, client: Client, asker: Client
) -> None:
    """When it read a little, all that waited were encoded at once: dozens of times 4 MiB."""
    size, times = 1_000_000, 10
    asker.line.connection.pause_writing()
    sent = [client.send(REPLY_V2, reply_ext(), b"x" * size) for _ in range(times)]
    await turns(20)
    assert pushes(asker) == []
    asker.line.transport.room = size * 3 // 2
    asker.line.connection.resume_writing()
    await turns(50)
    assert len(pushes(asker)) == 2
    asker.line.transport.room = None
    asker.line.connection.resume_writing()
    for push in await until(lambda: pushes(asker), lambda found: len(found) == times):
        asker.line.feed(answer_to(push))
    assert {(await client.answer(opaque)).code for opaque in sent} == {0}


async def test_a_client_that_leaves_without_reading_ends_the_replies_that_wait(
    client: Client, asker: Client
) -> None:
    asker.line.connection.pause_writing()
    opaque = client.send(REPLY_V2, reply_ext(), b"x")
    await turns()
    asker.line.connection.abort()
    answer = await client.answer(opaque)
    assert answer.remark is not None
    assert f"push reply message to {ASKER} fail" in answer.remark


async def test_a_client_that_never_answers_holds_up_no_other_reply(
    broker: Broker, client: Client, asker: Client
) -> None:
    silent = Client(broker, 5003)
    unanswered = Unanswered(silent)
    member = Member("silent@3", cast("Any", unanswered), "JAVA", 400, 1)
    broker.clients.register_producer(member, "asking")
    late = client.send(REPLY_V2, reply_ext("silent@3"), b"x")
    await push_to(silent)
    _, answer = await replied(client, asker)
    assert answer.code == 0
    assert late not in client.answers()
    unanswered.over.set()
    answer = await client.answer(late)
    assert answer.code == ERROR
    assert answer.remark is not None
    assert "push reply message to silent@3 fail" in answer.remark


@pytest.mark.parametrize(
    ("topic", "queue_id", "code"),
    [
        ("orders", 4, ResponseCode.INVALID_PARAMETER),
        ("closed", -1, ResponseCode.NO_PERMISSION),
        ("SCHEDULE_TOPIC_XXXX", 0, ResponseCode.NO_PERMISSION),
    ],
)
async def test_what_could_not_be_sent_cannot_be_replied(
    client: Client, asker: Client, topic: str, queue_id: int, code: int
) -> None:
    answer = await client.ask(REPLY_V2, {**reply_ext(queueId=queue_id), "b": topic}, b"x")
    assert answer.code == code
    assert pushes(asker) == []


async def test_properties_that_are_too_long_are_refused_with_the_limit(
    broker: Broker, client: Client, asker: Client
) -> None:
    answer = await client.ask(REPLY_V2, reply_ext(more={"k": "x" * MAX_PROPERTIES}), b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None
    assert f"the limit MAX_PROPERTIES_LENGTH is {MAX_PROPERTIES}" in answer.remark
    assert pushes(asker) == []
    assert ends(broker) == [0, 0, 0, 0]


@pytest.mark.parametrize("letter", ["x", "标"])
async def test_a_reply_that_the_store_does_not_take_is_handed_over_all_the_same(
    broker: Broker, client: Client, asker: Client, letter: str
) -> None:
    """Its properties are as long as they may be, and those of the broker come on top."""
    room = MAX_PROPERTIES - len(reply_ext(more={"k": ""})["i"])
    with capture_logs() as logs:
        _, answer = await replied(client, asker, ext=reply_ext(more={"k": letter * room}))
    assert answer.code == 0, answer.remark
    assert (answer.ext["msgId"], answer.ext["queueOffset"]) == ("0", "0")
    assert ends(broker) == [0, 0, 0, 0]
    assert "reply not stored" in [line["event"] for line in logs]


async def test_a_store_that_refuses_it_keeps_no_reply_from_the_client(
    broker: Broker, client: Client, asker: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(broker.store, "append", refuse)
    with capture_logs() as logs:
        push, answer = await replied(client, asker)
    assert (push.body, answer.code, answer.ext["msgId"]) == (b"the answer", 0, "0")
    assert [line["reason"] for line in logs if line["event"] == "reply not stored"] == [
        "the disk is full"
    ]


@pytest.fixture
async def keeping_none(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path / "none", store_reply_message_enable=False) as broker:
        yield broker


async def test_replies_need_not_be_stored(keeping_none: Broker) -> None:
    asker = await joined(keeping_none, ASKER, 5000)
    _, answer = await replied(Client(keeping_none), asker)
    assert (answer.code, answer.ext["msgId"], answer.ext["queueOffset"]) == (0, "0", "0")
    assert ends(keeping_none) == [0, 0, 0, 0]


async def test_many_replies_to_one_client_are_told_apart(client: Client, asker: Client) -> None:
    opaques = [
        client.send(REPLY_V2, reply_ext(more={"CORRELATION_ID": f"c-{n}"}), b"%d" % n)
        for n in range(20)
    ]
    await until(lambda: len(pushes(asker)) == 20)
    for push in reversed(pushes(asker)):
        asker.line.feed(answer_to(push, 0 if int(push.body) % 2 else 1))
    answers = await asyncio.gather(*map(client.answer, opaques))
    assert [answer.code for answer in answers] == [1, 0] * 10
