"""Find out after a restart what is delivered, from the state file and from the log behind it.

The file is RocketMQ's delayOffset.json with entries of our own:

    offsetTable      next queue offset by delay level
    commitLogOffset  everything the log held below this offset is accounted for
    timerSegments    which timed messages are done (see `timer_progress.py`)
    timerFloor       no timed message below this queue offset waits

The file is written when the log is on disk up to `commitLogOffset`, so it never claims a delivery
that a power failure took back. The log says what was delivered later: delivery notes name the
waiting records of which the records behind the note are copies (`cometmq.store.delivery_note`). A
copy that waits again names its original in a field of its own; so did all copies that brokers made
before there were such notes. A Java broker drops our entries when it writes the file. How far the Java
broker delivered is then read from `offsetTable` and from its own file config/timercheck.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final

from cometmq.broker.delays.timer_progress import WHOLE_SLOT, Segment, TimerProgress
from cometmq.broker.delays.timer_window import MIN_TIME_CODE, CodeOfRecord
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.sysflag import STORE_HOST_V6
from cometmq.model.topic import DataVersion
from cometmq.protocol.bodies.cluster import DelayOffsetSerializeWrapper
from cometmq.protocol.header import Int64
from cometmq.protocol.messages.properties import find_property
from cometmq.protocol.messages.record import StoredRecord
from cometmq.store.delivery_note import named_origins
from cometmq.store.log.following import LogFollower
from cometmq.store.queues.consume_queue import PLACEHOLDER_SIZE, ConsumeQueue
from cometmq.store.store import MessageStore

log = get_logger(__name__)

_WAITING_TOPICS: Final = (names.SCHEDULE_TOPIC, names.TIMER_TOPIC)
# Java's config/timercheck has 4096 bytes: the time before which all slots are delivered, the
# position in its timer log, the queue offset up to which it has read the timer queue, the same
# offset of its master; then a data version: state version, timestamp, counter.
_TIMER_CHECK: Final = struct.Struct(">qqqqqqq")
assert _TIMER_CHECK.size == 56
TIMER_CHECK_SIZE: Final = 4096


class DelayState(DelayOffsetSerializeWrapper):
    """Holds the contents of the file. A Java broker's file has no `commit_log_offset`."""

    commit_log_offset: Int64 | None = None
    timer_segments: tuple[Segment, ...] = ()
    timer_floor: Int64 = 0


def decode_timer_check(data: bytes) -> TimerProgress | None:
    """Return what a Java broker's config/timercheck says is done; None if `data` is too short."""
    if len(data) < _TIMER_CHECK.size:
        return None
    next_slot, _position, read_to = _TIMER_CHECK.unpack_from(data)[:3]
    return TimerProgress([Segment(0, next_slot - 1, WHOLE_SLOT), Segment(max(read_to, 0))])


def encode_timer_check(state: DelayState, precision_ms: int) -> bytes:
    """Encode the beginning of config/timercheck for a Java broker that opens the store next.

    That broker reads the timer queue from the first message that waits. The file cannot say which
    messages behind it are done, so those that are due by then are delivered twice.
    """
    last = min(state.timer_segments, key=lambda segment: segment.slot, default=Segment())
    next_slot = last.slot + (precision_ms if last.offset == WHOLE_SLOT else 0)
    version = state.data_version or DataVersion()
    return _TIMER_CHECK.pack(
        max(next_slot, 0),
        0,
        state.timer_floor,
        state.timer_floor,
        version.state_version,
        version.timestamp,
        version.counter,
    )


