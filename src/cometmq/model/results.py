"""Define the results of sending, pulling and consuming (Java: SendResult, PullStatus, …).

Some of a consumer's choices are here too, such as ConsumeFromWhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Final

from cometmq.errors import IllegalArgumentError
from cometmq.model.durations import Duration, milliseconds
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue

_INT32_MAX: Final = 2**31 - 1


class SendStatus(Enum):
    """Says what became of a message that the broker stored.

    The message is stored in every status; all but SEND_OK name what the broker could not wait for.
    """

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class SendResult:
    """Holds the broker's acknowledgement of one message or one batch.

    `msg_id` is the unique id (comma-separated for a batch), `queue_offset` the offset of the first
    message in `queue`. With `recall_handle`, `Producer.recall` takes back a message with `delay_ms`
    or `deliver_at_ms` before it is delivered. The handle is None for any other message, and from
    brokers older than 5.3.2.
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
    """Says how a producer's own part of a transaction ended. After UNKNOWN the broker will ask."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"


@dataclass(frozen=True, slots=True)
class TransactionSendResult(SendResult):
    """Holds the acknowledgement of a transactional message, and the state the producer reported.

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
    """Is a listener's verdict on its messages (Java: ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus).

    RECONSUME_LATER has the broker deliver the messages again; SUSPEND has an orderly consumer hold
    their queue and try them again in place. An orderly consumer takes RECONSUME_LATER for SUSPEND,
    and a concurrent one SUSPEND for RECONSUME_LATER.
    """

    SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
    SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


@dataclass(frozen=True, slots=True)
class ConsumeReport:
    """Says more than a ConsumeResult; a listener may return it instead of one (Java:
    ConsumeConcurrentlyContext, ConsumeOrderlyContext).

    With SUCCESS, `ack_index` is the index in the list of the last message that is done (-1: none);
    those after it are delivered again. `delay_level` is the level with which the broker delivers
    again (0: chosen by the number of deliveries; -1: no further delivery, the message goes to the
    dead letters). `suspend_current_queue_time_ms` replaces an orderly consumer's own pause.

    Raises IllegalArgumentError for any other value. The error is raised in the listener, so its
    messages then come again.
    """

    result: ConsumeResult = ConsumeResult.SUCCESS
    ack_index: int | None = None
    delay_level: int = 0
    suspend_current_queue_time_ms: Duration | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.result, ConsumeResult):
            raise IllegalArgumentError(
                f"the result of a ConsumeReport is {self.result!r:.80}; it must be a ConsumeResult"
            )
        if isinstance(self.suspend_current_queue_time_ms, timedelta):
            pause_ms = milliseconds(self.suspend_current_queue_time_ms)
            object.__setattr__(self, "suspend_current_queue_time_ms", pause_ms)
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
    """Says what a consumer does with a message that is not what was stored.

    The body of such a message contradicts its CRC, or the broker's bytes are no record of the
    queue. The consumer logs and counts the message in any case. SKIP goes on behind it. STOP
    consumes nothing more of the queue from this message on, until the queue's offset is reset or
    another choice is made. DEAD_LETTER puts the bytes, as they came, among the group's dead
    letters, and then goes on.
    """

    SKIP = "skip"
    STOP = "stop"
    DEAD_LETTER = "dead letter"


@dataclass(frozen=True, slots=True)
class DamageCounts:
    """Counts the damaged messages that a consumer skipped and dead-lettered since its start.

    `stopped` has the queues that it stopped, each with the offset of the message where it stopped.
    """

    skipped: int = 0
    dead_lettered: int = 0
    stopped: Mapping[MessageQueue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """Says how far a group is behind the end of one queue.

    `committed` is the offset below which the group has consumed everything, `max_offset` the offset of
    the queue's next message. Either is None if it could not be found out, and `unknown` says why.
    """

    max_offset: int | None = None
    committed: int | None = None
    unknown: str | None = None

    @property
    def messages(self) -> int | None:
        """The number of messages that the group has not consumed yet, or None if it is unknown."""
        if self.max_offset is None or self.committed is None:
            return None
        return max(0, self.max_offset - self.committed)


class ConsumeFromWhere(Enum):
    """Says where a group without a stored offset begins.

    If the broker still has a queue's first message in memory, a new group begins with that message,
    whatever this says. RocketMQ's brokers do so too (accessMessageInMemoryMaxRatio, by default 40 %
    of the memory).
    """

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class MessageRequestMode(Enum):
    """Says how the members of a group get messages."""

    PULL = "PULL"
    POP = "POP"


class MessageModel(Enum):
    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"
