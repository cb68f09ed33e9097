"""Turn a message that waits in an internal topic into the record that consumers see.

Java: ScheduleMessageService.messageTimeUp, TimerMessageStore.convertMessage.

The new record is the old one in its real topic: body, properties string, born data and counters are
unchanged. A delivery note in front of the new record names the waiting record (see
`cometmq.store.delivery_note`). So the log alone says which waiting messages were delivered,
whatever a kill left of the files that record progress (see `broker/delays/state.py`). A copy that
waits again names the record that it was made from in its field `preparedTransactionOffset`, as a
committed transaction names its half message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

from cometmq.errors import CometMQError, ProtocolError, StoreError
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.java.hashing import java_hash
from cometmq.protocol.messages.fitting import drop_spare
from cometmq.protocol.messages.properties import (
    MAX_PROPERTIES_LENGTH,
    decode_properties,
    encode_properties,
    property_finder,
)
from cometmq.protocol.messages.record import (
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    decode_record,
)
from cometmq.protocol.messages.record_layout import BODY_AT, FIXED_V4, HOSTS_V6
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.store import MessageStore

_find_real_topic: Final = property_finder(p.REAL_TOPIC)
_find_real_queue_id: Final = property_finder(p.REAL_QUEUE_ID)
_find_tags: Final = property_finder(p.TAGS)
_SEPARATOR: Final = b"\x02"
# How many records one note may name. The note takes room for all records that were to be copied,
# even if only few of them are copied then.
_NAMED_AT_ONCE: Final = 32


class UndeliverableError(CometMQError):
    """Says that no retry will deliver a waiting message; the text says why."""


class WaitingMessage(NamedTuple):
    """Holds what a delivery needs of a waiting record; `text` are the decoded properties."""

    physical_offset: int
    body: memoryview | bytes
    properties: bytes
    text: str
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    reconsume_times: int


class Delivery:
    """Reads and delivers waiting messages of one store. For the loop's thread only."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.delivered_count = 0

    def read(self, physical_offset: int, size: int) -> WaitingMessage:
        """Return the waiting message that a unit of a consume queue points at.

        Raises UndeliverableError if the log does not have it.
        """
        record = self._store.commit_log.read(physical_offset, size)
        if record is None:
            raise UndeliverableError(f"the log has no record at {physical_offset} any more")
        try:
            return _cut(record, physical_offset)
        except ProtocolError as error:
            raise UndeliverableError(f"the record at {physical_offset}: {error}") from error

    def deliver_many(self, places: Sequence[tuple[int, int]], suffix: bytes = b"") -> int:
        """Deliver the waiting messages at `places` (commit-log offset, size); return how many were.

        Stops in front of a message that is out of the ordinary, or when the store takes no messages
        now: `read` and `deliver` deliver that message, or say what is wrong with it. `suffix` is
        that of `RecordCopier.append_copies`.
        """
        count = done = 0
        while done == count and count < len(places):
            done += min(_NAMED_AT_ONCE, len(places) - count)
            count += self._store.append_copies(places[count:done], suffix)
        self.delivered_count += count
        return count

    def deliver(self, waiting: WaitingMessage, more_properties: bytes = b"") -> None:
        """Append the message to its real topic.

        If the properties get too long, `more_properties` are left out. Raises UndeliverableError,
        or the store's errors; nothing is stored then.
        """
        topic = _find_real_topic(waiting.text)
        queue_id = _find_real_queue_id(waiting.text)
        if topic is None or queue_id is None or not queue_id.isdecimal():
            raise UndeliverableError(
                f"the record at {waiting.physical_offset} does not say where it is meant for: "
                f"REAL_TOPIC={topic}, REAL_QID={queue_id}"
            )
        if topic == names.TRANS_HALF_TOPIC:
            raise UndeliverableError(
                f"the record at {waiting.physical_offset} is meant for {topic}, "
                "which takes no delayed messages"
            )
        tags = _find_tags(waiting.text)
        self._store.append_copy(
            waiting.physical_offset,
            self._store.queue(topic, int(queue_id)),
            waiting.body,
            _with(waiting.properties, more_properties) or waiting.properties,
            java_hash(tags) if tags else 0,
            waiting.born_timestamp,
            waiting.born_host,
            flag=waiting.flag,
            sys_flag=waiting.sys_flag,
            reconsume_times=waiting.reconsume_times,
        )
        self.delivered_count += 1

    def wait_again(
        self,
        waiting: WaitingMessage,
        queue: ConsumeQueue,
        tags_code: int,
        more_properties: bytes,
        *,
        needed: bool,
    ) -> int:
        """Append the message to `queue`, where it waits again; return its queue offset there.

        If the properties get too long, `more_properties` are left out, or StoreError is raised if
        they are `needed`. Raises the store's errors; nothing is stored then.
        """
        properties = _with(waiting.properties, more_properties)
        if properties is None and needed:
            shorter = decode_properties(waiting.text)
            if drop_spare(shorter, MAX_PROPERTIES_LENGTH - len(more_properties)):
                properties = _with(encode_properties(shorter).encode(), more_properties)
        if properties is None:
            if needed:
                raise StoreError(
                    f"the record at {waiting.physical_offset} has properties of "
                    f"{len(waiting.properties)} bytes, {len(more_properties)} more than the limit "
                    f"of {MAX_PROPERTIES_LENGTH} allows are needed to move it"
                )
            properties = waiting.properties
        return self._store.append(
            queue,
            waiting.body,
            properties,
            tags_code,
            waiting.born_timestamp,
            waiting.born_host,
            flag=waiting.flag,
            sys_flag=waiting.sys_flag,
            reconsume_times=waiting.reconsume_times,
            prepared_transaction_offset=waiting.physical_offset,
        )[0]