class Replay:
    """Brings offsets and progress up to date with the log. Use it once, before deliveries."""

    def __init__(
        self,
        store: MessageStore,
        level_offsets: dict[int, int],
        progress: TimerProgress,
        code_of_record: CodeOfRecord,
    ) -> None:
        self._store = store
        self._level_offsets = level_offsets
        self._progress = progress
        self._code_of_record = code_of_record
        self.delivered_count = 0
        # No timed message below this queue offset waits.
        self.timer_floor = 0

    def run(self, start: int, timer_floor: int) -> None:
        """Go through the log from `start`, but not before the first message that may still wait."""
        self.timer_floor = timer_floor
        first_waiting = self._first_waiting(timer_floor)
        if first_waiting is None:
            return
        start = max(start, first_waiting)
        arrivals = self._timer_arrivals(start, timer_floor)
        arrival = next(arrivals, None)
        # A record that names offset 0 as its origin looks like one that names none.
        mark_of_first = self._mark_of_first()
        named: deque[int] = deque()
        for offset, _, origin in LogFollower(self._store.commit_log, start):
            while arrival is not None and arrival[0] <= offset:
                self._progress.arrived(*arrival[1:])
                arrival = next(arrivals, None)
            if origin < 0:
                note = self._store.stored_record(offset)
                named = deque(named_origins(note) if note is not None else ())
            elif named and not origin and self._is_copy_of_one(offset, named):
                continue
            elif origin > 0 or (mark_of_first and mark_of_first in bytes(self._bytes_at(offset))):
                copy, waiting = self._store.stored_record(offset), self._waiting_record(origin)
                if copy is not None and waiting is not None and _is_copy(copy, waiting):
                    self._delivered(copy, waiting)
        for _, slot, queue_offset in ([arrival] if arrival else []) + list(arrivals):
            self._progress.arrived(slot, queue_offset)

    def _first_waiting(self, timer_floor: int) -> int | None:
        """Return the commit-log offset of the first record that may still wait, else None."""
        queues = [
            (queue, self._level_offsets.get(queue.queue_id + 1, 0))
            for queue in self._store.queues
            if queue.topic == names.SCHEDULE_TOPIC
        ]
        timers = self._store.queues.find(names.TIMER_TOPIC, 0)
        if timers is not None:
            queues.append((timers, timer_floor))
        unit_of = self._store.mender.unit
        units = (unit_of(queue, max(offset, queue.min_offset)) for queue, offset in queues)
        return min((unit.physical_offset for unit in units if unit is not None), default=None)

    def _timer_arrivals(self, start: int, floor: int) -> Iterator[tuple[int, int, int]]:
        """Yield commit-log offset, slot and queue offset of the timed messages from `start` on."""
        queue = self._store.queues.find(names.TIMER_TOPIC, 0)
        if queue is None:
            return

        def place_at(queue_offset: int) -> int:
            unit = self._store.mender.unit(queue, queue_offset)
            assert unit is not None, "the queue is searched where it has units"
            return unit.physical_offset

        offset = max(queue.find_offset(place_at, start), floor)
        for queue_offset, physical_offset, size, code in _units(queue, offset):
            slot = code
            if abs(code) < MIN_TIME_CODE:
                slot = self._code_of_record(physical_offset, size)
            if slot:
                yield physical_offset, abs(slot), queue_offset

    def _is_copy_of_one(self, offset: int, named: deque[int]) -> bool:
        """Say whether the record at `offset` was made from one of the records in `named`.

        Records in front of that one are dropped from `named`: their copies are damaged. If the record
        was made from none of them, `named` is emptied: no more copies follow.
        """
        copy = self._store.stored_record(offset)
        while copy is not None and named:
            waiting = self._waiting_record(named.popleft())
            if waiting is None:
                # The waiting record has left the disk. Only the order says that this is its copy.
                return True
            if _is_copy(copy, waiting):
                self._delivered(copy, waiting)
                return True
        return False

    def _delivered(self, copy: StoredRecord, waiting: StoredRecord) -> None:
        self.delivered_count += 1
        # A copy in the timer topic was made before a file of the log was deleted, see `roll`.
        if waiting.topic == copy.topic:
            self.timer_floor = max(self.timer_floor, waiting.queue_offset + 1)
        elif waiting.topic == names.SCHEDULE_TOPIC:
            level = waiting.queue_id + 1
            done = max(self._level_offsets.get(level, 0), waiting.queue_offset + 1)
            self._level_offsets[level] = done
        else:
            slot = abs(self._code_of_record(waiting.physical_offset, waiting.total_size))
            if slot:
                self._progress.advance(slot, waiting.queue_offset)

    def _mark_of_first(self) -> bytes | None:
        """Return a text in all copies of the waiting record at offset 0; None if there is none."""
        first = self._waiting_record(0)
        unique_id = find_property(first.properties, p.UNIQ_CLIENT_MESSAGE_ID) if first else None
        return unique_id.encode() if unique_id else None

    def _bytes_at(self, offset: int) -> memoryview | bytes:
        return self._store.record_at(offset) or b""

    def _waiting_record(self, offset: int) -> StoredRecord | None:
        record = self._store.stored_record(offset)
        return record if record is not None and record.topic in _WAITING_TOPICS else None


def _is_copy(copy: StoredRecord, waiting: StoredRecord) -> bool:
    """Say whether `copy` has all that a copy of `waiting` takes over; it may have more properties.

    A record that a client sent does not agree: the client knows neither REAL_TOPIC nor TIMER_OUT_MS
    before the broker has set them, and a message with the properties of a delayed message is itself
    delayed.
    """
    if copy.topic == names.TIMER_TOPIC:
        # The named origin says which copies wait again. A record that names offset 0 may also be
        # the same message put twice. Then it has as many properties as the first one; a copy has
        # more.
        is_meant = copy.prepared_transaction_offset == waiting.physical_offset and (
            waiting.physical_offset > 0 or len(copy.properties) > len(waiting.properties)
        )
    else:
        is_meant = copy.topic == find_property(waiting.properties, p.REAL_TOPIC)
    return (
        is_meant
        and waiting.physical_offset < copy.physical_offset
        and copy.body_crc == waiting.body_crc
        and len(copy.body) == len(waiting.body)
        and copy.flag == waiting.flag
        # The broker may have another address now.
        and not (copy.sys_flag ^ waiting.sys_flag) & ~STORE_HOST_V6
        and copy.born_timestamp == waiting.born_timestamp
        and copy.born_host == waiting.born_host
        and copy.reconsume_times == waiting.reconsume_times
        and copy.properties.startswith(waiting.properties)
    )


def _units(queue: ConsumeQueue, offset: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (queue offset, log offset, size, tags code) of the messages from `offset` on."""
    while offset < queue.next_offset:
        units = queue.units(offset, queue.units_per_file)
        if units is None:
            offset += queue.units_per_file - offset % queue.units_per_file
            continue
        for physical_offset, size, code in units:
            if size != PLACEHOLDER_SIZE:
                yield offset, physical_offset, size, code
            offset += 1
