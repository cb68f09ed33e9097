"""Requests of operators to a group's members by way of the broker, as the members' connections see
them.
"""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.integration.raw_client import pull_ext
from tests.unit.broker.broker_box import GROUP, HOST, Client, Unanswered, running, turns
from tests.unit.remoting.line import answer_to
from tests.unit.store.store_box import put
from tests.waits import WAIT_S, until

from cometmq.broker import long_answer
from cometmq.broker.groups import questions as module
from cometmq.broker.groups.client_relay import ClientRelay
from cometmq.broker.groups.clients import Member
from cometmq.broker.server import Broker
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import ConsumerData
from cometmq.model.topic import TopicConfig
from cometmq.protocol.codes import LanguageCode, MQVersion, RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, encode_command, response
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.fastjson.queue_table import decode_queue_table, encode_queue_table
from cometmq.protocol.limits import MAX_STATUS_LENGTH
from cometmq.protocol.messages.ids import encode_offset_id, pack_host
from cometmq.remoting.dispatch import Handlers

RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
LIST = RequestCode.GET_CONSUMER_LIST_BY_GROUP
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
RESET_MEMBER = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
STATUS_OF_MEMBER = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
ERROR = ResponseCode.SYSTEM_ERROR
# A member has chosen its own client id: with a signature over it, it could make other requests.
SIGNED = {"AccessKey": "a", "Signature": "s", "SecurityToken": "t", "Nonce": "n", "SignedAt": "1"}

Statuses = dict[str, dict[str, dict[str, int]]]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give members all the time that a busy machine may need for their answers."""
    monkeypatch.setattr(module, "STATUS_TIMEOUT_S", WAIT_S)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker with ten messages, which are one second apart, in the first queue of `orders`."""
    async with running(tmp_path) as broker:
        filled(broker)
        yield broker


def filled(broker: Broker) -> None:
    for number in range(10):
        put(broker.store, b"%d" % number)


@pytest.fixture
async def pushing(tmp_path: Path) -> AsyncIterator[Broker]:
    """The same, with resets as Java's brokers before 5.0 do them."""
    settings: dict[str, Any] = {"use_server_side_reset_offset": False}
    async with running(tmp_path / "pushing", **settings) as broker:
        filled(broker)
        for queue_id in range(4):
            broker.offsets.commit(GROUP, "orders", queue_id, 7 if queue_id == 0 else 0)
        yield broker


def operator_of(broker: Broker) -> Client:
    return Client(broker, host=HOST)


def joined(
    broker: Broker,
    client_id: str,
    port: int,
    version: int = 400,
    over: Callable[[Client], Any] | None = None,
) -> Client:
    """A member of the group, which the broker asks over its connection or what `over` makes of it."""
    client = Client(broker, port)
    connection = client.line.connection if over is None else over(client)
    member = Member(client_id, connection, "JAVA", version, 1)
    broker.clients.register_consumer(member, ConsumerData(GROUP))
    return client


def asked(member: Client, code: int) -> list[RemotingCommand]:
    """The requests that the broker sent to a member."""
    return [c for c in member.line.received() if c.code == code and not c.is_response]


async def asked_once(member: Client, code: int) -> RemotingCommand:
    (command,) = await until(lambda: asked(member, code))
    return cast("RemotingCommand", command)


def answered(
    member: Client, call: RemotingCommand, code: int = 0, *, remark: str | None = None, **more: Any
) -> None:
    """Have the member answer."""
    command = response(code, remark, **more)
    command.opaque = call.opaque
    member.line.feed(encode_command(command))


def reset_ext(**fields: object) -> dict[str, Any]:
    return {"topic": "orders", "group": GROUP, "timestamp": 0, "isForce": "true", **fields}


def offsets_in(answer: RemotingCommand) -> dict[int, int]:
    """Offsets by queue id, of an answer to a reset."""
    assert answer.code == 0, answer.remark
    table = decode_queue_table(bytes(answer.body), "offsetTable", int)
    assert {(queue.topic, queue.broker_name) for queue in table} == {("orders", "b")}
    return {queue.queue_id: offset for queue, offset in table.items()}