def _with(properties: bytes, more: bytes) -> bytes | None:
    """Return `properties` with `more` behind them; None if that is too long."""
    closed = properties if properties.endswith(_SEPARATOR) else properties + _SEPARATOR
    if len(closed) + len(more) > MAX_PROPERTIES_LENGTH:
        return None
    return closed + more if more else properties


def _cut(record: memoryview, physical_offset: int) -> WaitingMessage:
    """Cut a record that the store holds, as `decode_record` does but without copying its body."""
    if len(record) < MIN_RECORD_SIZE:
        raise ProtocolError(f"it is no record: {len(record)} bytes")
    (
        size, magic, crc, _queue_id, flag, _queue_offset, own_offset, sys_flag, born_timestamp,
        born_host, store_timestamp, _store_host, reconsume_times, _prepared, body_length,
    ) = FIXED_V4.unpack_from(record)  # fmt: skip
    if sys_flag & HOSTS_V6 or magic not in (MAGIC_V1, MAGIC_V2):
        return _decoded(record)
    topic_at = BODY_AT + body_length
    if (
        own_offset != physical_offset
        or size != len(record)
        or not 0 <= body_length <= size - MIN_RECORD_SIZE
    ):
        raise ProtocolError(f"it is no record: offset {own_offset}, body of {body_length} bytes")
    # A copy of a damaged body would seem to be intact.
    if body_length and crc32(record[BODY_AT:topic_at]) & CRC_MASK != crc:
        raise ProtocolError(f"the body of the record at {physical_offset} contradicts its CRC")
    start = topic_at + 3 + record[topic_at]
    if magic == MAGIC_V2:
        start = topic_at + 4 + int.from_bytes(record[topic_at : topic_at + 2], "big")
    properties = bytes(record[start:])
    return WaitingMessage(
        physical_offset,
        record[BODY_AT:topic_at],
        properties,
        properties.decode("utf-8", "replace"),
        flag,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        reconsume_times,
    )


def _decoded(record: memoryview) -> WaitingMessage:
    decoded = decode_record(record, check_crc=True)
    return WaitingMessage(
        decoded.physical_offset,
        decoded.body,
        decoded.properties.encode(),
        decoded.properties,
        decoded.flag,
        decoded.sys_flag,
        decoded.born_timestamp,
        decoded.born_host,
        decoded.store_timestamp,
        decoded.reconsume_times,
    )
