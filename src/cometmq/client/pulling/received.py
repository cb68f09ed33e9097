"""Decode a pull's answer into messages for users (Java: MessageDecoder, PullAPIWrapper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from cometmq.client.cluster.broker_api import PullAnswer
from cometmq.errors import ProtocolError
from cometmq.filtering.tags import accepts, selects_all
from cometmq.logs.loggers import get_logger
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.names import LMQ_PREFIX, RETRY_PREFIX
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.model.sysflag import COMPRESSED
from cometmq.protocol.messages.compression import decompress
from cometmq.protocol.messages.plain_records import plain_messages
from cometmq.protocol.messages.record import NoRecord, StoredRecord, body_is_intact, read_records
from cometmq.protocol.pop.handle import asked_topic

log = get_logger(__name__)

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
# When the bodies of an answer have grown by this much, each body behind them may only grow to the
# default of a broker's maxMessageSize. So an answer of bombs, of which a megabyte holds gigabytes,
# takes little more than this, and an honest message among them is read nevertheless.
MAX_GROWTH_BYTES: Final = 128 * 1024 * 1024
_ORDINARY_BODY_BYTES: Final = 4 * 1024 * 1024
# Records in queues of topics with these prefixes may name other topics.
_OTHER_TOPICS: Final = (LMQ_PREFIX, RETRY_PREFIX)


@dataclass(slots=True)
class DamagedRecord:
    """Holds the bytes that came instead of a message.

    `queue` is named as on the wire. `queue_offset` is the message's offset, or the first that the
    message may have. With `surplus` no offset lacks its message, so the bytes belong to no message.
    `commit_log_offset` is -1 if the bytes do not have it. `is_passing` says that the bytes are no
    record of the queue at all, a fault that may be gone when the broker is asked again.
    """

    queue: MessageQueue
    queue_offset: int
    commit_log_offset: int
    data: bytes
    reason: str
    is_passing: bool
    surplus: bool = False

    def __str__(self) -> str:
        queue = self.queue
        place = self.commit_log_offset if self.commit_log_offset >= 0 else "unknown"
        return (
            f"topic {queue.topic}, broker {queue.broker_name}, queue {queue.queue_id}, "
            f"offset {self.queue_offset}, commit-log offset {place}: {self.reason}"
        )


class Received(NamedTuple):
    """Holds the messages of an answer and its damaged records, both in the order of the queue."""

    messages: list[MessageExt]
    damaged: list[DamagedRecord]


def wanted_messages(
    answer: PullAnswer, queue: MessageQueue, asked: int, group: str, subscription: SubscriptionData
) -> Received:
    """Decode the answer to a pull of `queue` from offset `asked` on, and leave out messages whose
    tags the subscription does not name. Brokers select tags only by their hashes.
    """
    received = decode_messages(answer, queue, asked, group)
    if selects_all(subscription):
        return received
    messages = [message for message in received.messages if accepts(subscription, message.tags)]
    return Received(messages, received.damaged)


def decode_messages(answer: PullAnswer, queue: MessageQueue, asked: int, group: str) -> Received:
    """Decode the messages of a pull's answer, and decompress their bodies.

    A body that does not decompress is delivered as it is stored, with its flag still set. The
    listener can refuse the message, which then ends among the dead letters instead of blocking its
    queue for ever. A body that contradicts its CRC, and bytes that are no record of this queue,
    give a DamagedRecord instead of a message: brokers send records as they lie on their disks.
    """
    header = answer.header
    min_offset, max_offset = str(header.min_offset), str(header.max_offset)
    end = max(header.next_begin_offset, header.max_offset)
    if not queue.topic.startswith(_OTHER_TOPICS):
        plain = plain_messages(
            answer.records, queue.topic, queue.broker_name, queue.queue_id, asked, end, min_offset, max_offset
        )  # fmt: skip
        if plain is not None:
            return Received(plain, [])
    messages: list[MessageExt] = []
    damaged: list[tuple[int, DamagedRecord]] = []
    position = grown = 0
    for found in read_records(answer.records):
        if isinstance(found, NoRecord):
            data = answer.records[found.start : found.end]
            damage = DamagedRecord(queue, -1, -1, data, found.reason, is_passing=True)
            damaged.append((len(messages), damage))
            position = found.end
            continue
        fault = _fault(found, queue, asked, end)
        if fault or not body_is_intact(found):
            data = answer.records[position : position + found.total_size]
            damage = DamagedRecord(
                queue,
                -1 if fault else found.queue_offset,
                found.physical_offset,
                data,
                fault or "the body contradicts its CRC",
                is_passing=bool(fault),
            )
            damaged.append((len(messages), damage))
            position += found.total_size
            continue
        position += found.total_size
        limit = MAX_BODY_BYTES if grown < MAX_GROWTH_BYTES else _ORDINARY_BODY_BYTES
        message = received_message(found, queue.broker_name, group, limit)
        grown += max(0, len(message.body) - len(found.body))
        message.properties[p.MIN_OFFSET] = min_offset
        message.properties[p.MAX_OFFSET] = max_offset
        messages.append(message)
    if damaged:
        _place(damaged, messages, asked, header.next_begin_offset)
    return Received(messages, [damage for _, damage in damaged])


def _fault(record: StoredRecord, queue: MessageQueue, asked: int, end: int) -> str:
    """Say why a record cannot be one of the queue from offset `asked` on; "" if it can."""
    if queue.topic.startswith(LMQ_PREFIX):
        return ""  # records of an LMQ queue have the queue and offset of their first topic
    if record.queue_id != queue.queue_id:
        return f"a record of queue {record.queue_id}"
    if not asked <= record.queue_offset < end:
        return f"a record of queue offset {record.queue_offset}, asked were {asked} to {end}"
    if record.topic != queue.topic and not record.topic.startswith(_OTHER_TOPICS):
        return f"a record of topic {record.topic}"
    return ""


def _place(
    damaged: list[tuple[int, DamagedRecord]],
    messages: list[MessageExt],
    asked: int,
    next_offset: int,
) -> None:
    """Give each damaged record the offset that it may have: the first one between its neighbours
    that no other record has.
    """
    free = asked
    for index, damage in damaged:
        if index:
            free = max(free, messages[index - 1].queue_offset + 1)
        if damage.queue_offset < 0:
            behind = messages[index].queue_offset if index < len(messages) else next_offset
            damage.surplus = free >= behind
            damage.queue_offset = min(free, max(behind - 1, asked))
        free = max(free, damage.queue_offset + 1)


def received_message(
    record: StoredRecord, broker_name: str, group: str, max_body_bytes: int = MAX_BODY_BYTES
) -> MessageExt:
    """Make the message that listeners see: decompressed, and under its first topic if retried.

    A body that would be longer than `max_body_bytes` stays compressed.
    """
    message = record.to_message(broker_name)
    if message.sys_flag & COMPRESSED:
        decompress_body(message, max_body_bytes)
    origin = message.properties.get(p.RETRY_TOPIC)
    if origin is not None and message.topic == f"%RETRY%{group}":
        message.topic = origin
    if message.topic.startswith(RETRY_PREFIX):  # of a group that has popped
        message.topic = asked_topic(message.topic, group)
    return message


def decompress_body(message: MessageExt, max_body_bytes: int = MAX_BODY_BYTES) -> None:
    """Decompress the body in place. One that does not decompress stays; see `decode_messages`."""
    try:
        message.body = decompress(
            message.body, message.sys_flag, max_length=max_body_bytes, limit="MAX_BODY_BYTES"
        )
    except ProtocolError as error:
        log.warning("a body is delivered compressed", msg_id=message.msg_id, reason=str(error))
    else:
        message.sys_flag &= ~COMPRESSED
