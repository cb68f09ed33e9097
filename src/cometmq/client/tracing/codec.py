"""Encode and decode message traces.

Java: TraceDataEncoder, TraceConstants, TraceBean, TraceContext.

Fields are separated by 0x01 and records end with 0x02; a missing value is written `null`:

    Pub             timestamp region group topic msgId tags keys storeHost bodyLength cost msgType
                    offsetMsgId success [clientHost]
    SubBefore       timestamp region group requestId msgId retryTimes keys
    SubAfter        requestId msgId cost success keys contextCode [timestamp group]
    EndTransaction  timestamp region group topic msgId tags keys storeHost msgType transactionId state
                    fromCheck
    Recall          timestamp region group topic msgId success

Each record begins with its type, and the fields follow. Some releases leave out the bracketed
fields. Times are ms. A SubBefore and its SubAfter share the request id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

from cometmq.errors import ProtocolError
from cometmq.model import properties as p

FIELD_SEPARATOR: Final = "\x01"
RECORD_END: Final = "\x02"
# Java: MixAll.DEFAULT_TRACE_REGION_ID.
DEFAULT_REGION: Final = "DefaultRegion"


class TraceType(Enum):
    PUB = "Pub"
    SUB_BEFORE = "SubBefore"
    SUB_AFTER = "SubAfter"
    END_TRANSACTION = "EndTransaction"
    RECALL = "Recall"


class MessageType(IntEnum):
    """Is the ordinal of Java's MessageType."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ContextCode(IntEnum):
    """Is the ordinal of Java's ConsumeReturnType."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNNULL = 3
    FAILED = 4


@dataclass(slots=True)
class TraceBean:
    """Holds the data of one message in a trace. The record's type decides which fields are used."""

    msg_id: str | None
    topic: str | None = ""
    tags: str | None = None
    keys: str | None = None
    offset_msg_id: str | None = ""
    store_host: str | None = ""
    client_host: str | None = ""
    body_length: int = 0
    retry_times: int = 0
    message_type: MessageType = MessageType.NORMAL
    transaction_id: str | None = None
    transaction_state: str = ""
    from_check: bool = False


@dataclass(slots=True)
class TraceContext:
    """Describes one event. Only SubBefore and SubAfter events may have several messages."""

    type: TraceType
    beans: list[TraceBean]
    timestamp_ms: int = 0
    region: str = DEFAULT_REGION
    group: str = ""
    cost_ms: int = 0
    success: bool = True
    request_id: str = ""
    context_code: int = ContextCode.SUCCESS
    keys: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = set()
        for bean in self.beans:
            # The send of a batch names all ids in one text; each becomes a key, so that the trace is
            # found by it.
            self.keys.update(filter(None, ids_of(bean)))
            if bean.keys:
                self.keys.update(bean.keys.split(p.KEY_SEPARATOR))


def ids_of(bean: TraceBean) -> list[str]:
    """Return the ids of the traced messages: several if they were sent as a batch."""
    return (bean.msg_id or "").split(",")


def encode_trace(context: TraceContext) -> str:
    """Return the text of the records of one event."""
    return "".join(
        FIELD_SEPARATOR.join(map(_text, (context.type.value, *_fields(context, bean)))) + RECORD_END
        for bean in context.beans
    )


def decode_traces(text: str) -> list[TraceContext]:
    """Return the events in a trace message's body. Raises ProtocolError for a malformed record.

    Passes over records of unknown types, as Java does.
    """
    contexts = []
    for record in text.split(RECORD_END):
        kind, *fields = record.rstrip(FIELD_SEPARATOR).split(FIELD_SEPARATOR)
        reader = _READERS.get(kind)
        if reader is None:
            continue
        try:
            contexts.append(reader(fields))
        except (IndexError, ValueError) as error:
            raise ProtocolError(f"a trace record of type {kind} is malformed: {error}") from error
    return contexts


