"""What sending, pulling and consuming yield (Java: SendResult, PullStatus, ConsumeFromWhere, …)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cometmq.errors import IllegalArgumentError
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue

_INT32_MAX: Final = 2**31 - 1


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
    message in `queue`. `recall_handle` takes a message with `delay_ms` or `deliver_at_ms` back before
    it is delivered (`Producer.recall`); None for any other, and from brokers older than 5.3.2.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    recall_handle: str | None = None


class LocalTransactionState(Enum):
    """What a producer says of its own part of a transaction. UNKNOWN: the broker will ask."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"


@dataclass(frozen=True, slots=True)
class TransactionSendResult(SendResult):
    """The acknowledgement of a transactional message, and what the producer said of it.

    `queue_offset` is that of the half message, which no consumer sees.
    """

    state: LocalTransactionState = LocalTransactionState.UNKNOWN


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
    """What a listener says of the messages it got (Java: ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus).

    RECONSUME_LATER has the broker deliver the messages again; SUSPEND has an orderly consumer hold
    their queue and try them again in place. Each counts as the other where the other is meant.
    """

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


@dataclass(frozen=True, slots=True)
class ConsumeReport:
    """What a listener may return instead of a ConsumeResult, to say more (Java:
    ConsumeConcurrentlyContext, ConsumeOrderlyContext).

    With SUCCESS, `ack_index` is the place in the list of the last message that is done with (-1:
    none); those after it are delivered again. `delay_level` is the level with which the broker
    delivers again (0: by the number of times, -1: not again, to the dead letters).
    `suspend_current_queue_time_ms` replaces an orderly consumer's own pause.

    Raises IllegalArgumentError for what is none of these: in the listener, whose messages then come
    again.
    """

    result: ConsumeResult = ConsumeResult.SUCCESS
    ack_index: int | None = None
    delay_level: int = 0
    suspend_current_queue_time_ms: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.result, ConsumeResult):
            raise IllegalArgumentError(
                f"the result of a ConsumeReport is {self.result!r:.80}; it must be a ConsumeResult"
            )
        for name, value, least in (
            ("ack_index", self.ack_index, -1),
            ("delay_level", self.delay_level, -1),
            ("suspend_current_queue_time_ms", self.suspend_current_queue_time_ms, 0),
        ):
            if value is None and name != "delay_level":
                continue
            if type(value) is not int or not least <= value <= _INT32_MAX:
                raise IllegalArgumentError(
                    f"{name} is {value!r:.80}, it must be a whole number in {least}..{_INT32_MAX}"
                )


class DamagedMessage(Enum):
    """What a consumer does with a message that is not what was stored: its body contradicts its CRC, or
    the broker's bytes are no record of the queue.

    It is logged and counted in any case. SKIP goes on behind it; STOP consumes nothing more of the queue
    from it on, until the queue's offset is reset or another choice is made; DEAD_LETTER puts the bytes,
    as they came, among the group's dead letters, and then goes on.
    """

    SKIP = "skip"
    STOP = "stop"
    DEAD_LETTER = "dead letter"


@dataclass(frozen=True, slots=True)
class DamageCounts:
    """What a consumer did with damaged messages since its start; `stopped` are the queues that it
    does not go on with, each with the offset of the message that it stopped at.
    """

    skipped: int = 0
    dead_lettered: int = 0
    stopped: Mapping[MessageQueue, int] = field(default_factory=dict)


class ConsumeFromWhere(Enum):
    """Where a group without a stored offset begins.

    In a queue whose first message its broker still has in memory, a new group begins with that
    message, whatever it wanted: so RocketMQ's brokers have it (accessMessageInMemoryMaxRatio, 40 % of
    the memory as they are shipped).
    """

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageModel(Enum):
    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"
