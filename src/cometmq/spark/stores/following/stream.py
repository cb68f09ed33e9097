"""Read the source `rocketmq-store` as a stream.

An offset is a position in the commit log, with marks (see `positions`). The first batch of a query has no
messages, so that the checkpoint holds the query's beginning.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cometmq.errors import IllegalArgumentError, StoreCorruptError
from cometmq.runtime.clock import SYSTEM_CLOCK, BlockingClock
from cometmq.spark.gaps import RETENTION, Gap
from cometmq.spark.gaps import Place as GapPlace
from cometmq.spark.ranges.by_queue import EARLIEST, LATEST
from cometmq.spark.rows.record_batches import RecordBatches
from cometmq.spark.stores.following.log_planner import NO_END, LogPlanner, refused_gap
from cometmq.spark.stores.following.log_walk import Walked, opened, windows
from cometmq.spark.stores.following.positions import Position, marks_of, position_of
from cometmq.spark.stores.following.topics import ChosenTopics
from cometmq.spark.stores.options import StoreOptions
from cometmq.spark.stores.plan import Nothing
from cometmq.spark.stores.reading import cut
from cometmq.spark.workers import spare_collections
from cometmq.store.reading.files import LogFile, StoreFiles
from cometmq.store.reading.records import crc_holds, up_to_first

# A task reads about this many bytes of the log.
_PART_BYTES: Final = 32 * 1024 * 1024


@dataclass
class LogPart(InputPartition):
    """Records of a file from the position `start` to below `end`."""

    file: LogFile
    start: int
    end: int


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches for a query for as long as the query runs; workers call `read`."""

    def __init__(
        self, options: StoreOptions, names: list[str], clock: BlockingClock = SYSTEM_CLOCK
    ) -> None:
        self._options = options
        self._names = names
        self._clock = clock
        self._topics = ChosenTopics(options.topics, options.pattern)
        self._kept_planner: LogPlanner | None = None
        # With Trigger.AvailableNow, the position at which the query stops at the latest.
        self._available_now = False
        self._target: int | None = None
        # The beginning of a query without a checkpoint, until its first batch is planned.
        self._initial: int | None = None
        self._walked: tuple[int, Walked] | None = None
        self._planned = False

    def __getstate__(self) -> dict[str, Any]:
        # Workers do not need the plan of the driver.
        return {**self.__dict__, "_kept_planner": None, "_walked": None}

    def initialOffset(self) -> Position:  # noqa: N802 - Spark's names, here and below
        planner = self._planner()
        start = self._options.start
        if start == LATEST:
            self._initial, marks = planner.last()
            return position_of(self._initial, marks)
        if start == EARLIEST:
            self._initial = planner.first()
        else:
            self._initial = int(start)
            try:
                planner.check_start(self._initial)
            except ValueError as error:
                raise IllegalArgumentError(
                    f"the option startingOffsets is {start}, a position in the commit log of "
                    f"{self._options.path}: {error}; give earliest, latest or the position of a record"
                ) from error
        return position_of(self._initial, [])

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Return the limit in the options. It must not be ReadAllAvailable, which means Trigger.Once."""
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        return ReadMaxBytes(self._options.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._available_now = True

    def reportLatestOffset(self) -> Position | None:  # noqa: N802 - Spark's name
        """Return an estimate of the end of the log when the last batch was planned; None before the first."""
        end = None if self._kept_planner is None else self._kept_planner.written_end
        return None if end is None else {"commitLog": end}

    def latestOffset(self, start: Position, limit: Any) -> Position:  # noqa: N802 - Spark's name
        planner = self._planner()
        at = start["commitLog"]
        if self._available_now and self._target is None:
            self._target = planner.end_of_files()
        initial, self._initial = self._initial, None
        everything = isinstance(limit, ReadAllAvailable)
        if at == initial and not everything:
            # Spark stores only the ends of batches, so the first batch must be empty. Otherwise, if it ran
            # again, it would begin at the record that is the first or last one by then.
            planner.look_at_end()
            return start
        max_bytes, max_rows = self._limits(limit)
        found = planner.plan(
            at,
            marks_of(start),
            max_bytes=max_bytes,
            max_rows=max_rows,
            until=NO_END if self._target is None else self._target,
            waits=self._available_now or everything,
        )
        if found is None:
            return start
        self._walked = None if found.walked is None else (at, found.walked)
        return position_of(found.end, found.marks, found.left_out)

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        self._initial = None
        low, high = start["commitLog"], end["commitLog"]
        if not self._planned:
            # The first batch may have run before, with other parts.
            self._options.gaps.forget({self._place: (low, high)})
            self._planned = True
        if low >= high or end.get("leftOut") == low:
            return [Nothing()]
        kept, self._walked = self._walked, None
        if kept is None or kept[0] != low or kept[1].end != high:
            kept = low, self._planner().walk_again(low, high)
        parts = _parts(kept[1], self._options.min_partitions)
        return list(parts) or [Nothing()]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, LogPart):
            yield from self._rows(partition)
        spare_collections()

    def commit(self, end: Position) -> None:
        """Do nothing: only the checkpoint keeps offsets."""

    def stop(self) -> None:
        self._kept_planner = self._walked = None

    # Inside

    @property
    def _place(self) -> GapPlace:
        """Return the name under which gaps of this log are kept."""
        return (self._options.path, self._options.broker_name)

    def _planner(self) -> LogPlanner:
        if self._kept_planner is None:
            options = self._options
            options.gaps.check()
            self._kept_planner = LogPlanner(
                StoreFiles(options.path, options.commit_log_paths),
                self._topics,
                self._leave_out,
                broker=options.broker_name,
                timeout_ms=options.timeout_ms,
                clock=self._clock,
            )
        return self._kept_planner

    def _leave_out(self, gap: Gap) -> None:
        """Note a gap. Raise DataLossError or StoreCorruptError if gaps are not allowed."""
        if not self._options.gaps.allowed:
            raise refused_gap(self._options.path, gap)
        self._options.gaps.replace_planned(self._place, gap)

    def _limits(self, limit: Any) -> tuple[int | None, int | None]:
        """Return the largest numbers of bytes of the log and of rows in a batch."""
        if isinstance(limit, ReadAllAvailable):
            return None, None
        rows = self._options.max_messages
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows if rows is None else min(rows, limit.max_rows)
        bytes_ = self._options.max_bytes
        return min(bytes_, limit.max_bytes) if isinstance(limit, ReadMaxBytes) else bytes_, rows

    def _rows(self, part: LogPart) -> Iterator[Any]:
        options = self._options
        batches = RecordBatches(
            self._names, broker=options.broker_name, decompress=options.decompress
        )
        try:
            with opened(part.file) as fd:
                at = part.start
                for window, found in windows(fd, part.file, at, part.end):
                    view = memoryview(window)
                    good = found.fit & crc_holds(view, found) if options.check_crc else found.fit
                    columns = up_to_first(found, good)
                    wanted = columns.select(self._topics.among(view, columns))
                    if len(wanted):
                        yield batches.batch(*cut(view, wanted))
                    at += int(columns.ends[-1]) if len(columns) else 0
                    if len(columns) < len(found):
                        break
        except FileNotFoundError:
            gap = Gap(None, options.broker_name, None, part.start, part.end, RETENTION)
            if not options.gaps.allowed:
                raise refused_gap(options.path, gap) from None
            options.gaps.replace(self._place, part.start, [gap])
            return
        if at < part.end:
            raise StoreCorruptError(
                f"{part.file.path}: the record at position {at} of the commit log is gone: the file was "
                "changed after the batch was planned. Start the query again: it then reports what happened "
                "to the log"
            )


def _parts(walked: Walked, min_partitions: int) -> list[LogPart]:
    """Divide a batch at places where records begin."""
    total = sum(places[-1] - places[0] for _, places in walked.runs)
    size = max(1, min(_PART_BYTES, total // min_partitions))
    parts: list[LogPart] = []
    for file, places in walked.runs:
        low, high = places[0], places[-1]
        count = max(1, -(-(high - low) // size))
        wanted = [low + (high - low) * at // count for at in range(1, count)]
        bounds = [low, *(places[bisect_left(places, at)] for at in wanted), high]
        parts += [LogPart(file, start, end) for start, end in pairwise(sorted(set(bounds)))]
    return parts