def _fields(context: TraceContext, bean: TraceBean) -> tuple[object, ...]:
    common = (context.timestamp_ms, context.region, context.group)
    match context.type:
        case TraceType.PUB:
            named = (bean.topic, bean.msg_id, bean.tags, bean.keys, bean.store_host)
            rest = (bean.body_length, context.cost_ms, bean.message_type.value)
            return (*common, *named, *rest, bean.offset_msg_id, context.success)
        case TraceType.SUB_BEFORE:
            return (*common, context.request_id, bean.msg_id, bean.retry_times, bean.keys)
        case TraceType.SUB_AFTER:
            outcome = (context.cost_ms, context.success, bean.keys, int(context.context_code))
            return (
                context.request_id,
                bean.msg_id,
                *outcome,
                context.timestamp_ms,
                context.group,
            )
        case TraceType.END_TRANSACTION:
            named = (bean.topic, bean.msg_id, bean.tags, bean.keys, bean.store_host)
            verdict = (bean.transaction_id, bean.transaction_state, bean.from_check)
            return (*common, *named, bean.message_type.value, *verdict)
        case TraceType.RECALL:
            return (*common, bean.topic, bean.msg_id, context.success)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def _optional(text: str) -> str | None:
    return None if text == "null" else text


def _read_pub(f: list[str]) -> TraceContext:
    bean = TraceBean(
        _optional(f[4]),
        _optional(f[3]),
        _optional(f[5]),
        _optional(f[6]),
        store_host=_optional(f[7]),
        body_length=int(f[8]),
        message_type=MessageType(int(f[10])),
    )
    success = f[11]
    if len(f) > 12:
        bean.offset_msg_id, success = _optional(f[11]), f[12]
    if len(f) > 13:
        bean.client_host = _optional(f[13])
    context = TraceContext(TraceType.PUB, [bean], int(f[0]), f[1], f[2], int(f[9]))
    context.success = success == "true"
    return context


def _read_sub_before(f: list[str]) -> TraceContext:
    keys = _optional(f[6]) if len(f) > 6 else None
    bean = TraceBean(_optional(f[4]), retry_times=int(f[5]), keys=keys)
    return TraceContext(TraceType.SUB_BEFORE, [bean], int(f[0]), f[1], f[2], request_id=f[3])


def _read_sub_after(f: list[str]) -> TraceContext:
    bean = TraceBean(_optional(f[1]), keys=_optional(f[4]) if len(f) > 4 else None)
    context = TraceContext(TraceType.SUB_AFTER, [bean], cost_ms=int(f[2]), request_id=f[0])
    context.success = f[3] == "true"
    if len(f) > 5:
        context.context_code = int(f[5])
    if len(f) > 7:
        context.timestamp_ms, context.group = int(f[6]), f[7]
    return context


def _read_end_transaction(f: list[str]) -> TraceContext:
    bean = TraceBean(
        _optional(f[4]),
        _optional(f[3]),
        _optional(f[5]),
        _optional(f[6]),
        store_host=_optional(f[7]),
        message_type=MessageType(int(f[8])),
        transaction_id=_optional(f[9]),
        transaction_state=f[10],
        from_check=f[11] == "true",
    )
    return TraceContext(TraceType.END_TRANSACTION, [bean], int(f[0]), f[1], f[2])


def _read_recall(f: list[str]) -> TraceContext:
    bean = TraceBean(_optional(f[4]), _optional(f[3]))
    context = TraceContext(TraceType.RECALL, [bean], int(f[0]), f[1], f[2])
    context.success = f[5] == "true"
    return context


_READERS: Final = {
    TraceType.PUB.value: _read_pub,
    TraceType.SUB_BEFORE.value: _read_sub_before,
    TraceType.SUB_AFTER.value: _read_sub_after,
    TraceType.END_TRANSACTION.value: _read_end_transaction,
    TraceType.RECALL.value: _read_recall,
}
