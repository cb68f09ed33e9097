"""Decode the answer to a pop into messages that can be acknowledged (Java: MQClientAPIImpl.processPopResponse)."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.client.cluster.broker_api import PopAnswer
from cometmq.client.pulling.received import received_message
from cometmq.errors import ProtocolError
from cometmq.logs.loggers import get_logger
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.protocol.messages.properties import find_property
from cometmq.protocol.messages.record import NoRecord, StoredRecord, body_is_intact, read_records
from cometmq.protocol.pop.handle import (
    PopHandle,
    decode_order_counts,
    decode_start_offsets,
    mark_of,
    real_topic,
)

log = get_logger(__name__)


@dataclass(slots=True)
class Receipt:
    """Names a popped message to the broker. `topic` is the one that was asked for, as on the wire."""

    broker_name: str
    topic: str
    offset: int
    handle: PopHandle

    def real_topic(self, group: str) -> str:
        """Return the topic from which the message was taken: a retry topic if the message came
        again.
        """
        return real_topic(self.topic, group, self.handle.mark)


def popped_messages(
    answer: PopAnswer, topic: str, group: str, broker_name: str
) -> list[tuple[MessageExt, Receipt]]:
    """Return the messages of an answer with their receipts, in its order.

    Names are those on the wire. A record that is not whole is logged and left out: nobody acknowledges
    it, so the broker delivers it again. Raises ProtocolError if the header does not describe the body.
    """
    header = answer.header
    starts = decode_start_offsets(header.start_offset_info or "")
    counts = decode_order_counts(header.order_count_info or "")
    popped: list[tuple[MessageExt, Receipt]] = []
    for found in read_records(answer.records):
        if isinstance(found, NoRecord) or not body_is_intact(found):
            reason = found.reason if isinstance(found, NoRecord) else "its body contradicts its CRC"
            log.error("a popped message is damaged", topic=topic, broker=broker_name, reason=reason)
            continue
        handle = _handle_of(found, answer, starts, broker_name)
        message = received_message(found, broker_name, group)
        message.topic = topic
        message.properties[p.POP_CK] = handle.encode()
        message.properties.setdefault(p.FIRST_POP_TIME, str(handle.pop_time))
        place = f"qo{handle.queue_id}%{found.queue_offset}"
        before = counts.get(
            (handle.mark, place), counts.get((handle.mark, str(handle.queue_id)), 0)
        )
        message.reconsume_times = max(message.reconsume_times, before)
        offset = handle.offset if handle.offset >= 0 else found.queue_offset
        popped.append((message, Receipt(broker_name, topic, offset, handle)))
    return popped


def _handle_of(
    record: StoredRecord,
    answer: PopAnswer,
    starts: dict[tuple[str, int], int],
    broker_name: str,
) -> PopHandle:
    """Return the handle that the broker gave a record, or else make it of the header."""
    given = find_property(record.properties, p.POP_CK)
    if given is not None:
        return PopHandle.decode(given)
    mark = mark_of(record.topic)
    start = starts.get((mark, record.queue_id))
    if start is None:
        raise ProtocolError(
            f"the broker {broker_name} popped from queue {record.queue_id} of {record.topic}, and its "
            "answer names no start offset of that queue"
        )
    header = answer.header
    return PopHandle(
        start,
        header.pop_time,
        header.invisible_time,
        header.revive_qid,
        mark,
        broker_name,
        record.queue_id,
        record.queue_offset,
    )
