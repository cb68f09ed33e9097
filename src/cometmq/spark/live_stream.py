"""The source `rocketmq` as a stream.

An offset of the stream is {"topic": {"broker": {"0": 17}}}: for each queue the offset of the next
message. A queue that appears during the query enters it with the first offset that its broker has;
its messages come with the batch after that one. So where every queue begins stands in the query's
checkpoint, and a batch that is run again reads what it read before.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import structlog
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cometmq.client.range_reader import BlockingRangeReader
from cometmq.errors import CometMQError, IllegalArgumentError, RemotingError, RouteNotFoundError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.record_columns import read_columns
from cometmq.spark.live_options import LiveOptions, OffsetTable, offsets_of, table_of
from cometmq.spark.live_plan import (
    LiveRange,
    Range,
    check_selection,
    find_queues,
    first_offsets,
    gone,
    live_ranges,
)
from cometmq.spark.live_reading import LiveReading, leave_out

log = structlog.get_logger(__name__)

# Of a queue, to estimate how large its messages are.
_SAMPLE_MESSAGES: Final = 16
_QUEUES_FOR_S: Final = 5.0

Offsets = dict[MessageQueue, int]


class LiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The planner of a query has one for as long as that runs; `read` is called in workers."""

    def __init__(self, options: LiveOptions, names: list[str]) -> None:
        self._options = options
        self._names = names
        self._client: BlockingRangeReader | None = None
        # With Trigger.AvailableNow: the end of the queues when the query was started.
        self._target: Offsets | None = None
        # The topics of which a broker was asked whether it can select as it is to.
        self._checked: set[str] = set()
        self._joined = False
        # Asked for anew after some seconds: an idle query plans a hundred times in one.
        self._queues: list[MessageQueue] = []
        self._queues_until_s = 0.0
        self._latest: Offsets = {}

    def initialOffset(self) -> OffsetTable:  # noqa: N802 - Spark's names, here and below
        bounds = self._bounds()
        starts = first_offsets(self._reader(), self._options, bounds)
        for queue, start in starts.items():
            self._leave_out_what_is_gone(queue, start, bounds[queue], starts)
        return table_of(starts)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {queue: high for queue, (_, high) in self._bounds().items()}

    def reportLatestOffset(self) -> OffsetTable | None:  # noqa: N802
        """As the last batch was planned."""
        return table_of(self._latest) if self._latest else None

    def latestOffset(self, start: OffsetTable, limit: Any) -> OffsetTable:  # noqa: N802
        starts = offsets_of(start)
        bounds = self._bounds()
        self._latest = {queue: high for queue, (_, high) in bounds.items()}
        self._join_group(starts)
        ends = dict(starts)
        lags: Offsets = {}
        for queue, (low, high) in bounds.items():
            if queue not in starts:
                if self._target is None or queue in self._target:
                    ends[queue] = low
                continue
            if starts[queue] > high:
                # Begun anew, with a topic that was deleted and made again.
                self._leave_out_what_is_gone(queue, starts[queue], bounds[queue], ends)
                continue
            if self._target is not None:
                high = min(high, self._target.get(queue, 0))  # noqa: PLW2901
            lags[queue] = max(0, high - starts[queue])
        for queue, count in self._admitted(lags, starts, limit).items():
            ends[queue] = starts[queue] + count
        return table_of(ends)

    def partitions(self, start: OffsetTable, end: OffsetTable) -> list[InputPartition]:
        starts, ends = offsets_of(start), offsets_of(end)
        ranges = {queue: (starts.get(queue, at), at) for queue, at in ends.items()}
        return list(live_ranges(ranges, self._options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, LiveRange), "as partitions gave it"
        return LiveReading(self._options, self._names).rows(partition)

    def commit(self, end: OffsetTable) -> None:
        """What Spark is done with goes to the consumer group, for those who look at its lag."""
        group = self._options.commit_group
        if group is None:
            return
        try:
            self._reader().commit(group, offsets_of(end))
        except CometMQError as error:
            # The query's own offsets are in its checkpoint; the next batch brings newer ones.
            log.warning("a batch is not committed to its group", group=group, reason=str(error))

    def _join_group(self, starts: Offsets) -> None:
        """At its start the query tells the group where it stands. What is refused then would be with
        every batch: no such group, no right to it.
        """
        group = self._options.commit_group
        if group is not None and not self._joined:
            self._reader().commit(group, starts)
            self._joined = True

    def stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # Inside

    def _reader(self) -> BlockingRangeReader:
        if self._client is None:
            self._options.gaps.check()
            client = self._options.new_reader()
            client.start()
            self._client = client
        return self._client

    def _bounds(self) -> dict[MessageQueue, Range]:
        """What brokers have of the queues that there are. A running query outlives name servers, and
        topics that have no route while their broker restarts.
        """
        if time.monotonic() > self._queues_until_s:
            try:
                self._find_queues()
            except (RouteNotFoundError, RemotingError, IllegalArgumentError) as error:
                if not self._queues:
                    raise
                log.warning("the queues are not looked up", reason=str(error))
        return self._reader().offsets(self._queues)

    def _find_queues(self) -> None:
        reader = self._reader()
        queues = find_queues(reader, self._options)
        new = [queue for queue in queues if queue.topic not in self._checked]
        check_selection(reader, self._options, new)
        self._checked.update(queue.topic for queue in new)
        self._queues = queues
        self._queues_until_s = time.monotonic() + _QUEUES_FOR_S

    def _leave_out_what_is_gone(
        self, queue: MessageQueue, start: int, bound: Range, offsets: Offsets
    ) -> None:
        """Go on at what the broker has. Raises DataLossError where no gaps are allowed."""
        gap = gone(queue, start, bound)
        if gap is not None:
            leave_out(self._options, gap)
            offsets[queue] = bound[0]

    def _admitted(self, lags: Offsets, starts: Offsets, limit: Any) -> Offsets:
        """How many messages of each queue the next batch takes."""
        if isinstance(limit, ReadAllAvailable):
            return lags
        most = [] if self._options.max_messages is None else [self._options.max_messages]
        if isinstance(limit, ReadMaxRows):
            most.append(limit.max_rows)
        counts = shared(lags, min(most)) if most else lags
        bytes_ = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if bytes_ is None or not any(counts.values()):
            return counts
        sizes = {
            queue: self._size_of(queue, starts[queue], min(count, _SAMPLE_MESSAGES))
            for queue, count in counts.items()
            if count
        }
        total = sum(counts[queue] * size for queue, size in sizes.items())
        if total <= bytes_:
            return counts
        wanted = sum(counts.values()) * bytes_ // total
        return shared(counts, max(1, wanted))

    def _size_of(self, queue: MessageQueue, offset: int, count: int) -> int:
        """About how many bytes a message of the queue has; `count` of them are there."""
        for chunk in self._reader().read(queue, offset, offset + count):
            columns = read_columns(chunk.records, 0, len(chunk.records), None)
            if len(columns):
                return max(1, chunk.size_bytes // len(columns))
        return 1


def shared(lags: Offsets, limit: int) -> Offsets:
    """At most `limit` messages, divided among queues by what waits in each."""
    total = sum(lags.values())
    if total <= limit:
        return lags
    counts = {queue: lag * limit // total for queue, lag in lags.items()}
    rest = limit - sum(counts.values())
    # What rounding left over goes to the longest ones.
    for queue in sorted(lags, key=lambda queue: counts[queue] - lags[queue]):
        if not rest:
            break
        counts[queue] += 1
        rest -= 1
    return counts
