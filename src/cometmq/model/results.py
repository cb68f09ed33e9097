"""What sending, pulling and consuming yield (Java: SendResult, PullStatus, ConsumeFromWhere, …)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue


class SendStatus(Enum):
    """In every status the message is stored; all but SEND_OK say what could not be waited for."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class SendResult:
    """The broker's acknowledgement of one message or one batch.

    `msg_id` is the unique id (comma-separated for a batch), `queue_offset` the offset of the first
    message in `queue`.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str = "DefaultRegion"
    trace_on: bool = True


class PullStatus(Enum):
    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


@dataclass(frozen=True, slots=True)
class PullResult:
    """One answer to a pull. Offsets count messages of the queue; `max_offset` is the next unused."""

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageExt] = field(default_factory=list)
    suggested_broker_id: int = 0


class ConsumeResult(Enum):
    """What a listener says of the messages it got (Java: ConsumeConcurrentlyStatus)."""

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeFromWhere(Enum):
    """Where a group without a stored offset begins."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(Enum):
    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"
