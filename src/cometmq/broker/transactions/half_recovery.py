"""Find out which transactions are unresolved after a start, from the log alone.

Java: TransactionalMessageServiceImpl.check, fillOpRemoveMap. The offsets of CID_RMQ_SYS_TRANS say
where to begin in the half queue and in the op queue. Op records are written in batches, so none may
name a transaction that ended in the last seconds before a kill. A transaction that was committed or
given up is then found by its new record, which names its half message. One that was rolled back is
asked for again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from cometmq.broker.transactions.half_message import (
    HALF_QUEUE_ID,
    HalfMessage,
    half_message,
    immunity_ms,
    read_half,
)
from cometmq.broker.transactions.half_table import HalfTable
from cometmq.broker.transactions.op_queue import REMOVE_TAG, OpQueue, may_be_part, named_offsets
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from cometmq.protocol.messages.properties import find_property
from cometmq.protocol.messages.record import MAGIC_V1, MAGIC_V2, StoredRecord
from cometmq.protocol.messages.record_layout import HOSTS_V6, record_struct
from cometmq.store.log.following import LogFollower
from cometmq.store.queues.consume_queue import PLACEHOLDER_SIZE, Unit
from cometmq.store.store import MessageStore

log = get_logger(__name__)

_OP_QUEUE_ID: Final = HALF_QUEUE_ID
_UNITS_AT_ONCE: Final = 4096
_HEAD: Final = record_struct(
    "size",
    "magic",
    "physical_offset",
    "sys_flag",
    "born_timestamp",
    "store_timestamp",
    "body_length",
)
_TOPIC: Final = names.TRANS_HALF_TOPIC.encode()
# Properties of copies, of checked half messages, and of those that ask for an immunity time.
_SPECIAL: Final = re.compile(
    "|".join(
        (
            p.TRANSACTION_PREPARED_QUEUE_OFFSET,
            p.TRANSACTION_CHECK_TIMES,
            p.CHECK_IMMUNITY_TIME_IN_SECONDS,
        )
    ).encode()
)


class HalfRecovery:
    """Fills `table` and `ops` once, before anything is put.

    `timeout_ms` is transactionTimeOut; `ahead_ms` is by how much the broker's clock is ahead of the
    machine's.
    """

    def __init__(
        self,
        store: MessageStore,
        table: HalfTable,
        ops: OpQueue,
        timeout_ms: int,
        ahead_ms: int,
    ) -> None:
        self._store = store
        self._table = table
        self._ops = ops
        self._timeout_ms = timeout_ms
        self._ahead_ms = ahead_ms
        self._named: set[int] = set()
        self._ended: set[int] = set()

    def run(self, half_offset: int, op_offset: int) -> None:
        """Read both queues from these offsets, -1 for their beginning."""
        self._read_ops(op_offset)
        self._read_halves(half_offset)
        found_ended = self._find_ended() if self._table else 0
        log.info("transactions found", unresolved=len(self._table), ended_without_op=found_ended)

    def _read_ops(self, start: int) -> None:
        last_position = None
        for record in _records(self._store, names.TRANS_OP_HALF_TOPIC, _OP_QUEUE_ID, start):
            offsets: list[int] = []
            if find_property(record.properties, p.TAGS) == REMOVE_TAG:
                offsets = named_offsets(record.body)
            self._named.update(offsets)
            self._ops.found(record.queue_offset, offsets)
            if not may_be_part(offsets):
                last_position = record.physical_offset
            elif last_position is None:
                last_position = 0
        if last_position is not None:
            self._ops.last_position = last_position

    def _read_halves(self, start: int) -> None:
        window = self._store.commit_log.window
        base = end = -1
        view = memoryview(b"")
        for offset, unit in _units(self._store, names.TRANS_HALF_TOPIC, HALF_QUEUE_ID, start):
            place = unit.physical_offset
            if not base <= place < end:
                base, end, view = window(place)
            if base <= place and place + unit.size <= end:
                times = _times_of_plain_half(view, place - base, unit.size, place)
                if times is not None:
                    self._found_plain(offset, *times)
                    continue
            record = self._store.stored_record(place)
            if record is not None and record.topic == names.TRANS_HALF_TOPIC:
                self._found(half_message(record))

    def _found_plain(self, offset: int, born_ms: int, stored_ms: int) -> None:
        """Add the first copy of a half message without special properties, as `_found` does but in
        half the time: there may be millions.
        """
        if offset in self._named:
            self._ended.add(offset)
        else:
            sent_ms = min(born_ms + self._ahead_ms, stored_ms)
            self._table.add(offset, sent_ms + self._timeout_ms)

    def _found(self, half: HalfMessage) -> None:
        first, offset = half.first_offset, half.record.queue_offset
        if first in self._ended:
            return
        known = self._table.newest(first) is not None
        if offset in self._named or first in self._named:
            self._ended.add(first)
            if known:
                self._table.resolve(first)
        elif known:
            # A copy replaces its original, whether or not the consumed offset has passed the
            # original.
            self._table.move(first, offset)
        else:
            asked_ms = immunity_ms(half.properties, self._timeout_ms)
            self._table.add(
                offset,
                half.due_ms(self._ahead_ms, self._timeout_ms),
                first,
                is_immune=asked_ms > self._timeout_ms,
            )

    def _find_ended(self) -> int:
        """Resolve transactions committed or given up behind the last op record; return how many."""
        oldest = read_half(self._store, self._table.low_offset(0))
        start = max(self._ops.last_position, oldest.record.physical_offset if oldest else 0)
        count = 0
        for glance in LogFollower(self._store.commit_log, start):
            # A commit may name offset 0, because the log's first record may be a half message.
            if glance.origin <= 0 and glance.sys_flag & TRANSACTION_MASK != TRANSACTION_COMMIT:
                continue
            half = self._origin(glance.offset, glance.origin)
            newest = None if half is None else self._table.newest(half.first_offset)
            if half is not None and newest is not None:
                self._table.resolve(half.first_offset)
                self._ops.add(sorted({newest, half.record.queue_offset}))
                count += 1
        return count

    def _origin(self, offset: int, origin: int) -> HalfMessage | None:
        """Return the half message that the record at `offset` was made from, else None."""
        half = self._store.stored_record(origin)
        if half is None or half.topic != names.TRANS_HALF_TOPIC:
            return None
        ended = self._store.stored_record(offset)
        if ended is None:
            return None
        for name in (p.UNIQ_CLIENT_MESSAGE_ID, p.PRODUCER_GROUP):
            if find_property(half.properties, name) != find_property(ended.properties, name):
                return None
        return half_message(half)


def _records(store: MessageStore, topic: str, queue_id: int, start: int) -> Iterator[StoredRecord]:
    """Yield the messages of a queue that the log still has, from offset `start` on."""
    for _, unit in _units(store, topic, queue_id, start):
        record = store.stored_record(unit.physical_offset)
        if record is not None and record.topic == topic:
            yield record


def _units(
    store: MessageStore, topic: str, queue_id: int, start: int
) -> Iterator[tuple[int, Unit]]:
    """Yield queue offset and unit of each message of a queue, from offset `start` on."""
    queue = store.queues.find(topic, queue_id)
    if queue is None:
        return
    offset = max(start, queue.min_offset)
    while offset < queue.next_offset:
        units = store.mender.units(queue, offset, _UNITS_AT_ONCE)
        if units is None:  # a file that has left the disk
            offset += queue.units_per_file - offset % queue.units_per_file
            continue
        before = offset
        for unit in units:
            if unit.size != PLACEHOLDER_SIZE:
                yield offset, unit
            offset += 1
        if offset == before:  # a missing unit
            offset += 1


def _times_of_plain_half(
    view: memoryview, start: int, size: int, place: int
) -> tuple[int, int] | None:
    """Return when a half message was born and stored, if it is a first copy that was never checked
    and asks for no immunity; else None.
    """
    if size <= _HEAD.size:
        return None
    own_size, magic, own_place, sys_flag, born_ms, stored_ms, body_length = _HEAD.unpack_from(
        view, start
    )
    width = 1 if magic == MAGIC_V1 else 2
    if own_size != size or own_place != place or magic not in (MAGIC_V1, MAGIC_V2):
        return None
    if sys_flag & HOSTS_V6 or not 0 <= body_length <= size - _HEAD.size - width - len(_TOPIC):
        return None
    rest = bytes(view[start + _HEAD.size + body_length : start + size])
    if rest[:width] != len(_TOPIC).to_bytes(width, "big") or not rest.startswith(_TOPIC, width):
        return None
    return None if _SPECIAL.search(rest) else (born_ms, stored_ms)
