"""Read the source `rocketmq` as a stream.

An offset of the stream is {"topic": {"broker": {"0": 17}}}: for each queue, the offset of the next
message. The first batch of a query has no messages. A queue that appears later joins a batch with
the first offset that its broker has, and its messages come with the next batch. So the query's
checkpoint holds the beginning of every queue, and a batch that runs again reads the same messages.
Besides the offsets it holds marks to recognise a topic that was created again: `identity`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from cometmq.bulk.range_reader import BlockingRangeReader, is_unknown_group
from cometmq.errors import CometMQError, IllegalArgumentError, RemoteError
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.protocol.messages.record_columns import read_columns
from cometmq.runtime.clock import SYSTEM_CLOCK, BlockingClock
from cometmq.spark.live.admission import Least, shared, within_bytes
from cometmq.spark.live.identity import begin_again, marks_of, with_marks
from cometmq.spark.live.options import LiveOptions, LiveTable, OffsetTable, offsets_of, table_of
from cometmq.spark.live.plan import LiveRange, Range, first_offsets, gone, live_ranges
from cometmq.spark.live.queues import LiveQueues
from cometmq.spark.live.reading import LiveReading, leave_out
from cometmq.spark.ranges.splitting import parts_of

log = get_logger(__name__)

# How many messages are read at one offset, to estimate the size of messages.
_SAMPLE_MESSAGES: Final = 4

_NO_LIMIT: Final = 2**63 - 1

# The time from a failed commit for a group to the next one: an idle query plans a hundred batches a
# second, and each of them would try.
_COMMIT_AGAIN_S: Final = 2.0

Offsets = dict[MessageQueue, int]


class LiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches for a query for as long as the query runs; workers call `read`."""

    def __init__(
        self, options: LiveOptions, names: list[str], clock: BlockingClock = SYSTEM_CLOCK
    ) -> None:
        self._options = options
        self._names = names
        self._client: BlockingRangeReader | None = None
        # With Trigger.AvailableNow, the target is the ends of the queues when the query was
        # started.
        self._available_now = False
        self._target: Offsets | None = None
        # Where a query without a checkpoint begins, until its first batch is planned.
        self._initial: Offsets | None = None
        self._joined = False
        self._committed: Offsets = {}
        self._clock = clock
        self._commit_again_s = 0.0
        self._refused = ""
        self._planned = False
        self._queues = LiveQueues(options, clock)
        self._latest: Offsets = {}
        self._patience = Least(options.min_messages, options.max_delay_ms, clock)

    def initialOffset(self) -> LiveTable:  # noqa: N802 - Spark's names, here and below
        reader = self._reader()
        bounds = self._queues.bounds(reader, {}, all_of_them=True)
        starts = first_offsets(reader, self._options, bounds)
        for queue, start in starts.items():
            self._leave_out_what_is_gone(queue, start, bounds[queue], starts)
        self._initial = dict(starts)
        return with_marks(table_of(starts), self._queues.identity.set(reader, starts))

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        """Return the limit that the options give, or a limit that admits everything.

        ReadAllAvailable would not do: `latestOffset` takes it for Trigger.Once.
        """
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadMaxRows(_NO_LIMIT)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note that the query is to stop at the present ends of its queues.

        The first batch reads the ends when it is planned: only then are the queues of the
        checkpoint known, whose brokers may be away for a moment.
        """
        self._available_now = True

    def reportLatestOffset(self) -> OffsetTable | None:  # noqa: N802 - Spark's name
        """Return the ends of the queues as known when the last batch was planned."""
        return table_of(self._latest) if self._latest else None

    def latestOffset(self, start: LiveTable, limit: Any) -> LiveTable:  # noqa: N802 - Spark's name
        starts = offsets_of(start)
        identity = self._queues.identity
        identity.marks = marks_of(start)
        bounds = self._queues.bounds(self._reader(), starts, all_of_them=self._available_now)
        if self._available_now and self._target is None:
            self._target = {queue: high for queue, (_, high) in bounds.items()}
            self._queues.fix()
        self._latest = {queue: high for queue, (_, high) in bounds.items()}
        self._join_group({queue: at for queue, at in starts.items() if queue in bounds})
        initial, self._initial = self._initial, None
        if starts == initial and not isinstance(limit, ReadAllAvailable):
            # Spark does not store where a query began, so the first batch must be empty: if it ran
            # again, it would begin at whatever is latest (or earliest) by then.
            return start
        ends = dict(starts)
        lags: Offsets = {}
        for queue, (low, high) in bounds.items():
            if queue not in starts:
                if self._target is None or queue in self._target:
                    ends[queue] = low
                continue
            if queue in identity.made_again:
                begin_again(self._options, queue, starts[queue], identity.made_again[queue])
                ends[queue] = low
                continue
            if starts[queue] > high:
                # The queue starts again: its topic was deleted and created again.
                self._leave_out_what_is_gone(queue, starts[queue], bounds[queue], ends)
                continue
            if self._target is not None:
                high = min(high, self._target.get(queue, 0))  # noqa: PLW2901 - the loop's own bound, narrowed
            lags[queue] = max(0, high - starts[queue])
        if not self._waits(sum(lags.values()), limit):
            for queue, count in self._admitted(lags, starts, limit).items():
                ends[queue] = starts[queue] + count
        if ends == starts:
            # Spark commits a batch when it plans the next one, which an idle query never does.
            self._commit_for_group(starts)
            # A new mark alone would cause a batch without messages.
            return start
        return with_marks(table_of(ends), identity.set(self._reader(), ends))

    def partitions(self, start: LiveTable, end: LiveTable) -> list[InputPartition]:
        self._initial = None
        starts, ends = offsets_of(start), offsets_of(end)
        ranges = {queue: (starts.get(queue, at), at) for queue, at in ends.items()}
        if not self._planned:
            # The first batch may have run before, divided into other ranges.
            self._options.gaps.forget(ranges)
            self._planned = True
        return list(live_ranges(ranges, self._options))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for part in parts_of(partition):
            assert isinstance(part, LiveRange), "as partitions gave it"
            yield from LiveReading(self._options, self._names).rows(part)

    def commit(self, end: LiveTable) -> None:
        """Commit a finished batch for the consumer group, so that its lag shows how far the query
        is.
        """
        self._commit_for_group(offsets_of(end))

    def _commit_for_group(self, ends: Offsets) -> None:
        """Commit what is finished, if it is not committed yet."""
        group = self._options.commit_group
        # Brokers that have just failed to answer are not waited for.
        offsets = {
            queue: at
            for queue, at in ends.items()
            if queue in self._latest and self._committed.get(queue) != at
        }
        if group is None or not offsets or self._clock.monotonic() < self._commit_again_s:
            return
        try:
            self._reader().commit(group, offsets)
        except CometMQError as error:
            # The query's own offsets are in its checkpoint.
            self._commit_again_s = self._clock.monotonic() + _COMMIT_AGAIN_S
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning("a batch is not committed to its group", group=group, reason=str(error))
            return
        self._refused = ""
        self._committed |= offsets

    def _join_group(self, starts: Offsets) -> None:
        """Commit the query's offsets for the group when the query starts.

        If the brokers refuse now (there is no such group, or no right to it), they would refuse
        every batch.
        """
        group = self._options.commit_group
        if group is None or self._joined:
            return
        try:
            self._reader().commit(group, starts)
        except RemoteError as error:
            if not is_unknown_group(error):
                raise
            wire = self._reader().namespace.wrap(group)
            raise IllegalArgumentError(
                f"the option commitGroup names the group {group}, which a broker does not have, and "
                f"committing does not make it. Correct the name, or make the group: cometmq admin "
                f"updateSubGroup -n '{self._options.namesrv}' -c DefaultCluster -g {wire}, with the "
                "name of your cluster (mqadmin has the same command); without commitGroup the query "
                f"keeps its offsets in its checkpoint alone. The broker said: {error}"
            ) from error
        self._committed |= starts
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

    def _leave_out_what_is_gone(
        self, queue: MessageQueue, start: int, bound: Range, offsets: Offsets
    ) -> None:
        """Go on at the first offset that the broker has. Raise DataLossError if gaps are not
        allowed.
        """
        gap = gone(queue, start, bound)
        if gap is not None:
            leave_out(self._options, queue, gap)
            offsets[queue] = bound[0]

    def _waits(self, waiting: int, limit: Any) -> bool:
        """Return whether the next batch is to wait for more messages."""
        if self._available_now or isinstance(limit, ReadAllAvailable):
            return False
        return self._patience.waits(waiting)

    def _admitted(self, lags: Offsets, starts: Offsets, limit: Any) -> Offsets:
        """Return how many messages of each queue the next batch takes."""
        if isinstance(limit, ReadAllAvailable):
            return lags
        most = [] if self._options.max_messages is None else [self._options.max_messages]
        if isinstance(limit, ReadMaxRows):
            most.append(limit.max_rows)
        counts = shared(lags, min(most)) if most else lags
        bytes_ = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        if bytes_ is None:
            return counts

        def size_at(queue: MessageQueue, ahead: int) -> int:
            offset = starts[queue] + ahead
            return self._size_of(queue, offset, min(_SAMPLE_MESSAGES, counts[queue] - ahead))

        return within_bytes(counts, bytes_, size_at)

    def _size_of(self, queue: MessageQueue, offset: int, count: int) -> int:
        """Return the mean size of `count` messages in the log, 0 if they are gone."""
        for chunk in self._reader().read(queue, offset, offset + count):
            columns = read_columns(chunk.records, 0, len(chunk.records), None)
            if len(columns):
                return chunk.size_bytes // len(columns)
        return 0
