"""Second pass of a rebuild: make the files of one consume queue from the rows that the parts have
of it.

The store's own `ConsumeQueue` makes the files. The store's own `Dispatcher` decides the exceptions:
messages that are missing or occur twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cometmq.pipelines.rebuild.scan import ROW, QueueKey, Rows
from cometmq.pipelines.rebuild.work import EXTENSIONS, QUEUES, Work, put_in_place
from cometmq.store.files.mapped_file_queue import MappedFileQueue
from cometmq.store.log.scan import ScannedRecord, read_record
from cometmq.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue
from cometmq.store.queues.dispatch import Dispatcher
from cometmq.store.reading.units import UNIT_DTYPE


def build_queues(
    work: Work, chunks: Iterable[tuple[tuple[str, int, int], bytes]]
) -> Iterator[QueueKey]:
    """Build the queues whose rows come in `chunks`, and yield the key of each.

    A chunk has topic, queue id, its offset in the log, and rows; chunks come sorted by the first
    three.
    """
    log = work.log()
    for (topic, queue_id), of_queue in groupby(chunks, key=lambda chunk: chunk[0][:2]):
        with work.making() as root:
            builder = QueueBuilder(work, root, (topic, queue_id), log)
            for _, rows in of_queue:
                builder.add(np.frombuffer(rows, ROW))
            builder.finish()
        log.release()
        yield topic, queue_id


class QueueBuilder:
    """Builds one queue below `root`, and moves it into its place in the target."""

    def __init__(self, work: Work, root: Path, key: QueueKey, log: MappedFileQueue) -> None:
        self._work = work
        self._root = root
        self._queue: ConsumeQueue = work.queues(root).get(*key)
        self._log = log
        self._dispatcher = Dispatcher(
            lambda _topic, _queue_id: self._queue,
            work.config.delay_levels_ms,
            fill_gaps=True,
            log_min_offset=lambda: work.min_offset,
            deleted=work.deleted,
        )

    def add(self, rows: Rows) -> None:
        """Take the next rows, in the order of the log."""
        begins = np.flatnonzero(rows["queue_offset"] == 0)
        if self._work.is_replica and len(begins):
            # The master has deleted the messages before it; a slave does the same.
            rows = rows[begins[-1] :]
            self._queue.release()
            # Created again, without the present files.
            self._queue = self._work.queues(self._root).get(self._queue.topic, self._queue.queue_id)
        offsets = rows["queue_offset"]
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        bounds = [0, *breaks.tolist(), len(rows)]
        for start, end in pairwise(bounds):
            at = start
            while at < end:
                ahead = int(offsets[at]) - self._queue.next_offset
                if ahead < 0:
                    # The queue has units for these already.
                    at = min(end, at - ahead)
                elif ahead > 0:
                    self._dispatcher.dispatch(self._record(rows[at]))
                    at += 1
                else:
                    self._put(rows[at:end])
                    at = end

    def _record(self, row: Any) -> ScannedRecord:
        offset = int(row["unit"]["physical_offset"])
        record = read_record(self._log, offset, check_crc=False)
        assert record is not None
        return record

    def _put(self, rows: Rows) -> None:
        if not self._queue.extends:
            self._queue.put_units(memoryview(rows["unit"].tobytes()))
            return
        for (offset, size, tags_code), timestamp in zip(
            rows["unit"].tolist(), rows["store_timestamp"].tolist(), strict=True
        ):
            # The broker computes bit maps from the subscriptions that it knows; a rebuild has none.
            self._queue.put_message(offset, size, tags_code, timestamp, b"")

    def carry_over(self, source: Path, extension: Path) -> None:
        """Take over the files of a queue as they are, instead of rows."""
        paths = sorted(source.iterdir())
        self._queue.next_offset = int(paths[0].name) // UNIT_SIZE
        for path in paths:
            units = np.fromfile(path, UNIT_DTYPE)
            written = units[: int(np.count_nonzero(units["size"] > 0))]
            self._queue.put_units(memoryview(written.tobytes()))
        if extension.is_dir():
            made = self._made(EXTENSIONS)
            made.parent.mkdir(parents=True)
            shutil.copytree(extension, made)

    def finish(self) -> None:
        self._queue.flush(0)
        self._queue.release()
        # The queue is moved last: where it exists, its extension is complete.
        for name in (EXTENSIONS, QUEUES):
            made = self._made(name)
            if made.is_dir():
                put_in_place(made, self._work.target / made.relative_to(self._root))

    def _made(self, name: str) -> Path:
        return self._root / name / self._queue.topic / str(self._queue.queue_id)


def carry_over(work: Work, key: QueueKey) -> None:
    """Take over a queue of which the log has no message, because its files say which offset comes
    next.
    """
    topic, queue_id = key
    if (work.target / QUEUES / topic / str(queue_id)).is_dir():
        return
    with work.making() as root:
        builder = QueueBuilder(work, root, key, work.log())
        builder.carry_over(
            work.store_directory(QUEUES) / topic / str(queue_id),
            work.store_directory(EXTENSIONS) / topic / str(queue_id),
        )
        builder.finish()


def queue_directories(root: Path) -> list[tuple[QueueKey, Path]]:
    """Return the queues below a directory that have files."""
    return [
        ((topic.name, int(queue.name)), queue)
        for topic in sorted(root.iterdir() if root.is_dir() else ())
        if topic.is_dir()
        for queue in sorted(topic.iterdir())
        if queue.name.isdecimal() and any(queue.iterdir())
    ]
