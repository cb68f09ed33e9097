"""Traces: text as Java writes and reads it, and who sends it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog.testing
from tests.unit.client.fakes import FakeInstance, refuse, route, send_ok

from cometmq.client.hooks import (
    CommunicationMode,
    ConsumeContext,
    EndTransactionContext,
    SendContext,
)
from cometmq.client.tracing.codec import (
    ContextCode,
    MessageType,
    TraceBean,
    TraceContext,
    TraceType,
    decode_traces,
    encode_trace,
)
from cometmq.client.tracing.consume_trace import ConsumeTrace
from cometmq.client.tracing.dispatcher import BATCH_NUM, CAPACITY, TraceDispatcher
from cometmq.client.tracing.send_trace import SendTrace
from cometmq.errors import ProtocolError
from cometmq.model.message import Message, MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import LocalTransactionState, SendResult, SendStatus
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.messages.compression import decompress
from cometmq.protocol.messages.properties import decode_properties
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock, SystemClock
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS

SEND = RequestCode.SEND_MESSAGE_V2

PUB = TraceContext(
    TraceType.PUB,
    [
        TraceBean(
            "ID1",
            "t",
            "tag",
            "k1 k2",
            "OFF1",
            "1.2.3.4:10911",
            body_length=5,
            message_type=MessageType.DELAY,
        )
    ],
    1700000000001,
    "R",
    "g",
    7,
)
BEFORE = TraceContext(
    TraceType.SUB_BEFORE,
    [TraceBean("ID1", retry_times=2, keys="k1"), TraceBean("ID2", keys=None)],
    1700000000002,
    "R",
    "cg",
    request_id="REQ",
)
AFTER = TraceContext(
    TraceType.SUB_AFTER,
    [TraceBean("ID1", keys="k1"), TraceBean("ID2", keys=None)],
    1700000000003,
    "R",
    "cg",
    9,
    False,
    "REQ",
    ContextCode.FAILED,
)
END = TraceContext(
    TraceType.END_TRANSACTION,
    [
        TraceBean(
            "ID1",
            "t",
            None,
            "k",
            store_host="1.2.3.4:10911",
            message_type=MessageType.TRANSACTION_COMMIT,
            transaction_id="TX",
            transaction_state="COMMIT_MESSAGE",
            from_check=True,
        )
    ],
    1700000000004,
    "R",
    "g",
)
RECALL = TraceContext(TraceType.RECALL, [TraceBean("ID1", "t")], 1700000000005, "R", "g")
# As the table in Java's TraceDataEncoder has the fields: | for 0x01, one line for each 0x02.
LINES = [
    (PUB, ["Pub|1700000000001|R|g|t|ID1|tag|k1 k2|1.2.3.4:10911|5|7|3|OFF1|true"]),
    (
        BEFORE,
        [
            "SubBefore|1700000000002|R|cg|REQ|ID1|2|k1",
            "SubBefore|1700000000002|R|cg|REQ|ID2|0|null",
        ],
    ),
    (
        AFTER,
        [
            "SubAfter|REQ|ID1|9|false|k1|4|1700000000003|cg",
            "SubAfter|REQ|ID2|9|false|null|4|1700000000003|cg",
        ],
    ),
    (
        END,
        [
            "EndTransaction|1700000000004|R|g|t|ID1|null|k|1.2.3.4:10911|2|TX|COMMIT_MESSAGE|true",
        ],
    ),
    (RECALL, ["Recall|1700000000005|R|g|t|ID1|true"]),
]


def java(*lines: str) -> str:
    return "".join(line.replace("|", "\x01") + "\x02" for line in lines)


@pytest.mark.parametrize(("context", "lines"), LINES)
def test_a_trace_is_written_as_java_writes_it(context: TraceContext, lines: list[str]) -> None:
    assert encode_trace(context) == java(*lines)


@pytest.mark.parametrize(("context", "lines"), LINES)
def test_what_is_read_is_written_again_alike(context: TraceContext, lines: list[str]) -> None:
    assert "".join(map(encode_trace, decode_traces(java(*lines)))) == java(*lines)


def test_other_releases_are_read() -> None:
    older = "Pub|1|R|g|t|ID1|null|null|h:1|5|7|0|true"
    newer = "Pub|1|R|g|t|ID1|null|null|h:1|5|7|0|OFF|false|9.9.9.9"
    hosted = "SubAfter|REQ|ID1|9|true|k1|1|"
    first = "SubAfter|REQ|ID1|9|true|k1"
    contexts = decode_traces(java(older, newer, hosted, first, "Unheard|of"))
    assert [c.success for c in contexts] == [True, False, True, True]
    assert [c.beans[0].offset_msg_id for c in contexts[:2]] == ["", "OFF"]
    assert contexts[1].beans[0].client_host == "9.9.9.9"
    assert [(c.context_code, c.timestamp_ms) for c in contexts[2:]] == [(1, 0), (0, 0)]


@pytest.mark.parametrize("line", ["Pub|1|R", "SubBefore|x|R|g|q|i|0|k", "Recall|1|R|g|t|i"])
def test_a_malformed_record_is_named(line: str) -> None:
    with pytest.raises(ProtocolError, match=line.partition("|")[0]):
        decode_traces(java(line))


def test_the_keys_are_ids_and_keys() -> None:
    assert PUB.keys == {"ID1", "k1", "k2"}
    assert BEFORE.keys == {"ID1", "ID2", "k1"}


def test_each_message_of_a_batch_is_found_by_its_id() -> None:
    """The ids of a batch were one key, which nobody looks for."""
    bean = TraceBean("ID1,ID2", "t", None, None, "OFF1,OFF2", "h:1")
    context = TraceContext(TraceType.PUB, [bean], 1700000000000, "R", "g")
    assert context.keys == {"ID1", "ID2"}
    assert encode_trace(context).split("\x01")[5] == "ID1,ID2"


# Hooks


class Collected(TraceDispatcher):
    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.topic = "RMQ_SYS_TRACE_TOPIC"
        self.clock = clock
        self.randomness = SYSTEM_RANDOMNESS
        self.contexts: list[TraceContext] = []

    def append(self, context: TraceContext) -> bool:
        self.contexts.append(context)
        return True


QUEUE = MessageQueue("t", "a", 0)


def sent(
    message: Message, queue: MessageQueue = QUEUE, clock: Clock = SYSTEM_CLOCK, **answer: Any
) -> list[TraceContext]:
    collected = Collected(clock)
    context = SendContext("g", [message], queue, "h:1", CommunicationMode.SYNC, len(message.body))
    hook = SendTrace(collected)
    hook.before_send(context)
    values = {"status": SendStatus.SEND_OK, **answer}
    context.result = SendResult(
        msg_id="ID1", offset_msg_id="OFF1", queue=queue, queue_offset=1, **values
    )
    hook.after_send(context)
    return collected.contexts


def test_a_send_is_traced() -> None:
    (event,) = sent(Message("t", b"12345", tags="a", keys=["k1", "k2"]), region_id="R")
    bean = event.beans[0]
    assert (event.type, event.group, event.region, event.success) == (
        TraceType.PUB,
        "g",
        "R",
        True,
    )
    assert (bean.msg_id, bean.offset_msg_id, bean.topic) == ("ID1", "OFF1", "t")
    assert (bean.tags, bean.keys, bean.body_length) == ("a", "k1 k2", 5)
    assert (bean.store_host, bean.message_type) == ("h:1", MessageType.NORMAL)


def test_other_sends_are_traced_as_what_they_are() -> None:
    (event,) = sent(Message("t", b"x", delay_level=3), status=SendStatus.FLUSH_DISK_TIMEOUT)
    assert (event.beans[0].message_type, event.success) == (MessageType.DELAY, False)


def test_neither_traces_nor_what_a_broker_wants_untraced_are_traced() -> None:
    assert sent(Message("t", b"x"), trace_on=False) == []
    assert sent(Message("t", b"x"), QUEUE._replace(topic="RMQ_SYS_TRACE_TOPIC")) == []


def test_the_end_of_a_transaction_is_traced() -> None:
    collected = Collected()
    message = Message("t", b"x", keys=["k"])
    verdict = LocalTransactionState.ROLLBACK
    SendTrace(collected).end_transaction(
        EndTransactionContext("g", message, "ID1", "TX", "h:1", verdict, from_check=True)
    )
    (event,) = collected.contexts
    text = encode_trace(event)
    assert text.split("\x01")[9:] == ["2", "TX", "ROLLBACK_MESSAGE", "true\x02"]
    assert event.region == "DefaultRegion"


def test_consuming_is_traced_before_and_after() -> None:
    collected = Collected()
    hook = ConsumeTrace(collected)
    messages = [
        MessageExt("t", b"x", msg_id=f"ID{i}", properties={"MSG_REGION": "R"}) for i in range(70)
    ]
    messages[3].properties["TRACE_ON"] = "false"
    context = ConsumeContext("cg", messages, QUEUE)
    hook.before_consume(context)
    context.success, context.status = False, "EXCEPTION"
    hook.after_consume(context)
    kinds = [event.type for event in collected.contexts]
    assert kinds == [TraceType.SUB_BEFORE] * 2 + [TraceType.SUB_AFTER] * 2
    assert len({event.request_id for event in collected.contexts}) == 1
    ids = [bean.msg_id for event in collected.contexts[:2] for bean in event.beans]
    assert ids == [f"ID{i}" for i in range(70) if i != 3]
    after = collected.contexts[2]
    assert (after.region, after.group, after.success) == ("R", "cg", False)
    assert after.context_code == ContextCode.EXCEPTION


class ClockSetBack(SystemClock):
    """A wall clock that is set back by an hour each time it is read."""

    def __init__(self) -> None:
        self._times = iter(range(1_700_000_000_000, 0, -3_600_000))

    def now_ms(self) -> int:
        return next(self._times)


def test_a_clock_set_back_made_traces_of_negative_times() -> None:
    clock = ClockSetBack()
    assert [event.cost_ms >= 0 for event in sent(Message("t", b"x"), clock=clock)] == [True]
    collected = Collected(clock)
    hook = ConsumeTrace(collected)
    context = ConsumeContext("cg", [MessageExt("t", b"x", msg_id="ID")], QUEUE)
    hook.before_consume(context)
    context.success, context.status = True, "SUCCESS"
    hook.after_consume(context)
    assert collected.contexts[-1].type is TraceType.SUB_AFTER
    assert collected.contexts[-1].cost_ms >= 0


# Sending


@pytest.fixture
async def dispatcher(fake: FakeInstance) -> AsyncIterator[TraceDispatcher]:
    fake.remoting.routes["RMQ_SYS_TRACE_TOPIC"] = route("a")
    fake.remoting.answers[SEND] = send_ok
    dispatcher = TraceDispatcher(fake.instance, "g", "PRODUCE")
    dispatcher.start()
    yield dispatcher
    await dispatcher.close()


def event(i: int, topic: str = "t") -> TraceContext:
    bean = TraceBean(f"ID{i}", topic, "tag", f"k{i}", "OFF", "h:1")
    return TraceContext(TraceType.PUB, [bean], 1700000000000 + i, "R", "g")


async def test_events_of_a_topic_go_together(
    fake: FakeInstance, dispatcher: TraceDispatcher
) -> None:
    events = [event(i) for i in range(2 * BATCH_NUM + 1)] + [event(99, "other")]
    for one in events:
        dispatcher.append(one)
    await dispatcher.flush()
    commands = fake.remoting.sent(SEND)
    assert [len(decode_traces(bytes(c.body).decode())) for c in commands] == [10, 10, 1, 1]
    assert {c.ext["b"] for c in commands} == {"RMQ_SYS_TRACE_TOPIC"}
    group = commands[0].ext["a"]
    assert group.startswith("_INNER_TRACE_PRODUCER-g-PRODUCE-")
    keys = decode_properties(commands[0].ext["i"])["KEYS"].split()
    assert set(keys) == {f"ID{i}" for i in range(10)} | {f"k{i}" for i in range(10)}


async def test_large_events_are_cut_to_the_limits_of_a_message(
    fake: FakeInstance, dispatcher: TraceDispatcher
) -> None:
    for i in range(10):
        one = event(i)
        one.keys = {f"{i}-{'k' * 9000}"}
        dispatcher.append(one)
    await dispatcher.flush()
    assert [len(decode_traces(bytes(c.body).decode())) for c in fake.remoting.sent(SEND)] == [
        3,
        3,
        3,
        1,
    ]


async def test_a_batch_of_too_many_messages_is_traced_all_the_same(
    fake: FakeInstance, dispatcher: TraceDispatcher
) -> None:
    """Its ids take more room than a message has for keys, and the trace was lost."""
    ids = ",".join(f"{number:032X}" for number in range(2000))
    bean = TraceBean(ids, "t", None, None, "OFF", "h:1")
    dispatcher.append(TraceContext(TraceType.PUB, [bean], 1700000000000, "R", "g"))
    await dispatcher.flush()
    [command] = fake.remoting.sent(SEND)
    body = decompress(bytes(command.body), int(command.ext["f"]), max_length=1 << 20, limit="x")
    [traced] = decode_traces(body.decode())
    assert traced.beans[0].msg_id == ids
    keys = decode_properties(command.ext["i"])["KEYS"].split()
    assert 900 < len(keys) < 1000
    assert set(keys) <= set(ids.split(","))


@pytest.mark.real_time
async def test_what_finds_no_room_is_dropped_and_counted(dispatcher: TraceDispatcher) -> None:
    outcomes: list[bool] = []

    def trace() -> None:
        outcomes.extend(dispatcher.append(event(i)) for i in range(CAPACITY + 5))

    thread = threading.Thread(target=trace)
    thread.start()
    thread.join()
    assert outcomes == [True] * CAPACITY + [False] * 5
    assert dispatcher.dropped == 5
    await dispatcher.flush()
    assert dispatcher.append(event(0))


async def test_traces_that_cannot_be_sent_harm_nobody(
    fake: FakeInstance, dispatcher: TraceDispatcher
) -> None:
    fake.remoting.routes.clear()
    dispatcher.append(event(0))
    await dispatcher.flush()
    assert fake.remoting.sent(SEND) == []


async def test_refused_traces_are_warned_of_once_until_one_is_sent(
    fake: FakeInstance, dispatcher: TraceDispatcher
) -> None:
    fake.remoting.answers[SEND] = refuse(ResponseCode.MESSAGE_ILLEGAL)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            dispatcher.append(event(0))
            await dispatcher.flush()
        fake.remoting.answers[SEND] = send_ok
        for _ in range(2):
            dispatcher.append(event(0))
            await dispatcher.flush()
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert [entry.get("lost") for entry in warnings] == [None, 3]
    assert "refused by the test" in warnings[0]["reason"]