# Resets that the broker keeps


async def test_a_reset_stores_an_offset_for_each_queue(broker: Broker, operator: Client) -> None:
    broker.offsets.commit(GROUP, "orders", 0, 9)
    answer = await operator.ask(RESET, reset_ext())
    assert offsets_in(answer) == {0: 0, 1: 0, 2: 0, 3: 0}
    assert broker.offsets.query(GROUP, "orders", 0) == 0
    # The end, for a negative time.
    assert offsets_in(await operator.ask(RESET, reset_ext(timestamp=-1))) == {
        0: 10,
        1: 0,
        2: 0,
        3: 0,
    }
    assert broker.offsets.query(GROUP, "orders", 0) == 10


async def test_a_reset_by_time_finds_the_first_message_from_then_on(
    broker: Broker, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[tuple[str, int, int]] = []
    by_time = broker.store.offset_by_time

    def noted(topic: str, queue_id: int, timestamp_ms: int) -> int:
        asked_for.append((topic, queue_id, timestamp_ms))
        return 6 if queue_id == 0 else by_time(topic, queue_id, timestamp_ms)

    monkeypatch.setattr(broker.store, "offset_by_time", noted)
    answer = await operator.ask(RESET, reset_ext(timestamp=1_700_000_000_123))
    assert offsets_in(answer)[0] == 6
    assert ("orders", 0, 1_700_000_000_123) in asked_for


async def test_one_queue_is_reset_to_an_offset(broker: Broker, operator: Client) -> None:
    for queue_id in range(4):
        broker.offsets.commit(GROUP, "orders", queue_id, 1)
    for offset in (0, 4, 10):
        answer = await operator.ask(RESET, reset_ext(queueId=0, offset=offset))
        assert offsets_in(answer) == {0: offset}
        assert broker.offsets.query(GROUP, "orders", 0) == offset
    assert broker.offsets.query(GROUP, "orders", 1) == 1
    # Without an offset, or with -1, the time counts.
    assert offsets_in(await operator.ask(RESET, reset_ext(queueId=0, offset=-1))) == {0: 0}
    assert offsets_in(await operator.ask(RESET, reset_ext(queueId=0, timestamp=-1))) == {0: 10}


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"topic": "none"}, ResponseCode.TOPIC_NOT_EXIST, "no topic in this broker. topic=none"),
        ({"group": "none"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group none does not exist"),
        ({"queueId": 4, "offset": 0}, ERROR, "queueId[4] is illegal: topic[orders] has no such"),
        ({"queueId": 0, "offset": 11}, ERROR, "offset 11 not in consume queue range [0-10]"),
        ({"queueId": 0, "offset": -2}, ERROR, "offset -2 not in consume queue range [0-10]"),
    ],
)
async def test_a_reset_that_cannot_be_changes_nothing(
    broker: Broker, operator: Client, fields: dict[str, object], code: int, reason: str
) -> None:
    broker.offsets.commit(GROUP, "orders", 0, 5)
    answer = await operator.ask(RESET, reset_ext(**fields))
    assert answer.code == code
    assert answer.remark is not None
    assert reason in answer.remark
    assert broker.offsets.query(GROUP, "orders", 0) == 5


async def test_a_topic_without_queues_to_read_has_nothing_to_reset(
    broker: Broker, operator: Client
) -> None:
    broker.topics.put(TopicConfig("unread", read_queue_nums=0, write_queue_nums=4))
    answer = await operator.ask(RESET, reset_ext(topic="unread"))
    assert (answer.code, answer.remark) == (ERROR, "No queues to reset.")


async def test_a_slave_resets_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, broker_id=1) as slave:
        answer = await operator_of(slave).ask(RESET, reset_ext())
        assert (answer.code, answer.remark) == (ERROR, "Can not reset offset in slave broker")


