"""Define the bodies in which a consumer describes itself to a broker (Java: ConsumerRunningInfo and
related classes).

Maps by message queue have the JSON of queues as keys, see `queue_table`.
"""

from __future__ import annotations

import msgspec

from cometmq.errors import ProtocolError
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.bodies.cluster import Body
from cometmq.protocol.fastjson.dialect import decode_body, encode_body
from cometmq.protocol.fastjson.queue_table import decode_queue_table, encode_keyed
from cometmq.protocol.header import Int32, Int64


class ProcessQueueInfo(Body):
    """One queue as its consumer holds it. Java spells `droped` like this."""

    cached_msg_count: Int32 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_size_in_mi_b: Int32 = msgspec.field(name="cachedMsgSizeInMiB", default=0)
    commit_offset: Int64 = 0
    droped: bool = False
    last_consume_timestamp: Int64 = 0
    last_lock_timestamp: Int64 = 0
    last_pull_timestamp: Int64 = 0
    locked: bool = False
    transaction_msg_count: Int32 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_min_offset: Int64 = 0
    try_unlock_times: Int64 = 0


class ConsumeStatus(Body):
    """A topic's rates over the last minute, milliseconds per message, and failures in the last
    hour.
    """

    consume_failed_msgs: Int64 = 0
    consume_failed_tps: float = msgspec.field(name="consumeFailedTPS", default=0.0)
    consume_ok_tps: float = msgspec.field(name="consumeOKTPS", default=0.0)
    consume_rt: float = msgspec.field(name="consumeRT", default=0.0)
    pull_rt: float = msgspec.field(name="pullRT", default=0.0)
    pull_tps: float = msgspec.field(name="pullTPS", default=0.0)


class PopProcessQueueInfo(Body):
    """Describes the messages that a member holds of a queue that it pops."""

    wait_ack_count: Int32 = 0
    droped: bool = False
    last_pop_timestamp: Int64 = 0


class ConsumerRunningInfo(Body):
    """The answer of code 307. Only a member that pops has `mq_pop_table`."""

    jstack: str | None = None
    mq_pop_table: dict[str, PopProcessQueueInfo] = msgspec.field(default_factory=dict)
    mq_table: dict[str, ProcessQueueInfo] = msgspec.field(default_factory=dict)
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = msgspec.field(default_factory=dict)
    subscription_set: list[SubscriptionData] = msgspec.field(default_factory=list)


def encode_running_info(info: ConsumerRunningInfo) -> bytes:
    """Return the body of such an answer, whose `mqTable` and `mqPopTable` are maps by message queue."""
    fields = encode_body(msgspec.structs.replace(info, mq_table={}, mq_pop_table={}))
    popped = b'"mqPopTable":' + encode_keyed(info.mq_pop_table) + b"," if info.mq_pop_table else b""
    fields = fields.replace(b'"mqPopTable":{},', popped, 1)
    return fields.replace(b'"mqTable":{}', b'"mqTable":' + encode_keyed(info.mq_table), 1)


class ConsumeMessageDirectlyResult(Body):
    """The answer of code 309; `consume_result` is a name of Java's CMResult."""

    consume_result: str
    order: bool
    auto_commit: bool
    spent_time_mills: Int64
    remark: str | None = None


class _ResetOffsetForC(Body):
    broker_name: str
    offset: Int64
    queue_id: Int32
    topic: str


class _ResetOffsetBodyForC(Body):
    offset_table: list[_ResetOffsetForC] = msgspec.field(default_factory=list)


def decode_reset_offsets(data: bytes) -> dict[MessageQueue, int]:
    """Decode the body of code 220: a map, or the list meant for C++ clients. Raise
    ProtocolError.
    """
    try:
        return decode_queue_table(data, "offsetTable", int)
    except ProtocolError as not_a_map:
        try:
            entries = decode_body(data, _ResetOffsetBodyForC).offset_table
        except ProtocolError:
            raise not_a_map from None
    return {MessageQueue(e.topic, e.broker_name, e.queue_id): e.offset for e in entries}


def encode_reset_offset_for_c(queue: MessageQueue, offset: int) -> bytes:
    """Encode an entry of the list in the body of code 220 as C++ clients read it (Java:
    ResetOffsetBodyForC).
    """
    return encode_body(_ResetOffsetForC(queue.broker_name, offset, queue.queue_id, queue.topic))
