"""Read half messages: the records of the half topic (Java: TransactionalMessageBridge,
TransactionalMessageUtil).

Each check of a transaction appends a copy of its half message, so that the log has the number of
checks and the queue's consumed offset can move on. Every copy has the queue offset of the first one
in `TRAN_PREPARED_QUEUE_OFFSET`; Java writes that property within the immunity time only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cometmq.model import names
from cometmq.model import properties as p
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import StoredRecord, body_is_intact
from cometmq.store.store import MessageStore

# Java puts every half message into one queue.
HALF_QUEUE_ID: Final = 0


@dataclass(slots=True)
class HalfMessage:
    """One copy of a half message; `first_offset` is the queue offset of the first copy."""

    record: StoredRecord
    properties: dict[str, str]
    first_offset: int

    @property
    def group(self) -> str | None:
        return self.properties.get(p.PRODUCER_GROUP)

    @property
    def real_topic(self) -> str | None:
        return self.properties.get(p.REAL_TOPIC)

    @property
    def real_queue_id(self) -> int | None:
        text = self.properties.get(p.REAL_QUEUE_ID, "")
        return int(text) if text.isdecimal() and len(text) < 10 else None

    @property
    def check_times(self) -> int:
        """How often the transaction was checked; -1 for a text that is no number, as in Java."""
        return _number(self.properties.get(p.TRANSACTION_CHECK_TIMES, "0"))

    @property
    def fault(self) -> str | None:
        """Why the message can be neither checked nor committed, else None."""
        if not self.group:
            return f"it names no producer group ({p.PRODUCER_GROUP})"
        if not self.real_topic or self.real_queue_id is None:
            return f"it does not say where it is meant for ({p.REAL_TOPIC}, {p.REAL_QUEUE_ID})"
        if self.is_damaged:
            return f"its body at {self.record.physical_offset} of the log contradicts its CRC"
        return None

    @property
    def is_damaged(self) -> bool:
        """Whether the body is not the one that was sent. A copy of it would seem to be intact."""
        return not body_is_intact(self.record)

    def due_ms(self, ahead_ms: int, timeout_ms: int) -> int:
        """Return when to ask the producer; 0 (at once) if the producer was asked before."""
        if self.check_times > 0:
            return 0
        return self.sent_ms(ahead_ms) + immunity_ms(self.properties, timeout_ms)

    def sent_ms(self, ahead_ms: int) -> int:
        """Return when the client sent the message; if the client's clock is ahead, when the broker
        stored it.

        `ahead_ms` is by how much the broker's clock is ahead of the machine's.
        """
        return min(self.record.born_timestamp + ahead_ms, self.record.store_timestamp)

    def ends_too_late(self, now_ms: int, ahead_ms: int, timeout_ms: int) -> bool:
        """Say whether a producer's own verdict comes after the immunity time that it asked for.

        Such a verdict is refused, and the broker asks for one in a check instead. Java:
        EndTransactionProcessor.rejectCommitOrRollback.
        """
        text = self.properties.get(p.CHECK_IMMUNITY_TIME_IN_SECONDS)
        if not text:
            return False
        immunity_ms = max(_number(text) * 1000, timeout_ms)
        return now_ms - self.sent_ms(ahead_ms) > immunity_ms


def immunity_ms(properties: dict[str, str], timeout_ms: int) -> int:
    """Return for how long a half message is not checked: the immunity time that its properties ask for,
    or `timeout_ms` if they ask for none.
    """
    text = properties.get(p.CHECK_IMMUNITY_TIME_IN_SECONDS)
    seconds = -1 if text is None else _number(text)
    return timeout_ms if seconds == -1 else seconds * 1000


def read_half(store: MessageStore, queue_offset: int) -> HalfMessage | None:
    """Read the half message at an offset of the half queue; None if it is no longer there.

    Raises StoreBusyError while it cannot be read: see QueueMender.unit.
    """
    queue = store.queues.find(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID)
    unit = store.mender.unit(queue, queue_offset) if queue is not None else None
    if unit is None:
        return None
    record = store.stored_record(unit.physical_offset)
    # The unit may point at a record that the log has dropped; another one may lie there now.
    if record is None or record.topic != names.TRANS_HALF_TOPIC:
        return None
    return half_message(record)


def half_message(record: StoredRecord) -> HalfMessage:
    """Turn a record of the half topic into a half message."""
    properties = decode_properties(record.properties)
    first = _number(properties.get(p.TRANSACTION_PREPARED_QUEUE_OFFSET, "-1"))
    # A copy lies behind the first one; any other number is wrong.
    if not 0 <= first < record.queue_offset:
        first = record.queue_offset
    return HalfMessage(record, properties, first)


def _number(text: str) -> int:
    """Parse a number as Java's getLong does: -1 for a text that is no number."""
    try:
        number = int(text)
    except ValueError:
        return -1
    return number if -(2**53) < number < 2**53 else -1
