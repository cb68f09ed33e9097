"""First pass of a rebuild: extract the rows for queues and index from one file of the log.

queues.arrow  rows (topic, queue_id, first, rows): `rows` are ROW after ROW of one queue, in the order
              of the log, `first` the offset in the log of the first of them
keys.bin      KEY after KEY, in the order in which they enter the index
part.json     a `Part`
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.pipelines.rebuild.work import Work, put_in_place
from cometmq.protocol.messages.record_columns import Ints
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.store.index.index_keys import keys_of
from cometmq.store.log.batch_scan import BatchScan, RecordBatch
from cometmq.store.log.scan import find_record_in
from cometmq.store.queues.batch_dispatch import TIMED_TOPICS, queued_records, units_of
from cometmq.store.queues.dispatch import tags_code_of
from cometmq.store.reading.units import UNIT_DTYPE

Rows = npt.NDArray[Any]
QueueKey = tuple[str, int]

ROW: Final = np.dtype([("queue_offset", "<i8"), ("store_timestamp", "<i8"), ("unit", UNIT_DTYPE)])
KEY: Final = np.dtype([("hash", "<i4"), ("offset", "<i8"), ("timestamp", "<i8")])
SCHEMA: Final = pa.schema(
    [("topic", pa.string()), ("queue_id", pa.int32()), ("first", pa.int64()), ("rows", pa.binary())]
)
# Rows of all queues together, 36 bytes each; when so many wait, they are written.
_MOST_ROWS: Final = 250_000


@dataclass(frozen=True)
class Part:
    """Holds the result of the scan of a file of the log.

    end: of its last record, or of the file if a blank record declares the rest unused.
    reason: why the scan ended there, "" for nothing.
    follows: whether a good record comes after that.
    """

    base: int
    end: int
    reason: str
    follows: bool
    record_count: int
    queue_count: int
    key_count: int
    seconds: float

    @classmethod
    def load(cls, directory: Path) -> Part:
        return cls(**json.loads((directory / "part.json").read_text()))


def scan_part(work: Work, number: int) -> None:
    """Make the part of a file of the log, unless it exists."""
    place = work.part(number)
    if place.is_dir():
        return
    with work.making() as made:
        part = _Scan(work, number, made).run()
        (made / "part.json").write_text(json.dumps(asdict(part)))
        put_in_place(made, place)


def read_part(work: Work, number: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of queues.arrow."""
    with pa.OSFile(str(work.part(number) / "queues.arrow")) as file:
        yield from pa.ipc.open_stream(file)


class _Scan:
    def __init__(self, work: Work, number: int, directory: Path) -> None:
        self._work = work
        self._base = work.bases[number]
        self._directory = directory
        self._waiting: dict[QueueKey, list[Rows]] = {}
        self._waiting_count = 0
        self._queues: set[QueueKey] = set()
        self._key_count = 0

    def run(self) -> Part:
        started = SYSTEM_CLOCK.monotonic()
        log = self._work.log(self._base)
        (file,) = log.files
        scan = BatchScan(log, self._base, check_crc=True, flushed_until=self._work.flushed_until)
        count = 0
        with (
            pa.OSFile(str(self._directory / "queues.arrow"), "wb") as queues_file,
            pa.ipc.new_stream(queues_file, SCHEMA) as queues,
            (self._directory / "keys.bin").open("wb") as keys,
        ):
            for batch in scan:
                count += len(batch)
                self._take_rows(batch)
                if self._waiting_count >= _MOST_ROWS:
                    self._write_rows(queues)
                self._write_keys(batch, keys)
            self._write_rows(queues)
        follows = scan.end < file.end and find_record_in(file, scan.end - file.base) is not None
        return Part(
            self._base,
            scan.end,
            scan.reason,
            follows,
            count,
            len(self._queues),
            self._key_count,
            SYSTEM_CLOCK.monotonic() - started,
        )

    def _take_rows(self, batch: RecordBatch) -> None:
        rows, keys, groups = rows_of(batch, self._work.config.delay_levels_ms)
        order = np.argsort(groups, kind="stable")
        rows = rows[order]
        bounds = np.searchsorted(groups[order], np.arange(len(keys) + 1))
        for key, start, end in zip(keys, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            of_queue = rows[start:end]
            deleted_below = self._work.deleted.get(key[0], 0)
            if deleted_below:
                of_queue = of_queue[of_queue["unit"]["physical_offset"] >= deleted_below]
            if len(of_queue):
                self._waiting.setdefault(key, []).append(of_queue)
                self._waiting_count += len(of_queue)

    def _write_rows(self, queues: pa.RecordBatchStreamWriter) -> None:
        self._queues |= self._waiting.keys()
        waiting = self._waiting
        columns = [
            [topic for topic, _ in waiting],
            [queue_id for _, queue_id in waiting],
            [int(rows[0]["unit"]["physical_offset"][0]) for rows in waiting.values()],
            # Joining arrays with numpy would change their byte order.
            [b"".join(each.tobytes() for each in rows) for rows in waiting.values()],
        ]
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)
        ]
        queues.write_batch(pa.record_batch(arrays, schema=SCHEMA))
        self._waiting = {}
        self._waiting_count = 0

    def _write_keys(self, batch: RecordBatch, file: IO[bytes]) -> None:
        if not self._work.config.message_index_enable:
            return
        found = keys_of(batch.view, batch.columns, batch.base)
        keys = np.empty(len(found.hashes), KEY)
        keys["hash"], keys["offset"], keys["timestamp"] = found
        file.write(keys.tobytes())
        self._key_count += len(keys)


def rows_of(
    batch: RecordBatch, delay_levels_ms: tuple[int, ...]
) -> tuple[Rows, list[QueueKey], Ints]:
    """Return the ROWs of a batch in the order of the log, their queues, and the number of the queue
    of each row.
    """
    queued = queued_records(batch)
    if queued is None:
        return np.empty(0, ROW), [], np.zeros(0, np.int64)
    rows = np.empty(len(queued.records), ROW)
    rows["queue_offset"] = batch.queue_offsets[queued.records]
    rows["store_timestamp"] = batch.columns.store_timestamps[queued.records]
    rows["unit"] = units_of(batch, queued.records)
    numbers = {key: number for number, key in enumerate(queued.keys)}
    # Equal keys can occur twice only for topics that share a hash.
    groups = np.array([numbers[key] for key in queued.keys], np.int64)[queued.groups]
    timed = [number for key, number in numbers.items() if key[0] in TIMED_TOPICS]
    for at in np.flatnonzero(queued.single | np.isin(groups, timed)).tolist():
        record = batch.record(int(queued.records[at]))
        groups[at] = numbers.setdefault((record.topic, record.queue_id), len(numbers))
        rows["unit"]["tags_code"][at] = tags_code_of(record, delay_levels_ms)
    return rows, list(numbers), groups
