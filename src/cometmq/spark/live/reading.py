"""Read a range of a queue from its broker, in one of Spark's Python workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.bulk.range_pulls import Chunk
from cometmq.errors import DataLossError, ProtocolError
from cometmq.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.model.properties import TAGS
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SUB_ALL
from cometmq.protocol.messages.record_columns import Ints, RecordColumns, Window, field, read_runs
from cometmq.spark.gaps import NOT_STORED, Gap
from cometmq.spark.live.options import LiveOptions
from cometmq.spark.live.plan import LiveRange, lost
from cometmq.spark.rows.record_batches import RecordBatches
from cometmq.spark.rows.text_columns import TextColumns
from cometmq.spark.workers import lent_reader, spare_collections

# In the consume queues of these topics, times replace the hash codes of tags, so brokers cannot
# select by tags.
_WITHOUT_TAGS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)


class LiveReading:
    """Returns the rows of ranges as record batches with the columns `names`.

    `tags` are tags that the broker selects in addition to the options, by their hash codes only.
    """

    def __init__(self, options: LiveOptions, names: list[str], tags: str = SUB_ALL) -> None:
        self._options = options
        self._names = names
        self._pushed_tags = tags
        self._exact_tags = None
        if options.tags != SUB_ALL:
            self._exact_tags = pa.array([tag.strip() for tag in options.tags.split("||")])
        self._filtered = tags != SUB_ALL or options.tags != SUB_ALL or options.sql is not None
        self._gaps: list[Gap] = []

    def rows(self, part: LiveRange) -> Iterator[Any]:
        """Yield the rows of a range. Raise DataLossError for messages that are gone, unless gaps
        are allowed.
        """
        options = self._options
        self._gaps = []
        if options.gaps.allowed:
            # This attempt finds again the gaps of an earlier one.
            options.gaps.replace(part.queue, part.start, [])
        batches = RecordBatches(
            self._names,
            broker=part.queue.broker_name,
            # A record's topic has the namespace in front; rows get the name that the user gave.
            topic=part.queue.topic if options.connecting.namespace else None,
            decompress=options.decompress,
        )
        tags = options.tags if options.tags != SUB_ALL else self._pushed_tags
        if part.queue.topic in _WITHOUT_TAGS:
            tags = SUB_ALL
        with (
            lent_reader(options) as reader,
            # Its pulls end before the reader serves another task.
            closing(reader.read(part.queue, part.start, part.end, tags, sql=options.sql)) as chunks,
        ):
            for chunk in chunks:
                window, columns = self._columns(part, chunk)
                if len(columns):
                    yield batches.batch(window, columns)
        spare_collections()

    def _columns(self, part: LiveRange, chunk: Chunk) -> tuple[Window, RecordColumns]:
        window, runs = chunk.located()
        columns = read_runs(window, runs)
        if columns is None:
            raise ProtocolError(
                f"an answer of broker {part.queue.broker_name} for {part.queue} holds what is no "
                f"record, among offsets {chunk.start} to {chunk.end}"
            )
        offsets = field(window, "queue_offset", columns.starts)
        inside = (offsets >= chunk.start) & (offsets < part.end)
        if not inside.all():
            columns, offsets = columns.select(inside), offsets[inside]
        self._report(part, chunk, offsets)
        columns = self._within_times(part.queue, columns)
        if self._exact_tags is not None and len(columns):
            found = TextColumns(window, columns).values(TAGS)
            columns = columns.select(np.asarray(pc.is_in(found, self._exact_tags)))
        return window, columns

    def _within_times(self, queue: MessageQueue, columns: RecordColumns) -> RecordColumns:
        """Drop rows outside the times, since offsets by time are not exact."""
        times = columns.store_timestamps
        inside = np.ones(len(times), bool)
        starts, ends = self._options.start_times, self._options.end_times
        start_ms = None if starts is None else starts.time_of(queue)
        end_ms = None if ends is None else ends.time_of(queue)
        if start_ms is not None:
            inside &= times >= start_ms
        if end_ms is not None:
            inside &= times < end_ms
        return columns if inside.all() else columns.select(inside)

    def _report(self, part: LiveRange, chunk: Chunk, offsets: Ints) -> None:
        gaps = [
            lost(part.queue, missing.start, missing.end, missing.cause.value)
            for missing in chunk.missing
        ]
        count = sum(gap.end - gap.start for gap in gaps)
        if not self._filtered and len(offsets) + count != chunk.end - chunk.start:
            gaps += self._holes(part, chunk, offsets, gaps)
        if gaps:
            check_allowed(self._options, gaps[0])
            self._gaps += gaps
            self._options.gaps.replace(part.queue, part.start, self._gaps)

    def _holes(self, part: LiveRange, chunk: Chunk, offsets: Ints, known: list[Gap]) -> list[Gap]:
        """Return the offsets that the broker has passed over inside an answer."""
        covered = np.zeros(chunk.end - chunk.start, bool)
        covered[offsets - chunk.start] = True
        for gap in known:
            covered[gap.start - chunk.start : gap.end - chunk.start] = True
        edges = np.flatnonzero(np.diff(np.concatenate(([True], covered, [True])).astype(np.int8)))
        bounds = (edges + chunk.start).tolist()
        return [
            lost(part.queue, start, end, NOT_STORED)
            for start, end in zip(bounds[0::2], bounds[1::2], strict=True)
        ]


def leave_out(options: LiveOptions, queue: MessageQueue, gap: Gap) -> None:
    """Note a gap that was found while a read was planned. Raise as `check_allowed`."""
    check_allowed(options, gap)
    options.gaps.replace_planned(queue, gap)


def check_allowed(options: LiveOptions, gap: Gap) -> None:
    """Raise DataLossError if gaps are not allowed."""
    if not options.gaps.allowed:
        raise DataLossError(
            f"{gap} are gone. Start from an offset that the broker still has, or set "
            "failOnDataLoss=false with gapLog=<directory> to read on behind them and keep a list"
        )