async def test_a_pull_that_waits_hears_of_a_reset_at_once(broker: Broker, operator: Client) -> None:
    puller = Client(broker)
    # It would wait for longer than this test does.
    ext = pull_ext("orders", consumerGroup=GROUP, queueOffset=10, sysFlag=6)
    waits = puller.send(11, {**ext, "suspendTimeoutMillis": "600000"})
    await turns()
    assert waits not in puller.answers()
    assert (await operator.ask(RESET, reset_ext())).code == 0
    answer = await puller.answer(waits)
    assert answer.ext["nextBeginOffset"] == "0"


@pytest.fixture
def smallest_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have long answers let others have the loop after each piece, however fast the machine is."""
    monkeypatch.setattr(long_answer, "SLICE_S", 0.0)


async def turns_until(condition: Callable[[], object]) -> int:
    """Return how often others had the loop before the condition was met."""
    count = 0
    while not condition():
        await asyncio.sleep(0)
        count += 1
    return count


@pytest.mark.usefixtures("smallest_slices")
async def test_others_are_served_while_thousands_of_queues_are_reset(
    broker: Broker, operator: Client
) -> None:
    queues = 2_000
    broker.topics.put(TopicConfig("wide", read_queue_nums=queues, write_queue_nums=queues))
    resetting = operator.send(RESET, reset_ext(topic="wide"))
    assert await turns_until(lambda: resetting in operator.answers()) > queues
    answer = await operator.answer(resetting)
    table = decode_queue_table(bytes(answer.body), "offsetTable", int)
    assert [(queue.queue_id, offset) for queue, offset in table.items()] == [
        (queue_id, 0) for queue_id in range(queues)
    ]
    assert broker.offsets.queues(GROUP, "wide") == dict.fromkeys(range(queues), 0)


@pytest.mark.usefixtures("smallest_slices")
@pytest.mark.parametrize("gone", ["topic", "group"])
async def test_what_is_deleted_while_it_is_reset_keeps_no_offsets(
    broker: Broker, operator: Client, gone: str
) -> None:
    queues = 20_000
    broker.topics.put(TopicConfig("wide", read_queue_nums=queues, write_queue_nums=queues))
    resetting = operator.send(RESET, reset_ext(topic="wide"))
    await turns_until(lambda: broker.offsets.queues(GROUP, "wide"))
    assert resetting not in operator.answers()
    if gone == "topic":
        request = RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "wide"}
    else:
        ext = {"groupName": GROUP, "cleanOffset": "true"}
        request = RequestCode.DELETE_SUBSCRIPTIONGROUP, ext
    assert (await operator.ask(*request)).code == 0
    answer = await operator.answer(resetting)
    assert answer.code != 0
    assert broker.offsets.queues(GROUP, "wide") == {}


async def test_a_reset_whose_answer_would_be_too_long_resets_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, max_frame_length=100_000) as broker:
        broker.topics.put(TopicConfig("wide", read_queue_nums=2_000, write_queue_nums=2_000))
        answer = await operator_of(broker).ask(RESET, reset_ext(topic="wide"))
        assert answer.code == ERROR
        assert answer.remark is not None
        assert "reset the queues one by one (queueId)" in answer.remark
        assert broker.offsets.queues(GROUP, "wide") == {}


# Resets that the broker pushes


async def test_a_pushed_reset_reaches_every_member(pushing: Broker) -> None:
    members = [joined(pushing, f"m{n}", 5000 + n) for n in range(2)]
    answer = await operator_of(pushing).ask(RESET, reset_ext())
    assert offsets_in(answer) == {0: 0, 1: 0, 2: 0, 3: 0}
    for member in members:
        reported = await asked_once(member, RESET_MEMBER)
        assert reported.is_oneway
        assert (reported.ext["topic"], reported.ext["group"]) == ("orders", GROUP)
        table = decode_queue_table(bytes(reported.body), "offsetTable", int)
        assert table[MessageQueue("orders", "b", 0)] == 0
    # The members commit; the broker itself changes nothing.
    assert pushing.offsets.query(GROUP, "orders", 0) == 7


async def test_a_pushed_reset_goes_forward_only_by_force(pushing: Broker) -> None:
    joined(pushing, "m", 5000)
    operator = operator_of(pushing)
    for force, wanted in (("false", 7), ("true", 10)):
        answer = await operator.ask(RESET, reset_ext(timestamp=-1, isForce=force))
        assert offsets_in(answer)[0] == wanted
    answer = await operator.ask(RESET, reset_ext(timestamp=0, isForce="false"))
    assert offsets_in(answer)[0] == 0, "back it always goes"


@pytest.mark.parametrize("language", ["CPP", int(LanguageCode.CPP)])
async def test_members_in_cpp_get_the_offsets_as_a_list(
    pushing: Broker, language: str | int
) -> None:
    member = joined(pushing, "m", 5000)
    operator = operator_of(pushing)
    frame = operator.frame(RESET, reset_ext())
    header = frame[8:].replace(b'"JAVA"', json.dumps(language).encode())
    prefix = (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big")
    operator.line.feed(prefix + header)
    assert offsets_in(await operator.answer(101))[0] == 0, "the operator gets a map all the same"
    reported = json.loads(bytes((await asked_once(member, RESET_MEMBER)).body))
    assert {queue["queueId"]: queue["offset"] for queue in reported["offsetTable"]} == {
        0: 0,
        1: 0,
        2: 0,
        3: 0,
    }


async def test_a_member_that_just_left_keeps_no_other_from_its_reset(pushing: Broker) -> None:
    left, stays = joined(pushing, "left", 5000), joined(pushing, "stays", 5001)
    left.line.connection.close()
    await turns()
    assert left.line.connection.closed
    assert (await operator_of(pushing).ask(RESET, reset_ext())).code == 0
    assert await asked_once(stays, RESET_MEMBER)


async def test_a_pushed_reset_needs_offsets_members_and_their_version(pushing: Broker) -> None:
    operator = operator_of(pushing)
    answer = await operator.ask(RESET, reset_ext())
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert answer.remark is not None
    assert answer.remark.startswith("Consumer not online, so can not reset offset")
    answer = await operator.ask(RESET, reset_ext(topic="narrow"))
    assert (answer.code, answer.remark) == (ERROR, f"THe consumer group <{GROUP}> not exist")
    new = joined(pushing, "new", 5000)
    joined(pushing, "old", 5001, version=MQVersion.V3_0_7_SNAPSHOT - 1)
    answer = await operator.ask(RESET, reset_ext())
    assert answer.code == ERROR
    assert answer.remark is not None
    assert "the client old does not support this feature" in answer.remark
    assert asked(new, RESET_MEMBER) == [], "all are told, or none"


# The status of members


def status_of(**offsets: int) -> bytes:
    table = {MessageQueue("orders", "b", int(name[1:])): at for name, at in offsets.items()}
    return encode_queue_table("messageQueueTable", table)


async def statuses(answering: asyncio.Task[RemotingCommand]) -> dict[str, Any]:
    answer = await answering
    assert answer.code == 0, answer.remark
    return decode_body(bytes(answer.body), Statuses)["consumerTable"]


async def test_the_status_of_every_member_is_asked_for(broker: Broker, operator: Client) -> None:
    members = [joined(broker, f"m{n}", 5000 + n) for n in range(3)]
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(operator.ask(STATUS, {"topic": "orders", "group": GROUP}))
        for number, member in enumerate(members):
            call = await asked_once(member, STATUS_OF_MEMBER)
            assert (call.ext["topic"], call.ext["group"]) == ("orders", GROUP)
            answered(member, call, body=status_of(q0=number))
    table = await statuses(asking)
    assert {name: list(offsets.values()) for name, offsets in table.items()} == {
        "m0": [0],
        "m1": [1],
        "m2": [2],
    }


async def test_one_member_may_be_asked_by_its_id(broker: Broker, operator: Client) -> None:
    first, second = joined(broker, "m1", 5000), joined(broker, "m2", 5001)
    ext = {"topic": "orders", "group": GROUP, "clientAddr": " m2 "}
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(operator.ask(STATUS, ext))
        answered(second, await asked_once(second, STATUS_OF_MEMBER), body=status_of(q0=3))
    assert (await statuses(asking)).keys() == {"m2"}
    assert asked(first, STATUS_OF_MEMBER) == []


async def test_members_that_do_not_answer_well_are_left_out(
    broker: Broker, operator: Client
) -> None:
    names = ("good", "refuses", "babbles", "floods", "leaves")
    members = {name: joined(broker, name, 5000 + n) for n, name in enumerate(names)}

    def never_answering(client: Client) -> Unanswered:
        unanswered = Unanswered(client)
        unanswered.over.set()
        return unanswered

    members["silent"] = joined(broker, "silent", 6000, over=never_answering)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(operator.ask(STATUS, {"topic": "orders", "group": GROUP}))
        calls = {name: await asked_once(m, STATUS_OF_MEMBER) for name, m in members.items()}
        answered(members["good"], calls["good"], body=status_of(q0=3))
        answered(members["refuses"], calls["refuses"], ERROR, body=status_of(q0=4))
        answered(members["babbles"], calls["babbles"], body=b"[]")
        flood = status_of(q0=5).ljust(MAX_STATUS_LENGTH + 1)
        answered(members["floods"], calls["floods"], body=flood)
        members["leaves"].line.connection.close()
    assert (await statuses(asking)).keys() == {"good"}


async def test_thousands_of_members_of_one_connection_take_few_questions_and_no_tasks(
    broker: Broker, operator: Client
) -> None:
    crowd = joined(broker, "m0", 5000)
    for number in range(1, 1_000):
        member = Member(f"m{number}", crowd.line.connection, "JAVA", 400, 1)
        broker.clients.register_consumer(member, ConsumerData(GROUP))
    before = len(asyncio.all_tasks())
    asking = [operator.send(STATUS, {"topic": "orders", "group": GROUP}) for _ in range(3)]
    calls = await until(
        lambda: asked(crowd, STATUS_OF_MEMBER),
        lambda calls: len(calls) == module.MAX_QUESTIONS_OF_CONNECTION,
    )
    # The other two find no room at that connection, and are answered.
    for opaque in asking[1:]:
        assert json.loads(bytes((await operator.answer(opaque)).body)) == {"consumerTable": {}}
    assert len(asyncio.all_tasks()) <= before + 1
    for number, call in enumerate(calls):
        answered(crowd, call, body=status_of(q0=number))
    answer = await operator.answer(asking[0])
    table = decode_body(bytes(answer.body), Statuses)["consumerTable"]
    assert table.keys() == {f"m{number}" for number in range(module.MAX_QUESTIONS_OF_CONNECTION)}
    assert len(asked(crowd, STATUS_OF_MEMBER)) == module.MAX_QUESTIONS_OF_CONNECTION
    # Who has answered can be asked again.
    asking.append(operator.send(STATUS, {"topic": "orders", "group": GROUP}))
    await until(
        lambda: len(asked(crowd, STATUS_OF_MEMBER)) == 2 * module.MAX_QUESTIONS_OF_CONNECTION
    )


async def test_what_members_answer_in_all_fits_into_an_answer(tmp_path: Path) -> None:
    async with running(tmp_path, max_frame_length=100_000) as broker:
        members = [joined(broker, f"m{n}", 5000 + n) for n in range(3)]
        operator = operator_of(broker)
        opaque = operator.send(STATUS, {"topic": "orders", "group": GROUP})
        for member in members:
            call = await asked_once(member, STATUS_OF_MEMBER)
            answered(member, call, body=status_of(q0=1).ljust(40_000))
        answer = await operator.answer(opaque)
        assert answer.code == ERROR
        assert answer.remark is not None
        assert "the limit com.rocketmq.remoting.frameMaxLength; ask for one client" in answer.remark


async def test_a_group_that_is_away_has_no_status(broker: Broker, operator: Client) -> None:
    answer = await operator.ask(STATUS, {"topic": "orders", "group": GROUP})
    assert answer.code == ERROR
    assert answer.remark == f"No Any Consumer online in the consumer group: [{GROUP}]"
    joined(broker, "old", 5000, version=MQVersion.V3_0_7_SNAPSHOT - 1)
    answer = await operator.ask(STATUS, {"topic": "orders", "group": GROUP})
    assert answer.code == ERROR
    assert answer.remark is not None
    assert "V3_0_7_SNAPSHOT (28) is needed; upgrade it" in answer.remark


# What one member is asked


def info_ext(client_id: str = "m", **more: str) -> dict[str, str]:
    return {"consumerGroup": GROUP, "clientId": client_id, **more}


async def test_a_question_reaches_the_member_named_and_its_answer_comes_back(
    broker: Broker, operator: Client
) -> None:
    other, member = joined(broker, "other", 5000), joined(broker, "m", 5001)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(operator.ask(INFO, info_ext(jstackEnable="true", **SIGNED)))
        call = await asked_once(member, INFO)
        assert call.ext == info_ext(jstackEnable="true"), "all fields but the signature"
        answered(member, call, 206, remark="as told", ext={"more": "1"}, body=b"info")
    answer = await asking
    assert (answer.code, answer.remark, answer.ext, answer.body) == (
        206,
        "as told",
        {"more": "1"},
        b"info",
    )
    assert asked(other, INFO) == []


async def test_whom_a_question_cannot_reach(broker: Broker, operator: Client) -> None:
    answer = await operator.ask(INFO, info_ext())
    assert (answer.code, answer.remark) == (ERROR, f"The Consumer <{GROUP}> <m> not online")
    joined(broker, "m", 5000, version=MQVersion.V3_1_8_SNAPSHOT - 1)
    answer = await operator.ask(INFO, info_ext("m2"))
    assert (answer.code, answer.remark) == (ERROR, f"The Consumer <{GROUP}> <m2> not online")
    answer = await operator.ask(INFO, info_ext())
    assert answer.code == ERROR
    assert answer.remark is not None
    assert "V3_1_8_SNAPSHOT (62) is needed" in answer.remark


async def test_a_member_that_leaves_before_it_answers(broker: Broker, operator: Client) -> None:
    member = joined(broker, "m", 5000)
    opaque = operator.send(INFO, info_ext())
    await asked_once(member, INFO)
    member.line.connection.close()
    answer = await operator.answer(opaque)
    assert answer.code == ERROR
    assert answer.remark is not None
    assert "closed before the answer came" in answer.remark


async def test_a_member_that_does_not_answer_in_time(broker: Broker) -> None:
    member = joined(broker, "m", 5000)
    handlers = Handlers()
    ClientRelay(broker.parts, cast("Any", None), call_timeout_s=0.05).register(handlers)
    operator = Client(cast("Any", SimpleNamespace(handlers=handlers)), host=HOST)
    answer = await operator.ask(INFO, info_ext())
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert answer.remark is not None
    assert answer.remark.startswith(f"consumer <{GROUP}> <m> Timeout")
    # An answer that comes too late is nobody's.
    member.line.feed(answer_to(await asked_once(member, INFO)))
    await turns()
    assert not member.line.connection.closed


# Messages that one member consumes at once


def msg_id(offset: int) -> str:
    return encode_offset_id(pack_host("127.0.0.1", 10911), offset)


async def test_large_messages_for_a_member_that_does_not_read_take_no_memory(
    broker: Broker, operator: Client
) -> None:
    size, times = 1_000_000, 40
    _, offset = put(broker.store, b"x" * size)
    member = joined(broker, "m", 5000)
    member.line.connection.pause_writing()
    tracemalloc.start()
    try:
        asking = [operator.send(DIRECTLY, info_ext(msgId=msg_id(offset))) for _ in range(times)]
        await turns()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2 * size
    assert not set(asking) & operator.answers().keys()
    assert asked(member, DIRECTLY) == []
    # When it reads, it is asked as often as it should be.
    member.line.connection.resume_writing()
    calls = await until(lambda: asked(member, DIRECTLY), lambda calls: len(calls) == times)
    for call in calls:
        assert len(call.body) > size
        answered(member, call, body=b"{}")
    assert {(await operator.answer(opaque)).code for opaque in asking} == {0}


async def test_a_member_that_leaves_without_reading_ends_its_questions_and_not_the_broker(
    broker: Broker, operator: Client
) -> None:
    """Requests that waited for it to read tried again and again within one turn of the loop, for
    ever.
    """
    _, offset = put(broker.store, b"x" * 1000)
    member = joined(broker, "m", 5000)
    member.line.connection.pause_writing()
    asking = [operator.send(DIRECTLY, info_ext(msgId=msg_id(offset))) for _ in range(3)]
    await turns()
    member.line.connection.abort()
    for opaque in asking:
        answer = await operator.answer(opaque)
        assert answer.code != ResponseCode.SUCCESS
    assert asked(member, DIRECTLY) == []


async def test_a_stored_message_is_handed_to_the_member(broker: Broker, operator: Client) -> None:
    member = joined(broker, "m", 5000)
    topic = broker.topics.get("orders")
    group_config = broker.groups.get(GROUP)
    assert topic is not None
    assert group_config is not None
    topic.topic_sys_flag, group_config.group_sys_flag = 3, 5
    unit = broker.store.queue("orders", 0).unit(4)
    assert unit is not None
    ext = info_ext(msgId=msg_id(unit.physical_offset), topic="orders")
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(operator.ask(DIRECTLY, {**ext, **SIGNED}))
        call = await asked_once(member, DIRECTLY)
        record = broker.store.record_at(unit.physical_offset)
        assert record is not None
        assert bytes(call.body) == bytes(record), "the record as it lies"
        assert call.ext == {
            **ext,
            "brokerName": "b",
            "topicSysFlag": "3",
            "groupSysFlag": "5",
        }
        answered(member, call, body=b'{"consumeResult":"CR_SUCCESS"}')
    assert (await asking).body == b'{"consumeResult":"CR_SUCCESS"}'


@pytest.mark.parametrize(
    ("named", "reason"),
    [("", "msgId: "), ("no id", "msgId: "), (msg_id(7), "can not find message by the offset, 7")],
)
async def test_a_message_that_is_not_there_reaches_nobody(
    broker: Broker, operator: Client, named: str, reason: str
) -> None:
    member = joined(broker, "m", 5000)
    answer = await operator.ask(DIRECTLY, info_ext(msgId=named, topic="orders"))
    assert answer.code == ERROR
    assert answer.remark is not None
    assert reason in answer.remark
    assert asked(member, DIRECTLY) == []


# The list of a group's members


def crowd_of(broker: Broker, ids: list[str]) -> None:
    for first in range(0, len(ids), 1_000):  # a connection has 2,048 memberships at most
        crowd = joined(broker, ids[first], 5000 + first)
        for client_id in ids[first + 1 : first + 1_000]:
            member = Member(client_id, crowd.line.connection, "JAVA", 400, 1)
            broker.clients.register_consumer(member, ConsumerData(GROUP))


@pytest.mark.parametrize("count", [1, 128, 129, 3_000])
async def test_the_members_of_a_group_are_listed(
    broker: Broker, operator: Client, count: int
) -> None:
    ids = [f"m{number}" for number in range(count)]
    crowd_of(broker, ids)
    answer = await operator.ask(LIST, {"consumerGroup": GROUP})
    assert json.loads(bytes(answer.body)) == {"consumerIdList": ids}


@pytest.mark.usefixtures("smallest_slices")
async def test_others_are_served_while_thousands_of_members_are_listed(
    broker: Broker, operator: Client
) -> None:
    # Each character takes six in JSON.
    crowd_of(broker, [f"{number}".ljust(1_000, "\1") for number in range(2_000)])
    listing = operator.send(LIST, {"consumerGroup": GROUP})
    assert await turns_until(lambda: listing in operator.answers()) > 2_000 / 128
    assert len((await operator.answer(listing)).body) > 11_900_000


async def test_a_list_of_members_that_fits_into_no_frame_is_refused(
    broker: Broker, operator: Client
) -> None:
    crowd_of(broker, [f"{number}".ljust(1_000, "\1") for number in range(3_000)])
    answer = await operator.ask(LIST, {"consumerGroup": GROUP})
    assert answer.code == ERROR
    assert answer.remark is not None
    assert "frameMaxLength leaves; divide the clients among several groups" in answer.remark
