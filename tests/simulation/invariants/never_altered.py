"""A message is delivered, read and stored as its producer made it: topic, body, tag, keys and user
properties (Java: Message, MessageDecoder).

Brokers and clients add properties of their own, of which Java's MessageConst has the names; nothing
else may be added. The unique id stays the same in all copies of a message. A message whose number
cannot be read, or that nobody sent, is altered, too.

Leniency: of a broker with flipped bits what lies in its log is not judged; what it delivers is, because
clients check the CRC of a body, and since a flipped bit in the properties is beyond that, its body
then has to be one that was sent, whatever its properties say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from tests.simulation.evidence import Evidence, Violation
from tests.simulation.history import AnyEvent, Delivered, RangeRead, SendStarted

NAME: Final = "never altered"

# Java: MessageConst.
_SYSTEM: Final = frozenset(
    [
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "MSG_REGION",
        "TRACE_ON",
        "UNIQ_KEY",
        "EXTEND_UNIQ_INFO",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "POP_CK",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "__transactionId__",
        "CLUSTER",
        "INSTANCE_ID",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "MSG_TYPE",
        "__SHARDINGKEY",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DEL_UNIQKEY",
        "REDRIVE_ID",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "__CRC32#",
        "1ST_POP_TIME",
        "ORIGIN_GROUP",
        "traceparent",
        "tracestate",
        # CometMQ's own, on retries and dead letters.
        "FAILURE_TYPE",
        "FAILURE_TEXT",
        "FAILURE_MEMBER",
    ]
)
_INTERNAL: Final = (
    "%RETRY%",
    "%DLQ%",
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_",
    "RMQ_SYS_",
    "TRANS_CHECK",
)

# A run may begin with a store, whose messages nobody in it has sent.
_LOADED: Final = ("load_store",)


def judge(evidence: Evidence) -> Iterator[Violation]:
    unique_ids: dict[int, str] = {}
    for event in evidence.history.events:
        if isinstance(event, Delivered):
            yield from _judge(evidence, unique_ids, event, event.queue.broker, event, event.topic)
        elif isinstance(event, RangeRead):
            for read in event.messages:
                yield from _judge(evidence, unique_ids, read, event.queue.broker, event, read.topic)
    for broker, store in evidence.stores.items():
        if evidence.damaged(broker):
            continue
        for record in store.records:
            if record.fault is not None:
                what = f"the record at {record.position} of {broker}: {record.fault}"
                yield Violation(invariant=NAME, what=what)
            elif evidence.number(record.properties) is not None:
                topic = None if record.topic.startswith(_INTERNAL) else record.topic
                yield from _judge(evidence, unique_ids, record, broker, None, topic)
            elif not record.topic.startswith(_INTERNAL) and not evidence.injected(broker, _LOADED):
                what = f"the record at {record.position} of {broker} ({record.topic}) was sent by nobody"
                yield Violation(invariant=NAME, what=what)


class _Seen(Protocol):
    """A message as somebody saw it: a delivery, one of a range, or a record."""

    @property
    def body(self) -> bytes: ...

    @property
    def properties(self) -> dict[str, str]: ...


def _judge(
    evidence: Evidence,
    unique_ids: dict[int, str],
    seen: _Seen,
    broker: str,
    event: AnyEvent | None,
    topic: str | None,
) -> Iterator[Violation]:
    properties = seen.properties
    where = f"as {broker} has it" if event is None else f"from {broker}"
    events = () if event is None else (event,)
    number = evidence.number(properties)
    if evidence.damaged(broker) and seen.body in evidence.by_body:
        return
    if number is None:
        yield Violation(invariant=NAME, what=f"a message {where} was sent by nobody", events=events)
        return
    send, sent = evidence.outgoing[number]
    faults = [] if seen.body == sent.body else ["body"]
    if not evidence.damaged(broker):
        faults += [] if topic in (None, send.topic) else [f"topic {topic}"]
        faults += _altered(properties, send, number, evidence)
        first = unique_ids.setdefault(number, properties.get("UNIQ_KEY", ""))
        if first != properties.get("UNIQ_KEY", ""):
            faults.append("unique id")
    if faults:
        what = f"message {number} {where} has another {', another '.join(faults)}"
        yield Violation(invariant=NAME, what=what, events=(send, *events))


def _altered(
    properties: Mapping[str, str], send: SendStarted, number: int, evidence: Evidence
) -> list[str]:
    sent = evidence.outgoing[number][1]
    wanted = sent.user_properties
    if sent.tags is not None:
        wanted["TAGS"] = sent.tags
    if sent.keys:
        wanted["KEYS"] = " ".join(sent.keys)
    names = [name for name, value in wanted.items() if properties.get(name) != value]
    added = properties.keys() - wanted.keys() - (_SYSTEM - {"TAGS", "KEYS"})
    return [f"property {name}" for name in (*names, *sorted(added))]
