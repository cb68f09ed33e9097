"""From the records of an answer to the messages that users see (Java: MessageDecoder, PullAPIWrapper)."""

from __future__ import annotations

from typing import Final

import structlog

from cometmq.client.broker_api import PullAnswer
from cometmq.errors import ProtocolError
from cometmq.filtering.tags import accepts, selects_all
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.subscription import SubscriptionData
from cometmq.model.sysflag import COMPRESSED
from cometmq.protocol.compression import decompress
from cometmq.protocol.record import StoredRecord, body_is_intact, decode_records

log = structlog.get_logger(__name__)

MAX_BODY_BYTES: Final = 64 * 1024 * 1024


def wanted_messages(
    answer: PullAnswer, broker_name: str, group: str, subscription: SubscriptionData
) -> list[MessageExt]:
    """The messages of an answer whose tags fit by text too. Raises ProtocolError."""
    messages = decode_messages(answer, broker_name, group)
    if selects_all(subscription):
        return messages
    return [message for message in messages if accepts(subscription, message.tags)]


def decode_messages(answer: PullAnswer, broker_name: str, group: str) -> list[MessageExt]:
    """The messages of a pull's answer, bodies decompressed. Raises ProtocolError.

    A body that does not decompress is delivered as it is stored, its flag still set: the listener
    can refuse it, so it ends among the dead letters instead of blocking its queue for ever. One that
    is not what was stored is not delivered: brokers send records as they lie on their disk.
    """
    min_offset, max_offset = str(answer.header.min_offset), str(answer.header.max_offset)
    messages = []
    for record in decode_records(answer.records):
        if not body_is_intact(record):
            log.error(
                "a damaged message is not delivered; `cometmq store check` tells about the others",
                broker=broker_name,
                topic=record.topic,
                queue_id=record.queue_id,
                queue_offset=record.queue_offset,
                commit_log_offset=record.physical_offset,
            )
            continue
        message = received_message(record, broker_name, group)
        message.properties[p.MIN_OFFSET] = min_offset
        message.properties[p.MAX_OFFSET] = max_offset
        messages.append(message)
    return messages


def received_message(record: StoredRecord, broker_name: str, group: str) -> MessageExt:
    """A record as listeners see it: decompressed, and a retried message under its first topic."""
    message = record.to_message(broker_name)
    if message.sys_flag & COMPRESSED:
        decompress_body(message)
    origin = message.properties.get(p.RETRY_TOPIC)
    if origin is not None and message.topic == f"%RETRY%{group}":
        message.topic = origin
    return message


def decompress_body(message: MessageExt) -> None:
    """Replace a compressed body by what it was; see `decode_messages`."""
    try:
        message.body = decompress(message.body, message.sys_flag, max_length=MAX_BODY_BYTES)
    except ProtocolError as error:
        log.warning("a body is delivered compressed", msg_id=message.msg_id, reason=str(error))
    else:
        message.sys_flag &= ~COMPRESSED
