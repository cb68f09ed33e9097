"""Build the consume-queue units of records read from the log, for recovery and for a slave.

An append computes the same unit from the message at hand. Java:
CommitLogDispatcherBuildConsumeQueue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cometmq.errors import MessageIllegalError
from cometmq.logs.loggers import get_logger
from cometmq.model.java.hashing import java_hash
from cometmq.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.model.properties import DELAY_TIME_LEVEL, TAGS, TIMER_DEL_UNIQKEY, TIMER_OUT_MS
from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from cometmq.protocol.messages.properties import find_property
from cometmq.protocol.messages.record import MIN_RECORD_SIZE
from cometmq.store.append import Arrival
from cometmq.store.log.scan import ScannedRecord
from cometmq.store.queues.consume_queue import NO_MESSAGE, ConsumeQueue, Unit

# A slot with more digits may not fit the 8 bytes of a tags code; no broker writes one.
_MAX_SLOT_DIGITS: Final = 18

BegunAnew = Callable[[str, int], None]

log = get_logger(__name__)


class QueueBehindError(Exception):
    """Says that a queue lacks units before the record at hand: more of the log must be replayed."""


class Dispatcher:
    """Puts records into their queues, each record once. Call `dispatch` in commit-log order.

    If units are missing before a record, `dispatch` fills the gap with `fill_gaps`, and raises
    QueueBehindError without. `on_arrival` is called for each record, as an append would call it.
    Records below the commit-log offset that `deleted` has for their topic get no unit (see
    `QueueLedger`). `log_min_offset` returns where the log begins. `begun_anew(topic, queue_id)` is
    called when the first message of a queue comes behind others: a master has removed the queue. It
    must do so, too. With it, records in front of those that a queue has are passed over.
    """

    def __init__(
        self,
        queue_of: Callable[[str, int], ConsumeQueue],
        delay_levels_ms: Sequence[int],
        *,
        fill_gaps: bool,
        log_min_offset: Callable[[], int] = lambda: 0,
        on_arrival: Arrival | None = None,
        deleted: Mapping[str, int] | None = None,
        begun_anew: BegunAnew | None = None,
    ) -> None:
        self._begun_anew = begun_anew
        self._queue_of = queue_of
        self._delay_levels_ms = delay_levels_ms
        self._fill_gaps = fill_gaps
        self._log_min_offset = log_min_offset
        self._on_arrival = on_arrival
        self._deleted = deleted or {}
        self.dispatched_count = 0

    def dispatch(self, record: ScannedRecord) -> None:
        if record.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NOT, TRANSACTION_COMMIT):
            return
        if self._deleted and record.offset < self._deleted.get(record.topic, 0):
            return
        try:
            queue = self._queue_of(record.topic, record.queue_id)
        except MessageIllegalError as error:
            # No checksum covers these fields. A broker that refused the record could not go on, or start.
            reason = str(error)
            log.error("a record gets no place in a queue", offset=record.offset, reason=reason)  # noqa: TRY400 - the reason says all
            return
        if self._begun_anew is not None and queue.next_offset:
            last = queue.last_message()
            if last is not None and record.offset <= last.physical_offset:
                # The queue has it, or has begun again since.
                return
            # A queue may have lost all its messages and know its next offset still: its files are
            # cut where a recovery begins to read the log.
            if record.queue_offset == 0:
                self._begun_anew(record.topic, record.queue_id)
                queue = self._queue_of(record.topic, record.queue_id)
        if record.queue_offset < queue.next_offset and not _begins_anew(queue, record):
            return
        if record.queue_offset > queue.next_offset:
            if not self._fill_gaps:
                raise QueueBehindError
            last = queue.last_message()
            if cannot_be(record, queue.next_offset, last.physical_offset if last else None):
                log.error(
                    "a record is left out of its queue, its queue offset cannot be right",
                    offset=record.offset,
                    topic=record.topic,
                    queue_id=record.queue_id,
                    queue_offset=record.queue_offset,
                )
                return
            queue.fill_to(record.queue_offset, self._stand_in(record, queue))
        tags_code = tags_code_of(record, self._delay_levels_ms)
        queue.put_message(
            record.offset, record.size, tags_code, record.store_timestamp, record.properties
        )
        self.dispatched_count += 1
        if self._on_arrival is not None:
            self._on_arrival(
                record.topic,
                record.queue_id,
                record.queue_offset + 1,
                tags_code,
                record.store_timestamp,
                record.properties,
            )

    def _stand_in(self, record: ScannedRecord, queue: ConsumeQueue) -> Unit:
        """Return the unit that fills the gap where messages before a record are missing.

        Between messages this is the record's own unit: a Java broker cannot read past anything
        else, and a message that is delivered twice does no harm. If the log holds no earlier
        message of the queue, the unit is NO_MESSAGE.
        """
        last = queue.last_message()
        if last is None or last.physical_offset < self._log_min_offset():
            return NO_MESSAGE
        return Unit(record.offset, record.size, tags_code_of(record, self._delay_levels_ms))


def _begins_anew(queue: ConsumeQueue, record: ScannedRecord) -> bool:
    """Have a queue begin again if it goes on behind a record by mistake; return whether it was so.

    Retention removes a queue's file only when its messages have left the log. So where the log has one
    in front of an empty file, a power loss took the files of the units from that one on.
    """
    if not queue.is_remnant or record.queue_offset < 0:
        return False
    log.warning(
        "a queue begins again, its first files were lost",
        topic=queue.topic,
        queue_id=queue.queue_id,
        first_file_at=queue.first_offset,
    )
    queue.begin_anew()
    return True


def cannot_be(record: ScannedRecord, next_offset: int, last_place: int | None) -> bool:
    """Say whether a record's queue offset is impossible: the log has too few bytes for the messages
    that would be missing before the record.

    `next_offset` is the offset with which its queue goes on. `last_place` is the position of the
    queue's last message in the log, None if it is not known. No CRC covers a queue offset, and filling a
    queue up to a wrong one would fill the disk.
    """
    if last_place is None:
        # Each earlier message of the queue lay in the log, though retention may have removed it.
        next_offset = last_place = 0
    missing = record.queue_offset - next_offset
    return missing * MIN_RECORD_SIZE > record.offset - last_place


def tags_code_of(record: ScannedRecord, delay_levels_ms: Sequence[int]) -> int:
    """Return the tags code of a record's unit.

    This is the hash of the tags; in the schedule topic the time of delivery, ms; in the timer topic
    the slot, ms, negative for a recall (see `cometmq.broker.delays.timer`).
    """
    properties = record.properties.decode("utf-8", "replace")
    if record.topic == SCHEDULE_TOPIC:
        level_text = find_property(properties, DELAY_TIME_LEVEL)
        if level_text is not None and level_text.isdecimal() and int(level_text) > 0:
            level = min(int(level_text), len(delay_levels_ms))
            return record.store_timestamp + delay_levels_ms[level - 1]
    elif record.topic == TIMER_TOPIC:
        slot_text = find_property(properties, TIMER_OUT_MS)
        if slot_text is not None and slot_text.isdecimal() and len(slot_text) <= _MAX_SLOT_DIGITS:
            recall = find_property(properties, TIMER_DEL_UNIQKEY) is not None
            return -int(slot_text) if recall else int(slot_text)
    tags = find_property(properties, TAGS)
    return java_hash(tags) if tags else 0
