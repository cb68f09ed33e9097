"""Read a part of a store, in one of Spark's Python workers."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np

from cometmq.errors import ProtocolError, StoreCorruptError
from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from cometmq.protocol.messages.record import (
    MAGIC_BLANK,
    MIN_RECORD_SIZE,
    decode_record,
)
from cometmq.protocol.messages.record_columns import (
    Ints,
    RecordColumns,
    columns_at,
    field,
    read_columns,
)
from cometmq.protocol.messages.record_layout import HEAD, MAGIC_AT
from cometmq.spark.gaps import DAMAGE, Gap, GapLog
from cometmq.spark.rows.record_batches import RecordBatches
from cometmq.spark.stores.plan import LMQ_PREFIX, LogRange, QueueRange
from cometmq.store.reading.files import LogFile, StoreFiles, map_file
from cometmq.store.reading.layout import next_magic
from cometmq.store.reading.records import (
    crc_holds,
    up_to_first,
)
from cometmq.store.reading.units import is_message

# Bytes of the log per batch: enough to make numpy's fixed costs negligible.
BATCH_BYTES: Final = 4 * 1024 * 1024


class StoreReading:
    """Returns the rows of parts of a store as record batches.

    With `topics` None, all records give rows. Bytes that belong to no record raise
    StoreCorruptError, or are written to `gaps` if gaps are allowed.
    """

    def __init__(
        self,
        files: StoreFiles,
        batches: RecordBatches,
        gaps: GapLog,
        *,
        broker: str | None,
        check_crc: bool,
        topics: frozenset[str] | None = None,
    ) -> None:
        self._files = files
        self._batches = batches
        self._gaps = gaps
        self._broker = broker
        self._check_crc = check_crc
        self._is_clean = files.is_clean
        self._topics = None if topics is None else {topic.encode() for topic in topics}

    # By commit log

    def log_range(self, part: LogRange) -> Iterator[Any]:
        file = part.file
        mapping = map_file(file.path)
        view = memoryview(mapping)
        offset = part.start
        while offset < part.end:
            start = offset - file.base
            limit = min(start + BATCH_BYTES, part.end - file.base)
            columns = self._good(view, read_columns(view, start, limit, file.base))
            left = part.end - offset
            size, magic = HEAD.unpack_from(view, start) if left >= HEAD.size else (0, 0)
            if not len(columns) and limit - start < size <= left:
                # A record may be larger than a batch.
                columns = self._good(view, read_columns(view, start, start + size, file.base))
            if len(columns):
                offset = file.base + int(columns.ends[-1])
                rows = self._chosen(view, columns)
                if len(rows):
                    yield self._batches.batch(*cut(view, rows))
                continue
            rest = file.end - offset
            if rest < MIN_RECORD_SIZE or (magic == MAGIC_BLANK and size == rest):
                return
            following = self._after_damage(mapping, part, offset, unwritten=not (size or magic))
            if following is None:
                return
            offset = following

    def _good(self, view: memoryview, columns: RecordColumns) -> RecordColumns:
        """Return the records before the first one that is invalid."""
        good = columns.fit
        if self._check_crc:
            good = good & crc_holds(view, columns)
        return up_to_first(columns, good)

    def _chosen(self, view: memoryview, columns: RecordColumns) -> RecordColumns:
        """Return the records that a consume queue of one of the topics would list."""
        if self._topics is None:
            return columns
        kinds = columns.sys_flags & TRANSACTION_MASK
        wanted = (kinds == TRANSACTION_NOT) | (kinds == TRANSACTION_COMMIT)
        places = zip(columns.topic_starts.tolist(), columns.topic_ends.tolist(), strict=True)
        wanted &= np.array([bytes(view[start:end]) in self._topics for start, end in places])
        return columns.select(wanted)

    def _is_record(self, mapping: mmap.mmap, file: LogFile, offset: int, size: int) -> bool:
        if not MIN_RECORD_SIZE <= size <= file.end - offset:
            return False
        start = offset - file.base
        try:
            record = decode_record(mapping[start : start + size], check_crc=self._check_crc)
        except ProtocolError:
            return False
        return record.physical_offset == offset

    def _after_damage(
        self, mapping: mmap.mmap, part: LogRange, offset: int, *, unwritten: bool
    ) -> int | None:
        """Return where to go on behind bytes that are no record; None at the end of the log.

        Raise StoreCorruptError if gaps are not allowed.
        """
        file = part.file
        is_tail = part.is_last_file and part.end == file.end
        if unwritten and is_tail and self._is_clean:
            return None  # without reading the rest, which may be most of a gigabyte
        following = self._next_record(mapping, file, offset + 1, part.end)
        if following is None and is_tail and not self._is_clean:
            return None
        end = part.end if following is None else following
        self._leave_out(Gap(None, self._broker, None, offset, end, DAMAGE), file.path, offset)
        return following

    def _next_record(self, mapping: mmap.mmap, file: LogFile, offset: int, end: int) -> int | None:
        at = offset - file.base + MAGIC_AT
        # A record begins below `end`, but its magic may lie beyond.
        limit = end - file.base + HEAD.size - 1
        while (at := next_magic(mapping, at, limit)) >= 0:
            offset = file.base + at - MAGIC_AT
            (size, _) = HEAD.unpack_from(mapping, offset - file.base)
            if self._is_record(mapping, file, offset, size):
                return offset
            at += 1
        return None

    # By consume queue

    def queue_range(self, part: QueueRange) -> Iterator[Any]:
        units = part.queue.units(part.start, part.end)
        wanted = is_message(units)
        queue_offsets = np.flatnonzero(wanted) + part.start
        places, sizes = (
            units[name][wanted].astype(np.int64) for name in ("physical_offset", "size")
        )
        self._report_missing(part, queue_offsets)
        files = self._files.log_files()
        bases = np.array([file.base for file in files], np.int64)
        # Retention may have shortened the log: places before its start count for its first file.
        which = np.maximum(np.searchsorted(bases, places, "right") - 1, 0)
        mapped: tuple[int, memoryview] | None = None
        for start, end in _runs(which, sizes):
            index = int(which[start])
            if mapped is None or mapped[0] != index:
                mapped = (index, memoryview(map_file(files[index].path)))
            rows = slice(start, end)
            yield from self._queue_rows(
                part,
                files[index],
                mapped[1],
                places[rows],
                sizes[rows],
                queue_offsets[rows],
            )

    def _queue_rows(
        self,
        part: QueueRange,
        file: LogFile,
        view: memoryview,
        places: Ints,
        sizes: Ints,
        queue_offsets: Ints,
    ) -> Iterator[Any]:
        """Yield rows of records that lie in one file; a place without a record splits them."""
        starts, ends = places - file.base, places - file.base + sizes
        done = 0
        while done < len(starts):
            columns = columns_at(view, starts[done:], ends[done:], file.base)
            columns = self._good(view, columns)
            own = field(view, "queue_offset", columns.starts)
            count = len(columns)
            good = columns.ends <= file.size
            if not part.queue.topic.startswith(LMQ_PREFIX):
                good &= own == queue_offsets[done : done + count]
            if not good.all():
                count = int(np.argmin(good))
                columns = columns.select(slice(count))
            if count:
                yield self._batches.batch(*cut(view, columns))
            done += count
            if done < len(starts):
                at = int(queue_offsets[done])
                queue = part.queue
                gap = Gap(queue.topic, self._broker, queue.queue_id, at, at + 1, DAMAGE)
                self._leave_out(gap, file.path, int(places[done]))
                done += 1

    def _report_missing(self, part: QueueRange, queue_offsets: Ints) -> None:
        """Report the units between messages that stand for no message."""
        bounds = np.concatenate(([part.start - 1], queue_offsets, [part.end]))
        for at in np.flatnonzero(np.diff(bounds) > 1).tolist():
            start, end = int(bounds[at]) + 1, int(bounds[at + 1])
            queue = part.queue
            gap = Gap(queue.topic, self._broker, queue.queue_id, start, end, DAMAGE)
            self._leave_out(gap, queue.paths[0], start * 20)

    def _leave_out(self, gap: Gap, path: str, offset: int) -> None:
        leave_out(self._gaps, gap, path, offset)


def leave_out(gaps: GapLog, gap: Gap, path: str, offset: int) -> None:
    """Note that a record is missing at this place. Raise StoreCorruptError if gaps are not
    allowed.
    """
    if not gaps.allowed:
        raise StoreCorruptError(
            f"{path}: no record is at offset {offset} where one belongs; {gap} would be left "
            "out. `cometmq store check` says more; failOnDataLoss=false with gapLog=<directory> "
            "reads on behind it and keeps a list"
        )
    gaps.write(gap)


def _runs(which: Ints, sizes: Ints) -> Iterator[tuple[int, int]]:
    """Yield ranges that lie in one file and have about BATCH_BYTES each."""
    batch = np.cumsum(sizes) // BATCH_BYTES
    changes = np.flatnonzero((np.diff(which) != 0) | (np.diff(batch) != 0)) + 1
    bounds = [0, *changes.tolist(), len(which)]
    yield from ((start, end) for start, end in pairwise(bounds) if start < end)


def cut(view: memoryview, columns: RecordColumns) -> tuple[memoryview, RecordColumns]:
    """Cut out the part of the file that holds the records, as a file may be larger than Arrow can
    address.
    """
    low = int(columns.starts.min())
    window = view[low : int(columns.ends.max())]
    if not low:
        return window, columns
    return window, RecordColumns(
        columns.starts - low,
        columns.ends - low,
        columns.sys_flags,
        columns.store_timestamps,
        columns.body_starts - low,
        columns.body_ends - low,
        columns.topic_starts - low,
        columns.topic_ends - low,
        columns.fit,
    )
