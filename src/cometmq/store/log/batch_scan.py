"""Read the commit log a few MiB at a time, with every check that `scan` makes of a record.

A recovery looks at each record. Looking at them one by one takes ten times as long as the checksums
of their bodies. So numpy looks at all records of a window at once. It only says which records are
beyond doubt; `check_record` decides on all others, and says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from cometmq.protocol.messages.record_columns import Bools, Ints, RecordColumns, field, read_columns
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.log.scan import BLANK, ScannedRecord, check_record, is_torn
from cometmq.store.reading.record_texts import Hashes, RecordTexts
from cometmq.store.reading.records import crc_holds, up_to_first

# Large enough to make numpy's fixed costs small, small enough for the processor's cache.
_WINDOW_BYTES: Final = 4 * 1024 * 1024
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Holds good records of one file, at least one, without gaps. `view` is that of the file,
    `base` its offset. `topic_hashes` says nothing of `strange_topics` (see RecordTexts.hashes).
    """

    view: memoryview
    base: int
    columns: RecordColumns
    texts: RecordTexts
    topic_hashes: Hashes
    strange_topics: Bools

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def end(self) -> int:
        """Offset in the log behind the last record."""
        return self.base + int(self.columns.ends[-1])

    @property
    def offsets(self) -> Ints:
        return self.columns.starts + self.base

    @property
    def queue_ids(self) -> Ints:
        return field(self.view, "queue_id", self.columns.starts)

    @property
    def queue_offsets(self) -> Ints:
        return field(self.view, "queue_offset", self.columns.starts)

    def record(self, index: int) -> ScannedRecord:
        start = int(self.columns.starts[index])
        record = check_record(self.view, start, self.base + start, check_crc=False)
        assert isinstance(record, ScannedRecord)
        return record


class BatchScan:
    """Finds the same records as LogScan, with the same `end` and `reason`, in batches.

    While a batch is handled, `end` already lies behind it. `log_end` must be the end of a record
    or of a file; the scan does not look at bytes from there on.
    """

    def __init__(
        self,
        files: MappedFileQueue,
        start: int,
        *,
        check_crc: bool,
        flushed_until: int,
        window_bytes: int = _WINDOW_BYTES,
        log_end: int = _INT64_MAX,
    ) -> None:
        self._files = files
        self._log_end = log_end
        self._check_crc = check_crc
        self._flushed_until = flushed_until
        self._window_bytes = window_bytes
        self.end = start
        self.reason = ""

    def __iter__(self) -> Iterator[RecordBatch]:
        while (file := self._files.find(self.end)) is not None:
            view = file.view
            base = file.base
            while True:
                start = self.end - base
                if self.end >= self._log_end:
                    return
                limit = min(start + self._window_bytes, len(view), self._log_end - base)
                if self._log_end == _INT64_MAX:
                    file.populate(start, limit)
                batch = self._batch(view, start, limit, base)
                if batch is None:
                    found = check_record(view, start, self.end, check_crc=self._check_crc)
                    if not isinstance(found, ScannedRecord):
                        break
                    if self._is_torn(view, start, found):
                        self.reason = "zeros where the properties should be"
                        return
                    # The record is larger than a window.
                    batch = self._batch(view, start, start + found.size, base)
                    assert batch is not None
                self.end = batch.end
                yield batch
            if found is not BLANK:
                self.reason = found.reason
                return
            self.end = file.end

    def _batch(self, view: memoryview, start: int, limit: int, base: int) -> RecordBatch | None:
        """Return good records from `start` on; None if the first is bad or goes beyond `limit`."""
        columns = read_columns(view, start, limit, base)
        columns = up_to_first(columns, columns.fit & (columns.topic_ends > columns.topic_starts))
        if self._check_crc:
            columns = up_to_first(columns, crc_holds(view, columns))
        while len(columns):
            texts = RecordTexts(view, columns)
            hashes, strange = texts.hashes(texts.starts, texts.topic_ends)
            bad = self._first_bad(view, base, columns, texts, strange)
            if bad is None:
                return RecordBatch(view, base, columns, texts, hashes, strange)
            columns = columns.select(slice(bad))
        return None

    def _first_bad(
        self,
        view: memoryview,
        base: int,
        columns: RecordColumns,
        texts: RecordTexts,
        strange_topics: Bools,
    ) -> int | None:
        """Return the index of the first record that is torn or has no text as topic, else None."""
        doubtful = np.union1d(texts.with_zeros(), np.flatnonzero(strange_topics))
        for index in doubtful.tolist():
            start = int(columns.starts[index])
            found = check_record(view, start, base + start, check_crc=False)
            if not isinstance(found, ScannedRecord) or self._is_torn(view, start, found):
                return int(index)
        return None

    def _is_torn(self, view: memoryview, position: int, record: ScannedRecord) -> bool:
        return record.store_timestamp >= self._flushed_until and is_torn(view, position, record)
