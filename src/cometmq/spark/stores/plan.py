"""Split the reading of a store among Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from pyspark.sql.datasource import InputPartition

from cometmq.errors import StoreCorruptError
from cometmq.protocol.messages.record import MAGIC_V1, MAGIC_V2
from cometmq.protocol.messages.record_layout import MAGIC_AT, record_struct
from cometmq.spark.ranges.pushdown import Bounds
from cometmq.spark.ranges.splitting import Several, grouped, split
from cometmq.store.reading.files import LogFile, QueueFiles, map_file

_HEAD: Final = record_struct("magic", "physical_offset")
_HEAD_SIZE: Final = MAGIC_AT + _HEAD.size
# Queues of these topics hold messages of other topics, which keep their own queue offsets.
LMQ_PREFIX: Final = "%LMQ%"


@dataclass
class QueueRange(InputPartition):
    """Queue offsets from `start` to below `end`."""

    queue: QueueFiles
    start: int
    end: int


@dataclass
class LogRange(InputPartition):
    """Log offsets from `start` to below `end`. Both are offsets of records, or the bounds of the
    file.
    """

    file: LogFile
    start: int
    end: int
    is_last_file: bool


# A task keeps the units of its range in memory, some 60 bytes for each with what is computed of them.
_MAX_UNITS: Final = 1_000_000
# The name of one file can say that a queue has more messages than any disk.
_MAX_MESSAGES: Final = 100_000 * _MAX_UNITS


@dataclass
class Nothing(InputPartition):
    """Stands for nothing to read. (Without any partition, Spark would read one without a value.)"""

    def __init__(self) -> None:
        super().__init__(None)


def queue_ranges(
    queues: Iterable[QueueFiles], log_base: int, bounds: Bounds, min_partitions: int
) -> list[QueueRange | Several]:
    """Return one range for each queue that has messages in the log, or several for long queues;
    those of many queues together where each has little.

    Raise StoreCorruptError for a queue whose files are named as if it had more than any disk holds.
    """
    ranges = []
    total = 0
    for queue in queues:
        low, high = queue.bounds(log_base)
        if not queue.topic.startswith(LMQ_PREFIX):
            if not bounds.takes(queue.topic, None, queue.queue_id):
                continue
            low, high = max(low, bounds.min_offset), min(high, bounds.end_offset)
        if low < high:
            ranges.append((queue, low, high))
            total += high - low
            if total > _MAX_MESSAGES:
                raise StoreCorruptError(
                    f"the files of the queue {queue.topic}:{queue.queue_id} are named as if it had "
                    f"{high - low} messages; `cometmq store check` says more"
                )
    parts = [
        QueueRange(queue, start, end)
        for queue, low, high in ranges
        for start, end in split(low, high, total, min_partitions, _MAX_UNITS)
    ]
    return grouped(parts, min_partitions)


def log_ranges(
    files: list[LogFile], queues: Iterable[QueueFiles], min_partitions: int
) -> list[LogRange]:
    """Return one range for each file of the log, or several if more are wanted.

    Inside a file, only the consume queues say where records begin: the bytes of a body could look
    like a record.
    """
    per_file = -(-min_partitions // len(files)) if files else 0
    starts = _record_starts(queues) if per_file > 1 else np.zeros(0, np.int64)
    ranges = []
    for at, file in enumerate(files):
        bounds = [file.base, *_boundaries(file, starts, per_file), file.end]
        for low, end in pairwise(bounds):
            ranges.append(LogRange(file, low, end, at == len(files) - 1))
    return ranges


def _record_starts(queues: Iterable[QueueFiles]) -> Any:
    parts = [queue.some_offsets() for queue in queues]
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def _boundaries(file: LogFile, starts: Any, count: int) -> list[int]:
    """Return where to split a file: at records that begin near even parts of what is written of
    it.
    """
    inside = starts[(starts > file.base) & (starts < file.end)]
    if count < 2 or not len(inside):
        return []
    mapping = map_file(file.path)
    try:
        wanted = np.linspace(file.base, int(inside[-1]), count + 1)[1:-1]
        places = np.unique(inside[np.searchsorted(inside, wanted)]).tolist()
        return [place for place in places if _is_record(mapping, file, place)]
    finally:
        mapping.close()


def _is_record(mapping: Any, file: LogFile, offset: int) -> bool:
    if offset + _HEAD_SIZE > file.end:
        return False
    magic, own_offset = _HEAD.unpack_from(mapping, offset - file.base + MAGIC_AT)
    return magic in (MAGIC_V1, MAGIC_V2) and own_offset == offset
