"""Turn the records of a batch into units of their consume queues, all at once.

The result is the same as that of `Dispatcher`, record by record. Whatever is out of the ordinary is
left to `Dispatcher`: the schedule and timer topics, topics that were deleted, queues with an
extension or with files but no unit, records whose queue offset is not the next one of their queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cometmq.errors import MessageIllegalError
from cometmq.model.java.hashing import java_hash
from cometmq.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.model.properties import TAGS
from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from cometmq.protocol.messages.record_columns import Bools, Ints
from cometmq.store.append import Arrival
from cometmq.store.log.batch_scan import RecordBatch
from cometmq.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue
from cometmq.store.queues.dispatch import BegunAnew, Dispatcher
from cometmq.store.reading.record_texts import RecordTexts
from cometmq.store.reading.units import UNIT_DTYPE

# Tags codes in these topics are times.
TIMED_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)


class QueuedRecords(NamedTuple):
    """Names the records of a batch that have a place in a queue, by index, and the queue of each.

    `keys` has the topic and queue id of each group, `groups` the group of each record. A record in
    `single` may have got the group of another topic: such records must be dispatched one by one.
    """

    records: Ints
    keys: list[tuple[str, int]]
    groups: Ints
    single: Bools


class BatchDispatcher:
    """Puts records into their queues, each once; call it in commit-log order. See Dispatcher.

    `on_arrival` is called for the records of queues for which `is_awaited` says so.
    """

    def __init__(
        self,
        queue_of: Callable[[str, int], ConsumeQueue],
        delay_levels_ms: Sequence[int],
        *,
        fill_gaps: bool,
        log_min_offset: Callable[[], int],
        deleted: Mapping[str, int] | None = None,
        on_arrival: Arrival | None = None,
        is_awaited: Callable[[str, int], bool] = lambda _topic, _queue_id: True,
        begun_anew: BegunAnew | None = None,
    ) -> None:
        self._on_arrival = on_arrival
        self._is_awaited = is_awaited
        self._begins_anew = begun_anew is not None
        self._queue_of = queue_of
        self._deleted = deleted or {}
        self._single = Dispatcher(
            queue_of,
            delay_levels_ms,
            fill_gaps=fill_gaps,
            log_min_offset=log_min_offset,
            deleted=deleted,
            on_arrival=on_arrival,
            begun_anew=begun_anew,
        )
        self._dispatched_count = 0

    @property
    def dispatched_count(self) -> int:
        return self._dispatched_count + self._single.dispatched_count

    def dispatch(self, batch: RecordBatch) -> None:
        """Dispatch a batch. Raises QueueBehindError as Dispatcher does, perhaps half-way."""
        queued = queued_records(batch)
        if queued is None:
            return
        queues, single = self._queues_of(batch, queued)
        left = [queued.records[single]]
        plain = ~single
        left += self._put(batch, queues, queued.records[plain], queued.groups[plain])
        for index in np.sort(np.concatenate(left)).tolist():
            self._single.dispatch(batch.record(index))

    def _queues_of(
        self, batch: RecordBatch, queued: QueuedRecords
    ) -> tuple[list[ConsumeQueue | None], Bools]:
        """Return the queue of each group, and which records to dispatch singly."""
        queues: list[ConsumeQueue | None] = []
        single = queued.single
        first_offset = int(batch.offsets[0])
        for group, (topic, queue_id) in enumerate(queued.keys):
            # Old records that are passed over must not make a queue of a deleted topic appear.
            deleted = self._deleted.get(topic, 0) > first_offset
            queue = None if deleted else self._queue_if_legal(topic, queue_id)
            if queue is None or topic in TIMED_TOPICS or queue.extends or queue.is_remnant:
                single = single | (queued.groups == group)
            queues.append(queue)
        if self._begins_anew:
            firsts = np.flatnonzero(batch.queue_offsets[queued.records] == 0)
            begin = set(queued.groups[firsts].tolist())
            for group, queue in enumerate(queues):
                if queue is None or not queue.next_offset:
                    continue
                last = queue.last_message()
                has_some = last is not None and last.physical_offset >= first_offset
                if group in begin or has_some:
                    single = single | (queued.groups == group)
        return queues, single

    def _queue_if_legal(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        try:
            return self._queue_of(topic, queue_id)
        except MessageIllegalError:
            return None

    def _put(
        self, batch: RecordBatch, queues: list[ConsumeQueue | None], records: Ints, groups: Ints
    ) -> list[Ints]:
        """Write the units of records, given by index; return the records of queues with gaps."""
        queue_offsets = batch.queue_offsets[records]
        next_offsets = np.array([queue.next_offset if queue else 0 for queue in queues], np.int64)
        new = queue_offsets >= next_offsets[groups]
        order = np.flatnonzero(new)[np.argsort(groups[new], kind="stable")]
        records, groups, queue_offsets = records[order], groups[order], queue_offsets[order]
        bounds = np.searchsorted(groups, np.arange(len(queues) + 1))
        expected = next_offsets[groups] + np.arange(len(records)) - bounds[groups]
        with_gaps = set(groups[queue_offsets != expected].tolist())
        units = memoryview(units_of(batch, records).tobytes())
        left = []
        for group, (start, end) in enumerate(
            zip(bounds.tolist(), bounds[1:].tolist(), strict=False)
        ):
            if group in with_gaps:
                left.append(records[start:end])
            elif start < end:
                queue = queues[group]
                assert queue is not None, "its records are dispatched singly"
                first = queue.next_offset
                try:
                    queue.put_units(units[start * UNIT_SIZE : end * UNIT_SIZE])
                finally:
                    count = queue.next_offset - first
                    self._dispatched_count += count
                    self._announce(batch, queue, first, records[start : start + count])
        return left

    def _announce(self, batch: RecordBatch, queue: ConsumeQueue, first: int, records: Ints) -> None:
        """Wake the requests that wait for the queue of the records, of which `first` is the offset."""
        if self._on_arrival is None or not self._is_awaited(queue.topic, queue.queue_id):
            return
        codes = units_of(batch, records)["tags_code"].tolist()
        for number, (index, tags_code) in enumerate(zip(records.tolist(), codes, strict=True), 1):
            record = batch.record(index)
            self._on_arrival(
                queue.topic,
                queue.queue_id,
                first + number,
                tags_code,
                record.store_timestamp,
                record.properties,
            )


def queued_records(batch: RecordBatch) -> QueuedRecords | None:
    """Group the records of a batch by queue; return None when no queue gets any."""
    kinds = batch.columns.sys_flags & TRANSACTION_MASK
    records = np.flatnonzero((kinds == TRANSACTION_NOT) | (kinds == TRANSACTION_COMMIT))
    if not len(records):
        return None
    texts = batch.texts
    hashes = batch.topic_hashes[records].astype(np.int64)
    queue_ids = batch.queue_ids
    keys = hashes << 32 | queue_ids[records] & 0xFFFFFFFF
    _, firsts, groups = np.unique(keys, return_index=True, return_inverse=True)
    samples = records[firsts]
    # Two topics may have one hash.
    everyone = np.arange(len(batch))
    everyone[records] = samples[groups]
    single = batch.strange_topics[records] | ~texts.same_topics(everyone)[records]
    return QueuedRecords(
        records,
        [
            (
                texts.decode(int(texts.starts[sample]), int(texts.topic_ends[sample])),
                int(queue_ids[sample]),
            )
            for sample in samples.tolist()
        ],
        groups,
        single,
    )


def units_of(batch: RecordBatch, records: Ints) -> npt.NDArray[Any]:
    """Return units (UNIT_DTYPE) of records by index; tags codes of TIMED_TOPICS are wrong."""
    columns = batch.columns
    units = np.empty(len(records), UNIT_DTYPE)
    units["physical_offset"] = columns.starts[records] + batch.base
    units["size"] = (columns.ends - columns.starts)[records]
    units["tags_code"] = _tags_codes(batch.texts, len(batch))[records]
    return units


def _tags_codes(texts: RecordTexts, count: int) -> Ints:
    codes = np.zeros(count, np.int64)
    owners, starts, ends = texts.values(TAGS)
    hashes, strange = texts.hashes(starts, ends)
    codes[owners] = hashes.view(np.int32)
    for at in np.flatnonzero(strange).tolist():
        codes[owners[at]] = java_hash(texts.decode(int(starts[at]), int(ends[at])))
    return codes
